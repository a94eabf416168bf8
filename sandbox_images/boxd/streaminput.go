package main

// streaminput.go owns StreamInput, a client stream that feeds one process's standard input or terminal frame by frame.
// It never holds a frame back, and never closes the input at its end.

import (
	"context"
	"io"
	"net/http"
)

type inputData struct {
	Stdin []byte `json:"stdin"`
	Pty   []byte `json:"pty"`
}

// write gives data to whichever input the process has; the other kind is refused.
func (d *inputData) write(ctx context.Context, r *run) *fault {
	switch {
	case r.terminal != nil && d.Pty != nil:
		return r.terminal.write(ctx, d.Pty)
	case d.Pty != nil:
		return noTerminal(r)
	case r.terminal != nil:
		return faultf("failed_precondition", "has_terminal", "process %d has a terminal: send pty", r.pid)
	case r.stdin == nil:
		return faultf("failed_precondition", "stdin_closed", "process %d was started without standard input", r.pid)
	}
	_, f := r.stdin.write(ctx, d.Stdin)
	return f
}

type streamInputFrame struct {
	Start *struct {
		Process selector `json:"process"`
	} `json:"start"`
	Data *struct {
		Input inputData `json:"input"`
	} `json:"data"`
}

func (b *box) serveStreamInput(w http.ResponseWriter, r *http.Request) {
	if f := b.feedFrames(r); f != nil {
		writeFault(w, f)
		return
	}
	frames := newFrameWriter(w)
	if frames.message(event{}) == nil && frames.end(nil) == nil {
		frames.write() // a client that has gone needs no answer
	}
}

func (b *box) feedFrames(r *http.Request) *fault {
	var into *run
	for {
		var frame streamInputFrame
		isLast, f := readFrame(r.Body, &frame)
		if f != nil || isLast {
			return f
		}
		switch {
		case frame.Start != nil && into == nil:
			if into, f = b.runs.find(frame.Start.Process); f == nil {
				f = waitLaunched(into)
			}
		case frame.Start != nil:
			f = faultf("invalid_argument", "bad_frame", "a second start")
		case frame.Data != nil && into == nil:
			f = faultf("invalid_argument", "bad_frame", "data before start")
		case frame.Data != nil:
			f = frame.Data.Input.write(r.Context(), into)
		}
		if f != nil {
			return f
		}
	}
}

// readFrame reads one frame of a client stream; the end of the body, or an end frame, is the last.
func readFrame(body io.Reader, into any) (isLast bool, f *fault) {
	flag, text, f := readEnvelope(body)
	if f != nil || text == nil || flag == flagEnd {
		return true, f
	}
	return false, decodeFrame(text, into)
}
