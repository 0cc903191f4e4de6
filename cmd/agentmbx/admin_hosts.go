package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// findHost finds the host that a person means by a name, a fingerprint or a key.
// Of several with that name the one that is live is meant; of several with that
// fingerprint none.
func findHost(ctx context.Context, svc admin.Service, text string) (admin.Enrolment, error) {
	if strings.TrimSpace(text) == "" {
		return admin.Enrolment{}, usage(fmt.Errorf("the host is empty: want a name, a fingerprint or a key"))
	}
	found, err := svc.Resolve(ctx, text)
	if err != nil {
		return admin.Enrolment{}, deskError(err)
	}
	live := 0
	for _, h := range found {
		if h.RevokedAt.IsZero() {
			live++
		}
	}
	switch {
	case len(found) == 0:
		return admin.Enrolment{}, notFound(fmt.Errorf("no host is called %s: see agentmbx relay admin enrolments", quoteValue(text)))
	case len(found) == 1 || live == 1 && !isFingerprint(text): // the live ones come first
		return found[0], nil
	}
	names := make([]string, len(found))
	for i, h := range found {
		names[i] = fmt.Sprintf("%s %s %s (%s)", h.Name, h.Fingerprint, h.Key, enrolmentState(h))
	}
	return admin.Enrolment{}, usage(fmt.Errorf("%s may be any of %s: say which by its fingerprint or its key", quoteValue(text), strings.Join(names, ", ")))
}

func isFingerprint(text string) bool {
	_, err := wire.ParseFingerprint(text)
	return err == nil
}

// findKey finds the key that a flag or an argument names. A key need not be
// anybody's; "" is none.
func findKey(ctx context.Context, svc admin.Service, text string) (wire.PublicKey, error) {
	if text == "" {
		return wire.PublicKey{}, nil
	}
	if key, err := wire.ParsePublicKey(text); err == nil {
		return key, nil
	}
	h, err := findHost(ctx, svc, text)
	return h.Key, err
}

// findRefused finds who a person means among those that are refused. A key and a
// fingerprint need not be any host's: one may be blocked before it comes.
func findRefused(ctx context.Context, svc admin.Service, text string) (admin.Host, error) {
	fp, err := wire.ParseFingerprint(text)
	if key, bad := wire.ParsePublicKey(text); bad == nil {
		fp, err = key.Fingerprint(), nil
	}
	if err != nil {
		h, err := findHost(ctx, svc, text)
		return h.Host, err
	}
	found, err := svc.Resolve(ctx, text)
	if err != nil {
		return admin.Host{}, deskError(err)
	}
	for _, h := range found {
		if h.Fingerprint == fp {
			return h.Host, nil
		}
	}
	return admin.Host{Fingerprint: fp}, nil
}

// enrolmentState is how an enrolment stands, in a word.
func enrolmentState(h admin.Enrolment) string {
	switch {
	case !h.RevokedAt.IsZero():
		return admin.StateRevoked
	case h.Denial != nil:
		return admin.StateBlocked
	}
	return admin.StateLive
}

// named is a host for people.
func named(h admin.Host) string {
	return fmt.Sprintf("%s (%s)", cmp.Or(h.Name, "-"), h.Fingerprint)
}

// rowID reads the number of a row; "" is 0.
func rowID(text, what string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, usage(fmt.Errorf("%s is %s: want a whole number from 1", what, quoteValue(text)))
	}
	return id, nil
}

// span reads a time span: 90m, 24h, or days as 7d.
func span(text, what string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, is := strings.CutSuffix(text, "d"); err != nil && is {
		var n uint64
		if n, err = strconv.ParseUint(days, 10, 16); err == nil {
			d = time.Duration(n) * 24 * time.Hour
		}
	}
	if err != nil || d <= 0 {
		return 0, usage(fmt.Errorf("%s is %s: want a span such as 90m, 24h or 7d", what, quoteValue(text)))
	}
	return d, nil
}
