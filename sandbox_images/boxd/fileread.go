package main

// fileread.go owns GET /files. Each system call on the file holds a file slot; the connection is waited for without.

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

func (b *box) serveFileRead(w http.ResponseWriter, r *http.Request) {
	at, f := b.locate(r, r.URL.Query().Get("path"))
	if f != nil {
		writeFileFault(w, f)
		return
	}
	var file *os.File
	var size int64
	var changedAt time.Time
	var err error
	b.blocking.files.do(func() {
		opened, stat, openErr := openRegular(at.path)
		if openErr != nil {
			err = openErr
			return
		}
		file, size, changedAt = opened, stat.Size, time.Unix(stat.Mtim.Unix())
	})
	if err != nil {
		writeFileFault(w, fileFault(err, at.path))
		return
	}
	defer file.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	content := &slottedFile{file: file, slots: b.blocking.files}
	if size == 0 { // empty, or a file of /proc or /sys, whose size is not known
		io.Copy(wideWriter{w}, content) // an error cuts the answer, which is what the client must see
		return
	}
	http.ServeContent(wideWriter{w}, r, filepath.Base(at.path), changedAt, content)
}

// slottedFile takes a slot for each read.
type slottedFile struct {
	file  *os.File
	slots slots
}

func (s *slottedFile) Read(buffer []byte) (n int, err error) {
	s.slots.do(func() { n, err = s.file.Read(buffer) })
	return n, err
}

func (s *slottedFile) Seek(offset int64, whence int) (int64, error) {
	return s.file.Seek(offset, whence)
}

// wideWriter copies in pieces of streamBuffer: the library's 32 KiB are a system call on the file, a slot and a wake-up
// of the client each.
type wideWriter struct{ http.ResponseWriter }

func (w wideWriter) ReadFrom(source io.Reader) (int64, error) {
	buffer := streamBuffers.Get().(*[streamBuffer]byte)
	defer streamBuffers.Put(buffer)
	return io.CopyBuffer(struct{ io.Writer }{w.ResponseWriter}, source, buffer[:])
}
