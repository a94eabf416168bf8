package main

// beneath.go owns going down from an open folder one component at a time without following a link, so that nothing
// that happens to the tree meanwhile can lead outside. It never takes a path with a slash to the kernel.

import (
	"strings"
	"syscall"
	"unsafe"
)

const (
	openFolder   = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	utimeOmit    = (1 << 30) - 2
	maxPathDepth = 256
)

// splitMember checks the name of an archive member and returns its components; none means the folder itself.
func splitMember(name string) ([]string, *fault) {
	if strings.HasPrefix(name, "/") || strings.ContainsRune(name, 0) {
		return nil, faultf("invalid_argument", "hostile_archive", "member %q is not relative", name)
	}
	var parts []string
	for _, part := range strings.Split(name, "/") {
		switch part {
		case "", ".":
		case "..":
			return nil, faultf("invalid_argument", "hostile_archive", "member %q leads out of the folder", name)
		default:
			parts = append(parts, part)
		}
	}
	if len(parts) > maxPathDepth {
		return nil, faultf("invalid_argument", "hostile_archive", "member %q is too deep", name[:64])
	}
	return parts, nil
}

// openBeneath opens the folder at parts below root. made is called for each folder that had to be created; nil means
// that none may be.
func openBeneath(root int, parts []string, made func(fd int) error) (fd int, err error) {
	fd, err = syscall.Openat(root, ".", openFolder, 0)
	for _, part := range parts {
		if err != nil {
			return -1, err
		}
		above := fd
		fd, err = syscall.Openat(above, part, openFolder, 0)
		if err == syscall.ENOENT && made != nil {
			if err = syscall.Mkdirat(above, part, 0o755); err == nil || err == syscall.EEXIST {
				if fd, err = syscall.Openat(above, part, openFolder, 0); err == nil {
					if err = made(fd); err != nil {
						syscall.Close(fd)
					}
				}
			}
		}
		syscall.Close(above)
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}

func symlinkBeneath(target string, folder int, name string) error {
	text, err := syscall.BytePtrFromString(target)
	if err != nil {
		return err
	}
	at, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall(syscall.SYS_SYMLINKAT, uintptr(unsafe.Pointer(text)), uintptr(folder), uintptr(unsafe.Pointer(at)))
	return errnoOrNil(errno)
}

// linkBeneath makes a second name; the first is not followed if it is a link.
func linkBeneath(fromFolder int, from string, toFolder int, to string) error {
	first, err := syscall.BytePtrFromString(from)
	if err != nil {
		return err
	}
	second, err := syscall.BytePtrFromString(to)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_LINKAT, uintptr(fromFolder), uintptr(unsafe.Pointer(first)),
		uintptr(toFolder), uintptr(unsafe.Pointer(second)), 0, 0)
	return errnoOrNil(errno)
}

// setTime sets the time of change of an open file.
func setTime(fd int, ns int64) error {
	times := [2]syscall.Timespec{{Nsec: utimeOmit}, syscall.NsecToTimespec(ns)}
	_, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times[0])), 0, 0, 0)
	return errnoOrNil(errno)
}

// setTimeAt is setTime for a name in an open folder; a link's own time is set.
func setTimeAt(folder int, name string, ns int64) error {
	at, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	const atSymlinkNoFollow = 0x100
	times := [2]syscall.Timespec{{Nsec: utimeOmit}, syscall.NsecToTimespec(ns)}
	_, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(folder), uintptr(unsafe.Pointer(at)),
		uintptr(unsafe.Pointer(&times[0])), atSymlinkNoFollow, 0, 0)
	return errnoOrNil(errno)
}

func errnoOrNil(errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// readLinkOf reads the link that an O_PATH descriptor stands for.
func readLinkOf(fd int) (string, error) {
	empty, err := syscall.BytePtrFromString("")
	if err != nil {
		return "", err
	}
	var buffer [4096]byte
	n, _, errno := syscall.Syscall6(syscall.SYS_READLINKAT, uintptr(fd), uintptr(unsafe.Pointer(empty)),
		uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0, 0)
	if errno != 0 {
		return "", errno
	}
	return string(buffer[:n]), nil
}
