package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// deskStub is a desk that answers what a test says.
type deskStub struct {
	admin.Service // anything else panics
	resolve       []admin.Enrolment
	hold          func(admin.ItemAction) (admin.ItemResult, error)
}

func (d deskStub) Resolve(context.Context, string) ([]admin.Enrolment, error) { return d.resolve, nil }

func (d deskStub) Hold(_ context.Context, a admin.ItemAction) (admin.ItemResult, error) {
	return d.hold(a)
}

func refLines(refs []relay.ItemRef) string {
	var b strings.Builder
	for i, r := range refs {
		line := fmt.Sprintf(`{"target":"%s","seq":%d,"id":"%s","bytes":3}`, r.Target, r.Seq, r.ID)
		if i%2 == 1 { // as the quarantine lists it
			line = fmt.Sprintf(`{"kind":"held","item":%s}`, line)
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

func someRefs(n int) []relay.ItemRef {
	keys := []wire.PublicKey{wiretest.NewHost("a").Pub(), wiretest.NewHost("b").Pub()}
	refs := make([]relay.ItemRef, n)
	for i := range refs {
		refs[i] = relay.ItemRef{Target: keys[i%2], Seq: int64(i + 1), ID: fmt.Sprintf("id-%d", i)}
	}
	return refs
}

// What a list prints names the items it printed, each once, in its order.
func TestReadRefs(t *testing.T) {
	refs := someRefs(5)
	got, err := readRefs(strings.NewReader("\n" + refLines(refs) + refLines(refs[:2])))
	if err != nil || len(got) != len(refs) {
		t.Fatalf("got %d items, %v; want %d", len(got), err, len(refs))
	}
	for i := range refs {
		if got[i] != refs[i] {
			t.Errorf("item %d: got %v; want %v", i, got[i], refs[i])
		}
	}
}

// Nothing at all is what a list leaves that failed.
func TestReadRefsNone(t *testing.T) {
	for _, in := range []string{"", "\n", " \n\r\n\t"} {
		refs, err := readRefs(strings.NewReader(in))
		if err == nil || exitCode(err) != codeNotFound || refs != nil || !strings.Contains(err.Error(), "no items came in") {
			t.Errorf("%q: got %v, %v; want none, not found", in, refs, err)
		}
	}
}

// A line that names no item stops all of it, by its number.
func TestReadRefsBad(t *testing.T) {
	good := refLines(someRefs(1))
	key := someRefs(1)[0].Target
	tests := []struct{ name, line, want string }{
		{"no JSON", "laptop 17", "line 2 on stdin names no item"},
		{"two values", strings.TrimSpace(good) + strings.TrimSpace(good), "line 2 on stdin names no item"},
		{"no id", fmt.Sprintf(`{"target":"%s","seq":4}`, key), "line 2 on stdin names no item"},
		{"no target", `{"seq":4,"id":"x"}`, "line 2 on stdin names no item"},
		{"seq 0", fmt.Sprintf(`{"target":"%s","seq":0,"id":"x"}`, key), "line 2 on stdin names no item"},
		{"seq too large", fmt.Sprintf(`{"target":"%s","seq":9223372036854775808,"id":"x"}`, key), "line 2 on stdin names no item"},
		{"a key that is none", `{"target":"AAAA","seq":4,"id":"x"}`, "line 2 on stdin names no item"},
		{"a member twice", fmt.Sprintf(`{"target":"%s","seq":4,"seq":5,"id":"x"}`, key), "line 2 on stdin names no item"},
		{"a refused push", `{"kind":"refused","refusal":{"id":3}}`, "line 2 on stdin is a refused push"},
		{"too long", `{"x":"` + strings.Repeat("x", maxRefLine) + `"}`, "line 2 on stdin is over 65536 bytes"},
		{"another id", strings.Replace(good, "id-0", "id-1", 1), "line 2 on stdin names an item under another id"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			line := tt.line
			in := good + line + "\n"
			if tt.name == "another id" {
				in = refLinesOf(good, line)
			}
			refs, err := readRefs(strings.NewReader(in))
			if err == nil || exitCode(err) != codeUsage || refs != nil || !strings.HasPrefix(err.Error(), tt.want) || !strings.HasSuffix(err.Error(), "nothing was done") {
				t.Errorf("got %v, %v; want none, and %q", refs, err, tt.want)
			}
		})
	}
}

func refLinesOf(lines ...string) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.TrimSpace(l) + "\n")
	}
	return b.String()
}

