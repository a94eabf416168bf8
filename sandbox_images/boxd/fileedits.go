package main

// fileedits.go owns the changes of files that envd has no call for: append, copy, chmod, chown, symlink. A changed tree
// is walked without following links.

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

type editRequest struct {
	Path          string `json:"path"`
	Source        string `json:"source"`
	Destination   string `json:"destination"`
	Target        string `json:"target"` // of a link: any text
	Mode          *int64 `json:"mode"`
	User          string `json:"user"` // name, number, or either with :group
	Recursive     bool   `json:"recursive"`
	PreserveOwner bool   `json:"preserveOwner"`
}

// serveAppend adds the body to the end of a file, which is made if it is missing. What arrived before a body was cut
// stays; the refusal says how much.
func (b *box) serveAppend(w http.ResponseWriter, r *http.Request) {
	at, f := b.locate(r, r.URL.Query().Get("path"))
	if f != nil {
		writeFault(w, f)
		return
	}
	var file *os.File
	var err error
	b.blocking.files.do(func() { file, err = openForAppend(at) })
	if err != nil {
		writeFault(w, fileFault(err, at.path))
		return
	}
	defer file.Close()
	counted := &countingReader{from: r.Body}
	if err := b.copyBody(file, counted); err != nil {
		f := fileFault(err, at.path)
		var bad *bodyError
		if errors.As(err, &bad) {
			f = faultf("invalid_argument", "body_cut", "%s: the body ended early: %v", at.path, bad.cause)
		}
		f.fields = map[string]any{"writtenBytes": counted.count}
		writeFault(w, f)
		return
	}
	b.answerWith(w, at.path, func() (any, error) {
		end, err := file.Seek(0, io.SeekEnd)
		return event{"path": at.path, "writtenBytes": counted.count, "sizeBytes": end}, err
	})
}

func openForAppend(at location) (*os.File, error) {
	const flags = syscall.O_WRONLY | syscall.O_APPEND | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
	fd, err := syscall.Open(at.path, flags, 0)
	isNew := err == syscall.ENOENT
	if isNew {
		if err := makeParents(filepath.Dir(at.path), at.who); err != nil {
			return nil, err
		}
		fd, err = syscall.Open(at.path, flags|syscall.O_CREAT, newFileMode)
	}
	if err == syscall.ENXIO { // a pipe without a reader
		return nil, faultf("invalid_argument", "not_a_file", "%s is not a regular file", at.path)
	}
	if err != nil {
		return nil, err
	}
	if _, err = checkRegular(fd, at.path); err == nil && isNew {
		if err = syscall.Fchown(fd, int(at.who.uid), int(at.who.gid)); err == syscall.EPERM && os.Geteuid() != 0 {
			err = nil
		}
	}
	if err == nil {
		err = syscall.SetNonblock(fd, false)
	}
	if err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), at.path), nil
}

// serveCopy copies a file over a file, or a folder to where nothing is.
func (b *box) serveCopy(w http.ResponseWriter, r *http.Request) {
	var request editRequest
	from, to, f := b.readPair(r, &request)
	if f != nil {
		writeFault(w, f)
		return
	}
	c := &copier{ctx: r.Context()}
	if !request.PreserveOwner {
		c.owner = &to.who
	}
	b.answerWith(w, from.path, func() (any, error) {
		if err := c.place(from.path, to, request.Recursive); err != nil {
			return nil, err
		}
		return b.entryAnswer(to.path)
	})
}

func (b *box) readPair(r *http.Request, request *editRequest) (from, to location, f *fault) {
	if f = readJSON(r, maxControlBody, request); f == nil {
		if from, f = b.locate(r, request.Source); f == nil {
			to, f = b.locate(r, request.Destination)
		}
	}
	return from, to, f
}

