package main

// run.go owns one started process from its start to its result, and the readers that follow it. A run is finished when
// its process has exited, what it wrote has been read, and nobody is in the middle of killing it. It never starts it.

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"
)

type processConfig struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

type run struct {
	id         string
	tag        string
	config     processConfig
	generation int64
	detached   bool
	box        *box
	startedAt  time.Time
	oomBefore  int64
	stdin      *stdinPipe // nil: the process has /dev/null
	stdout     *output
	stderr     *output
	pumps      []*pump

	launched chan struct{} // closed when pid or refusal is known
	pid      int
	refusal  *fault

	mu         sync.Mutex
	exited     bool
	status     syscall.WaitStatus
	exitedAt   time.Time
	undrained  int
	killers    int
	timedOut   bool
	notStopped []int
	timeout    *deadline
	readers    map[chan struct{}]struct{}
	finished   bool
	done       chan struct{}
	result     result
}

// result is how a run ended.
type result struct {
	exitCode   int
	isExited   bool
	status     string
	outcome    string
	signal     int
	oomKilled  bool
	durationMs int64
	notStopped []int
}

func newRun(id string, b *box) *run {
	r := &run{
		id: id, box: b, undrained: 2,
		launched: make(chan struct{}), done: make(chan struct{}),
	}
	spillTo := func() *spill { return openSpill(b.blocking.spill, "/", "/tmp") }
	r.stdout, r.stderr = newOutput(spillTo), newOutput(spillTo)
	return r
}

// follow registers a reader; its channel gets a token whenever there may be something new.
func (r *run) follow() (changed chan struct{}, stop func()) {
	changed = make(chan struct{}, 1)
	r.mu.Lock()
	if r.readers == nil {
		r.readers = map[chan struct{}]struct{}{}
	}
	r.readers[changed] = struct{}{}
	r.mu.Unlock()
	return changed, func() {
		r.mu.Lock()
		delete(r.readers, changed)
		if len(r.readers) == 0 {
			r.readers = nil
		}
		r.mu.Unlock()
	}
}

func (r *run) wakeReaders() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for changed := range r.readers {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// processExited is called by the reaper.
func (r *run) processExited(status syscall.WaitStatus) {
	r.mu.Lock()
	r.exited, r.status, r.exitedAt = true, status, time.Now()
	pumps := r.pumps
	r.mu.Unlock()
	for _, p := range pumps {
		p.exited()
	}
	if r.stdin != nil {
		r.stdin.close()
	}
	r.finishIfOver(false)
}

func (r *run) streamDrained() {
	r.mu.Lock()
	r.undrained--
	r.mu.Unlock()
	r.finishIfOver(false)
}

// finishIfOver makes the result once. force is for a process that could not be killed.
func (r *run) finishIfOver(force bool) {
	r.mu.Lock()
	isOver := r.exited && r.undrained == 0 && r.killers == 0
	if r.finished || !(isOver || force) {
		r.mu.Unlock()
		return
	}
	r.finished = true
	r.timeout.stop()
	r.stdout.freeze()
	r.stderr.freeze()
	r.result = r.makeResult()
	r.pumps, r.timeout = nil, nil // an ended run is kept for long
	r.mu.Unlock()
	r.box.runs.ended(r)
	close(r.done)
}

func (r *run) makeResult() result {
	made := result{exitCode: -1, outcome: "exited", notStopped: r.notStopped}
	if !r.exited {
		r.exitedAt = time.Now()
		made.status, made.outcome = "not stopped", "timeout"
	} else if r.status.Signaled() {
		made.signal = int(r.status.Signal())
		made.status, made.outcome = "signal: "+r.status.Signal().String(), "signaled"
	} else {
		made.exitCode, made.isExited = r.status.ExitStatus(), true
		made.status = fmt.Sprintf("exit status %d", made.exitCode)
	}
	if r.timedOut {
		made.outcome = "timeout"
	}
	if made.signal == int(syscall.SIGKILL) || made.exitCode == 128+int(syscall.SIGKILL) {
		made.oomKilled = r.box.oom.count() > r.oomBefore
	}
	made.durationMs = r.exitedAt.Sub(r.startedAt).Milliseconds()
	return made
}

// killTree ends the whole tree and answers the processes that it could not end.
func (r *run) killTree() []int {
	r.mu.Lock()
	r.killers++
	r.mu.Unlock()
	var left []int
	r.box.blocking.tree.do(func() { left = stopTree(r.asTree()) })
	r.mu.Lock()
	r.killers--
	r.notStopped = left
	r.mu.Unlock()
	r.finishIfOver(false)
	return left
}

// expire is the timeout of the run.
func (r *run) expire() {
	r.mu.Lock()
	if r.exited {
		r.mu.Unlock()
		return
	}
	r.timedOut = true
	r.mu.Unlock()
	if left := r.killTree(); slices.Contains(left, r.pid) {
		r.finishIfOver(true)
	}
}

func (r *run) asTree() *tree {
	return &tree{runID: r.id, leader: r.pid, startedAfter: r.startedAt, owned: r.box.runs.ownership(r)}
}

func (r *run) isFinished() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}
