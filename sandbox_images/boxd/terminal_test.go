package main

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

// onTerminal runs a script on a terminal in the background.
func onTerminal(t *testing.T, script string, size fields) (id string, said chan *transcript) {
	t.Helper()
	b, _ := sharedBox()
	id, said = randomHex(), make(chan *transcript, 1)
	go func() {
		said <- stream(t, "Start", fields{
			"process": fields{"cmd": "sh", "args": []string{"-c", script}}, "pty": fields{"size": size},
			"sandkeeper": fields{"runId": id, "timeoutMs": 20_000},
		})
	}()
	for b.runs.known(id) == nil {
		runtime.Gosched()
	}
	<-b.runs.known(id).launched
	return id, said
}

func TestATerminal(t *testing.T) {
	b, _ := sharedBox()
	id, said := onTerminal(t, `tty; stty size; echo $TERM; read a; stty size; echo got $a`, fields{"cols": 100, "rows": 30})
	selected := fields{"sandkeeper": fields{"runId": id}}
	resized := ask(t, b.routes(), "POST", processPrefix+"Update",
		fields{"process": selected, "pty": fields{"size": fields{"cols": 50, "rows": 20}}})
	if resized.status != 200 {
		t.Errorf("resize: %v", resized.body)
	}
	closed := ask(t, b.routes(), "POST", processPrefix+"CloseStdin", fields{"process": selected})
	if closed.code() != "has_terminal" {
		t.Errorf("%v", closed.body)
	}
	sent := ask(t, b.routes(), "POST", processPrefix+"SendInput",
		fields{"process": selected, "input": fields{"pty": []byte("word\n")}})
	if sent.status != 200 {
		t.Errorf("input: %v", sent.body)
	}
	end := <-said
	text := string(end.pty)
	if !strings.Contains(text, "/dev/pts/") || !strings.Contains(text, "xterm-256color") ||
		!strings.Contains(text, "20 50") || !strings.HasSuffix(text, "got word\r\n") {
		t.Errorf("%q", text)
	}
	if end.ours()["ptyBytes"] != float64(len(end.pty)) || end.end["exitCode"] != 0.0 {
		t.Errorf("%v", end.end)
	}
	late := stream(t, "Connect", fields{"process": selected, "sandkeeper": fields{"ptyOffset": len(end.pty) - 6}})
	if string(late.pty) != "word\r\n" {
		t.Errorf("%q", late.pty)
	}
}

func TestAllThatATerminalShowedIsKept(t *testing.T) {
	_, said := onTerminal(t, "seq 1 20000", fields{})
	if text := (<-said).pty; !bytes.HasSuffix(text, []byte("19999\r\n20000\r\n")) || bytes.Count(text, []byte("\n")) != 20000 {
		t.Errorf("%d bytes, %d lines", len(text), bytes.Count(text, []byte("\n")))
	}
}

func TestABackgroundProcessKeepsItsTerminalAndNotTheRun(t *testing.T) {
	id, said := onTerminal(t, "trap '' HUP; sh -c 'sleep 20' & echo up", fields{})
	end := <-said
	if string(end.pty) != "up\r\n" || end.ours()["outcome"] != "exited" {
		t.Errorf("%q %v", end.pty, end.end)
	}
	b, _ := sharedBox()
	b.runs.known(id).killTree()
}

func TestAProcessMayCloseItsTerminal(t *testing.T) {
	_, said := onTerminal(t, "exec 3</dev/tty; exec <&- >&- 2>&- 3<&-; sleep 0.2; echo again >/dev/tty; exit 5", fields{})
	end := <-said
	if string(end.pty) != "again\r\n" || end.end["exitCode"] != 5.0 {
		t.Errorf("%q %v", end.pty, end.end)
	}
}

func TestRefusedTerminals(t *testing.T) {
	b, _ := sharedBox()
	tooWide := stream(t, "Start", fields{"process": fields{"cmd": "true"}, "pty": fields{"size": fields{"cols": 70000}}})
	if tooWide.status != 400 {
		t.Errorf("%v", tooWide.refusal)
	}
	id := randomHex()
	shell(t, "true", fields{"runId": id})
	selected := fields{"sandkeeper": fields{"runId": id}}
	for path, body := range map[string]fields{
		"Update":    {"process": selected, "pty": fields{"size": fields{"cols": 1, "rows": 1}}},
		"SendInput": {"process": selected, "input": fields{"pty": []byte("x")}},
	} {
		if got := ask(t, b.routes(), "POST", processPrefix+path, body); got.code() != "no_terminal" {
			t.Errorf("%s: %v", path, got.body)
		}
	}
}

func TestInputFrameByFrame(t *testing.T) {
	b, _ := sharedBox()
	id, said := randomHex(), make(chan *transcript, 1)
	go func() { said <- shell(t, "head -n 2", fields{"runId": id, "stdin": "stream"}) }()
	for b.runs.known(id) == nil {
		runtime.Gosched()
	}
	var body []byte
	for _, message := range []fields{
		{"start": fields{"process": fields{"sandkeeper": fields{"runId": id}}}},
		{"keepalive": fields{}},
		{"data": fields{"input": fields{"stdin": []byte("one\n")}}},
		{"data": fields{"input": fields{"stdin": []byte("two\n")}}},
	} {
		text, err := json.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		body = append(body, frameOf(flagMessage, string(text))...)
	}
	body = append(body, frameOf(flagEnd, "{}")...)
	answer := ask(t, b.routes(), "POST", processPrefix+"StreamInput", body)
	want := append(frameOf(flagMessage, "{}"), frameOf(flagEnd, "{}")...)
	if answer.status != 200 || !bytes.Equal(answer.text, want) {
		t.Errorf("%d %q", answer.status, answer.text)
	}
	if end := <-said; string(end.stdout) != "one\ntwo\n" {
		t.Errorf("%q", end.stdout)
	}
	first := append(frameOf(flagMessage, `{"data":{"input":{"stdin":"eA=="}}}`), frameOf(flagEnd, "{}")...)
	if early := ask(t, b.routes(), "POST", processPrefix+"StreamInput", first); early.code() != "bad_frame" {
		t.Errorf("%v", early.body)
	}
}
