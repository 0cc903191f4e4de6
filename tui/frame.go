package tui

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/bubbles/key"
)

// View draws the frame and the screen in it.
func (m app) View() string {
	if m.w <= 0 || m.h <= 0 {
		return ""
	}
	if m.small() {
		return m.last(block([]string{m.tooSmall()}, m.w, m.h))
	}
	status := m.statusLines()
	body := m.body(m.w, m.h-frameLines+1-len(status))
	return m.last(strings.Join([]string{m.header(), m.tabLine(), body, strings.Join(status, "\n"), m.footer()}, "\n"))
}

// tooSmall says which size is needed, in as many words as there is room for.
func (m app) tooSmall() string {
	need := fmt.Sprintf("%d×%d", minWidth, minHeight)
	for _, s := range []string{
		fmt.Sprintf("agentmbx needs %s; this window is %d×%d (q leaves)", need, m.w, m.h),
		fmt.Sprintf("needs %s; this is %d×%d", need, m.w, m.h),
		"needs " + need,
	} {
		if width(s) <= m.w {
			return s
		}
	}
	return cut(need, m.w)
}

// last is what the terminal gets.
func (m app) last(view string) string {
	if m.o.ASCII {
		return ascii(view)
	}
	return view
}

// header says which relay this is, how it is, and how old what is shown is.
func (m app) header() string {
	version, health := "", m.look.faint("asking")
	if m.knows {
		version = " " + m.status.Version
		if health = m.look.good("healthy"); len(m.status.Problems) > 0 {
			health = m.look.alarm(strings.ToUpper(counted(int64(len(m.status.Problems)), "alarm")))
		}
	}
	if !m.gone.IsZero() {
		health = m.look.alarm("GONE")
	}
	right := []string{health}
	if m.readOnly {
		right = append(right, m.look.warn("read-only"))
	}
	if m.paused {
		right = append(right, m.look.warn("PAUSED"))
	}
	if at := m.tabs[m.shown].loaded; !at.IsZero() {
		right = append(right, age(m.now, at)+" old")
	}
	end := strings.Join(right, " · ")
	room := m.w - width(end) - 2
	name := "agentmbx relay" + clean(version) + " · "
	where := fit(name+m.o.Where, room)
	if len(where) > len(name) && strings.HasPrefix(where, name) {
		where = m.look.strong(name[:len(name)-len(" · ")]) + where[len(name)-len(" · "):]
	}
	return cutDrawn(where+"  "+end, m.w)
}

// tabLine names the screens, the shown one in brackets.
func (m app) tabLine() string {
	var b strings.Builder
	for i, t := range m.tabs {
		before := " "
		switch {
		case i == m.shown:
			before = "["
		case i == m.shown+1:
			before = "]"
		}
		b.WriteString(before)
		name := fmt.Sprintf("%d %s", i+1, tabName(t.title()))
		if i == m.shown {
			name = m.look.selected(name)
		}
		b.WriteString(name)
	}
	if m.shown == len(m.tabs)-1 {
		b.WriteString("]")
	}
	return cutDrawn(b.String(), m.w)
}

// tabName is a title without what is open in the screen.
func tabName(title string) string {
	name, _, _ := strings.Cut(title, " › ")
	return name
}

// body is the screen, or what stands in its place.
func (m app) body(w, h int) string {
	t := m.tabs[m.shown]
	switch {
	case m.help:
		return m.helpView(w, h)
	case t.loaded.IsZero() && !m.gone.IsZero():
		lines := []string{"", "  Waiting for a relay: none answers at", "  " + clean(m.o.Where)}
		if m.storeDir != "" {
			lines = append(lines, "", "  Start one with:", "  agentmbx relay serve --store-dir "+clean(m.storeDir))
		}
		return block(lines, w, h)
	case t.loaded.IsZero() && t.err != nil:
		lines := []string{"", m.look.alarm("  Cannot load this screen:")}
		for _, l := range wrap(t.err.Error(), w-4, h-4) {
			lines = append(lines, "  "+l)
		}
		return block(append(lines, "", "  It is tried again with each refresh; r tries it now."), w, h)
	}
	view := exactly(t.view(w, h), w, h)
	if !m.gone.IsZero() {
		return m.look.grey(view)
	}
	return view
}

