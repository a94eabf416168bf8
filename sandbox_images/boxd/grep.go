package main

// grep.go owns searching file contents in the box: one line of JSON per matching line, then one that says how much was
// looked at. Reading holds a file slot, matching does not. It never reads what is not a regular file.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

const (
	grepLimitDefault = 1000
	grepLimitMax     = 100_000
	grepFileDefault  = 16 << 20
	grepLineBytes    = 64 << 10 // a longer line is matched up to here
	grepTextBytes    = 4 << 10  // of a line that is sent
	grepBinaryLook   = 8 << 10
	maxGrepPattern   = 4 << 10
)

type grepRequest struct {
	Pattern         string   `json:"pattern"`
	Root            string   `json:"root"`
	Include         []string `json:"include"`
	Limit           int      `json:"limit"`
	MaxBytesPerFile int64    `json:"maxBytesPerFile"`
	IgnoreBinary    *bool    `json:"ignoreBinary"` // absent: true
	IgnoreCase      bool     `json:"ignoreCase"`
}

type grepMatch struct {
	Path   string `json:"path"`
	Line   int64  `json:"line"`
	Text   string `json:"text"`
	Offset int64  `json:"offset"` // of the line's first byte
	Cut    bool   `json:"cut,omitempty"`
}

type grepEnd struct {
	Done       bool  `json:"done"`
	Files      int64 `json:"files"`
	Matches    int   `json:"matches"`
	Unreadable int64 `json:"unreadable"`
	Truncated  bool  `json:"truncated"`
}

type search struct {
	box          *box
	root         string
	pattern      *regexp.Regexp
	include      []glob
	limit        int
	fileBytes    int64
	ignoreBinary bool
	out          *json.Encoder
	end          grepEnd

	opened *os.File // the file that the walk has just found
	name   string
}

func (b *box) serveGrep(w http.ResponseWriter, r *http.Request) {
	var request grepRequest
	f := readJSON(r, maxControlBody, &request)
	var s *search
	if f == nil {
		s, f = b.newSearch(r, &request)
	}
	if f != nil {
		writeFault(w, f)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	buffered := bufio.NewWriterSize(w, chunkBytes)
	s.out = json.NewEncoder(buffered)
	s.out.SetEscapeHTML(false)
	walk := walker{ctx: r.Context(), slots: b.blocking.files, visit: s.open, after: s.searchOpened}
	err := walk.walk(s.root)
	if err != nil && err != errWalkOver {
		if !walk.begun {
			writeFault(w, fileFault(err, s.root))
			return
		}
		panic(http.ErrAbortHandler) // the client sees a cut stream, not a short result
	}
	s.end.Done = true
	if s.out.Encode(s.end) == nil {
		buffered.Flush() // a client that has gone needs no answer
	}
}

func (b *box) newSearch(r *http.Request, request *grepRequest) (*search, *fault) {
	at, f := b.locate(r, firstOf(request.Root, "."))
	if f != nil {
		return nil, f
	}
	text := request.Pattern
	if text == "" || len(text) > maxGrepPattern {
		return nil, faultf("invalid_argument", "bad_pattern", "a pattern of %d bytes", len(text))
	}
	if request.IgnoreCase {
		text = "(?i)" + text
	}
	pattern, err := regexp.Compile(text)
	if err != nil {
		return nil, faultf("invalid_argument", "bad_pattern", "%v", err)
	}
	s := &search{
		box: b, root: at.path, pattern: pattern, ignoreBinary: request.IgnoreBinary == nil || *request.IgnoreBinary,
		limit: limitBetween(request.Limit, grepLimitDefault, grepLimitMax), fileBytes: grepFileDefault,
	}
	if request.MaxBytesPerFile > 0 {
		s.fileBytes = request.MaxBytesPerFile
	}
	for _, each := range request.Include {
		if !strings.Contains(each, "/") {
			each = "**/" + each
		}
		parts, f := parseGlob(each)
		if f != nil {
			return nil, f
		}
		s.include = append(s.include, parts)
	}
	return s, nil
}

func (s *search) wants(name string) bool {
	if name == "" {
		name = path.Base(s.root)
	}
	for _, each := range s.include {
		if each.matches(name) {
			return true
		}
	}
	return len(s.include) == 0
}

// open opens a file that is to be searched, by the descriptor that the walk holds.
func (s *search) open(entry *found) (descend bool, err error) {
	if entry.kind() != syscall.S_IFREG || !s.wants(entry.name) {
		return true, nil
	}
	s.name = filepath.Join(s.root, entry.name)
	if s.opened, err = os.Open(entry.handle()); err != nil {
		s.end.Unreadable++
	}
	return false, nil
}

func (s *search) searchOpened() error {
	if s.opened == nil {
		return nil
	}
	defer func() {
		s.opened.Close()
		s.opened = nil
	}()
	s.end.Files++
	content := &slottedFile{file: s.opened, slots: s.box.blocking.files}
	lines := bufio.NewReaderSize(io.LimitReader(content, s.fileBytes), grepLineBytes)
	if s.ignoreBinary {
		if head, _ := lines.Peek(grepBinaryLook); bytes.IndexByte(head, 0) >= 0 {
			return nil
		}
	}
	return s.lines(lines)
}

func (s *search) lines(lines *bufio.Reader) error {
	var offset int64
	for number := int64(1); ; number++ {
		line, err := lines.ReadSlice('\n')
		length, isPart := int64(len(line)), err == bufio.ErrBufferFull
		text := bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		if length > 0 && s.pattern.Match(text) {
			if err := s.tell(text, number, offset, isPart); err != nil {
				return err
			}
		}
		for err == bufio.ErrBufferFull {
			line, err = lines.ReadSlice('\n')
			length += int64(len(line))
		}
		if err != nil {
			if err != io.EOF {
				s.end.Unreadable++
			}
			return nil
		}
		offset += length
	}
}

func (s *search) tell(text []byte, number, offset int64, isPart bool) error {
	if s.end.Matches >= s.limit {
		s.end.Truncated = true
		return errWalkOver
	}
	s.end.Matches++
	shown := text[:min(len(text), grepTextBytes)]
	return s.out.Encode(grepMatch{
		Path: s.name, Line: number, Text: string(shown), Offset: offset, Cut: isPart || len(shown) < len(text),
	})
}
