package main

// frames.go owns Connect's envelopes: one flag byte, a big-endian length, JSON. It knows nothing of what is inside.
// Source: the Connect protocol, streaming RPCs.

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
)

const (
	flagMessage   = 0
	flagEnd       = 2
	maxFrameBytes = 16 << 20
)

// readRequestFrame reads the single message of a server-stream call. Plain JSON is accepted as well.
func readRequestFrame(r *http.Request, into any) *fault {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		return readJSON(r, maxFrameBytes, into)
	}
	flag, text, f := readEnvelope(r.Body)
	if f != nil {
		return f
	}
	if text == nil || flag != flagMessage {
		return faultf("invalid_argument", "bad_frame", "the request has no frame")
	}
	// The server watches for a lost client only once it has seen the end of the body.
	if _, err := io.Copy(io.Discard, io.LimitReader(r.Body, maxFrameBytes)); err != nil {
		return faultf("invalid_argument", "bad_frame", "the request does not end: %v", err)
	}
	return decodeFrame(text, into)
}

func decodeFrame(text []byte, into any) *fault {
	if err := json.Unmarshal(text, into); err != nil {
		return faultf("invalid_argument", "bad_request", "unreadable JSON: %v", err)
	}
	return nil
}

// readEnvelope reads one frame; no text and no fault is the end of the body. It takes memory for a frame only as its
// bytes arrive, so that a false length costs nothing.
func readEnvelope(body io.Reader) (flag byte, text []byte, f *fault) {
	var head [5]byte
	if _, err := io.ReadFull(body, head[:]); err == io.EOF {
		return 0, nil, nil
	} else if err != nil {
		return 0, nil, faultf("invalid_argument", "bad_frame", "the frame is cut: %v", err)
	}
	length := binary.BigEndian.Uint32(head[1:])
	if head[0] != flagMessage && head[0] != flagEnd || length > maxFrameBytes {
		return 0, nil, faultf("invalid_argument", "bad_frame", "frame with flag %d and %d bytes", head[0], length)
	}
	var content bytes.Buffer
	if n, err := io.Copy(&content, io.LimitReader(body, int64(length))); err != nil || n < int64(length) {
		return 0, nil, faultf("invalid_argument", "bad_frame", "the frame is cut: %d of %d bytes (%v)", n, length, err)
	}
	return head[0], append([]byte{}, content.Bytes()...), nil
}

// frameWriter collects frames and sends them together on flush.
type frameWriter struct {
	w       http.ResponseWriter
	flusher http.Flusher
	buffer  []byte
	started int // where the open frame begins
}

var streamContentType = []string{"application/connect+json"}

func newFrameWriter(w http.ResponseWriter) *frameWriter {
	w.Header()["Content-Type"] = streamContentType
	flusher, _ := w.(http.Flusher)
	return &frameWriter{w: w, flusher: flusher, buffer: make([]byte, 0, 512)}
}

func (f *frameWriter) open(flag byte) {
	f.started = len(f.buffer)
	f.buffer = append(f.buffer, flag, 0, 0, 0, 0)
}

func (f *frameWriter) shut() {
	length := uint32(len(f.buffer) - f.started - 5)
	binary.BigEndian.PutUint32(f.buffer[f.started+1:], length)
}

// message adds one frame of any value.
func (f *frameWriter) message(value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	f.open(flagMessage)
	f.buffer = append(f.buffer, text...)
	f.shut()
	return nil
}

// data adds an output event without the detour of reflection: it is the one frame that is sent in bulk.
func (f *frameWriter) data(stream string, content []byte, offset int64) {
	f.open(flagMessage)
	f.buffer = append(f.buffer, `{"event":{"data":{"`...)
	f.buffer = append(f.buffer, stream...)
	f.buffer = append(f.buffer, `":"`...)
	f.buffer = base64.StdEncoding.AppendEncode(f.buffer, content)
	f.buffer = append(f.buffer, `","sandkeeper":{"offset":`...)
	f.buffer = strconv.AppendInt(f.buffer, offset, 10)
	f.buffer = append(f.buffer, `}}}}`...)
	f.shut()
}

// end adds the end-of-stream frame.
func (f *frameWriter) end(failure *fault) error {
	text := []byte("{}")
	if failure != nil {
		var err error
		if text, err = json.Marshal(map[string]any{"error": failure.body()}); err != nil {
			return err
		}
	}
	f.open(flagEnd)
	f.buffer = append(f.buffer, text...)
	f.shut()
	return nil
}

// write hands the collected frames to the server; flush also sends them off.
func (f *frameWriter) write() error {
	_, err := f.w.Write(f.buffer)
	f.buffer = f.buffer[:0]
	return err
}

func (f *frameWriter) flush() error {
	if len(f.buffer) == 0 {
		return nil
	}
	if err := f.write(); err != nil {
		return err
	}
	f.flusher.Flush()
	return nil
}
