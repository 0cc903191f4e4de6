package relay

import (
	"context"
	"fmt"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// The v1 endpoints stay for hosts that know no other (seed 000 §11). They share
// the store and its promises with v2; what differs is here.

// V1Result is the answer to a v1 push: how many envelopes were stored, in
// order, and why the next one was not.
type V1Result struct {
	Stored int
	Error  string
}

// OverBatchV1 is the answer to a push of more than MaxBatch envelopes.
func (r *Relay) OverBatchV1() V1Result {
	return V1Result{Error: fmt.Sprintf("more than %d envelopes in a batch", r.limits.MaxBatch)}
}

// PushV1 stores envelopes in order and stops at the first that is refused.
func (r *Relay) PushV1(ctx context.Context, from Caller, wires [][]byte) (V1Result, error) {
	if len(wires) > int(r.limits.MaxBatch) {
		return r.OverBatchV1(), nil
	}
	if !r.pushes.Allow(string(from.Key[:]), r.now()) {
		return V1Result{Error: "rate limit exceeded"}, nil
	}
	ready := make([]prepared, 0, len(wires))
	for _, w := range wires {
		p, err := r.prepareV1(ctx, from, w)
		if err != nil {
			return V1Result{}, err
		}
		ready = append(ready, p)
		if p.refusal != "" { // the push ends there
			break
		}
	}
	outcomes, err := r.pushAll(ctx, from, ready, true)
	if err != nil {
		return V1Result{}, err
	}
	var res V1Result
	for i, o := range outcomes {
		if len(o.targets) == 0 {
			r.noteRefusal(from, ready[i].id, o)
			res.Error = o.status[len(rejected):]
			break
		}
		res.Stored++
	}
	return res, nil
}

// prepareV1 checks an envelope and resolves the hosts it is addressed to: one
// item per host, all hosts or none.
func (r *Relay) prepareV1(ctx context.Context, from Caller, w []byte) (p prepared, err error) {
	p = prepared{kind: wire.KindEnvelope, v1: true, misfit: true}
	if int64(len(w)) > r.limits.MaxItemBytes {
		p.refusal = "item over size limit"
		return p, nil
	}
	head, err := wire.CheckEnvelope(w)
	p.id = head.ID
	switch {
	case err != nil:
		p.refusal = err.Error()
	case !head.Sealed:
		p.refusal = "envelope body is not sealed"
	}
	if p.refusal != "" {
		return p, nil
	}
	hash := wire.Hash(w)
	err = r.store.View(ctx, func(v store.Reader) error {
		for _, addr := range head.To {
			_, host, _ := wire.SplitAddress(addr)
			e, err := r.byName(v, from, host,
				refuse(NotFound, "", "recipient host not enrolled"), refuse(Conflict, "", "recipient host ambiguous"))
			if err != nil {
				return err
			}
			if !repeats(p.targets, e.Key) { // several addresses on one host are one item
				p.targets = append(p.targets, preparedTarget{key: e.Key, keyOK: true, wire: w, hash: hash})
			}
		}
		return nil
	})
	if e, ok := err.(*Error); ok {
		p.refusal, p.misfit = e.Text, false
		return p, nil
	}
	if len(p.targets) > int(r.limits.MaxTargets) {
		p.refusal = "too many recipient hosts"
	}
	return p, storeError(err)
}

// V1Page is one page for a v1 host: envelopes only.
type V1Page struct {
	Items  []store.Item
	Cursor int64
}

// PullV1 serves a bounded page of envelopes after a cursor.
func (r *Relay) PullV1(ctx context.Context, who Caller, after int64) (V1Page, error) {
	p, err := r.page(ctx, who, PullQuery{After: after})
	if err != nil {
		return V1Page{}, err
	}
	v1 := V1Page{Cursor: p.HeadSeq}
	if p.More {
		v1.Cursor = p.LastSeq
	}
	for _, it := range p.Items {
		if it.Kind == store.KindEnvelope {
			v1.Items = append(v1.Items, it)
		}
	}
	return v1, nil
}

// AckV1 drops the caller's items through a cursor, never beyond the head.
func (r *Relay) AckV1(ctx context.Context, who Caller, cursor float64) error {
	if !(cursor >= 0) {
		return refuse(BadRequest, "BAD_ACK", "bad cursor")
	}
	return r.update(ctx, func(c *change) error {
		if err := r.stillWelcome(c, who.Key); err != nil {
			return err
		}
		head, err := c.Head(who.Key)
		if err != nil {
			return err
		}
		_, err = c.ack(who.Key, int64(min(cursor, float64(head))), head)
		return err
	})
}
