package main

// caps.go owns giving up NET_ADMIN and SETPCAP and proving it. It never adds a capability.
// Source: capabilities(7), prctl(2).

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

const (
	capSetpcap  = 8
	capNetAdmin = 12

	prSetDumpable     = 4
	prCapbsetDrop     = 24
	prCapAmbient      = 47
	prCapAmbientLower = 3

	capabilityVersion3 = 0x20080522
)

var droppedCapabilities = []uint{capNetAdmin, capSetpcap} // SETPCAP last: dropping needs it

type capHeader struct {
	version uint32
	pid     int32
}

type capSets struct{ effective, permitted, inheritable uint32 }

// dropCapabilities works on the calling thread only; the caller has locked it and executes a new image from it.
func dropCapabilities() error {
	header := capHeader{version: capabilityVersion3}
	var sets [2]capSets
	if errno := capCall(syscall.SYS_CAPGET, &header, &sets); errno != 0 {
		return fmt.Errorf("capget: %w", errno)
	}
	if sets[0].effective&(1<<capSetpcap) == 0 {
		return fmt.Errorf("CAP_SETPCAP is missing: the container must be created with it so that it can be given up")
	}
	for _, number := range droppedCapabilities {
		if errno := prctl(prCapbsetDrop, uintptr(number)); errno != 0 {
			return fmt.Errorf("dropping capability %d from the bounding set: %w", number, errno)
		}
		if errno := prctl(prCapAmbient, prCapAmbientLower, uintptr(number)); errno != 0 && errno != syscall.EINVAL {
			return fmt.Errorf("lowering ambient capability %d: %w", number, errno)
		}
	}
	for _, number := range droppedCapabilities {
		keep := ^uint32(1 << number)
		sets[0].effective &= keep
		sets[0].permitted &= keep
		sets[0].inheritable &= keep
	}
	if errno := capCall(syscall.SYS_CAPSET, &header, &sets); errno != 0 {
		return fmt.Errorf("capset: %w", errno)
	}
	return nil
}

// verifyDropped reads the kernel's own account of the calling thread, so it does not depend on the calls above.
func verifyDropped() error {
	text, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return fmt.Errorf("cannot verify capabilities: %w", err)
	}
	return checkCapabilityStatus(string(text))
}

func checkCapabilityStatus(status string) error {
	seen := 0
	for _, line := range strings.Split(status, "\n") {
		name, value, found := strings.Cut(line, ":")
		if !found || len(name) != 6 || !strings.HasPrefix(name, "Cap") {
			continue
		}
		mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err != nil {
			return fmt.Errorf("cannot read %s of the process status: %w", name, err)
		}
		for _, number := range droppedCapabilities {
			if mask&(1<<number) != 0 {
				return fmt.Errorf("capability %d is still in %s", number, name)
			}
		}
		seen++
	}
	if seen != 5 { // CapInh CapPrm CapEff CapBnd CapAmb
		return fmt.Errorf("the process status names %d capability sets, not 5", seen)
	}
	return nil
}

// boundingSet is the hexadecimal CapBnd that every child is limited to.
func boundingSet() (string, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	_, after, found := strings.Cut(string(text), "CapBnd:")
	if !found {
		return "", fmt.Errorf("no CapBnd in the process status")
	}
	value, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(value), nil
}

// hideFromSiblings keeps other root processes of the box from tracing process 1.
func hideFromSiblings() {
	if errno := prctl(prSetDumpable, 0); errno != 0 {
		report("cannot make process 1 untraceable: %v", errno)
	}
}

func prctl(option uintptr, args ...uintptr) syscall.Errno {
	var full [4]uintptr
	copy(full[:], args)
	_, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, option, full[0], full[1], full[2], full[3], 0)
	return errno
}

func capCall(number uintptr, header *capHeader, sets *[2]capSets) syscall.Errno {
	_, _, errno := syscall.RawSyscall(number, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(sets)), 0)
	return errno
}
