package main

// boot.go owns the way from process start to a listening socket: it asks the host for a listener over the boot
// socket, again and again, until it is given one. It never makes a socket of its own that the host would open.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

const (
	bootSocket     = "/run/sandkeeper/boot.sock"
	protocol       = 1
	bootRetryMin   = 20 * time.Millisecond
	bootRetryMax   = 200 * time.Millisecond
	bootAnswerWait = 30 * time.Second
	bootAnswerMax  = 4096
)

type bootHello struct {
	Protocol int    `json:"protocol"`
	Build    string `json:"build"`
	Pid1     bool   `json:"pid1"`
}

type bootAnswer struct {
	Protocol int    `json:"protocol"`
	OK       bool   `json:"ok"`
	Error    string `json:"error"`
}

// awaitListener returns when the host has handed over a listener; it never gives up.
func awaitListener(path string) net.Listener {
	wait, lastReported := bootRetryMin, ""
	for {
		listener, err := askForListener(path)
		if err == nil {
			return listener
		}
		if text := err.Error(); text != lastReported {
			report("no control listener yet: %s", text)
			lastReported = text
		}
		time.Sleep(wait)
		wait = min(wait*3/2, bootRetryMax)
	}
}

func askForListener(path string) (net.Listener, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(bootAnswerWait)); err != nil {
		return nil, err
	}
	greeting, err := json.Marshal(bootHello{Protocol: protocol, Build: build, Pid1: os.Getpid() == 1})
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(append(greeting, '\n')); err != nil {
		return nil, err
	}
	text, fds, err := receiveAnswer(conn)
	defer func() {
		for _, fd := range fds {
			syscall.Close(fd)
		}
	}()
	if err != nil {
		return nil, err
	}
	var answer bootAnswer
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("unreadable answer: %w", err)
	}
	if !answer.OK || answer.Protocol != protocol {
		return nil, fmt.Errorf("refused: protocol %d, error %q", answer.Protocol, answer.Error)
	}
	if len(fds) != 1 {
		return nil, fmt.Errorf("%d descriptors instead of one", len(fds))
	}
	return listenerFrom(fds[0])
}

// receiveAnswer reads up to the newline and collects every descriptor that comes with it.
func receiveAnswer(conn *net.UnixConn) (text []byte, fds []int, err error) {
	buffer, oob := make([]byte, bootAnswerMax), make([]byte, 256)
	for len(text) < bootAnswerMax {
		n, oobn, _, _, err := conn.ReadMsgUnix(buffer, oob)
		if err != nil {
			return nil, fds, err
		}
		if n == 0 && oobn == 0 {
			return nil, fds, errors.New("closed before an answer")
		}
		messages, err := syscall.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return nil, fds, err
		}
		for i := range messages {
			got, err := syscall.ParseUnixRights(&messages[i])
			if err != nil {
				return nil, fds, err
			}
			fds = append(fds, got...)
		}
		text = append(text, buffer[:n]...)
		if end := bytes.IndexByte(text, '\n'); end >= 0 {
			return text[:end], fds, nil
		}
	}
	return nil, fds, errors.New("answer too long")
}

// listenerFrom accepts only a listening unix stream socket; net.FileListener keeps a duplicate of its own.
func listenerFrom(fd int) (net.Listener, error) {
	accepts, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN)
	if err != nil || accepts != 1 {
		return nil, fmt.Errorf("the descriptor is not a listening socket (%v)", err)
	}
	copied, err := syscall.Dup(fd)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(copied), "control")
	defer file.Close()
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	if _, ok := listener.(*net.UnixListener); !ok {
		listener.Close()
		return nil, fmt.Errorf("the descriptor is a %T, not a unix listener", listener)
	}
	return listener, nil
}
