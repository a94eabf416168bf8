package main

// standstill.go owns stopping every process of the box but process 1, and letting exactly those go on again. A process
// that was stopped before stays stopped.

import "syscall"

// stillStand are the processes that were stopped, with their start times: a number may come again.
type stillStand map[int]int64

func holdProcesses(shouldStand bool, standing *stillStand) {
	if shouldStand {
		standing.stop()
	} else {
		standing.release()
	}
}

// stop walks until a walk finds no new one, so that none can fork meanwhile.
func (s *stillStand) stop() {
	if *s == nil {
		*s = stillStand{}
	}
	for range maxStopRounds {
		list, err := listProcesses()
		if err != nil {
			report("cannot list processes: %v", err)
			return
		}
		isNew := false
		for _, p := range list {
			if p.isGone() || p.state == 'T' {
				continue
			}
			if syscall.Kill(p.pid, syscall.SIGSTOP) == nil && (*s)[p.pid] != p.startTicks {
				(*s)[p.pid], isNew = p.startTicks, true
			}
		}
		if !isNew {
			return
		}
	}
}

func (s *stillStand) release() {
	for pid, start := range *s {
		if p, ok := readProcess(pid); ok && p.startTicks == start {
			syscall.Kill(pid, syscall.SIGCONT) // ESRCH: it has gone
		}
	}
	*s = nil
}
