package tui

import "strings"

// look says how things are drawn. A nil one draws plain text: what is drawn says
// without colour all that it says with it. The colours are the terminal's own
// sixteen, and nothing asks it for its background.
type look struct{}

func (l *look) paint(code, s string) string {
	if l == nil || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (l *look) strong(s string) string   { return l.paint("1", s) }
func (l *look) faint(s string) string    { return l.paint("2", s) }
func (l *look) alarm(s string) string    { return l.paint("1;31", s) }
func (l *look) warn(s string) string     { return l.paint("33", s) }
func (l *look) good(s string) string     { return l.paint("32", s) }
func (l *look) key(s string) string      { return l.paint("1;36", s) }
func (l *look) heading(s string) string  { return l.paint("1;4", s) }
func (l *look) selected(s string) string { return l.paint("7", s) }
func (l *look) spark(s string) string    { return l.paint("36", s) }

// grey draws all of a view anew as something old.
func (l *look) grey(view string) string {
	lines := strings.Split(view, "\n")
	for i, s := range lines {
		lines[i] = l.faint(undrawn(s))
	}
	return strings.Join(lines, "\n")
}

// undrawn is a drawn text without its colours. There are no other codes in it.
func undrawn(s string) string {
	var b strings.Builder
	for {
		at := strings.IndexByte(s, '\x1b')
		if at < 0 {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:at])
		end := strings.IndexByte(s[at:], 'm')
		if end < 0 {
			return b.String()
		}
		s = s[at+end+1:]
	}
}
