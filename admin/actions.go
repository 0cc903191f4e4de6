package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func (a Action) check() error {
	if strings.TrimSpace(a.Actor) == "" || len(a.Actor) > 200 || len(a.Reason) > 1000 || !utf8.ValidString(a.Actor+a.Reason) {
		return fmt.Errorf("%w: want an actor of at most 200 and a reason of at most 1000 bytes", ErrBadRequest)
	}
	if strings.ContainsFunc(a.Actor+a.Reason, control) {
		return fmt.Errorf("%w: want an actor and a reason of one line, without control characters", ErrBadRequest)
	}
	return nil
}

// control finds what the log, and those it is told to, could take for more than
// text: control characters, separators of lines, and marks of direction.
func control(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}

// checkWhy is check for what takes something from somebody: that needs a reason.
func (a Action) checkWhy() error {
	if err := a.check(); err != nil {
		return err
	}
	if strings.TrimSpace(a.Reason) == "" {
		return fmt.Errorf("%w: say why: this needs a reason", ErrBadRequest)
	}
	return nil
}

func (a Action) deed(dry bool) relay.Deed {
	return relay.Deed{Actor: a.Actor, Reason: a.Reason, Dry: dry}
}

// deedError gives what the relay answered the kind of its refusal. Its text says
// all there is.
func deedError(err error) error {
	var refusal *relay.Error
	switch {
	case err == nil || Kind(err) != "":
		return err
	case errors.Is(err, store.ErrNotFound):
		return &kindError{ErrNotFound, err.Error()}
	case !errors.As(err, &refusal):
		return err
	}
	switch refusal.Kind {
	case relay.BadRequest:
		return &kindError{ErrBadRequest, err.Error()}
	case relay.Unauthorized, relay.Forbidden, relay.Conflict, relay.TooMany:
		return &kindError{ErrRefused, err.Error()}
	case relay.NotFound:
		return &kindError{ErrNotFound, err.Error()}
	}
	return err // it cannot be done now, and nothing is protected by that
}

// Hold takes queued items out of their queues.
func (l *Local) Hold(ctx context.Context, a ItemAction) (ItemResult, error) {
	if err := a.checkWhy(); err != nil {
		return ItemResult{}, err
	}
	return a.do(ctx, l.o.Relay.Hold)
}

// Release puts held items back at the tail of their queues.
func (l *Local) Release(ctx context.Context, a ItemAction) (ItemResult, error) {
	if err := a.check(); err != nil {
		return ItemResult{}, err
	}
	return a.do(ctx, l.o.Relay.Release)
}

// Discard drops held items and tells their senders.
func (l *Local) Discard(ctx context.Context, a ItemAction) (ItemResult, error) {
	if err := a.checkWhy(); err != nil {
		return ItemResult{}, err
	}
	return a.do(ctx, l.o.Relay.Discard)
}

// do does something to the items, which the relay looks at, and counts.
func (a ItemAction) do(ctx context.Context, what func(context.Context, []relay.ItemRef, relay.Deed) ([]relay.Outcome, error)) (r ItemResult, err error) {
	list, err := what(ctx, a.Items, a.deed(a.DryRun))
	if err != nil {
		return r, deedError(err)
	}
	r = ItemResult{Outcomes: list, DryRun: a.DryRun}
	for _, o := range list {
		switch {
		case o.Done:
			r.Done++
		case o.Problem == relay.ProblemLater:
			r.Later++
		default:
			r.Failed++
		}
	}
	return r, nil
}

// Dismiss takes refused pushes out of the quarantine.
func (l *Local) Dismiss(ctx context.Context, a DismissAction) (r DismissResult, err error) {
	if err := a.check(); err != nil {
		return r, err
	}
	n, err := l.o.Relay.Dismiss(ctx, a.IDs, a.deed(a.DryRun))
	if err != nil {
		return r, deedError(err)
	}
	return DismissResult{Dismissed: n, DryRun: a.DryRun}, nil
}

// Revoke ends an enrolment for ever.
func (l *Local) Revoke(ctx context.Context, a HostAction) (r HostResult, err error) {
	if err := cmp.Or(a.checkWhy(), checkKey("key", a.Key)); err != nil {
		return r, err
	}
	was, err := l.o.Relay.RevokeHost(ctx, a.Key, a.deed(a.DryRun))
	if errors.Is(err, store.ErrNotFound) {
		return r, noHost(a.Key)
	}
	if err != nil {
		return r, deedError(err)
	}
	return l.hostResult(ctx, a, was)
}

