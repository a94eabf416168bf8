package main

import (
	"testing"
	"time"
)

func TestIdleTimeCountsFromTheEndOfTheLastActivity(t *testing.T) {
	now := time.Unix(100, 0)
	a := newActivity(func() time.Time { return now })
	step := func(want time.Duration, isBusy bool, what string) {
		t.Helper()
		if got := a.idle(isBusy); got != want {
			t.Errorf("%s: idle for %v, want %v", what, got, want)
		}
	}
	now = now.Add(5 * time.Second)
	step(5*time.Second, false, "nothing since the start")
	first, second := a.begin(), a.begin()
	now = now.Add(time.Hour)
	step(0, false, "two open")
	first()
	now = now.Add(time.Minute)
	step(0, false, "one open")
	second()
	now = now.Add(3 * time.Second)
	step(3*time.Second, false, "both ended")
	step(0, true, "a run keeps awake")
	now = now.Add(2 * time.Second)
	step(2*time.Second, false, "the run has ended")
	a.touch()
	step(0, false, "told to go on")
}
