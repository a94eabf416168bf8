package main

// threads.go owns the promise that boxd never needs a new OS thread after its start: the Go runtime aborts when it
// cannot make one, and a fork bomb takes the last process slot. All threads are made first, and every kind of work
// that can block a thread is bounded by a number of slots whose sum stays below the reserve.
// It never runs work itself.

import (
	"net"
	"runtime"
	"sync"
)

const (
	threadReserve = 64
	maxProcs      = 4

	fileSlots  = 24 // system calls on files, on behalf of requests
	spillSlots = 4  // output that is written to or read from the spill
	spawnSlots = 6  // fork + exec
	treeSlots  = 4  // walks over /proc

	healthSlots = 2 // of their own: health answers when all others are taken

	maxConnections = 1024
)

// reserveThreads makes count threads exist at the same time, then lets the runtime keep them idle.
// The runtime never ends an idle thread of an unlocked goroutine.
func reserveThreads(count int) {
	var ready, done sync.WaitGroup
	release := make(chan struct{})
	ready.Add(count)
	done.Add(count)
	for range count {
		go func() {
			defer done.Done()
			runtime.LockOSThread() // a waiting locked goroutine occupies a thread of its own
			ready.Done()
			<-release
			runtime.UnlockOSThread()
		}()
	}
	ready.Wait()
	close(release)
	done.Wait()
}

// slots bounds how many threads one kind of work may block.
type slots chan struct{}

func newSlots(count int) slots { return make(slots, count) }

// do runs work while it holds a slot. work must not wait for another slot or for the network.
func (s slots) do(work func()) {
	s <- struct{}{}
	defer func() { <-s }()
	work()
}

// blocking is the set of slots of one box.
type blocking struct {
	files, spill, spawn, tree, health slots
}

func newBlocking() *blocking {
	return &blocking{
		files: newSlots(fileSlots),
		spill: newSlots(spillSlots),
		spawn: newSlots(spawnSlots),
		tree:  newSlots(treeSlots),

		health: newSlots(healthSlots),
	}
}

// limitConnections makes Accept wait while count connections are open.
func limitConnections(inner net.Listener, count int) net.Listener {
	return &limitedListener{Listener: inner, open: newSlots(count)}
}

type limitedListener struct {
	net.Listener
	open slots
}

func (l *limitedListener) Accept() (net.Conn, error) {
	l.open <- struct{}{}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.open
		return nil, err
	}
	return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.open })}, nil
}

type limitedConn struct {
	net.Conn
	release func()
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
