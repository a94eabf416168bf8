package main

import (
	"net/http/httptest"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// stillClock is moved by the test alone.
func stillClock() (clock *tickClock, move func(time.Duration)) {
	now := time.Unix(1000, 0)
	clock = newTickClock(func() time.Time { return now })
	clock.running, clock.lastTick = true, now
	return clock, func(gap time.Duration) {
		now = now.Add(gap)
		clock.tick(tickLength)
	}
}

func TestSilenceIsCountedFromTheLastOutput(t *testing.T) {
	clock, move := stillClock()
	reached := make(chan string, 1)
	l := newLimiter(clock, runLimits{quiet: time.Second}, nil, func(reason string) { reached <- reason })
	l.begin()
	move(900 * time.Millisecond)
	l.heard()
	l.checkQuiet() // what the first timer does
	if len(clock.pending) == 0 || len(reached) != 0 {
		t.Fatal("output does not move the limit")
	}
	move(time.Hour) // a freeze
	l.checkQuiet()
	if len(reached) != 0 {
		t.Fatal("frozen time counts as silence")
	}
	move(900 * time.Millisecond)
	l.checkQuiet()
	if reason := <-reached; reason != reasonQuiet {
		t.Fatalf("reached %q", reason)
	}
	l.stop()
	l.begin()
	if l.timers != nil {
		t.Fatal("a stopped limiter is armed")
	}
}

func TestOutputAfterAFreezeIsNotInTheFuture(t *testing.T) {
	now := time.Unix(1000, 0)
	clock := newTickClock(func() time.Time { return now })
	clock.running, clock.lastTick = true, now
	now = now.Add(time.Hour) // thawed, before the first tick
	if seen := clock.time(); seen > time.Second {
		t.Fatalf("the clock is at %v", seen)
	}
}

func TestCPULimitLooksAgainAndEnds(t *testing.T) {
	clock, _ := stillClock()
	used := 400 * time.Millisecond
	reached := make(chan string, 1)
	l := newLimiter(clock, runLimits{cpu: time.Second}, func() time.Duration { return used }, func(reason string) { reached <- reason })
	l.checkCPU()
	if len(reached) != 0 || l.timers[reasonCPU] == nil {
		t.Fatal("the limit does not look again")
	}
	used = time.Second
	l.checkCPU()
	if reason := <-reached; reason != reasonCPU {
		t.Fatalf("reached %q", reason)
	}
}

func TestCPUOfATree(t *testing.T) {
	var m cpuMeter
	m.orphanEnded(7, false, time.Hour) // a stranger
	if got := m.measure([]process{{pid: 5, cpuTicks: 3}, {pid: 6, cpuTicks: 4}}); got != 70*time.Millisecond {
		t.Fatalf("%v", got)
	}
	m.orphanEnded(6, false, 50*time.Millisecond)
	m.orphanEnded(9, true, 20*time.Millisecond)
	if got := m.measure([]process{{pid: 5, cpuTicks: 3}}); got != 100*time.Millisecond {
		t.Fatalf("%v", got)
	}
}

func TestLimitsEndARun(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		ours   fields
		reason string
	}{
		"deadline": {"echo up; sleep 60", fields{"timeoutMs": 100}, reasonDeadline},
		"quiet":    {"echo up; sleep 60", fields{"quietTimeoutMs": 100, "timeoutMs": 60_000}, reasonQuiet},
		"cpu":      {"echo up; while :; do :; done", fields{"cpuLimitMs": 150, "timeoutMs": 60_000}, reasonCPU},
		"orphan":   {"echo up; (while :; do :; done &) ; sleep 60", fields{"cpuLimitMs": 150}, reasonCPU},
	} {
		t.Run(name, func(t *testing.T) {
			said := shell(t, c.script, c.ours)
			if said.ours()["outcome"] != "timeout" || said.ours()["reason"] != c.reason || string(said.stdout) != "up\n" {
				t.Errorf("%v %q", said.end, said.stdout)
			}
		})
	}
}

func TestUsageIsTold(t *testing.T) {
	said := shell(t, "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done", nil)
	usage := said.ours()["rusage"].(map[string]any)
	if usage["userMs"].(float64) <= 0 || usage["maxRssBytes"].(float64) < 100_000 {
		t.Errorf("%v", usage)
	}
	if _, isThere := said.ours()["reason"]; isThere {
		t.Error("a run that ended by itself has a reason")
	}
}

func TestMemoryKillsAreTheRunsOwnFirst(t *testing.T) {
	c := &oomCounter{} // counts nothing: only the claims matter here
	c.claimed = 2
	if kills := c.since(oomMark{count: -3, claimed: 1}, false); kills != 2 {
		t.Errorf("%d kills", kills)
	}
	if kills := c.since(oomMark{count: -1, claimed: 2}, true); kills != 1 || c.claimed != 3 {
		t.Errorf("%d kills, %d claimed", kills, c.claimed)
	}
	if kills := c.since(oomMark{count: -1, claimed: 2}, true); kills != 0 || c.claimed != 3 {
		t.Errorf("one kill is claimed twice: %d", kills)
	}
}

func TestAReapedNumberIsForgotten(t *testing.T) {
	b, _ := sharedBox()
	said := shell(t, "exit 0", nil)
	pid := int(said.pid)
	if err := b.reaper.signal(pid, syscall.Signal(0), false); err != syscall.ESRCH {
		t.Errorf("the number of an ended process may be signalled: %v", err)
	}
	b.reaper.mu.Lock()
	_, isKnown := b.reaper.live[pid]
	b.reaper.mu.Unlock()
	if isKnown {
		t.Error("process " + strconv.Itoa(pid) + " is still known")
	}
}

func TestWhatKeepsTheBoxAwake(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		detached bool
		asked    *bool
		want     bool
	}{{false, nil, true}, {true, nil, false}, {true, &yes, true}, {false, &no, false}} {
		extra := &startExtra{Detached: c.detached, KeepsAwake: c.asked}
		request := &startRequest{Process: processConfig{Cmd: "x"}, Sandkeeper: extra}
		plan, f := planOf(request, extra, httptest.NewRequest("POST", "/", nil))
		if f != nil || plan.keepsAwake != c.want {
			t.Errorf("%+v: %v %v", c, plan, f)
		}
	}
}
