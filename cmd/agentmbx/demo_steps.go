package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/agentmbx/agentmbx/relay/host"
)

// quick is how long one message may take when nothing is broken; a host that
// once found the relay without the other host tries again after five seconds.
const quick = 30 * time.Second

func (d *demo) startRelay(ctx context.Context) (err error) {
	d.relay = &demoRelay{dir: filepath.Join(d.dir, "relay")}
	if d.relay.port, err = freePort(); err != nil {
		return err
	}
	if err := d.serve(ctx); err != nil {
		return err
	}
	d.note("It listens at %s; its key has the fingerprint %s.", d.relay.url, d.relay.key)
	d.note("It keeps sealed mail for a host until that host has fetched it, and can't read any.")
	return nil
}

func (d *demo) pairHosts(ctx context.Context) (err error) {
	for _, s := range []struct {
		to   **site
		name string
	}{{&d.home, "home"}, {&d.work, "work"}} {
		if *s.to, err = d.newSite(ctx, s.name); err != nil {
			return err
		}
		if _, err := (*s.to).host.SetRelay(ctx, d.relay.url, d.relay.key); err != nil {
			return err
		}
	}
	if err := d.daemons(ctx, true); err != nil {
		return err
	}
	token, err := d.home.host.NewPairToken(ctx, host.TokenLife)
	if err != nil {
		return err
	}
	if _, err := d.work.host.JoinPeer(ctx, d.home.addr(), token, d.work.addr()); err != nil {
		return err
	}
	d.note("home: agentmbx pair                    prints %s, good once and for 10 minutes", token)
	d.note("work: agentmbx join %s %s", d.home.addr(), token)
	d.note("Each has pinned the other's key, and the relay's: nobody can pose as them later.")
	return nil
}

func (d *demo) partHosts(ctx context.Context) error {
	for _, s := range []*site{d.home, d.work} {
		if err := s.stop(); err != nil {
			return err
		}
	}
	if err := d.daemon(ctx, d.home, false); err != nil {
		return err
	}
	d.note("Neither has to be on when the other sends: work's daemon does not even run.\nhome sends a message:")
	sent := time.Now()
	id, err := d.send(ctx, d.home, d.work, "the first message")
	if err != nil {
		return err
	}
	stage := func(state, why string) { d.note("  %-15s %5d ms   %s", state, time.Since(sent).Milliseconds(), why) }
	stage("queued", "on home's disk before the command ends")
	if err := d.reaches(ctx, d.home, id, "relay-accepted"); err != nil {
		return err
	}
	stage("relay-accepted", "the relay has it on disk and signed for it; home's part is done")
	if err := d.daemon(ctx, d.work, false); err != nil {
		return err
	}
	d.note("work's daemon starts and fetches what waits for it:")
	if err := d.reaches(ctx, d.home, id, host.StateDelivered); err != nil {
		return err
	}
	stage("delivered", "in work's mailbox; home has work's signed receipt")
	if _, err := d.work.host.Ack(ctx, demoBox, id, "", ""); err != nil {
		return err
	}
	if err := d.reaches(ctx, d.home, id, host.StateAcked); err != nil {
		return err
	}
	stage("acked", "work's owner is done with it; a second receipt says so")
	if id, err = d.send(ctx, d.work, d.home, "the answer"); err != nil {
		return err
	}
	if err := d.reaches(ctx, d.work, id, host.StateDelivered); err != nil {
		return err
	}
	d.note("work's answer goes the same way back and is confirmed, too.")
	return nil
}

// reaches waits until a message that a host sent has reached a state: of its
// way (relay-accepted), or of what the other host says of it.
func (d *demo) reaches(ctx context.Context, from *site, id, state string) error {
	d.show("waiting for %s", state)
	return d.until(ctx, quick, "a message was "+state, func() (bool, error) {
		m, err := from.host.SentMail(ctx, id)
		if err != nil {
			return false, err
		}
		for _, c := range m.Confirmations {
			if c.State == state {
				return true, nil
			}
		}
		return len(m.Routes) == 1 && m.Routes[0].State == state, nil
	})
}

func (d *demo) rotateKeys(ctx context.Context) error {
	if err := d.daemons(ctx, true); err != nil {
		return err
	}
	r, err := d.home.host.RotateKey(ctx)
	if err != nil {
		return err
	}
	d.facts.Rotations++
	d.show("waiting for work to take the new key")
	err = d.until(ctx, quick, "work had home's new key", func() (bool, error) {
		peers, err := d.work.host.Peers(ctx)
		return err == nil && len(peers) == 1 && peers[0].Fingerprint == r.Fingerprint, err
	})
	if err != nil {
		return err
	}
	d.note("Both are on the LAN for a moment. home: agentmbx rotate-key")
	d.note("A record signed with the old key and the new one tells work, and the relay. Mail that\nis sealed for the old key can still be opened. home is %s now.", r.Fingerprint)
	if err := d.daemons(ctx, false); err != nil {
		return err
	}
	for _, s := range []struct {
		from, to *site
		subject  string
	}{{d.home, d.work, "the first message under the new key"}, {d.work, d.home, "the answer to the new key"}} {
		id, err := d.send(ctx, s.from, s.to, s.subject)
		if err != nil {
			return err
		}
		if err := d.reaches(ctx, s.from, id, host.StateDelivered); err != nil {
			return err
		}
		m, err := s.from.host.SentMail(ctx, id)
		if err != nil {
			return err
		}
		if m.Routes[0].Relay != "settled" {
			return fmt.Errorf("%s did not go over the relay", s.subject)
		}
	}
	d.note("The LAN is off again; a message each way over the relay is confirmed under the new key.")
	return nil
}

// patience is how long the demo waits for mail and receipts that met a dead
// relay: a receipt then waits for 20 seconds.
const patience = 40 * time.Second

func (d *demo) count(ctx context.Context) error {
	err := d.until(ctx, patience, "all was confirmed", func() (bool, error) {
		c, err := d.tallyNow(ctx)
		d.show("%d of %d delivered, %d confirmed", c.Delivered, c.Sent, c.Confirmed)
		return c.settled(), err
	})
	if err != nil && !errors.Is(err, errSlow) {
		return err
	}
	if err != nil { // the count says what is missing, this why
		d.unshow()
		fmt.Fprintln(d.errw, printable(err.Error()))
	}
	for _, s := range []*site{d.home, d.work} { // nothing moves while we count
		if err := s.stop(); err != nil {
			return err
		}
	}
	d.facts.counts, err = d.tallyNow(ctx)
	return err
}
