package main

// program.go owns finding the program that a command names, and what it means when the kernel refuses to run it. It
// starts nothing.

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// findProgram searches PATH as execvp does, but as root: the kernel has the last word on permission.
func findProgram(cmd, searchPath, cwd string) (string, *fault) {
	if cmd == "" {
		return "", faultf("invalid_argument", "exec_not_found", "the command is empty")
	}
	if strings.Contains(cmd, "/") {
		path := cmd
		if path[0] != '/' {
			path = filepath.Join(cwd, path)
		}
		return checkProgram(path, cmd)
	}
	var refusal *fault
	for _, folder := range filepath.SplitList(searchPath) {
		path := filepath.Join(firstOf(folder, cwd), cmd)
		if path[0] != '/' {
			path = filepath.Join(cwd, path)
		}
		found, f := checkProgram(path, cmd)
		if f == nil {
			return found, nil
		}
		if f.detail == "exec_denied" {
			refusal = f
		}
	}
	if refusal == nil {
		refusal = faultf("invalid_argument", "exec_not_found", "%s: command not found", cmd)
	}
	return "", refusal
}

func checkProgram(path, cmd string) (string, *fault) {
	var stat syscall.Stat_t
	err := syscall.Stat(path, &stat)
	switch {
	case err == syscall.EACCES:
		return "", faultf("invalid_argument", "exec_denied", "%s: %v", cmd, err)
	case err != nil:
		return "", faultf("invalid_argument", "exec_not_found", "%s: command not found", cmd)
	case stat.Mode&syscall.S_IFMT != syscall.S_IFREG || stat.Mode&0o111 == 0:
		return "", faultf("invalid_argument", "exec_denied", "%s: not an executable file", cmd)
	}
	return path, nil
}

func spawnFault(err error, cmd, cwd string, who account) *fault {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return faultf("internal", "exec_failed", "%s: %v", cmd, err)
	}
	switch errno {
	case syscall.EAGAIN:
		return faultf("resource_exhausted", "pids_exhausted", "the box has no process slot left for %s", cmd)
	case syscall.ENOMEM:
		return faultf("resource_exhausted", "memory_exhausted", "the box has no memory left for %s", cmd)
	case syscall.ENOENT, syscall.ENOTDIR:
		return faultf("invalid_argument", "exec_not_found", "%s: its interpreter or loader is missing", cmd)
	case syscall.EACCES, syscall.EPERM, syscall.ENOEXEC, syscall.ETXTBSY, syscall.ELOOP:
		if errno == syscall.EACCES && !mayEnter(cwd, who) {
			return faultf("invalid_argument", "bad_cwd", "user %s may not enter %s", who.name, cwd)
		}
		return faultf("invalid_argument", "exec_denied", "%s: %v", cmd, errno)
	case syscall.E2BIG:
		return faultf("invalid_argument", "argv_too_long", "%s: arguments and environment are too long", cmd)
	case syscall.EINVAL:
		return faultf("invalid_argument", "bad_argv", "%s: an argument or variable holds a zero byte", cmd)
	}
	return faultf("internal", "exec_failed", "%s: %v", cmd, errno)
}

func mayEnter(folder string, who account) bool {
	var stat syscall.Stat_t
	if syscall.Stat(folder, &stat) != nil {
		return false
	}
	switch {
	case who.uid == 0:
		return true
	case stat.Uid == who.uid:
		return stat.Mode&0o100 != 0
	case stat.Gid == who.gid || slices.Contains(who.groups, stat.Gid):
		return stat.Mode&0o010 != 0
	}
	return stat.Mode&0o001 != 0
}
