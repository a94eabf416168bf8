package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// watching is a hub and one watcher of a folder; seen waits for an event.
func watching(t *testing.T, root string, recursive bool) (*watchHub, *watcher, func(kind, name string)) {
	t.Helper()
	h := newWatchHub(newSlots(4))
	w := newWatcher(root)
	w.recursive = recursive
	if err := h.add(w); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.remove(w) })
	return h, w, func(kind, name string) {
		t.Helper()
		for {
			<-w.changed
			for _, e := range w.take() {
				if e == (watchEvent{name: name, kind: kind}) {
					return
				}
				if strings.HasPrefix(e.name, "never/") {
					t.Fatalf("saw %v", e)
				}
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchingOneFolder(t *testing.T) {
	root := filesIn(t, map[string]string{"never/": ""})
	_, _, seen := watching(t, root, false)
	must(t, os.WriteFile(root+"/never/x", nil, 0o600))
	must(t, os.WriteFile(root+"/a", []byte("x"), 0o600))
	seen(eventCreate, "a")
	must(t, os.WriteFile(root+"/a", []byte("y"), 0o600))
	seen(eventWrite, "a")
	must(t, os.Chmod(root+"/a", 0o644))
	seen(eventChmod, "a")
	must(t, os.Rename(root+"/a", root+"/b"))
	seen(eventRename, "a")
	must(t, os.Remove(root+"/b"))
	seen(eventRemove, "b")
	must(t, os.RemoveAll(root))
	seen(eventRemove, ".")
}

func TestWatchingATree(t *testing.T) {
	root := filesIn(t, map[string]string{"d/e/": ""})
	h, w, seen := watching(t, root, true)
	must(t, os.WriteFile(root+"/d/e/f", nil, 0o600))
	seen(eventCreate, "d/e/f")
	must(t, os.MkdirAll(root+"/new/deep", 0o755))
	must(t, os.WriteFile(root+"/new/deep/f", nil, 0o600))
	seen(eventCreate, "new/deep/f")
	must(t, os.Rename(root+"/new", root+"/d/moved"))
	seen(eventRename, "new")
	must(t, os.WriteFile(root+"/d/moved/deep/g", nil, 0o600))
	seen(eventCreate, "d/moved/deep/g")
	must(t, os.RemoveAll(root+"/d"))
	seen(eventRemove, "d")
	must(t, os.Mkdir(root+"/end", 0o755))
	seen(eventCreate, "end")
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.nodes) != 2 { // the root and end
		t.Errorf("%d folders are watched", len(h.nodes))
	}
	if len(w.queue) > 4 {
		t.Errorf("left %v", w.queue)
	}
}

func TestTwoWatchersOfOneFolder(t *testing.T) {
	root := t.TempDir()
	h, _, seen := watching(t, root, true)
	second := newWatcher(root)
	must(t, h.add(second))
	must(t, os.WriteFile(root+"/a", nil, 0o600))
	seen(eventCreate, "a")
	<-second.changed
	if !h.remove(second) || h.remove(second) {
		t.Error("a watcher is removed once")
	}
	must(t, os.WriteFile(root+"/b", nil, 0o600))
	seen(eventCreate, "b")
}

func TestAFullQueueSaysSo(t *testing.T) {
	w := newWatcher("/")
	for i := range maxQueuedEvents + 5 {
		w.put(watchEvent{name: fmt.Sprint(i), kind: eventWrite})
		w.put(watchEvent{name: fmt.Sprint(i), kind: eventWrite}) // the same news
	}
	taken := w.take()
	if len(taken) != maxQueuedEvents+1 || taken[maxQueuedEvents].kind != eventOverflow || len(w.take()) != 0 {
		t.Errorf("%d events", len(taken))
	}
}

func TestAnOverflowOfTheKernelWatchesAgain(t *testing.T) {
	root := filesIn(t, map[string]string{"d/": ""})
	h, w, _ := watching(t, root, true)
	h.mu.Lock()
	for wd, node := range h.nodes {
		if node.callers[w].name == "d" {
			h.leaveLocked(wd, node, w) // as if it had come unseen
		}
	}
	h.takeLocked(-1, syscall.IN_Q_OVERFLOW, "")
	count := len(h.nodes)
	h.mu.Unlock()
	if taken := w.take(); count != 2 || len(taken) != 1 || taken[0].kind != eventOverflow {
		t.Errorf("%d folders, %v", count, taken)
	}
}

func TestWatchCalls(t *testing.T) {
	b, _ := sharedBox()
	root := filesIn(t, map[string]string{"file": ""})
	call := func(name string, request fields) reply {
		return ask(t, b.routes(), "POST", filesystemPrefix+name, request)
	}
	made := call("CreateWatcher", fields{"path": root, "includeEntry": true})
	id := made.body["watcherId"]
	must(t, os.WriteFile(root+"/a", []byte("abc"), 0o600))
	w, _ := b.watches.find(id.(string))
	<-w.changed
	got := call("GetWatcherEvents", fields{"watcherId": id})
	first, _ := got.body["events"].([]any)[0].(map[string]any)
	entry, _ := first["entry"].(map[string]any)
	if first["name"] != "a" || first["type"] != eventCreate || entry["path"] != root+"/a" {
		t.Errorf("%v", got.body)
	}
	w.overflow()
	if got := call("GetWatcherEvents", fields{"watcherId": id}); !strings.Contains(string(got.text), `"overflow":true`) {
		t.Errorf("%s", got.text)
	}
	if got := call("RemoveWatcher", fields{"watcherId": id}); got.status != 200 {
		t.Errorf("%v", got.body)
	}
	for name, request := range map[string]fields{
		"GetWatcherEvents": {"watcherId": id}, "RemoveWatcher": {"watcherId": id}, "CreateWatcher": {"path": root + "/none"},
	} {
		if got := call(name, request); got.status != 404 {
			t.Errorf("%s: %v", name, got.body)
		}
	}
	if got := call("CreateWatcher", fields{"path": root + "/file"}); got.code() != "not_a_folder" {
		t.Errorf("%v", got.body)
	}
	if b.watches.file != nil {
		t.Error("the instance is open without a watcher")
	}
}
