package main

// watchhub.go owns the one inotify instance of the box and which watcher wants which folder: instances are counted per
// user of the whole machine, so watchers share it. It is there only while somebody watches. Its reader waits in the
// runtime's poller, in no thread of its own. Lock order: the hub, then a file slot, then a watcher's queue.
// Source: inotify(7).

import (
	"encoding/binary"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

const (
	maxWatches  = 8192
	maxWatchers = 128

	watchMask = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_DELETE | syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO |
		syscall.IN_ATTRIB | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR | syscall.IN_EXCL_UNLINK
	inotifyHead = 16
	inotifyRead = 64 << 10
)

type watchHub struct {
	slots slots

	mu       sync.Mutex
	file     *os.File // nil: nobody watches
	fd       int
	nodes    map[int32]*watchNode
	watchers map[string]*watcher
}

// watchNode is one watched folder, as each of its watchers knows it.
type watchNode struct{ callers map[*watcher]*caller }

type caller struct {
	name string          // relative to the watcher's root
	told map[string]bool // what was reported when the folder was first read; its own event may follow
}

func newWatchHub(limit slots) *watchHub {
	return &watchHub{slots: limit, nodes: map[int32]*watchNode{}, watchers: map[string]*watcher{}}
}

// add begins to watch a folder on behalf of a new watcher.
func (h *watchHub) add(w *watcher) (failure error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers) >= maxWatchers {
		return faultf("resource_exhausted", "watcher_limit", "there are %d watchers already", maxWatchers)
	}
	h.slots.do(func() {
		if h.file == nil {
			if failure = h.openLocked(); failure != nil {
				return
			}
		}
		h.watchers[w.id] = w
		failure = h.watchLocked(w, "", false)
	})
	if failure != nil {
		h.removeLocked(w)
	}
	return failure
}

func (h *watchHub) openLocked() error {
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		return faultf("resource_exhausted", "watch_limit", "the machine has no inotify instance left: %v", err)
	}
	h.file, h.fd = os.NewFile(uintptr(fd), "inotify"), fd
	go h.read(h.file)
	return nil
}

func (h *watchHub) find(id string) (*watcher, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w, ok := h.watchers[id]
	return w, ok
}

// remove reports whether the watcher was there.
func (h *watchHub) remove(w *watcher) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, isThere := h.watchers[w.id]
	h.removeLocked(w)
	return isThere
}

func (h *watchHub) removeLocked(w *watcher) {
	delete(h.watchers, w.id)
	h.forgetLocked(w, "")
	if len(h.watchers) == 0 && h.file != nil {
		h.file.Close() // ends the reader
		h.file, h.nodes = nil, map[int32]*watchNode{}
	}
}

// forgetLocked takes a watcher from the folder of that name and from all below it.
func (h *watchHub) forgetLocked(w *watcher, name string) {
	for wd, node := range h.nodes {
		if as, isCaller := node.callers[w]; isCaller && isBelow(as.name, name) {
			h.leaveLocked(wd, node, w)
		}
	}
}

func (h *watchHub) leaveLocked(wd int32, node *watchNode, w *watcher) {
	if delete(node.callers, w); len(node.callers) == 0 {
		delete(h.nodes, wd)
		syscall.InotifyRmWatch(h.fd, uint32(wd)) // EINVAL: the folder has gone, and its watch with it
	}
}

func isBelow(name, above string) bool {
	return above == "" || name == above || strings.HasPrefix(name, above+"/")
}

