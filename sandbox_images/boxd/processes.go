package main

// processes.go owns the unary calls on running processes: list, signal, input. It never starts one.

import (
	"net/http"
	"strings"
	"syscall"
)

var signalNumbers = map[string]syscall.Signal{
	"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "KILL": syscall.SIGKILL,
	"TERM": syscall.SIGTERM, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "STOP": syscall.SIGSTOP,
	"CONT": syscall.SIGCONT, "WINCH": syscall.SIGWINCH, "ALRM": syscall.SIGALRM, "PIPE": syscall.SIGPIPE,
}

func (b *box) serveProcessList(w http.ResponseWriter, _ *http.Request) {
	list := []event{}
	for _, r := range b.runs.running() {
		select {
		case <-r.launched:
		default:
			continue
		}
		item := event{"config": r.config, "pid": r.pid, "sandkeeper": event{
			"runId": r.id, "detached": r.detached, "keepsAwake": r.keepsAwake, "pty": r.terminal != nil,
		}}
		if r.tag != "" {
			item["tag"] = r.tag
		}
		list = append(list, item)
	}
	writeJSON(w, http.StatusOK, event{"processes": list})
}

type signalRequest struct {
	Process    selector `json:"process"`
	Signal     any      `json:"signal"` // an enum name, or its number
	Sandkeeper struct {
		Tree   bool `json:"tree"`
		Signum int  `json:"signum"`
	} `json:"sandkeeper"`
}

func (b *box) serveSendSignal(w http.ResponseWriter, r *http.Request) {
	var request signalRequest
	found, f := b.readSelected(r, &request, &request.Process)
	if f != nil {
		writeFault(w, f)
		return
	}
	if request.Sandkeeper.Tree {
		left := found.killTree()
		if left == nil {
			left = []int{}
		}
		writeJSON(w, http.StatusOK, event{"sandkeeper": event{"notStopped": left}})
		return
	}
	wanted := request.Signal
	if request.Sandkeeper.Signum != 0 {
		wanted = float64(request.Sandkeeper.Signum)
	}
	number, f := signalOf(wanted)
	if f != nil {
		writeFault(w, f)
		return
	}
	if err := b.reaper.signal(found.pid, number, true); err != nil {
		if err == syscall.ESRCH {
			writeFault(w, faultf("not_found", "run_ended", "process %d has ended", found.pid))
			return
		}
		writeFault(w, faultf("internal", "signal_failed", "process %d: %v", found.pid, err))
		return
	}
	writeJSON(w, http.StatusOK, event{})
}

func signalOf(value any) (syscall.Signal, *fault) {
	switch v := value.(type) {
	case float64:
		if v >= 1 && v <= 64 && v == float64(int(v)) {
			return syscall.Signal(int(v)), nil
		}
	case string:
		name := strings.TrimPrefix(strings.TrimPrefix(v, "SIGNAL_"), "SIG")
		if number, ok := signalNumbers[name]; ok {
			return number, nil
		}
	}
	return 0, faultf("invalid_argument", "bad_signal", "%v is not a signal", value)
}

type inputRequest struct {
	Process selector  `json:"process"`
	Input   inputData `json:"input"`
}

func (b *box) serveSendInput(w http.ResponseWriter, r *http.Request) {
	var request inputRequest
	found, f := b.readSelected(r, &request, &request.Process)
	if f == nil {
		f = request.Input.write(r.Context(), found)
	}
	if f != nil {
		writeFault(w, f)
		return
	}
	writeJSON(w, http.StatusOK, event{})
}

func (b *box) serveCloseStdin(w http.ResponseWriter, r *http.Request) {
	var request inputRequest
	found, f := b.readSelected(r, &request, &request.Process)
	if f != nil {
		writeFault(w, f)
		return
	}
	if found.terminal != nil {
		writeFault(w, faultf("failed_precondition", "has_terminal", "a terminal is not closed: send it an end of file, \\x04"))
		return
	}
	if found.stdin != nil {
		found.stdin.close()
	}
	writeJSON(w, http.StatusOK, event{})
}

// readSelected reads a request and finds the run that it names.
func (b *box) readSelected(r *http.Request, request any, process *selector) (*run, *fault) {
	if f := readJSON(r, maxFrameBytes, request); f != nil {
		return nil, f
	}
	found, f := b.runs.find(*process)
	if f != nil {
		return nil, f
	}
	if f := waitLaunched(found); f != nil {
		return nil, f
	}
	return found, nil
}
