package account

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// clientID is who this program is to every issuer, before a host is enrolled.
const clientID = "agentmbx-cli"

// Ends of a sign-in that a person decided about.
var (
	ErrDenied  = errors.New("the sign-in was denied: nothing was stored; run agentmbx login again if that was a mistake")
	ErrExpired = errors.New("the code was not entered in time: run agentmbx login again")
)

// Prompt is what a person has to do: open a page and enter a code. All of it is
// the issuer's text.
type Prompt struct {
	Page     string    // where to enter the code
	Complete string    // the page with the code in it, "" for none
	Code     string    //
	Expires  time.Time // of the code
}

// LoginOptions say who signs in where.
type LoginOptions struct {
	Home string
	Base string // the issuer, as ParseBase takes it
	Host string
	Key  wire.PrivateKey

	// Show tells the person what to do, at once.
	Show func(Prompt) error

	// Noted hears what does not stop a sign-in.
	Noted func(text string)

	Transport http.RoundTripper                                // nil for one of its own
	Now       func() time.Time                                 // nil means time.Now
	Wait      func(ctx context.Context, d time.Duration) error // nil waits; for tests
}

// Login signs a host in at an issuer (RFC 8628), enrols its cloud key there and
// stores what came of it. The session in which a person approved it is ended
// before it returns, whatever went wrong and also when ctx ended: it is best
// effort, Noted hears when the issuer did not do it.
func Login(ctx context.Context, o LoginOptions) (Record, error) {
	base, err := ParseBase(o.Base)
	if err != nil {
		return Record{}, err
	}
	c := newCaller(o.Transport, o.Now)
	if o.Transport == nil {
		defer c.close()
	}
	if o.Wait == nil {
		o.Wait = pause
	}
	// First of all: nobody should type a code in for a home that can't store a key.
	cloud, err := cloudKey(o.Home)
	if err != nil {
		return Record{}, err
	}
	bearer, err := device(ctx, c, base, o)
	if err != nil {
		return Record{}, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if _, err := c.json(ctx, "end the sign-in's session", base+"/revoke-session", bearer, struct{}{}); err != nil && o.Noted != nil {
			o.Noted(err.Error())
		}
	}()
	r, err := enrol(ctx, c, base, bearer, cloud, o)
	if err != nil {
		return Record{}, err
	}
	return r, r.write(o.Home)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Bounds of what an issuer says about the device flow.
const (
	pollEvery   = 5 * time.Second // unless it says otherwise; and what slow_down adds
	maxPoll     = time.Minute
	codeLife    = 10 * time.Minute // unless it says otherwise
	maxCodeLife = time.Hour
)

// device is the flow in which a person approves this host elsewhere.
func device(ctx context.Context, c *caller, base string, o LoginOptions) (bearer string, err error) {
	const what = "sign in"
	body, err := c.post(ctx, what, base+"/device/code", url.Values{
		"client_id": {clientID}, "host": {o.Host}, "host_fingerprint": {o.Key.Public().Fingerprint()},
	})
	if err != nil {
		return "", err
	}
	var a struct {
		Device   jsontext.Value `json:"device_code"`
		Code     jsontext.Value `json:"user_code"`
		Page     jsontext.Value `json:"verification_uri"`
		Complete jsontext.Value `json:"verification_uri_complete"`
		Expires  jsontext.Value `json:"expires_in"`
		Interval jsontext.Value `json:"interval"`
	}
	if wire.Decode(body, &a) != nil || text(a.Device) == "" || text(a.Code) == "" {
		return "", fmt.Errorf("%s: %w", what, errAnswer)
	}
	p := Prompt{Page: text(a.Page), Complete: text(a.Complete), Code: clean(text(a.Code))}
	if !page(p.Page) {
		return "", fmt.Errorf("%s: the issuer names no page to open", what)
	}
	if !page(p.Complete) {
		p.Complete = ""
	}
	p.Expires = c.now().Add(seconds(number(a.Expires), codeLife, maxCodeLife))
	interval := seconds(number(a.Interval), pollEvery, maxPoll)
	if err := o.Show(p); err != nil {
		return "", err
	}
	for wait := interval; ; {
		if err := o.Wait(ctx, wait); err != nil {
			return "", err
		}
		if !c.now().Before(p.Expires) {
			return "", ErrExpired
		}
		body, err := c.post(ctx, what, base+"/device/token", url.Values{
			"grant_type":  {"urn:ietf:params:oauth:grant-type:device_code"},
			"device_code": {text(a.Device)}, "client_id": {clientID},
		})
		var e *IssuerError
		switch {
		case err == nil:
			return bearerOf(what, body)
		case errors.Is(err, errUnreachable), errors.As(err, &e) && passing(e):
			wait = min(max(wait, time.Second)*2, maxPoll) // somebody may be typing the code in right now
			continue
		case e == nil:
			return "", err
		}
		switch e.Code {
		case "authorization_pending":
		case "slow_down":
			interval += pollEvery
		case "access_denied":
			return "", ErrDenied
		case "expired_token":
			return "", ErrExpired
		default:
			return "", err
		}
		wait = interval
	}
}

// passing reports an answer that says nothing about the sign-in itself.
func passing(e *IssuerError) bool {
	switch e.Code {
	case "", "server_error", "temporarily_unavailable": // RFC 6749
		return e.Status >= 500 || e.Status == http.StatusTooManyRequests || e.Status == http.StatusRequestTimeout
	}
	return false
}

// seconds is a number of seconds within bounds; otherwise for none.
func seconds(n int64, otherwise, most time.Duration) time.Duration {
	if n <= 0 {
		return otherwise
	}
	return min(time.Duration(min(n, 1<<30))*time.Second, most)
}

// enrol makes the issuer know this host's cloud key: certified by the host key,
// and shown to be here.
func enrol(ctx context.Context, c *caller, base, bearer string, cloud wire.PrivateKey, o LoginOptions) (Record, error) {
	const what = "enrol this host at the issuer"
	host := o.Key.Public().String()
	body, err := c.json(ctx, what, base+"/v1/host/enrolments/challenge", bearer, map[string]string{
		"host_name": o.Host, "host_pub": host, "cloud_pub": cloud.Public().String(),
	})
	if err != nil {
		return Record{}, err
	}
	var challenge struct {
		Nonce jsontext.Value `json:"nonce"`
	}
	if wire.Decode(body, &challenge) != nil || !label(text(challenge.Nonce)) {
		return Record{}, fmt.Errorf("%s: %w", what, errAnswer)
	}
	nonce := text(challenge.Nonce)
	payload, sig := wire.MakeCloudCertificate(o.Key, cloud.Public(), base, c.now())
	body, err = c.json(ctx, what, base+"/v1/host/enrolments", bearer, map[string]any{
		"host_name": o.Host, "host_pub": host, "nonce": nonce,
		"certificate": certificate(payload, sig),
		"proof":       wire.SignCloudProof(cloud, nonce, o.Key.Public(), base),
	})
	if err != nil {
		return Record{}, err
	}
	var a struct {
		HostID    jsontext.Value `json:"host_id"`
		ClientID  jsontext.Value `json:"client_id"`
		Token     jsontext.Value `json:"token_endpoint"`
		JWKS      jsontext.Value `json:"jwks_uri"`
		Resources struct {
			API   jsontext.Value `json:"api"`
			Relay jsontext.Value `json:"relay"`
		} `json:"resources"`
	}
	if wire.Decode(body, &a) != nil {
		return Record{}, fmt.Errorf("%s: %w", what, errAnswer)
	}
	r := Record{
		V: 1, Base: base, HostID: text(a.HostID), ClientID: text(a.ClientID), TokenEndpoint: text(a.Token), JWKSURI: text(a.JWKS),
		Resources: Resources{API: text(a.Resources.API), Relay: text(a.Resources.Relay)},
	}
	if url, err := relayclient.ParseURL(r.Resources.Relay); err == nil {
		r.Resources.Relay = url
	}
	if err := r.check(); err != nil {
		return Record{}, fmt.Errorf("%s: its answer can't be used: %w", what, err)
	}
	return r, nil
}
