package main

// deleted.go owns the space of files that have no name any more but are open in a process of the box: a walk does not
// find them. Files that are only mapped are not found either. It opens none of them.

import (
	"os"
	"syscall"
)

// deletedBytes adds up what processes, but for process 1, hold open on the file system of root.
func deletedBytes(root string) (total int64) {
	var home syscall.Stat_t
	if syscall.Stat(root, &home) != nil {
		return 0
	}
	list, err := listProcesses()
	if err != nil {
		report("cannot list processes: %v", err)
		return 0
	}
	counted := map[uint64]bool{}
	for _, p := range list {
		asOwnerOf(p.pid, func(folder string) {
			names, err := os.ReadDir(folder + "/fd")
			if err != nil {
				return // it has gone, or hides
			}
			for _, name := range names {
				var stat syscall.Stat_t
				if syscall.Stat(folder+"/fd/"+name.Name(), &stat) != nil || stat.Nlink != 0 || stat.Dev != home.Dev {
					continue
				}
				if !counted[stat.Ino] {
					counted[stat.Ino] = true
					total += stat.Blocks * 512
				}
			}
		})
	}
	return total
}
