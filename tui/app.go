package tui

import (
	"errors"
	"fmt"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/agentmbx/agentmbx/admin"
)

// app is the root: it routes messages to the screens, has them load, and draws the
// frame around the one that is shown.
type app struct {
	desk
	o       Options
	tabs    []tab
	shown   int // place in tabs
	w, h    int
	now     time.Time
	paused  bool
	help    bool
	gone    time.Time // since when the relay is, zero while it is there
	status  admin.Status
	knows   bool // status was answered
	asking  bool // for the status
	said    string
	saidErr bool // it is an error: it stays until esc, another screen, a dialog or what is said next
	offline bool // it says that no relay was there: it goes when one is
}

// tab is a screen and how its loads stand.
type tab struct {
	screen
	flying bool // a load
	again  bool // load once more when that one is back
	asked  time.Time
	loaded time.Time // when the last good answer came
	err    error     // of the last load, nil when it was good
}

// loadMsg is the answer to a load of a tab.
type loadMsg struct {
	tab int
	at  time.Time
	msg tea.Msg
}

// tabMsg is what a command of a tab's screen answered.
type tabMsg struct {
	tab int
	at  time.Time
	msg tea.Msg
}

// statusMsg is the relay's health for the frame.
type statusMsg struct {
	at  time.Time
	s   admin.Status
	err error
}

func (m statusMsg) failed() error { return m.err }

// The smallest window that the screens are drawn in.
const (
	minWidth  = 80
	minHeight = 24
)

// frameLines is what the frame takes of the window's height.
const frameLines = 4

func newApp(o Options) app {
	o = o.whole()
	d := desk{svc: o.Service, actor: o.Actor, storeDir: o.StoreDir, readOnly: o.ReadOnly, after: o.after}
	if o.Colour {
		d.look = &look{}
	}
	m := app{desk: d, o: o, now: o.Now()}
	for _, s := range []screen{newOverview(d), newQueues(d), newEnrolments(d), newQuarantine(d), newBackups(d), newJobs(d), newLog(d)} {
		next, _ := s.update(tickMsg(m.now))
		m.tabs = append(m.tabs, tab{screen: next})
	}
	return m
}

// beat is how often the time moves on.
func (m app) beat() time.Duration { return min(time.Second, m.o.Refresh) }

func (m app) tick() tea.Cmd {
	now := m.o.Now
	return tea.Tick(m.beat(), func(time.Time) tea.Msg { return tickMsg(now()) })
}

// Init begins the first load.
func (m app) Init() tea.Cmd {
	return tea.Batch(m.tick(), func() tea.Msg { return reloadMsg{} })
}

// Update takes a message.
func (m app) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	next, cmd := m.take(msg)
	return next, cmd
}

func (m app) take(msg tea.Msg) (app, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.w, m.h = msg.Width, msg.Height
		return m.all(tea.WindowSizeMsg{Width: m.w, Height: max(0, m.h-frameLines)})
	case tickMsg:
		return m.ticked(msg)
	case tea.KeyMsg:
		return m.keys(msg)
	case reloadMsg:
		return m.load(m.shown)
	case loadMsg:
		return m.loadedTab(msg)
	case tabMsg:
		return m.answer(msg)
	case statusMsg:
		m.asking = false
		if m = m.heard(msg, msg.at); msg.err == nil {
			m.status, m.knows = msg.s, true
		}
	}
	return m, nil
}

// all gives a message to every screen.
func (m app) all(msg tea.Msg) (app, tea.Cmd) {
	var cmds []tea.Cmd
	for i := range m.tabs {
		var cmd tea.Cmd
		m, cmd = m.give(i, msg)
		cmds = append(cmds, cmd)
	}
	return m, tea.Batch(cmds...)
}

// give gives a message to one screen. m.tabs of before stays as it was.
func (m app) give(i int, msg tea.Msg) (app, tea.Cmd) {
	next, cmd := m.tabs[i].update(msg)
	m = m.set(i, func(t *tab) { t.screen = next })
	return m, m.wrap(i, cmd)
}

func (m app) set(i int, change func(t *tab)) app {
	m.tabs = append([]tab{}, m.tabs...)
	change(&m.tabs[i])
	return m
}

// wrap has what a screen's command answers come back to that screen.
func (m app) wrap(i int, cmd tea.Cmd) tea.Cmd {
	if cmd == nil {
		return nil
	}
	now := m.o.Now
	return func() tea.Msg {
		msg := cmd()
		if batch, ok := msg.(tea.BatchMsg); ok {
			for j, c := range batch {
				batch[j] = m.wrap(i, c)
			}
			return batch
		}
		if msg == nil {
			return nil
		}
		return tabMsg{i, now(), msg}
	}
}

