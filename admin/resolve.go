package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Resolve lists who a person may mean by a text.
func (l *Local) Resolve(ctx context.Context, text string) (list []Enrolment, err error) {
	if text = strings.TrimSpace(text); text == "" {
		return nil, fmt.Errorf("%w: want a key, a fingerprint or a name", ErrBadRequest)
	}
	if err := checkText("host", text); err != nil {
		return nil, err
	}
	list = []Enrolment{}
	err = l.look(ctx, func(v *look) error {
		found, err := v.meant(text)
		if err != nil {
			return err
		}
		for _, e := range found {
			shown, err := v.shown(e)
			if err != nil {
				return err
			}
			list = append(list, shown)
		}
		return nil
	})
	return list, err
}

// meant finds hosts by key, fingerprint or name; live ones first. Whoever has the
// key or the fingerprint is meant and nobody else: a host takes what name it likes.
func (v *look) meant(text string) (found []store.Enrolment, err error) {
	add := func(more []store.Enrolment) {
		for _, e := range more {
			if !slices.ContainsFunc(found, func(f store.Enrolment) bool { return f.Key == e.Key }) {
				found = append(found, e)
			}
		}
	}
	if key, err := wire.ParsePublicKey(text); err == nil {
		e, err := v.enrolment(key)
		if e != nil {
			add([]store.Enrolment{*e})
		}
		return found, err
	}
	if fp, err := wire.ParseFingerprint(text); err == nil {
		hosts, err := v.ByFingerprint(fp, MaxResolved)
		if err != nil {
			return nil, err
		}
		add(hosts)
	}
	if len(found) == 0 && wire.ValidHostName(text) {
		live, err := v.LiveByName(text, MaxResolved)
		if err != nil {
			return nil, err
		}
		add(live)
		past, err := v.pastByName(text)
		if err != nil {
			return nil, err
		}
		add(past)
	}
	slices.SortStableFunc(found, func(a, b store.Enrolment) int { return cmp.Compare(revoked(a), revoked(b)) })
	return found[:min(len(found), MaxResolved)], nil
}

func revoked(e store.Enrolment) int {
	if e.Live() {
		return 0
	}
	return 1
}

// pastByName lists hosts of a name that are not live any more: in the list of all,
// they stand together.
func (v *look) pastByName(name string) (past []store.Enrolment, err error) {
	name = wire.FoldName(name)
	looked := 0
	err = v.Enrolments(&store.Enrolment{Name: name}, func(e store.Enrolment) bool {
		if looked++; wire.FoldName(e.Name) != name {
			return false
		}
		if !e.Live() {
			past = append(past, e)
		}
		return len(past) < MaxResolved && looked < MaxLook
	})
	return past, err
}
