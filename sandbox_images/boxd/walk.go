package main

// walk.go owns going through a tree in order: sorted, without following a link, without leaving the file system it
// began on. Each entry is held open by its own descriptor, so that what is looked at is what was found. It changes
// nothing.

import (
	"context"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

const (
	oPath          = 0x200000
	openAsIs       = oPath | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	maxFolderNames = 1_000_000
)

// found is one entry of a walk; fd stands for it and is closed after the visit.
type found struct {
	fd   int
	name string // relative to the root
	stat syscall.Stat_t
}

func (f *found) kind() uint32 { return f.stat.Mode & syscall.S_IFMT }

// handle is a path that means the entry itself, whatever has its name by now.
func (f *found) handle() string { return "/proc/self/fd/" + strconv.Itoa(f.fd) }

// walker goes below one folder. visit runs in a file slot and says whether to go into a folder; after, if there is one,
// runs outside of the slot when an entry has been visited.
type walker struct {
	ctx    context.Context
	slots  slots
	visit  func(*found) (descend bool, err error)
	after  func() error
	device uint64
	begun  bool // the root was there
}

// walk visits the root itself, with an empty name, and all that is below. A link as the root is followed.
func (w *walker) walk(root string) error {
	var descend bool
	var fd int
	var err error
	w.slots.do(func() {
		if root, err = filepath.EvalSymlinks(root); err != nil {
			return
		}
		var entry *found
		if entry, err = openFound(-100, root, ""); err != nil { // -100: an absolute path needs no folder
			return
		}
		defer syscall.Close(entry.fd)
		w.device = entry.stat.Dev
		descend, err = w.visit(entry)
		if descend = descend && entry.kind() == syscall.S_IFDIR; err == nil && descend {
			fd, err = openIn(entry)
		}
	})
	if err == nil && w.after != nil {
		w.begun = true
		err = w.after()
	}
	if err != nil || !descend {
		return err
	}
	return w.folder(fd, "")
}

func openFound(folder int, name, full string) (*found, error) {
	fd, err := syscall.Openat(folder, name, openAsIs, 0)
	if err != nil {
		return nil, err
	}
	entry := &found{fd: fd, name: full}
	if err := syscall.Fstat(fd, &entry.stat); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return entry, nil
}

// openIn opens a folder for reading its names.
func openIn(entry *found) (int, error) {
	return syscall.Openat(entry.fd, ".", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
}

// folder visits what is in an open folder and closes it. What goes meanwhile is left out.
func (w *walker) folder(fd int, prefix string) error {
	opened := os.NewFile(uintptr(fd), prefix)
	defer opened.Close()
	var names []string
	var err error
	w.slots.do(func() { names, err = opened.Readdirnames(maxFolderNames + 1) })
	if err != nil && err != io.EOF {
		return err
	}
	if len(names) > maxFolderNames {
		return faultf("resource_exhausted", "folder_too_large", "more than %d names in %s", maxFolderNames, prefix)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		below, full := -1, path.Join(prefix, name)
		w.slots.do(func() { below, err = w.entry(fd, name, full) })
		if err == nil && w.after != nil {
			err = w.after()
		}
		if err != nil && !isVanished(err) {
			return err
		}
		if below >= 0 {
			if err := w.folder(below, full); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry visits one; the result is the folder to go into, or -1.
func (w *walker) entry(folder int, name, full string) (below int, err error) {
	entry, err := openFound(folder, name, full)
	if err != nil {
		return -1, err
	}
	defer syscall.Close(entry.fd)
	descend, err := w.visit(entry)
	if err != nil || !descend || entry.kind() != syscall.S_IFDIR || entry.stat.Dev != w.device {
		return -1, err
	}
	return openIn(entry)
}

func isVanished(err error) bool {
	return err == syscall.ENOENT || err == syscall.ENOTDIR || err == syscall.ESTALE
}
