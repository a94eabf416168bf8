package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/http/httptest"
	"testing"
)

func frameOf(flag byte, text string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(text))), text...)
}

func TestRequestFrames(t *testing.T) {
	tooLong := binary.BigEndian.AppendUint32([]byte{0}, maxFrameBytes+1)
	cases := []struct {
		name, contentType string
		body              []byte
		code              string
	}{
		{"one frame", "application/connect+json", frameOf(0, `{"path":"/x"}`), ""},
		{"plain JSON", "application/json", []byte(`{"path":"/x"}`), ""},
		{"unknown fields", "application/connect+json", frameOf(0, `{"path":"/x","later":1}`), ""},
		{"empty", "application/connect+json", nil, "bad_frame"},
		{"cut", "application/connect+json", frameOf(0, `{"path":"/x"}`)[:9], "bad_frame"},
		{"end flag", "application/connect+json", frameOf(2, `{}`), "bad_frame"},
		{"too long", "application/connect+json", tooLong, "bad_frame"},
		{"no JSON", "application/connect+json", frameOf(0, `{`), "bad_request"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			request := httptest.NewRequest("POST", "/", bytes.NewReader(c.body))
			request.Header.Set("Content-Type", c.contentType)
			var into pathRequest
			f := readRequestFrame(request, &into)
			if c.code == "" && (f != nil || into.Path != "/x") {
				t.Fatalf("got %v, %+v", f, into)
			}
			if c.code != "" && (f == nil || f.detail != c.code) {
				t.Fatalf("got %v", f)
			}
		})
	}
}

func TestWrittenFramesAreWhole(t *testing.T) {
	recorder := httptest.NewRecorder()
	frames := newFrameWriter(recorder)
	content := []byte{0, 255, '"', '\\', '\n'}
	frames.data("stdout", content, 42)
	if err := frames.end(faultf("aborted", "x", "y")); err != nil {
		t.Fatal(err)
	}
	if err := frames.flush(); err != nil {
		t.Fatal(err)
	}
	rest := recorder.Body.Bytes()
	for _, flag := range []byte{flagMessage, flagEnd} {
		length := binary.BigEndian.Uint32(rest[1:5])
		if rest[0] != flag {
			t.Fatalf("flag %d, not %d", rest[0], flag)
		}
		var message struct {
			Event struct {
				Data struct {
					Stdout     []byte
					Sandkeeper struct{ Offset int64 }
				}
			}
			Error struct{ Code string }
		}
		if err := json.Unmarshal(rest[5:5+length], &message); err != nil {
			t.Fatal(err)
		}
		if flag == flagMessage && (!bytes.Equal(message.Event.Data.Stdout, content) || message.Event.Data.Sandkeeper.Offset != 42) {
			t.Fatalf("got %+v", message)
		}
		if flag == flagEnd && message.Error.Code != "aborted" {
			t.Fatalf("got %+v", message)
		}
		rest = rest[5+length:]
	}
	if len(rest) != 0 {
		t.Fatalf("%d bytes too many", len(rest))
	}
}
