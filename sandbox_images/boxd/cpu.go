package main

// cpu.go owns the CPU time of a run's tree: what its living processes and the children they waited for have used, and
// what the orphans had used that process 1 reaped. It never ends anything.

import (
	"sync"
	"syscall"
	"time"
)

const clockTick = 10 * time.Millisecond // /proc counts 100 per second on every Linux we build for

type cpuMeter struct {
	mu     sync.Mutex
	seen   map[int]bool // members of the last look
	reaped time.Duration
}

// measure looks at the tree. What a member used between its end and the next look is in its parent's account.
func (m *cpuMeter) measure(members []process) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = make(map[int]bool, len(members))
	total := m.reaped
	for _, p := range members {
		m.seen[p.pid] = true
		total += time.Duration(p.cpuTicks) * clockTick
	}
	return total
}

// orphanEnded adds what an orphan had used if it was seen in the tree, or belongs to its process group.
func (m *cpuMeter) orphanEnded(pid int, inGroup bool, used time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if inGroup || m.seen[pid] {
		m.reaped += used
	}
}

func cpuOf(usage *syscall.Rusage) time.Duration {
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// orphanEnded is called by the reaper for every process that is not a run's own.
func (t *runTable) orphanEnded(pid, group int, usage *syscall.Rusage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := range t.metered {
		select {
		case <-r.launched:
			r.meter.orphanEnded(pid, group == r.pid, cpuOf(usage))
		default:
		}
	}
}

// meterRun makes orphans of this run count until it has ended.
func (t *runTable) meterRun(r *run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, isActive := t.active[r]; isActive {
		t.metered[r] = struct{}{}
	}
}

// cpuUsed is the run's whole tree so far.
func (r *run) cpuUsed() (used time.Duration) {
	r.box.blocking.tree.do(func() { used = r.meter.measure(r.asTree().members()) })
	return used
}
