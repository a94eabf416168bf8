package main

// archivedown.go owns GET archive: a folder or one file as a tar stream. It never follows a link below the root, and
// leaves out what a tar of files cannot carry: sockets, pipes, devices.

import (
	"archive/tar"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

func (b *box) serveArchiveDown(w http.ResponseWriter, r *http.Request) {
	at, f := b.locate(r, r.URL.Query().Get("path"))
	if f != nil {
		writeFault(w, f)
		return
	}
	var root int
	var stat syscall.Stat_t
	var err error
	b.blocking.files.do(func() {
		root, err = syscall.Open(at.path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		if err = syscall.Fstat(root, &stat); err != nil {
			syscall.Close(root)
		}
	})
	if err != nil {
		writeFault(w, fileFault(err, at.path))
		return
	}
	w.Header().Set("Content-Type", "application/x-tar")
	packer := &packer{box: b, tar: tar.NewWriter(w)}
	switch stat.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		err = packer.folder(root, "")
	case syscall.S_IFREG:
		err = packer.file(root, filepath.Base(at.path))
	default:
		syscall.Close(root)
		writeFault(w, faultf("invalid_argument", "not_a_file", "%s is neither a folder nor a file", at.path))
		return
	}
	if err == nil {
		err = packer.tar.Close()
	}
	if err != nil {
		report("archive of %s is cut: %v", at.path, err)
		panic(http.ErrAbortHandler) // the client sees a cut stream, not a short archive
	}
}

type packer struct {
	box *box
	tar *tar.Writer
}

// folder packs what is below an open folder and closes it.
func (p *packer) folder(fd int, prefix string) error {
	opened := os.NewFile(uintptr(fd), prefix)
	defer opened.Close()
	var names []string
	var err error
	p.box.blocking.files.do(func() { names, err = opened.Readdirnames(-1) })
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := p.member(fd, name, path.Join(prefix, name)); err != nil && !errors.Is(err, syscall.ENOENT) {
			return err
		}
	}
	return nil
}

func (p *packer) member(folder int, name, full string) error {
	const oPath = 0x200000
	var fd int
	var stat syscall.Stat_t
	var err error
	p.box.blocking.files.do(func() {
		// First without opening: a device or pipe must not notice.
		fd, err = syscall.Openat(folder, name, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		err = syscall.Fstat(fd, &stat)
		kind := stat.Mode & syscall.S_IFMT
		if err == nil && kind == syscall.S_IFLNK {
			return
		}
		syscall.Close(fd)
		fd = -1
		if err == nil && (kind == syscall.S_IFREG || kind == syscall.S_IFDIR) {
			flags := syscall.O_RDONLY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_NOCTTY | syscall.O_CLOEXEC
			if fd, err = syscall.Openat(folder, name, flags, 0); err == nil {
				err = syscall.Fstat(fd, &stat)
			}
		}
	})
	if err != nil || fd < 0 {
		if fd >= 0 {
			syscall.Close(fd)
		}
		return err
	}
	switch stat.Mode & syscall.S_IFMT {
	case syscall.S_IFLNK:
		defer syscall.Close(fd)
		return p.link(fd, full, &stat)
	case syscall.S_IFDIR:
		if err := p.tar.WriteHeader(p.header(&stat, tar.TypeDir, full+"/")); err != nil {
			syscall.Close(fd)
			return err
		}
		return p.folder(fd, full)
	case syscall.S_IFREG:
		return p.file(fd, full)
	}
	return syscall.Close(fd)
}

// file packs exactly the size it saw first: a file that shrinks is padded, one that grows is cut.
func (p *packer) file(fd int, full string) error {
	opened := os.NewFile(uintptr(fd), full)
	defer opened.Close()
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		return err
	}
	header := p.header(&stat, tar.TypeReg, full)
	header.Size = stat.Size
	if err := p.tar.WriteHeader(header); err != nil {
		return err
	}
	content := io.MultiReader(&slottedFile{file: opened, slots: p.box.blocking.files}, zeros{})
	_, err := io.CopyN(p.tar, content, stat.Size)
	return err
}

func (p *packer) link(fd int, full string, stat *syscall.Stat_t) error {
	target, err := readLinkOf(fd)
	if err != nil {
		return err
	}
	header := p.header(stat, tar.TypeSymlink, full)
	header.Linkname = target
	return p.tar.WriteHeader(header)
}

func (p *packer) header(stat *syscall.Stat_t, kind byte, name string) *tar.Header {
	owner, group := p.box.users.names(stat.Uid, stat.Gid)
	return &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(stat.Mode & 0o7777), Uid: int(stat.Uid), Gid: int(stat.Gid),
		Uname: owner, Gname: group, ModTime: time.Unix(stat.Mtim.Unix()), Format: tar.FormatPAX,
	}
}

type zeros struct{}

func (zeros) Read(buffer []byte) (int, error) {
	clear(buffer)
	return len(buffer), nil
}