// ticked moves the time on and refreshes what is due.
func (m app) ticked(msg tickMsg) (app, tea.Cmd) {
	m.now = time.Time(msg)
	m, cmd := m.all(msg)
	cmds := []tea.Cmd{cmd, m.tick()}
	if m.due() {
		m, cmd = m.load(m.shown)
		cmds = append(cmds, cmd)
	}
	return m, tea.Batch(cmds...)
}

// due reports whether what is shown is to be asked anew: paused or not while the
// relay is gone, so that its return is seen.
func (m app) due() bool {
	return (!m.paused || !m.gone.IsZero()) && m.now.Sub(m.tabs[m.shown].asked) > m.o.Refresh-m.beat()/2
}

// load asks for what a tab shows, and for the health of the relay; never twice at
// once.
func (m app) load(i int) (app, tea.Cmd) {
	var cmds []tea.Cmd
	if m.tabs[i].flying {
		m = m.set(i, func(t *tab) { t.again = true })
	} else if cmd := m.tabs[i].load(); cmd != nil {
		m = m.set(i, func(t *tab) { t.flying, t.again, t.asked = true, false, m.now })
		now := m.o.Now
		cmds = append(cmds, func() tea.Msg {
			msg := cmd()
			return loadMsg{i, now(), msg}
		})
	}
	if !m.asking && !tellsStatus(m.tabs[i].screen) {
		m.asking = true
		cmds = append(cmds, m.askStatus())
	}
	return m, tea.Batch(cmds...)
}

// tellsStatus reports whether the answer to a screen's load holds the health of the
// relay, so that it need not be asked for as well.
func tellsStatus(s screen) bool {
	switch s.(type) {
	case overview, jobList:
		return true
	}
	return false
}

func (m app) askStatus() tea.Cmd {
	now := m.o.Now
	return ask(m.svc.Status, func(s admin.Status, err error) tea.Msg { return statusMsg{now(), s, err} })
}

// loadedTab takes the answer to a load.
func (m app) loadedTab(msg loadMsg) (app, tea.Cmd) {
	err := failure(msg.msg)
	m = m.heard(msg.msg, msg.at)
	m = m.set(msg.tab, func(t *tab) {
		if t.flying, t.err = false, err; err == nil {
			t.loaded = msg.at
		}
	})
	if err == nil {
		switch v := msg.msg.(type) {
		case overviewMsg:
			m.status, m.knows = v.v.Status, true
		case jobsMsg:
			m.status, m.knows = v.s, true
		}
	}
	var cmd, again tea.Cmd
	if msg.msg != nil && !m.isGone(err) {
		m, cmd = m.give(msg.tab, msg.msg)
	}
	if m.tabs[msg.tab].again {
		m, again = m.load(msg.tab)
	}
	return m, tea.Batch(cmd, again)
}

// answer takes what a screen's own command answered.
func (m app) answer(msg tabMsg) (app, tea.Cmd) {
	m = m.heard(msg.msg, msg.at)
	switch v := msg.msg.(type) {
	case reloadMsg:
		return m.load(msg.tab)
	case copyMsg:
		return m.copied(string(v))
	case doneMsg:
		if m = m.say(v.text, nil); v.err != nil {
			m = m.say("", v.err).heard(failMsg{v.err}, msg.at)
		}
		var cmd, again tea.Cmd
		m, cmd = m.give(msg.tab, v)
		m, again = m.load(msg.tab)
		return m, tea.Batch(cmd, again)
	}
	if err := failure(msg.msg); err != nil && !(m.isGone(err) && followed(msg.msg)) {
		m = m.say("", err)
	}
	return m.give(msg.tab, msg.msg)
}

// followed reports whether an answer is about a run that goes on to be looked at.
func followed(msg tea.Msg) bool {
	r, is := msg.(runMsg)
	return is && r.id != 0
}

// say puts something into the status line: a text, or an error and whether
// anything was done.
func (m app) say(text string, err error) app {
	m.said, m.saidErr, m.offline = clean(text), err != nil, m.isGone(err)
	switch {
	case err == nil:
	case m.o.Unsent(err):
		m.said = "nothing was done" // that no relay is there is said before it
	default:
		m.said = clean(err.Error())
	}
	return m
}

// heard learns from an answer whether the relay is there.
func (m app) heard(msg tea.Msg, at time.Time) app {
	f, asks := msg.(failing)
	switch {
	case !asks:
	case m.isGone(f.failed()):
		if m.gone.IsZero() {
			m.gone = at
			m = m.tellGone()
		}
	case f.failed() == nil && !m.gone.IsZero():
		m.gone = time.Time{}
		if m.offline {
			m = m.say("", nil)
		}
		m = m.tellGone()
	}
	return m
}

