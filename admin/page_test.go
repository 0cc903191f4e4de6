package admin

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestCursorsComeBack(t *testing.T) {
	for _, c := range []cursor{
		{List: "a"},
		{List: "queues-depth", Key: lastKey, N: math.MaxInt64},
		{List: "enrolments", Key: wire.PublicKey{1}, Name: "näme <&>\u2028"},
		{List: "quarantine-held", Key: wire.PublicKey{31: 1}, N: 7, At: lastTime},
	} {
		got, err := parseCursor(c.String(), "other", c.List)
		if err != nil || *got != c {
			t.Errorf("got %+v, %v; want %+v", got, err, c)
		}
		if _, err := parseCursor(c.String(), "other"); !errors.Is(err, ErrBadRequest) {
			t.Errorf("in another list: got %v; want a bad request", err)
		}
	}
	if c, err := parseCursor("", "a"); c != nil || err != nil {
		t.Errorf("no cursor: got %v, %v; want none", c, err)
	}
}

func TestHostileCursors(t *testing.T) {
	raw := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	good := cursor{List: "a", N: 1}.String()
	for name, text := range map[string]string{
		"no base64":           "!",
		"padded":              base64.URLEncoding.EncodeToString([]byte(`{"l":"a","n":12}`)),
		"with a line end":     good + "\n",
		"no JSON":             raw("{"),
		"null":                raw("null"),
		"a list":              raw("[]"),
		"two":                 raw(`{"l":"a"}{"l":"a"}`),
		"a space":             raw(`{"l": "a"}`),
		"a field that is not": raw(`{"l":"a","x":1}`),
		"a field twice":       raw(`{"l":"a","n":1,"n":2}`),
		"a zero":              raw(`{"l":"a","n":0}`),
		"below zero":          raw(`{"l":"a","n":-1}`),
		"too large a number":  raw(`{"l":"a","n":9223372036854775808}`),
		"a fraction":          raw(`{"l":"a","n":1.5}`),
		"before 1970":         raw(`{"l":"a","t":-1}`),
		"after 9999":          raw(`{"l":"a","t":253402300800000}`),
		"half a key":          raw(`{"l":"a","k":"AAAA"}`),
		"an upper-case field": raw(`{"L":"a"}`),
		"no list":             raw(`{"n":1}`),
		"too long":            raw(`{"l":"a","s":"` + strings.Repeat("x", maxCursor) + `"}`),
		"bytes that are none": raw("{\"l\":\"a\",\"s\":\"\xff\"}"),
	} {
		if c, err := parseCursor(text, "a"); !errors.Is(err, ErrBadRequest) || c != nil {
			t.Errorf("%s: got %+v, %v; want a bad request", name, c, err)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %q; want one line", name, err)
		}
	}
}

// What is taken is what we wrote, byte for byte.
func FuzzParseCursor(f *testing.F) {
	f.Add(cursor{List: "items", Key: lastKey, N: 7}.String())
	f.Add(cursor{List: "enrolments", Key: wire.PublicKey{1}, Name: "Host"}.String())
	f.Add(base64.RawURLEncoding.EncodeToString([]byte(`{"l":"items","n":-1}`)))
	f.Add("e30")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCursor(text, "items", "enrolments")
		switch {
		case err != nil && (c != nil || !errors.Is(err, ErrBadRequest)):
			t.Errorf("got %+v, %v; want a bad request and no cursor", c, err)
		case err == nil && c == nil && text != "":
			t.Errorf("%q was taken for nothing", text)
		case c != nil && (c.String() != text || c.N < 0 || c.At < 0 || c.At > lastTime):
			t.Errorf("%q was taken as %+v, %q", text, c, c.String())
		}
	})
}

func TestNeedle(t *testing.T) {
	const fp = "ab12-cd34-ef56-0789"
	for _, tt := range []struct {
		text string
		want bool
	}{
		{"", true}, {"host", true}, {"HOST-0", true}, {"ab12", true}, {"AB12-CD34", true}, {"12cd34", true}, {"2c:d3", true}, {"ab12 cd34 ef56 0789", true},
		{"acme", true}, {"0790", false}, {"hosts", false}, {"-", true}, {"g", false}, {"ab12--cd", true},
	} {
		if got := newNeedle(tt.text).in(fp, "Host-01", "Acme"); got != tt.want {
			t.Errorf("%q: got %v; want %v", tt.text, got, tt.want)
		}
	}
}

// Pages of every size, of one list and of two that follow each other, give each row
// that was asked for once, in order, and look at no more rows than they may.
func TestPagesGiveEachRowOnce(t *testing.T) {
	for _, n := range []int{0, 1, 7, 30} {
		for _, limit := range []int{1, 2, 3, 7, 10, 100} {
			for _, most := range []int64{1, 2, 5, 7, 100} {
				for _, keep := range []int{1, 3, 100} { // every how manyth
					for _, lists := range []int{1, 2} {
						got := pageThrough(t, n, limit, most, keep, lists)
						var want []int
						for i := range n * lists {
							if i%n%keep == keep-1 {
								want = append(want, i)
							}
						}
						if !slices.Equal(got, want) {
							t.Errorf("n %d limit %d most %d keep %d lists %d: got %v; want %v", n, limit, most, keep, lists, got, want)
						}
					}
				}
			}
		}
	}
}

// pageThrough pages through lists of n numbers each, of which every keep-th is shown.
func pageThrough(t *testing.T, n, limit int, most int64, keep, lists int) (all []int) {
	t.Helper()
	after := ""
	for range 1000 {
		at, err := parseCursor(after, "0", "1")
		if err != nil {
			t.Fatal(err)
		}
		p := newPager[int](t.Context(), Paging{Limit: limit})
		p.most = most
		for i := range lists {
			list := fmt.Sprint(i)
			var from *int
			if at != nil && at.List < list {
				at = nil
			}
			if at != nil {
				if at.List > list {
					continue
				}
				from = new(int)
				*from = int(at.N)
			}
			if err := fill(p, from, rows[int, int]{
				read: func(after *int, each func(int) bool) error {
					first := i * n
					if after != nil {
						first = *after + 1
					}
					for v := first; v < (i+1)*n && each(v); v++ {
					}
					return nil
				},
				show: func(v int) (int, bool, error) { return v, v%n%keep == keep-1, nil },
				mark: func(v int) cursor { return cursor{List: list, N: int64(v)} },
				more: i+1 < lists,
			}); err != nil {
				t.Fatal(err)
			}
			if p.over() {
				break
			}
		}
		if len(p.page.Items) > limit || p.page.Looked > most {
			t.Fatalf("got a page of %d, of %d looked at; want at most %d and %d", len(p.page.Items), p.page.Looked, limit, most)
		}
		if keep == 1 && p.page.Looked != int64(len(p.page.Items)) {
			t.Errorf("looked at %d rows for %d; want no more than those", p.page.Looked, len(p.page.Items))
		}
		all = append(all, p.page.Items...)
		if after = p.page.Next; after == "" {
			return all
		}
	}
	t.Fatalf("n %d limit %d: no end", n, limit)
	return nil
}

// A caller that has gone is not worked for.
func TestPageOfNobody(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	p := newPager[int](ctx, Paging{Limit: 1})
	if err := fill(p, nil, rows[int, int]{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v; want it ended", err)
	}
}
