package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

const listDenials = "denials"

// Denials lists the deny list.
func (l *Local) Denials(ctx context.Context, f DenialFilter) (page Page[Denial], err error) {
	at, err := f.open(listDenials)
	if err != nil {
		return page, err
	}
	if f.HostFP != "" {
		if f.HostFP, err = wire.ParseFingerprint(f.HostFP); err != nil {
			return page, fmt.Errorf("%w: host_fp: %w", ErrBadRequest, err)
		}
	}
	if err := checkClientID(f.ClientID); err != nil {
		return page, err
	}
	var after *store.Denial
	if at != nil {
		after = &store.Denial{ID: at.N}
	}
	p := newPager[Denial](ctx, f.Paging)
	err = l.look(ctx, func(v *look) error {
		return fill(p, after, rows[store.Denial, Denial]{
			read: func(after *store.Denial, each func(store.Denial) bool) error {
				if after == nil {
					return v.Denials(f.HostFP, 0, each)
				}
				if after.ID == 0 { // nothing is before all
					return nil
				}
				return v.Denials(f.HostFP, after.ID, each)
			},
			show: func(d store.Denial) (Denial, bool, error) {
				shown := v.deny(d)
				return shown, (f.All || shown.InForce) && (f.ClientID == "" || f.ClientID == d.ClientID), nil
			},
			mark: func(d store.Denial) cursor { return cursor{List: listDenials, N: d.ID} },
		})
	})
	return p.page, err
}

// inForce reports whether a denial still refuses somebody.
func (v *look) inForce(d store.Denial) bool { return d.Until.IsZero() || d.Until.After(v.now) }

// deny shows a denial.
func (v *look) deny(d store.Denial) Denial { return denialAt(d, v.inForce(d)) }

func denialAt(d store.Denial, inForce bool) Denial {
	return Denial{ID: d.ID, HostFP: d.HostFP, ClientID: d.ClientID, Reason: d.Reason, Source: d.Source, AddedAt: d.AddedAt, Until: d.Until, InForce: inForce}
}

// denial is the last one in force that refuses a host: it names the host, its
// credential, or both. nil when there is none.
func (v *look) denial(fp, clientID string) (last *Denial, err error) {
	// Most hosts are refused by nobody, and that one read tells.
	if _, err := v.Denied(fp, clientID, v.now); errors.Is(err, store.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	names := [][2]string{{fp, ""}}
	if clientID != "" {
		names = append(names, [2]string{fp, clientID}, [2]string{"", clientID})
	}
	for _, n := range names {
		looked := 0
		err := v.DenialsNaming(n[0], n[1], func(d store.Denial) bool {
			newer := last == nil || d.ID > last.ID
			if newer && v.inForce(d) {
				shown := v.deny(d)
				last = &shown
				return false
			}
			looked++
			return newer && looked < MaxLook
		})
		if err != nil {
			return nil, err
		}
	}
	return last, nil
}
