package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/agentmbx/agentmbx/relay/host"
)

// letter is a message that a host has taken to be sent: what must arrive, once.
// Its subject is given to no other one.
type letter struct {
	id, subject string
	from, to    string // hosts
}

// demoFacts is what `demo --json` prints.
type demoFacts struct {
	counts
	RelayKills int     `json:"relay_kills"`
	HostKills  int     `json:"host_kills"`
	Rotations  int     `json:"key_rotations"`
	Backups    int     `json:"backups"`
	Restores   int     `json:"restores"`
	Seconds    float64 `json:"seconds"`
	Folder     string  `json:"folder,omitempty"` // only when it is kept
}

// counts is what became of letters.
type counts struct {
	Sent       int `json:"sent"`
	Delivered  int `json:"delivered"` // stand in the mailbox they are for
	Lost       int `json:"lost"`      // do not
	Duplicated int `json:"duplicated"`
	Confirmed  int `json:"confirmed"` // their sender knows, by a signed receipt
}

// ledgers is what two hosts' databases say, by host.
type ledgers struct {
	inbox map[string][]host.Message
	sent  map[string][]host.SentMessage
}

// tally compares what was sent with what the databases hold. A copy is found
// by its id or by its subject, so that one under another id counts as one.
func tally(letters []letter, l ledgers) (c counts) {
	type place struct{ host, word string }
	ids, subjects := map[place]int{}, map[place]int{}
	confirmed := map[place]bool{}
	for name, msgs := range l.inbox {
		for _, m := range msgs {
			ids[place{name, m.ID}]++
			subjects[place{name, m.Subject}]++
		}
	}
	for name, msgs := range l.sent {
		for _, m := range msgs {
			ok := len(m.Routes) > 0 && len(m.Confirmations) > 0
			for _, r := range m.Routes {
				ok = ok && r.State == "confirmed"
			}
			confirmed[place{name, m.ID}] = ok
		}
	}
	for _, w := range letters {
		c.Sent++
		if ids[place{w.to, w.id}] > 0 {
			c.Delivered++
		} else {
			c.Lost++
		}
		c.Duplicated += max(0, max(ids[place{w.to, w.id}], subjects[place{w.to, w.subject}])-1)
		if confirmed[place{w.from, w.id}] {
			c.Confirmed++
		}
	}
	return c
}

// settled reports that nothing is on its way any more.
func (c counts) settled() bool { return c.Delivered == c.Sent && c.Confirmed == c.Sent }

// err is nil when every letter arrived once and its sender knows.
func (c counts) err() error {
	if c.Lost == 0 && c.Duplicated == 0 && c.settled() {
		return nil
	}
	return unhealthy(fmt.Errorf("of %d messages %d were lost, %d duplicated and %d not confirmed: run agentmbx demo --keep and read the logs in its folder",
		c.Sent, c.Lost, c.Duplicated, c.Sent-c.Confirmed))
}

// String is the end of the story.
func (f demoFacts) String() string {
	return fmt.Sprintf(`   sent       %5d
   delivered  %5d   in the mailbox they are for
   confirmed  %5d   their senders have the other host's signed receipt
   lost       %5d
   duplicated %5d

The relay was killed %s, a host %s, one host changed its keys, and the relay's
store was lost and restored from a backup. %.0f seconds.
`, f.Sent, f.Delivered, f.Confirmed, f.Lost, f.Duplicated, times(f.RelayKills), times(f.HostKills), f.Seconds)
}

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}

// read reads both hosts' mailboxes and what they know of the mail they sent.
func (d *demo) read(ctx context.Context) (l ledgers, err error) {
	l = ledgers{map[string][]host.Message{}, map[string][]host.SentMessage{}}
	for _, s := range []*site{d.home, d.work} {
		if l.inbox[s.name], err = wholeInbox(ctx, s.host); err != nil {
			return l, err
		}
		if l.sent[s.name], err = s.host.SentMails(ctx, len(d.sent)+1); err != nil {
			return l, err
		}
	}
	return l, nil
}

func wholeInbox(ctx context.Context, h *host.Host) (all []host.Message, err error) {
	for after := ""; ; {
		page, err := h.Inbox(ctx, demoBox, after, true, 500)
		if err != nil || len(page) == 0 {
			return all, err
		}
		all = append(all, page...)
		after = page[len(page)-1].ID
	}
}

// why says how the relay stands at both hosts, and how the oldest message that
// is not confirmed: for whoever waited in vain.
func (d *demo) why(ctx context.Context) string {
	var parts []string
	for _, s := range []*site{d.home, d.work} {
		for _, c := range host.Doctor(ctx, host.Options{Home: s.dir, Version: version}).Checks {
			if strings.HasPrefix(c.Name, "relay") {
				parts = append(parts, fmt.Sprintf("%s: %s %s", s.name, c.Name, c.Text))
			}
		}
	}
	for _, w := range d.sent {
		from := d.home
		if w.from == d.work.name {
			from = d.work
		}
		m, err := from.host.SentMail(ctx, w.id)
		if err != nil {
			parts = append(parts, err.Error())
			break
		}
		if len(m.Routes) != 1 || m.Routes[0].State == "confirmed" {
			continue
		}
		r := m.Routes[0]
		text := fmt.Sprintf("%q of %s is %s after %d attempts", w.subject, w.from, r.State, r.Attempts)
		if r.Error != "" {
			text += ": " + r.Error
		}
		parts = append(parts, text)
		break
	}
	return strings.Join(parts, "; ")
}

// tallyNow counts what stands in the databases now.
func (d *demo) tallyNow(ctx context.Context) (counts, error) {
	l, err := d.read(ctx)
	return tally(d.sent, l), err
}
