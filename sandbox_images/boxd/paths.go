package main

// paths.go owns what a path in a request means: relative to the default folder, ~ is the user's home. It touches
// nothing on disk but for opening a file that it has checked to be regular.

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// resolvePath makes an absolute, clean path.
func resolvePath(path, base, home string) string {
	switch {
	case path == "~":
		path = firstOf(home, "/")
	case strings.HasPrefix(path, "~/"):
		path = filepath.Join(firstOf(home, "/"), path[2:])
	case !strings.HasPrefix(path, "/"):
		path = filepath.Join(base, path)
	}
	return filepath.Clean("/" + path)
}

// location is a path of a request together with the user on whose behalf it is used.
type location struct {
	path string
	who  account
}

// locate resolves a path for the user that the request names: a query, Basic authorization, or the default.
func (b *box) locate(r *http.Request, path string) (location, *fault) {
	s, _ := b.currentSettings()
	name := r.URL.Query().Get("username")
	if name == "" {
		name, _, _ = r.BasicAuth()
	}
	who, f := b.users.find(firstOf(name, s.user))
	if f != nil {
		return location{}, f
	}
	if path == "" {
		return location{}, faultf("invalid_argument", "bad_path", "the path is empty")
	}
	if strings.ContainsRune(path, 0) {
		return location{}, faultf("invalid_argument", "bad_path", "the path holds a zero byte")
	}
	return location{path: resolvePath(path, firstOf(s.workdir, who.home, "/"), who.home), who: who}, nil
}

// openRegular opens a file for reading and refuses what could block a thread or never end: pipes, devices, folders.
func openRegular(path string) (*os.File, *syscall.Stat_t, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	stat, err := checkRegular(fd, path)
	if err != nil {
		syscall.Close(fd)
		return nil, nil, err
	}
	if err := syscall.SetNonblock(fd, false); err != nil {
		syscall.Close(fd)
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), path), stat, nil
}

func checkRegular(fd int, path string) (*syscall.Stat_t, error) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	if stat.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return nil, faultf("invalid_argument", "not_a_file", "%s is not a regular file", path)
	}
	return &stat, nil
}

// makeParents creates missing folders, owned by the user, mode 0755.
func makeParents(path string, who account) error {
	var missing []string
	for at := path; ; at = filepath.Dir(at) {
		var stat syscall.Stat_t
		err := syscall.Stat(at, &stat)
		if err == nil {
			if stat.Mode&syscall.S_IFMT != syscall.S_IFDIR {
				return syscall.ENOTDIR
			}
			break
		}
		if err != syscall.ENOENT {
			return err
		}
		missing = append(missing, at)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := syscall.Mkdir(missing[i], 0o755); err != nil && err != syscall.EEXIST {
			return err
		} else if err == nil {
			if err := giveTo(missing[i], who); err != nil {
				return err
			}
		}
	}
	return nil
}

// giveTo makes the user the owner; without privilege it may only already be so.
func giveTo(path string, who account) error {
	err := syscall.Lchown(path, int(who.uid), int(who.gid))
	if err == syscall.EPERM && os.Geteuid() != 0 {
		return nil
	}
	return err
}
