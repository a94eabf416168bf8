package main

// launch.go owns turning a request into a started process: user, folder, environment, program, pipes. It never waits
// for the process.

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	defaultPath   = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	childOOMScore = "800"
)

// launchPlan is what a run is started with.
type launchPlan struct {
	config     processConfig
	tag        string
	user       string // empty: the default of go
	stdinMode  string // none, data, stream
	stdinData  []byte
	pty        *ptyRequest
	limits     runLimits
	detached   bool
	keepsAwake bool
}

// launch starts the process of a claimed run.
func (b *box) launch(r *run, plan *launchPlan) *fault {
	defer close(r.launched)
	r.refusal = b.startProcess(r, plan)
	if r.refusal != nil {
		b.runs.refused(r)
	}
	return r.refusal
}

func (b *box) startProcess(r *run, plan *launchPlan) *fault {
	s, generation := b.currentSettings()
	who, f := b.users.find(firstOf(plan.user, s.user))
	if f != nil {
		return f
	}
	r.generation, r.config, r.tag = generation, plan.config, plan.tag
	r.detached, r.keepsAwake = plan.detached, plan.keepsAwake
	r.limiter = newLimiter(b.clock, plan.limits, r.cpuUsed, r.expire)
	if plan.limits.cpu > 0 {
		b.runs.meterRun(r)
	}
	env := b.environment(who, s.env, plan.config.Envs, r.id)
	if _, isSet := env["TERM"]; !isSet && plan.pty != nil {
		env["TERM"] = terminalType
	}
	b.blocking.spawn.do(func() { f = b.fork(r, plan, who, s, env) })
	if f != nil {
		return f
	}
	for _, p := range r.pumps {
		go p.run()
	}
	if plan.stdinMode == "data" {
		go r.stdin.feed(plan.stdinData)
	}
	r.limiter.begin()
	b.disk.wake()
	return nil
}

// fork does every system call of the start.
func (b *box) fork(r *run, plan *launchPlan, who account, s settings, env environment) *fault {
	cwd, f := workingFolder(plan.config.Cwd, s.workdir, who.home)
	if f != nil {
		return f
	}
	program, f := findProgram(plan.config.Cmd, env["PATH"], cwd)
	if f != nil {
		return f
	}
	open := func() ([]uintptr, func(bool), *fault) { return b.openStreams(r, plan.stdinMode) }
	if plan.pty != nil {
		open = func() ([]uintptr, func(bool), *fault) { return openTerminal(r, plan.pty.Size, who) }
	}
	files, closeAll, f := open()
	if f != nil {
		return f
	}
	attr := &syscall.ProcAttr{Dir: cwd, Env: env.list(), Files: files, Sys: &syscall.SysProcAttr{}}
	switch {
	case plan.pty != nil:
		attr.Sys.Setsid, attr.Sys.Setctty = true, true // its standard input is its terminal
	case plan.detached:
		attr.Sys.Setsid = true
	default:
		attr.Sys.Setpgid = true
	}
	if who.uid != uint32(os.Geteuid()) || who.gid != uint32(os.Getegid()) {
		attr.Sys.Credential = &syscall.Credential{Uid: who.uid, Gid: who.gid, Groups: who.groups}
	}
	r.oomBefore = b.oom.mark()
	r.startedAt = time.Now()
	argv := append([]string{plan.config.Cmd}, plan.config.Args...)
	pid, err := b.reaper.spawn(program, argv, attr, func(pid int) { r.pid = pid }, r.processExited)
	closeAll(err != nil)
	if err != nil {
		return spawnFault(err, plan.config.Cmd, cwd, who)
	}
	raiseOOMScore(pid)
	return nil
}

type environment map[string]string

// environment is, from weak to strong: the container's, go's, the user's own, the command's, the run id.
func (b *box) environment(who account, sandboxWide, command map[string]string, runID string) environment {
	env := make(environment, len(b.environ)+len(sandboxWide)+len(command)+5)
	env["PATH"] = defaultPath
	for _, entry := range b.environ {
		if name, value, ok := strings.Cut(entry, "="); ok {
			env[name] = value
		}
	}
	for name, value := range sandboxWide {
		env[name] = value
	}
	env["HOME"], env["USER"], env["LOGNAME"] = who.home, who.name, who.name
	for name, value := range command {
		env[name] = value
	}
	env[runIDVariable] = runID
	return env
}

// withDefaults returns the sandbox's variables and those defaults that neither it nor the container sets.
func (b *box) withDefaults(sandboxWide, defaults map[string]string) map[string]string {
	env := make(map[string]string, len(sandboxWide)+len(defaults))
	for name, value := range defaults {
		env[name] = value
	}
	for _, entry := range b.environ {
		name, _, _ := strings.Cut(entry, "=")
		delete(env, name)
	}
	for name, value := range sandboxWide {
		env[name] = value
	}
	return env
}

func (e environment) list() []string {
	list := make([]string, 0, len(e))
	for name, value := range e {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}

// workingFolder resolves cwd against the default folder; an explicit one must exist.
func workingFolder(cwd, workdir, home string) (string, *fault) {
	base := firstOf(workdir, home, "/")
	if cwd == "" {
		if isFolder(base) {
			return base, nil
		}
		if workdir != "" {
			return "", faultf("invalid_argument", "bad_cwd", "the working folder %s does not exist", workdir)
		}
		return "/", nil
	}
	resolved := resolvePath(cwd, base, home)
	if !isFolder(resolved) {
		return "", faultf("invalid_argument", "bad_cwd", "the working folder %s does not exist", resolved)
	}
	return resolved, nil
}

func isFolder(path string) bool {
	var stat syscall.Stat_t
	return syscall.Stat(path, &stat) == nil && stat.Mode&syscall.S_IFMT == syscall.S_IFDIR
}

// raiseOOMScore makes the kernel kill a command before process 1. A process that has ended already needs none.
func raiseOOMScore(pid int) {
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err == nil {
		_, err = syscall.Write(fd, []byte(childOOMScore))
		syscall.Close(fd)
	}
	if err != nil && err != syscall.ENOENT && err != syscall.ESRCH {
		report("process %d keeps its OOM score: %v", pid, err)
	}
}

func firstOf(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}
