package server

import (
	"net/http"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func (c *call) senders() error {
	var q struct {
		List member `json:"list"`
		Sig  member `json:"sig"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	sig, ok := text(q.Sig)
	if !ok {
		return errSigType
	}
	if err := c.relay.PutSenders(c.ctx, c.who, q.List, sig); err != nil {
		return err
	}
	c.answer(http.StatusOK, okAnswer)
	return nil
}

func (c *call) putEncAd() error {
	var q struct {
		Ad  member `json:"ad"`
		Sig member `json:"sig"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	if err := c.relay.PutEncAd(c.ctx, c.who, q.Ad, textOrEmpty(q.Sig)); err != nil {
		return err
	}
	c.answer(http.StatusOK, okAnswer)
	return nil
}

func (c *call) putEncKey() error {
	var q struct {
		EncPub member `json:"enc_pub"`
		Sig    member `json:"sig"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	sig, ok := text(q.Sig)
	if !ok {
		return errSigType
	}
	if err := c.relay.PutEncKey(c.ctx, c.who, textOrEmpty(q.EncPub), sig); err != nil {
		return err
	}
	c.answer(http.StatusOK, okAnswer)
	return nil
}

// encKey looks up a host's sealing keys by its key, or else by its name.
func (c *call) encKey() error {
	q, err := c.parameters("pubkey", "host")
	if err != nil {
		return err
	}
	a, err := c.relay.EncKey(c.ctx, c.who, q["pubkey"], q["host"])
	if err != nil {
		return err
	}
	c.answer(http.StatusOK, appendEncKey(nil, a))
	return nil
}

func appendEncKey(b []byte, a relay.EncKeyAnswer) []byte {
	encPub := a.V1.EncPub
	if encPub == "" {
		encPub = a.AdKey
	}
	b = wire.AppendString(append(b, `{"host":`...), a.Host)
	b = wire.AppendString(append(b, `,"host_pubkey":`...), a.HostKey.String())
	b = wire.AppendString(append(b, `,"enc_pub":`...), encPub)
	if a.V1.EncPub != "" {
		b = wire.AppendString(append(b, `,"sig":`...), a.V1.Sig)
	}
	if a.Ad != nil {
		b = append(append(b, `,"ad":`...), a.Ad.Record...)
		b = wire.AppendString(append(b, `,"ad_sig":`...), a.Ad.Sig)
	}
	return append(b, '}')
}
