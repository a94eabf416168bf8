// Command boxd is process 1 of every sandbox container.
//
// main.go owns the choice between the two stages and the order in which the second stage is assembled.
// It never runs a command, serves a request or touches a file of the box itself.
package main

import (
	"fmt"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// build is set by the linker: -ldflags "-X main.build=...".
var build = "dev"

const (
	exitUsage    = 64 // not process 1, or unknown arguments
	exitRefused  = 70 // the capabilities could not be given up
	exitNoListen = 71 // the control listener broke
)

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "--version":
		fmt.Println(build)
	case len(os.Args) == 1:
		startedNs := monotonicNs()
		requirePid1()
		firstStage(startedNs)
	case len(os.Args) == 3 && os.Args[1] == "--stage2":
		startedNs, err := strconv.ParseInt(os.Args[2], 10, 64)
		if err != nil {
			die(exitUsage, "bad start time %q", os.Args[2])
		}
		requirePid1()
		secondStage(startedNs)
	default:
		die(exitUsage, "usage: boxd (as process 1 of a container), or boxd --version")
	}
}

// firstStage gives up the capabilities that only the set-up of the container needs, checks that they are gone,
// and starts the same program again: nothing that runs later has ever held them.
func firstStage(startedNs int64) {
	runtime.LockOSThread() // execve keeps the credentials of the calling thread
	if err := dropCapabilities(); err != nil {
		die(exitRefused, "%v", err)
	}
	if err := verifyDropped(); err != nil {
		die(exitRefused, "%v", err)
	}
	argv := []string{os.Args[0], "--stage2", strconv.FormatInt(startedNs, 10)}
	err := syscall.Exec("/proc/self/exe", argv, os.Environ())
	die(exitRefused, "cannot start the second stage: %v", err)
}

func secondStage(startedNs int64) {
	if err := verifyDropped(); err != nil {
		die(exitRefused, "%v", err)
	}
	runtime.GOMAXPROCS(min(runtime.NumCPU(), maxProcs))
	debug.SetGCPercent(50)
	reserveThreads(threadReserve)
	hideFromSiblings()

	hostname, err := os.Hostname()
	if err != nil {
		die(exitUsage, "no host name: %v", err)
	}
	bounding, err := boundingSet()
	if err != nil {
		die(exitRefused, "%v", err)
	}
	box, err := newBox(boxConfig{birthID: hostname, capBounding: bounding, environ: os.Environ(), metadataPath: metadataFile})
	if err != nil {
		die(exitUsage, "%v", err)
	}
	go box.reaper.watch()
	go obeySignals(box)

	listener := awaitListener(bootSocket)
	box.bootMs = (monotonicNs() - startedNs) / int64(time.Millisecond)
	server := &http.Server{Handler: box.routes()}
	err = server.Serve(limitConnections(listener, maxConnections))
	die(exitNoListen, "the control listener broke: %v", err)
}

func requirePid1() {
	if os.Getpid() != 1 {
		die(exitUsage, "boxd runs only as process 1 of a container, this is process %d", os.Getpid())
	}
}

// monotonicNs reads CLOCK_MONOTONIC, which both stages share.
func monotonicNs() int64 { return readClock(1) }

func readClock(id uintptr) int64 {
	var ts syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}

func die(code int, format string, args ...any) {
	fmt.Fprintf(os.Stderr, "boxd: "+format+"\n", args...)
	os.Exit(code)
}

// report writes one line to the container's log; only what an operator can act on goes there.
func report(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "boxd: "+format+"\n", args...)
}
