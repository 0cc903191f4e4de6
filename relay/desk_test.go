package relay_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// What the tests of an operator's deeds share.

// deedOf is one of Hold, Release and Discard.
type deedOf func(context.Context, []relay.ItemRef, relay.Deed) ([]relay.Outcome, error)

func ref(h *wiretest.Host, seq int64, it wire.PushItem) relay.ItemRef {
	return relay.ItemRef{Target: h.Pub(), Seq: seq, ID: it.ID}
}

// done does something to items, and to all of them.
func (r *rig) done(do deedOf, refs ...relay.ItemRef) []relay.Outcome {
	r.t.Helper()
	list := r.outcomes(do, refs...)
	for _, o := range list {
		if !o.Done || o.Problem != "" {
			r.t.Fatalf("item %d, %s: got %+v; want it done", o.Seq, o.ID, o)
		}
	}
	return list
}

func (r *rig) outcomes(do deedOf, refs ...relay.ItemRef) []relay.Outcome {
	r.t.Helper()
	list, err := do(context.Background(), refs, operator)
	if err != nil || len(list) != len(refs) {
		r.t.Fatalf("got %d outcomes, %v; want %d", len(list), err, len(refs))
	}
	for i, o := range list {
		same(r.t, "the item it is about", o.ItemRef, refs[i])
	}
	return list
}

// undone expects nothing to be done to an item, nor anything to change.
func (r *rig) undone(what string, do deedOf, ref relay.ItemRef, problem string) {
	r.t.Helper()
	before := r.dump()
	o := r.outcomes(do, ref)[0]
	same(r.t, what, o, relay.Outcome{ItemRef: ref, Problem: problem})
	same(r.t, what+": the store", r.dump(), before)
}

// quarantine names what is held: "1:id 2:id".
func (r *rig) quarantine() string {
	r.t.Helper()
	var items []store.Item
	r.view(func(v store.Reader) error {
		return v.Held(func(it store.HeldItem) bool { items = append(items, it.Item); return true })
	})
	return seqs(items)
}

// receiptOf is the last line of the log of a kind.
func (r *rig) receiptOf(op string) (line struct {
	V             int
	Type, At      string
	Actor, Reason string
	Host          struct{ Name, Fingerprint string }
	Denial        struct{ ID int64 }
	Replaced      []int64
	Refusals      []relay.Refusal
	Items         int
	Groups        []struct {
		Target, Sender wire.PublicKey
		Kind, Notice   string
		Bytes          int64
		Items          []struct {
			Seq    int64
			ID     string
			NewSeq int64 `json:"new_seq"`
		}
	}
}) {
	r.t.Helper()
	ops := r.log(op)
	if len(ops) == 0 {
		r.t.Fatalf("log: got no line of %s", op)
	}
	last := ops[len(ops)-1]
	ok(r.t, "decode", json.Unmarshal(last.Receipt, &line))
	same(r.t, op+": head of the receipt", fmt.Sprint(line.V, line.Type, line.At, line.Actor, line.Reason),
		fmt.Sprint(1, "relay-"+op, wire.FormatTime(last.At), operator.Actor, operator.Reason))
	return line
}

// notice is the only item that waits for a host, which must be a notice of expiry.
func (r *rig) notice(h *wiretest.Host) wire.ExpiryNotice {
	r.t.Helper()
	page := r.pull(h, relay.PullQuery{})
	if len(page.Items) != 1 || page.Items[0].Kind != store.KindExpired {
		r.t.Fatalf("queue of %s: got %s; want a notice alone", h.Name, seqs(page.Items))
	}
	n, err := wire.ParseExpiryNotice(page.Items[0].Wire, r.key.Public())
	ok(r.t, "notice, its signature too", err)
	same(r.t, "its id", page.Items[0].ID, n.ID())
	return n
}

// dump is every row of every table, as text.
func (r *rig) dump() string {
	r.t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(r.dir, sqlite.FileName)+"?mode=ro")
	ok(r.t, "open the file", err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	var tables []string
	for _, row := range rows(r.t, db, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name") {
		tables = append(tables, strings.Trim(row, "[]"))
	}
	if len(tables) < 10 {
		r.t.Fatalf("tables: got %q; want all of them", tables)
	}
	var b strings.Builder
	for _, name := range tables {
		fmt.Fprintln(&b, name, strings.Join(rows(r.t, db, "SELECT * FROM "+name), "\n"))
	}
	return b.String()
}

func rows(t testing.TB, db *sql.DB, query string) (list []string) {
	t.Helper()
	found, err := db.Query(query)
	ok(t, query, err)
	defer found.Close()
	columns, err := found.Columns()
	ok(t, query, err)
	for found.Next() {
		values := make([]any, len(columns))
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		ok(t, query, found.Scan(into...))
		list = append(list, fmt.Sprint(values))
	}
	ok(t, query, found.Err())
	slices.Sort(list)
	return list
}

