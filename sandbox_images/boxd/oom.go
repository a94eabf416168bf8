package main

// oom.go owns the kernel's count of processes it killed for memory in this container. It never explains a death by
// itself: a run compares the count before and after.

import (
	"bytes"
	"os"
	"strconv"
)

type oomCounter struct{ file *os.File }

// newOOMCounter opens the count once; without a readable one it is always 0.
func newOOMCounter() *oomCounter {
	for _, path := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		if file, err := os.Open(path); err == nil {
			return &oomCounter{file: file}
		}
	}
	return &oomCounter{}
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
