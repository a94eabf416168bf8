package main

// spill.go owns the disk part of a stream's output: a circular file that has no name, so it is in no commit and ends
// with the process. It keeps at most spillMax bytes; the oldest go first.

import (
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
)

const (
	spillMax  = 64 << 20
	oTmpfile  = 0o20200000
	spillMode = 0o600
)

type spill struct {
	fd         int
	limit      int64
	start, end int64 // offsets of the stream that the file holds
	slots      slots
}

// openSpill answers nil when no folder takes an unnamed file.
func openSpill(limits slots, folders ...string) (opened *spill) {
	limits.do(func() {
		for _, folder := range folders {
			fd, err := unnamedFile(folder)
			if err == nil {
				opened = &spill{fd: fd, limit: spillMax, slots: limits}
				return
			}
		}
	})
	return opened
}

func unnamedFile(folder string) (int, error) {
	fd, err := syscall.Open(folder, oTmpfile|syscall.O_RDWR|syscall.O_CLOEXEC, spillMode)
	if err == nil {
		return fd, nil
	}
	// Overlay file systems before Linux 6.1 have no O_TMPFILE.
	name := fmt.Sprintf("%s/.sk-%016x", folder, rand.Uint64())
	fd, err = syscall.Open(name, syscall.O_CREAT|syscall.O_EXCL|syscall.O_RDWR|syscall.O_CLOEXEC, spillMode)
	if err != nil {
		return -1, err
	}
	if err := os.Remove(name); err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// write appends data, which continues at end. False means that the file can keep no more, for instance a full disk.
func (s *spill) write(data []byte) (ok bool) {
	s.slots.do(func() {
		for len(data) > 0 {
			at := s.end % s.limit
			part := data[:min(int64(len(data)), s.limit-at)]
			n, err := syscall.Pwrite(s.fd, part, at)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || n <= 0 {
				return
			}
			s.end += int64(n)
			s.start = max(s.start, s.end-s.limit)
			data = data[n:]
		}
		ok = true
	})
	return ok
}

// read copies what the file holds from offset on; 0 means that it cannot be read.
func (s *spill) read(offset int64, buffer []byte) (copied int) {
	if offset < s.start || offset >= s.end {
		return 0
	}
	s.slots.do(func() {
		at := offset % s.limit
		length := min(int64(len(buffer)), s.end-offset, s.limit-at)
		for {
			n, err := syscall.Pread(s.fd, buffer[:length], at)
			if err == syscall.EINTR {
				continue
			}
			if err == nil {
				copied = n
			}
			return
		}
	})
	return copied
}

func (s *spill) close() { s.slots.do(func() { syscall.Close(s.fd) }) }
