package main

// routes.go owns the table of routes and the checks that come before each: started, fenced, admitted.

import (
	"net/http"
	"strconv"
)

type route struct {
	serve   func(http.ResponseWriter, *http.Request)
	always  bool // served before go
	newWork bool // refused while draining, and counted until it has ended

	refusesDrained bool // refused while draining, but not counted
	grows          bool // refused while the box holds more than its disk limit
	owners         bool // a verb of the owner: no activity of the sandbox
}

const (
	processPrefix    = "/process.Process/"
	filesystemPrefix = "/filesystem.Filesystem/"
	ownPrefix        = "/sandkeeper/v1/"
	filesPrefix      = ownPrefix + "files/"
)

// routes is the handler of the control socket.
func (b *box) routes() http.Handler {
	table := map[string]route{
		"GET /health":                   {serve: serveHealth, always: true},
		"GET " + ownPrefix + "hello":    {serve: b.serveHello, always: true},
		"POST " + ownPrefix + "go":      {serve: b.serveGo, always: true},
		"POST " + ownPrefix + "quiesce": {serve: b.serveQuiesce, owners: true},
		"POST " + ownPrefix + "resume":  {serve: b.serveResume, owners: true},
		"GET " + ownPrefix + "archive":  {serve: b.serveArchiveDown},
		"PUT " + ownPrefix + "archive":  {serve: b.serveArchiveUp, newWork: true, grows: true},
		"GET /files":                    {serve: b.serveFileRead},
		"HEAD /files":                   {serve: b.serveFileRead},
		"POST /files":                   {serve: b.serveFileWrite, newWork: true, grows: true},

		"POST " + ownPrefix + "dial":           {serve: b.serveDial, refusesDrained: true},
		"GET " + ownPrefix + "ports/wait":      {serve: b.servePortWait},
		"GET " + ownPrefix + "health":          {serve: b.serveHealthReport, always: true},
		"POST " + ownPrefix + "limits/recheck": {serve: b.serveRecheck, owners: true},
		"GET " + ownPrefix + "manifest":        {serve: b.serveManifest},
		"POST " + ownPrefix + "metadata/save":  {serve: b.serveMetadataSave, owners: true},
		"POST " + filesPrefix + "append":       {serve: b.serveAppend, newWork: true, grows: true},
		"POST " + filesPrefix + "copy":         {serve: b.serveCopy, newWork: true, grows: true},
		"POST " + filesPrefix + "chmod":        {serve: b.serveChmod, newWork: true},
		"POST " + filesPrefix + "chown":        {serve: b.serveChown, newWork: true},
		"POST " + filesPrefix + "symlink":      {serve: b.serveSymlink, newWork: true, grows: true},
		"POST " + filesPrefix + "glob":         {serve: b.serveGlob},
		"POST " + filesPrefix + "grep":         {serve: b.serveGrep},

		"POST " + processPrefix + "Start":       {serve: b.serveStart}, // admits by itself: an attach is not new work
		"POST " + processPrefix + "Connect":     {serve: b.serveConnect},
		"POST " + processPrefix + "List":        {serve: b.serveProcessList},
		"POST " + processPrefix + "SendSignal":  {serve: b.serveSendSignal},
		"POST " + processPrefix + "SendInput":   {serve: b.serveSendInput},
		"POST " + processPrefix + "CloseStdin":  {serve: b.serveCloseStdin},
		"POST " + processPrefix + "Update":      {serve: b.serveUpdate},
		"POST " + processPrefix + "StreamInput": {serve: b.serveStreamInput},

		"POST " + filesystemPrefix + "Stat":             {serve: b.serveStat},
		"POST " + filesystemPrefix + "ListDir":          {serve: b.serveListDir},
		"POST " + filesystemPrefix + "MakeDir":          {serve: b.serveMakeDir, newWork: true, grows: true},
		"POST " + filesystemPrefix + "Move":             {serve: b.serveMove, newWork: true},
		"POST " + filesystemPrefix + "Remove":           {serve: b.serveRemove, newWork: true},
		"POST " + filesystemPrefix + "CreateWatcher":    {serve: b.serveCreateWatcher},
		"POST " + filesystemPrefix + "GetWatcherEvents": {serve: b.serveGetWatcherEvents},
		"POST " + filesystemPrefix + "RemoveWatcher":    {serve: b.serveRemoveWatcher},
		"POST " + filesystemPrefix + "WatchDir":         {serve: b.serveWatchDir},
	}
	return &router{box: b, table: table}
}

type router struct {
	box   *box
	table map[string]route
}

func (rt *router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, ok := rt.table[r.Method+" "+r.URL.Path]
	if !found.always {
		if f := rt.box.checkStarted(); f != nil {
			writeFault(w, f)
			return
		}
	}
	if !ok {
		writeFault(w, faultf("not_found", "no_such_route", "no route %s %s", r.Method, r.URL.Path))
		return
	}
	if f := rt.box.checkHeaders(r); f != nil {
		writeFault(w, f)
		return
	}
	if found.grows {
		if f := rt.box.disk.refusal(); f != nil {
			f.status = http.StatusInsufficientStorage
			writeFault(w, f)
			return
		}
	}
	if found.newWork || found.refusesDrained {
		end, refusal := rt.box.beginWork()
		if refusal != nil {
			writeFault(w, refusal)
			return
		}
		if found.newWork {
			defer end()
		} else {
			end()
		}
	}
	if !found.always && !found.owners {
		defer rt.box.activity.begin()()
	}
	found.serve(w, r)
}

// checkHeaders applies the fencing headers; a plain envd client sends none.
func (b *box) checkHeaders(r *http.Request) *fault {
	epoch, f := headerNumber(r, "Sandkeeper-Epoch")
	if f != nil {
		return f
	}
	generation, f := headerNumber(r, "Sandkeeper-Generation")
	if f != nil {
		return f
	}
	if epoch == nil && generation == nil {
		return nil
	}
	return b.checkFence(fence{epoch: epoch, generation: generation})
}

func headerNumber(r *http.Request, name string) (*int64, *fault) {
	text := r.Header.Get(name)
	if text == "" {
		return nil, nil
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, faultf("invalid_argument", "bad_header", "%s is not a number", name)
	}
	return &number, nil
}

func serveHealth(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
