package relay

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/agentmbx/agentmbx/relay/store"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Rotate moves a host from its old key to its new one; both signed the record,
// so no hop is needed (seed 000 §2). It answers how many items moved.
func (r *Relay) Rotate(ctx context.Context, doc json.RawMessage) (moved int64, err error) {
	rot, err := wire.ParseRotation(doc)
	if err != nil {
		return 0, refuse(BadRequest, "BAD_ROTATION", err.Error())
	}
	err = r.update(ctx, func(c *change) error {
		old, err := c.Enrolment(rot.OldPub)
		if errors.Is(err, store.ErrNotFound) || err == nil && !old.Live() {
			return refuse(NotFound, "NOT_ENROLLED", "the old key is not enrolled here")
		}
		if err != nil {
			return err
		}
		if err := r.mayRotate(c, old, rot); err != nil {
			return err
		}
		moved, err = c.Rotate(store.Rotation{Old: rot.OldPub, New: rot.NewPub, Name: old.Name, Record: rot.Doc, At: r.now()})
		if errors.Is(err, store.ErrNameTaken) {
			return refuse(BadRequest, "NAME_TAKEN", "another host of the new key's account has that name")
		}
		if err != nil {
			return err
		}
		return c.did(Effect{Kind: Rotated, Host: rot.OldPub, Other: rot.NewPub, Count: moved})
	})
	return moved, err
}

// mayRotate refuses what would bring back a revoked key, take another's name,
// or shake off a denial.
func (r *Relay) mayRotate(v store.Reader, old store.Enrolment, rot wire.Rotation) error {
	if wire.FoldName(old.Name) != wire.FoldName(rot.Host) {
		return refuse(BadRequest, "BAD_ROTATION", "the old key is enrolled under another name")
	}
	next, err := v.Enrolment(rot.NewPub)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if !next.Live() {
		return refuse(Conflict, "REVOKED", "the new key is revoked here")
	}
	if err := r.denied(v, rot.OldPub, old.ClientID, BadRequest); err != nil {
		return err
	}
	return r.denied(v, rot.NewPub, next.ClientID, BadRequest)
}
