package main

// fuzz_test.go holds what must be true of any bytes a caller may send: frames, paths, archives, patterns, saved
// metadata. `go test` runs the seeds; `go test -fuzz FuzzArchives` searches.

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

func FuzzFrames(f *testing.F) {
	for _, seed := range [][]byte{
		nil, frameOf(0, "{}"), frameOf(2, "{}"), frameOf(0, `{"start":{"process":{"pid":1}}}`), {0, 255, 255, 255, 255},
		append(frameOf(0, `{"keepalive":{}}`), frameOf(0, `{"data":{"input":{"stdin":"AA=="}}}`)...), frameOf(1, "x"), {0, 0},
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		rest := bytes.NewReader(body)
		for {
			before := rest.Len()
			flag, text, refusal := readEnvelope(rest)
			if refusal != nil || text == nil {
				break
			}
			if flag != flagMessage && flag != flagEnd || len(text) != before-rest.Len()-5 {
				t.Fatalf("flag %d, %d bytes of %d", flag, len(text), before-rest.Len())
			}
		}
		var into startRequest
		request := httptest.NewRequest("POST", "/", bytes.NewReader(body))
		if refusal := readRequestFrame(request, &into); refusal == nil {
			if _, refusal := planOf(&into, firstExtra(into.Sandkeeper), request); refusal != nil && refusal.httpStatus() != 400 {
				t.Fatalf("%v", refusal)
			}
		}
	})
}

func firstExtra(extra *startExtra) *startExtra {
	if extra == nil {
		return &startExtra{}
	}
	return extra
}

func FuzzPaths(f *testing.F) {
	for _, seed := range []string{"", "/", "..", "../..", "~", "~/..", "a//b/./c/../..", "/a/../../b", "x\x00", "~x", strings.Repeat("../", 300)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		resolved := resolvePath(text, "/base", "/home/u")
		if !strings.HasPrefix(resolved, "/") || resolved != path.Clean(resolved) || strings.Contains("/"+resolved+"/", "/../") {
			t.Fatalf("%q is %q", text, resolved)
		}
		parts, refusal := splitMember(text)
		if refusal == nil {
			for _, part := range parts {
				if part == "" || part == "." || part == ".." || strings.ContainsAny(part, "/\x00") {
					t.Fatalf("%q has the part %q", text, part)
				}
			}
			if len(parts) > maxPathDepth || strings.HasPrefix(text, "/") {
				t.Fatalf("%q is accepted", text)
			}
		}
	})
}

func FuzzGlobs(f *testing.F) {
	f.Add("**/a*/[b-d]?", "x/ab/c1")
	f.Add("**/**/**", "")
	f.Add("a", "a")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		g, refusal := parseGlob(pattern)
		if refusal != nil {
			return
		}
		g.matches(name)
		if len(g) == 1 && g[0] != "**" && !strings.Contains(name, "/") && name != "" {
			if want, _ := path.Match(g[0], name); want != g.matches(name) {
				t.Fatalf("%q and %q: not %v", pattern, name, want)
			}
		}
	})
}

// FuzzArchives extracts anything and looks whether something has changed outside.
func FuzzArchives(f *testing.F) {
	for _, members := range [][]*tar.Header{
		{{Name: "a", Size: 1, Typeflag: tar.TypeReg}},
		{{Name: "../x", Size: 1, Typeflag: tar.TypeReg}},
		{{Name: "l", Linkname: "..", Typeflag: tar.TypeSymlink}, {Name: "l/x", Size: 1, Typeflag: tar.TypeReg}},
		{{Name: "h", Linkname: "../outside", Typeflag: tar.TypeLink}, {Name: "h", Size: 1, Typeflag: tar.TypeReg}},
		{{Name: "d/", Mode: 0o7777, Typeflag: tar.TypeDir}, {Name: "d", Linkname: "/", Typeflag: tar.TypeSymlink}},
	} {
		var packed bytes.Buffer
		writer := tar.NewWriter(&packed)
		for _, header := range members {
			must(&testing.T{}, writer.WriteHeader(header))
			writer.Write(make([]byte, header.Size))
		}
		writer.Close()
		f.Add(packed.Bytes())
		f.Add(packed.Bytes()[:packed.Len()/3])
	}
	f.Add([]byte("no archive"))
	b, err := newBox(boxConfig{birthID: testBirth})
	if err != nil {
		f.Fatal(err)
	}
	if refusal := b.begin(1, 1, settings{user: ownUser(), workdir: "/"}); refusal != nil {
		f.Fatal(refusal)
	}
	f.Fuzz(func(t *testing.T, packed []byte) {
		root := t.TempDir()
		must(t, os.WriteFile(root+"/outside", []byte("whole"), 0o644))
		must(t, os.Mkdir(root+"/in", 0o755))
		got := ask(t, b.routes(), "PUT", ownPrefix+"archive?path="+root+"/in", packed)
		if got.status != http.StatusOK && got.status != http.StatusBadRequest && got.status != http.StatusConflict {
			t.Fatalf("%d %s", got.status, got.text)
		}
		names, err := os.ReadDir(root)
		must(t, err)
		content, err := os.ReadFile(root + "/outside")
		if err != nil || string(content) != "whole" || len(names) != 2 {
			t.Fatalf("outside has changed: %q %v %v", content, names, err)
		}
		must(t, filepath.Walk(root+"/in", func(path string, found os.FileInfo, err error) error {
			if err == nil && found.IsDir() {
				err = os.Chmod(path, 0o700) // so that it can be removed
			}
			return err
		}))
	})
}

func FuzzSavedMetadata(f *testing.F) {
	for _, seed := range []string{
		`{"version":1}` + "\n" + `{"p":"a","m":1}`, `{"version":1}` + "\n" + `{"p":"../outside","m":5,"x":{"user.a":"AA=="}}`,
		`{"version":1}` + "\n" + `{"b":"L2V0Yw==","x":{"security.capability":"AA=="}}`, `{"version":9}`, "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		root := t.TempDir()
		must(t, os.WriteFile(root+"/outside", nil, 0o644))
		must(t, os.Mkdir(root+"/in", 0o755))
		must(t, os.WriteFile(root+"/in/a", nil, 0o644))
		must(t, os.WriteFile(root+"/side", text, 0o600))
		before, err := os.Stat(root + "/outside")
		must(t, err)
		restoreMetadata(root+"/in", root+"/side")
		after, err := os.Stat(root + "/outside")
		must(t, err)
		if !after.ModTime().Equal(before.ModTime()) {
			t.Fatal("outside has changed")
		}
	})
}

func FuzzStatLines(f *testing.F) {
	f.Add([]byte("77 (a) R 1 (x)) S 5 6 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 100 200"))
	f.Add([]byte("oom_kill 3\nmax\n"))
	f.Fuzz(func(_ *testing.T, text []byte) {
		parseStat(1, text)
		parseOOMKills(text)
		parseCgroupValue(text)
		var line sideEntry
		if json.Unmarshal(text, &line) == nil {
			splitMember(line.Path)
		}
	})
}
