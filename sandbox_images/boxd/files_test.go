package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

type tarMember struct {
	name, link, content string
	kind                byte
}

func packed(t *testing.T, members ...tarMember) []byte {
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, m := range members {
		kind := m.kind
		if kind == 0 {
			kind = tar.TypeReg
		}
		header := &tar.Header{Name: m.name, Linkname: m.link, Typeflag: kind, Mode: 0o755, Size: int64(len(m.content))}
		if err := writer.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write([]byte(m.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

func upload(t *testing.T, b *box, folder string, archive []byte) reply {
	return ask(t, b.routes(), "PUT", ownPrefix+"archive?path="+folder, archive)
}

func TestHostileArchives(t *testing.T) {
	b := start(t, 1, 1)
	outside := t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string][]tarMember{
		"parent step":            {{name: "../evil", content: "x"}},
		"inner parent step":      {{name: "a/../../evil", content: "x"}},
		"absolute":               {{name: outside + "/evil", content: "x"}},
		"through a link":         {{name: "l", link: outside, kind: tar.TypeSymlink}, {name: "l/evil", content: "x"}},
		"through a chain":        {{name: "m", link: outside, kind: tar.TypeSymlink}, {name: "l", link: "m", kind: tar.TypeSymlink}, {name: "l/evil", content: "x"}},
		"folder through a link":  {{name: "l", link: outside, kind: tar.TypeSymlink}, {name: "l/evil/", kind: tar.TypeDir}},
		"folder that is a link":  {{name: "l", link: outside, kind: tar.TypeSymlink}, {name: "l/", kind: tar.TypeDir}},
		"hard link outside":      {{name: "h", link: "../secret", kind: tar.TypeLink}},
		"hard link through link": {{name: "l", link: outside, kind: tar.TypeSymlink}, {name: "h", link: "l/secret", kind: tar.TypeLink}},
		"pipe":                   {{name: "p", kind: tar.TypeFifo}},
		"device":                 {{name: "d", kind: tar.TypeChar}},
	}
	for name, members := range cases {
		t.Run(name, func(t *testing.T) {
			got := upload(t, b, filepath.Join(outside, "in-"+strings.ReplaceAll(name, " ", "-")), packed(t, members...))
			if got.status != 400 || got.code() != "hostile_archive" {
				t.Errorf("%d %s", got.status, got.text)
			}
			if _, err := os.Lstat(filepath.Join(outside, "evil")); !errors.Is(err, os.ErrNotExist) {
				t.Error("written outside")
			}
			if text, err := os.ReadFile(secret); err != nil || string(text) != "untouched" {
				t.Errorf("%q %v", text, err)
			}
		})
	}
}

func TestALinkIsReplacedNotFollowed(t *testing.T) {
	b := start(t, 1, 1)
	folder := t.TempDir()
	secret := filepath.Join(folder, "secret")
	if err := os.WriteFile(secret, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := upload(t, b, folder+"/in", packed(t, tarMember{name: "f", link: secret, kind: tar.TypeSymlink}, tarMember{name: "f", content: "new"}))
	text, err := os.ReadFile(secret)
	if got.status != 200 || err != nil || string(text) != "untouched" {
		t.Errorf("%d %s: %q %v", got.status, got.text, text, err)
	}
	if text, err := os.ReadFile(folder + "/in/f"); err != nil || string(text) != "new" {
		t.Errorf("%q %v", text, err)
	}
}

// TestARaceCannotLeadOutside swaps a folder for a link while an archive is unpacked into it.
func TestARaceCannotLeadOutside(t *testing.T) {
	b := start(t, 1, 1)
	base := t.TempDir()
	outside, target := filepath.Join(base, "outside"), filepath.Join(base, "target")
	for _, folder := range []string{outside, target} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		inner := filepath.Join(target, "d")
		for range 300 {
			os.Rename(inner, filepath.Join(target, "aside"))
			os.Symlink(outside, inner)
			os.Remove(inner)
			os.RemoveAll(filepath.Join(target, "aside"))
		}
	}()
	for i := range 60 {
		members := []tarMember{{name: fmt.Sprintf("d/a%d", i), content: "x"}, {name: "other", content: "x"}, {name: fmt.Sprintf("d/b%d", i), content: "x"}}
		upload(t, b, target, packed(t, members...)) // may be refused, may not escape
	}
	<-done
	if names, err := os.ReadDir(outside); err != nil || len(names) != 0 {
		t.Fatalf("%v escaped, %v", names, err)
	}
}

func TestArchiveRoundTrip(t *testing.T) {
	b := start(t, 1, 1)
	folder := t.TempDir()
	members := []tarMember{
		{name: "d/", kind: tar.TypeDir}, {name: "d/f", content: strings.Repeat("data", 50_000)}, {name: "d/empty"},
		{name: "d/l", link: "/etc/passwd", kind: tar.TypeSymlink}, {name: "d/h", link: "d/f", kind: tar.TypeLink},
		{name: "made/on/the/way", content: "x"},
	}
	if got := upload(t, b, folder+"/new/place", packed(t, members...)); got.status != 200 || got.body["bytes"] != 200_001.0 {
		t.Fatalf("%d %s", got.status, got.text)
	}
	if err := syscall.Mkfifo(folder+"/new/place/pipe", 0o644); err != nil {
		t.Fatal(err)
	}
	got := ask(t, b.routes(), "GET", ownPrefix+"archive?path="+folder+"/new/place", nil)
	var names []string
	reader := tar.NewReader(bytes.NewReader(got.text))
	for {
		header, err := reader.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
		if header.Name == "d/l" && (header.Typeflag != tar.TypeSymlink || header.Linkname != "/etc/passwd") {
			t.Errorf("the link came back as %+v", header)
		}
	}
	want := []string{"d/", "d/empty", "d/f", "d/h", "d/l", "made/", "made/on/", "made/on/the/", "made/on/the/way"}
	if !slices.Equal(names, want) {
		t.Errorf("got %v", names)
	}
	one := ask(t, b.routes(), "GET", ownPrefix+"archive?path="+folder+"/new/place/d/f", nil)
	if header, err := tar.NewReader(bytes.NewReader(one.text)).Next(); err != nil || header.Name != "f" {
		t.Errorf("one file: %v %v", header, err)
	}
}

func TestACutArchiveIsNoSuccess(t *testing.T) {
	b := start(t, 1, 1)
	whole := packed(t, tarMember{name: "f", content: strings.Repeat("x", 5000)})
	if got := upload(t, b, t.TempDir(), whole[:2000]); got.status != 400 || got.code() != "bad_archive" {
		t.Errorf("%d %s", got.status, got.text)
	}
}

// brokenBody fails as a lost connection does.
type brokenBody struct{ sent bool }

func (b *brokenBody) Read(buffer []byte) (int, error) {
	if b.sent {
		return 0, io.ErrUnexpectedEOF
	}
	b.sent = true
	return copy(buffer, "half"), nil
}

func TestAWriteIsWholeOrNothing(t *testing.T) {
	b := start(t, 1, 1)
	folder := t.TempDir()
	path := folder + "/sub/f"
	if got := ask(t, b.routes(), "POST", "/files?path="+path, []byte("old")); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.text)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	b.routes().ServeHTTP(recorder, httptest.NewRequest("POST", "/files?path="+path, &brokenBody{}))
	text, err := os.ReadFile(path)
	if recorder.Code != 400 || err != nil || string(text) != "old" {
		t.Errorf("%d %q %v", recorder.Code, text, err)
	}
	if got := ask(t, b.routes(), "POST", "/files?path="+path, []byte("new")); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.text)
	}
	found, err := os.Stat(path)
	if err != nil || found.Mode().Perm() != 0o755 {
		t.Errorf("the mode of an existing file is %v, %v", found.Mode(), err)
	}
	if names, err := os.ReadDir(folder + "/sub"); err != nil || len(names) != 1 {
		t.Errorf("left behind: %v %v", names, err)
	}
}

