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
)

const shutdownWait = 5 * time.Second

type reaper struct {
	mu   sync.Mutex
	live map[int]func(syscall.WaitStatus)
}

func newReaper() *reaper { return &reaper{live: map[int]func(syscall.WaitStatus){}} }

// spawn starts a process. onStart is called before the exit can be seen; onExit once, from the reaper's goroutine.
// Neither may block.
func (r *reaper) spawn(
	path string, argv []string, attr *syscall.ProcAttr, onStart func(pid int), onExit func(syscall.WaitStatus),
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
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			r.mu.Unlock()
			continue
		}
		if err != nil || pid <= 0 {
			r.mu.Unlock()
			return err == nil
		}
		onExit := r.live[pid]
		delete(r.live, pid)
		r.mu.Unlock()
		if onExit != nil {
			onExit(status)
		}
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
