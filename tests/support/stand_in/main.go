// Command stand_in takes boxd's place as process 1 where a test is about the container and not about boxd.
// What it does is the first word in /run/sandkeeper/play; afterwards it waits for SIGTERM and exits 0.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	play, _ := os.ReadFile("/run/sandkeeper/play")
	words := append(strings.Fields(string(play)), "pause", "0")
	switch words[0] {
	case "report":
		report()
	case "flood":
		flood(number(words[1]))
	case "use":
		held := use(number(words[1]))
		defer runtime.KeepAlive(held)
	case "ignore":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ignoring")
	default:
		fmt.Println("ready")
	}
	<-terminated
}

func number(word string) int {
	value, err := strconv.Atoi(word)
	if err != nil {
		panic(err)
	}
	return value
}

// report prints what a process sees of its container as one JSON object on one line.
func report() {
	seen := map[string]any{
		"argv": os.Args, "environ": os.Environ(), "uid": os.Getuid(), "gid": os.Getgid(), "pid": os.Getpid(),
	}
	seen["hostname"], _ = os.Hostname()
	seen["workdir"], _ = os.Getwd()
	for _, path := range []string{
		"/proc/self/status", "/proc/self/oom_score_adj", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname",
		"/proc/sys/net/ipv6/conf/lo/disable_ipv6", "/proc/self/mountinfo",
	} {
		body, err := os.ReadFile(path)
		if err != nil {
			body = []byte("error: " + err.Error())
		}
		seen[path] = string(body)
	}
	names := []string{}
	interfaces, _ := net.Interfaces()
	for _, one := range interfaces {
		names = append(names, one.Name)
	}
	seen["interfaces"] = names
	seen["listens"] = map[string]string{"127.0.0.1": listen("127.0.0.1:0"), "::1": listen("[::1]:0")}
	seen["writes"] = map[string]string{
		"/run/sandkeeper": write("/run/sandkeeper/x"), "/.sandkeeper": write("/.sandkeeper/x"), "/": write("/x"),
	}
	line, _ := json.Marshal(seen)
	fmt.Println(string(line))
}

func listen(address string) string {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err.Error()
	}
	defer listener.Close()
	return "ok"
}

func write(path string) string {
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		return err.Error()
	}
	return "ok"
}

// flood prints that many numbered lines of 64 bytes, then says so.
func flood(lines int) {
	for index := range lines {
		fmt.Printf("%063d\n", index)
	}
	fmt.Println("flooded")
}

// use takes that many MiB of memory and keeps them until the end.
func use(mib int) []byte {
	held := make([]byte, mib<<20)
	for at := 0; at < len(held); at += 4096 {
		held[at] = 1
	}
	fmt.Println("in use")
	return held
}
