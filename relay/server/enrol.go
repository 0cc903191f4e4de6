package server

import (
	"net/http"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var okAnswer = []byte(`{"ok":true}`)

// fromAnyone counts a call of a client address, then reads its small body.
func (c *call) fromAnyone(into any) error {
	if err := c.relay.AllowAddress(clientAddr(c.r, c.trust)); err != nil {
		return err
	}
	if err := c.readBody(smallBody); err != nil {
		return err
	}
	return c.decode(into)
}

func (c *call) challenge() error {
	var q struct {
		Host   member `json:"host"`
		Pubkey member `json:"pubkey"`
	}
	if err := c.fromAnyone(&q); err != nil {
		return err
	}
	ch, err := c.relay.Challenge(textOrEmpty(q.Host), textOrEmpty(q.Pubkey))
	if err != nil {
		return err
	}
	b := wire.AppendString(append(make([]byte, 0, 64), `{"challenge":`...), ch)
	c.answer(http.StatusOK, append(b, '}'))
	return nil
}

func (c *call) enrol() error {
	var q struct {
		Host    member `json:"host"`
		Pubkey  member `json:"pubkey"`
		OwnerFP member `json:"owner_fp"`
		Sig     member `json:"sig"`
		Proof   member `json:"proof"`
	}
	if err := c.fromAnyone(&q); err != nil {
		return err
	}
	owner, ok := text(q.OwnerFP) // absent is "", and "" is what is signed then
	if !ok {
		return errOwner
	}
	sig, ok := text(q.Sig)
	if !ok {
		return errSigType
	}
	err := c.relay.Enrol(c.ctx, relay.EnrolRequest{
		Host: textOrEmpty(q.Host), Key: textOrEmpty(q.Pubkey), OwnerFP: owner, Sig: sig, Proof: q.Proof,
	})
	if err != nil {
		return err
	}
	c.answer(http.StatusOK, okAnswer)
	return nil
}

func (c *call) rotate() error {
	var q struct {
		Rotation member `json:"rotation"`
	}
	if err := c.fromAnyone(&q); err != nil {
		return err
	}
	moved, err := c.relay.Rotate(c.ctx, q.Rotation)
	if err != nil {
		return err
	}
	c.answer(http.StatusOK, append(appendInt([]byte(`{"moved":`), moved), '}'))
	return nil
}
