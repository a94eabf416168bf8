package main

// watchqueue.go owns what one watcher has not been told yet. It is bounded: what does not fit is dropped, and that
// something was dropped is told in its place. It never waits for its reader.

import (
	"sync"
	"syscall"
)

const (
	maxQueuedEvents = 4096

	eventCreate   = "EVENT_TYPE_CREATE"
	eventWrite    = "EVENT_TYPE_WRITE"
	eventRemove   = "EVENT_TYPE_REMOVE"
	eventRename   = "EVENT_TYPE_RENAME"
	eventChmod    = "EVENT_TYPE_CHMOD"
	eventOverflow = "EVENT_TYPE_OVERFLOW"
)

type watchEvent struct{ name, kind string }

// kindOf names the kind of an inotify event as envd does; the new name of a rename is a create.
func kindOf(mask uint32) string {
	for _, each := range []struct {
		bits uint32
		kind string
	}{
		{syscall.IN_CREATE | syscall.IN_MOVED_TO, eventCreate},
		{syscall.IN_DELETE | syscall.IN_DELETE_SELF, eventRemove},
		{syscall.IN_MOVED_FROM | syscall.IN_MOVE_SELF, eventRename},
		{syscall.IN_MODIFY, eventWrite},
		{syscall.IN_ATTRIB, eventChmod},
	} {
		if mask&each.bits != 0 {
			return each.kind
		}
	}
	return ""
}

type watcher struct {
	id        string
	root      string
	recursive bool
	describes bool // events carry the entry

	mu      sync.Mutex
	queue   []watchEvent
	isFull  bool
	changed chan struct{}
}

func newWatcher(root string) *watcher {
	return &watcher{id: randomHex(), root: root, changed: make(chan struct{}, 1)}
}

// put keeps an event, if it can; one that repeats the last is the same news.
func (w *watcher) put(e watchEvent) (kept bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.wakeLocked()
	switch {
	case len(w.queue) > 0 && w.queue[len(w.queue)-1] == e:
	case len(w.queue) < maxQueuedEvents:
		w.queue = append(w.queue, e)
	default:
		w.isFull = true
		return false
	}
	return true
}

func (w *watcher) overflow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isFull = true
	w.wakeLocked()
}

func (w *watcher) wakeLocked() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// take empties the queue; an overflow comes after what was kept.
func (w *watcher) take() []watchEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.queue
	if w.isFull {
		taken = append(taken, watchEvent{kind: eventOverflow})
	}
	w.queue, w.isFull = nil, false
	return taken
}
