package main

// control.go owns the owner's verbs: hello, go, quiesce, resume. It never serves the data plane.

import (
	"encoding/json"
	"io"
	"net/http"
	"time"
)

const (
	maxControlBody = 1 << 20
	maxQuiesceWait = 60 * time.Second
)

type goRequest struct {
	BirthID    string            `json:"birthId"`
	Generation int64             `json:"generation"`
	Epoch      int64             `json:"epoch"`
	User       string            `json:"user"`
	Workdir    string            `json:"workdir"`
	Env        map[string]string `json:"env"`

	EnvDefaults    map[string]string `json:"envDefaults"`    // set where neither the container nor env sets the name
	DiskLimitBytes *int64            `json:"diskLimitBytes"` // growth of the container's own layer; absent: as it was, 0: none
}

type quiesceRequest struct {
	Epoch  int64  `json:"epoch"`
	Reason string `json:"reason"`
	Force  bool   `json:"force"`
	WaitMs int64  `json:"waitMs"`
}

type quiesceAnswer struct {
	State string   `json:"state"`
	Runs  []string `json:"runs"`
}

func (b *box) serveHello(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, b.hello())
}

func (b *box) serveGo(w http.ResponseWriter, r *http.Request) {
	var request goRequest
	if f := readJSON(r, maxControlBody, &request); f != nil {
		writeFault(w, f)
		return
	}
	if f := b.checkGo(&request); f != nil {
		writeFault(w, f)
		return
	}
	b.restoreOnce()
	b.activity.touch()
	s := settings{user: request.User, workdir: request.Workdir, env: b.withDefaults(request.Env, request.EnvDefaults)}
	if f := b.begin(request.Generation, request.Epoch, s); f != nil {
		writeFault(w, f)
		return
	}
	if request.DiskLimitBytes != nil {
		if err := b.disk.setLimit(r.Context(), *request.DiskLimitBytes); err != nil {
			writeFault(w, fileFault(err, b.disk.root))
			return
		}
	}
	b.serveHello(w, r)
}

// restoreOnce puts back the metadata that came with the image before anything can run; later calls wait for it.
func (b *box) restoreOnce() {
	b.restoring.Do(func() {
		b.blocking.files.do(func() {
			done, err := takeUpMetadata("/", b.metadataPath)
			if err != nil {
				report("metadata of the image is lost: %v", err) // the files are there: better a box than none
			}
			b.mu.Lock()
			b.restored = done
			b.mu.Unlock()
		})
	})
}

func (b *box) checkGo(request *goRequest) *fault {
	if request.BirthID != b.birthID {
		wrong := faultf("failed_precondition", "wrong_birth", "this is container %q, not %q", b.birthID, request.BirthID)
		wrong.status = http.StatusConflict
		return wrong
	}
	if request.Generation < 1 {
		return faultf("invalid_argument", "bad_generation", "generation %d is not positive", request.Generation)
	}
	if request.DiskLimitBytes != nil {
		if f := checkDiskLimit(*request.DiskLimitBytes); f != nil {
			return f
		}
	}
	if request.Workdir != "" && request.Workdir[0] != '/' {
		return faultf("invalid_argument", "bad_cwd", "workdir %q is not absolute", request.Workdir)
	}
	if _, generation := b.currentSettings(); generation == 0 && request.User != "" {
		if _, f := b.users.find(request.User); f != nil {
			return f
		}
	}
	return nil
}

func (b *box) serveQuiesce(w http.ResponseWriter, r *http.Request) {
	var request quiesceRequest
	if f := readJSON(r, maxControlBody, &request); f != nil {
		writeFault(w, f)
		return
	}
	if f := b.checkFence(fence{epoch: &request.Epoch}); f != nil {
		writeFault(w, f)
		return
	}
	timer := time.NewTimer(min(time.Duration(max(request.WaitMs, 0))*time.Millisecond, maxQuiesceWait))
	defer timer.Stop()
	for {
		answer := b.tryDrain(request.Force)
		state := "busy"
		if answer.isDrained {
			state = "drained"
		}
		// By force too, writes that were admitted get the time to end: a snapshot must not hold half of one.
		isOver := answer.isDrained && !answer.isWriting
		if !isOver {
			select {
			case <-answer.quiet:
				continue
			case <-timer.C:
			case <-r.Context().Done():
				return
			}
		}
		writeJSON(w, http.StatusOK, quiesceAnswer{State: state, Runs: answer.going})
		return
	}
}

func (b *box) serveResume(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Epoch int64 `json:"epoch"`
	}
	if f := readJSON(r, maxControlBody, &request); f != nil {
		writeFault(w, f)
		return
	}
	if f := b.checkFence(fence{epoch: &request.Epoch}); f != nil {
		writeFault(w, f)
		return
	}
	b.blocking.files.do(func() {
		if err := dropMetadata(b.metadataPath); err != nil {
			report("the saved metadata stays: %v", err)
		}
	})
	b.resume()
	b.activity.touch()
	b.serveHello(w, r)
}

// readJSON reads a bounded body; unknown fields are ignored, as envd does.
func readJSON(r *http.Request, limit int64, into any) *fault {
	text, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return faultf("invalid_argument", "bad_request", "unreadable body: %v", err)
	}
	if int64(len(text)) > limit {
		return faultf("invalid_argument", "request_too_large", "the body is larger than %d bytes", limit)
	}
	if len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return faultf("invalid_argument", "bad_request", "unreadable JSON: %v", err)
	}
	return nil
}
