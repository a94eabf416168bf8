package main

// runs.go owns which runs are known: by id, by process number, by tag. Ended runs are kept so that a repeated start
// attaches to them; their number and what their output occupies are bounded, the oldest go first.

import (
	"slices"
	"sync"
)

const (
	keptRuns        = 4096
	keptMemoryBytes = 16 << 20
	keptDiskBytes   = 256 << 20
)

type runTable struct {
	workEnded func()

	mu      sync.Mutex
	byID    map[string]*run
	active  map[*run]struct{}
	metered map[*run]struct{} // the active ones whose CPU time is limited
	old     []*run            // ended, oldest first
	memory  int64             // what the output of old runs occupies
	disk    int64
	trim    int // old[:trim] have lost their output
}

func newRunTable(workEnded func()) *runTable {
	return &runTable{workEnded: workEnded, byID: map[string]*run{}, active: map[*run]struct{}{}, metered: map[*run]struct{}{}}
}

// claim returns the run of that id, or makes it known with fresh; isNew says which.
func (t *runTable) claim(id string, fresh func() *run) (found *run, isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.byID[id]; ok {
		return known, false
	}
	made := fresh()
	t.byID[id] = made
	t.active[made] = struct{}{}
	return made, true
}

func (t *runTable) known(id string) *run {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// refused forgets a run that never started.
func (t *runTable) refused(r *run) {
	t.mu.Lock()
	delete(t.byID, r.id)
	delete(t.active, r)
	delete(t.metered, r)
	t.mu.Unlock()
	t.workEnded()
}

func (t *runTable) ended(r *run) {
	t.mu.Lock()
	delete(t.active, r)
	delete(t.metered, r)
	t.old = append(t.old, r)
	for _, o := range r.outputs() {
		memory, disk := o.kept()
		t.memory += memory
		t.disk += disk
	}
	t.shrink()
	t.mu.Unlock()
	t.workEnded()
}

func (t *runTable) shrink() {
	for t.trim < len(t.old) && (t.memory > keptMemoryBytes || t.disk > keptDiskBytes) {
		t.dropOutput(t.old[t.trim])
		t.trim++
	}
	for len(t.old) > keptRuns {
		if t.trim == 0 {
			t.dropOutput(t.old[0])
			t.trim = 1
		}
		delete(t.byID, t.old[0].id)
		t.old[0] = nil
		t.old, t.trim = t.old[1:], t.trim-1
	}
}

func (t *runTable) dropOutput(r *run) {
	for _, o := range r.outputs() {
		memory, disk := o.kept()
		t.memory -= memory
		t.disk -= disk
		o.discard()
	}
}

// going lists the ids of running runs; busy is true when one of them keeps the box awake.
func (t *runTable) going() (ids []string, busy bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids = make([]string, 0, len(t.active))
	for r := range t.active {
		ids = append(ids, r.id)
		busy = busy || r.keepsAwake
	}
	slices.Sort(ids)
	return ids, busy
}

func (t *runTable) running() []*run {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*run, 0, len(t.active))
	for r := range t.active {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *run) int { return a.startedAt.Compare(b.startedAt) })
	return list
}

// selector names a run as envd and we do; the first part that is set counts.
type selector struct {
	PID        int    `json:"pid"`
	Tag        string `json:"tag"`
	Sandkeeper struct {
		RunID string `json:"runId"`
	} `json:"sandkeeper"`
}

// find prefers running runs, then the newest ended one.
func (t *runTable) find(s selector) (*run, *fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if id := s.Sandkeeper.RunID; id != "" {
		if found, ok := t.byID[id]; ok {
			return found, nil
		}
		return nil, faultf("not_found", "no_such_run", "no run %q", id)
	}
	matches := func(r *run) bool {
		if s.PID != 0 {
			return r.pid == s.PID
		}
		return s.Tag != "" && r.tag == s.Tag
	}
	for r := range t.active {
		select {
		case <-r.launched:
			if matches(r) {
				return r, nil
			}
		default:
		}
	}
	for i := len(t.old) - 1; i >= 0; i-- {
		if matches(t.old[i]) {
			return t.old[i], nil
		}
	}
	return nil, faultf("not_found", "no_such_run", "no process with pid %d or tag %q", s.PID, s.Tag)
}

// ownership tells a tree walk which run ids and group leaders are other runs'.
func (t *runTable) ownership(not *run) ownership {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := ownership{runIDs: map[string]bool{}, leaders: map[int]bool{}}
	for r := range t.active {
		if r != not {
			o.runIDs[r.id] = true
			select {
			case <-r.launched:
				o.leaders[r.pid] = true
			default:
			}
		}
	}
	for _, r := range t.old {
		if r != not {
			o.runIDs[r.id] = true
		}
	}
	return o
}
