package main

// box.go owns the state of this runtime: what it was told by `go`, the highest epoch seen, whether it takes new work,
// and how much work is under way. It never does the work.

import (
	"sync"
	"syscall"
	"time"
)

const drainFor = 10 * time.Second // without the owner's word, a drained box takes work again

type boxConfig struct {
	birthID     string
	capBounding string
	environ     []string

	metadataPath string // empty: none is kept
}

type box struct {
	boxConfig
	bootMs   int64
	devNull  uintptr // opened at start, for processes without input
	reaper   *reaper
	clock    *tickClock
	blocking *blocking
	users    *accounts
	oom      *oomCounter
	runs     *runTable
	watches  *watchHub
	disk     *diskWatch
	activity *activity

	restoring sync.Once

	mu         sync.Mutex
	generation int64 // 0 before go
	epoch      int64
	settings   settings
	restored   *restoredMetadata // by the first go
	draining   bool
	stopping   bool
	drainEnd   *deadline
	inFlight   int           // admitted work that is not a registered run
	quiet      chan struct{} // closed, and made anew, each time work ends
}

// settings are what the first go of a generation fixes.
type settings struct {
	user    string
	workdir string
	env     map[string]string
}

func newBox(config boxConfig) (*box, error) {
	devNull, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	b := &box{
		boxConfig: config,
		devNull:   uintptr(devNull),
		reaper:    newReaper(),
		clock:     newTickClock(time.Now),
		blocking:  newBlocking(),
		users:     newAccounts("/etc/passwd", "/etc/group"),
		oom:       newOOMCounter(),
		activity:  newActivity(time.Now),
		quiet:     make(chan struct{}),
	}
	b.runs = newRunTable(b.workEnded)
	b.disk = newDiskWatch(b, "/")
	b.watches = newWatchHub(b.blocking.files)
	b.reaper.onOrphan = b.runs.orphanEnded
	return b, nil
}

// fence is the caller's claim about whom it speaks for; a nil part claims nothing.
type fence struct{ epoch, generation *int64 }

// checkFence refuses a stale caller and remembers a newer epoch.
func (b *box) checkFence(f fence) *fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.checkFenceLocked(f)
}

func (b *box) checkFenceLocked(f fence) *fault {
	if f.epoch != nil && *f.epoch < b.epoch {
		stale := faultf("failed_precondition", "stale_epoch", "epoch %d is older than %d", *f.epoch, b.epoch)
		stale.status = 409
		stale.fields = map[string]any{"epoch": b.epoch}
		return stale
	}
	if f.generation != nil && b.generation != 0 && *f.generation != b.generation {
		wrong := faultf("failed_precondition", "wrong_generation", "this is generation %d, not %d", b.generation, *f.generation)
		wrong.status = 409
		wrong.fields = map[string]any{"generation": b.generation}
		return wrong
	}
	if f.epoch != nil && b.generation != 0 {
		b.epoch = *f.epoch
	}
	return nil
}

// checkStarted refuses everything before go.
func (b *box) checkStarted() *fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.generation == 0 {
		return faultf("unavailable", "not_started", "nothing runs before go")
	}
	return nil
}

// beginWork admits one piece of new work; the caller calls end exactly once.
func (b *box) beginWork() (end func(), refusal *fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.generation == 0:
		return nil, faultf("unavailable", "not_started", "nothing runs before go")
	case b.draining || b.stopping:
		return nil, faultf("unavailable", "draining", "the box takes no new work")
	}
	b.inFlight++
	return func() {
		b.mu.Lock()
		b.inFlight--
		b.mu.Unlock()
		b.workEnded()
	}, nil
}

// workEnded wakes whoever waits for the box to be quiet.
func (b *box) workEnded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.quiet)
	b.quiet = make(chan struct{})
}

func (b *box) stopAdmitting() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopping = true
}

// begin is `go`: the first one starts the generation, a repeat adopts it and keeps everything.
func (b *box) begin(generation, epoch int64, s settings) *fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	if refusal := b.checkFenceLocked(fence{epoch: &epoch, generation: &generation}); refusal != nil {
		return refusal
	}
	if b.generation == 0 {
		b.generation, b.settings = generation, s
	}
	b.epoch = epoch
	if b.draining { // the owner's word: it is still there
		b.armDrainLocked()
	}
	return nil
}

// drain is how a box answers when it is asked to stop taking work.
type drain struct {
	isDrained bool
	isWriting bool     // admitted work that is not a run has not ended yet
	going     []string // running runs
	quiet     <-chan struct{}
}

// tryDrain stops new work if nothing is under way, or by force. Detached runs do not count as work.
func (b *box) tryDrain(force bool) drain {
	b.mu.Lock()
	defer b.mu.Unlock()
	going, busy := b.runs.going()
	answer := drain{isWriting: b.inFlight > 0, going: going, quiet: b.quiet}
	if (busy || answer.isWriting) && !force && !b.draining {
		return answer
	}
	b.draining, answer.isDrained = true, true
	b.armDrainLocked()
	return answer
}

func (b *box) armDrainLocked() {
	b.drainEnd.stop()
	var mine *deadline
	armed := make(chan struct{})
	mine = b.clock.after(drainFor, func() {
		<-armed
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.drainEnd == mine {
			b.draining, b.drainEnd = false, nil
		}
	})
	b.drainEnd = mine
	close(armed)
}

func (b *box) resume() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drainEnd.stop()
	b.draining, b.drainEnd = false, nil
}

// hello is what the box says about itself.
type hello struct {
	Protocol    int    `json:"protocol"`
	Build       string `json:"build"`
	BirthID     string `json:"birthId"`
	Generation  int64  `json:"generation"`
	Epoch       int64  `json:"epoch"`
	State       string `json:"state"`
	Runs        int    `json:"runs"`
	CapBounding string `json:"capBounding"`
	BootMs      int64  `json:"bootMs"`
	IdleMs      int64  `json:"idleMs"`

	Metadata *restoredMetadata `json:"metadata,omitempty"`
}

func (b *box) hello() hello {
	b.mu.Lock()
	defer b.mu.Unlock()
	going, isBusy := b.runs.going()
	state := "running"
	switch {
	case b.generation == 0:
		state = "waiting"
	case b.draining || b.stopping:
		state = "draining"
	case b.disk.exceeded.Load():
		state = "disk_exceeded"
	}
	return hello{
		Protocol: protocol, Build: build, BirthID: b.birthID, Generation: b.generation, Epoch: b.epoch,
		State: state, Runs: len(going), CapBounding: b.capBounding, BootMs: b.bootMs,
		IdleMs:   b.activity.idle(isBusy).Milliseconds(),
		Metadata: b.restored,
	}
}

func (b *box) currentSettings() (settings, int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.settings, b.generation
}
