package main

// dial.go owns the way to a TCP port inside the box: a call that becomes a plain stream in both directions, and waiting
// until a port takes connections. It dials the loopback addresses and nothing else. Nothing here blocks a thread.

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

const (
	dialWait        = 10 * time.Second
	portWaitDefault = 30 * time.Second
	portWaitMax     = 10 * time.Minute
	portPauseMin    = 10 * time.Millisecond
	portPauseMax    = 200 * time.Millisecond
	goneLook        = 5 * time.Second // how often a half-closed client is looked after

	upgradeAnswer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
)

var loopbacks = []string{"127.0.0.1", "::1"}

// serveDial answers 101 and then is the stream. An open stream does not keep the box from draining.
func (b *box) serveDial(w http.ResponseWriter, r *http.Request) {
	port, f := portOf(r)
	var service net.Conn
	if f == nil {
		service, f = dialPort(r.Context(), port)
	}
	if f != nil {
		writeFault(w, f)
		return
	}
	defer service.Close()
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeFault(w, faultf("internal", "no_upgrade", "the connection cannot be upgraded: %v", err))
		return
	}
	defer client.Close()
	early := make([]byte, buffered.Reader.Buffered())
	if _, err := io.ReadFull(buffered.Reader, early); err != nil {
		return
	}
	if _, err := io.WriteString(client, upgradeAnswer); err != nil {
		return
	}
	if _, err := service.Write(early); err != nil {
		return
	}
	joinStreams(bare(client), service)
}

func portOf(r *http.Request) (string, *fault) {
	text := r.URL.Query().Get("port")
	if number, err := strconv.ParseUint(text, 10, 16); err != nil || number == 0 {
		return "", faultf("invalid_argument", "bad_port", "%q is not a port", text)
	}
	return text, nil
}

func dialPort(ctx context.Context, port string) (net.Conn, *fault) {
	dialer := net.Dialer{Timeout: dialWait}
	var first error
	for _, address := range loopbacks {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(address, port))
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
	}
	var f *fault
	switch {
	case errors.Is(first, syscall.EMFILE), errors.Is(first, syscall.ENFILE):
		return nil, faultf("resource_exhausted", "descriptors_exhausted", "no socket for port %s: %v", port, first)
	case errors.Is(first, syscall.ECONNREFUSED):
		f = faultf("unavailable", "port_closed", "port %s: the port is not open", port)
	default:
		f = faultf("unavailable", "port_closed", "port %s: %v", port, first)
	}
	f.status = http.StatusBadGateway
	return nil, f
}

// servePortWait answers when the port takes connections.
func (b *box) servePortWait(w http.ResponseWriter, r *http.Request) {
	port, f := portOf(r)
	if f != nil {
		writeFault(w, f)
		return
	}
	wait := portWaitDefault
	if text := r.URL.Query().Get("timeoutMs"); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil || ms < 0 {
			writeFault(w, faultf("invalid_argument", "bad_timeout", "timeoutMs %q is not a number", text))
			return
		}
		wait = time.Duration(min(ms, portWaitMax.Milliseconds())) * time.Millisecond
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	late := make(chan struct{})
	defer b.clock.after(wait, func() { close(late); cancel() }).stop()
	for pause := portPauseMin; ; pause = min(pause*2, portPauseMax) {
		conn, _ := dialPort(ctx, port)
		if conn != nil {
			conn.Close()
			w.WriteHeader(http.StatusNoContent)
			return
		}
		select {
		case <-time.After(pause):
			continue
		case <-late:
			writeFault(w, faultf("deadline_exceeded", "port_timeout", "port %s took no connection in %v", port, wait))
		case <-r.Context().Done():
		}
		return
	}
}

// halfCloser is a stream whose directions end one by one.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// bare takes the counting shell from a connection.
func bare(conn net.Conn) net.Conn {
	if limited, ok := conn.(*limitedConn); ok {
		return limited.Conn
	}
	return conn
}

// joinStreams moves bytes both ways until both directions have ended, or one of them broke.
func joinStreams(client, service net.Conn) {
	back := make(chan struct{})
	go func() {
		defer close(back)
		passOn(client, service)
	}()
	passOn(service, client)
	for {
		select {
		case <-back:
			return
		case <-time.After(goneLook):
			if hasGone(client) {
				return // closed altogether: what the service still says has no reader
			}
		}
	}
}

// passOn ends the other direction too when it fails: half a stream must not look like a whole one.
func passOn(to, from net.Conn) {
	err := copyStream(to, from)
	if half, ok := to.(halfCloser); err == nil && ok {
		err = half.CloseWrite()
	}
	if err != nil {
		abort(to)
		abort(from)
	}
}

// copyStream holds a buffer only while bytes are there: an idle stream costs none. The kernel's own way of moving bytes
// would cost two pipes for each stream, of which a user has few on the whole machine.
func copyStream(to io.Writer, from net.Conn) error {
	system, ok := from.(syscall.Conn)
	if !ok {
		_, err := io.Copy(to, from)
		return err
	}
	raw, err := system.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var n int
		var failure error
		var buffer *[pumpBuffer]byte
		err := raw.Read(func(fd uintptr) bool {
			buffer = pumpBuffers.Get().(*[pumpBuffer]byte)
			for {
				if n, failure = syscall.Read(int(fd), buffer[:]); failure != syscall.EINTR {
					break
				}
			}
			if failure == syscall.EAGAIN {
				pumpBuffers.Put(buffer)
				buffer = nil
			}
			return failure != syscall.EAGAIN
		})
		if err == nil {
			err = failure
		}
		if err == nil && n > 0 {
			_, err = to.Write(buffer[:n])
		}
		if buffer != nil {
			pumpBuffers.Put(buffer)
		}
		if err != nil || n == 0 {
			return err
		}
	}
}

// abort makes the peer see a reset instead of an end, where there is one.
func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) // an error means that it is closed
	}
	conn.Close()
}

// hasGone tells a client that has closed from one that only sends no more.
func hasGone(conn net.Conn) bool {
	system, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := system.SyscallConn()
	if err != nil {
		return true
	}
	const pollHangUp = 0x10
	gone := false
	err = raw.Control(func(fd uintptr) {
		poll := struct {
			fd              int32
			events, revents int16
		}{fd: int32(fd)}
		var now syscall.Timespec
		_, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1,
			uintptr(unsafe.Pointer(&now)), 0, 0, 0)
		gone = errno == 0 && poll.revents&pollHangUp != 0
	})
	return err != nil || gone
}
