package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Issuer is the accounts issuer of a hosted relay, as far as the desk works for it.
// Safe for concurrent use.
type Issuer interface {
	// Refresh fetches the key set and says in a few words what came of it.
	Refresh(ctx context.Context) (detail string, err error)
	// FetchDenials fetches the deny list; "" when there is none to pull, or it has
	// not changed since the last one that was Taken.
	FetchDenials(ctx context.Context) (token string, err error)
	Taken(token string)
	State() relay.IssuerState
}

// denyAge is how old the last good look at the deny list may be before a person is
// told.
const denyAge = 10 * time.Minute

// refreshKeys fetches the keys of the accounts issuer.
func (l *Local) refreshKeys(ctx context.Context, _ *jobs.Task) (string, error) {
	return l.o.Issuer.Refresh(ctx)
}

// deny pulls the issuer's deny list, where there is one to pull, and removes denials
// that are over. A list that can't be had keeps nobody from the second.
func (l *Local) deny(ctx context.Context, _ *jobs.Task) (string, error) {
	detail, failed := l.pullDenials(ctx)
	pruned, err := l.o.Relay.PruneDenials(ctx)
	if err = errors.Join(failed, err); err != nil {
		return "", err
	}
	if pruned > 0 {
		detail = strings.TrimPrefix(fmt.Sprintf("%s; %d that were over removed", detail, pruned), "; ")
	}
	return detail, nil
}

func (l *Local) pullDenials(ctx context.Context) (string, error) {
	if l.o.Issuer == nil {
		return "", nil
	}
	token, err := l.o.Issuer.FetchDenials(ctx)
	if err != nil || token == "" {
		return "", err
	}
	r, err := l.o.Relay.Deny(ctx, relay.SourceIssuerList, token)
	if err != nil {
		return "", fmt.Errorf("the deny list was not taken: %w", err)
	}
	l.o.Issuer.Taken(token)
	if r.Known {
		return "the deny list is that of before", nil
	}
	return fmt.Sprintf("a deny list: %d added", r.Added), nil
}

// issuerState is how the issuer's keys stand, nil without an issuer.
func (l *Local) issuerState() *relay.IssuerState {
	if l.o.Issuer == nil {
		return nil
	}
	st := l.o.Issuer.State()
	if st.Keys == nil {
		st.Keys = []string{}
	}
	return &st
}

// issuerProblems says what is wrong with the accounts issuer: whole for the
// operator, short for anyone.
func (l *Local) issuerProblems(s Status) (whole, short []string) {
	st := s.Issuer
	if st == nil {
		return nil, nil
	}
	now := l.o.Now()
	bad := ""
	if st.Trouble != "" {
		bad = "its last answer was bad: " + st.Trouble
	}
	switch {
	case !st.Usable:
		what := "were never fetched"
		switch {
		case st.FetchedAt.After(now):
			what = "were fetched at a time that is yet to come"
		case !st.FetchedAt.IsZero():
			what = fmt.Sprintf("were fetched %s ago, and hold for an hour", now.Sub(st.FetchedAt).Round(time.Minute))
		}
		text := "new hosts are refused: the keys of the accounts issuer " + what
		if bad != "" {
			text += "; " + bad
		}
		whole = append(whole, fmt.Sprintf("%s; see that %s answers", text, st.URL))
		short = append(short, "new hosts are refused: the keys of the accounts issuer are too old")
	case bad != "":
		whole = append(whole, fmt.Sprintf("the keys of the accounts issuer were not fetched since %s: %s; see that %s answers", wire.FormatTime(st.TroubleAt), bad, st.URL))
		short = append(short, "the last answer of the accounts issuer was bad")
	}
	if age, why := l.denyListAge(s); age > denyAge {
		text := fmt.Sprintf("the deny list was not fetched for %s", age.Round(time.Minute))
		if why != "" {
			text += ": " + why
		}
		whole, short = append(whole, text), append(short, "the deny list was not fetched for a while")
	}
	return whole, short
}

// denyListAge is how long ago the deny list was looked at with success, counted from
// the start of this process at the earliest, and why the last look failed.
func (l *Local) denyListAge(s Status) (age time.Duration, why string) {
	j := s.Job(JobDeny)
	if j == nil {
		return 0, ""
	}
	since := l.started
	if j.LastOK != nil && j.LastOK.StartedAt.After(since) {
		since = j.LastOK.StartedAt
	}
	if j.Last != nil && (j.LastOK == nil || j.Last.ID != j.LastOK.ID) {
		why = j.Last.Detail
	}
	return l.o.Now().Sub(since), why
}
