package main

// glob.go owns finding paths by pattern: * ? [..] within one component, ** for any number of them. It goes only into
// folders below which the pattern can still match.

import (
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	globLimitDefault = 10_000
	globLimitMax     = 100_000
	maxGlobParts     = 64
)

type globRequest struct {
	Pattern string `json:"pattern"`
	Root    string `json:"root"`
	Limit   int    `json:"limit"`
}

// glob is a pattern in components.
type glob []string

func parseGlob(pattern string) (glob, *fault) {
	if pattern == "" || strings.ContainsRune(pattern, 0) {
		return nil, faultf("invalid_argument", "bad_pattern", "the pattern is empty or holds a zero byte")
	}
	var parts glob
	for _, part := range strings.Split(pattern, "/") {
		switch part {
		case "", ".":
			continue
		case "..":
			return nil, faultf("invalid_argument", "bad_pattern", "%q leads out of the root", pattern)
		}
		if _, err := path.Match(part, ""); err != nil {
			return nil, faultf("invalid_argument", "bad_pattern", "%q: %v", part, err)
		}
		parts = append(parts, part)
	}
	if len(parts) > maxGlobParts {
		return nil, faultf("invalid_argument", "bad_pattern", "more than %d components", maxGlobParts)
	}
	return parts, nil
}

// places are the components of a pattern that may match next, as bits.
type places uint64

// begin is where every match begins.
func (g glob) begin() places { return g.from(0) }

// from adds the places that are reached from i without a component: ** matches none as well.
func (g glob) from(i int) places {
	at := places(1) << i
	for ; i < len(g) && g[i] == "**"; i++ {
		at |= places(1) << (i + 1)
	}
	return at
}

// step goes over one component of a path.
func (g glob) step(at places, name string) (next places) {
	for i, part := range g {
		if at&(1<<i) == 0 {
			continue
		}
		if part == "**" {
			next |= g.from(i)
		} else if isMatch, _ := path.Match(part, name); isMatch { // checked by parseGlob
			next |= g.from(i + 1)
		}
	}
	return next
}

func (g glob) isWhole(at places) bool { return at&(1<<len(g)) != 0 }
func (g glob) goesOn(at places) bool  { return at&(1<<len(g)-1) != 0 }

// matches is for a whole relative path.
func (g glob) matches(name string) bool {
	at := g.begin()
	if name != "" {
		for _, part := range strings.Split(name, "/") {
			at = g.step(at, part)
		}
	}
	return g.isWhole(at)
}

func (b *box) serveGlob(w http.ResponseWriter, r *http.Request) {
	var request globRequest
	if f := readJSON(r, maxControlBody, &request); f != nil {
		writeFault(w, f)
		return
	}
	root := request.Root
	if root == "" && strings.HasPrefix(request.Pattern, "/") {
		root = "/"
	}
	at, f := b.locate(r, firstOf(root, "."))
	if f != nil {
		writeFault(w, f)
		return
	}
	pattern, f := parseGlob(request.Pattern)
	if f != nil {
		writeFault(w, f)
		return
	}
	paths, isCut, err := b.findMatches(r, at.path, pattern, limitBetween(request.Limit, globLimitDefault, globLimitMax))
	if err != nil {
		writeFault(w, fileFault(err, at.path))
		return
	}
	writeJSON(w, http.StatusOK, event{"paths": paths, "truncated": isCut})
}

func (b *box) findMatches(r *http.Request, root string, pattern glob, limit int) (paths []string, isCut bool, err error) {
	paths = []string{}
	reached := map[string]places{} // of the folders on the way down
	w := walker{ctx: r.Context(), slots: b.blocking.files}
	w.visit = func(entry *found) (bool, error) {
		at := pattern.begin()
		if entry.name != "" {
			at = pattern.step(reached[path.Dir("/"+entry.name)], path.Base(entry.name))
		}
		if entry.name != "" && pattern.isWhole(at) {
			if len(paths) >= limit {
				isCut = true
				return false, errWalkOver
			}
			paths = append(paths, filepath.Join(root, entry.name))
		}
		if entry.kind() != syscall.S_IFDIR || !pattern.goesOn(at) {
			return false, nil
		}
		reached[path.Clean("/"+entry.name)] = at
		return true, nil
	}
	if err = w.walk(root); err == errWalkOver {
		err = nil
	}
	slices.Sort(paths)
	return paths, isCut, err
}

// errWalkOver ends a walk that has found enough.
var errWalkOver = faultf("aborted", "", "enough")

// limitBetween is the default for zero and never more than the most.
func limitBetween(asked, usual, most int) int {
	if asked <= 0 {
		return usual
	}
	return min(asked, most)
}
