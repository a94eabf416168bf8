package main

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

func edit(t *testing.T, name string, request any) reply {
	t.Helper()
	b, _ := sharedBox()
	return ask(t, b.routes(), "POST", filesPrefix+name, request)
}

func TestAppend(t *testing.T) {
	path := t.TempDir() + "/deep/log"
	for i, want := range []string{"one", "onetwo"} {
		got := edit(t, "append?path="+path, []byte([]string{"one", "two"}[i]))
		content, err := os.ReadFile(path)
		if err != nil || got.status != 200 || string(content) != want || got.body["sizeBytes"] != float64(len(want)) {
			t.Errorf("%v %q %v", got.body, content, err)
		}
	}
	if err := syscall.Mkfifo(path+".pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	if got := edit(t, "append?path="+path+".pipe", []byte("x")); got.code() != "not_a_file" {
		t.Errorf("%v", got.body)
	}
}

func TestCopy(t *testing.T) {
	root := filesIn(t, map[string]string{"d/a": "text", "d/e/b": "more", "old": "old"})
	if err := os.Symlink("a", root+"/d/l"); err != nil {
		t.Fatal(err)
	}
	copied := func(from, to string, recursive bool) reply {
		return edit(t, "copy", fields{"source": root + from, "destination": root + to, "recursive": recursive})
	}
	if got := copied("/d/a", "/old", false); got.status != 200 {
		t.Errorf("%v", got.body)
	}
	if got := copied("/d", "/x/y", true); got.status != 200 {
		t.Errorf("%v", got.body)
	}
	for path, want := range map[string]string{"/old": "text", "/x/y/e/b": "more", "/x/y/l": "text"} {
		if content, err := os.ReadFile(root + path); err != nil || string(content) != want {
			t.Errorf("%s: %q %v", path, content, err)
		}
	}
	for _, c := range []struct{ from, to, code string }{
		{"/d", "/z", "is_a_folder"}, {"/none", "/z", "no_such_path"}, {"/old", "/d", "path_exists"},
	} {
		if got := copied(c.from, c.to, false); got.code() != c.code {
			t.Errorf("%v: %v", c, got.body)
		}
	}
	if got := copied("/d", "/d/e/inside", true); got.code() != "bad_path" {
		t.Errorf("%v", got.body)
	}
	names, err := os.ReadDir(root)
	if err != nil || len(names) != 3 {
		t.Errorf("%v %v", names, err)
	}
}

func TestChmodChownSymlink(t *testing.T) {
	root := filesIn(t, map[string]string{"d/a": "", "outside": ""})
	if err := os.Symlink("../outside", root+"/d/l"); err != nil {
		t.Fatal(err)
	}
	if got := edit(t, "chmod", fields{"path": root + "/d", "mode": 0o700, "recursive": true}); got.status != 200 {
		t.Errorf("%v", got.body)
	}
	for path, want := range map[string]os.FileMode{"/d": 0o700, "/d/a": 0o700, "/outside": 0o644} {
		if found, err := os.Stat(root + path); err != nil || found.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, found.Mode(), err)
		}
	}
	if got := edit(t, "chmod", fields{"path": root, "mode": 0o10000}); got.code() != "bad_mode" {
		t.Errorf("%v", got.body)
	}
	if got := edit(t, "chown", fields{"path": root + "/d", "user": ownUser(), "recursive": true}); got.status != 200 {
		t.Errorf("%v", got.body)
	}
	if got := edit(t, "chown", fields{"path": root + "/d"}); got.status != 401 && got.status != 400 {
		t.Errorf("%v", got.body)
	}
	made := edit(t, "symlink", fields{"path": root + "/new/link", "target": "nowhere"})
	entry, _ := made.body["entry"].(map[string]any)
	if entry["type"] != typeLink || entry["symlinkTarget"] != "nowhere" || !strings.HasPrefix(entry["permissions"].(string), "l") {
		t.Errorf("%v", made.body)
	}
	if again := edit(t, "symlink", fields{"path": root + "/new/link", "target": "x"}); again.code() != "path_exists" {
		t.Errorf("%v", again.body)
	}
}

func TestLinksInStat(t *testing.T) {
	b, _ := sharedBox()
	root := filesIn(t, map[string]string{"a": "text"})
	if err := os.Symlink("a", root+"/l"); err != nil {
		t.Fatal(err)
	}
	stat := func(ours fields) map[string]any {
		got := ask(t, b.routes(), "POST", filesystemPrefix+"Stat", fields{"path": root + "/l", "sandkeeper": ours})
		return got.body["entry"].(map[string]any)
	}
	through, itself := stat(nil), stat(fields{"noFollow": true})
	if through["isSymlink"] != true || through["type"] != typeFile || through["size"] != 4.0 {
		t.Errorf("%v", through)
	}
	if itself["type"] != typeLink || itself["symlinkTarget"] != "a" || itself["size"] != 1.0 {
		t.Errorf("%v", itself)
	}
}

func TestMetadataOfUploads(t *testing.T) {
	b, _ := sharedBox()
	path := t.TempDir() + "/f"
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := setXattr(path, "user.e2b.old", []byte("gone")); err == syscall.ENOTSUP {
		t.Skip("no extended attributes here")
	}
	put := func(headers ...string) reply {
		return ask(t, b.routes(), "POST", "/files?path="+path, []byte("x"), headers...)
	}
	if got := put("X-Metadata-Colour", "red", "X-Metadata-Empty", ""); got.status != 200 {
		t.Fatalf("%s", got.text)
	}
	got := ask(t, b.routes(), "POST", filesystemPrefix+"Stat", fields{"path": path})
	entry := got.body["entry"].(map[string]any)
	if metadata, _ := entry["metadata"].(map[string]any); len(metadata) != 2 || metadata["colour"] != "red" {
		t.Errorf("%v", entry)
	}
	if got := put("X-Metadata-Big", strings.Repeat("x", maxMetadataBytes)); got.code() != "metadata_too_large" {
		t.Errorf("%s", got.text)
	}
}
