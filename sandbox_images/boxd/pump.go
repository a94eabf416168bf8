package main

// pump.go owns reading one output pipe of one run until all writers have closed it. When the run's process exits, it
// takes what is in the pipe at that moment, says so, and goes on reading for the background processes that hold the
// pipe, so that they are never blocked or killed by a closed pipe.

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	pumpBuffer   = 64 << 10
	streamBuffer = 256 << 10 // for whole files
	terminalLag  = 50 * time.Millisecond
)

var streamBuffers = sync.Pool{New: func() any { return new([streamBuffer]byte) }}

var pumpBuffers = sync.Pool{New: func() any { return new([pumpBuffer]byte) }}

type pump struct {
	file       *os.File      // the reading end, non-blocking
	isTerminal bool          // its bytes come a moment after they were written
	gone       chan struct{} // of a terminal: closed when the process has ended
	into       *output
	changed    func() // new bytes are there
	drained    func() // all that the process wrote is there; called once
}

// newPipe returns a non-blocking reading end for us and a blocking writing end for the child.
func newPipe() (reading *os.File, writing int, err error) {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return nil, -1, err
	}
	if err := syscall.SetNonblock(ends[0], true); err != nil {
		syscall.Close(ends[0])
		syscall.Close(ends[1])
		return nil, -1, err
	}
	return os.NewFile(uintptr(ends[0]), "output"), ends[1], nil
}

func (p *pump) run() {
	defer p.file.Close()
	drained := sync.OnceFunc(p.drained)
	defer drained()
	conn, err := p.file.SyscallConn()
	if err != nil {
		report("an output pipe cannot be read: %v", err)
		return
	}
	for {
		var n int
		var readErr error
		isLast := p.isTerminal && p.hasExited(0) // before the look
		err := conn.Read(func(fd uintptr) bool {
			n, readErr = p.take(int(fd), pumpBuffer)
			return readErr != syscall.EAGAIN
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if p.isTerminal { // it has had its moment
				drained()
				if p.file.SetReadDeadline(time.Time{}) != nil {
					return
				}
				continue
			}
			ended := false
			if err := conn.Control(func(fd uintptr) { ended = p.takeWaiting(int(fd)) }); err != nil || ended {
				return
			}
			drained()
			if p.file.SetReadDeadline(time.Time{}) != nil {
				return
			}
		case p.isTerminal && readErr == syscall.EIO && !isLast:
			// Nobody has it open, but closing our end would kill the process, which may still open it again.
			p.hasExited(terminalLag)
		case err != nil || readErr != nil || n == 0:
			return
		}
	}
}

// exited tells the pump that the process has ended: all its bytes are in the pipe. A terminal ends by itself when
// nobody else has it open.
func (p *pump) exited() {
	end := time.Unix(1, 0)
	if p.isTerminal {
		end = time.Now().Add(terminalLag)
		close(p.gone)
	}
	if err := p.file.SetReadDeadline(end); errors.Is(err, os.ErrNoDeadline) {
		report("an output pipe takes no deadline: %v", err)
	} // any other error means that the pump has ended by itself
}

// hasExited waits at most so long for the end of a terminal's process.
func (p *pump) hasExited(wait time.Duration) bool {
	select {
	case <-p.gone:
		return true
	default:
	}
	if wait == 0 {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-p.gone:
		return true
	case <-timer.C:
		return false
	}
}

// take moves at most limit bytes that are readable now.
func (p *pump) take(fd, limit int) (int, error) {
	buffer := pumpBuffers.Get().(*[pumpBuffer]byte)
	defer pumpBuffers.Put(buffer)
	for {
		n, err := syscall.Read(fd, buffer[:min(limit, pumpBuffer)])
		if err == syscall.EINTR {
			continue
		}
		if n > 0 {
			p.into.append(buffer[:n])
			p.changed()
		}
		return max(n, 0), err
	}
}

// takeWaiting moves what is in the pipe now, and no more, so that a busy background process cannot hold the run.
func (p *pump) takeWaiting(fd int) (ended bool) {
	for waiting := bytesWaiting(fd); waiting > 0; {
		n, err := p.take(fd, waiting)
		if err != nil || n == 0 {
			return err == nil
		}
		waiting -= n
	}
	return false
}

func bytesWaiting(fd int) int {
	var count int32
	const fionread = 0x541b
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), fionread, uintptr(unsafe.Pointer(&count)))
	if errno != 0 {
		return 0
	}
	return int(count)
}
