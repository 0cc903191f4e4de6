package server

import (
	"net/http"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

var okAnswer = []byte(`{"ok":true}`)

// fromAnyone counts a call of a client address, then reads its body, which is
// small.
func (c *call) fromAnyone(most int, into any) error {
	if err := c.relay.AllowAddress(clientAddr(c.r, c.trust)); err != nil {
		return err
	}
	if err := c.readBody(most); err != nil {
		return err
	}
	return c.decode(into)
}

func (c *call) challenge() error {
	var q struct {
		Host   member `json:"host"`
		Pubkey member `json:"pubkey"`
	}
	if err := c.fromAnyone(smallBody, &q); err != nil {
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
	if err := c.fromAnyone(smallBody, &q); err != nil {
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
	if err := c.fromAnyone(smallBody, &q); err != nil {
		return err
	}
	moved, err := c.relay.Rotate(c.ctx, q.Rotation)
	if err != nil {
		return err
	}
	c.answer(http.StatusOK, append(appendInt([]byte(`{"moved":`), moved), '}'))
	return nil
}

// deny takes a deny list of the accounts issuer. On a relay without one it is no
// endpoint.
func (c *call) deny() error {
	if !c.relay.Hosted() {
		return anyOther(c)
	}
	var q struct {
		Token member `json:"token"`
	}
	if err := c.fromAnyone(denyBody, &q); err != nil {
		return err
	}
	token, ok := text(q.Token)
	if !ok || token == "" {
		return errNoToken
	}
	res, err := c.relay.Deny(c.ctx, relay.SourceIssuer, token)
	if err != nil {
		return err
	}
	c.answer(http.StatusOK, append(appendInt([]byte(`{"added":`), res.Added), '}'))
	return nil
}
