package main

import (
	"strings"
	"testing"
	"time"
)

func TestPathsAreResolved(t *testing.T) {
	for _, c := range []struct{ path, want string }{
		{"/a/b", "/a/b"}, {"/a/../b", "/b"}, {"/../../x", "/x"}, {"x", "/base/x"}, {"../x", "/x"},
		{"~", "/home/u"}, {"~/x", "/home/u/x"}, {"~x", "/base/~x"}, {"/", "/"}, {".", "/base"}, {"//a", "/a"},
	} {
		if got := resolvePath(c.path, "/base", "/home/u"); got != c.want {
			t.Errorf("%q is %q, not %q", c.path, got, c.want)
		}
	}
}

func TestMemberNames(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"a/b", "a|b"}, {"./a//b/", "a|b"}, {"", ""}, {"./", ""}, {"..a/b..", "..a|b.."},
	} {
		parts, f := splitMember(c.name)
		if f != nil || strings.Join(parts, "|") != c.want {
			t.Errorf("%q: %v, %v", c.name, parts, f)
		}
	}
	deep := strings.Repeat("d/", maxPathDepth+1)
	for _, name := range []string{"/a", "..", "a/../b", "a/..", "a\x00b", deep} {
		if _, f := splitMember(name); f == nil || f.detail != "hostile_archive" {
			t.Errorf("%q is accepted", name)
		}
	}
}

func TestCapabilityStatus(t *testing.T) {
	status := func(bounding string) string {
		return "Name:\tx\nCapInh:\t00\nCapPrm:\t00000000a00000fb\nCapEff:\t00\nCapBnd:\t" + bounding + "\nCapAmb:\t00\n"
	}
	if err := checkCapabilityStatus(status("00000000a00000fb")); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"0000000000001000", "0000000000000100", "zz"} {
		if checkCapabilityStatus(status(bad)) == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
	if checkCapabilityStatus("CapBnd:\t00\n") == nil {
		t.Error("a short status is accepted")
	}
}

func TestStatWithAHostileName(t *testing.T) {
	text := "77 (a) R 1 (x)) S 5 6 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 100 200"
	p, ok := parseStat(77, []byte(text))
	if !ok || p.parent != 5 || p.group != 6 || p.state != 'S' || p.startTicks != 4242 {
		t.Fatalf("got %+v", p)
	}
	if _, ok := parseStat(77, []byte("77 (x")); ok {
		t.Fatal("a cut line is accepted")
	}
}

func TestOOMCountOfBothCgroupVersions(t *testing.T) {
	for text, want := range map[string]int64{
		"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n": 3,
		"low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n":     2,
		"": 0,
	} {
		if got := parseOOMKills([]byte(text)); got != want {
			t.Errorf("%q has %d kills, not %d", text, got, want)
		}
	}
}

func TestFrozenTimeDoesNotCount(t *testing.T) {
	now := time.Unix(1000, 0)
	clock := newTickClock(func() time.Time { return now })
	clock.running, clock.lastTick = true, now // the test ticks, not a goroutine
	fired := make(chan struct{}, 1)
	clock.after(350*time.Millisecond, func() { fired <- struct{}{} })
	steps := []time.Duration{100 * time.Millisecond, time.Hour, 100 * time.Millisecond}
	for _, gap := range steps {
		now = now.Add(gap)
		clock.tick(tickLength)
		if len(clock.pending) != 1 {
			t.Fatalf("fired after a gap of %v", gap)
		}
	}
	now = now.Add(60 * time.Millisecond)
	clock.tick(50 * time.Millisecond)
	<-fired
	clock.after(time.Millisecond, func() { t.Error("a stopped deadline fired") }).stop()
	now = now.Add(time.Second)
	clock.tick(tickLength)
	if len(clock.pending) != 0 {
		t.Fatal("a stopped deadline is pending")
	}
}

func TestTickClockRunsByItself(t *testing.T) {
	clock := newTickClock(time.Now)
	fired := make(chan struct{})
	clock.after(time.Millisecond, func() { close(fired) })
	<-fired
}
