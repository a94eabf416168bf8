package main

// xattr.go owns extended attributes: reading and setting those of what a path means, a link followed, and the ones that
// envd calls metadata. A file system without them has none.
// Source: xattr(7).

import (
	"bytes"
	"net/http"
	"strings"
	"syscall"
	"unsafe"
)

const (
	metadataPrefix   = "user.e2b."
	metadataHeader   = "X-Metadata-"
	maxMetadataBytes = 4096
	maxXattrBytes    = 64 << 10
	errNoAttribute   = syscall.ENODATA
)

// listXattrs names the attributes of a path.
func listXattrs(path string) ([]string, error) {
	at, err := syscall.BytePtrFromString(path)
	if err != nil {
		return nil, err
	}
	var small [1024]byte
	buffer := small[:]
	for {
		n, _, errno := syscall.Syscall(syscall.SYS_LISTXATTR, uintptr(unsafe.Pointer(at)),
			uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)))
		switch {
		case errno == syscall.ERANGE && len(buffer) < maxXattrBytes:
			buffer = make([]byte, maxXattrBytes)
			continue
		case errno == syscall.ENOTSUP || errno == syscall.EPERM:
			return nil, nil
		case errno != 0:
			return nil, errno
		}
		var names []string
		for _, name := range bytes.Split(buffer[:n], []byte{0}) {
			if len(name) > 0 {
				names = append(names, string(name))
			}
		}
		return names, nil
	}
}

func getXattr(path, name string) ([]byte, error) {
	at, err := syscall.BytePtrFromString(path)
	if err != nil {
		return nil, err
	}
	key, err := syscall.BytePtrFromString(name)
	if err != nil {
		return nil, err
	}
	for size := 1024; ; size = maxXattrBytes {
		buffer := make([]byte, size)
		n, _, errno := syscall.Syscall6(syscall.SYS_GETXATTR, uintptr(unsafe.Pointer(at)),
			uintptr(unsafe.Pointer(key)), uintptr(unsafe.Pointer(&buffer[0])), uintptr(size), 0, 0)
		if errno == syscall.ERANGE && size < maxXattrBytes {
			continue
		}
		if errno != 0 {
			return nil, errno
		}
		return buffer[:n], nil
	}
}

func setXattr(path, name string, value []byte) error {
	at, err := syscall.BytePtrFromString(path)
	if err != nil {
		return err
	}
	key, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	var first unsafe.Pointer
	if len(value) > 0 {
		first = unsafe.Pointer(&value[0])
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_SETXATTR, uintptr(unsafe.Pointer(at)), uintptr(unsafe.Pointer(key)),
		uintptr(first), uintptr(len(value)), 0, 0)
	return errnoOrNil(errno)
}

// xattrsOf reads all attributes whose name passes; one that goes meanwhile is left out.
func xattrsOf(path string, wanted func(name string) bool) (map[string][]byte, error) {
	names, err := listXattrs(path)
	if err != nil {
		return nil, err
	}
	var found map[string][]byte
	for _, name := range names {
		if !wanted(name) {
			continue
		}
		value, err := getXattr(path, name)
		if err == errNoAttribute || err == syscall.EPERM || err == syscall.EACCES {
			continue
		}
		if err != nil {
			return nil, err
		}
		if found == nil {
			found = map[string][]byte{}
		}
		found[name] = value
	}
	return found, nil
}

// metadataOf reads what an upload has set.
func metadataOf(path string) (map[string]string, error) {
	found, err := xattrsOf(path, func(name string) bool { return strings.HasPrefix(name, metadataPrefix) })
	if err != nil || found == nil {
		return nil, err
	}
	metadata := make(map[string]string, len(found))
	for name, value := range found {
		metadata[strings.TrimPrefix(name, metadataPrefix)] = string(value)
	}
	return metadata, nil
}

// requestMetadata reads the X-Metadata-<key> headers of an upload.
func requestMetadata(header http.Header) (map[string]string, *fault) {
	var metadata map[string]string
	total := 0
	for name, values := range header {
		key, isMetadata := strings.CutPrefix(name, metadataHeader)
		if !isMetadata || key == "" {
			continue
		}
		if metadata == nil {
			metadata = map[string]string{}
		}
		key = strings.ToLower(key)
		metadata[key] = strings.Join(values, ", ")
		total += len(key) + len(metadata[key])
	}
	if total > maxMetadataBytes {
		return nil, faultf("invalid_argument", "metadata_too_large", "%d bytes of metadata, at most %d", total, maxMetadataBytes)
	}
	return metadata, nil
}

func setMetadata(path string, metadata map[string]string) error {
	for key, value := range metadata {
		if err := setXattr(path, metadataPrefix+key, []byte(value)); err != nil {
			if err == syscall.ENOTSUP {
				return faultf("failed_precondition", "no_xattrs", "%s: the file system has no extended attributes", path)
			}
			return err
		}
	}
	return nil
}
