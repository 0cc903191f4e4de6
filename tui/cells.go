package tui

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// Terminals do not agree on how many cells a text takes: some draw characters that
// belong together as one, others add up what each of them takes alone. The larger
// of both is counted, so that no line is longer than there is room for on either.

// width is how many cells a cleaned or drawn text takes at most.
func width(s string) int {
	if plain(s) { // nearly all that is drawn, and many times faster
		return len(s)
	}
	n := 0
	for s != "" {
		c, w := first(s)
		s, n = s[len(c):], n+w
	}
	return n
}

// upTo is as much of a text as w cells hold, with all of its colours.
func upTo(s string, w int) string {
	var b strings.Builder
	for s != "" {
		c, n := first(s)
		if s = s[len(c):]; n > w {
			w = -1 // nothing that takes room comes after
		}
		if w -= n; w >= 0 || c[0] == '\x1b' {
			b.WriteString(c)
		}
	}
	return b.String()
}

// first is what a cleaned or drawn text begins with, a colour or what belongs
// together, and how many cells that takes at most.
func first(s string) (string, int) {
	if s[0] == '\x1b' { // a colour: there are no other codes
		if at := strings.IndexByte(s, 'm'); at > 0 {
			return s[:at+1], 0
		}
		return s, 0
	}
	if s[0] < utf8.RuneSelf && (len(s) == 1 || s[1] < utf8.RuneSelf) {
		return s[:1], 1
	}
	c, w := ansi.FirstGraphemeCluster(s, ansi.GraphemeWidth)
	return c, max(w, alone(c))
}

// alone is how many cells the characters of a text take when each is drawn by
// itself. Only marks that stand over or under others take none.
func alone(s string) (n int) {
	for _, r := range s {
		if !unicode.In(r, unicode.Mn, unicode.Me) {
			n += max(1, ansi.StringWidth(string(r)))
		}
	}
	return n
}
