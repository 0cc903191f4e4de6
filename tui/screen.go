package tui

import (
	"context"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
)

// screen is one of the seven. Values, not pointers: update answers the screen
// after a message, and the one before it stays what it was.
//
// The root sends each screen the size of its body (tea.WindowSizeMsg), the time
// (tickMsg), keys while it is shown, and what its own commands answer. It looks
// into the answers: see failing.
type screen interface {
	// update takes a message. It asks nothing and looks at no clock.
	update(msg tea.Msg) (screen, tea.Cmd)
	// view draws the screen into w columns and h lines, not one more.
	view(w, h int) string
	// load asks the Service anew for what is shown now; its answer comes back as
	// one message, never a batch. The root calls it when the screen is entered, on
	// each refresh and after reload, never twice at once.
	load() tea.Cmd
	title() string
	// bindings are the keys that do something here and now, for footer and help.
	bindings() []key.Binding
	// typing reports whether keys are text for a field of the screen's: then q,
	// digits and tab are no commands.
	typing() bool
	// back leaves what is open in the screen (a dialog, an item, a filter); false
	// when nothing was.
	back() (screen, bool)
}

// desk is what every screen works with.
type desk struct {
	svc      admin.Service
	actor    string
	storeDir string
	readOnly bool
	look     *look // nil draws without colour
	// after makes a message a while later; nil means tea.Tick.
	after func(time.Duration, func(time.Time) tea.Msg) tea.Cmd
}

// action says who does something, and why.
func (d desk) action(reason string) admin.Action { return admin.Action{Actor: d.actor, Reason: reason} }

// tickMsg tells the time. Every screen gets it, each second.
type tickMsg time.Time

// callTimeout bounds what a screen asks.
const callTimeout = 10 * time.Second

// ask makes a command of a call to the Service; then makes a message of its
// answer, which is failing when it may hold an error.
func ask[T any](call func(ctx context.Context) (T, error), then func(T, error) tea.Msg) tea.Cmd {
	return func() tea.Msg {
		ctx, stop := context.WithTimeout(context.Background(), callTimeout)
		defer stop()
		v, err := call(ctx)
		return then(v, err)
	}
}

// failing is an answer that may be an error: nil when it is none. The root draws
// the error into the frame, so that a screen need not: it goes on to show what it
// had. When the relay is gone the frame says that, and the screen gets no answer
// of a load at all, and that of anything else as it is.
type failing interface{ failed() error }

// failMsg is an answer that is an error and no more.
type failMsg struct{ err error }

func (m failMsg) failed() error { return m.err }

// goneMsg tells every screen that the relay is gone, or that it is back.
type goneMsg bool

// doneMsg says how an action went; the root shows it in the status line until
// the next key, an error until the next action, and has the screen load anew. The
// screen gets it, too.
type doneMsg struct {
	text string
	err  error
	left []relay.ItemRef // items that the action left for another one
}

// reloadMsg has the root load the screen anew: at once, or as soon as the load in
// flight has come back. An answer to what is not asked any more is the screen's to
// drop.
type reloadMsg struct{}

func reload() tea.Msg { return reloadMsg{} }

// copyMsg is text for the clipboard of the operator's terminal.
type copyMsg string

func copyText(s string) tea.Cmd { return func() tea.Msg { return copyMsg(s) } }
