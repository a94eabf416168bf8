package main

// support_test.go owns the box that tests talk to over HTTP. There is one for the whole test process, because its
// reaper waits for every child.

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
)

const testBirth = "birth-test"

var sharedBox = sync.OnceValues(func() (*box, *httptest.Server) {
	b := freshBox(nil)
	go b.reaper.watch()
	if f := b.begin(1, 1, settings{user: ownUser(), workdir: "/tmp"}); f != nil {
		panic(f)
	}
	return b, httptest.NewServer(b.routes())
})

func ownUser() string { return strconv.Itoa(os.Getuid()) + ":" + strconv.Itoa(os.Getgid()) }

// freshBox has no reaper at work: it may not start processes.
func freshBox(t *testing.T) *box {
	b, err := newBox(boxConfig{birthID: testBirth, capBounding: "00", environ: []string{"PATH=" + os.Getenv("PATH")}})
	if err != nil {
		if t == nil {
			panic(err)
		}
		t.Fatal(err)
	}
	return b
}

type reply struct {
	status int
	body   map[string]any
	text   []byte
}

// code is the detail of a refusal.
func (r reply) code() string {
	ours, _ := r.body["sandkeeper"].(map[string]any)
	text, _ := ours["code"].(string)
	return text
}

func ask(t *testing.T, handler http.Handler, method, target string, body any, headers ...string) reply {
	t.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		reader = bytes.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		reader = bytes.NewReader(text)
	}
	request := httptest.NewRequest(method, target, reader)
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, request)
	made := reply{status: recorder.Code, text: recorder.Body.Bytes()}
	if recorder.Header().Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(made.text, &made.body); err != nil {
			made.body = nil // a list
		}
	}
	return made
}

// transcript is what one streaming call said.
type transcript struct {
	status         int
	refusal        map[string]any
	pid            float64
	attached       bool
	stdout, stderr []byte
	pty            []byte
	end            map[string]any
	failure        map[string]any
}

func (t *transcript) ours() map[string]any { return t.end["sandkeeper"].(map[string]any) }

// stream calls Start or Connect on the shared box and reads to the end.
func stream(t *testing.T, method string, request any) *transcript {
	t.Helper()
	_, server := sharedBox()
	text, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	frame := append([]byte{0}, binary.BigEndian.AppendUint32(nil, uint32(len(text)))...)
	answer, err := http.Post(server.URL+processPrefix+method, "application/connect+json", bytes.NewReader(append(frame, text...)))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	said := &transcript{status: answer.StatusCode}
	if answer.StatusCode != http.StatusOK {
		if err := json.NewDecoder(answer.Body).Decode(&said.refusal); err != nil {
			t.Fatal(err)
		}
		return said
	}
	for {
		var head [5]byte
		if _, err := io.ReadFull(answer.Body, head[:]); err != nil {
			t.Fatalf("stream cut: %v", err)
		}
		payload := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(answer.Body, payload); err != nil {
			t.Fatalf("frame cut: %v", err)
		}
		if said.take(t, head[0], payload) {
			return said
		}
	}
}

func (t *transcript) take(tb *testing.T, flag byte, payload []byte) (isLast bool) {
	var message map[string]map[string]map[string]any
	if flag == flagEnd {
		var last map[string]map[string]any
		if err := json.Unmarshal(payload, &last); err != nil {
			tb.Fatal(err)
		}
		t.failure = last["error"]
		return true
	}
	if err := json.Unmarshal(payload, &message); err != nil {
		tb.Fatalf("%v in %s", err, payload)
	}
	for kind, fields := range message["event"] {
		ours, _ := fields["sandkeeper"].(map[string]any)
		switch kind {
		case "start":
			t.pid, t.attached = fields["pid"].(float64), ours["attached"].(bool)
		case "end":
			t.end = fields
		case "data":
			t.stdout = appendDecoded(tb, t.stdout, fields["stdout"])
			t.stderr = appendDecoded(tb, t.stderr, fields["stderr"])
			t.pty = appendDecoded(tb, t.pty, fields["pty"])
		}
	}
	return false
}

func appendDecoded(tb *testing.T, to []byte, value any) []byte {
	text, ok := value.(string)
	if !ok {
		return to
	}
	content, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		tb.Fatal(err)
	}
	return append(to, content...)
}

type fields = map[string]any

func shell(t *testing.T, script string, ours fields) *transcript {
	t.Helper()
	return stream(t, "Start", fields{"process": fields{"cmd": "sh", "args": []string{"-c", script}}, "sandkeeper": ours})
}
