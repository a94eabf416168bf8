package main

// watch.go owns envd's four calls for watching: one stream, and three for who asks from time to time.

import (
	"net/http"
	"os"
	"path/filepath"
	"time"
)

type watchRequest struct {
	Path         string `json:"path"`
	Recursive    bool   `json:"recursive"`
	IncludeEntry bool   `json:"includeEntry"`
	WatcherID    string `json:"watcherId"`
}

// watch makes a watcher of the request's folder.
func (b *box) watch(r *http.Request, request *watchRequest) (*watcher, *fault) {
	at, f := b.locate(r, request.Path)
	if f != nil {
		return nil, f
	}
	var found os.FileInfo
	var err error
	b.blocking.files.do(func() { found, err = os.Stat(at.path) })
	if err != nil {
		return nil, fileFault(err, at.path)
	}
	if !found.IsDir() {
		return nil, faultf("invalid_argument", "not_a_folder", "%s is not a folder", at.path)
	}
	w := newWatcher(at.path)
	w.recursive, w.describes = request.Recursive, request.IncludeEntry
	if err := b.watches.add(w); err != nil {
		return nil, fileFault(err, at.path)
	}
	return w, nil
}

func (b *box) serveCreateWatcher(w http.ResponseWriter, r *http.Request) {
	var request watchRequest
	f := readJSON(r, maxControlBody, &request)
	var made *watcher
	if f == nil {
		made, f = b.watch(r, &request)
	}
	if f != nil {
		writeFault(w, f)
		return
	}
	writeJSON(w, http.StatusOK, event{"watcherId": made.id})
}

func (b *box) serveGetWatcherEvents(w http.ResponseWriter, r *http.Request) {
	found, f := b.readWatcher(r)
	if f != nil {
		writeFault(w, f)
		return
	}
	writeJSON(w, http.StatusOK, event{"events": b.shownEvents(found)})
}

func (b *box) serveRemoveWatcher(w http.ResponseWriter, r *http.Request) {
	found, f := b.readWatcher(r)
	if f != nil {
		writeFault(w, f)
		return
	}
	b.watches.remove(found)
	writeJSON(w, http.StatusOK, event{})
}

func (b *box) readWatcher(r *http.Request) (*watcher, *fault) {
	var request watchRequest
	if f := readJSON(r, maxControlBody, &request); f != nil {
		return nil, f
	}
	found, ok := b.watches.find(request.WatcherID)
	if !ok {
		return nil, faultf("not_found", "no_such_watcher", "no watcher %q", request.WatcherID)
	}
	return found, nil
}

func (b *box) serveWatchDir(w http.ResponseWriter, r *http.Request) {
	var request watchRequest
	f := readRequestFrame(r, &request)
	var made *watcher
	if f == nil {
		made, f = b.watch(r, &request)
	}
	if f != nil {
		writeFault(w, f)
		return
	}
	defer b.watches.remove(made)
	frames := newFrameWriter(w)
	if frames.message(event{"start": event{}}) != nil || frames.flush() != nil {
		return
	}
	alive := time.NewTicker(keepaliveOf(r))
	defer alive.Stop()
	for {
		select {
		case <-made.changed:
			for _, each := range b.shownEvents(made) {
				if frames.message(event{"filesystem": each}) != nil {
					return
				}
			}
		case <-alive.C:
			if frames.message(event{"keepalive": event{}}) != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
		if frames.flush() != nil {
			return
		}
	}
}

// shownEvents takes what a watcher holds, in the form of envd. An overflow has a type that envd's clients pass over.
func (b *box) shownEvents(w *watcher) []event {
	taken := w.take()
	shown := make([]event, 0, len(taken))
	for _, each := range taken {
		switch {
		case each.kind == eventOverflow:
			ours := event{"overflow": true, "type": eventOverflow}
			shown = append(shown, event{"name": "", "type": "EVENT_TYPE_UNSPECIFIED", "sandkeeper": ours})
			continue
		case w.describes && each.kind != eventRemove && each.kind != eventRename:
			var made entry
			var err error
			b.blocking.files.do(func() { made, err = b.describe(filepath.Join(w.root, each.name)) })
			if err == nil { // else it has gone already
				shown = append(shown, event{"name": each.name, "type": each.kind, "entry": made})
				continue
			}
		}
		shown = append(shown, event{"name": each.name, "type": each.kind})
	}
	return shown
}
