package main

// output.go owns what one stream of one run has written: the newest bytes in a ring, older ones in a spill, the
// oldest gone. Offsets count from the first byte ever written. It never waits for a reader.

import "sync"

const (
	ringMin   = 4 << 10
	ringMax   = 1 << 20
	evictStep = 256 << 10
)

type output struct {
	mu        sync.Mutex
	openSpill func() *spill // nil result: there is nowhere to spill to

	ring      []byte // byte at offset o is ring[o % len(ring)]
	ringStart int64  // offset of the oldest byte in the ring
	total     int64  // offset after the newest byte
	spill     *spill
	noSpill   bool
	frozen    bool
	late      int64 // bytes written after the run had ended; counted, not kept
}

func newOutput(openSpill func() *spill) *output { return &output{openSpill: openSpill} }

// append keeps data; once frozen it only counts.
func (o *output) append(data []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.frozen {
		o.late += int64(len(data))
		return
	}
	for len(data) > 0 {
		room := o.makeRoom(len(data))
		part := data[:min(len(data), room)]
		at := int(o.total % int64(len(o.ring)))
		copied := copy(o.ring[at:], part)
		copy(o.ring, part[copied:])
		o.total += int64(len(part))
		data = data[len(part):]
	}
}

// makeRoom grows the ring, or moves its oldest bytes to the spill, and returns the free space.
func (o *output) makeRoom(wanted int) int {
	held := int(o.total - o.ringStart)
	if size := len(o.ring); size-held < wanted && size < ringMax {
		grown := max(size, ringMin)
		for grown < ringMax && grown-held < wanted {
			grown *= 2
		}
		o.resize(grown)
	}
	if len(o.ring)-held < wanted {
		o.evict(min(held, max(wanted, evictStep)))
	}
	return len(o.ring) - int(o.total-o.ringStart)
}

// resize gives the ring a new length that holds what it holds.
func (o *output) resize(length int) {
	fresh := make([]byte, length)
	for offset := o.ringStart; offset < o.total; {
		piece := o.ringPiece(offset, int(o.total-offset))
		at := int(offset % int64(length))
		n := copy(fresh[at:], piece)
		offset += int64(n)
	}
	o.ring = fresh
}

// ringPiece is the longest contiguous part of the ring from offset.
func (o *output) ringPiece(offset int64, limit int) []byte {
	at := int(offset % int64(len(o.ring)))
	return o.ring[at:min(len(o.ring), at+limit)]
}

func (o *output) evict(count int) {
	if o.spill == nil && !o.noSpill {
		o.spill = o.openSpill()
		o.noSpill = o.spill == nil
		if o.spill != nil {
			o.spill.start, o.spill.end = o.ringStart, o.ringStart
		}
	}
	for count > 0 {
		piece := o.ringPiece(o.ringStart, count)
		if o.spill != nil && !o.spill.write(piece) {
			o.spill.close()
			o.spill, o.noSpill = nil, true
		}
		o.ringStart += int64(len(piece))
		count -= len(piece)
	}
}

// read copies from offset on. lost is how many bytes from offset on are gone; next is the offset after what it copied.
func (o *output) read(offset int64, buffer []byte) (n int, next, lost int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	offset = min(max(offset, 0), o.total)
	oldest := o.ringStart
	if o.spill != nil {
		oldest = o.spill.start
	}
	if offset < oldest {
		lost, offset = oldest-offset, oldest
	}
	if offset < o.ringStart {
		n = o.spill.read(offset, buffer)
		if n > 0 {
			return n, offset + int64(n), lost
		}
		lost += o.ringStart - offset // the spill cannot be read
		offset = o.ringStart
	}
	if offset < o.total {
		limit := min(len(buffer), int(o.total-offset))
		n = copy(buffer, o.ringPiece(offset, limit))
		n += copy(buffer[n:limit], o.ring)
	}
	return n, offset + int64(n), lost
}

// freeze ends the stream: what comes later belongs to background processes, not to the run.
func (o *output) freeze() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.frozen = true
	held := int(o.total - o.ringStart)
	if held == 0 {
		o.ring = nil
	} else if held < len(o.ring) {
		o.resize(held)
	}
}

// kept is how much memory and disk the stream holds.
func (o *output) kept() (memory, disk int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.spill != nil {
		disk = o.spill.end - o.spill.start
	}
	return int64(len(o.ring)), disk
}

// discard forgets the bytes, not their number.
func (o *output) discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.spill != nil {
		go o.spill.close() // the reaper may be the caller: it must not wait for a disk
	}
	o.spill, o.noSpill, o.ring, o.ringStart = nil, true, nil, o.total
}

func (o *output) size() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.total
}
