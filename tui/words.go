package tui

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// words is a filter of words as it is understood.
type words struct {
	text               string
	kind, from, to, id string
	before             time.Time
}

// readWords reads a filter of words: NAME:VALUE, a kind of item by itself, or an
// item's id by itself. may says which names a list knows.
func readWords(text string, now time.Time, may ...string) (w words, err error) {
	w.text = text
	knows := func(name string) bool { return slices.Contains(may, name) }
	for _, f := range strings.Fields(text) {
		name, value, named := strings.Cut(f, ":")
		switch {
		case !named && knows("kind") && (f == store.KindEnvelope || f == store.KindReceipt || f == store.KindExpired),
			!named && knows("state") && (f == admin.QuarantineHeld || f == admin.QuarantineRefused):
			w.kind = f
		case !named && knows("id"):
			w.id = f
		case named && value != "" && knows(name):
			if err := w.set(name, value, now); err != nil {
				return words{}, err
			}
		default:
			return words{}, fmt.Errorf("%w: cannot filter by %s", admin.ErrBadRequest, f)
		}
	}
	return w, nil
}

// follow reads the words anew where the filter is another one: it was undone.
func (w words) follow(f filter, now time.Time, may ...string) words {
	if f.inForce() == w.text {
		return w
	}
	again, err := readWords(f.inForce(), now, may...)
	if err != nil { // it was read before
		return w
	}
	return again
}

func (w *words) set(name, value string, now time.Time) error {
	switch name {
	case "from":
		w.from = value
	case "to":
		w.to = value
	case "id":
		w.id = value
	case "kind":
		w.kind = value
	case "older":
		d, err := readSpan(value)
		if err != nil {
			return err
		}
		w.before = now.Add(-d)
	}
	return nil
}

// readSpan reads a duration; days are units, too.
func readSpan(s string) (time.Duration, error) {
	bad := fmt.Errorf("not a duration: %.20q; want such as 90m, 24h or 7d", s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		d, err := time.ParseDuration(days + "h")
		if err != nil || d <= 0 || d > 10_000*time.Hour {
			return 0, bad
		}
		return 24 * d, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, bad
	}
	return d, nil
}

// theHost is the one host that a text means.
func theHost(ctx context.Context, svc admin.Service, text string) (wire.PublicKey, error) {
	list, err := svc.Resolve(ctx, text)
	switch {
	case err != nil:
		return wire.PublicKey{}, err
	case len(list) == 0:
		return wire.PublicKey{}, fmt.Errorf("%w: no host is called %s", admin.ErrNotFound, text)
	case len(list) > 1:
		return wire.PublicKey{}, fmt.Errorf("%w: more than one host is called %s: filter by its fingerprint", admin.ErrBadRequest, text)
	}
	return list[0].Key, nil
}
