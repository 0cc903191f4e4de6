package admin

import (
	"context"
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
				return shown, f.All || shown.InForce, nil
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

// denial is the last one in force that names a host and no client of its; nil when
// there is none.
func (v *look) denial(fp string) (last *Denial, err error) {
	looked := 0
	err = v.Denials(fp, 0, func(d store.Denial) bool {
		if d.ClientID == "" && v.inForce(d) {
			shown := v.deny(d)
			last = &shown
		}
		looked++
		return last == nil && looked < MaxLook
	})
	return last, err
}
