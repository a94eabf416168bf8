package main

// clock.go owns deadlines that do not count frozen time: a paused container must not find all its deadlines passed
// when it thaws. Time is counted in ticks; a tick that comes more than a second late counts as one tick.
// It runs only while a deadline is pending, so that an idle box sleeps.

import (
	"sync"
	"time"
)

const (
	tickLength  = 100 * time.Millisecond
	freezeAfter = time.Second
)

type tickClock struct {
	mu       sync.Mutex
	now      func() time.Time
	active   time.Duration // counted time up to lastTick
	lastTick time.Time
	pending  map[*deadline]struct{}
	running  bool
	wake     chan struct{}
}

type deadline struct {
	clock *tickClock
	due   time.Duration
	fire  func()
}

func newTickClock(now func() time.Time) *tickClock {
	return &tickClock{now: now, pending: map[*deadline]struct{}{}, wake: make(chan struct{}, 1)}
}

// after calls fire in a goroutine of its own once wait has been counted.
func (c *tickClock) after(wait time.Duration, fire func()) *deadline {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running {
		c.running, c.lastTick = true, c.now()
		go c.run()
	}
	d := &deadline{clock: c, due: c.timeLocked() + wait, fire: fire}
	c.pending[d] = struct{}{}
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return d
}

// time is the counted time. Without a pending deadline nothing is counted and it stands still.
func (c *tickClock) time() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timeLocked()
}

// timeLocked takes a gap that the next tick will call a freeze for one tick, as that tick will.
func (c *tickClock) timeLocked() time.Duration {
	if !c.running {
		return c.active
	}
	gap := c.now().Sub(c.lastTick)
	if gap > tickLength+freezeAfter {
		gap = tickLength
	}
	return c.active + gap
}

// stop cancels; it is safe on nil and on a deadline that has fired.
func (d *deadline) stop() {
	if d == nil {
		return
	}
	d.clock.mu.Lock()
	defer d.clock.mu.Unlock()
	delete(d.clock.pending, d)
}

func (c *tickClock) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		step, more := c.nextStep()
		if !more {
			return
		}
		timer.Reset(step)
		select {
		case <-timer.C:
		case <-c.wake:
		}
		c.tick(step)
	}
}

func (c *tickClock) nextStep() (step time.Duration, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		c.running = false
		return 0, false
	}
	step = tickLength
	for d := range c.pending {
		step = min(step, max(d.due-c.active, time.Millisecond))
	}
	return step, true
}

// tick counts the time since the last one and fires what is due.
func (c *tickClock) tick(step time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	gap := now.Sub(c.lastTick)
	if gap > step+freezeAfter {
		gap = step
	}
	c.active += gap
	c.lastTick = now
	for d := range c.pending {
		if d.due <= c.active {
			delete(c.pending, d)
			go d.fire()
		}
	}
}
