package main

// streams.go owns the descriptors that a process is started with: pipes, or a terminal. Our ends are non-blocking and
// wait in the runtime's poller. It reads and writes nothing.

import "syscall"

// openStreams makes the child's three descriptors; closeAll closes the child's ends, and ours too when it failed.
func (b *box) openStreams(r *run, stdinMode string) (files []uintptr, closeAll func(failed bool), f *fault) {
	var theirs []int
	var ours []interface{ Close() error }
	closeAll = func(failed bool) {
		for _, fd := range theirs {
			syscall.Close(fd)
		}
		for _, file := range ours {
			if failed {
				file.Close()
			}
		}
	}
	files = []uintptr{b.devNull}
	if stdinMode != "none" {
		pipe, reading, err := newStdinPipe()
		if err != nil {
			return nil, nil, pipeFault(err)
		}
		r.stdin, files[0] = pipe, uintptr(reading)
		theirs, ours = append(theirs, reading), append(ours, pipe.file)
	}
	for _, into := range []*output{r.stdout, r.stderr} {
		reading, writing, err := newPipe()
		if err != nil {
			closeAll(true)
			return nil, nil, pipeFault(err)
		}
		r.pumps = append(r.pumps, &pump{file: reading, into: into, changed: r.outputCame, drained: r.streamDrained})
		files = append(files, uintptr(writing))
		theirs, ours = append(theirs, writing), append(ours, reading)
	}
	return files, closeAll, nil
}

// openTerminal is openStreams for a run on a terminal.
func openTerminal(r *run, size windowSize, who account) (files []uintptr, closeAll func(failed bool), f *fault) {
	made, theirs, err := newTerminal(size, who)
	if err != nil {
		return nil, nil, faultf("resource_exhausted", "terminals_exhausted", "no terminal for the process: %v", err)
	}
	r.pty, r.terminal, r.undrained = r.newOutput(), made, 1
	r.pumps = []*pump{{
		file: made.file, into: r.pty, isTerminal: true, gone: make(chan struct{}), changed: r.outputCame, drained: r.streamDrained,
	}}
	fd := uintptr(theirs)
	return []uintptr{fd, fd, fd}, func(failed bool) {
		syscall.Close(theirs)
		if failed {
			made.file.Close()
		}
	}, nil
}

func pipeFault(err error) *fault {
	return faultf("resource_exhausted", "descriptors_exhausted", "no pipe for the process: %v", err)
}
