package main

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// pattern is a stream in which every position can be recognised.
func pattern(from, length int64) []byte {
	made := make([]byte, length)
	for i := range made {
		at := from + int64(i)
		made[i] = byte(at ^ at>>8 ^ at>>16)
	}
	return made
}

func spillOf(t *testing.T, limit int64) func() *spill {
	return func() *spill {
		s := openSpill(newSlots(1), t.TempDir())
		if s == nil {
			t.Fatal("no spill")
		}
		s.limit = limit
		t.Cleanup(s.close)
		return s
	}
}

// readAll reads from offset to the end and checks each byte; it returns how many were lost.
func readAll(t *testing.T, o *output, offset int64) (lostTotal int64) {
	t.Helper()
	buffer := make([]byte, 30_000)
	for {
		n, next, lost := o.read(offset, buffer)
		if next != offset+lost+int64(n) {
			t.Fatalf("from %d: %d bytes and %d lost do not lead to %d", offset, n, lost, next)
		}
		if !bytes.Equal(buffer[:n], pattern(next-int64(n), int64(n))) {
			t.Fatalf("wrong bytes at %d", next-int64(n))
		}
		lostTotal += lost
		offset = next
		if n == 0 {
			return lostTotal
		}
	}
}

func TestRingAndSpillKeepOffsets(t *testing.T) {
	const spillLimit = 3 << 20
	seed := rand.New(rand.NewPCG(1, 2))
	o := newOutput(spillOf(t, spillLimit))
	reading := int64(0)
	buffer := make([]byte, 50_000)
	for o.total < 9<<20 {
		o.append(pattern(o.total, seed.Int64N(80_000)))
		n, next, _ := o.read(reading, buffer)
		if !bytes.Equal(buffer[:n], pattern(next-int64(n), int64(n))) {
			t.Fatalf("wrong bytes at %d", next-int64(n))
		}
		reading = next
	}
	lost := readAll(t, o, 0)
	if kept := o.total - lost; kept < spillLimit || kept > spillLimit+ringMax {
		t.Fatalf("kept %d bytes of %d", kept, o.total)
	}
	o.freeze()
	if again := readAll(t, o, 0); again != lost {
		t.Fatalf("freezing lost %d bytes", again-lost)
	}
}

func TestNothingIsLostBelowTheLimits(t *testing.T) {
	o := newOutput(spillOf(t, spillMax))
	for range 50 {
		o.append(pattern(o.total, 100_001))
	}
	if lost := readAll(t, o, 0); lost != 0 {
		t.Fatalf("lost %d", lost)
	}
}

func TestWithoutASpillTheOldestAreLost(t *testing.T) {
	o := newOutput(func() *spill { return nil })
	o.append(pattern(0, 3<<20))
	if lost := readAll(t, o, 0); lost < 2<<20 || lost > 2<<20+evictStep {
		t.Fatalf("lost %d", lost)
	}
}

func TestFrozenOutputOnlyCounts(t *testing.T) {
	o := newOutput(nil)
	o.append([]byte("kept"))
	o.freeze()
	o.append([]byte("late"))
	if o.size() != 4 || o.late != 4 || len(o.ring) != 4 {
		t.Fatalf("size %d, late %d, ring %d", o.size(), o.late, len(o.ring))
	}
	o.discard()
	if _, next, lost := o.read(0, make([]byte, 9)); next != 4 || lost != 4 {
		t.Fatalf("next %d, lost %d", next, lost)
	}
}

func TestOffsetsOutsideTheStream(t *testing.T) {
	o := newOutput(nil)
	o.append([]byte("abc"))
	for _, offset := range []int64{-5, 99} {
		if _, next, lost := o.read(offset, make([]byte, 9)); next != 3 || lost != 0 {
			t.Fatalf("from %d: next %d, lost %d", offset, next, lost)
		}
	}
}
