package main

// reaper.go owns every wait status of the container: it forks, it waits, and nobody else does either. One lock spans
// fork + registration on one side and wait + look-up on the other, so a status is never lost or given to a later
// process with the same number. Orphans that were never registered are reaped and forgotten.

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const shutdownWait = 5 * time.Second

type reaper struct {
	mu   sync.Mutex
	live map[int]exitHook

	onOrphan func(pid, group int, usage *syscall.Rusage) // may not block; nil: orphans are nobody's
}

// exitHook learns how a process ended and what it and the children it waited for have used.
type exitHook func(syscall.WaitStatus, *syscall.Rusage)

func newReaper() *reaper { return &reaper{live: map[int]exitHook{}} }

// spawn starts a process. onStart is called before the exit can be seen; onExit once, from the reaper's goroutine.
// Neither may block.
func (r *reaper) spawn(
	path string, argv []string, attr *syscall.ProcAttr, onStart func(pid int), onExit exitHook,
) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, err
	}
	onStart(pid)
	r.live[pid] = onExit
	return pid, nil
}

// signal sends a signal to a process, or to its group when whole, only while its number is still its own.
func (r *reaper) signal(pid int, signal syscall.Signal, whole bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.live[pid]; !ok {
		return syscall.ESRCH
	}
	if whole {
		return syscall.Kill(-pid, signal)
	}
	return syscall.Kill(pid, signal)
}

// own are the numbers of all processes that were started by us and have not been reaped.
func (r *reaper) own() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	pids := make([]int, 0, len(r.live))
	for pid := range r.live {
		pids = append(pids, pid)
	}
	return pids
}

// watch reaps for as long as the process lives.
func (r *reaper) watch() {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	r.sweep()
	for range children {
		r.sweep()
	}
}

// sweep reaps all that has ended; it reports whether any child is left.
func (r *reaper) sweep() (anyLeft bool) {
	for {
		r.mu.Lock()
		pid, group, err := nextEnded()
		if err != nil || pid == 0 {
			r.mu.Unlock()
			return err == nil
		}
		var status syscall.WaitStatus
		var usage syscall.Rusage
		_, err = syscall.Wait4(pid, &status, syscall.WNOHANG, &usage)
		onExit := r.live[pid]
		delete(r.live, pid) // from here on the number may be another's
		r.mu.Unlock()
		switch {
		case err != nil:
			report("the status of process %d is lost: %v", pid, err)
		case onExit != nil:
			onExit(status, &usage)
		case r.onOrphan != nil:
			r.onOrphan(pid, group, &usage)
		}
	}
}

// nextEnded names a child that can be reaped, and its group, which is not to be known afterwards. 0 means none yet.
func nextEnded() (pid, group int, err error) {
	var found [16]uint64 // siginfo_t; on 64 bits the process number is its fifth word of 32
	const pAll, wExited, wNoWait = 0, 4, 0x01000000
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pAll, 0, uintptr(unsafe.Pointer(&found[0])),
			wExited|syscall.WNOHANG|wNoWait, 0, 0)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 {
			return 0, 0, errno
		}
		pid = int(uint32(found[2]))
		if pid != 0 {
			group, _ = syscall.Getpgid(pid) // it is there until it is reaped
		}
		return pid, group, nil
	}
}

// obeySignals makes the engine's stop orderly. HUP and PIPE are caught, not ignored: an ignored signal is inherited.
func obeySignals(box *box) {
	received := make(chan os.Signal, 4)
	signal.Notify(received, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGPIPE)
	for sig := range received {
		if sig == syscall.SIGHUP || sig == syscall.SIGPIPE {
			continue
		}
		box.stopAdmitting()
		if err := syscall.Kill(-1, syscall.SIGTERM); err != nil && err != syscall.ESRCH {
			report("cannot pass the stop on: %v", err)
		}
		for end := time.Now().Add(shutdownWait); time.Now().Before(end) && box.reaper.sweep(); {
			time.Sleep(10 * time.Millisecond)
		}
		os.Exit(0)
	}
}