// place copies beside the destination and renames, so that nobody sees a part.
func (c *copier) place(from string, to location, recursive bool) error {
	source, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if source.IsDir() && !recursive {
		return faultf("invalid_argument", "is_a_folder", "%s is a folder: copy it recursively", from)
	}
	if source.IsDir() && strings.HasPrefix(to.path+"/", from+"/") {
		return faultf("invalid_argument", "bad_path", "%s is inside of %s", to.path, from)
	}
	if old, err := os.Lstat(to.path); err == nil && (old.IsDir() || source.IsDir()) {
		return faultf("already_exists", "path_exists", "%s exists already", to.path)
	}
	if err := makeParents(filepath.Dir(to.path), to.who); err != nil {
		return err
	}
	temporary := temporaryBeside(to.path)
	err = c.tree(from, temporary)
	if err == nil {
		err = syscall.Rename(temporary, to.path)
	}
	if err != nil {
		os.RemoveAll(temporary) // the first error counts
	}
	return err
}

func (b *box) serveSymlink(w http.ResponseWriter, r *http.Request) {
	b.answerEdit(w, r, func(at location, request *editRequest) (any, error) {
		if request.Target == "" || strings.ContainsRune(request.Target, 0) {
			return nil, faultf("invalid_argument", "bad_path", "the target is empty or holds a zero byte")
		}
		if err := makeParents(filepath.Dir(at.path), at.who); err != nil {
			return nil, err
		}
		if err := os.Symlink(request.Target, at.path); err != nil {
			return nil, err
		}
		if err := giveTo(at.path, at.who); err != nil {
			return nil, err
		}
		made, err := b.describeAsIs(at.path)
		return event{"entry": made}, err
	})
}

func (b *box) serveChmod(w http.ResponseWriter, r *http.Request) {
	b.serveChange(w, r, func(request *editRequest) (func(*found) error, *fault) {
		if request.Mode == nil || *request.Mode < 0 || *request.Mode > 0o7777 {
			return nil, faultf("invalid_argument", "bad_mode", "the mode is not between 0 and 4095")
		}
		return func(entry *found) error {
			if entry.kind() == syscall.S_IFLNK { // it has no mode of its own
				return nil
			}
			return syscall.Chmod(entry.handle(), uint32(*request.Mode))
		}, nil
	})
}

func (b *box) serveChown(w http.ResponseWriter, r *http.Request) {
	b.serveChange(w, r, func(request *editRequest) (func(*found) error, *fault) {
		owner, f := b.users.find(request.User)
		if request.User == "" {
			f = faultf("invalid_argument", "unknown_user", "no user is named")
		}
		return func(entry *found) error {
			const atEmptyPath = 0x1000
			return syscall.Fchownat(entry.fd, "", int(owner.uid), int(owner.gid), atEmptyPath)
		}, f
	})
}

// serveChange changes one path, or all that is below as well. A link that is named itself is followed.
func (b *box) serveChange(
	w http.ResponseWriter, r *http.Request, prepare func(*editRequest) (func(*found) error, *fault),
) {
	var request editRequest
	f := readJSON(r, maxControlBody, &request)
	var at location
	if f == nil {
		at, f = b.locate(r, request.Path)
	}
	var change func(*found) error
	if f == nil {
		change, f = prepare(&request)
	}
	if f != nil {
		writeFault(w, f)
		return
	}
	walk := walker{ctx: r.Context(), slots: b.blocking.files}
	walk.visit = func(entry *found) (bool, error) { return request.Recursive, change(entry) }
	if err := walk.walk(at.path); err != nil {
		writeFault(w, fileFault(err, at.path))
		return
	}
	b.answerWith(w, at.path, func() (any, error) { return b.entryAnswer(at.path) })
}

// answerEdit serves an edit of one path in a file slot.
func (b *box) answerEdit(w http.ResponseWriter, r *http.Request, work func(location, *editRequest) (any, error)) {
	var request editRequest
	f := readJSON(r, maxControlBody, &request)
	var at location
	if f == nil {
		at, f = b.locate(r, request.Path)
	}
	if f != nil {
		writeFault(w, f)
		return
	}
	b.answerWith(w, at.path, func() (any, error) { return work(at, &request) })
}