// exactly holds a view to its room, whatever a screen does.
func exactly(view string, w, h int) string { return block(strings.Split(view, "\n"), w, h) }

// maxStatus is how many lines what is said takes at most.
const maxStatus = 2

// statusLines say what happened last, on a rule.
func (m app) statusLines() []string {
	t, say, paint := m.tabs[m.shown], "", m.look.strong
	switch {
	case !m.gone.IsZero():
		say, paint = fmt.Sprintf("relay gone since %s, waiting", m.gone.UTC().Format("15:04:05Z")), m.look.alarm
		if m.said != "" {
			say += " · " + m.said
		}
	case m.said != "":
		say = m.said
		if m.saidErr {
			say, paint = "✗ "+say, m.look.alarm
		}
	case t.err != nil && !t.loaded.IsZero():
		say, paint = fmt.Sprintf("✗ cannot refresh, shown as of %s: %v", ago(m.now, t.loaded), t.err), m.look.alarm
	case strings.Contains(t.title(), " › "):
		say = t.title()
	}
	if say == "" {
		return []string{m.look.faint(strings.Repeat("─", m.w))}
	}
	lines := wrap(say, m.w-6, maxStatus)
	for i, l := range lines {
		lines[i] = m.look.faint("── ") + paint(l) + m.look.faint(" "+strings.Repeat("─", max(0, m.w-4-width(l))))
	}
	return lines
}

// footer shows the keys that do something here, as many as there is room for; help
// and quit always.
func (m app) footer() string {
	if m.help {
		return m.keyLine([]key.Binding{keys.Back}, nil)
	}
	end := []key.Binding{keys.Help, keys.Quit}
	if m.tabs[m.shown].typing() {
		end = []key.Binding{keys.ForceQuit}
	}
	return m.keyLine(m.tabs[m.shown].bindings(), end)
}

func (m app) keyLine(list, end []key.Binding) string {
	tail, used := "", 0
	for _, b := range end {
		tail += "  " + m.hint(b)
	}
	room := m.w - width(tail)
	var b strings.Builder
	for _, k := range list {
		if !k.Enabled() {
			continue
		}
		s := m.hint(k)
		if used > 0 {
			s = "  " + s
		}
		if used+width(s) > room {
			break
		}
		used += width(s)
		b.WriteString(s)
	}
	return cutDrawn(b.String()+strings.TrimPrefix(tail, strings.Repeat(" ", max(0, 2-2*used))), m.w)
}

func (m app) hint(b key.Binding) string {
	does := b.Help().Desc
	if b.Help().Key == keys.Quit.Help().Key {
		does = "quit"
	}
	return m.look.key(b.Help().Key) + " " + does
}

// helpView lists every key that does something, from the key map.
func (m app) helpView(w, h int) string {
	screen := m.tabs[m.shown]
	lines := []string{m.look.strong("Keys of " + clean(screen.title()))}
	lines = append(lines, m.keyTable(screen.bindings(), w)...)
	lines = append(lines, "", m.look.strong("Everywhere"))
	lines = append(lines, m.keyTable(everywhere(), w)...)
	return block(lines, w, h)
}

// keyTable lays keys out in columns.
func (m app) keyTable(list []key.Binding, w int) (lines []string) {
	const cell = 38
	per := max(1, w/cell)
	seen := map[string]bool{}
	n := 0
	for _, b := range list {
		h := b.Help()
		if !b.Enabled() || seen[h.Key] {
			continue
		}
		seen[h.Key] = true
		if n%per == 0 {
			lines = append(lines, " ")
		}
		n++
		lines[len(lines)-1] += m.look.key(fit(h.Key, 13)) + " " + fit(h.Desc, cell-15) + " "
	}
	return lines
}
