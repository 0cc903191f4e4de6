package server

import (
	"net/http"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// healthz answers that the process is up.
func (c *call) healthz() error {
	c.answer(http.StatusOK, []byte(`{"ok":true}`))
	return nil
}

// readyz answers whether the relay can do its work: its store is open, is the
// store of its key (or it would not have started), and took a heartbeat of
// late. A disk that is nearly full is told and is no reason to send hosts
// away: their pulls and acks are what makes room.
func (c *call) readyz() error {
	var problems []string
	st, err := c.relay.Status(c.ctx)
	if err != nil {
		c.log.Warn("not ready", "id", c.id, "err", err)
		problems = append(problems, "the store does not answer")
	} else {
		problems = st.ForAnyone()
	}
	if c.problems != nil {
		problems = append(problems, c.problems(c.ctx)...)
	}
	status, ok := http.StatusOK, "true"
	if err != nil || !c.relay.Fresh() {
		status, ok = http.StatusServiceUnavailable, "false"
	}
	b := append([]byte(nil), `{"ok":`+ok+`,"problems":[`...)
	for i, p := range problems {
		if i > 0 {
			b = append(b, ',')
		}
		b = wire.AppendString(b, p)
	}
	c.answer(status, append(b, `]}`...))
	return nil
}