// FuzzReadRefs: whatever is piped in is read or refused, within bounds, and what is
// read names items that a list could have printed.
func FuzzReadRefs(f *testing.F) {
	f.Add(refLines(someRefs(3)))
	f.Add(`{"kind":"refused","refusal":{"id":3}}`)
	f.Add("{\"item\":{\"target\":null}}\n\r\n[]\n")
	f.Fuzz(func(t *testing.T, in string) {
		refs, err := readRefs(strings.NewReader(in))
		if err != nil {
			if len(refs) > 0 {
				t.Errorf("got %d items and %v; want none", len(refs), err)
			}
			return
		}
		again, err := readRefs(strings.NewReader(refLines(refs)))
		if err != nil || len(again) != len(refs) {
			t.Fatalf("read again: got %d items, %v; want %d", len(again), err, len(refs))
		}
		for i, r := range refs {
			if r.Seq < 1 || !wire.ValidItemID(r.ID) || again[i] != r {
				t.Errorf("got %v, then %v; want an item, the same twice", r, again[i])
			}
		}
	})
}

// Many items are done as many at a time as one call takes, and all are counted; when
// a call fails what came before it is told.
func TestItemDeedInChunks(t *testing.T) {
	refs := someRefs(2*relay.MaxItems + 7)
	slices.SortFunc(refs, relay.ItemRef.Compare)
	refs[3].ID = "gone"
	var sizes []int
	fail := false
	svc := deskStub{hold: func(a admin.ItemAction) (r admin.ItemResult, err error) {
		sizes = append(sizes, len(a.Items))
		if fail && len(sizes) == 2 {
			return r, fmt.Errorf("%w: read-only", admin.ErrRefused)
		}
		for _, ref := range a.Items {
			o := relay.Outcome{ItemRef: ref, Done: ref.ID != "gone"}
			if o.Done {
				r.Done++
			} else {
				r.Failed++
				o.Problem = relay.ProblemGone
			}
			r.Outcomes = append(r.Outcomes, o)
		}
		return r, nil
	}}
	run := func() (string, error) {
		var out, errw bytes.Buffer
		sizes = nil
		err := runItemDeed(t.Context(), env{in: strings.NewReader(""), out: &out, errw: &errw}, svc, deedHold, &deedFlags{yes: true, reason: "x"}, refs, nil)
		return out.String(), err
	}
	out, err := run()
	if fmt.Sprint(sizes) != "[500 500 7]" || exitCode(err) != codeFailed || !strings.HasSuffix(out, "held 1006 of 1007 items; 1 gone\n") || strings.Count(out, "\n") != 2 {
		t.Errorf("got calls of %v, %v, %q; want 500, 500 and 7, code 1, and one line for the one that is gone", sizes, err, out)
	}
	fail = true
	out, err = run()
	if exitCode(err) != codeRefused || !strings.Contains(err.Error(), "500 of 1007 items were seen to before") || !strings.HasSuffix(out, "held 499 of 1007 items; 1 gone; 507 not tried\n") {
		t.Errorf("cut short: got %v, %q; want code 3 and what was done before", err, out)
	}
}

// bulk holds refs with a desk that do stands for.
func bulk(t *testing.T, f deedFlags, refs []relay.ItemRef, do func(call int, a admin.ItemAction) (admin.ItemResult, error)) (out, errw string, err error) {
	t.Helper()
	var o, w bytes.Buffer
	calls := 0
	svc := deskStub{hold: func(a admin.ItemAction) (admin.ItemResult, error) { calls++; return do(calls, a) }}
	f.reason = "x"
	err = runItemDeed(t.Context(), env{in: strings.NewReader(""), out: &o, errw: &w}, svc, deedHold, &f, refs, nil)
	return o.String(), w.String(), err
}

// did answers that the first n items of a call were done, the others being left for
// another one.
func did(a admin.ItemAction, n int) (r admin.ItemResult) {
	for i, ref := range a.Items {
		o := relay.Outcome{ItemRef: ref, Done: i < n}
		if !o.Done {
			o.Problem = relay.ProblemLater
		}
		r.Outcomes = append(r.Outcomes, o)
	}
	r.Done, r.Failed = n, len(a.Items)-n
	return r
}

