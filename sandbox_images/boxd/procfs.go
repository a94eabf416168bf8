package main

// procfs.go owns reading what the kernel says about the processes of the box. It never signals one.
// Source: proc(5).

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

const runIDVariable = "SANDKEEPER_RUN_ID"

// process is one line of the walk.
type process struct {
	pid, parent, group int
	state              byte
	startTicks         int64 // since boot, in clock ticks
	cpuTicks           int64 // used by it and by the children it waited for
}

func (p process) isGone() bool { return p.state == 'Z' || p.state == 'X' }

// listProcesses reads all of /proc but process 1.
func listProcesses() ([]process, error) {
	folder, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	list := make([]process, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 1 {
			if p, ok := readProcess(pid); ok {
				list = append(list, p)
			}
		}
	}
	return list, nil
}

func readProcess(pid int) (process, bool) {
	text, err := readSmall("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	return parseStat(pid, text)
}

// parseStat skips the command name, which may hold anything but ends at the last parenthesis.
func parseStat(pid int, text []byte) (process, bool) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return process{}, false
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 20 {
		return process{}, false
	}
	parent, err1 := strconv.Atoi(fields[1])
	group, err2 := strconv.Atoi(fields[2])
	start, err3 := strconv.ParseInt(fields[19], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return process{}, false
	}
	var cpu int64
	for _, field := range fields[11:15] { // utime stime cutime cstime
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return process{}, false
		}
		cpu += ticks
	}
	return process{pid: pid, parent: parent, group: group, state: fields[0][0], startTicks: start, cpuTicks: cpu}, true
}

// runIDOf reads the run id from a process's environment. Empty means none, or not shown.
func runIDOf(pid int) (id string) {
	asOwnerOf(pid, func(folder string) {
		text, err := readSmall(folder + "/environ")
		if err != nil {
			return
		}
		for _, entry := range bytes.Split(text, []byte{0}) {
			if value, ok := bytes.CutPrefix(entry, []byte(runIDVariable+"=")); ok {
				id = string(value)
				return
			}
		}
	})
	return id
}

// asOwnerOf does work with the process's folder in /proc as the user of that process: without SYS_PTRACE the kernel
// shows some of it only to its own user.
func asOwnerOf(pid int, work func(folder string)) {
	folder := "/proc/" + strconv.Itoa(pid)
	var stat syscall.Stat_t
	if syscall.Stat(folder, &stat) != nil {
		return
	}
	if os.Geteuid() == 0 && (stat.Uid != 0 || stat.Gid != 0) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		setFileIDs(stat.Uid, stat.Gid)
		defer setFileIDs(0, 0)
	}
	work(folder)
}

// setFileIDs changes whom the kernel takes this thread for when it opens files. The group goes first: SETGID survives
// the change of the user in both directions.
func setFileIDs(uid, gid uint32) {
	syscall.RawSyscall(syscall.SYS_SETFSGID, uintptr(gid), 0, 0)
	syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(uid), 0, 0)
}

// readSmall reads a /proc file without the runtime's poller, up to 128 KiB.
func readSmall(path string) ([]byte, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	text := make([]byte, 0, 4096)
	for len(text) < 128<<10 {
		if len(text) == cap(text) {
			text = append(text, 0)[:len(text)]
		}
		n, err := syscall.Read(fd, text[len(text):cap(text)])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		text = text[:len(text)+n]
	}
	return text, nil
}
