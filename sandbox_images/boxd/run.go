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
	keepsAwake bool // while it goes, the box counts as in use
	oomBefore  oomMark
	stdin      *stdinPipe // nil: the process has /dev/null
	stdout     *output
	stderr     *output
	terminal   *terminal // nil: the process has pipes
	pty        *output   // what the terminal shows
	pumps      []*pump
	limiter    *limiter
	meter      cpuMeter

	launched chan struct{} // closed when pid or refusal is known
	pid      int
	refusal  *fault

	mu         sync.Mutex
	exited     bool
	status     syscall.WaitStatus
	exitedAt   time.Time
	undrained  int
	killers    int
	reason     string // which limit ended it
	notStopped []int
	usage      syscall.Rusage
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
	reason     string
	signal     int
	oomKilled  bool
	oomKills   int64
	userMs     int64
	systemMs   int64
	maxRSS     int64 // bytes
	durationMs int64
	notStopped []int
}

func newRun(id string, b *box) *run {
	r := &run{
		id: id, box: b, undrained: 2,
		launched: make(chan struct{}), done: make(chan struct{}),
	}
	r.stdout, r.stderr = r.newOutput(), r.newOutput()
	return r
}

func (r *run) newOutput() *output {
	return newOutput(func() *spill { return openSpill(r.box.blocking.spill, "/", "/tmp") })
}

// outputs are the streams that may hold something.
func (r *run) outputs() []*output {
	if r.pty != nil {
		return []*output{r.pty}
	}
	return []*output{r.stdout, r.stderr}
}

// outputCame is called by the pumps.
func (r *run) outputCame() {
	r.limiter.heard()
	r.wakeReaders()
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
func (r *run) processExited(status syscall.WaitStatus, usage *syscall.Rusage) {
	r.mu.Lock()
	r.exited, r.status, r.exitedAt, r.usage = true, status, time.Now(), *usage
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
	r.limiter.stop()
	for _, o := range r.outputs() {
		o.freeze()
	}
	r.result = r.makeResult()
	r.pumps, r.meter.seen = nil, nil // an ended run is kept for long
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
	if r.reason != "" {
		made.outcome, made.reason = "timeout", r.reason
	}
	hasDiedOfKill := made.signal == int(syscall.SIGKILL) || made.exitCode == 128+int(syscall.SIGKILL)
	made.oomKills = r.box.oom.since(r.oomBefore, hasDiedOfKill)
	made.oomKilled = made.oomKills > 0
	made.userMs, made.systemMs = r.usage.Utime.Nano()/1e6, r.usage.Stime.Nano()/1e6
	made.maxRSS = r.usage.Maxrss << 10
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

// expire ends the run because a limit was reached.
func (r *run) expire(reason string) {
	r.mu.Lock()
	if r.exited || r.reason != "" {
		r.mu.Unlock()
		return
	}
	r.reason = reason
	r.mu.Unlock()
	if left := r.killTree(); slices.Contains(left, r.pid) {
		r.finishIfOver(true)
	}
}

func (r *run) asTree() *tree {
	owned := r.box.runs.ownership(r)
	for _, pid := range r.box.reaper.own() {
		owned.leaders[pid] = owned.leaders[pid] || pid != r.pid // runs, and our own probes
	}
	return &tree{runID: r.id, leader: r.pid, startedAfter: r.startedAt, owned: owned}
}

func (r *run) isFinished() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}