// A call about items that can't be meant changes nothing and says what is wrong.
func TestDeedsCheckWhatTheyAreAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	it := mail(alpha, beta)
	r.pushed(alpha, it, "accepted")
	many := make([]relay.ItemRef, relay.MaxItems+1)
	for i := range many {
		many[i] = relay.ItemRef{Target: beta.Pub(), Seq: int64(i + 1), ID: "x"}
	}
	good := ref(beta, 1, it)
	before := r.dump()
	for _, do := range []deedOf{r.relay.Hold, r.relay.Release, r.relay.Discard} {
		for _, tt := range []struct {
			name string
			refs []relay.ItemRef
			want string
		}{
			{"none", nil, "name the items"},
			{"too many", many, "at most 500 items in one call, not 501"},
			{"one twice", []relay.ItemRef{good, good}, "named twice"},
			{"one twice, under two ids", []relay.ItemRef{good, {Target: good.Target, Seq: 1, ID: "x"}}, "named twice"},
			{"no id", []relay.ItemRef{{Target: good.Target, Seq: 1}}, "by its target, seq and id"},
			{"no seq", []relay.ItemRef{{Target: good.Target, ID: it.ID}}, "by its target, seq and id"},
			{"a seq below any", []relay.ItemRef{{Target: good.Target, Seq: -1, ID: it.ID}}, "by its target, seq and id"},
			{"no target", []relay.ItemRef{{Seq: 1, ID: it.ID}}, "by its target, seq and id"},
		} {
			_, err := do(t.Context(), tt.refs, operator)
			if !errors.Is(err, relay.ErrBadDeed) {
				t.Fatalf("%s: got %v; want a bad request", tt.name, err)
			}
			contains(t, tt.name, err.Error(), tt.want)
		}
	}
	same(t, "the store", r.dump(), before)
	list := r.outcomes(r.relay.Hold, append([]relay.ItemRef{good}, many[1:relay.MaxItems]...)...) // as many as may be
	same(t, "the one that is there", list[0].Done, true)
	same(t, "one that is not", list[1].Problem, relay.ProblemGone)
}

// A dry run says what would be done and changes nothing at all; what it said is
// then done.
func TestDryRunsChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alpha, beta := r.enrol("alpha"), r.enrol("beta")
	one, two, held := mail(alpha, beta), mail(alpha, beta), mail(alpha, beta)
	r.push(alpha, one, two, held)
	r.done(r.relay.Hold, ref(beta, 3, held))
	r.push(alpha, item("nonsense", "x")) // a refusal
	ok(t, "beat", r.relay.Beat(t.Context()))
	same(t, "block", r.block(alpha.Pub(), t0.Add(day), operator), true)
	denial := r.denials(alpha)[0].ID
	gone := relay.ItemRef{Target: beta.Pub(), Seq: 99, ID: "x"}
	said := func(list any, err error) string {
		ok(t, "deed", err)
		return fmt.Sprintf("%+v", list)
	}
	for _, tt := range []struct {
		op string
		do func(relay.Deed) string
	}{
		{"hold", func(d relay.Deed) string {
			return said(r.relay.Hold(t.Context(), []relay.ItemRef{ref(beta, 1, one), gone}, d))
		}},
		{"release", func(d relay.Deed) string {
			return said(r.relay.Release(t.Context(), []relay.ItemRef{ref(beta, 1, one)}, d))
		}},
		{"discard", func(d relay.Deed) string {
			return said(r.relay.Discard(t.Context(), []relay.ItemRef{gone, ref(beta, 3, held)}, d))
		}},
		{"dismiss-refused", func(d relay.Deed) string { return said(r.relay.Dismiss(t.Context(), nil, d)) }},
		{"block", func(d relay.Deed) string { return said(r.relay.Block(t.Context(), beta.Pub(), t0.Add(day), d)) }},
		{"unblock", func(d relay.Deed) string { return said(r.relay.Unblock(t.Context(), relay.DenialRef{ID: denial}, d)) }},
		{"revoke", func(d relay.Deed) string { return said(r.relay.RevokeHost(t.Context(), alpha.Pub(), d)) }},
	} {
		dry := operator
		dry.Dry = true
		before, lines := r.dump(), len(r.log(tt.op))
		first := tt.do(dry)
		same(t, tt.op+": a dry run again", tt.do(dry), first)
		same(t, tt.op+": the store after a dry run", r.dump(), before)
		same(t, tt.op+": what was then done", tt.do(operator), first)
		same(t, tt.op+": lines in the log", len(r.log(tt.op)), lines+1)
		r.receiptOf(tt.op)
	}
	same(t, "refusals", len(must(r.relay.Refusals(t.Context()))), 0)
}

// A deed that fails half-way leaves nothing, and nothing of it reaches those whom
// the store commits with it.
func TestADeedIsWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	fail := &failingObserver{kind: relay.Held, after: 1}
	r := newRig(t, func(s *setup) { s.Observers = []relay.Observer{fail} })
	alpha, beta, gamma := r.enrol("alpha"), r.enrol("beta"), r.enrol("gamma")
	one, two := mail(alpha, beta), mail(alpha, beta)
	r.push(alpha, one, two)
	before := r.dump()
	_, err := r.relay.Hold(t.Context(), []relay.ItemRef{ref(beta, 1, one), ref(beta, 2, two)}, operator)
	if !errors.Is(err, errObserver) {
		t.Fatalf("hold: got %v; want the observer's error", err)
	}
	same(t, "the store", r.dump(), before)

	fail.kind, fail.after = relay.Held, -1 // every one fails
	who := r.caller(gamma)
	results := make(chan error)
	const n = 20
	items := make([]wire.PushItem, n)
	for i := range items {
		items[i] = mail(gamma, beta)
	}
	for i := range n {
		go func() {
			_, err := r.relay.Hold(context.Background(), []relay.ItemRef{ref(beta, 1+int64(i)%2, []wire.PushItem{one, two}[i%2])}, operator)
			if !errors.Is(err, errObserver) {
				results <- fmt.Errorf("hold: got %v; want the observer's error", err)
				return
			}
			results <- nil
		}()
		go func() {
			res, err := r.relay.Push(context.Background(), who, []wire.PushItem{items[i]})
			if err == nil && res[0].Status != "accepted" {
				err = errors.New(res[0].Status)
			}
			results <- err
		}()
	}
	for range 2 * n {
		ok(t, "deed or push", <-results)
	}
	same(t, "held", r.quarantine(), "")
	same(t, "queued", len(r.queue(beta)), 2+n)
	same(t, "log", len(r.log("hold")), 0)
}
