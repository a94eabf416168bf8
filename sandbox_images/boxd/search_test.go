package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// filesIn makes files from names; a name that ends with a slash is a folder.
func filesIn(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestGlobPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, yes, no string
	}{
		{"*.py", "a.py .py", "a.pyc d/a.py"},
		{"**/*.py", "a.py d/a.py d/e/a.py", "a.txt"},
		{"**", "a a/b a/b/c", ""},
		{"a/**/b", "a/b a/x/b a/x/y/b", "b a x/a/b"},
		{"a/**", "a a/b a/b/c", "b"},
		{"**/x/**/y", "x/y a/x/b/c/y", "y x"},
		{"./d//[ab]?", "d/a1 d/b2", "d/c1 d/a"},
		{"**/**/a", "a b/a", "b"},
	} {
		g, f := parseGlob(c.pattern)
		if f != nil {
			t.Fatal(f)
		}
		for _, name := range strings.Fields(c.yes) {
			if !g.matches(name) {
				t.Errorf("%s does not match %s", c.pattern, name)
			}
		}
		for _, name := range strings.Fields(c.no) {
			if g.matches(name) {
				t.Errorf("%s matches %s", c.pattern, name)
			}
		}
	}
	for _, bad := range []string{"", "a/../b", "[", strings.Repeat("a/", maxGlobParts+1), "a\x00"} {
		if _, f := parseGlob(bad); f == nil || f.detail != "bad_pattern" {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestGlobFindsSortedAndFollowsNothing(t *testing.T) {
	b, _ := sharedBox()
	root := filesIn(t, map[string]string{"b/2.go": "", "a/1.go": "", "a/deep/3.go": "", "a/x.txt": "", ".hidden/4.go": ""})
	if err := os.Symlink(root, root+"/loop"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(root, root+"/l.go"); err != nil {
		t.Fatal(err)
	}
	find := func(request fields) reply { return ask(t, b.routes(), "POST", filesPrefix+"glob", request) }
	got := find(fields{"pattern": "**/*.go", "root": root})
	want := []string{".hidden/4.go", "a/1.go", "a/deep/3.go", "b/2.go", "l.go"}
	paths, _ := got.body["paths"].([]any)
	if len(paths) != len(want) || got.body["truncated"] != false {
		t.Fatalf("%v", got.body)
	}
	for i, name := range want {
		if paths[i] != filepath.Join(root, name) {
			t.Errorf("%v is not %s", paths[i], name)
		}
	}
	if cut := find(fields{"pattern": "**/*.go", "root": root, "limit": 2}); len(cut.body["paths"].([]any)) != 2 || cut.body["truncated"] != true {
		t.Errorf("%v", cut.body)
	}
	if through := find(fields{"pattern": "*.go", "root": root + "/loop/a"}); len(through.body["paths"].([]any)) != 1 {
		t.Errorf("a link as the root is followed: %v", through.body)
	}
	if none := find(fields{"pattern": "*", "root": root + "/none"}); none.status != 404 {
		t.Errorf("%v", none.body)
	}
}

func grepAll(t *testing.T, request fields) (matches []grepMatch, end grepEnd, r reply) {
	t.Helper()
	b, _ := sharedBox()
	r = ask(t, b.routes(), "POST", filesPrefix+"grep", request)
	for _, line := range strings.Split(strings.TrimSpace(string(r.text)), "\n") {
		var match grepMatch
		if strings.HasPrefix(line, `{"done"`) {
			if err := json.Unmarshal([]byte(line), &end); err != nil {
				t.Fatal(err)
			}
		} else if err := json.Unmarshal([]byte(line), &match); err == nil && match.Path != "" {
			matches = append(matches, match)
		}
	}
	return matches, end, r
}

func TestGrep(t *testing.T) {
	long := strings.Repeat("x", grepLineBytes+10)
	root := filesIn(t, map[string]string{
		"a.txt": "one\r\ntwo needle\r\n\nneedle <3\nlast needle", "d/b.py": "needle = 1\n", "bin": "needle\x00\n",
		"long": "needle" + long + "needle\nneedle\n",
	})
	if err := os.Symlink(root+"/a.txt", root+"/link.txt"); err != nil {
		t.Fatal(err)
	}
	found, end, _ := grepAll(t, fields{"pattern": `needle\b`, "root": root, "include": []string{"*.txt", "d/*"}})
	if len(found) != 4 || !end.Done || end.Files != 2 || end.Truncated || end.Matches != 4 {
		t.Fatalf("%+v %+v", found, end)
	}
	if first := found[0]; first != (grepMatch{Path: root + "/a.txt", Line: 2, Text: "two needle", Offset: 5}) {
		t.Errorf("%+v", first)
	}
	if third := found[1]; third.Line != 4 || third.Offset != 18 || third.Text != "needle <3" {
		t.Errorf("%+v", third)
	}
	found, _, _ = grepAll(t, fields{"pattern": "^needle", "root": root + "/long"})
	if len(found) != 2 || !found[0].Cut || len(found[0].Text) != grepTextBytes ||
		found[1].Line != 2 || found[1].Offset != int64(len(long))+13 {
		t.Errorf("%d matches", len(found))
	}
	found, end, _ = grepAll(t, fields{"pattern": "NEEDLE", "root": root, "limit": 1, "ignoreCase": true, "ignoreBinary": false})
	if len(found) != 1 || !end.Truncated {
		t.Errorf("%+v %+v", found, end)
	}
	if _, _, r := grepAll(t, fields{"pattern": "(", "root": root}); r.code() != "bad_pattern" {
		t.Errorf("%v", r.body)
	}
	if _, _, r := grepAll(t, fields{"pattern": "x", "root": root + "/none"}); r.status != 404 {
		t.Errorf("%d %v", r.status, r.body)
	}
}
