package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// What tests look at, and how they say what is wrong with it.

// view reads the store itself.
func (r *rig) view(fn func(v store.Reader) error) {
	r.t.Helper()
	if err := r.store.View(context.Background(), fn); err != nil {
		r.t.Fatalf("view: %v", err)
	}
}

// queue is what the store holds for a key, in order, enrolled or not.
func (r *rig) queue(h *wiretest.Host) (items []store.Item) {
	r.t.Helper()
	r.view(func(v store.Reader) error {
		return v.Page(h.Pub(), 0, 1000, func(it store.Item) bool { items = append(items, it); return true })
	})
	return items
}

// queued names the items of a queue: "1:id 2:id".
func (r *rig) queued(h *wiretest.Host) string {
	r.t.Helper()
	return seqs(r.queue(h))
}

func seqs(items []store.Item) string {
	var s []string
	for _, it := range items {
		s = append(s, fmt.Sprintf("%d:%s", it.Seq, it.ID))
	}
	return strings.Join(s, " ")
}

func (r *rig) usage(h *wiretest.Host) (u store.Usage) {
	r.t.Helper()
	r.view(func(v store.Reader) (err error) { u, err = v.QueueUsage(h.Pub()); return err })
	return u
}

func (r *rig) accountUsage(name string) (u store.Usage) {
	r.t.Helper()
	r.view(func(v store.Reader) (err error) { u, err = v.AccountUsage(name); return err })
	return u
}

func (r *rig) totals() (t store.Totals) {
	r.t.Helper()
	r.view(func(v store.Reader) (err error) { t, err = v.Totals(); return err })
	return t
}

func (r *rig) enrolment(h *wiretest.Host) (e store.Enrolment, found bool) {
	r.t.Helper()
	r.view(func(v store.Reader) (err error) {
		if e, err = v.Enrolment(h.Pub()); errors.Is(err, store.ErrNotFound) {
			return nil
		}
		found = err == nil
		return err
	})
	return e, found
}

func (r *rig) epoch() (epoch string) {
	r.t.Helper()
	r.view(func(v store.Reader) error { in, err := v.Info(); epoch = in.Epoch; return err })
	return epoch
}

// log lists what the relay log has of a kind, oldest first.
func (r *rig) log(op string) (ops []store.Op) {
	r.t.Helper()
	r.view(func(v store.Reader) (err error) { ops, err = v.Log(op, 0, 100); return err })
	slices.Reverse(ops)
	return ops
}

func same[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v; want %v", what, got, want)
	}
}

// refused checks that an error is a refusal of a kind, and its code.
func refused(t testing.TB, what string, err error, kind relay.Kind, code string) *relay.Error {
	t.Helper()
	var e *relay.Error
	if !errors.As(err, &e) {
		t.Fatalf("%s: got %v; want a refusal of kind %d, code %q", what, err, kind, code)
	}
	if e.Kind != kind || e.Code != code {
		t.Errorf("%s: got kind %d, code %q (%s); want kind %d, code %q", what, e.Kind, e.Code, e.Text, kind, code)
	}
	return e
}

func ok(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func contains(t testing.TB, what, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("%s: got %q; want it to contain %q", what, got, want)
	}
}

func prefix(t testing.TB, what, got, want string) {
	t.Helper()
	if !strings.HasPrefix(got, want) {
		t.Errorf("%s: got %q; want it to begin with %q", what, got, want)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
