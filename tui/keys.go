package tui

import "github.com/charmbracelet/bubbles/key"

// keys is every key that does something. Footer, help and docs are made of it.
var keys = struct {
	// everywhere
	ForceQuit, Quit, Back, Help, Next, Prev, Screen, Refresh, Pause key.Binding
	// in lists and texts
	Up, Down, PageUp, PageDown, Top, Bottom, Open, Filter, Sort, Copy, Mark key.Binding
	// queues, items and quarantine
	Hold, Release, Discard, Dismiss, Senders key.Binding
	// enrolments
	Revoke, Block, Unblock, Denials, Deny, State key.Binding
	// backups and drills
	Backup, Verify, Drill, Restore, Receipt key.Binding
	// jobs and log
	RunNow, Op key.Binding
}{
	ForceQuit: bind("leave at once", "ctrl+c"),
	Quit:      bind("back; at the top leave", "q"),
	Back:      bind("back", "esc"),
	Help:      bind("help", "?"),
	Next:      bind("next screen", "tab"),
	Prev:      bind("screen before", "shift+tab"),
	Screen:    bind("screen by number", "1", "2", "3", "4", "5", "6", "7"),
	Refresh:   bind("refresh now", "r"),
	Pause:     bind("pause or go on", "p"),

	Up:       bind("up", "k", "up"),
	Down:     bind("down", "j", "down"),
	PageUp:   bind("page up", "pgup", "ctrl+b"),
	PageDown: bind("page down", "pgdown", "ctrl+f"),
	Top:      bind("first", "g", "home"),
	Bottom:   bind("last", "G", "end"),
	Open:     bind("open", "enter"),
	Filter:   bind("filter", "/"),
	Sort:     bind("sort", "s"),
	Copy:     bind("copy", "y"),
	Mark:     bind("mark", " "),

	Hold:    bind("hold", "h"),
	Release: bind("release", "l"),
	Discard: bind("discard", "x"),
	Dismiss: bind("dismiss", "d"),
	Senders: bind("by sender", "o"),

	Revoke:  bind("revoke", "x"),
	Block:   bind("block", "b"),
	Unblock: bind("unblock", "u"),
	Denials: bind("deny list", "d"),
	Deny:    bind("add", "a"),
	State:   bind("state", "o"),

	Backup:  bind("back up now", "b"),
	Verify:  bind("verify", "v"),
	Drill:   bind("drill", "d"),
	Restore: bind("how to restore", "t"),
	Receipt: bind("last drill", "l"),

	RunNow: bind("run now", "x"),
	Op:     bind("kind", "o"),
}

func bind(does string, on ...string) key.Binding {
	return key.NewBinding(key.WithKeys(on...), key.WithHelp(shown(on), does))
}

// shown is how a person reads keys.
func shown(on []string) string {
	s := ""
	if len(on) > 3 {
		return on[0] + "-" + on[len(on)-1]
	}
	for i, k := range on {
		if i > 0 {
			s += "/"
		}
		switch k {
		case " ":
			k = "space"
		case "up":
			k = "↑"
		case "down":
			k = "↓"
		}
		s += k
	}
	return s
}

// moving are the keys of every list.
func moving() []key.Binding {
	return []key.Binding{keys.Up, keys.Down, keys.PageUp, keys.PageDown, keys.Top, keys.Bottom}
}

// everywhere are the keys of the frame.
func everywhere() []key.Binding {
	return []key.Binding{keys.Screen, keys.Next, keys.Prev, keys.Refresh, keys.Pause, keys.Help, keys.Back, keys.Quit, keys.ForceQuit}
}

// off takes the keys out that change something, on a desk that only reads.
func (d desk) off(b key.Binding) key.Binding {
	b.SetEnabled(!d.readOnly)
	return b
}
