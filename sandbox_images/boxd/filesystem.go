package main

// filesystem.go owns the calls of envd's filesystem service. It never reads or writes contents.

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
)

const maxListed = 100_000

type pathRequest struct {
	Path       string `json:"path"`
	Sandkeeper struct {
		NoFollow bool `json:"noFollow"` // Stat: the link itself
	} `json:"sandkeeper"`
	Depth       int    `json:"depth"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func (b *box) serveStat(w http.ResponseWriter, r *http.Request) {
	b.answerPath(w, r, func(at location, request *pathRequest) (any, error) {
		if request.Sandkeeper.NoFollow {
			made, err := b.describeAsIs(at.path)
			return event{"entry": made}, err
		}
		return b.entryAnswer(at.path)
	})
}

func (b *box) serveListDir(w http.ResponseWriter, r *http.Request) {
	b.answerPath(w, r, func(at location, request *pathRequest) (any, error) {
		found, err := os.Stat(at.path)
		if err != nil {
			return nil, err
		}
		if !found.IsDir() {
			return nil, faultf("invalid_argument", "not_a_folder", "%s is not a folder", at.path)
		}
		list := []entry{}
		if err := b.listInto(&list, at.path, max(request.Depth, 1)); err != nil {
			return nil, err
		}
		return event{"entries": list}, nil
	})
}

// listInto lists one folder and goes depth-1 levels deeper, never through a link.
func (b *box) listInto(list *[]entry, folder string, depth int) error {
	names, err := os.ReadDir(folder) // sorted
	if err != nil {
		return err
	}
	for _, name := range names {
		path := filepath.Join(folder, name.Name())
		made, err := b.describe(path)
		if os.IsNotExist(err) {
			continue // it has gone in the meantime
		}
		if err != nil {
			return err
		}
		if len(*list) >= maxListed {
			return faultf("resource_exhausted", "list_too_large", "more than %d entries below %s", maxListed, folder)
		}
		*list = append(*list, made)
		if depth > 1 && name.IsDir() {
			if err := b.listInto(list, path, depth-1); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
	}
	return nil
}

func (b *box) serveMakeDir(w http.ResponseWriter, r *http.Request) {
	b.answerPath(w, r, func(at location, _ *pathRequest) (any, error) {
		if found, err := os.Stat(at.path); err == nil {
			if found.IsDir() {
				return nil, faultf("already_exists", "path_exists", "%s exists already", at.path)
			}
			return nil, faultf("invalid_argument", "not_a_folder", "%s is a file", at.path)
		}
		if err := makeParents(at.path, at.who); err != nil {
			return nil, err
		}
		return b.entryAnswer(at.path)
	})
}

func (b *box) serveMove(w http.ResponseWriter, r *http.Request) {
	var request pathRequest
	if f := readJSON(r, maxControlBody, &request); f != nil {
		writeFault(w, f)
		return
	}
	from, f := b.locate(r, request.Source)
	if f != nil {
		writeFault(w, f)
		return
	}
	to, f := b.locate(r, request.Destination)
	if f != nil {
		writeFault(w, f)
		return
	}
	b.answerWith(w, from.path, func() (any, error) {
		if _, err := os.Lstat(from.path); err != nil {
			return nil, err
		}
		if err := makeParents(filepath.Dir(to.path), to.who); err != nil {
			return nil, err
		}
		if err := moveTree(from.path, to.path); err != nil {
			return nil, err
		}
		return b.entryAnswer(to.path)
	})
}

func (b *box) serveRemove(w http.ResponseWriter, r *http.Request) {
	b.answerPath(w, r, func(at location, _ *pathRequest) (any, error) {
		if at.path == "/" {
			return nil, faultf("invalid_argument", "bad_path", "the root cannot be removed")
		}
		if err := os.RemoveAll(at.path); err != nil {
			return nil, err
		}
		return event{}, nil
	})
}

func (b *box) entryAnswer(path string) (any, error) {
	made, err := b.describe(path)
	if err != nil {
		return nil, err
	}
	return event{"entry": made}, nil
}

// answerPath serves a call that names one path.
func (b *box) answerPath(w http.ResponseWriter, r *http.Request, work func(location, *pathRequest) (any, error)) {
	var request pathRequest
	if f := readJSON(r, maxControlBody, &request); f != nil {
		writeFault(w, f)
		return
	}
	at, f := b.locate(r, request.Path)
	if f != nil {
		writeFault(w, f)
		return
	}
	b.answerWith(w, at.path, func() (any, error) { return work(at, &request) })
}

// answerWith does the work in a file slot.
func (b *box) answerWith(w http.ResponseWriter, path string, work func() (any, error)) {
	var answer any
	var err error
	b.blocking.files.do(func() { answer, err = work() })
	if err != nil {
		writeFault(w, fileFault(err, path))
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

// moveTree renames. Overlay file systems refuse to rename a folder of a lower layer; then it copies and removes.
func moveTree(from, to string) error {
	err := syscall.Rename(from, to)
	if err != syscall.EXDEV {
		return err
	}
	if _, err := os.Lstat(to); err == nil {
		return syscall.EEXIST
	}
	if err := (&copier{ctx: context.Background()}).tree(from, to); err != nil {
		os.RemoveAll(to) // the first error counts
		return err
	}
	return os.RemoveAll(from)
}
