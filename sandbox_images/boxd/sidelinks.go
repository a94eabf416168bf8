package main

// sidelinks.go owns what putting times and attributes back costs on a layered file system, where touching a file of
// the image copies all of it up: hard links that this parts are made again, and how much may be copied is bounded.
// Source: the kernel's Documentation/filesystems/overlayfs.rst, "Non-standard behavior".

import (
	"fmt"
	"math/rand/v2"
	"syscall"
)

const (
	maxTimedFileBytes = 1 << 20  // a larger file keeps whole seconds
	maxCopyUpBytes    = 16 << 20 // so much is copied for times, then the rest keeps whole seconds
)

// restoring is one restore: what has been copied, and where the first name of each hard-linked file is.
type restoring struct {
	root   int
	copied int64
	firsts map[uint64]string
}

// mayTouch says whether the time of an entry is worth a copy of its content.
func (r *restoring) mayTouch(entry *found) bool {
	if entry.kind() != syscall.S_IFREG {
		return true
	}
	if entry.stat.Size > maxTimedFileBytes || r.copied+entry.stat.Size > maxCopyUpBytes {
		return false
	}
	r.copied += entry.stat.Size
	return true
}

// relink makes a name, parted from the first one by a copy, a name of the same file again. The folder's own time stays.
func (r *restoring) relink(first string, folder int, last string, entry *found) bool {
	parts, f := splitMember(first)
	if f != nil || len(parts) == 0 {
		return false
	}
	firstFolder, err := openBeneath(r.root, parts[:len(parts)-1], nil)
	if err != nil {
		return false
	}
	defer syscall.Close(firstFolder)
	firstLast := parts[len(parts)-1]
	there, err := openFound(firstFolder, firstLast, first)
	if err != nil {
		return false
	}
	defer syscall.Close(there.fd)
	if there.kind() != syscall.S_IFREG || there.stat.Size != entry.stat.Size || there.stat.Mtim.Sec != entry.stat.Mtim.Sec {
		return false
	}
	if there.stat.Ino == entry.stat.Ino && there.stat.Dev == entry.stat.Dev {
		return true
	}
	var before syscall.Stat_t
	if err := syscall.Fstat(folder, &before); err != nil {
		return false
	}
	temporary := fmt.Sprintf(".sk-%016x", rand.Uint64())
	if linkBeneath(firstFolder, firstLast, folder, temporary) != nil {
		return false
	}
	if syscall.Renameat(folder, temporary, folder, last) != nil {
		syscall.Unlinkat(folder, temporary) // the first error counts
		return false
	}
	return setTime(folder, before.Mtim.Nano()) == nil
}
