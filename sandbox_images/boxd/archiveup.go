package main

// archiveup.go owns PUT archive: a tar stream becomes files below one folder and nowhere else. It refuses a member
// that is absolute, has a parent step, goes through a link, or is neither file, folder nor link.

import (
	"archive/tar"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"syscall"
)

type unpacked struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

func (b *box) serveArchiveUp(w http.ResponseWriter, r *http.Request) {
	at, f := b.locate(r, r.URL.Query().Get("path"))
	if f != nil {
		writeFault(w, f)
		return
	}
	u := &unpacker{box: b, at: at, keepOwners: r.URL.Query().Get("preserveOwner") == "true", folder: -1}
	var err error
	b.blocking.files.do(func() {
		if err = makeParents(at.path, at.who); err == nil {
			u.root, err = syscall.Open(at.path, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
		}
	})
	if err != nil {
		writeFault(w, fileFault(err, at.path))
		return
	}
	defer u.close()
	if f := u.unpack(tar.NewReader(r.Body)); f != nil {
		writeFault(w, f)
		return
	}
	io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20)) // padding after the archive; keeps the connection usable
	writeJSON(w, http.StatusOK, u.done)
}

type unpacker struct {
	box        *box
	at         location
	keepOwners bool // take owners and special mode bits from the archive
	root       int
	done       unpacked

	folder     int // the folder of the last member, kept open: members come folder by folder
	folderName string
}

func (u *unpacker) close() {
	if u.folder >= 0 {
		syscall.Close(u.folder)
	}
	syscall.Close(u.root)
}

func (u *unpacker) unpack(members *tar.Reader) *fault {
	for {
		header, err := members.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return faultf("invalid_argument", "bad_archive", "unreadable archive: %v", err)
		}
		if err := u.member(header, members); err != nil {
			return memberFault(err, header.Name)
		}
	}
}

// memberFault says that a folder on the way which is none, or is a link, is hostile.
func memberFault(err error, name string) *fault {
	var bad *bodyError
	switch {
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
		return faultf("invalid_argument", "hostile_archive", "member %q goes through a link or a file", name)
	case errors.As(err, &bad):
		return faultf("invalid_argument", "bad_archive", "member %q is cut: %v", name, bad.cause)
	}
	return fileFault(err, name)
}

func (u *unpacker) member(header *tar.Header, content io.Reader) error {
	parts, f := splitMember(header.Name)
	if f != nil {
		return f
	}
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if header.Typeflag == tar.TypeDir {
		return u.makeFolder(header, parts)
	}
	if len(parts) == 0 {
		return faultf("invalid_argument", "hostile_archive", "member %q has no name", header.Name)
	}
	name := parts[len(parts)-1]
	var err error
	u.box.blocking.files.do(func() { err = u.enter(parts[:len(parts)-1]) })
	if err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		err = u.writeFile(header, name, content)
	case tar.TypeSymlink:
		u.box.blocking.files.do(func() { err = u.makeLink(header, name) })
	case tar.TypeLink:
		u.box.blocking.files.do(func() { err = u.makeHardLink(header, name) })
	default:
		err = faultf("invalid_argument", "hostile_archive", "member %q is of type %q", header.Name, header.Typeflag)
	}
	if err == nil {
		u.done.Files++
	}
	return err
}

// enter makes the folder the current one, creating what is missing.
func (u *unpacker) enter(parts []string) error {
	full := path.Join(parts...)
	if u.folder >= 0 && full == u.folderName {
		return nil
	}
	fd, err := openBeneath(u.root, parts, func(fd int) error { return u.chown(fd, nil) })
	if err != nil {
		return err
	}
	if u.folder >= 0 {
		syscall.Close(u.folder)
	}
	u.folder, u.folderName = fd, full
	return nil
}

func (u *unpacker) makeFolder(header *tar.Header, parts []string) (err error) {
	u.box.blocking.files.do(func() {
		if err = u.enter(parts); err != nil || len(parts) == 0 {
			return
		}
		if err = u.chown(u.folder, header); err == nil {
			err = syscall.Fchmod(u.folder, u.modeOf(header))
		}
	})
	return err
}

// writeFile makes a new file in place of whatever has the name, so an existing link or hard link is never written to.
func (u *unpacker) writeFile(header *tar.Header, name string, content io.Reader) (err error) {
	fd := -1
	flags := syscall.O_WRONLY | syscall.O_CREAT | syscall.O_EXCL | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	u.box.blocking.files.do(func() {
		fd, err = syscall.Openat(u.folder, name, flags, 0o600)
		if err == syscall.EEXIST {
			if err = syscall.Unlinkat(u.folder, name); err == nil {
				fd, err = syscall.Openat(u.folder, name, flags, 0o600)
			}
		}
	})
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	counted := &countingReader{from: content}
	err = u.box.copyBody(file, counted)
	u.box.blocking.files.do(func() {
		if err == nil {
			err = u.chown(fd, header)
		}
		if err == nil {
			err = syscall.Fchmod(fd, u.modeOf(header))
		}
		if err == nil && !header.ModTime.IsZero() {
			err = setTime(fd, header.ModTime.UnixNano())
		}
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
	})
	u.done.Bytes += counted.count
	return err
}

func (u *unpacker) makeLink(header *tar.Header, name string) error {
	err := symlinkBeneath(header.Linkname, u.folder, name)
	if err == syscall.EEXIST {
		if err = syscall.Unlinkat(u.folder, name); err == nil {
			err = symlinkBeneath(header.Linkname, u.folder, name)
		}
	}
	if err != nil {
		return err
	}
	uid, gid := u.ownerOf(header)
	const atSymlinkNoFollow = 0x100
	return u.tolerate(syscall.Fchownat(u.folder, name, uid, gid, atSymlinkNoFollow))
}

// makeHardLink finds the first name by the same walk as every member.
func (u *unpacker) makeHardLink(header *tar.Header, name string) error {
	parts, f := splitMember(header.Linkname)
	if f != nil {
		return f
	}
	if len(parts) == 0 {
		return faultf("invalid_argument", "hostile_archive", "member %q links to nothing", header.Name)
	}
	from, err := openBeneath(u.root, parts[:len(parts)-1], nil)
	if err != nil {
		return err
	}
	defer syscall.Close(from)
	err = linkBeneath(from, parts[len(parts)-1], u.folder, name)
	if err == syscall.EEXIST {
		if err = syscall.Unlinkat(u.folder, name); err == nil {
			err = linkBeneath(from, parts[len(parts)-1], u.folder, name)
		}
	}
	return err
}

func (u *unpacker) ownerOf(header *tar.Header) (uid, gid int) {
	if u.keepOwners && header != nil {
		return header.Uid, header.Gid
	}
	return int(u.at.who.uid), int(u.at.who.gid)
}

func (u *unpacker) chown(fd int, header *tar.Header) error {
	uid, gid := u.ownerOf(header)
	return u.tolerate(syscall.Fchown(fd, uid, gid))
}

// tolerate accepts, without privilege, that files keep their owner.
func (u *unpacker) tolerate(err error) error {
	if err == syscall.EPERM && os.Geteuid() != 0 {
		return nil
	}
	return err
}

func (u *unpacker) modeOf(header *tar.Header) uint32 {
	if u.keepOwners {
		return uint32(header.Mode & 0o7777)
	}
	return uint32(header.Mode & 0o777)
}

type countingReader struct {
	from  io.Reader
	count int64
}

func (c *countingReader) Read(buffer []byte) (int, error) {
	n, err := c.from.Read(buffer)
	c.count += int64(n)
	return n, err
}
