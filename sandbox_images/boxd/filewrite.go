package main

// filewrite.go owns POST /files: each file is written beside its place and renamed into it, so that a reader sees the
// old one or the new one. It never leaves a part of a file under the name.

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
)

const newFileMode = 0o644

type writtenFile struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

func (b *box) serveFileWrite(w http.ResponseWriter, r *http.Request) {
	var written []writtenFile
	var f *fault
	kind, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && kind == "multipart/form-data" {
		written, f = b.writeParts(r, multipart.NewReader(r.Body, parameters["boundary"]))
	} else {
		written, f = b.writeBody(r)
	}
	if f != nil {
		writeFileFault(w, f)
		return
	}
	writeJSON(w, http.StatusOK, written)
}

// writeBody writes the whole body to the path of the query.
func (b *box) writeBody(r *http.Request) ([]writtenFile, *fault) {
	body := io.Reader(r.Body)
	switch r.Header.Get("Content-Encoding") {
	case "", "identity":
	case "gzip":
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, faultf("invalid_argument", "bad_encoding", "the body is not gzip: %v", err)
		}
		body = unpacked
	default:
		return nil, faultf("invalid_argument", "bad_encoding", "content encoding %q is not known", r.Header.Get("Content-Encoding"))
	}
	one, f := b.writeOne(r, r.URL.Query().Get("path"), body)
	if f != nil {
		return nil, f
	}
	return []writtenFile{one}, nil
}

// writeParts writes every part called file. With a path in the query there may be only one.
func (b *box) writeParts(r *http.Request, parts *multipart.Reader) ([]writtenFile, *fault) {
	asked := r.URL.Query().Get("path")
	written := []writtenFile{}
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			return written, nil
		}
		if err != nil {
			return nil, faultf("invalid_argument", "bad_multipart", "unreadable form: %v", err)
		}
		if part.FormName() != "file" {
			continue
		}
		if asked != "" && len(written) > 0 {
			return nil, faultf("invalid_argument", "bad_multipart", "one path, but several files")
		}
		one, f := b.writeOne(r, firstOf(asked, partPath(part)), part)
		if f != nil {
			return nil, f
		}
		written = append(written, one)
	}
}

// partPath is the whole file name: the library's FileName keeps only its last element.
func partPath(part *multipart.Part) string {
	_, parameters, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return parameters["filename"]
}

func (b *box) writeOne(r *http.Request, path string, body io.Reader) (writtenFile, *fault) {
	at, f := b.locate(r, path)
	if f != nil {
		return writtenFile{}, f
	}
	metadata, f := requestMetadata(r.Header)
	if f != nil {
		return writtenFile{}, f
	}
	if err := b.replaceFile(at, body, metadata); err != nil {
		var bad *bodyError
		if errors.As(err, &bad) {
			return writtenFile{}, faultf("invalid_argument", "body_cut", "%s: the body ended early: %v", at.path, bad.cause)
		}
		return writtenFile{}, fileFault(err, at.path)
	}
	return writtenFile{Name: filepath.Base(at.path), Path: at.path, Type: "file", Metadata: metadata}, nil
}

// bodyError tells a broken request from a broken disk.
type bodyError struct{ cause error }

func (e *bodyError) Error() string { return e.cause.Error() }

// replaceFile writes a new file beside the target, then renames it. A link is followed; an existing file's mode stays,
// its metadata does not.
func (b *box) replaceFile(at location, body io.Reader, metadata map[string]string) error {
	var temporary *os.File
	var target string
	var err error
	b.blocking.files.do(func() { temporary, target, err = openBeside(at) })
	if err != nil {
		return err
	}
	isPlaced := false
	defer func() {
		b.blocking.files.do(func() {
			temporary.Close()
			if !isPlaced {
				os.Remove(temporary.Name())
			}
		})
	}()
	if err := b.copyBody(temporary, body); err != nil {
		return err
	}
	b.blocking.files.do(func() {
		if err = setMetadata(temporary.Name(), metadata); err == nil {
			isPlaced, err = moveInto(temporary, target)
		}
	})
	return err
}

// openBeside creates the temporary file with the owner and mode of the final one.
func openBeside(at location) (temporary *os.File, target string, err error) {
	target = at.path
	if resolved, err := filepath.EvalSymlinks(target); err == nil {
		target = resolved
	} else if text, err := linkText(target); err == nil {
		target = text // a dangling link: the file it names is made
	}
	mode := uint32(newFileMode)
	var old syscall.Stat_t
	if err := syscall.Lstat(target, &old); err == nil {
		if old.Mode&syscall.S_IFMT != syscall.S_IFREG {
			return nil, "", faultf("invalid_argument", "not_a_file", "%s is not a regular file", at.path)
		}
		mode = old.Mode & 0o777
	} else if err := makeParents(filepath.Dir(target), at.who); err != nil {
		return nil, "", err
	}
	name := temporaryBeside(target)
	temporary, err = os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, "", err
	}
	if err = giveTo(name, at.who); err == nil {
		err = temporary.Chmod(os.FileMode(mode))
	}
	if err != nil {
		temporary.Close()
		os.Remove(name)
		return nil, "", err
	}
	return temporary, target, nil
}

// temporaryBeside is a new name in the folder of a path.
func temporaryBeside(path string) string {
	return fmt.Sprintf("%s/.sk-%016x", filepath.Dir(path), rand.Uint64())
}

// copyBody holds a slot only while it writes, never while it waits for the client.
func (b *box) copyBody(into *os.File, body io.Reader) error {
	buffer := streamBuffers.Get().(*[streamBuffer]byte)
	defer streamBuffers.Put(buffer)
	for {
		n, readErr := body.Read(buffer[:])
		if n > 0 {
			var err error
			b.blocking.files.do(func() { _, err = into.Write(buffer[:n]) })
			if err != nil {
				return err
			}
		}
		if readErr == io.EOF {
			return nil
		}
		if readErr != nil {
			return &bodyError{cause: readErr}
		}
	}
}

// moveInto renames. A file that the engine has mounted (hosts, resolv.conf) cannot be replaced, only written over.
func moveInto(temporary *os.File, target string) (isPlaced bool, err error) {
	err = syscall.Rename(temporary.Name(), target)
	if err != syscall.EBUSY {
		return err == nil, err
	}
	over, err := os.OpenFile(target, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return false, err
	}
	if _, err := temporary.Seek(0, io.SeekStart); err != nil {
		over.Close()
		return false, err
	}
	if _, err := io.Copy(over, temporary); err != nil {
		over.Close()
		return false, err
	}
	return false, over.Close()
}
