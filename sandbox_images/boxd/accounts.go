package main

// accounts.go owns reading the box's user and group files, once per change of the files. It never writes them.

import (
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// account is a user as a process needs it.
type account struct {
	name     string
	uid, gid uint32
	home     string
	groups   []uint32
}

type accounts struct {
	passwdPath, groupPath string

	mu         sync.Mutex
	stamp      [2]fileStamp
	byName     map[string]account
	nameOfUID  map[uint32]string
	nameOfGID  map[uint32]string
	groupsOf   map[string][]uint32
	groupsByID map[string]uint32
}

type fileStamp struct {
	ino, size uint64
	mtime     syscall.Timespec
}

func newAccounts(passwdPath, groupPath string) *accounts {
	return &accounts{passwdPath: passwdPath, groupPath: groupPath}
}

// find resolves "name", "uid", "name:group" and "uid:gid". The empty text is root.
func (a *accounts) find(text string) (account, *fault) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refresh()
	userText, groupText, hasGroup := strings.Cut(text, ":")
	if userText == "" {
		userText = "0"
	}
	found, ok := a.byName[userText]
	if !ok {
		uid, err := strconv.ParseUint(userText, 10, 31)
		if err != nil {
			return account{}, faultf("unauthenticated", "unknown_user", "no user %q in the box", userText)
		}
		if name, known := a.nameOfUID[uint32(uid)]; known {
			found = a.byName[name]
		} else {
			found = account{name: userText, uid: uint32(uid), home: "/"}
		}
	}
	found.groups = a.groupsOf[found.name]
	if hasGroup {
		gid, known := a.groupsByID[groupText]
		if !known {
			number, err := strconv.ParseUint(groupText, 10, 31)
			if err != nil {
				return account{}, faultf("unauthenticated", "unknown_user", "no group %q in the box", groupText)
			}
			gid = uint32(number)
		}
		found.gid = gid
	}
	return found, nil
}

// names gives the owner names of a file, or the numbers where there is no name.
func (a *accounts) names(uid, gid uint32) (owner, group string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refresh()
	owner, ok := a.nameOfUID[uid]
	if !ok {
		owner = strconv.FormatUint(uint64(uid), 10)
	}
	group, ok = a.nameOfGID[gid]
	if !ok {
		group = strconv.FormatUint(uint64(gid), 10)
	}
	return owner, group
}

// refresh reads the files again when they have changed. A missing file is an empty one.
func (a *accounts) refresh() {
	stamp := [2]fileStamp{stampOf(a.passwdPath), stampOf(a.groupPath)}
	if a.byName != nil && stamp == a.stamp {
		return
	}
	a.stamp = stamp
	a.byName, a.nameOfUID, a.nameOfGID = map[string]account{}, map[uint32]string{}, map[uint32]string{}
	a.groupsOf, a.groupsByID = map[string][]uint32{}, map[string]uint32{}
	for _, fields := range readTable(a.passwdPath, 6) {
		uid, uidErr := strconv.ParseUint(fields[2], 10, 32)
		gid, gidErr := strconv.ParseUint(fields[3], 10, 32)
		if uidErr != nil || gidErr != nil {
			continue
		}
		if _, taken := a.byName[fields[0]]; !taken {
			a.byName[fields[0]] = account{name: fields[0], uid: uint32(uid), gid: uint32(gid), home: fields[5]}
		}
		if _, taken := a.nameOfUID[uint32(uid)]; !taken {
			a.nameOfUID[uint32(uid)] = fields[0]
		}
	}
	for _, fields := range readTable(a.groupPath, 4) {
		gid, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			continue
		}
		a.groupsByID[fields[0]] = uint32(gid)
		if _, taken := a.nameOfGID[uint32(gid)]; !taken {
			a.nameOfGID[uint32(gid)] = fields[0]
		}
		for _, member := range strings.Split(fields[3], ",") {
			if member != "" {
				a.groupsOf[member] = append(a.groupsOf[member], uint32(gid))
			}
		}
	}
}

func stampOf(path string) fileStamp {
	var stat syscall.Stat_t
	if syscall.Stat(path, &stat) != nil {
		return fileStamp{}
	}
	return fileStamp{ino: stat.Ino, size: uint64(stat.Size), mtime: stat.Mtim}
}

func readTable(path string, columns int) (rows [][]string) {
	file, _, err := openRegular(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 1<<20))
	if err != nil {
		return nil
	}
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Split(strings.TrimSpace(line), ":"); len(fields) >= columns && !strings.HasPrefix(line, "#") {
			rows = append(rows, fields)
		}
	}
	return rows
}
