package server

import (
	"errors"
	"net/http"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// info answers anyone; a host with a valid hop also learns where it stands. A
// hop that is not valid, for whatever reason, is a hop of anyone.
func (c *call) info() error {
	var who *relay.Caller
	if len(c.r.Header["X-Mbx-Sig"]) > 0 {
		switch err := c.hop(); {
		case err == nil:
			who = &c.who
		case !isRefusal(err):
			return err
		}
	}
	in, err := c.relay.Info(c.ctx, who)
	if err != nil {
		return err
	}
	c.answer(http.StatusOK, appendInfo(make([]byte, 0, 1024), in))
	return nil
}

// isRefusal tells what a client can do wrong from what the relay can't do now.
func isRefusal(err error) bool {
	var ours *httpError
	if errors.As(err, &ours) {
		return ours.status < 500
	}
	var e *relay.Error
	return errors.As(err, &e) && e.Kind != relay.Unavailable
}

func appendInfo(b []byte, in relay.Info) []byte {
	b = wire.AppendString(append(b, `{"v":2,"relay_pubkey":`...), in.Key.String())
	b = wire.AppendString(append(b, `,"epoch":`...), in.Epoch)
	b = wire.AppendString(append(b, `,"version":`...), in.Version)
	b = append(b, `,"limits":`...)
	sep := byte('{')
	for _, f := range relay.LimitFields(&in.Limits) {
		if f.Served {
			b = append(wire.AppendString(append(b, sep), f.Name), ':')
			b, sep = appendInt(b, *f.Value), ','
		}
	}
	b = append(b, '}')
	if in.You != nil {
		b = appendYou(append(b, `,"you":`...), in.You)
	}
	return append(b, '}')
}

func appendYou(b []byte, y *relay.You) []byte {
	b = wire.AppendString(append(b, `{"host":`...), y.Host)
	b = wire.AppendString(append(b, `,"pubkey":`...), y.Key.String())
	b = appendInt(append(b, `,"head_seq":`...), y.HeadSeq)
	b = appendInt(append(b, `,"acked_through":`...), y.AckedThrough)
	b = append(b, `,"enc_ad":`...)
	if y.Ad == nil {
		return append(b, `null}`...)
	}
	exp := ""
	if y.Ad.EncPub != "" {
		exp = wire.FormatTime(y.Ad.Exp)
	}
	b = appendOrNull(append(b, `{"enc_pub":`...), y.Ad.EncPub)
	b = appendOrNull(append(b, `,"exp":`...), exp)
	b = appendOrNull(append(b, `,"v1":`...), y.Ad.V1)
	return append(b, `}}`...)
}

func appendOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, `null`...)
	}
	return wire.AppendString(b, s)
}
