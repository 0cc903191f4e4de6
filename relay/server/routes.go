package server

// routes are the endpoints of protocol.md §3 and §7. One that is not here, or
// is asked with another method, is any other path: 401 without a valid hop,
// 404 with one.
var routes = map[string]func(*call) error{
	"GET /healthz": (*call).healthz, "HEAD /healthz": (*call).healthz,
	"GET /readyz": (*call).readyz, "HEAD /readyz": (*call).readyz,

	"GET /v2/relay/info":       (*call).info,
	"POST /v1/relay/challenge": (*call).challenge,
	"POST /v1/relay/enrol":     (*call).enrol,
	"POST /v2/relay/rotate":    (*call).rotate,
	"POST /v2/relay/deny":      (*call).deny,

	"POST /v2/relay/items":    signed((*call).push),
	"GET /v2/relay/items":     signed((*call).pull),
	"POST /v2/relay/ack":      signed((*call).ack),
	"POST /v2/relay/senders":  signed((*call).senders),
	"POST /v2/relay/enc-key":  signed((*call).putEncAd),
	"GET /v2/relay/enc-key":   signed((*call).encKey),
	"POST /v1/relay/enc-key":  signed((*call).putEncKey),
	"GET /v1/relay/enc-key":   signed((*call).encKey),
	"POST /v1/relay/messages": signed((*call).pushV1),
	"GET /v1/relay/messages":  signed((*call).pullV1),
	"POST /v1/relay/ack":      signed((*call).ackV1),
}

var anyOther = signed(func(*call) error { return errPath })

func (c *call) endpoint() func(*call) error {
	if e, ok := routes[c.r.Method+" "+c.path]; ok {
		return e
	}
	return anyOther
}

// signed is an endpoint for hosts that prove who they are.
func signed(e func(*call) error) func(*call) error {
	return func(c *call) error {
		if err := c.hop(); err != nil {
			return err
		}
		return e(c)
	}
}
