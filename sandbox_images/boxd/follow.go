package main

// follow.go owns one reader of one run: its place in both streams, its byte limit, its frames. It never slows the run.

import (
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const chunkBytes = 32 << 10

var chunkBuffers = sync.Pool{New: func() any { return new([chunkBytes]byte) }}

type follower struct {
	run            *run
	attached       bool
	endsAtDeadline bool // envd: a passed Connect deadline is an error of the stream
	keepalive      time.Duration
	places         []place
}

// place is where the reader is in one stream, and how many more bytes it wants.
type place struct {
	name   string
	from   *output
	offset int64
	left   int64
}

func newFollower(r *run, extra *startExtra, request *http.Request) *follower {
	limit := int64(math.MaxInt64)
	if extra.MaxOutputBytes != nil {
		limit = max(*extra.MaxOutputBytes, 0)
	}
	f := &follower{run: r, keepalive: keepaliveOf(request)}
	if r.pty != nil {
		f.places = []place{{name: "pty", from: r.pty, offset: extra.PtyOffset, left: limit}}
		return f
	}
	f.places = []place{
		{name: "stdout", from: r.stdout, offset: extra.StdoutOffset, left: limit},
		{name: "stderr", from: r.stderr, offset: extra.StderrOffset, left: limit},
	}
	return f
}

// keepaliveOf is how often a silent stream says that it is alive.
func keepaliveOf(request *http.Request) time.Duration {
	if s, err := strconv.Atoi(request.Header.Get("Keepalive-Ping-Interval")); err == nil && s > 0 && s < 86400 {
		return time.Duration(s) * time.Second
	}
	return keepaliveDefault
}

// stream sends start, what is kept, what comes, and the end. An error of the connection ends it silently: the client
// has gone, and the run goes on.
func (f *follower) stream(w http.ResponseWriter, request *http.Request) {
	changed, stop := f.run.follow()
	defer stop()
	frames := newFrameWriter(w)
	if frames.message(f.startEvent()) != nil || frames.flush() != nil {
		return
	}
	alive := time.NewTicker(f.keepalive)
	defer alive.Stop()
	for {
		isLast := f.run.isFinished() // before the last look at the streams
		if err := f.sendAvailable(frames); err != nil {
			return
		}
		if isLast {
			f.finish(frames)
			return
		}
		if frames.flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-f.run.done:
		case <-request.Context().Done():
			return
		case <-alive.C:
			if frames.message(keepaliveEvent) != nil {
				return
			}
		}
	}
}

// sendAvailable sends all that is kept beyond the reader's places.
func (f *follower) sendAvailable(frames *frameWriter) error {
	buffer := chunkBuffers.Get().(*[chunkBytes]byte)
	defer chunkBuffers.Put(buffer)
	for i := range f.places {
		p := &f.places[i]
		for p.left > 0 {
			n, next, lost := p.from.read(p.offset, buffer[:min(chunkBytes, p.left)])
			if lost > 0 {
				if err := frames.message(lostEvent(p.name, lost, next-int64(n))); err != nil {
					return err
				}
			}
			if n == 0 {
				p.offset = max(p.offset, next)
				break
			}
			frames.data(p.name, buffer[:n], next-int64(n))
			p.offset = next
			p.left -= int64(n)
			if len(frames.buffer) >= chunkBytes {
				if err := frames.flush(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// finish sends the end without a flush of its own: the server flushes when the call returns.
func (f *follower) finish(frames *frameWriter) {
	var failure *fault
	if f.endsAtDeadline && f.run.result.outcome == "timeout" {
		failure = faultf("deadline_exceeded", "timeout", "the command was ended at its deadline")
	} else if frames.message(f.endEvent()) != nil {
		return
	}
	if frames.end(failure) == nil {
		frames.write()
	}
}

type event map[string]any

var keepaliveEvent = event{"event": event{"keepalive": event{}}}

func (f *follower) startEvent() event {
	ours := event{"runId": f.run.id, "generation": f.run.generation, "attached": f.attached}
	return event{"event": event{"start": event{"pid": f.run.pid, "sandkeeper": ours}}}
}

func lostEvent(stream string, lost, offset int64) event {
	ours := event{"stream": stream, "lostBytes": lost, "offset": offset}
	return event{"event": event{"data": event{"sandkeeper": ours}}}
}

func (f *follower) endEvent() event {
	r := &f.run.result
	notStopped := r.notStopped
	if notStopped == nil {
		notStopped = []int{}
	}
	end := event{"exitCode": r.exitCode, "exited": r.isExited, "status": r.status}
	if r.exitCode != 0 {
		end["error"] = r.status
	}
	ours := event{
		"outcome": r.outcome, "signal": r.signal, "oomKilled": r.oomKilled, "oomKills": r.oomKills,
		"durationMs": r.durationMs, "stdoutBytes": f.run.stdout.size(), "stderrBytes": f.run.stderr.size(),
		"notStopped": notStopped,
		"rusage":     event{"userMs": r.userMs, "systemMs": r.systemMs, "maxRssBytes": r.maxRSS},
	}
	if r.reason != "" {
		ours["reason"] = r.reason
	}
	if f.run.pty != nil {
		ours["ptyBytes"] = f.run.pty.size()
	}
	end["sandkeeper"] = ours
	return event{"event": event{"end": end}}
}
