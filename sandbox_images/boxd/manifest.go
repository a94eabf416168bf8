package main

// manifest.go owns telling what a tree is made of, one line of JSON per path, so that two trees can be compared: type,
// mode, owner, size, time, link, attributes and, if asked, the hash of the content. It changes nothing.

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"syscall"
	"unicode/utf8"
)

// manifestEntry is one path. The size and the links of a folder are the file system's own business and left out.
type manifestEntry struct {
	Path    string            `json:"path"`              // relative to the root, which is "."
	PathB64 []byte            `json:"pathB64,omitempty"` // when the path is not UTF-8
	Type    string            `json:"type"`
	Mode    uint32            `json:"mode"`
	UID     uint32            `json:"uid"`
	GID     uint32            `json:"gid"`
	Size    int64             `json:"size"`
	MtimeNs int64             `json:"mtimeNs"`
	Link    string            `json:"link,omitempty"`
	Xattrs  map[string][]byte `json:"xattrs,omitempty"`
	Inode   uint64            `json:"inode"`
	Links   uint64            `json:"links,omitempty"`
	Rdev    uint64            `json:"rdev,omitempty"`
	SHA256  string            `json:"sha256,omitempty"`
}

var typeNames = map[uint32]string{
	syscall.S_IFREG: "file", syscall.S_IFDIR: "folder", syscall.S_IFLNK: "symlink", syscall.S_IFIFO: "pipe",
	syscall.S_IFSOCK: "socket", syscall.S_IFCHR: "char", syscall.S_IFBLK: "block",
}

type manifest struct {
	slots  slots
	hashes bool
	out    *json.Encoder
	next   *manifestEntry
	opened *os.File // the content to hash
}

func (b *box) serveManifest(w http.ResponseWriter, r *http.Request) {
	at, f := b.locate(r, r.URL.Query().Get("path"))
	if f != nil {
		writeFault(w, f)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	buffered := bufio.NewWriterSize(w, chunkBytes)
	m := &manifest{slots: b.blocking.files, hashes: r.URL.Query().Get("hash") == "1", out: json.NewEncoder(buffered)}
	m.out.SetEscapeHTML(false)
	walk := walker{ctx: r.Context(), slots: b.blocking.files, after: m.write}
	walk.visit = func(entry *found) (bool, error) {
		if at.path == "/" && "/"+entry.name == b.metadataPath {
			m.next = nil // ours, and in no tree
			return false, nil
		}
		return true, m.look(entry)
	}
	err := walk.walk(at.path)
	if err != nil && !walk.begun {
		writeFault(w, fileFault(err, at.path))
		return
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		panic(http.ErrAbortHandler) // the client sees a cut stream, not a short manifest
	}
}

// look reads all but the content, in a file slot.
func (m *manifest) look(entry *found) error {
	s := &entry.stat
	m.next = nil
	made := &manifestEntry{
		Path: firstOf(entry.name, "."), Type: typeNames[entry.kind()], Mode: s.Mode & 0o7777, UID: s.Uid, GID: s.Gid,
		MtimeNs: s.Mtim.Nano(), Inode: s.Ino, Links: uint64(s.Nlink), Rdev: s.Rdev,
	}
	if entry.kind() == syscall.S_IFDIR {
		made.Links = 0
	}
	if !utf8.ValidString(made.Path) {
		made.PathB64 = []byte(made.Path)
	}
	var err error
	switch entry.kind() {
	case syscall.S_IFREG:
		made.Size = s.Size
		if m.hashes {
			if m.opened, err = os.Open(entry.handle()); err != nil {
				return err
			}
		}
	case syscall.S_IFLNK:
		made.Size = s.Size
		if made.Link, err = readLinkOf(entry.fd); err != nil {
			return err
		}
	}
	if made.Xattrs, err = xattrsOf(entry.handle(), func(string) bool { return true }); err != nil && !isVanished(err) {
		return err
	}
	m.next = made
	return nil
}

// write hashes, outside of the slot but for each read, and sends the line.
func (m *manifest) write() error {
	if m.opened != nil {
		opened := m.opened
		m.opened = nil
		defer opened.Close()
		sum := sha256.New()
		if _, err := io.Copy(sum, &slottedFile{file: opened, slots: m.slots}); err != nil {
			return err
		}
		if m.next != nil {
			m.next.SHA256 = hex.EncodeToString(sum.Sum(nil))
		}
	}
	if m.next == nil {
		return nil
	}
	return m.out.Encode(m.next)
}
