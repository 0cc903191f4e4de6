package tui

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

func TestClean(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, in, want string }{
		{"plain", "studio-7", "studio-7"},
		{"escape codes", "\x1b[31mred", `\x1b[31mred`},
		{"clipboard", "\x1b]52;c;eA==\a", `\x1b]52;c;eA==\x07`},
		{"eight-bit code", "\u009b31m", `\u009b31m`},
		{"lines and tabs", "a\nb\tc\r", `a\x0ab\x09c\x0d`},
		{"no text", "a\xffb\xf0\x9f", `a\xffb\xf0\x9f`},
		{"override of direction", "\u202egnp.exe", `\u202egnp.exe`},
		{"isolates and marks", "\u2066a\u2069\u200e\u061c", `\u2066a\u2069\u200e\u061c`},
		{"right to left", "שלום", "שלום"},
		{"wide", "全角", "全角"},
		{"combined", "e\u0301", "e\u0301"},
		{"a mark alone", "\u0301e", `\u0301e`},
		{"a tower of marks", "e" + strings.Repeat("\u0301", 5), "e\u0301\u0301\u0301" + `\u0301\u0301`},
		{"joined", "👩\u200d👧", `👩\u200d👧`},
		{"blank letters", "a\u3164b\u00a0c", `a\u3164b\u00a0c`},
		{"tags", "a\U000e0041", `a\U000e0041`},
		{"the mark of bad text itself", "\ufffd", `\ufffd`},
		{"delete", "\x7f", `\x7f`},
	} {
		if got := clean(tt.in); got != tt.want {
			t.Errorf("%s: got %q; want %q", tt.name, got, tt.want)
		}
	}
}

// What was cleaned is obeyed by no terminal, and cleaning it again changes nothing.
func FuzzClean(f *testing.F) {
	for _, s := range hostile {
		f.Add(s, 10)
	}
	f.Fuzz(func(t *testing.T, s string, w int) {
		w = w & 0xff
		c := clean(s)
		if !utf8.ValidString(c) || clean(c) != c {
			t.Fatalf("clean(%q): got %q, cleaned again %q", s, c, clean(c))
		}
		for _, r := range c {
			if !unicode.IsPrint(r) {
				t.Fatalf("clean(%q): got %q with %U", s, c, r)
			}
		}
		if byCluster, byRune := ansi.StringWidth(c), wcwidth(c); width(c) < max(byCluster, byRune) {
			t.Fatalf("width(%q): got %d; a terminal may draw %d cells, or %d", c, width(c), byCluster, byRune)
		}
		for name, got := range map[string]string{"fit": fit(s, w), "fitRight": fitRight(s, w)} {
			if width(got) != w {
				t.Fatalf("%s(%q, %d): got %q of %d cells", name, s, w, got, width(got))
			}
		}
		if got := cut(s, w); width(got) > w {
			t.Fatalf("cut(%q, %d): got %q of %d cells", s, w, got, width(got))
		}
		for _, l := range wrap(s, w, 5) {
			if width(l) > max(1, w) {
				t.Fatalf("wrap(%q, %d): got %q of %d cells", s, w, l, width(l))
			}
		}
		if got := ascii(c); width(got) != width(c) || strings.ContainsFunc(got, func(r rune) bool { return r > '~' }) {
			t.Fatalf("ascii(%q): got %q of %d cells; want %d", c, got, width(got), width(c))
		}
	})
}

// A text takes the most cells that a terminal may draw it in.
func TestWidth(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in string
		want     int
	}{
		{"Thai sara am", "ทำ", 2}, {"Lao sara am", "ນຳ", 2}, {"Devanagari with spacing marks", "हिन्दी", 5}, {"Tamil", "கோ", 2},
		{"marks above", "e\u0301", 1}, {"wide", "全角", 4}, {"coloured", "\x1b[31mทำ\x1b[0m", 2}, {"nothing", "", 0},
	} {
		if got := width(tt.in); got != tt.want {
			t.Errorf("%s: got %d cells of %q; want %d", tt.name, got, tt.in, tt.want)
		}
	}
	if got, want := cutDrawn("\x1b[31mทำทำ\x1b[0m", 3), "\x1b[31mทำ\x1b[0m"; got != want {
		t.Errorf("cut: got %q; want %q", got, want)
	}
}

// wcwidth is how many cells a text takes on a terminal that adds up its characters.
func wcwidth(s string) (n int) {
	for _, r := range undrawn(s) {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me):
		case ansi.StringWidth(string(r)) == 2:
			n += 2
		default:
			n++
		}
	}
	return n
}

func TestFit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		in   string
		w    int
		want string
	}{
		{"abc", 5, "abc  "}, {"abcdef", 4, "abc…"}, {"全角文字", 5, "全角…"}, {"全角文字", 4, "全… "}, {"全", 1, "…"}, {"abc", 0, ""}, {"e\u0301e\u0301e\u0301", 2, "e\u0301…"},
	} {
		if got := fit(tt.in, tt.w); got != tt.want {
			t.Errorf("fit(%q, %d): got %q; want %q", tt.in, tt.w, got, tt.want)
		}
	}
}

func TestSparkAndUnits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, got, want string }{
		{"nothing", spark([]int64{0, 0}, 2), "▁▁"},
		{"the lowest above nothing shows", spark([]int64{0, 1, 1000}, 3), "▁▂█"},
		{"the last ones", spark([]int64{9, 9, 0, 5}, 2), "▁█"},
		{"few", spark([]int64{1}, 3), "  █"},
		{"bytes", size(1023), "1023 B"}, {"KiB", size(1024), "1.0 KiB"}, {"near MiB", size(1<<20 - 1), "1.0 MiB"}, {"most", size(1<<63 - 1), "8.0 EiB"}, {"less than none", size(-5000), "-4.9 KiB"},
		{"thousands", count(1234567), "1,234,567"}, {"hundreds", count(999), "999"}, {"below zero", count(-1234), "-1,234"},
		{"one", counted(1, "item"), "1 item"}, {"pushes", counted(2, "push"), "2 pushes"},
		{"seconds", span(59e9), "59s"}, {"minutes", span(61e9), "1m01s"}, {"hours", span(3700e9), "1h01m"}, {"days", span(90000e9), "1d01h"},
		{"ahead", ago(clock, clock.Add(90e9)), "in 1m30s"}, {"before", ago(clock, clock.Add(-90e9)), "1m30s ago"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %q; want %q", tt.name, tt.got, tt.want)
		}
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		env           map[string]string
		colour, ascii bool
	}{
		{"usual", map[string]string{"LANG": "de_DE.UTF-8"}, true, false},
		{"no colour", map[string]string{"LANG": "C.utf8", "NO_COLOR": "yes"}, false, false},
		{"empty NO_COLOR", map[string]string{"LANG": "C.utf8", "NO_COLOR": ""}, true, false},
		{"LANG=C", map[string]string{"LANG": "C"}, true, true},
		{"LC_ALL wins", map[string]string{"LANG": "de_DE.UTF-8", "LC_ALL": "C"}, true, true},
		{"LC_CTYPE wins", map[string]string{"LANG": "C", "LC_CTYPE": "C.UTF-8"}, true, false},
		{"nothing", nil, true, true},
	} {
		colour, ascii := Terminal(func(k string) string { return tt.env[k] })
		if colour != tt.colour || ascii != tt.ascii {
			t.Errorf("%s: got colour %v, ascii %v; want %v, %v", tt.name, colour, ascii, tt.colour, tt.ascii)
		}
	}
}