// watchLocked watches one folder and, if the watcher is recursive, what is below. tell makes it report what it finds:
// the folder is new, and what was made in it before the watch began has no event of its own. The caller holds a slot.
func (h *watchHub) watchLocked(w *watcher, name string, tell bool) error {
	full := filepath.Join(w.root, name)
	mask := uint32(watchMask)
	if name != "" {
		mask |= syscall.IN_DONT_FOLLOW
	}
	if len(h.nodes) >= maxWatches {
		return faultf("resource_exhausted", "watch_limit", "more than %d folders to watch", maxWatches)
	}
	number, err := syscall.InotifyAddWatch(h.fd, full, mask)
	if err == syscall.ENOSPC {
		return faultf("resource_exhausted", "watch_limit", "the machine has no watch left for %s", full)
	}
	if err != nil {
		return err
	}
	wd := int32(number)
	node := h.nodes[wd]
	if node == nil {
		node = &watchNode{callers: map[*watcher]*caller{}}
		h.nodes[wd] = node
	}
	as := node.callers[w]
	switch {
	case as == nil:
		as = &caller{name: name}
		node.callers[w] = as
	case as.name != name && !tell:
		return nil // the same folder under a second name
	}
	as.name = name
	if !w.recursive {
		return nil
	}
	below, err := os.ReadDir(full)
	if err != nil {
		return err
	}
	for _, each := range below {
		inside := path.Join(name, each.Name())
		if tell && w.put(watchEvent{name: inside, kind: eventCreate}) {
			if as.told == nil {
				as.told = map[string]bool{}
			}
			as.told[each.Name()] = true
		}
		if each.IsDir() {
			if err := h.watchLocked(w, inside, tell); err != nil && !isVanished(err) {
				return err
			}
		}
	}
	return nil
}

// read takes events until the instance is closed.
func (h *watchHub) read(file *os.File) {
	buffer := make([]byte, inotifyRead)
	for {
		n, err := file.Read(buffer)
		if err != nil {
			return
		}
		h.mu.Lock()
		if h.file == file {
			for rest := buffer[:n]; len(rest) >= inotifyHead; {
				length := inotifyHead + int(binary.NativeEndian.Uint32(rest[12:]))
				if length > len(rest) {
					break
				}
				name := strings.TrimRight(string(rest[inotifyHead:length]), "\x00")
				h.takeLocked(int32(binary.NativeEndian.Uint32(rest)), binary.NativeEndian.Uint32(rest[4:]), name)
				rest = rest[length:]
			}
		}
		h.mu.Unlock()
	}
}

// takeLocked hands one event to every watcher of its folder.
func (h *watchHub) takeLocked(wd int32, mask uint32, name string) {
	if mask&syscall.IN_Q_OVERFLOW != 0 {
		for _, w := range h.watchers {
			w.overflow()
			h.againLocked(w, "", false) // folders may have come unseen
		}
		return
	}
	node := h.nodes[wd]
	if node == nil {
		return
	}
	if mask&syscall.IN_IGNORED != 0 {
		delete(h.nodes, wd)
		return
	}
	const comesOrGoes = syscall.IN_CREATE | syscall.IN_DELETE | syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO
	isFolder := mask&syscall.IN_ISDIR != 0
	for w, as := range node.callers {
		if name == "" && as.name != "" {
			continue // the folder above tells it
		}
		wasTold := as.told[name]
		if mask&comesOrGoes != 0 {
			delete(as.told, name)
		}
		if wasTold && mask&syscall.IN_CREATE != 0 {
			continue
		}
		inside := path.Join(as.name, name)
		if kind := kindOf(mask); kind != "" {
			w.put(watchEvent{name: firstOf(inside, "."), kind: kind})
		}
		if isFolder && name != "" && w.recursive {
			if mask&(syscall.IN_MOVED_FROM|syscall.IN_DELETE) != 0 {
				h.forgetLocked(w, inside)
			} else if mask&(syscall.IN_CREATE|syscall.IN_MOVED_TO) != 0 {
				h.againLocked(w, inside, true)
			}
		}
	}
}

// againLocked watches a folder that has come; what cannot be watched makes the watcher incomplete, which it says.
func (h *watchHub) againLocked(w *watcher, name string, tell bool) {
	h.slots.do(func() {
		if err := h.watchLocked(w, name, tell); err != nil && !isVanished(err) {
			w.overflow()
		}
	})
}
