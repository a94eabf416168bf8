package main

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"testing"
)

func TestExitCodeOutputAndSizes(t *testing.T) {
	said := shell(t, "printf out; printf err >&2; exit 3", fields{"maxOutputBytes": 2})
	if string(said.stdout) != "ou" || string(said.stderr) != "er" {
		t.Errorf("%q %q", said.stdout, said.stderr)
	}
	if said.end["exitCode"] != 3.0 || said.end["exited"] != true || said.ours()["stdoutBytes"] != 3.0 {
		t.Errorf("%v", said.end)
	}
}

func TestASignalIsNoExit(t *testing.T) {
	said := shell(t, "kill -KILL $$", nil)
	if said.end["exitCode"] != -1.0 || said.ours()["outcome"] != "signaled" || said.ours()["signal"] != 9.0 {
		t.Errorf("%v", said.end)
	}
}

func TestARepeatAttaches(t *testing.T) {
	const script = "seq 1 30000; date +%N; sleep 0.05; echo end"
	said := make([]*transcript, 4)
	id := randomHex()
	var together sync.WaitGroup
	for i := range said {
		together.Add(1)
		go func() {
			defer together.Done()
			said[i] = shell(t, script, fields{"runId": id})
		}()
	}
	together.Wait()
	started := 0
	for _, each := range said {
		if !each.attached {
			started++
		}
		if !bytes.Equal(each.stdout, said[0].stdout) || each.pid != said[0].pid {
			t.Error("the readers of one run differ")
		}
	}
	if started != 1 {
		t.Errorf("started %d times", started)
	}
	late := shell(t, script, fields{"runId": id, "stdoutOffset": len(said[0].stdout) - 4})
	if string(late.stdout) != "end\n" || late.end["exitCode"] != 0.0 {
		t.Errorf("%q %v", late.stdout, late.end)
	}
	other := shell(t, "true", fields{"runId": id})
	if other.status != 409 || other.refusal["code"] != "already_exists" {
		t.Errorf("%d %v", other.status, other.refusal)
	}
}

func TestStandardInput(t *testing.T) {
	cat := func(ours fields) *transcript {
		return stream(t, "Start", fields{"process": fields{"cmd": "cat"}, "sandkeeper": ours})
	}
	if said := cat(nil); len(said.stdout) != 0 || said.end["exitCode"] != 0.0 {
		t.Errorf("without input: %v", said.end)
	}
	data := bytes.Repeat([]byte("0123456789"), 50_000)
	if said := cat(fields{"stdin": "data", "stdinData": data}); !bytes.Equal(said.stdout, data) {
		t.Errorf("%d bytes came back", len(said.stdout))
	}
	if said := cat(fields{"stdin": "file"}); said.status != 400 {
		t.Errorf("unknown mode: %d", said.status)
	}
}

func TestStreamedInput(t *testing.T) {
	b, server := sharedBox()
	id := randomHex()
	said := make(chan *transcript)
	go func() {
		said <- stream(t, "Start", fields{"process": fields{"cmd": "cat"}, "sandkeeper": fields{"runId": id, "stdin": "stream"}})
	}()
	var found *run
	for found == nil {
		found = b.runs.known(id)
	}
	<-found.launched
	selected := fields{"sandkeeper": fields{"runId": id}}
	input := fields{"process": selected, "input": fields{"stdin": []byte("typed")}}
	if got := ask(t, server.Config.Handler, "POST", processPrefix+"SendInput", input); got.status != 200 {
		t.Errorf("%d %s", got.status, got.text)
	}
	if got := ask(t, server.Config.Handler, "POST", processPrefix+"CloseStdin", fields{"process": selected}); got.status != 200 {
		t.Errorf("%d %s", got.status, got.text)
	}
	if end := <-said; string(end.stdout) != "typed" {
		t.Errorf("%q", end.stdout)
	}
	if got := ask(t, server.Config.Handler, "POST", processPrefix+"SendInput", input); got.code() != "stdin_closed" {
		t.Errorf("%d %s", got.status, got.text)
	}
}