// Items are done in the order of their queues, whatever the order they came in, and
// what a call leaves is done by the next one.
func TestItemDeedKeepsTheOrder(t *testing.T) {
	refs := someRefs(relay.MaxItems + 20)
	rand.Shuffle(len(refs), func(i, j int) { refs[i], refs[j] = refs[j], refs[i] })
	var done []relay.ItemRef
	out, _, err := bulk(t, deedFlags{yes: true}, refs, func(_ int, a admin.ItemAction) (admin.ItemResult, error) {
		n := min(len(a.Items), 300)
		done = append(done, a.Items[:n]...)
		return did(a, n), nil
	})
	if err != nil || out != "held 520 of 520 items\n" || len(done) != 520 || !slices.IsSortedFunc(done, relay.ItemRef.Compare) {
		t.Errorf("got %v, %q, %d items, sorted %v; want all of them once, by target and seq", err, out, len(done), slices.IsSortedFunc(done, relay.ItemRef.Compare))
	}
	if _, _, err := bulk(t, deedFlags{yes: true}, refs, func(_ int, a admin.ItemAction) (admin.ItemResult, error) { return did(a, 0), nil }); err == nil {
		t.Error("a desk that does nothing: got no error; want one")
	}
}

// A dry run in parts says that it was one.
func TestDryRunInParts(t *testing.T) {
	for n, want := range map[int]bool{relay.MaxItems: false, relay.MaxItems + 1: true} {
		_, errw, err := bulk(t, deedFlags{dryRun: true}, someRefs(n), func(_ int, a admin.ItemAction) (admin.ItemResult, error) { return did(a, len(a.Items)), nil })
		if got := strings.Contains(errw, "tried in 2 parts of at most 500 items and 8 MiB, each undone before the next: later parts may come out differently\n"); err != nil || got != want {
			t.Errorf("%d items: got %q, %v; want it told %v", n, errw, err, want)
		}
	}
}

// When a later part fails, what is known, what is not and what was not tried add up.
func TestItemDeedFailsMidway(t *testing.T) {
	refs := someRefs(2*relay.MaxItems + 7)
	for _, tt := range []struct {
		name              string
		fails             error
		code              int
		unknown, notTried int
		last              string
	}{
		{"the relay is gone", errors.New("connection reset"), codeFailed, 500, 7, "held 500 of 1007 items; 500 unknown; 7 not tried\n"},
		{"refused as a whole", fmt.Errorf("%w: read-only", admin.ErrRefused), codeRefused, 0, 507, "held 500 of 1007 items; 507 not tried\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			do := func(call int, a admin.ItemAction) (admin.ItemResult, error) {
				if call == 2 {
					return admin.ItemResult{}, tt.fails
				}
				return did(a, len(a.Items)), nil
			}
			out, _, err := bulk(t, deedFlags{yes: true}, refs, do)
			if exitCode(err) != tt.code || out != tt.last {
				t.Errorf("got %v, %q; want code %d, %q", err, out, tt.code, tt.last)
			}
			out, _, err = bulk(t, deedFlags{yes: true, json: true}, refs, do)
			var doc struct {
				Done, Failed, Unknown *int
				NotTried              *int `json:"not_tried"`
			}
			if e := json.Unmarshal([]byte(out), &doc); e != nil || exitCode(err) != tt.code || doc.Unknown == nil || *doc.Unknown != tt.unknown ||
				doc.NotTried == nil || *doc.NotTried != tt.notTried || *doc.Done != 500 || *doc.Failed != 0 {
				t.Errorf("as JSON: got %v, %q, %v; want code %d, %d unknown, %d not tried", err, out, e, tt.code, tt.unknown, tt.notTried)
			}
		})
	}
}

// Without --yes and without a terminal nothing is done.
func TestDeedIsNotAgreed(t *testing.T) {
	var out, errw bytes.Buffer
	svc := deskStub{hold: func(admin.ItemAction) (r admin.ItemResult, err error) { return r, errors.New("it was done") }}
	err := runItemDeed(t.Context(), env{in: strings.NewReader("y\n"), out: &out, errw: &errw}, svc, deedHold, &deedFlags{reason: "x"}, someRefs(12), nil)
	if exitCode(err) != codeUsage || out.Len() > 0 || !strings.HasPrefix(errw.String(), "hold 12 items of 2 queues, because: x\n") || !strings.HasSuffix(errw.String(), "  and 2 more\n") {
		t.Errorf("got %v, %q, %q; want code 2 and what would be done", err, out.String(), errw.String())
	}
}

