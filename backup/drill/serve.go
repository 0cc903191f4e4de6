package drill

import (
	"context"
	"net"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority"
	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/server"
)

// serve serves the restored store on a loopback port of its own until end, and
// waits for its first answer: then hosts could use it.
func (d *drill) serve(ctx context.Context) (err error) {
	if d.relay, err = relay.New(ctx, relay.Options{
		Store: d.st, Key: d.Key, Version: d.Version, Limits: limits(d.Limits), Authority: authority.HostKey{}, Now: d.Now,
	}); err != nil {
		return err
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.New(server.Options{Relay: d.relay, Now: d.Now}).Serve(serving, l) }()
	d.stop = func() error { stop(); return <-ended }
	if d.client, err = relayclient.New("http://"+l.Addr().String(), relayclient.Options{Now: d.Now, Timeout: time.Minute}); err != nil {
		return err
	}
	in, err := d.client.Info(ctx, nil)
	if err != nil {
		return err
	}
	d.r.RTO = time.Since(d.began).Seconds()
	if in.RelayKey != d.Key.Public() || in.Epoch != d.restored.To {
		return d.failed("serve", "it says key %s and epoch %s; restored were %s and %s",
			in.RelayKey.Fingerprint(), in.Epoch, d.Key.Public().Fingerprint(), d.restored.To)
	}
	d.passed("serve", "it answered %s after the beginning", Span(d.r.RTO))
	return nil
}

// limits are the relay's own, but none that a few hosts more could run into on a
// busy relay, and none so small that a letter would not fit.
func limits(l relay.Limits) relay.Limits {
	for _, f := range relay.LimitFields(&l) {
		switch f.Name {
		case "pushes_per_minute", "enrol_per_minute", "enrolments":
			*f.Value = f.Max
		case "max_batch", "max_pull", "max_pull_bytes", "retention_days", "max_wait_s":
			if *f.Value < f.Min || *f.Value == 0 && f.Min > 0 {
				*f.Value = f.Default
			}
		default:
			*f.Value = max(*f.Value, f.Default)
		}
	}
	return l
}
