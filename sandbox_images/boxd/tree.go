package main

// tree.go owns ending a run's whole process tree: its group, whoever carries its run id, and all their descendants.
// Members are stopped first, so that none can fork while the rest are found, then killed, until none is left.
// It never touches what another run owns.

import (
	"slices"
	"syscall"
	"time"
)

const (
	treeKillWait  = 5 * time.Second
	treeKillPause = 2 * time.Millisecond
	maxStopRounds = 64
)

type tree struct {
	runID        string
	leader       int // also the number of the process group
	startedAfter time.Time
	owned        ownership
}

// ownership is what belongs to other runs.
type ownership struct {
	runIDs  map[string]bool
	leaders map[int]bool
}

// stopTree returns the processes it could not end, or whose membership it could not tell.
func stopTree(t *tree) []int {
	var members []int
	for end := time.Now().Add(treeKillWait); ; time.Sleep(treeKillPause) {
		members = t.stopAll()
		for _, pid := range members {
			syscall.Kill(pid, syscall.SIGKILL) // ESRCH: it has gone, which is what we want
		}
		if len(members) == 0 || time.Now().After(end) {
			break
		}
	}
	return append(members, t.strangers()...)
}

// stopAll stops members until a walk finds no new one.
func (t *tree) stopAll() []int {
	stopped := map[int]bool{}
	for range maxStopRounds {
		isNew := false
		for _, p := range t.members() {
			if !stopped[p.pid] {
				stopped[p.pid], isNew = true, true
				syscall.Kill(p.pid, syscall.SIGSTOP)
			}
		}
		if !isNew {
			break
		}
	}
	list := make([]int, 0, len(stopped))
	for pid := range stopped {
		if p, ok := readProcess(pid); ok && !p.isGone() {
			list = append(list, pid)
		}
	}
	slices.Sort(list)
	return list
}

// members are the living processes of the tree.
func (t *tree) members() []process {
	list, err := listProcesses()
	if err != nil {
		report("cannot list processes: %v", err)
		return nil
	}
	is := map[int]bool{}
	for _, p := range list {
		if p.isGone() {
			continue
		}
		if id := runIDOf(p.pid); id == t.runID {
			is[p.pid] = true
		} else if p.group == t.leader && !t.owned.leaders[t.leader] && !t.owned.runIDs[id] {
			is[p.pid] = true
		}
	}
	for grew := true; grew; {
		grew = false
		for _, p := range list {
			if is[p.parent] && !is[p.pid] && !p.isGone() {
				is[p.pid], grew = true, true
			}
		}
	}
	found := make([]process, 0, len(is))
	for _, p := range list {
		if is[p.pid] {
			found = append(found, p)
		}
	}
	return found
}

// strangers are orphans younger than the run that no run accounts for: they may be what is left of this tree with a
// scrubbed environment, so they are reported and left alone.
func (t *tree) strangers() []int {
	list, err := listProcesses()
	if err != nil {
		report("cannot list processes: %v", err)
		return nil
	}
	since := ticksAt(t.startedAfter)
	var found []int
	for _, p := range list {
		if p.parent != 1 || p.isGone() || p.startTicks < since || t.owned.leaders[p.pid] || t.owned.leaders[p.group] {
			continue
		}
		if id := runIDOf(p.pid); id == t.runID || !t.owned.runIDs[id] {
			found = append(found, p.pid)
		}
	}
	return found
}

// ticksAt turns a moment into /proc's clock ticks since boot (100 per second on every Linux we build for), rounded down.
func ticksAt(moment time.Time) int64 {
	sinceBoot := bootNs() - time.Since(moment).Nanoseconds()
	return sinceBoot / int64(10*time.Millisecond)
}

// bootNs reads CLOCK_BOOTTIME, the clock of start times in /proc.
func bootNs() int64 { return readClock(7) }
