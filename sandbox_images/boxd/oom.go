package main

// oom.go owns the kernel's count of processes it killed for memory in this container. It never explains a death by
// itself: a run compares the count before and after.

import (
	"bytes"
	"os"
	"strconv"
	"sync"
)

type oomCounter struct {
	file *os.File

	mu      sync.Mutex
	claimed int64 // kills that are known to have ended the process of a run
}

// oomMark is where the count stood at a moment.
type oomMark struct{ count, claimed int64 }

// newOOMCounter opens the count once; without a readable one it is always 0.
func newOOMCounter() *oomCounter {
	for _, path := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		if file, err := os.Open(path); err == nil {
			return &oomCounter{file: file}
		}
	}
	return &oomCounter{}
}

func (c *oomCounter) mark() oomMark {
	c.mu.Lock()
	defer c.mu.Unlock()
	return oomMark{count: c.count(), claimed: c.claimed}
}

// since is how many processes the kernel has killed since the mark that did not end another run's own process. A kill
// of a child is told to every run that was going: the kernel does not say whose child it was.
func (c *oomCounter) since(before oomMark, hasDiedOfKill bool) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	kills := max(c.count()-before.count-(c.claimed-before.claimed), 0)
	if hasDiedOfKill && kills > 0 {
		c.claimed++
	}
	return kills
}

func (c *oomCounter) count() int64 {
	if c.file == nil {
		return 0
	}
	var buffer [512]byte
	n, _ := c.file.ReadAt(buffer[:], 0) // a short file ends with io.EOF
	return parseOOMKills(buffer[:n])
}

func parseOOMKills(text []byte) int64 {
	for _, line := range bytes.Split(text, []byte("\n")) {
		if value, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			count, err := strconv.ParseInt(string(value), 10, 64)
			if err == nil {
				return count
			}
		}
	}
	return 0
}
