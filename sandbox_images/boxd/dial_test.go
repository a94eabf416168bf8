package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// unixServer serves the shared box as in a container: on a unix socket with counted connections.
func unixServer(t *testing.T) string {
	t.Helper()
	b, _ := sharedBox()
	path := t.TempDir() + "/s"
	listener, err := net.Listen("unix", path)
	must(t, err)
	server := &http.Server{Handler: b.routes()}
	go server.Serve(limitConnections(listener, 4))
	t.Cleanup(func() { server.Close() })
	return path
}

func dialThrough(t *testing.T, path, port, early string) (*net.UnixConn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = io.WriteString(conn, "POST "+ownPrefix+"dial?port="+port+
		" HTTP/1.1\r\nHost: box\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"+early)
	must(t, err)
	reader := bufio.NewReader(conn)
	answer, err := http.ReadResponse(reader, nil)
	must(t, err)
	return conn.(*net.UnixConn), reader, answer
}

// service takes one connection and hands it to serve.
func service(t *testing.T, serve func(*net.TCPConn)) (port string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn.(*net.TCPConn))
		}
	}()
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port
}

func TestDialPassesHalfClosesBothWays(t *testing.T) {
	port := service(t, func(c *net.TCPConn) {
		defer c.Close()
		io.WriteString(c, "hello ")
		heard, _ := io.ReadAll(c) // until the client's half is closed
		io.WriteString(c, string(heard))
	})
	conn, reader, answer := dialThrough(t, unixServer(t), port, "early ")
	if answer.StatusCode != 101 || answer.Header.Get("Upgrade") != "tcp" {
		t.Fatalf("%v", answer)
	}
	big := strings.Repeat("x", 3<<20)
	go func() {
		io.WriteString(conn, big)
		conn.CloseWrite()
	}()
	said, err := io.ReadAll(reader)
	if err != nil || string(said) != "hello early "+big {
		t.Errorf("%d bytes, %v", len(said), err)
	}
	port = service(t, func(c *net.TCPConn) {
		c.CloseWrite()
		heard, _ := io.ReadAll(c)
		if string(heard) != "still heard" {
			t.Errorf("%q", heard)
		}
		c.Close()
	})
	conn, reader, _ = dialThrough(t, unixServer(t), port, "")
	if said, err := io.ReadAll(reader); err != nil || len(said) != 0 {
		t.Errorf("%q %v", said, err)
	}
	_, err = io.WriteString(conn, "still heard")
	must(t, err)
	must(t, conn.CloseWrite())
}

func TestAClientThatHasGoneEndsTheStream(t *testing.T) {
	ended := make(chan error, 1)
	port := service(t, func(c *net.TCPConn) {
		for {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				ended <- err
				return
			}
		}
	})
	path := unixServer(t)
	for range 6 { // more than the connections that may be open
		conn, _, _ := dialThrough(t, path, port, "")
		conn.Close()
		<-ended
	}
}

func TestHasGone(t *testing.T) {
	listener, err := net.Listen("unix", t.TempDir()+"/s")
	must(t, err)
	defer listener.Close()
	far, err := net.Dial("unix", listener.Addr().String())
	must(t, err)
	near, err := listener.Accept()
	must(t, err)
	defer near.Close()
	must(t, far.(*net.UnixConn).CloseWrite())
	if _, err := near.Read(make([]byte, 1)); err != io.EOF || hasGone(near) {
		t.Errorf("a client that only sends no more has gone: %v", err)
	}
	far.Close()
	if !hasGone(near) {
		t.Error("a closed client has not gone")
	}
}

func TestClosedPorts(t *testing.T) {
	b, _ := sharedBox()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	open := ask(t, b.routes(), "GET", ownPrefix+"ports/wait?port="+port, nil)
	listener.Close()
	if open.status != 204 {
		t.Errorf("%s", open.text)
	}
	late := ask(t, b.routes(), "GET", ownPrefix+"ports/wait?timeoutMs=50&port="+port, nil)
	if late.status != 504 || late.code() != "port_timeout" {
		t.Errorf("%s", late.text)
	}
	closed := ask(t, b.routes(), "POST", ownPrefix+"dial?port="+port, nil)
	if closed.status != 502 || closed.code() != "port_closed" {
		t.Errorf("%s", closed.text)
	}
	for _, bad := range []string{"", "0", "65536", "x"} {
		if got := ask(t, b.routes(), "POST", ownPrefix+"dial?port="+bad, nil); got.code() != "bad_port" {
			t.Errorf("%s", got.text)
		}
	}
}