func TestFindHost(t *testing.T) {
	host := func(name string, revoked bool) admin.Enrolment {
		h := admin.Enrolment{Host: admin.Host{Key: wiretest.NewHost(name).Pub(), Name: name}}
		h.Fingerprint = h.Key.Fingerprint()
		if revoked {
			h.RevokedAt = time.Now()
		}
		return h
	}
	live, other, past := host("laptop", false), host("laptop", false), host("laptop", true)
	tests := []struct {
		name  string
		text  string
		found []admin.Enrolment
		code  int
	}{
		{"one", "laptop", []admin.Enrolment{live}, 0},
		{"a revoked one alone", "laptop", []admin.Enrolment{past}, 0},
		{"one that is live", "laptop", []admin.Enrolment{live, past}, 0},
		{"two that are live", "laptop", []admin.Enrolment{live, other, past}, codeUsage},
		{"two of the past", "laptop", []admin.Enrolment{past, host("laptop", true)}, codeUsage},
		{"two of a fingerprint", live.Fingerprint, []admin.Enrolment{live, past}, codeUsage},
		{"none", "laptop", nil, codeNotFound},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := findHost(t.Context(), deskStub{resolve: tt.found}, tt.text)
			if exitCode(err) != tt.code || err == nil && got.Key != tt.found[0].Key {
				t.Fatalf("got %v, %v; want code %d, or the first", got, err, tt.code)
			}
			for _, h := range tt.found {
				if want := h.Fingerprint + " " + h.Key.String(); err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("got %v; want %s named", err, want)
				}
			}
		})
	}
}

// A list goes on through pages that have few rows or none, stops at what was asked
// for, and prints one document however many pages there were.
func TestPrintList(t *testing.T) {
	pages := map[string]admin.Page[string]{
		"":   {Items: []string{"a\x1b[2J", "b"}, Next: "p2", Looked: 10},
		"p2": {Items: nil, Next: "p3", Looked: 10},
		"p3": {Items: []string{"c"}, Looked: 3},
	}
	l := list[string]{one: "letter", many: "letters", heading: "LETTER", cells: func(s string) []string { return []string{s} }}
	l.page = func(p admin.Paging) (admin.Page[string], error) { return pages[p.After], nil }
	print := func(f listing) (string, string, error) {
		var out, errw bytes.Buffer
		f.cursor = "after"
		err := printList(env{out: &out, errw: &errw}, &f, l)
		return out.String(), errw.String(), err
	}
	out, errw, err := print(listing{limit: 3})
	if err != nil || out != "LETTER\na?[2J\nb\nc\n" || errw != "3 letters\n" {
		t.Errorf("as a table: got %q, %q, %v; want three rows and their count", out, errw, err)
	}
	out, errw, err = print(listing{limit: 2})
	if err != nil || strings.Contains(out, "c\n") || errw != "2 letters; more with --after p2\n" {
		t.Errorf("two of them: got %q, %q, %v; want two rows, and where to go on", out, errw, err)
	}
	out, errw, err = print(listing{all: true, json: true})
	var doc struct {
		Items  []string
		Next   *string
		Looked int64
	}
	if e := json.Unmarshal([]byte(out), &doc); e != nil || err != nil || len(doc.Items) != 3 || doc.Next != nil || doc.Looked != 23 || errw != "" {
		t.Errorf("as JSON: got %q, %q, %v, %v; want one document with three items", out, errw, err, e)
	}
	out, _, err = print(listing{all: true, jsonLines: true})
	if err != nil || out != "\"a\\u001b[2J\"\n\"b\"\n\"c\"\n" {
		t.Errorf("as lines: got %q, %v; want one a row", out, err)
	}
	out, _, err = print(listing{limit: 1, from: "end", json: true})
	if e := json.Unmarshal([]byte(out), &doc); e != nil || err != nil || !strings.Contains(out, `"items": []`) {
		t.Errorf("nothing: got %q, %v, %v; want a document without items", out, err, e)
	}
	pages["p3"] = admin.Page[string]{Next: "p3"}
	if _, _, err := print(listing{all: true}); err == nil {
		t.Error("a page that leads to itself: got no error; want one")
	}
}

func TestSpan(t *testing.T) {
	for text, want := range map[string]time.Duration{"90m": 90 * time.Minute, "7d": 7 * 24 * time.Hour, "0s": 0, "-1h": 0, "d": 0, "1.5d": 0, "70000d": 0, "": 0, "soon": 0} {
		got, err := span(text, "--for")
		if got != want || (err == nil) != (want > 0) || err != nil && exitCode(err) != codeUsage {
			t.Errorf("%q: got %v, %v; want %v", text, got, err, want)
		}
	}
}
