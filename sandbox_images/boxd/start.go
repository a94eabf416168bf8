package main

// start.go owns the two streaming calls, Start and Connect: which run a request means, and what its reader is sent.
// A reader that goes away changes nothing for the run.

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"
)

const keepaliveDefault = 90 * time.Second

var runIDPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

type startRequest struct {
	Process    processConfig `json:"process"`
	Pty        *ptyRequest   `json:"pty"`
	Tag        string        `json:"tag"`
	Stdin      bool          `json:"stdin"`
	Sandkeeper *startExtra   `json:"sandkeeper"`
}

type startExtra struct {
	RunID          string `json:"runId"`
	TimeoutMs      int64  `json:"timeoutMs"`
	MaxOutputBytes *int64 `json:"maxOutputBytes"`
	Stdin          string `json:"stdin"`
	StdinData      []byte `json:"stdinData"`
	User           string `json:"user"`
	StdoutOffset   int64  `json:"stdoutOffset"`
	StderrOffset   int64  `json:"stderrOffset"`
	PtyOffset      int64  `json:"ptyOffset"`
	Detached       bool   `json:"detached"`
	QuietTimeoutMs int64  `json:"quietTimeoutMs"`
	CPULimitMs     int64  `json:"cpuLimitMs"`
	KeepsAwake     *bool  `json:"keepsAwake"` // absent: unless detached
}

type connectRequest struct {
	Process    selector    `json:"process"`
	Sandkeeper *startExtra `json:"sandkeeper"`
}

func (b *box) serveStart(w http.ResponseWriter, r *http.Request) {
	var request startRequest
	if f := readRequestFrame(r, &request); f != nil {
		writeFault(w, f)
		return
	}
	extra := request.Sandkeeper
	if extra == nil {
		extra = &startExtra{}
	}
	plan, f := planOf(&request, extra, r)
	if f != nil {
		writeFault(w, f)
		return
	}
	id := extra.RunID
	if id == "" {
		id = "auto-" + randomHex()
	} else if !runIDPattern.MatchString(id) {
		writeFault(w, faultf("invalid_argument", "bad_run_id", "a run id is 1 to 64 letters, digits, _ or -"))
		return
	}
	found, attached, f := b.startOrAttach(id, plan)
	if f != nil {
		writeFault(w, f)
		return
	}
	follow := newFollower(found, extra, r)
	follow.attached = attached
	follow.endsAtDeadline = request.Sandkeeper == nil
	follow.stream(w, r)
}

func (b *box) serveConnect(w http.ResponseWriter, r *http.Request) {
	var request connectRequest
	if f := readRequestFrame(r, &request); f != nil {
		writeFault(w, f)
		return
	}
	found, f := b.runs.find(request.Process)
	if f != nil {
		writeFault(w, f)
		return
	}
	if f := waitLaunched(found); f != nil {
		writeFault(w, f)
		return
	}
	extra := request.Sandkeeper
	if extra == nil { // envd: from now on
		extra = &startExtra{StdoutOffset: found.stdout.size(), StderrOffset: found.stderr.size()}
		if found.pty != nil {
			extra.PtyOffset = found.pty.size()
		}
	}
	follow := newFollower(found, extra, r)
	follow.attached = true
	follow.stream(w, r)
}

func planOf(request *startRequest, extra *startExtra, r *http.Request) (*launchPlan, *fault) {
	plan := &launchPlan{
		config: request.Process, tag: request.Tag, detached: extra.Detached, keepsAwake: !extra.Detached,
		user: extra.User, stdinMode: extra.Stdin, stdinData: extra.StdinData, pty: request.Pty,
	}
	if extra.KeepsAwake != nil {
		plan.keepsAwake = *extra.KeepsAwake
	}
	if name, _, ok := r.BasicAuth(); ok && plan.user == "" {
		plan.user = name
	}
	timeoutMs := extra.TimeoutMs
	if request.Sandkeeper == nil {
		if ms, err := strconv.ParseInt(r.Header.Get("Connect-Timeout-Ms"), 10, 64); err == nil {
			timeoutMs = ms
		}
	}
	var f *fault
	if plan.limits.deadline, f = limitOf("the timeout", timeoutMs); f != nil {
		return nil, f
	}
	if plan.limits.quiet, f = limitOf("the quiet timeout", extra.QuietTimeoutMs); f != nil {
		return nil, f
	}
	if plan.limits.cpu, f = limitOf("the CPU limit", extra.CPULimitMs); f != nil {
		return nil, f
	}
	if plan.pty != nil {
		if plan.stdinMode != "" {
			return nil, faultf("invalid_argument", "bad_stdin", "a terminal is the process's standard input")
		}
		return plan, plan.pty.Size.check()
	}
	switch {
	case plan.stdinMode == "" && request.Stdin:
		plan.stdinMode = "stream"
	case plan.stdinMode == "":
		plan.stdinMode = "none"
	case plan.stdinMode != "none" && plan.stdinMode != "data" && plan.stdinMode != "stream":
		return nil, faultf("invalid_argument", "bad_stdin", "stdin %q is not none, data or stream", plan.stdinMode)
	}
	return plan, nil
}

// startOrAttach starts a new run, or finds the one that an earlier call with this id has started.
func (b *box) startOrAttach(id string, plan *launchPlan) (found *run, attached bool, f *fault) {
	found = b.runs.known(id)
	if found == nil {
		if full := b.disk.refusal(); full != nil {
			return nil, false, full
		}
		end, refusal := b.beginWork()
		if refusal != nil {
			return nil, false, refusal
		}
		defer end()
		var isNew bool
		found, isNew = b.runs.claim(id, func() *run { return newRun(id, b) })
		if isNew {
			return found, false, b.launch(found, plan)
		}
	}
	if f := waitLaunched(found); f != nil {
		return nil, false, f
	}
	if found.config.Cmd != plan.config.Cmd || !slices.Equal(found.config.Args, plan.config.Args) {
		return nil, false, faultf("already_exists", "run_id_conflict", "run %q was started with another command", id)
	}
	return found, true, nil
}

func waitLaunched(r *run) *fault {
	<-r.launched
	return r.refusal
}

func randomHex() string {
	var bytes [12]byte
	rand.Read(bytes[:]) // never fails: it aborts the program instead
	return hex.EncodeToString(bytes[:])
}
