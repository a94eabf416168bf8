package main

// born.go owns the moment at which this container's own layer was made: what has changed since is in that layer, what
// is older came with the image. It never guesses: without a birth time there is none.
// Source: statx(2).

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

const (
	statxBirth  = 0x800
	statxLength = 256
)

var statxNumber = map[string]uintptr{"amd64": 332, "arm64": 291}[runtime.GOARCH]

// bornAt is the birth time of a path. A container's root folder is made with its layer and cannot be replaced.
func bornAt(path string) (moment time.Time, known bool) {
	at, err := syscall.BytePtrFromString(path)
	if err != nil || statxNumber == 0 {
		return time.Time{}, false
	}
	var buffer [statxLength / 8]uint64
	_, _, errno := syscall.Syscall6(statxNumber, ^uintptr(99), uintptr(unsafe.Pointer(at)), 0, // ^99 is -100: no folder
		statxBirth, uintptr(unsafe.Pointer(&buffer[0])), 0)
	mask := uint32(buffer[0])
	if errno != 0 || mask&statxBirth == 0 {
		return time.Time{}, false
	}
	return time.Unix(int64(buffer[10]), int64(uint32(buffer[11]))), true // stx_btime
}

// cameWithImage says whether a file is older than the container.
func cameWithImage(stat *syscall.Stat_t) bool {
	born, known := bornAt("/")
	return !known || time.Unix(stat.Ctim.Unix()).Before(born)
}