// tellGone tells every screen whether the relay is there.
func (m app) tellGone() app {
	m, _ = m.all(goneMsg(!m.gone.IsZero()))
	return m
}

func (m app) isGone(err error) bool { return err != nil && m.o.Gone(err) }

func failure(msg tea.Msg) error {
	if f, ok := msg.(failing); ok {
		return f.failed()
	}
	return nil
}

// copied puts a text on the clipboard of the terminal.
func (m app) copied(s string) (app, tea.Cmd) {
	put := m.o.copy
	switch {
	case put == nil:
		return m.say("", errors.New("this terminal has no clipboard")), nil
	case len(s) > maxCopied:
		return m.say("", fmt.Errorf("too much to copy: %s of at most %s", size(int64(len(s))), size(maxCopied))), nil
	}
	m = m.say("copied "+counted(int64(len(s)), "byte")+", if the terminal allows it", nil)
	return m, func() tea.Msg { put(s); return nil }
}

// maxCopied is as much as terminals take for the clipboard.
const maxCopied = 64 << 10

// keys takes a key. Keys that came in one go are taken one by one: an esc right
// before another key comes as that key with alt.
func (m app) keys(msg tea.KeyMsg) (app, tea.Cmd) {
	if msg.Type != tea.KeyRunes || msg.Paste || len(msg.Runes) == 1 && !msg.Alt {
		return m.key(msg)
	}
	var cmds []tea.Cmd
	take := func(k tea.Key) {
		var cmd tea.Cmd
		m, cmd = m.key(tea.KeyMsg(k))
		cmds = append(cmds, cmd)
	}
	if msg.Alt {
		take(tea.Key{Type: tea.KeyEsc})
	}
	for _, r := range msg.Runes {
		take(tea.Key{Type: tea.KeyRunes, Runes: []rune{r}})
	}
	return m, tea.Batch(cmds...)
}

// key takes one key. What went wrong stays in sight while the operator looks
// around: it goes with esc, with another screen, and when the next action begins.
func (m app) key(msg tea.KeyMsg) (app, tea.Cmd) {
	typing := m.tabs[m.shown].typing()
	if !m.saidErr || key.Matches(msg, keys.Back) || !typing && key.Matches(msg, keys.Next, keys.Prev, keys.Screen, keys.Quit) {
		m = m.say("", nil)
	}
	next, cmd := m.pressed(msg)
	if !typing && next.tabs[next.shown].typing() {
		next = next.say("", nil)
	}
	return next, cmd
}

func (m app) pressed(msg tea.KeyMsg) (app, tea.Cmd) {
	typing := m.tabs[m.shown].typing()
	switch {
	case key.Matches(msg, keys.ForceQuit):
		return m, tea.Quit
	case m.small(): // what is not seen is not done
		if key.Matches(msg, keys.Quit) {
			return m, tea.Quit
		}
		return m, nil
	case m.help && !key.Matches(msg, keys.Next, keys.Prev, keys.Screen):
		m.help = !key.Matches(msg, keys.Help, keys.Back, keys.Quit, keys.Open)
		return m, nil
	case key.Matches(msg, keys.Back):
		m, cmd, _ := m.back()
		return m, cmd
	case typing:
		return m.give(m.shown, msg)
	case msg.Paste: // nothing that is pasted is a command
		return m, nil
	case key.Matches(msg, keys.Quit):
		m, cmd, was := m.back()
		if !was {
			return m, tea.Quit
		}
		return m, cmd
	case key.Matches(msg, keys.Help):
		m.help = true
		return m, nil
	case key.Matches(msg, keys.Next):
		return m.show((m.shown + 1) % len(m.tabs))
	case key.Matches(msg, keys.Prev):
		return m.show((m.shown + len(m.tabs) - 1) % len(m.tabs))
	case key.Matches(msg, keys.Screen):
		return m.show(int(msg.Runes[0] - '1'))
	case key.Matches(msg, keys.Refresh):
		return m.load(m.shown)
	case key.Matches(msg, keys.Pause):
		m.paused = !m.paused
		return m, nil
	}
	return m.give(m.shown, msg)
}

// back leaves what is open in the screen.
func (m app) back() (app, tea.Cmd, bool) {
	next, was := m.tabs[m.shown].back()
	m = m.set(m.shown, func(t *tab) { t.screen = next })
	if !was {
		return m, nil, false
	}
	m, cmd := m.load(m.shown)
	return m, cmd, true
}

// show goes to a screen and has it load.
func (m app) show(i int) (app, tea.Cmd) {
	m.shown, m.help = i, false
	return m.load(i)
}

func (m app) small() bool { return m.w < minWidth || m.h < minHeight }
