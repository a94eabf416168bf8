package main

// faults.go owns how a refusal looks on the wire: a Connect code, a text, and a finer code of ours. It decides nothing.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"syscall"
)

// fault is an answer that is not success. The zero status means the usual one of the code.
type fault struct {
	code    string
	detail  string
	message string
	status  int
	fields  map[string]any
}

func (f *fault) Error() string { return f.code + ": " + f.message }

func (f *fault) httpStatus() int {
	if f.status != 0 {
		return f.status
	}
	if status, ok := statusOfCode[f.code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

var statusOfCode = map[string]int{
	"invalid_argument":    400,
	"failed_precondition": 400,
	"unauthenticated":     401,
	"permission_denied":   403,
	"not_found":           404,
	"already_exists":      409,
	"aborted":             409,
	"resource_exhausted":  429,
	"internal":            500,
	"unimplemented":       501,
	"unavailable":         503,
	"deadline_exceeded":   504,
}

func faultf(code, detail, format string, args ...any) *fault {
	return &fault{code: code, detail: detail, message: fmt.Sprintf(format, args...)}
}

func (f *fault) body() map[string]any {
	body := map[string]any{"code": f.code, "message": f.message}
	ours := map[string]any{}
	for key, value := range f.fields {
		ours[key] = value
	}
	if f.detail != "" {
		ours["code"] = f.detail
	}
	if len(ours) > 0 {
		body["sandkeeper"] = ours
	}
	return body
}

// fileFault maps an error of the file system, naming the path that was asked for.
func fileFault(err error, path string) *fault {
	var known *fault
	var errno syscall.Errno
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	case errors.Is(err, fs.ErrNotExist):
		return faultf("not_found", "no_such_path", "%s: no such file or directory", path)
	case !errors.As(err, &errno):
		return faultf("internal", "io_error", "%s: %v", path, err)
	}
	switch errno {
	case syscall.EEXIST, syscall.ENOTEMPTY:
		return faultf("already_exists", "path_exists", "%s: %v", path, errno)
	case syscall.EACCES, syscall.EPERM, syscall.EROFS:
		return faultf("permission_denied", "path_denied", "%s: %v", path, errno)
	case syscall.ENOSPC, syscall.EDQUOT:
		full := faultf("resource_exhausted", "disk_full", "%s: %v", path, errno)
		full.status = http.StatusInsufficientStorage
		return full
	case syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.EINVAL, syscall.EBUSY:
		return faultf("invalid_argument", "bad_path", "%s: %v", path, errno)
	}
	return faultf("internal", "io_error", "%s: %v", path, errno)
}

func writeFault(w http.ResponseWriter, f *fault) { writeJSON(w, f.httpStatus(), f.body()) }

// writeFileFault is writeFault in the form of the plain file routes, whose code is a number.
func writeFileFault(w http.ResponseWriter, f *fault) {
	body := f.body()
	body["code"] = f.httpStatus()
	writeJSON(w, f.httpStatus(), body)
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"code":"internal","message":"unencodable answer"}`)
	}
	w.Header()["Content-Type"] = jsonContentType
	w.WriteHeader(status)
	w.Write(text) // a client that has gone needs no answer
}

var jsonContentType = []string{"application/json"}
