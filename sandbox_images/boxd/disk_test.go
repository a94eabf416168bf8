package main

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// fakeDisk is a watch whose file system the test decides.
type fakeDisk struct {
	*diskWatch
	freeBytes, usedBytes int64
	walks                int
	held                 []bool
}

func newFakeDisk(t *testing.T) *fakeDisk {
	f := &fakeDisk{diskWatch: newDiskWatch(freshBox(t), "/"), freeBytes: 1000}
	f.free = func() (int64, error) { return f.freeBytes, nil }
	f.used = func(context.Context) (layerUsage, error) {
		f.walks++
		return layerUsage{bytes: f.usedBytes}, nil
	}
	f.now = func() time.Time { return time.Unix(1000, 0) }
	f.hold = func(shouldStand bool, _ *stillStand) { f.held = append(f.held, shouldStand) }
	f.born = func() (time.Time, bool) { return time.Time{}, false }
	return f
}

func TestDiskIsWalkedOnlyWhenItCouldMatter(t *testing.T) {
	f := newFakeDisk(t)
	must(t, f.setLimit(t.Context(), 100))
	if f.walks != 1 {
		t.Fatalf("%d walks at first", f.walks)
	}
	f.freeBytes = 900 // exactly the limit
	f.look()
	if f.walks != 1 {
		t.Fatal("a walk that could not matter")
	}
	f.freeBytes, f.usedBytes = 899, 60 // somebody else took the rest
	f.look()
	if f.walks != 2 || f.exceeded.Load() {
		t.Fatalf("%d walks", f.walks)
	}
	f.freeBytes = 870
	f.look()
	if f.walks != 2 {
		t.Fatal("the last walk is forgotten")
	}
	f.freeBytes, f.usedBytes = 850, 101
	f.look()
	if !f.exceeded.Load() || len(f.held) != 1 || !f.held[0] {
		t.Fatalf("over the limit: %v", f.held)
	}
}

func TestWhatOthersFreeHidesNothingForLong(t *testing.T) {
	f := newFakeDisk(t)
	must(t, f.setLimit(t.Context(), 100))
	for _, free := range []int64{930, 5000, 4980} { // 70 are gone, others free a lot, 20 more are gone
		f.freeBytes = free
		f.look()
	}
	if f.walks != 1 {
		t.Fatalf("%d walks for 90 of 100", f.walks)
	}
	f.freeBytes = 4969
	f.look()
	if f.walks != 2 {
		t.Fatal("space that was freed later hides what has gone")
	}
	f.freeBytes, f.usedBytes = 9000, 150 // between two looks more was freed than this box took
	f.look()
	f.now = func() time.Time { return time.Unix(1000, 0).Add(diskMasked) }
	f.look()
	if f.walks != 3 || !f.exceeded.Load() {
		t.Fatalf("%d walks", f.walks)
	}
}

func TestDiskLimitCanBeRaisedAndRechecked(t *testing.T) {
	f := newFakeDisk(t)
	f.usedBytes = 200
	must(t, f.setLimit(t.Context(), 100))
	if refusal := f.refusal(); refusal == nil || refusal.detail != "disk_exceeded" || refusal.fields["diskUsedBytes"] != int64(200) {
		t.Fatalf("%v", f.refusal())
	}
	f.look() // what was being started meanwhile is stopped as well
	must(t, f.setLimit(t.Context(), 150))
	if !f.exceeded.Load() {
		t.Fatal("a limit that is still too low is enough")
	}
	f.usedBytes = 120
	must(t, f.measure(t.Context()))
	if f.exceeded.Load() || f.refusal() != nil || f.held[len(f.held)-1] {
		t.Fatalf("below the limit: %v", f.held)
	}
	f.usedBytes = 500
	must(t, f.setLimit(t.Context(), 0))
	f.look()
	if f.exceeded.Load() {
		t.Fatal("no limit is exceeded")
	}
}

func TestAYoungBoxNeedsNoWalk(t *testing.T) {
	f := newFakeDisk(t)
	f.born = func() (time.Time, bool) { return time.Unix(990, 0), true }
	must(t, f.setLimit(t.Context(), 100))
	if s := f.state(); f.walks != 0 || !s.isKnown || s.limitBytes != 100 {
		t.Fatalf("%d walks, %+v", f.walks, s)
	}
}

func TestALayerIsWhatHasChangedSinceItsBirth(t *testing.T) {
	root := filesIn(t, map[string]string{"a": "x", "d/b": "y"})
	must(t, os.Link(root+"/a", root+"/d/same"))
	usage, err := measureLayer(t.Context(), newSlots(2), root)
	must(t, err)
	if usage.files != 4 || usage.bytes < 4096 { // the root, a, d, b
		t.Errorf("%+v", usage)
	}
}

func TestStandstillReleasesOnlyItsOwn(t *testing.T) {
	sleeper := exec.Command("sleep", "60")
	must(t, sleeper.Start())
	defer sleeper.Process.Kill()
	pid := sleeper.Process.Pid
	stateIs := func(want byte) {
		t.Helper()
		for p, ok := readProcess(pid); ok && p.state != want; p, ok = readProcess(pid) {
		}
	}
	must(t, sleeper.Process.Signal(syscall.SIGSTOP))
	stateIs('T')
	p, _ := readProcess(pid)
	standing := stillStand{pid: p.startTicks + 1} // an earlier process of that number
	standing.release()
	if p, _ := readProcess(pid); p.state != 'T' || standing != nil {
		t.Errorf("a stranger goes on: %c", p.state)
	}
	standing = stillStand{pid: p.startTicks}
	standing.release()
	stateIs('S')
}

func TestHealthReport(t *testing.T) {
	b, _ := sharedBox()
	got := ask(t, b.routes(), "GET", ownPrefix+"health", nil)
	if got.status != 200 || got.body["shell"] != true || got.body["canFork"] != true || got.body["state"] != "running" {
		t.Errorf("%s", got.text)
	}
}

func TestCgroupValues(t *testing.T) {
	if v := parseCgroupValue([]byte("42\n")); v == nil || *v != 42 {
		t.Errorf("%v", v)
	}
	for _, none := range []string{"max\n", "9223372036854771712\n", ""} {
		if v := parseCgroupValue([]byte(none)); v != nil {
			t.Errorf("%q is %d", none, *v)
		}
	}
}
