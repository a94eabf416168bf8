package main

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func manifestOf(t *testing.T, root string) map[string]manifestEntry {
	t.Helper()
	b, _ := sharedBox()
	r := ask(t, b.routes(), "GET", ownPrefix+"manifest?hash=1&path="+root, nil)
	made := map[string]manifestEntry{}
	for _, line := range strings.Split(strings.TrimSpace(string(r.text)), "\n") {
		var entry manifestEntry
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		made[entry.Path] = entry
	}
	return made
}

func TestManifest(t *testing.T) {
	root := filesIn(t, map[string]string{"a": "abc", "d/b": ""})
	must(t, os.Link(root+"/a", root+"/d/same"))
	must(t, os.Symlink("nowhere", root+"/l"))
	must(t, syscall.Mkfifo(root+"/p", 0o640))
	must(t, os.WriteFile(root+"/x\xff", nil, 0o600))
	must(t, os.Chtimes(root+"/a", time.Time{}, time.Unix(5, 123456789)))
	made := manifestOf(t, root)
	if len(made) != 8 {
		t.Fatalf("%d entries: %v", len(made), made)
	}
	a := made["a"]
	if a.Type != "file" || a.Size != 3 || a.Mode != 0o644 || a.MtimeNs != 5_123456789 || a.Links != 2 ||
		a.Inode != made["d/same"].Inode || !strings.HasPrefix(a.SHA256, "ba7816bf8f01cfea") {
		t.Errorf("%+v", a)
	}
	if l := made["l"]; l.Type != "symlink" || l.Link != "nowhere" {
		t.Errorf("%+v", l)
	}
	if made["p"].Type != "pipe" || made["."].Type != "folder" || string(made["x\uFFFD"].PathB64) != "x\xff" {
		t.Errorf("%v", made)
	}
	b, _ := sharedBox()
	if none := ask(t, b.routes(), "GET", ownPrefix+"manifest?path="+root+"/none", nil); none.status != 404 {
		t.Errorf("%s", none.text)
	}
}

func TestMetadataSurvivesThroughItsFile(t *testing.T) {
	root := filesIn(t, map[string]string{"a": "1", "d/b": "2", "whole": "3", "changed": "4"})
	must(t, os.Symlink("a", root+"/l"))
	hasXattrs := setXattr(root+"/a", "user.colour", []byte{0, 255}) == nil
	must(t, os.Chtimes(root+"/whole", time.Time{}, time.Unix(7, 0)))
	must(t, os.WriteFile(root+"/y\xfe", nil, 0o600))
	before := manifestOf(t, root)
	side := root + "/side"
	saved, err := saveMetadata(t.Context(), newSlots(2), root, side)
	must(t, err)
	found, err := os.Stat(side)
	must(t, err)
	if saved.Truncated || saved.Entries < 5 || saved.Bytes != found.Size() || found.Mode().Perm() != 0o600 {
		t.Errorf("%+v, %d bytes", saved, found.Size())
	}
	for name, entry := range before { // what an image does to a tree
		second := syscall.Timespec{Sec: entry.MtimeNs / 1e9}
		rootFD, err := syscall.Open(root, openFolder, 0)
		must(t, err)
		must(t, setTimeAt(rootFD, firstOf(string(entry.PathB64), name), second.Nano()))
		must(t, syscall.Close(rootFD))
	}
	must(t, os.Chtimes(root+"/changed", time.Time{}, time.Unix(9, 9)))
	if hasXattrs {
		must(t, setXattr(root+"/a", "user.colour", []byte("lost")))
	}
	done, err := restoreMetadata(root, side)
	must(t, err)
	if done.Skipped != 1 || done.Restored != saved.Entries-1 {
		t.Errorf("%+v of %+v", done, saved)
	}
	if _, err := os.Lstat(side); !os.IsNotExist(err) {
		t.Errorf("the file stays: %v", err)
	}
	after := manifestOf(t, root)
	for name, was := range before {
		is := after[name]
		if name != "changed" && name != "." && (is.MtimeNs != was.MtimeNs || string(is.Xattrs["user.colour"]) != string(was.Xattrs["user.colour"])) {
			t.Errorf("%s was %+v, is %+v", name, was, is)
		}
	}
	if again, err := restoreMetadata(root, side); again != nil || err != nil {
		t.Errorf("%v %v", again, err)
	}
}

