package main

// disk.go owns the growth limit of the container's own layer where the engine has none: it looks at the free space of
// the file system often, and adds up what the layer holds only when the space that has gone could be the rest of the
// limit. Over the limit all processes of the box stand still until there is room again or the owner allows more.
// It never deletes anything.

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	diskLook     = 500 * time.Millisecond
	diskMeasure  = time.Minute
	diskMasked   = 3 * time.Second // while somebody on the file system frees what this box may take
	diskRestPart = 4               // measuring takes at most one part of so many of the time
	diskYoung    = 30 * time.Second
)

type diskWatch struct {
	box  *box
	root string
	now  func() time.Time
	free func() (int64, error)                     // of the file system
	used func(context.Context) (layerUsage, error) // of the layer, exactly
	hold func(shouldStand bool, who *stillStand)   // stops or continues the box
	born func() (moment time.Time, known bool)     // of the container

	exceeded atomic.Bool

	measuring sync.Mutex // around a measurement and what follows from it
	standing  stillStand

	mu    sync.Mutex
	limit int64 // 0: none
	last  measurement
	space spaceGone
	timer *deadline
}

// spaceGone follows the free space since the last measurement. What goes is added up from look to look, so that space
// which somebody else frees later hides nothing of it; a look that sees more space than the one before is blind.
type spaceGone struct {
	free, gone int64
	isMasked   bool
}

func (s *spaceGone) follow(free int64) {
	if free > s.free {
		s.isMasked = true
	} else {
		s.gone += s.free - free
	}
	s.free = free
}

type measurement struct {
	usage layerUsage
	at    time.Time // zero: none yet
	took  time.Duration
}

type layerUsage struct{ bytes, files int64 }

func newDiskWatch(b *box, root string) *diskWatch {
	d := &diskWatch{box: b, root: root, now: time.Now, hold: holdProcesses}
	d.free = func() (int64, error) {
		var stat syscall.Statfs_t
		err := syscall.Statfs(root, &stat)
		return int64(stat.Bfree) * stat.Bsize, err
	}
	d.used = func(ctx context.Context) (usage layerUsage, err error) {
		if usage, err = measureLayer(ctx, b.blocking.files, root); err == nil {
			b.blocking.tree.do(func() { usage.bytes += deletedBytes(root) })
		}
		return usage, err
	}
	d.born = func() (time.Time, bool) { return bornAt(root) }
	return d
}

// allow takes the owner's word; 0 takes the limit away. It acts with the next measurement.
func (d *diskWatch) allow(limit int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limit = limit
	if born, known := d.born(); known && d.last.at.IsZero() && d.now().Sub(born) < diskYoung {
		if free, err := d.free(); err == nil { // as good as empty: a start need not wait for a walk
			d.last, d.space = measurement{at: d.now()}, spaceGone{free: free}
		}
	}
}

// setLimit allows, and measures when that can matter.
func (d *diskWatch) setLimit(ctx context.Context, limit int64) error {
	d.allow(limit)
	d.mu.Lock()
	isKnown := !d.last.at.IsZero()
	d.mu.Unlock()
	if d.exceeded.Load() || limit > 0 && !isKnown {
		if err := d.measure(ctx); err != nil {
			return err
		}
	}
	d.wake()
	return nil
}

// wake begins to look when a run has started; looking ends by itself when none goes.
func (d *diskWatch) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.limit > 0 && d.timer == nil {
		d.timer = d.box.clock.after(diskLook, d.look)
	}
}

func (d *diskWatch) look() {
	going, _ := d.box.runs.going()
	d.mu.Lock()
	d.timer = nil
	limit, last := d.limit, d.last
	d.mu.Unlock()
	switch {
	case d.exceeded.Load():
		d.holdAgain()
	case limit > 0 && d.isDue(limit, &last):
		if err := d.measure(context.Background()); err != nil {
			report("the disk cannot be measured: %v", err)
		}
	}
	if len(going) > 0 || d.exceeded.Load() {
		d.wake()
	}
}

// isDue says whether the limit could have been passed since the last measurement.
func (d *diskWatch) isDue(limit int64, last *measurement) bool {
	free, err := d.free()
	d.mu.Lock()
	if err == nil {
		d.space.follow(free)
	}
	space := d.space
	d.mu.Unlock()
	since := d.now().Sub(last.at)
	switch {
	case since < last.took*diskRestPart:
		return false
	case since >= diskMeasure, space.isMasked && since >= diskMasked:
		return true
	}
	return err != nil || space.gone > limit-last.usage.bytes
}

// measure adds up the layer and acts on it.
func (d *diskWatch) measure(ctx context.Context) error {
	d.measuring.Lock()
	defer d.measuring.Unlock()
	began := d.now()
	free, err := d.free()
	if err != nil {
		return err
	}
	usage, err := d.used(ctx)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.last = measurement{usage: usage, at: d.now(), took: d.now().Sub(began)}
	d.space = spaceGone{free: free}
	isOver := d.limit > 0 && usage.bytes > d.limit
	d.mu.Unlock()
	if wasOver := d.exceeded.Swap(isOver); isOver || wasOver {
		d.hold(isOver, &d.standing)
	}
	return nil
}

// holdAgain stops what was being started when the others were stopped.
func (d *diskWatch) holdAgain() {
	d.measuring.Lock()
	defer d.measuring.Unlock()
	if d.exceeded.Load() {
		d.hold(true, &d.standing)
	}
}

type diskState struct {
	usedBytes, limitBytes int64
	isKnown               bool
}

func (d *diskWatch) state() diskState {
	d.mu.Lock()
	defer d.mu.Unlock()
	return diskState{usedBytes: d.last.usage.bytes, limitBytes: d.limit, isKnown: !d.last.at.IsZero()}
}

// refusal is for what would write more.
func (d *diskWatch) refusal() *fault {
	if !d.exceeded.Load() {
		return nil
	}
	s := d.state()
	full := faultf("resource_exhausted", "disk_exceeded",
		"the box holds %d bytes and its limit is %d: remove files and recheck, or raise it", s.usedBytes, s.limitBytes)
	full.fields = map[string]any{"diskUsedBytes": s.usedBytes, "diskLimitBytes": s.limitBytes}
	return full
}

// measureLayer adds up what has changed since the container was made: that is what its layer holds. Hard links count
// once; the folders' own blocks count too, so that many empty files do.
func measureLayer(ctx context.Context, slots slots, root string) (usage layerUsage, err error) {
	born, isKnown := bornAt(root)
	counted := map[uint64]struct{}{}
	walk := walker{ctx: ctx, slots: slots}
	walk.visit = func(entry *found) (bool, error) {
		if isKnown && time.Unix(entry.stat.Ctim.Unix()).Before(born) {
			return true, nil
		}
		if entry.stat.Nlink > 1 && entry.kind() != syscall.S_IFDIR {
			if _, isOld := counted[entry.stat.Ino]; isOld {
				return false, nil
			}
			counted[entry.stat.Ino] = struct{}{}
		}
		usage.bytes += entry.stat.Blocks * 512
		usage.files++
		return true, nil
	}
	return usage, walk.walk(root)
}
