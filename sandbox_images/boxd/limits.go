package main

// limits.go owns the three limits of one run, wall clock, silence and CPU time, and asks the run to end at the first
// that is reached. All of them count unfrozen time. It never kills by itself.

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	reasonDeadline = "deadline"
	reasonQuiet    = "quiet"
	reasonCPU      = "cpu"

	cpuLookMin = 100 * time.Millisecond
	cpuLookMax = time.Second
)

// runLimits has zeros for what is not limited.
type runLimits struct{ deadline, quiet, cpu time.Duration }

// limitOf turns a request's milliseconds into a duration; a negative one is refused.
func limitOf(name string, ms int64) (time.Duration, *fault) {
	if ms < 0 {
		return 0, faultf("invalid_argument", "bad_timeout", "%s is negative", name)
	}
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond)/4)) * time.Millisecond, nil
}

type limiter struct {
	clock  *tickClock
	limits runLimits
	usage  func() time.Duration // CPU time of the tree so far
	reach  func(reason string)

	heardAt atomic.Int64 // of the clock

	mu      sync.Mutex
	stopped bool
	timers  map[string]*deadline
}

func newLimiter(clock *tickClock, limits runLimits, usage func() time.Duration, reach func(string)) *limiter {
	return &limiter{clock: clock, limits: limits, usage: usage, reach: reach, timers: map[string]*deadline{}}
}

// begin starts to count; a run that has ended meanwhile has stopped the limiter already.
func (l *limiter) begin() {
	l.heardAt.Store(int64(l.clock.time()))
	if l.limits.deadline > 0 {
		l.arm(reasonDeadline, l.limits.deadline, func() { l.reach(reasonDeadline) })
	}
	if l.limits.quiet > 0 {
		l.arm(reasonQuiet, l.limits.quiet, l.checkQuiet)
	}
	if l.limits.cpu > 0 {
		l.arm(reasonCPU, cpuLookMin, l.checkCPU)
	}
}

// heard notes that the run has written something.
func (l *limiter) heard() {
	if l.limits.quiet > 0 {
		l.heardAt.Store(int64(l.clock.time()))
	}
}

func (l *limiter) checkQuiet() {
	silent := l.clock.time() - time.Duration(l.heardAt.Load())
	if silent >= l.limits.quiet {
		l.reach(reasonQuiet)
		return
	}
	l.arm(reasonQuiet, l.limits.quiet-silent, l.checkQuiet)
}

// checkCPU looks again at the earliest moment at which all processors together could have used up the rest.
func (l *limiter) checkCPU() {
	rest := l.limits.cpu - l.usage()
	if rest <= 0 {
		l.reach(reasonCPU)
		return
	}
	l.arm(reasonCPU, min(max(rest/time.Duration(runtime.NumCPU()), cpuLookMin), cpuLookMax), l.checkCPU)
}

func (l *limiter) arm(name string, wait time.Duration, fire func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		l.timers[name] = l.clock.after(wait, fire)
	}
}

// stop is safe on nil and more than once.
func (l *limiter) stop() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for _, timer := range l.timers {
		timer.stop()
	}
	l.timers = nil
}