func TestFormsNameTheirOwnPaths(t *testing.T) {
	b := start(t, 1, 1)
	folder := t.TempDir()
	form := "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + folder + "/a/x\"\r\n\r\none\r\n" +
		"--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + folder + "/y\"\r\n\r\ntwo\r\n--B--\r\n"
	kind := "multipart/form-data; boundary=B"
	if got := ask(t, b.routes(), "POST", "/files", []byte(form), "Content-Type", kind); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.text)
	}
	for path, want := range map[string]string{"/a/x": "one", "/y": "two"} {
		if text, err := os.ReadFile(folder + path); err != nil || string(text) != want {
			t.Errorf("%s: %q %v", path, text, err)
		}
	}
	if got := ask(t, b.routes(), "POST", "/files?path="+folder+"/z", []byte(form), "Content-Type", kind); got.status != 400 {
		t.Errorf("one path for two files: %d", got.status)
	}
}

func TestReadsThatCouldBlockAreRefused(t *testing.T) {
	b := start(t, 1, 1)
	folder := t.TempDir()
	if err := syscall.Mkfifo(folder+"/pipe", 0o644); err != nil {
		t.Fatal(err)
	}
	for path, status := range map[string]int{"/pipe": 400, "": 400, "/none": 404} {
		if got := ask(t, b.routes(), "GET", "/files?path="+folder+path, nil); got.status != status {
			t.Errorf("%s: %d %s", path, got.status, got.text)
		}
	}
	if got := ask(t, b.routes(), "GET", "/files?path=/proc/self/stat", nil); got.status != 200 || len(got.text) == 0 {
		t.Errorf("a file of unknown size: %d %q", got.status, got.text)
	}
}

