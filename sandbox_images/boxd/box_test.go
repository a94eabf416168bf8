package main

import (
	"testing"
)

func start(t *testing.T, generation, epoch int64) *box {
	b := freshBox(t)
	if f := b.begin(generation, epoch, settings{user: ownUser()}); f != nil {
		t.Fatal(f)
	}
	return b
}

func TestNothingRunsBeforeGo(t *testing.T) {
	b := freshBox(t)
	for _, target := range []string{"/files?path=/x", "/nowhere", ownPrefix + "archive?path=/x"} {
		if got := ask(t, b.routes(), "GET", target, nil); got.status != 503 || got.code() != "not_started" {
			t.Errorf("%s: %d %s", target, got.status, got.text)
		}
	}
	if got := ask(t, b.routes(), "GET", "/health", nil); got.status != 204 {
		t.Errorf("health: %d", got.status)
	}
	if got := ask(t, b.routes(), "GET", ownPrefix+"hello", nil); got.body["state"] != "waiting" {
		t.Errorf("hello: %s", got.text)
	}
}

func TestGoIsFenced(t *testing.T) {
	b := freshBox(t)
	send := func(birth string, generation, epoch int) reply {
		return ask(t, b.routes(), "POST", ownPrefix+"go", fields{
			"birthId": birth, "generation": generation, "epoch": epoch, "user": ownUser(), "env": fields{"A": epoch2text(epoch)},
		})
	}
	steps := []struct {
		birth             string
		generation, epoch int
		status            int
		code              string
	}{
		{"other", 1, 1, 409, "wrong_birth"},
		{testBirth, 0, 1, 400, "bad_generation"},
		{testBirth, 2, 7, 200, ""},
		{testBirth, 2, 7, 200, ""}, // the same owner again
		{testBirth, 2, 9, 200, ""}, // a new one adopts
		{testBirth, 2, 8, 409, "stale_epoch"},
		{testBirth, 3, 9, 409, "wrong_generation"},
	}
	for _, s := range steps {
		if got := send(s.birth, s.generation, s.epoch); got.status != s.status || got.code() != s.code {
			t.Errorf("%+v: %d %s", s, got.status, got.text)
		}
	}
	if b.epoch != 9 || b.settings.env["A"] != "7" {
		t.Errorf("epoch %d, env %v: adoption keeps what the first go fixed", b.epoch, b.settings.env)
	}
}

func epoch2text(epoch int) string { return string(rune('0' + epoch)) }

func TestUnknownUserIsRefusedAtGo(t *testing.T) {
	b := freshBox(t)
	body := fields{"birthId": testBirth, "generation": 1, "epoch": 1, "user": "no-such-user"}
	if got := ask(t, b.routes(), "POST", ownPrefix+"go", body); got.status != 401 || got.code() != "unknown_user" {
		t.Errorf("%d %s", got.status, got.text)
	}
	if b.generation != 0 {
		t.Error("a refused go has started the box")
	}
}

func TestStaleHeadersChangeNothing(t *testing.T) {
	b := start(t, 4, 10)
	folder := t.TempDir()
	write := func(headers ...string) reply {
		return ask(t, b.routes(), "POST", "/files?path="+folder+"/x", []byte("x"), headers...)
	}
	for _, c := range []struct {
		headers []string
		code    string
	}{
		{[]string{"Sandkeeper-Epoch", "9"}, "stale_epoch"},
		{[]string{"Sandkeeper-Epoch", "10", "Sandkeeper-Generation", "3"}, "wrong_generation"},
		{[]string{"Sandkeeper-Epoch", "ten"}, "bad_header"},
	} {
		if got := write(c.headers...); got.code() != c.code {
			t.Errorf("%v: %d %s", c.headers, got.status, got.text)
		}
	}
	if got := ask(t, b.routes(), "GET", "/files?path="+folder+"/x", nil); got.status != 404 {
		t.Errorf("a refused write has happened: %d", got.status)
	}
	if got := write("Sandkeeper-Epoch", "11", "Sandkeeper-Generation", "4"); got.status != 200 || b.epoch != 11 {
		t.Errorf("%d %s, epoch %d", got.status, got.text, b.epoch)
	}
	if got := write(); got.status != 200 {
		t.Errorf("a plain client: %d %s", got.status, got.text)
	}
}

func TestQuiesce(t *testing.T) {
	b := start(t, 1, 1)
	quiesce := func(force bool) reply {
		return ask(t, b.routes(), "POST", ownPrefix+"quiesce", fields{"epoch": 1, "reason": "test", "force": force})
	}
	end, f := b.beginWork()
	if f != nil {
		t.Fatal(f)
	}
	if got := quiesce(false); got.body["state"] != "busy" {
		t.Errorf("with work in flight: %s", got.text)
	}
	if _, f := b.beginWork(); f != nil {
		t.Errorf("busy has changed something: %v", f)
	}
	if got := quiesce(true); got.body["state"] != "drained" {
		t.Errorf("by force: %s", got.text)
	}
	if _, f := b.beginWork(); f == nil || f.detail != "draining" {
		t.Errorf("a drained box takes work: %v", f)
	}
	if got := ask(t, b.routes(), "POST", "/files?path=/tmp/x", []byte("x")); got.status != 503 || got.code() != "draining" {
		t.Errorf("a drained box writes: %d %s", got.status, got.text)
	}
	end()
	if got := ask(t, b.routes(), "POST", ownPrefix+"resume", fields{"epoch": 1}); got.body["state"] != "running" {
		t.Errorf("resume: %s", got.text)
	}
}

func TestADrainEndsWithoutTheOwnersWord(t *testing.T) {
	b := start(t, 1, 1)
	b.tryDrain(false)
	for d := range b.clock.pending {
		d.fire()
	}
	if end, f := b.beginWork(); f != nil {
		t.Fatal(f)
	} else {
		end()
	}
}

func TestQuiesceWaitsForTheEnd(t *testing.T) {
	b := start(t, 1, 1)
	for _, force := range []bool{false, true} {
		end, f := b.beginWork()
		if f != nil {
			t.Fatal(f)
		}
		answered := make(chan reply)
		go func() {
			answered <- ask(t, b.routes(), "POST", ownPrefix+"quiesce", fields{"epoch": 1, "waitMs": 30_000, "force": force})
		}()
		end()
		if got := <-answered; got.body["state"] != "drained" {
			t.Fatalf("%s", got.text)
		}
		b.resume()
	}
}

func TestOldRunsAreBounded(t *testing.T) {
	b := freshBox(t)
	add := func(id string, bytes int64) *run {
		r, _ := b.runs.claim(id, func() *run { return newRun(id, b) })
		close(r.launched)
		r.stdout.append(make([]byte, bytes))
		r.exited, r.undrained = true, 0
		r.finishIfOver(false)
		return r
	}
	first := add("first", 100)
	for i := range keptMemoryBytes / ringMax {
		add(string(rune('a'+i)), ringMax)
	}
	if first.stdout.ring != nil || first.stdout.size() != 100 {
		t.Error("the oldest output is kept beyond the memory limit")
	}
	if b.runs.known("first") == nil {
		t.Error("a run is forgotten with its output")
	}
	for i := range keptRuns {
		add("many-"+string(rune(0x4e00+i)), 0)
	}
	if b.runs.known("first") != nil || len(b.runs.byID) != keptRuns || b.runs.memory != 0 {
		t.Errorf("%d runs, %d bytes", len(b.runs.byID), b.runs.memory)
	}
}