func TestRefusedStarts(t *testing.T) {
	for _, c := range []struct {
		process fields
		ours    fields
		code    string
	}{
		{fields{"cmd": "no-such-program"}, nil, "exec_not_found"},
		{fields{"cmd": ""}, nil, "exec_not_found"},
		{fields{"cmd": "/etc/passwd"}, nil, "exec_denied"},
		{fields{"cmd": "/tmp"}, nil, "exec_denied"},
		{fields{"cmd": "true", "cwd": "/no/such"}, nil, "bad_cwd"},
		{fields{"cmd": "true", "args": []string{"a\x00b"}}, nil, "bad_argv"},
		{fields{"cmd": "true"}, fields{"user": "no-such-user"}, "unknown_user"},
		{fields{"cmd": "true"}, fields{"runId": "../x"}, "bad_run_id"},
		{fields{"cmd": "true"}, fields{"timeoutMs": -1}, "bad_timeout"},
	} {
		said := stream(t, "Start", fields{"process": c.process, "sandkeeper": c.ours})
		ours, _ := said.refusal["sandkeeper"].(fields)
		if said.status == 200 || ours["code"] != c.code {
			t.Errorf("%v: %d %v", c, said.status, said.refusal)
		}
	}
	if b, _ := sharedBox(); b.runs.known("../x") != nil {
		t.Error("a refused start is known")
	}
}

func TestEnvironmentOrder(t *testing.T) {
	b := freshBox(t)
	b.environ = []string{"A=image", "B=image", "HOME=/image", "PATH=/image"}
	who := account{name: "u", home: "/home/u"}
	env := b.environment(who, map[string]string{"B": "go", "C": "go"}, map[string]string{"C": "command"}, "id")
	want := "A=image B=go C=command HOME=/home/u LOGNAME=u PATH=/image SANDKEEPER_RUN_ID=id USER=u"
	if got := strings.Join(env.list(), " "); got != want {
		t.Errorf("got %s", got)
	}
}

func TestDefaultsYieldToImageAndSandbox(t *testing.T) {
	b := freshBox(t)
	b.environ = []string{"A=image", "PATH=/image"}
	defaults := map[string]string{"A": "default", "B": "default", "C": "default"}
	env := environment(b.withDefaults(map[string]string{"B": "go"}, defaults))
	if got := strings.Join(env.list(), " "); got != "B=go C=default" {
		t.Errorf("got %s", got)
	}
}

func TestTimeoutEndsTheTree(t *testing.T) {
	const script = `trap '' TERM; setsid sh -c 'trap "" TERM; sleep 987' & (setsid sleep 987 &); echo $$; sleep 987`
	id := randomHex()
	said := shell(t, script, fields{"timeoutMs": 300, "runId": id})
	if said.ours()["outcome"] != "timeout" || said.end["exited"] != false || len(said.stdout) == 0 {
		t.Errorf("%v %q", said.end, said.stdout)
	}
	list, err := listProcesses()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if !p.isGone() && runIDOf(p.pid) == id {
			t.Errorf("process %d lives", p.pid)
		}
	}
}

func TestTheTreeOfOneRunIsNotAnothers(t *testing.T) {
	other := make(chan *transcript)
	go func() { other <- shell(t, "sleep 0.4; echo alive", nil) }()
	shell(t, "sleep 987", fields{"timeoutMs": 100})
	if said := <-other; string(said.stdout) != "alive\n" || said.end["exitCode"] != 0.0 {
		t.Errorf("%v", said.end)
	}
}

func TestTheCallEndsWithTheProcess(t *testing.T) {
	said := shell(t, "(while :; do echo more; sleep 0.01; done) & echo $! >&2", nil)
	if said.end["exitCode"] != 0.0 {
		t.Errorf("%v", said.end)
	}
	child := strings.TrimSpace(string(said.stderr))
	if _, err := strconv.Atoi(child); err != nil {
		t.Fatal(err)
	}
	if ended := shell(t, "sleep 0.1; kill "+child, nil); ended.end["exitCode"] != 0.0 {
		t.Error("the background process has died of a closed pipe")
	}
}

func TestADeadlineOfPlainEnvd(t *testing.T) {
	b, server := sharedBox()
	_ = b
	said := stream(t, "Start", fields{"process": fields{"cmd": "true"}, "tag": "plain"})
	if said.failure != nil || said.end["exitCode"] != 0.0 {
		t.Errorf("%v %v", said.failure, said.end)
	}
	if got := ask(t, server.Config.Handler, "POST", processPrefix+"List", fields{}); got.status != 200 {
		t.Errorf("%d %s", got.status, got.text)
	}
	if said := stream(t, "Connect", fields{"process": fields{"pid": said.pid}}); said.end["exitCode"] != 0.0 || !said.attached {
		t.Errorf("%v", said.end)
	}
	if said := stream(t, "Connect", fields{"process": fields{"pid": 999999999}}); said.status != 404 {
		t.Errorf("%d", said.status)
	}
}
