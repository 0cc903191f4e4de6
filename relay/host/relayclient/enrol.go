package relayclient

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Challenge asks for what Enrol has to answer. It lives for minutes and is good
// for one enrolment.
func (c *Client) Challenge(ctx context.Context, caller Caller) (string, error) {
	b := wire.AppendString([]byte(`{"host":`), caller.Host)
	b = wire.AppendString(append(b, `,"pubkey":`...), caller.Key.Public().String())
	q := call{what: "enrolment challenge", method: "POST", target: "/v1/relay/challenge", body: append(b, '}'), bound: smallAnswer}
	body, err := c.do(ctx, q)
	if err != nil {
		return "", err
	}
	s, err := parseChallenge(body)
	return s, q.named(err)
}

func parseChallenge(body []byte) (string, error) {
	var a struct {
		Challenge *string `json:"challenge"`
	}
	if err := decode(body, &a); err != nil {
		return "", err
	}
	if !label(a.Challenge) {
		return "", errMembers
	}
	return *a.Challenge, nil
}

// Enrol answers a challenge. proof is what the relay's authority asks for, nil
// for none; no error repeats any of it, even when the answer does.
func (c *Client) Enrol(ctx context.Context, caller Caller, ownerFP, challenge string, proof jsontext.Value) error {
	const what = "enrol"
	if caller.Key.IsZero() {
		return (&call{what: what}).named(errCaller)
	}
	key := caller.Key.Public()
	b := wire.AppendString([]byte(`{"host":`), caller.Host)
	b = wire.AppendString(append(b, `,"pubkey":`...), key.String())
	b = wire.AppendString(append(b, `,"owner_fp":`...), ownerFP)
	b = wire.AppendString(append(b, `,"sig":`...), caller.Key.Sign(wire.EnrolPayload(challenge, caller.Host, key, ownerFP)))
	if proof != nil {
		b = append(append(b, `,"proof":`...), proof...)
	}
	return c.tell(ctx, call{what: what, method: "POST", target: "/v1/relay/enrol", body: append(b, '}'), secret: proof})
}

// tell makes a call that is answered {"ok":true}.
func (c *Client) tell(ctx context.Context, q call) error {
	q.bound = smallAnswer
	body, err := c.do(ctx, q)
	if err != nil {
		return err
	}
	return q.named(parseOK(body))
}

// Rotate tells the relay of a signed rotation and returns how many items now
// wait for the new key.
func (c *Client) Rotate(ctx context.Context, record []byte) (moved int64, err error) {
	b := append([]byte(`{"rotation":`), record...)
	q := call{what: "rotate at the relay", method: "POST", target: "/v2/relay/rotate", body: append(b, '}'), bound: smallAnswer}
	body, err := c.do(ctx, q)
	if err != nil {
		return 0, err
	}
	moved, err = parseMoved(body)
	return moved, q.named(err)
}

func parseMoved(body []byte) (int64, error) {
	var a struct {
		Moved *int64 `json:"moved"`
	}
	if err := decode(body, &a); err != nil {
		return 0, err
	}
	if !counts(a.Moved) {
		return 0, errMembers
	}
	return *a.Moved, nil
}
