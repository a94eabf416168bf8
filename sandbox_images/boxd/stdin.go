package main

// stdin.go owns the writing end of a run's standard input. It never holds data back.

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
)

const stdinWait = 60 * time.Second

type stdinPipe struct {
	writing sync.Mutex // one writer at a time
	file    *os.File
}

// newStdinPipe returns a non-blocking writing end for us and a blocking reading end for the child.
func newStdinPipe() (pipe *stdinPipe, reading int, err error) {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return nil, -1, err
	}
	if err := syscall.SetNonblock(ends[1], true); err != nil {
		syscall.Close(ends[0])
		syscall.Close(ends[1])
		return nil, -1, err
	}
	return &stdinPipe{file: os.NewFile(uintptr(ends[1]), "stdin")}, ends[0], nil
}

// write returns how much the process's pipe took before the caller went away or the wait was over.
func (s *stdinPipe) write(ctx context.Context, data []byte) (int, *fault) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.file.SetWriteDeadline(time.Now().Add(stdinWait)); err != nil {
		return 0, stdinFault(os.ErrClosed)
	}
	stop := context.AfterFunc(ctx, func() { s.file.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	n, err := s.file.Write(data)
	if err != nil {
		f := stdinFault(err)
		f.fields = map[string]any{"writtenBytes": n}
		return n, f
	}
	return n, nil
}

// feed writes all the data there is and closes. A process that does not read is no error.
func (s *stdinPipe) feed(data []byte) {
	defer s.close()
	if _, err := s.file.Write(data); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, os.ErrClosed) {
		report("standard input is lost: %v", err)
	}
}

func (s *stdinPipe) close() {
	if err := s.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		report("standard input cannot be closed: %v", err)
	}
}

func stdinFault(err error) *fault {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return faultf("deadline_exceeded", "stdin_full", "the process does not read its standard input")
	case errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EPIPE):
		return faultf("failed_precondition", "stdin_closed", "standard input is closed")
	}
	return faultf("internal", "io_error", "standard input: %v", err)
}
