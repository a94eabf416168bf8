package main

// terminal.go owns one pseudo terminal: making it, its size, its input. What it shows is read by a pump, which closes
// it. It never waits in a thread: our end is non-blocking and waits in the runtime's poller.
// Source: pty(7), ioctl_tty(2).

import (
	"context"
	"net/http"
	"os"
	"syscall"
	"unsafe"
)

const (
	ioctlSetWindow  = 0x5414     // TIOCSWINSZ
	ioctlSetPtyLock = 0x40045431 // TIOCSPTLCK
	ioctlOpenPeer   = 0x5441     // TIOCGPTPEER
	terminalType    = "xterm-256color"
	maxWindowSide   = 1<<16 - 1
)

// windowSize is envd's PTY.Size; a zero side is the usual one.
type windowSize struct {
	Cols uint32 `json:"cols"`
	Rows uint32 `json:"rows"`
}

type ptyRequest struct {
	Size windowSize `json:"size"`
}

func (s windowSize) check() *fault {
	if s.Cols > maxWindowSide || s.Rows > maxWindowSide {
		return faultf("invalid_argument", "bad_size", "a terminal of %d columns and %d rows", s.Cols, s.Rows)
	}
	return nil
}

type terminal struct {
	file  *os.File // our end
	input *stdinPipe
}

// newTerminal returns our end, and the other one as a descriptor for the child; the user owns that one, as after login.
func newTerminal(size windowSize, who account) (made *terminal, theirs int, err error) {
	fd, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, -1, err
	}
	theirs, err = openPeer(fd)
	if err == nil {
		if err = setWindow(fd, size); err == nil {
			err = syscall.Fchown(theirs, int(who.uid), -1)
		}
		if err == syscall.EPERM && os.Geteuid() != 0 { // without privilege it is our own already
			err = nil
		}
		if err != nil {
			syscall.Close(theirs)
		}
	}
	if err != nil {
		syscall.Close(fd)
		return nil, -1, err
	}
	file := os.NewFile(uintptr(fd), "terminal")
	return &terminal{file: file, input: &stdinPipe{file: file}}, theirs, nil
}

func openPeer(fd int) (int, error) {
	unlock := int32(0)
	if err := ioctl(fd, ioctlSetPtyLock, uintptr(unsafe.Pointer(&unlock))); err != nil {
		return -1, err
	}
	peer, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), ioctlOpenPeer,
		syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC)
	if errno != 0 {
		return -1, errno
	}
	return int(peer), nil
}

func setWindow(fd int, size windowSize) error {
	if size.Cols == 0 {
		size.Cols = 80
	}
	if size.Rows == 0 {
		size.Rows = 24
	}
	window := [4]uint16{uint16(size.Rows), uint16(size.Cols), 0, 0}
	return ioctl(fd, ioctlSetWindow, uintptr(unsafe.Pointer(&window[0])))
}

func ioctl(fd int, request, argument uintptr) error {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, argument)
	return errnoOrNil(errno)
}

// resize tells the foreground process by SIGWINCH; with several viewers the last one counts.
func (t *terminal) resize(size windowSize) *fault {
	conn, err := t.file.SyscallConn()
	if err == nil {
		var set error
		if err = conn.Control(func(fd uintptr) { set = setWindow(int(fd), size) }); err == nil {
			err = set
		}
	}
	if err != nil {
		return faultf("failed_precondition", "terminal_closed", "the terminal is closed: %v", err)
	}
	return nil
}

func (t *terminal) write(ctx context.Context, data []byte) *fault {
	_, f := t.input.write(ctx, data)
	return f
}

type updateRequest struct {
	Process selector    `json:"process"`
	Pty     *ptyRequest `json:"pty"`
}

// serveUpdate is envd's Update: it resizes.
func (b *box) serveUpdate(w http.ResponseWriter, r *http.Request) {
	var request updateRequest
	found, f := b.readSelected(r, &request, &request.Process)
	switch {
	case f != nil:
	case request.Pty == nil:
	case found.terminal == nil:
		f = noTerminal(found)
	default:
		if f = request.Pty.Size.check(); f == nil {
			f = found.terminal.resize(request.Pty.Size)
		}
	}
	if f != nil {
		writeFault(w, f)
		return
	}
	writeJSON(w, http.StatusOK, event{})
}

func noTerminal(r *run) *fault {
	return faultf("failed_precondition", "no_terminal", "process %d has no terminal", r.pid)
}
