package main

// copytree.go owns copying a file or folder: modes, times, links and extended attributes are kept, owners unless a new
// one is named, hard links become separate files. It never follows a link. A copy stands in for a rename across file
// systems too.

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// copier copies with what all its parts have in common.
type copier struct {
	ctx   context.Context // ends a long copy
	owner *account        // nil: as it was
}

func (c *copier) tree(from, to string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	found, err := os.Lstat(from)
	if err != nil {
		return err
	}
	raw, ok := found.Sys().(*syscall.Stat_t)
	if !ok {
		return syscall.EINVAL
	}
	switch {
	case found.Mode()&os.ModeSymlink != 0:
		return c.link(from, to, raw)
	case found.IsDir():
		err = c.folder(from, to)
	case found.Mode().IsRegular():
		err = copyContent(from, to)
	default: // a pipe, socket or device
		err = syscall.Mknod(to, raw.Mode, int(raw.Rdev))
	}
	if err != nil {
		return err
	}
	if err := copyXattrs(from, to); err != nil {
		return err
	}
	if err := c.chown(to, raw); err != nil {
		return err
	}
	if err := syscall.Chmod(to, raw.Mode&0o7777); err != nil {
		return err
	}
	return os.Chtimes(to, time.Unix(raw.Atim.Unix()), found.ModTime())
}

func (c *copier) chown(to string, raw *syscall.Stat_t) error {
	if c.owner != nil {
		return giveTo(to, *c.owner)
	}
	return syscall.Lchown(to, int(raw.Uid), int(raw.Gid))
}

func copyXattrs(from, to string) error {
	found, err := xattrsOf(from, func(name string) bool { return strings.HasPrefix(name, "user.") })
	if err != nil {
		return err
	}
	for name, value := range found {
		if err := setXattr(to, name, value); err != nil && err != syscall.ENOTSUP {
			return err
		}
	}
	return nil
}

func (c *copier) link(from, to string, raw *syscall.Stat_t) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	if err := os.Symlink(target, to); err != nil {
		return err
	}
	return c.chown(to, raw)
}

func (c *copier) folder(from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	names, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.tree(filepath.Join(from, name.Name()), filepath.Join(to, name.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copyContent(from, to string) error {
	source, _, err := openRegular(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		target.Close()
		return err
	}
	return target.Close()
}
