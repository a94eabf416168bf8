package main

// activity.go owns what keeps a sandbox awake: requests under way (open streams, terminals, dialled ports, file
// transfers) and runs that keep awake. The owner's own verbs are none.

import (
	"sync"
	"time"
)

type activity struct {
	mu      sync.Mutex
	now     func() time.Time
	open    int
	endedAt time.Time
}

func newActivity(now func() time.Time) *activity {
	return &activity{now: now, endedAt: now()}
}

// begin counts one activity until the returned function is called.
func (a *activity) begin() (end func()) {
	a.mu.Lock()
	a.open++
	a.mu.Unlock()
	return func() {
		a.mu.Lock()
		a.open--
		a.endedAt = a.now()
		a.mu.Unlock()
	}
}

// touch takes this moment for the end of the last activity: a box that was frozen begins to idle when it goes on.
func (a *activity) touch() {
	a.mu.Lock()
	a.endedAt = a.now()
	a.mu.Unlock()
}

// idle is the time since the last activity, 0 while there is one.
func (a *activity) idle(isBusy bool) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if isBusy || a.open > 0 {
		a.endedAt = a.now()
	}
	return a.now().Sub(a.endedAt)
}