// Block refuses a host, also one that has yet to enrol, until a time.
func (l *Local) Block(ctx context.Context, a BlockAction) (r HostResult, err error) {
	if err := cmp.Or(a.checkWhy(), checkKey("key", a.Key)); err != nil {
		return r, err
	}
	if err := l.checkEnd(a.Until, "a block until it is unblocked"); err != nil {
		return r, err
	}
	changed, err := l.o.Relay.Block(ctx, a.Key, a.Until, a.deed(a.DryRun))
	if err != nil {
		return r, deedError(err)
	}
	return l.hostResult(ctx, a.HostAction, changed)
}

// Deny refuses who is all that a names, until a time. Nobody need be enrolled under
// it.
func (l *Local) Deny(ctx context.Context, a DenyAction) (r DenyResult, err error) {
	if err := cmp.Or(a.checkWhy(), checkClientID(a.ClientID)); err != nil {
		return r, err
	}
	if a.HostFP == "" && a.ClientID == "" {
		return r, fmt.Errorf("%w: want host_fp, client_id or both: nothing else says who is refused", ErrBadRequest)
	}
	if a.HostFP != "" {
		if a.HostFP, err = wire.ParseFingerprint(a.HostFP); err != nil {
			return r, fmt.Errorf("%w: host_fp: %w", ErrBadRequest, err)
		}
	}
	if err := l.checkEnd(a.Until, "a denial until it is removed"); err != nil {
		return r, err
	}
	d, changed, err := l.o.Relay.AddDenial(ctx, relay.DenialSpec{HostFP: a.HostFP, ClientID: a.ClientID, Until: a.Until}, a.deed(a.DryRun))
	if err != nil {
		return r, deedError(err)
	}
	return DenyResult{Denial: denialAt(d, true), Changed: changed, DryRun: a.DryRun}, nil
}

// checkEnd wants an end that is to come, or none.
func (l *Local) checkEnd(until time.Time, orNone string) error {
	if now := l.o.Now(); !until.IsZero() && (!until.After(now) || until.UnixMilli() > lastTime) {
		return fmt.Errorf("%w: until: want a time to come, or none for %s; it is %s now", ErrBadRequest, orNone, wire.FormatTime(now))
	}
	return nil
}

// checkClientID looks at the name of a credential; "" is none.
func checkClientID(id string) error {
	if id != "" && !relay.ValidClientID(id) {
		return fmt.Errorf("%w: client_id: want at most %d printable characters", ErrBadRequest, relay.MaxClientID)
	}
	return nil
}

// hostResult looks at a host to which something was done. That it was done is not
// undone by whoever stopped to wait for it, nor by a look that fails: then the
// answer has no more than the key.
func (l *Local) hostResult(ctx context.Context, a HostAction, changed bool) (r HostResult, err error) {
	r = HostResult{Changed: changed, DryRun: a.DryRun}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer stop()
	err = l.look(ctx, func(v *look) error {
		e, err := v.enrolment(a.Key)
		if err != nil {
			return err
		}
		if e == nil {
			e = &store.Enrolment{Key: a.Key}
		}
		r.Enrolment, err = v.shown(*e)
		return err
	})
	if err != nil && !a.DryRun {
		l.o.Backups.Log.Warn("a host to which something was done cannot be looked at", "host", a.Key.Fingerprint(), "err", err)
		r.Enrolment, err = Enrolment{Host: hostOf(a.Key, nil)}, nil
	}
	return r, err
}

// Unblock removes a denial.
func (l *Local) Unblock(ctx context.Context, a UnblockAction) (d Denial, err error) {
	if err := a.check(); err != nil {
		return d, err
	}
	was, err := l.o.Relay.Unblock(ctx, relay.DenialRef{ID: a.ID, HostFP: a.HostFP, AddedAt: a.AddedAt}, a.deed(a.DryRun))
	if errors.Is(err, store.ErrNotFound) {
		return d, fmt.Errorf("%w: there is no such denial %d", ErrNotFound, a.ID)
	}
	if err != nil {
		return d, deedError(err)
	}
	return denialAt(was, a.DryRun && (was.Until.IsZero() || was.Until.After(l.o.Now()))), nil
}
