package tui

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// holds fails the test when a view is larger than its room or carries a code that
// is none of our colours.
func holds(t *testing.T, what, view string, w, h int) {
	t.Helper()
	lines := strings.Split(view, "\n")
	if len(lines) > max(h, 1) {
		t.Fatalf("%s at %d×%d: got %d lines", what, w, h, len(lines))
	}
	for _, l := range lines {
		if n := max(width(l), wcwidth(l)); n > w {
			t.Fatalf("%s at %d×%d: got %d cells in %q", what, w, h, n, l)
		}
		if bare := undrawn(l); strings.ContainsFunc(bare, func(r rune) bool { return r < ' ' || 0x7f <= r && r <= 0x9f }) {
			t.Fatalf("%s at %d×%d: got codes in %q", what, w, h, l)
		}
	}
}

// ways lead to what can be open in a screen.
var ways = [][]string{
	{}, {"enter"}, {"enter", "enter"}, {"x"}, {"b"}, {"h"}, {"d"}, {"t"}, {"v"}, {"enter", "h"}, {"enter", "x"}, {"G", "enter"}, {"/", "a"}, {"?"}, {"enter", "o"}, {"o", "l"}, {"d", "a"}, {"j", "enter", "enter", "G"},
}

// Every screen, whatever is open in it, keeps to every size, with names that try
// to break out of it.
func TestScreensKeepToTheirSize(t *testing.T) {
	t.Parallel()
	sizes := [][2]int{{1, 1}, {2, 2}, {3, 40}, {40, 1}, {5, 5}, {20, 4}, {79, 24}, {80, 23}, {80, 24}, {81, 25}, {120, 30}, {200, 60}, {400, 100}}
	for at := range 7 {
		for _, way := range ways {
			t.Run(fmt.Sprintf("%d %s", at+1, strings.Join(way, " ")), func(t *testing.T) {
				t.Parallel()
				s := newStage(t, full(hostile...), func(o *Options) { o.Colour, o.Where = true, hostile[0] })
				s.show(at).press(way...)
				for _, sz := range sizes {
					w, h := sz[0], sz[1]
					holds(t, "screen", s.screen().view(w, h), w, h)
					s.resize(w, h)
					holds(t, "window", s.view(), w, h)
				}
			})
		}
	}
}

// Keys, sizes and losses of the relay in any order never break the screens.
func TestAnythingInAnyOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 7))
			f := full(hostile...)
			s := newStage(t, f, func(o *Options) { o.Colour, o.ASCII = seed%2 == 0, seed%3 == 0 })
			pressed := []string{"1", "2", "3", "4", "5", "6", "7", "tab", "j", "k", "g", "G", "pgdown", "enter", "enter", "esc", "/", "a", "s", "o", "x", "b", "h", "d", "u", "l", "v", "t", "y", "n", " ", "?", "p", "r", "backspace"}
			for range 250 {
				switch r.IntN(12) {
				case 0:
					s.resize(1+r.IntN(160), 1+r.IntN(60))
				case 1:
					f.fail([]error{nil, nil, errGone}[r.IntN(3)])
					s.later(2e9)
				case 2:
					s.look()
				default:
					s.press(pressed[r.IntN(len(pressed))])
				}
				holds(t, "window", s.view(), s.app.w, s.app.h)
			}
		})
	}
}

// FuzzResize is one screen at any size, with a name of any kind.
func FuzzResize(f *testing.F) {
	for i, s := range hostile {
		f.Add(uint8(i), uint16(80+i), uint16(24), s)
	}
	f.Fuzz(func(t *testing.T, at uint8, w, h uint16, name string) {
		s := newStage(t, full(name, "studio"))
		s.show(int(at) % 7)
		s.resize(1+int(w)%400, 1+int(h)%100)
		holds(t, "window", s.view(), s.app.w, s.app.h)
	})
}