func TestMetadataOfAnotherVersionIsLeft(t *testing.T) {
	root := t.TempDir()
	for _, text := range []string{`{"version":2}`, `{"p":"a","m":1}`, "x"} {
		must(t, os.WriteFile(root+"/side", []byte(text+"\n"), 0o600))
		if _, err := restoreMetadata(root, root+"/side"); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	for _, hostile := range []string{"../x", "/etc/passwd", "l/x"} {
		must(t, os.RemoveAll(root+"/l"))
		must(t, os.Symlink("/etc", root+"/l"))
		line := sideEntry{Path: hostile, MtimeNs: 5}
		rootFD, err := syscall.Open(root, openFolder, 0)
		must(t, err)
		if line.restore(&restoring{root: rootFD, firsts: map[uint64]string{}}) {
			t.Errorf("%s is restored", hostile)
		}
		must(t, syscall.Close(rootFD))
	}
}

func TestTheBirthOfAFile(t *testing.T) {
	path := t.TempDir() + "/f"
	before := time.Now().Add(-time.Second)
	must(t, os.WriteFile(path, nil, 0o600))
	born, known := bornAt(path)
	if known && (born.Before(before) || born.After(time.Now().Add(time.Second))) {
		t.Errorf("born at %v", born)
	}
	if _, known := bornAt(path + "none"); known {
		t.Error("what is not there has a birth time")
	}
}

func TestPartedHardLinksAreMadeAgain(t *testing.T) {
	root := filesIn(t, map[string]string{"a": "1", "d/other": "x"})
	must(t, os.Link(root+"/a", root+"/d/b"))
	must(t, os.Chtimes(root+"/a", time.Time{}, time.Unix(5, 123)))
	must(t, os.Chtimes(root+"/d", time.Time{}, time.Unix(6, 456)))
	side := root + "/side"
	_, err := saveMetadata(t.Context(), newSlots(2), root, side)
	must(t, err)
	must(t, os.Remove(root+"/d/b")) // what a layered file system does when one of the names is touched
	must(t, os.WriteFile(root+"/d/b", []byte("1"), 0o600))
	for _, name := range []string{"/a", "/d/b"} {
		must(t, os.Chtimes(root+name, time.Time{}, time.Unix(5, 0)))
	}
	must(t, os.Chtimes(root+"/d", time.Time{}, time.Unix(6, 0)))
	_, err = restoreMetadata(root, side)
	must(t, err)
	after := manifestOf(t, root)
	if after["a"].Inode != after["d/b"].Inode || after["a"].Links != 2 || after["d/b"].MtimeNs != 5e9+123 {
		t.Errorf("%+v and %+v", after["a"], after["d/b"])
	}
	if after["d"].MtimeNs != 6e9+456 {
		t.Errorf("the folder's time is %d", after["d"].MtimeNs)
	}
}

func TestTimesOfLargeFilesAreNotWorthACopy(t *testing.T) {
	state := &restoring{firsts: map[uint64]string{}}
	file := func(size int64) *found { return &found{stat: syscall.Stat_t{Mode: syscall.S_IFREG, Size: size}} }
	if state.mayTouch(file(maxTimedFileBytes+1)) || !state.mayTouch(&found{stat: syscall.Stat_t{Mode: syscall.S_IFDIR, Size: 1 << 40}}) {
		t.Error("a large file is copied, or a folder is not touched")
	}
	for copied := int64(0); copied+maxTimedFileBytes <= maxCopyUpBytes; copied += maxTimedFileBytes {
		if !state.mayTouch(file(maxTimedFileBytes)) {
			t.Errorf("not after %d bytes", copied)
		}
	}
	if state.mayTouch(file(1)) {
		t.Error("there is no end to it")
	}
}
