package main

// entries.go owns how a file looks to a client. It follows a link only to say what it leads to.

import (
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// entry is envd's EntryInfo.
type entry struct {
	Name          string    `json:"name"`
	Type          string    `json:"type"`
	Path          string    `json:"path"`
	Size          int64     `json:"size"`
	Mode          uint32    `json:"mode"`
	Permissions   string    `json:"permissions"`
	Owner         string    `json:"owner"`
	Group         string    `json:"group"`
	ModifiedTime  time.Time `json:"modifiedTime"`
	SymlinkTarget string    `json:"symlinkTarget,omitempty"`
	IsSymlink     bool      `json:"isSymlink,omitempty"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

const (
	typeUnknown = "FILE_TYPE_UNSPECIFIED"
	typeFile    = "FILE_TYPE_FILE"
	typeFolder  = "FILE_TYPE_DIRECTORY"
	typeLink    = "FILE_TYPE_SYMLINK"
)

// describe reads one entry. A link has the type, mode and size of what it leads to.
func (b *box) describe(path string) (entry, error) {
	found, err := os.Lstat(path)
	if err != nil {
		return entry{}, err
	}
	made := entry{Name: filepath.Base(path), Path: path, Type: typeUnknown, ModifiedTime: found.ModTime().UTC()}
	if raw, ok := found.Sys().(*syscall.Stat_t); ok {
		made.Owner, made.Group = b.users.names(raw.Uid, raw.Gid)
	}
	shown := found
	if found.Mode()&os.ModeSymlink != 0 {
		made.IsSymlink = true
		target, err := filepath.EvalSymlinks(path)
		if err == nil {
			made.SymlinkTarget = target
			shown, err = os.Stat(target)
		}
		if err != nil { // it dangles
			made.SymlinkTarget, err = linkText(path)
			if err != nil {
				return entry{}, err
			}
			made.Permissions = found.Mode().Perm().String()
			return made, nil
		}
	}
	switch {
	case shown.Mode().IsRegular():
		made.Type = typeFile
		if made.Metadata, err = metadataOf(firstOf(made.SymlinkTarget, path)); err != nil && !isVanished(err) {
			return entry{}, err
		}
	case shown.IsDir():
		made.Type = typeFolder
	}
	made.Size = shown.Size()
	made.Mode = uint32(shown.Mode().Perm())
	made.Permissions = permissions(shown.Mode())
	return made, nil
}

// describeAsIs is describe without looking through a link: its own type, mode and text.
func (b *box) describeAsIs(path string) (entry, error) {
	found, err := os.Lstat(path)
	if err != nil || found.Mode()&os.ModeSymlink == 0 {
		if err != nil {
			return entry{}, err
		}
		return b.describe(path)
	}
	made := entry{
		Name: filepath.Base(path), Path: path, Type: typeLink, Size: found.Size(), Mode: uint32(found.Mode().Perm()),
		Permissions: "l" + found.Mode().Perm().String()[1:], ModifiedTime: found.ModTime().UTC(), IsSymlink: true,
	}
	if raw, ok := found.Sys().(*syscall.Stat_t); ok {
		made.Owner, made.Group = b.users.names(raw.Uid, raw.Gid)
	}
	made.SymlinkTarget, err = os.Readlink(path)
	return made, err
}

// permissions has the form of ls, with d for a folder and - for everything else.
func permissions(mode os.FileMode) string {
	text := mode.Perm().String()
	if mode.IsDir() {
		return "d" + text[1:]
	}
	return text
}

func linkText(path string) (string, error) {
	target, err := os.Readlink(path)
	if err != nil {
		return "", err
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	return filepath.Clean(target), nil
}
