package main

// sidefile.go owns carrying through a committed image what such an image loses: user.* attributes, and the part of a
// time of change below a second. They are written to one file of root's before the commit, and put back, once, by the
// first go of a runtime made from the image. It never touches contents.

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

const (
	metadataFile     = "/.sandkeeper-metadata"
	metadataVersion  = 1
	maxSideEntries   = 1_000_000
	maxSideBytes     = 64 << 20
	maxSideLineBytes = 1 << 20
)

// sideEntry is one line; the first line holds the version alone.
type sideEntry struct {
	Version int               `json:"version,omitempty"`
	Path    string            `json:"p,omitempty"`
	Raw     []byte            `json:"b,omitempty"` // the path, when it is not UTF-8
	MtimeNs int64             `json:"m,omitempty"`
	Linked  uint64            `json:"l,omitempty"` // the same for every name of a hard-linked file
	Xattrs  map[string][]byte `json:"x,omitempty"`
}

type savedMetadata struct {
	Entries    int64 `json:"entries"`
	Bytes      int64 `json:"bytes"`
	Truncated  bool  `json:"truncated"`
	DurationMs int64 `json:"durationMs"`
}

type restoredMetadata struct {
	Restored int64 `json:"restored"`
	Skipped  int64 `json:"skipped"` // gone, changed, too large, or refused by the file system
}

func (b *box) serveMetadataSave(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	saved, err := saveMetadata(r.Context(), b.blocking.files, "/", b.metadataPath)
	if err != nil {
		writeFault(w, fileFault(err, metadataFile))
		return
	}
	saved.DurationMs = time.Since(began).Milliseconds()
	writeJSON(w, http.StatusOK, saved)
}

// dropMetadata removes the file when the commit is over.
func dropMetadata(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// saveMetadata writes the file beside its place first: there is the old one, or a whole one.
func saveMetadata(ctx context.Context, slots slots, root, path string) (saved savedMetadata, err error) {
	name := temporaryBeside(path)
	var file *os.File
	slots.do(func() { file, err = os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) })
	if err != nil {
		return saved, err
	}
	s := &sideWriter{out: bufio.NewWriterSize(file, pumpBuffer), skip: []string{below(root, path), below(root, name)}}
	if err = s.put(&sideEntry{Version: metadataVersion}); err == nil {
		walk := walker{ctx: ctx, slots: slots, visit: s.visit}
		err = walk.walk(root)
	}
	if err == errWalkOver {
		s.saved.Truncated, err = true, nil
	}
	slots.do(func() {
		if err == nil {
			err = s.out.Flush()
		}
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
		if err == nil {
			err = os.Rename(name, path)
		}
		if err != nil {
			os.Remove(name) // the first error counts
		}
	})
	return s.saved, err
}

// below is a path as a walk from root names it.
func below(root, path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, root), "/") }

type sideWriter struct {
	out   *bufio.Writer
	skip  []string
	saved savedMetadata
}

func (s *sideWriter) visit(entry *found) (descend bool, err error) {
	for _, name := range s.skip {
		if entry.name == name {
			return false, nil
		}
	}
	line := &sideEntry{Path: entry.name}
	if entry.stat.Mtim.Nsec != 0 {
		line.MtimeNs = entry.stat.Mtim.Nano()
	}
	if entry.kind() == syscall.S_IFREG && entry.stat.Nlink > 1 {
		line.Linked = entry.stat.Ino
	}
	if kind := entry.kind(); kind == syscall.S_IFREG || kind == syscall.S_IFDIR {
		line.Xattrs, err = xattrsOf(entry.handle(), isUserXattr)
	}
	if err != nil || line.MtimeNs == 0 && line.Xattrs == nil {
		return true, err
	}
	if !utf8.ValidString(entry.name) {
		line.Path, line.Raw = "", []byte(entry.name)
	}
	if s.saved.Entries >= maxSideEntries {
		return false, errWalkOver
	}
	s.saved.Entries++
	return true, s.put(line)
}

func (s *sideWriter) put(line *sideEntry) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if s.saved.Bytes+int64(len(text)) >= maxSideBytes {
		s.saved.Entries--
		return errWalkOver
	}
	s.saved.Bytes += int64(len(text)) + 1
	if _, err := s.out.Write(text); err != nil {
		return err
	}
	return s.out.WriteByte('\n')
}

func isUserXattr(name string) bool { return strings.HasPrefix(name, "user.") }

// takeUpMetadata restores from the file if it came with the image. One that this container made for a commit is only
// removed: attributes have changed since.
func takeUpMetadata(root, path string) (*restoredMetadata, error) {
	var stat syscall.Stat_t
	if err := syscall.Lstat(path, &stat); err != nil {
		if err == syscall.ENOENT {
			err = nil
		}
		return nil, err
	}
	if !cameWithImage(&stat) {
		return nil, dropMetadata(path)
	}
	return restoreMetadata(root, path)
}

// restoreMetadata puts back what the file says and removes it; no file is nothing to do. A file whose second of change
// differs has been written since, and is left alone.
func restoreMetadata(root, path string) (done *restoredMetadata, err error) {
	file, _, err := openRegular(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	rootFD, err := syscall.Open(root, openFolder, 0)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(rootFD)
	done = &restoredMetadata{}
	state := &restoring{root: rootFD, firsts: map[uint64]string{}}
	lines := bufio.NewScanner(io.LimitReader(file, maxSideBytes+maxSideLineBytes))
	lines.Buffer(make([]byte, 0, pumpBuffer), maxSideLineBytes)
	for isFirst := true; lines.Scan(); isFirst = false {
		var line sideEntry
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil || isFirst && line.Version != metadataVersion {
			return done, faultf("invalid_argument", "bad_metadata", "%s is not of version %d", path, metadataVersion)
		}
		if isFirst {
			continue
		}
		if line.restore(state) {
			done.Restored++
		} else {
			done.Skipped++
		}
	}
	if err := lines.Err(); err != nil {
		return done, err
	}
	return done, os.Remove(path)
}

func (line *sideEntry) restore(state *restoring) (isDone bool) {
	name := line.Path
	if line.Raw != nil {
		name = string(line.Raw)
	}
	parts, f := splitMember(name)
	if f != nil {
		return false
	}
	folder, last := state.root, "."
	if len(parts) > 0 {
		opened, err := openBeneath(state.root, parts[:len(parts)-1], nil)
		if err != nil {
			return false
		}
		defer syscall.Close(opened)
		folder, last = opened, parts[len(parts)-1]
	}
	entry, err := openFound(folder, last, name)
	if err != nil {
		return false
	}
	defer syscall.Close(entry.fd)
	if first, isKnown := state.firsts[line.Linked]; isKnown && line.Linked != 0 {
		return state.relink(first, folder, last, entry)
	}
	for key, value := range line.Xattrs {
		if !isUserXattr(key) || setXattr(entry.handle(), key, value) != nil {
			return false
		}
	}
	if line.Linked != 0 {
		state.firsts[line.Linked] = name
	}
	if line.MtimeNs == 0 {
		return true
	}
	saved := syscall.NsecToTimespec(line.MtimeNs)
	return saved.Sec == entry.stat.Mtim.Sec && state.mayTouch(entry) && setTimeAt(folder, last, line.MtimeNs) == nil
}
