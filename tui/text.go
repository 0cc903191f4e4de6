package tui

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean makes text from outside safe to show on one line: escape codes, control
// characters, marks of direction and bytes that are no text are shown as what
// they are, not obeyed.
func clean(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	marks := 0 // that stand on the character before
	for i, n := 0, 0; i < len(s); i += n {
		var r rune
		r, n = utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			n = 1
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.Is(unicode.M, r) && (i == 0 || marks >= maxMarks || invisible(r)), !unicode.IsPrint(r), invisible(r):
			b.WriteString(escape(r))
		default:
			b.WriteRune(r)
		}
		if unicode.Is(unicode.M, r) {
			marks++
		} else {
			marks = 0
		}
	}
	return b.String()
}

// maxMarks is how many marks may be stacked on one character: more are no
// writing, and reach into the lines above and below.
const maxMarks = 3

// plain reports whether a text is printable ASCII, as most are.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// invisible finds what counts as a letter or a mark and shows nothing, or joins
// characters to one whose width terminals do not agree on.
func invisible(r rune) bool {
	switch r {
	case 0x034f, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x2800, 0x3164, 0xffa0, 0xfffd:
		return true
	}
	switch { // letters that join what follows
	case r == 0x0d4e, r == 0x111c2, r == 0x111c3, r == 0x1193f, r == 0x11941, r == 0x11a3a, 0x11a84 <= r && r <= 0x11a89, r == 0x11d46, r == 0x11f02:
		return true
	}
	return 0xfe00 <= r && r <= 0xfe0f || 0xe0100 <= r && r <= 0xe01ef || // choosers of a variant
		0x1f3fb <= r && r <= 0x1f3ff || 0x1f1e6 <= r && r <= 0x1f1ff // tones of skin, halves of flags
}

func escape(r rune) string {
	switch {
	case r < 0x80:
		return fmt.Sprintf(`\x%02x`, r)
	case r < 0x10000:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\U%08x`, r)
}

// fit cleans, cuts (with …) or pads s to w cells, wide characters counted as two.
func fit(s string, w int) string {
	s = cut(s, w)
	return s + strings.Repeat(" ", max(0, w-width(s)))
}

// fitRight is fit for what is aligned to the right.
func fitRight(s string, w int) string {
	s = cut(s, w)
	return strings.Repeat(" ", max(0, w-width(s))) + s
}

// cut cleans and cuts s (with …) to at most w cells.
func cut(s string, w int) string {
	if w <= 0 {
		return ""
	}
	if len(s) > 8*w+64 { // no more than can be shown is looked at; a cut in the middle of a character shows as …
		s = s[:8*w+64]
	}
	if plain(s) {
		if len(s) <= w {
			return s
		}
		return s[:w-1] + "…"
	}
	s = clean(s)
	if width(s) <= w {
		return s
	}
	return upTo(s, w-1) + "…"
}

// tail cleans and cuts s at its beginning (with …) to at most w cells.
func tail(s string, w int) string {
	s = clean(s)
	if width(s) <= w {
		return s
	}
	for s != "" && width(s) >= w {
		c, _ := first(s)
		s = s[len(c):]
	}
	return cut("…"+s, w)
}

// cutDrawn cuts a line that was drawn, with its colours, to w cells.
func cutDrawn(s string, w int) string {
	if width(s) <= w {
		return s
	}
	return upTo(s, max(0, w))
}

// wrap cleans s and breaks it into lines of at most w cells, at most h of them.
func wrap(s string, w, h int) []string {
	if w <= 0 || h <= 0 {
		return nil
	}
	s = clean(s)
	var lines []string
	for s != "" && len(lines) < h {
		line := upTo(s, w)
		if line == "" { // a wide character in one column
			return append(lines, "…")
		}
		if at := strings.LastIndexByte(line, ' '); at > w/2 && len(line) < len(s) && s[len(line)] != ' ' {
			line = line[:at]
		}
		s = strings.TrimPrefix(s[len(line):], " ")
		lines = append(lines, line)
	}
	if s != "" && len(lines) > 0 {
		lines[len(lines)-1] = cut(lines[len(lines)-1]+" "+s, w)
	}
	return lines
}

// block makes lines exactly h lines of at most w cells.
func block(lines []string, w, h int) string {
	if h <= 0 {
		return ""
	}
	out := make([]string, h)
	for i := range out {
		if i < len(lines) {
			out[i] = cutDrawn(lines[i], w)
		}
	}
	return strings.Join(out, "\n")
}

// over draws a box over the middle of what was drawn into w columns and h lines.
func over(base, box string, w, h int) string {
	lines := strings.Split(base, "\n")
	for len(lines) < h {
		lines = append(lines, "")
	}
	drawn := strings.Split(box, "\n")
	top := max(0, (h-len(drawn))/2)
	for i, l := range drawn {
		if top+i < h {
			lines[top+i] = strings.Repeat(" ", max(0, (w-width(l))/2)) + cutDrawn(l, w)
		}
	}
	return strings.Join(lines[:h], "\n")
}

// ascii replaces what a terminal without UTF-8 cannot show, cell by cell.
func ascii(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r > '~' }) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		c, w := first(s)
		s = s[len(c):]
		r, n := utf8.DecodeRuneInString(c)
		to, known := asciiFor[r]
		switch {
		case r <= '~' && n == len(c):
			b.WriteString(c)
		case known && n == len(c):
			b.WriteByte(to)
		default:
			b.WriteString(strings.Repeat("?", w))
		}
	}
	return b.String()
}

var asciiFor = map[rune]byte{
	'…': '~', '×': 'x', '›': '>', '·': '.', '─': '-', '│': '|', '┌': '+', '┐': '+', '└': '+', '┘': '+', '├': '+', '┤': '+',
	'▸': '>', '•': '*', '↑': '^', '↓': 'v', '←': '<', '→': '>', '✓': '+', '✗': 'x', '–': '-', '▏': '_', '⏎': '#',
	'▁': '_', '▂': '.', '▃': '-', '▄': '=', '▅': '+', '▆': '*', '▇': '#', '█': '@', '░': '.',
}