func TestEntries(t *testing.T) {
	b := start(t, 1, 1)
	folder := t.TempDir()
	if err := os.WriteFile(folder+"/f", []byte("12345"), 0o640); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"/l": "f", "/gone": "nowhere", "/up": folder} {
		if err := os.Symlink(target, folder+link); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string][2]string{
		"/f": {typeFile, ""}, "/l": {typeFile, folder + "/f"}, "/gone": {typeUnknown, folder + "/nowhere"}, "/up": {typeFolder, folder},
	}
	for path, w := range want {
		made, err := b.describe(folder + path)
		if err != nil || made.Type != w[0] || made.SymlinkTarget != w[1] {
			t.Errorf("%s: %+v %v", path, made, err)
		}
	}
	list := ask(t, b.routes(), "POST", filesystemPrefix+"ListDir", fields{"path": folder, "depth": 5})
	if entries := list.body["entries"].([]any); len(entries) != 4 {
		t.Errorf("a link to the folder was followed: %d entries", len(entries))
	}
	for path, status := range map[string]int{folder + "/f": 400, folder + "/none": 404} {
		if got := ask(t, b.routes(), "POST", filesystemPrefix+"ListDir", fields{"path": path}); got.status != status {
			t.Errorf("%s: %d %s", path, got.status, got.text)
		}
	}
	if got := ask(t, b.routes(), "POST", filesystemPrefix+"Remove", fields{"path": "/tmp/.."}); got.status != 400 {
		t.Errorf("the root: %d", got.status)
	}
}

func TestCopyInPlaceOfARename(t *testing.T) {
	folder := t.TempDir()
	if err := os.MkdirAll(folder+"/a/b", 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(folder+"/a/b/f", []byte("x"), 0o604); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("b/f", folder+"/a/l"); err != nil {
		t.Fatal(err)
	}
	if err := (&copier{ctx: t.Context()}).tree(folder+"/a", folder+"/c"); err != nil {
		t.Fatal(err)
	}
	found, err := os.Stat(folder + "/c/l")
	if err != nil || found.Mode().Perm() != 0o604 {
		t.Errorf("%v %v", found, err)
	}
}
