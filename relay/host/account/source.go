package account

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Kind is where tokens come from.
type Kind string

// The sources, in the order in which they are taken.
const (
	ByCommand Kind = "command" // MBX_ACCOUNT_TOKEN_CMD
	ByFile    Kind = "file"    // MBX_ACCOUNT_TOKEN_FILE
	ByLogin   Kind = "login"   // account.json, for the relay that it names
	ByNone    Kind = ""
)

// String is what a person sets it with.
func (k Kind) String() string {
	switch k {
	case ByCommand:
		return "MBX_ACCOUNT_TOKEN_CMD"
	case ByFile:
		return "MBX_ACCOUNT_TOKEN_FILE"
	case ByLogin:
		return "the sign-in"
	}
	return "none"
}

const (
	commandTime = 30 * time.Second
	maxOutput   = 16 << 10
	// AskEvery is how often a source is asked that has nothing new to give.
	AskEvery = 30 * time.Second
)

// ErrWaiting is returned while a source has not answered yet.
var ErrWaiting = errors.New("it has not answered yet")

// SourceOptions say where a home's tokens come from.
type SourceOptions struct {
	Home      string
	Command   string // for sh -c; its stdout is the token
	File      string
	Transport http.RoundTripper // nil for one of its own
	Now       func() time.Time  // nil means time.Now
}

// Source gives the tokens of a home. Safe for concurrent use.
type Source struct {
	o      SourceOptions
	caller *caller
	ctx    context.Context // ended by Close: an answer may outlive the call that asked for it
	cancel context.CancelFunc
	asking sync.WaitGroup

	mu      sync.Mutex
	pending chan struct{} // closed when the answer is there; nil while nobody asks
	last    answer
}

// answer is what a source said last.
type answer struct {
	relay string
	kind  Kind
	at    time.Time
	token Token
	cloud wire.PrivateKey
	err   error
	stale bool // an error, the token of before, or one that is nearly over
}

// NewSource makes a source. It asks nobody.
func NewSource(o SourceOptions) *Source {
	s := &Source{o: o, caller: newCaller(o.Transport, o.Now)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Close ends what is still being asked.
func (s *Source) Close() {
	s.cancel()
	s.asking.Wait()
	if s.o.Transport == nil {
		s.caller.close()
	}
}

// For says where tokens for a relay come from.
func (s *Source) For(relay string) Kind {
	switch {
	case s.o.Command != "":
		return ByCommand
	case s.o.File != "":
		return ByFile
	}
	// One that can't be read is an error when it is asked, not no source.
	if r, err := ReadRecord(s.o.Home); err == nil && r.Resources.Relay == relay || err != nil && !errors.Is(err, ErrNoRecord) {
		return ByLogin
	}
	return ByNone
}

// Token gives a token for a relay, and the cloud key that it is bound to. One
// that was asked for a moment ago is given again. It waits for an answer as long
// as patience says, and returns ErrWaiting then: the next call takes the answer.
func (s *Source) Token(ctx context.Context, relay string, patience time.Duration) (Token, wire.PrivateKey, error) {
	kind := s.For(relay)
	s.mu.Lock()
	if s.pending == nil {
		now := s.caller.now()
		last := s.last
		if age := now.Sub(last.at); last.relay == relay && last.kind == kind && 0 <= age && age < AskEvery &&
			(last.stale || now.Before(last.token.Renew())) {
			s.mu.Unlock()
			return last.token, last.cloud, last.err
		}
		done := make(chan struct{})
		s.pending = done
		s.asking.Go(func() {
			defer close(done)
			a := s.ask(relay, kind)
			s.mu.Lock()
			defer s.mu.Unlock()
			a.stale = a.err != nil || a.token.same(s.last.token) || !a.at.Before(a.token.Renew())
			s.last, s.pending = a, nil
		})
	} else {
		patience = 0 // it was waited for before
	}
	done := s.pending
	s.mu.Unlock()

	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-done:
	case <-ctx.Done():
		return Token{}, wire.PrivateKey{}, ctx.Err()
	case <-t.C:
		return Token{}, wire.PrivateKey{}, fmt.Errorf("%s: %w", kind, ErrWaiting)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.relay != relay || s.last.kind != kind {
		return Token{}, wire.PrivateKey{}, fmt.Errorf("%s: %w", kind, ErrWaiting)
	}
	return s.last.token, s.last.cloud, s.last.err
}

func (s *Source) ask(relay string, kind Kind) answer {
	a := answer{relay: relay, kind: kind}
	if !Private(relay) {
		a.err = errors.New("a token is not sent in the clear: use the relay over https")
	}
	if a.err == nil {
		a.cloud, a.err = cloudKey(s.o.Home)
	}
	if a.err == nil {
		a.token, a.err = s.fetch(relay, kind, a.cloud)
	}
	if a.err != nil {
		a.err = fmt.Errorf("%s: %w", kind, a.err)
	}
	a.at = s.caller.now()
	return a
}

func (s *Source) fetch(relay string, kind Kind, cloud wire.PrivateKey) (Token, error) {
	var text []byte
	var err error
	switch kind {
	case ByCommand:
		text, err = run(s.ctx, s.o.Command)
	case ByFile:
		text, err = readFile(s.o.File)
	default:
		r, err := ReadRecord(s.o.Home)
		if err != nil {
			return Token{}, err
		}
		return s.caller.relayToken(s.ctx, r, cloud, relay)
	}
	if err != nil {
		return Token{}, err
	}
	return readToken(string(bytes.TrimSpace(text)))
}

var errOutput = fmt.Errorf("it gave more than %d bytes", maxOutput)

// run runs a command and returns its stdout. It says nothing of what the command
// said, which may be a token: only how it ended.
func run(parent context.Context, command string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(parent, commandTime)
	defer cancel()
	out := &bounded{left: maxOutput}
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Stdout = out
	// With all that it started: a child of the shell would go on otherwise.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case out.over:
		return nil, errOutput
	case parent.Err() != nil:
		return nil, parent.Err()
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the command did not end within %s", commandTime)
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return nil, fmt.Errorf("the command ended with exit code %d: run it by hand to see why", exit.ExitCode())
	case errors.As(err, &exit):
		return nil, errors.New("the command was killed: run it by hand to see why")
	case errors.Is(err, exec.ErrWaitDelay):
		return nil, errors.New("the command left a process behind that holds its output: run it by hand to see why")
	case err != nil:
		return nil, errors.New("the command can't be started: is there a sh?")
	}
	return out.b.Bytes(), nil
}

// bounded keeps what is written to it, up to a bound.
type bounded struct {
	b    bytes.Buffer
	left int
	over bool
}

func (w *bounded) Write(p []byte) (int, error) {
	if w.over = w.over || len(p) > w.left; w.over {
		return 0, errOutput
	}
	w.left -= len(p)
	return w.b.Write(p)
}

// readFile reads a token's file. Other programs put it there, also as a link.
func readFile(path string) ([]byte, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() { // one that is none may never end
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxOutput+1))
	if err == nil && len(text) > maxOutput {
		err = errOutput
	}
	return text, err
}
