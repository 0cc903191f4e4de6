package tui

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/x/exp/teatest"
)

// The program with its own loop: keys and sizes come from elsewhere while answers
// come in, and the relay goes and comes back.
func TestProgram(t *testing.T) {
	t.Parallel()
	f := full(hostile...)
	tm := teatest.NewTestModel(t, newApp(Options{Service: f, Actor: "cli:test", Where: "/data", Gone: gone, Refresh: MinRefresh, Colour: true}), teatest.WithInitialTermSize(120, 40))
	shows := func(text string) {
		t.Helper()
		teatest.WaitFor(t, tm.Output(), func(b []byte) bool { return bytes.Contains(b, []byte(text)) }, teatest.WithDuration(10*time.Second))
	}
	shows("DEEPEST QUEUES")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			tm.Send(tea.WindowSizeMsg{Width: 1 + i*7%200, Height: 1 + i*11%70})
		}
	}()
	for i := range 150 {
		tm.Send(keyNamed([]string{"tab", "j", "enter", "esc", "?", "?", "r"}[i%7]))
		if i%50 == 10 {
			f.fail(errGone)
		} else if i%50 == 30 {
			f.fail(nil)
		}
	}
	<-done
	// Only lines that changed are drawn again, and what was drawn before is still
	// unread: each look drops that and asks for a whole frame.
	drawsWhole := func(text string) {
		t.Helper()
		if _, err := io.Copy(io.Discard, tm.Output()); err != nil {
			t.Fatal(err)
		}
		teatest.WaitFor(t, tm.Output(), func(b []byte) bool {
			if bytes.Contains(b, []byte(text)) {
				return true
			}
			tm.Send(tea.WindowSizeMsg{Width: 100, Height: 30})
			return false
		}, teatest.WithDuration(10*time.Second))
	}
	tm.Send(keyNamed("esc"))
	tm.Send(keyNamed("1"))
	f.fail(errGone)
	drawsWhole("relay gone since")
	f.fail(nil)
	drawsWhole("[1")
	tm.Send(tea.KeyMsg{Type: tea.KeyCtrlC})
	final := tm.FinalModel(t, teatest.WithFinalTimeout(10*time.Second)).(app)
	holds(t, "at the end", final.View(), 100, 30)
}

// An input that ends is a terminal that is gone; an end that was asked for is none.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	o := Options{Service: bare(), Actor: "cli:test", Out: io.Discard}
	o.In = strings.NewReader("")
	if err := Run(t.Context(), o); !errors.Is(err, ErrLost) {
		t.Errorf("the input ended: got %v; want %v", err, ErrLost)
	}
	// A reader that is no terminal can't be called back: each run has its own.
	input := func() *io.PipeWriter {
		r, w := io.Pipe()
		t.Cleanup(func() { _ = w.Close() })
		o.In = r
		return w
	}
	input()
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := Run(ctx, o); err != nil {
		t.Errorf("the context ended: got %v; want nil", err)
	}
	w := input()
	go func() { _, _ = w.Write([]byte("\x03")) }()
	if err := Run(t.Context(), o); err != nil {
		t.Errorf("ctrl+c: got %v; want nil", err)
	}
	input()
	o.Out = brokenWriter{}
	if err := Run(t.Context(), o); !errors.Is(err, ErrLost) {
		t.Errorf("the output is broken: got %v; want %v", err, ErrLost)
	}
}

// Lines do not go on in the next one while the screens are shown, and do after it.
func TestRunTurnsWrapOff(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = w.Write([]byte("\x03")) }()
	if err := Run(t.Context(), Options{Service: bare(), Actor: "cli:test", In: r, Out: &out}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasPrefix(got, "\x1b[?7l") || !strings.HasSuffix(got, "\x1b[?7h") {
		t.Errorf("got %q; want autowrap off at first and on at last", got)
	}
}

// A terminal that is there and takes no bytes keeps nobody: ctrl+c ends the
// screens, whatever was typed before it.
func TestRunOnATerminalThatTakesNothing(t *testing.T) {
	t.Parallel()
	for _, typed := range []string{"\x03", "jjjjjjjjjj"} {
		r, w := io.Pipe()
		defer w.Close()
		go func() {
			_, _ = w.Write([]byte(typed))
			for range 20 {
				_, _ = w.Write([]byte("j"))
			}
			_, _ = w.Write([]byte("\x03"))
		}()
		stuck := &stuckWriter{until: make(chan struct{})}
		defer close(stuck.until)
		began := time.Now()
		if err := Run(t.Context(), Options{Service: bare(), Actor: "cli:test", In: r, Out: stuck}); err != nil {
			t.Errorf("%q: got %v; want nil", typed, err)
		}
		if took := time.Since(began); took > 2*stuckAfter+patience+time.Second {
			t.Errorf("%q: it took %s", typed, took)
		}
	}
}

// stuckWriter takes no bytes.
type stuckWriter struct{ until chan struct{} }

func (w *stuckWriter) Write([]byte) (int, error) {
	<-w.until
	return 0, io.ErrClosedPipe
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
