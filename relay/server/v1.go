package server

import (
	"errors"
	"net/http"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func (c *call) pushV1() error {
	wires, err := wire.ParseV1Push(c.body, int(c.limits.MaxBatch))
	var res relay.V1Result
	switch {
	case errors.Is(err, wire.ErrOverBatch): // answered like any push that stored nothing
		res, err = c.relay.OverBatchV1(), nil
	case errors.Is(err, wire.ErrBadBatch):
		return errBatch
	case err != nil:
		return errJSON
	default:
		if res, err = c.relay.PushV1(c.ctx, c.who, wires); err != nil {
			return err
		}
	}
	status := http.StatusOK
	b := appendInt([]byte(`{"stored":`), int64(res.Stored))
	if res.Error != "" {
		b = wire.AppendString(append(b, `,"error":`...), res.Error)
		if res.Stored == 0 {
			status = http.StatusRequestEntityTooLarge
		}
	}
	c.answer(status, append(b, '}'))
	return nil
}

func (c *call) pullV1() error {
	got, err := c.parameters("after")
	if err != nil {
		return err
	}
	after, err := integer(got, "after")
	if err != nil {
		return err
	}
	c.releaseBody()
	held, err := c.holdPage()
	if err != nil {
		return err
	}
	defer held.release()
	p, err := c.relay.PullV1(c.ctx, c.who, after)
	if err != nil {
		return err
	}
	c.sendPage(func(out *page) { out.envelopes(p) })
	return nil
}

func (p *page) envelopes(v1 relay.V1Page) {
	p.b = append(p.b, `{"items":[`...)
	for i := range v1.Items {
		it := &v1.Items[i]
		if i > 0 {
			p.b = append(p.b, ',')
		}
		p.b = appendInt(append(p.b, `{"seq":`...), it.Seq)
		p.b = append(p.b, `,"envelope":`...)
		p.bytes(it.Wire) // the JSON that was pushed
		p.b = wire.AppendString(append(p.b, `,"from":`...), it.SenderHost)
		p.b = append(p.b, '}')
		p.full()
	}
	p.b = appendInt(append(p.b, `],"cursor":`...), v1.Cursor)
	p.b = append(p.b, '}')
}

func (c *call) ackV1() error {
	var q struct {
		Cursor member `json:"cursor"`
	}
	if err := c.decode(&q); err != nil {
		return err
	}
	if err := c.relay.AckV1(c.ctx, c.who, number(q.Cursor)); err != nil {
		return err
	}
	c.answer(http.StatusOK, okAnswer)
	return nil
}
