package main

// copytree.go owns the copy that stands in for a rename across file systems: owners, modes, times and links are kept,
// hard links become separate files. It never follows a link.

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

func copyTree(from, to string) error {
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
		return copyLink(from, to, raw)
	case found.IsDir():
		err = copyFolder(from, to)
	case found.Mode().IsRegular():
		err = copyContent(from, to)
	default: // a pipe, socket or device
		err = syscall.Mknod(to, raw.Mode, int(raw.Rdev))
	}
	if err != nil {
		return err
	}
	if err := syscall.Lchown(to, int(raw.Uid), int(raw.Gid)); err != nil {
		return err
	}
	if err := syscall.Chmod(to, raw.Mode&0o7777); err != nil {
		return err
	}
	return os.Chtimes(to, time.Unix(raw.Atim.Unix()), found.ModTime())
}

func copyLink(from, to string, raw *syscall.Stat_t) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	if err := os.Symlink(target, to); err != nil {
		return err
	}
	return syscall.Lchown(to, int(raw.Uid), int(raw.Gid))
}

func copyFolder(from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	names, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := copyTree(filepath.Join(from, name.Name()), filepath.Join(to, name.Name())); err != nil {
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
