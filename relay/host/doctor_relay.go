package host

import (
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// How old the last good pass may be: a daemon makes one every few seconds, and
// without one somebody should now and then.
const (
	passAge     = 10 * time.Minute
	passAgeOnce = 24 * time.Hour
)

const runDaemon = "start a daemon: agentmbx daemon; or call agentmbx daemon --once now and then"

// checkRelay tells how the relay and this host stand, as far as is stored.
func (e *examiner) checkRelay(t *tx) error {
	url := relayURL(e.o, e.config)
	if url == "" && e.config.V == 0 {
		return nil // the configuration that would name it can't be read
	}
	if url == "" {
		e.info("relay", "none is set: mail goes over the LAN only", "to use one: agentmbx relay set URL")
		return nil
	}
	if _, err := relayclient.ParseURL(url); err != nil {
		e.fail("relay", "what is set is "+err.Error(), "set it again: agentmbx relay set URL; or look at MBX_RELAY_URL")
		return nil
	}
	r, err := loadRelay(t, url)
	if err != nil {
		return err
	}
	waiting, err := waitsForRelay(t)
	if err != nil {
		return err
	}
	switch {
	case r.served != "" && r.served != r.expected:
		e.keyMismatch(r)
	case r.state == "":
		e.info("relay", url+" is not in use yet: "+pinned(r), e.nextPass())
	case r.state == relayMismatch, r.expected != "" && worked(r.state): // the owner has said since which key it is
		e.warn("relay", fmt.Sprintf("%s had no pass since agentmbx relay set: %s", url, pinned(r)), e.nextPass())
	case r.state == relayOK:
		e.inUse(r)
	case r.state == relayV1:
		e.info("relay", fmt.Sprintf("%s is from before v2 and signs nothing: mail that it loses is not sent again; last pass %s", url, e.ago(r.okAt)),
			"ask its operator to run a newer relay")
	case refusesUs(r.state):
		row, err := e.session(t, url)
		if err != nil {
			return err
		}
		e.refused(r, row, waiting)
	default:
		e.outOfUse(r)
	}
	switch age := e.now.Sub(e.at(r.okAt)); {
	case !worked(r.state):
	case e.running && age > passAge:
		e.warn("relay-pass", "a daemon runs, and its last pass over the relay was "+e.ago(r.okAt), "look at the daemon's log, and start it again")
	case !e.running && age > passAgeOnce:
		e.warn("relay-pass", "the last pass over the relay was "+e.ago(r.okAt), runDaemon)
	}
	return nil
}

// worked reports whether the last pass went well.
func worked(state string) bool { return state == relayOK || state == relayV1 }

// nextPass is the fix of what the next pass puts right.
func (e *examiner) nextPass() string {
	if e.running {
		return "wait a minute: the daemon's next pass does it; else look at its log"
	}
	return "the next pass does it: " + runDaemon
}

// pinned says which key a relay must have.
func pinned(r *relayRow) string {
	switch {
	case r.expected != "":
		return "only the key " + r.expected + " will be pinned, as the owner said"
	case r.key.IsZero():
		return "no key is pinned, the first one that it shows will be"
	}
	return "its key " + r.key.Fingerprint() + " is " + pinnedBy(r)
}

func pinnedBy(r *relayRow) string {
	if r.pinSource == "owner" {
		return "pinned by the owner"
	}
	return "pinned on first use"
}

func (e *examiner) keyMismatch(r *relayRow) {
	want := r.expected + ", which the owner expects"
	if r.expected == "" {
		want = r.key.Fingerprint() + ", which was " + pinnedBy(r)
	}
	e.fail("relay", fmt.Sprintf("%s shows the key %s, not %s: it is not used", r.url, r.served, want),
		fmt.Sprintf("if its operator confirms the key it shows: agentmbx relay set %s --key %s", r.url, r.served))
}

// inUse is a relay whose last pass went well. The enrolment must be for the key
// that is pinned, the epoch of now and this host's key of now.
func (e *examiner) inUse(r *relayRow) {
	facts := fmt.Sprintf("%s, epoch %s, last pass %s", pinned(r), r.epoch, e.ago(r.okAt))
	if e.keys == nil {
		e.info("relay", r.url+": "+facts, "")
		return
	}
	if r.enrolled != r.key.String()+" "+r.epoch+" "+e.keys.key.Public().String() {
		e.warn("relay", fmt.Sprintf("not enrolled at %s with the keys and the epoch of now: %s", r.url, facts), e.nextPass())
		return
	}
	e.ok("relay", "enrolled at "+r.url+": "+facts)
}

// refusesUs are the states of a relay that works and does not take this host.
func refusesUs(state string) bool {
	switch state {
	case relayEnrolFailed, relayRefused, relaySkew, relayDenied, relayNoToken, relayKeyless:
		return true
	}
	return false
}

func (e *examiner) refused(r *relayRow, row sessionRow, waiting int64) {
	own := ""
	if e.keys != nil {
		own = " (key " + e.keys.key.Public().Fingerprint() + ")"
	}
	fix := "ask its operator to take this host" + own + ", or use another relay: agentmbx relay set URL"
	switch {
	case r.state == relaySkew:
		fix = "set the clock that is wrong: this host's says " + wire.FormatTime(e.now)
	case r.state == relayDenied:
		fix = "ask the relay's operator, or whoever manages the account, to let this host" + own + " in again; mail over the LAN goes on"
	case r.state == relayNoToken || r.state == relayKeyless || row.reason != "" && r.state == relayEnrolFailed:
		fix = e.tokenFix(r.url, row.source, row.reason)
	}
	text := fmt.Sprintf("not enrolled at %s (%s %s): %s", r.url, r.state, e.lasts(r.stateAt), r.detail)
	if left := e.at(r.holdUntil).Sub(e.now); left > 0 {
		text += "; tried again in " + span(left)
	}
	e.warn("relay", text, fix)
	if waiting > 0 {
		e.fail("relay-mail", waits(waiting, "message")+" for the relay, which does not take this host", fix)
	}
}

// outOfUse is a relay whose last pass went wrong on its side or on the way.
func (e *examiner) outOfUse(r *relayRow) {
	last := "no good pass yet"
	if r.okAt > 0 {
		last = "last good pass " + e.ago(r.okAt)
	}
	text := fmt.Sprintf("%s: %s %s (%s): %s", r.url, r.state, e.lasts(r.stateAt), last, r.detail)
	if r.expected != "" {
		text += "; " + pinned(r)
	}
	switch r.state {
	case relayFull:
		e.fail("relay", "nothing is received "+e.lasts(r.stateAt)+": "+r.detail,
			"agentmbx relay quarantine shows them; agentmbx relay quarantine discard ID... drops them")
	case relayDown:
		e.warn("relay", text, "look at the network and at the URL; mail waits, or goes over the LAN")
	case relayBadAnswer:
		e.warn("relay", text, "look whether the URL is a relay's: agentmbx relay set URL; if it is, tell its operator")
	case relayOver:
		e.info("relay", text, e.nextPass())
	default:
		e.warn("relay", text, "it is tried again by itself; if it lasts, tell the relay's operator")
	}
}

// waitsForRelay counts the mail that the relay should take: what the LAN has
// failed at, or has no way for.
func waitsForRelay(t *tx) (n int64, err error) {
	_, err = t.get(`SELECT count(*) FROM outbox o JOIN peers p ON p.fold = o.fold
		WHERE o.attempts >= ? OR o.state = 'repush' OR p.addr = '' OR p.lan_failures > 0`, []any{relayAfter}, &n)
	return n, err
}

// checkHeld counts what the relay has taken and what became of the rest.
func (e *examiner) checkHeld(t *tx) error {
	type tally struct {
		n      int64
		oldest int64
	}
	byState := map[string]tally{}
	since := e.now.Add(-reportFor).UnixMilli()
	err := t.each(`SELECT state, count(*), min(accepted_at) FROM relay_sent
		WHERE state IN ('relay-accepted', 'repush') OR state IN ('expired', 'rejected', 'unconfirmed') AND state_at > ? GROUP BY state`,
		[]any{since}, func(scan func(...any) error) error {
			var state string
			var c tally
			err := scan(&state, &c.n, &c.oldest)
			byState[state] = c
			return err
		})
	if err != nil {
		return err
	}
	if c := byState["relay-accepted"]; c.n > 0 {
		e.info("relay-mail", fmt.Sprintf("%s taken by the relay and not confirmed yet, the oldest %s", plural(c.n, "message"), e.ago(c.oldest)), "")
	}
	if c := byState["repush"]; c.n > 0 {
		e.info("relay-mail", plural(c.n, "re-push")+": the relay went back in time and may have lost what it held", "")
	}
	const days = " in the last 30 days"
	if c := byState["expired"]; c.n > 0 {
		e.warn("relay-mail", plural(c.n, "message")+" expired at the relay"+days+": the host did not come for it", "agentmbx sent shows which; send it again when the host is back")
	}
	if c := byState["rejected"]; c.n > 0 {
		e.warn("relay-mail", plural(c.n, "rejected re-push")+days+": the host refused it, or is no longer paired", "agentmbx sent shows which; pair again if the host is a new one, then send it again")
	}
	if c := byState["unconfirmed"]; c.n > 0 {
		e.warn("relay-mail", plural(c.n, "message")+" unconfirmed"+days+": the relay took it, and the host never confirmed it", "agentmbx sent shows which; ask there whether it arrived, else send it again")
	}
	return nil
}

// reportFor is how long mail that came to nothing is reported.
const reportFor = 30 * 24 * time.Hour

func (e *examiner) checkQuarantine(t *tx) error {
	var total int64
	var reasons []string
	err := t.each("SELECT reason, count(*) FROM quarantine GROUP BY reason ORDER BY count(*) DESC, reason", nil, func(scan func(...any) error) error {
		var reason string
		var n int64
		err := scan(&reason, &n)
		total += n
		reasons = append(reasons, fmt.Sprintf("%d %s", n, reason))
		return err
	})
	if err == nil && total > 0 {
		e.warn("quarantine", fmt.Sprintf("%s from the relay could not be accepted: %s", plural(total, "item"), few(reasons)),
			"agentmbx relay quarantine shows them; retry ID tries one again, discard ID drops it")
	}
	return err
}
