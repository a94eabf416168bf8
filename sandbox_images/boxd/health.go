package main

// health.go owns telling a box that is broken from a command that failed: process slots, memory, disk, a shell, and
// whether a process can be made at all. Each call looks anew and is bounded by the kernel's own speed.

import (
	"bytes"
	"net/http"
	"strconv"
	"syscall"
)

type healthReport struct {
	Pids struct {
		Current *int64 `json:"current"` // null: the kernel does not say
		Max     *int64 `json:"max"`     // null: no limit
	} `json:"pids"`
	DiskUsedBytes  *int64 `json:"diskUsedBytes"` // null: not measured yet
	DiskLimitBytes int64  `json:"diskLimitBytes"`
	DiskFreeBytes  *int64 `json:"diskFreeBytes"`
	Memory         struct {
		UsedBytes  *int64 `json:"usedBytes"`
		LimitBytes *int64 `json:"limitBytes"`
	} `json:"memory"`
	Shell     bool   `json:"shell"`
	CanFork   bool   `json:"canFork"`
	ForkError string `json:"forkError,omitempty"`
	OOMKills  int64  `json:"oomKills"`
	State     string `json:"state"`
}

// cgroupFiles are the places of a value in version 2 and version 1.
type cgroupFiles [2]string

var (
	pidsCurrent = cgroupFiles{"/sys/fs/cgroup/pids.current", "/sys/fs/cgroup/pids/pids.current"}
	pidsMax     = cgroupFiles{"/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"}
	memoryUsed  = cgroupFiles{"/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}
	memoryMax   = cgroupFiles{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}
)

// noLimit is where version 1 has a number instead of the word "max".
const noLimit = 1 << 62

func (files cgroupFiles) read() *int64 {
	for _, path := range files {
		if text, err := readSmall(path); err == nil {
			return parseCgroupValue(text)
		}
	}
	return nil
}

func parseCgroupValue(text []byte) *int64 {
	value, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil || value >= noLimit {
		return nil
	}
	return &value
}

func (b *box) serveHealthReport(w http.ResponseWriter, _ *http.Request) {
	var made healthReport
	b.blocking.health.do(func() {
		made.Pids.Current, made.Pids.Max = pidsCurrent.read(), pidsMax.read()
		made.Memory.UsedBytes, made.Memory.LimitBytes = memoryUsed.read(), memoryMax.read()
		made.OOMKills = b.oom.count()
		_, refusal := checkProgram("/bin/sh", "sh")
		made.Shell = refusal == nil
		if free, err := b.disk.free(); err == nil {
			made.DiskFreeBytes = &free
		}
		made.CanFork = true
		if !b.disk.exceeded.Load() { // else it would be stopped like all others
			if err := b.tryFork(); err != nil {
				made.CanFork, made.ForkError = false, err.Error()
			}
		}
	})
	if s := b.disk.state(); s.isKnown {
		made.DiskUsedBytes, made.DiskLimitBytes = &s.usedBytes, s.limitBytes
	}
	made.State = b.hello().State
	writeJSON(w, http.StatusOK, made)
}

// tryFork starts this very program, which the host has mounted: it needs nothing of the box but a process slot.
func (b *box) tryFork() error {
	attr := &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{b.devNull, b.devNull, b.devNull}, Env: []string{"GOMAXPROCS=1"},
		Sys: &syscall.SysProcAttr{Setpgid: true},
	}
	ignore := func(syscall.WaitStatus, *syscall.Rusage) {}
	_, err := b.reaper.spawn("/proc/self/exe", []string{"boxd", "--version"}, attr, func(int) {}, ignore)
	return err
}

type recheckRequest struct {
	Epoch          *int64 `json:"epoch"`
	DiskLimitBytes *int64 `json:"diskLimitBytes"` // absent: as it was
}

// serveRecheck measures now; below the limit, or with a higher one, the box goes on.
func (b *box) serveRecheck(w http.ResponseWriter, r *http.Request) {
	var request recheckRequest
	f := readJSON(r, maxControlBody, &request)
	if f == nil {
		f = b.checkFence(fence{epoch: request.Epoch})
	}
	if f == nil && request.DiskLimitBytes != nil {
		f = checkDiskLimit(*request.DiskLimitBytes)
	}
	if f != nil {
		writeFault(w, f)
		return
	}
	var err error
	if request.DiskLimitBytes != nil {
		b.disk.allow(*request.DiskLimitBytes)
	}
	if err = b.disk.measure(r.Context()); err != nil {
		writeFault(w, fileFault(err, b.disk.root))
		return
	}
	b.disk.wake()
	s := b.disk.state()
	writeJSON(w, http.StatusOK, event{
		"state": b.hello().State, "diskUsedBytes": s.usedBytes, "diskLimitBytes": s.limitBytes,
	})
}

func checkDiskLimit(limit int64) *fault {
	if limit < 0 {
		return faultf("invalid_argument", "bad_limit", "a disk limit of %d bytes", limit)
	}
	return nil
}
