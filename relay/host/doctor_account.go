package host

import (
	"errors"
	"fmt"

	"github.com/agentmbx/agentmbx/relay/host/account"
	"github.com/agentmbx/agentmbx/relay/wire"
)

const signIn = "agentmbx login --base-url URL"

// checkAccount looks at the sign-in and its key. A host that never had either
// hears nothing of them.
func (e *examiner) checkAccount() {
	r, err := account.ReadRecord(e.o.Home)
	signedIn := !errors.Is(err, account.ErrNoRecord)
	if signedIn && err != nil {
		e.failedFile("account", err)
		e.badAccount = true
	}
	_, keyErr := account.ReadKey(e.o.Home)
	switch {
	case errors.Is(keyErr, account.ErrNoKey) && !signedIn:
		return
	case keyErr != nil:
		e.failedFile("cloud-key", keyErr)
		e.badAccount = true
	}
	if err != nil {
		return
	}
	text := fmt.Sprintf("signed in at %s as client %s", r.Base, r.ClientID)
	switch used := relayURL(e.o, e.config); {
	case r.Resources.Relay == "":
		e.ok("account", text+"; it names no relay")
	case used != r.Resources.Relay:
		e.info("account", text+"; its relay "+r.Resources.Relay+" is not the one in use", "to use it: agentmbx relay set "+r.Resources.Relay)
	default:
		e.ok("account", text)
	}
}

// source is where this process would take tokens for a relay from. A daemon may
// have been started with other variables.
func (e *examiner) source(relay string) account.Kind {
	s := account.NewSource(account.SourceOptions{Home: e.o.Home, Command: e.o.TokenCommand, File: e.o.TokenFile})
	defer s.Close()
	return s.For(relay)
}

// checkSession tells until when a hosted relay serves this host.
func (e *examiner) checkSession(t *tx) error {
	url := relayURL(e.o, e.config)
	row, err := e.session(t, url)
	if err != nil || row.ends == 0 {
		return err
	}
	r, err := loadRelay(t, url)
	if err != nil {
		return err
	}
	ends := e.at(row.ends)
	by := fmt.Sprintf("by a token of %s", row.source)
	switch {
	case !ends.After(e.now) && refusesUs(r.state):
		e.info("session", "over since "+wire.FormatTime(ends)+"; why there is no new one: see relay", "")
	case !ends.After(e.now):
		e.info("session", "over since "+wire.FormatTime(ends)+": the next pass asks for a new one", e.nextPass())
	case row.trouble != "":
		e.warn("session", fmt.Sprintf("ends in %s, at %s, and is not renewed: %s", span(ends.Sub(e.now)), wire.FormatTime(ends), row.trouble),
			e.tokenFix(url, row.source, row.reason))
	default:
		e.ok("session", fmt.Sprintf("until %s, in %s, %s; it is renewed before", wire.FormatTime(ends), span(ends.Sub(e.now)), by))
	}
	return nil
}

// session is what is stored of a session; nothing in a database of an earlier version.
func (e *examiner) session(t *tx, url string) (sessionRow, error) {
	version, err := schemaOf(t)
	if err != nil || version < 2 {
		return sessionRow{}, err
	}
	return loadSession(t, url)
}

// tokenFix says what to do about a token, by the relay's code of what is wrong
// with it, or for a source that gave none.
func (e *examiner) tokenFix(relay string, source account.Kind, reason string) string {
	if source == account.ByNone {
		source = e.source(relay)
	}
	again := "sign in again: " + signIn
	if source == account.ByCommand || source == account.ByFile {
		again = "see that what " + source.String() + " names gives a token for this host"
	}
	switch reason {
	case "":
		if e.badAccount {
			return "see the line above about this host's account"
		}
		switch source {
		case account.ByCommand:
			return "run the command of MBX_ACCOUNT_TOKEN_CMD by hand, as the daemon's user: it has to print a fresh token within 30 seconds"
		case account.ByFile:
			return "have a fresh token written to the file of MBX_ACCOUNT_TOKEN_FILE before the one in it ends"
		}
		return "it is tried again by itself; if it lasts, " + again
	case "PROOF_MISSING":
		return signIn + "; or set MBX_ACCOUNT_TOKEN_CMD for the daemon"
	case "TOKEN_AUDIENCE":
		return "the token is for another relay: have one issued for " + relay + " exactly, or use the relay that it is for: agentmbx relay set URL"
	case "TOKEN_EXPIRED", "TOKEN_EARLY", "TOKEN_LIFETIME": // timeReasons
		return "have a fresh token issued, for at most 15 minutes; and look at the clock: this host's says " + wire.FormatTime(e.now)
	case "TOKEN_BINDING":
		return "the token is bound to another cloud key than " + account.KeyFile + ": put back a copy of the right one, or " + again
	case "TOKEN_ISSUER":
		return "the token is of another issuer than the relay's: " + again + ", where the relay's operator says"
	case "CERTIFICATE_AUDIENCE":
		return "the relay has another public URL than " + relay + ": ask its operator for it, then agentmbx relay set URL"
	case "CERTIFICATE_HOST", "CERTIFICATE_SIGNATURE", "CERTIFICATE_BAD", "CLOUD_PROOF", "PROOF_BAD":
		return "tell the relay's operator: this host's own signatures were refused"
	case reasonKeyless:
		return "nothing here: the relay can't get its issuer's keys; it is tried again every minute, tell its operator if that lasts"
	}
	return again + "; if it lasts, tell the relay's operator the code " + reason
}
