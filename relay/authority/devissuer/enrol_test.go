package devissuer

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestChallengeRefusals(t *testing.T) {
	r := newRig(t, nil)
	h, other := newHost(t, "laptop"), newHost(t, "studio")
	bearer := r.login(h, "alice")
	ask := func(name, value string) map[string]string {
		v := map[string]string{"host_name": h.name, "host_pub": h.key.Public().String(), "cloud_pub": h.cloud.Public().String()}
		v[name] = value
		return v
	}
	const path = "/v1/host/enrolments/challenge"
	for _, tt := range []struct {
		name   string
		got    answer
		status int
		code   string
	}{
		{"no bearer", r.json(path, "", ask("", "")), 401, "invalid_token"},
		{"another bearer", r.json(path, secret(), ask("", "")), 401, "invalid_token"},
		{"no JSON", r.send("POST", path, "application/json", bearer, "host_name=a"), 400, "invalid_request"},
		{"bad name", r.json(path, bearer, ask("host_name", "a b")), 400, "invalid_request"},
		{"bad host key", r.json(path, bearer, ask("host_pub", "x")), 400, "invalid_request"},
		{"bad cloud key", r.json(path, bearer, ask("cloud_pub", "x")), 400, "invalid_request"},
		{"one key for both", r.json(path, bearer, ask("cloud_pub", h.key.Public().String())), 400, "invalid_request"},
		{"another host than signed in", r.json(path, bearer, ask("host_pub", other.key.Public().String())), 403, "access_denied"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.got.t = t
			tt.got.is(tt.status, tt.code)
			if tt.status == 401 && !strings.HasPrefix(tt.got.header.Get("WWW-Authenticate"), "Bearer ") {
				t.Errorf("got %v; want WWW-Authenticate", tt.got.header)
			}
		})
	}
	r.pass(sessionLife)
	r.json(path, bearer, ask("", "")).is(401, "invalid_token")
}

func TestEnrolmentRefusals(t *testing.T) {
	for _, tt := range []struct {
		name   string
		spoil  func(r *rig, h, other *host, v map[string]any)
		status int
		code   string
	}{
		{"another name", func(r *rig, h, o *host, v map[string]any) { v["host_name"] = "studio" }, 400, "invalid_request"},
		{"another host key", func(r *rig, h, o *host, v map[string]any) { v["host_pub"] = o.key.Public().String() }, 400, "invalid_request"},
		{"another nonce", func(r *rig, h, o *host, v map[string]any) { v["nonce"] = secret() }, 400, "invalid_grant"},
		{"no nonce", func(r *rig, h, o *host, v map[string]any) { delete(v, "nonce") }, 400, "invalid_grant"},
		{"an older nonce", func(r *rig, h, o *host, v map[string]any) { r.enrolment(h, bearerOf(v)) }, 400, "invalid_grant"},
		{"a late nonce", func(r *rig, h, o *host, v map[string]any) { r.pass(nonceLife) }, 400, "invalid_grant"},
		{"no certificate", func(r *rig, h, o *host, v map[string]any) { delete(v, "certificate") }, 400, "invalid_request"},
		{"certificate that is a text", func(r *rig, h, o *host, v map[string]any) { v["certificate"] = "x" }, 400, "invalid_request"},
		{"certificate for a relay", func(r *rig, h, o *host, v map[string]any) {
			v["certificate"] = r.certificate(h.key, h.cloud.Public(), relayURL)
		}, 400, "invalid_request"},
		{"certificate of another cloud key", func(r *rig, h, o *host, v map[string]any) {
			v["certificate"] = r.certificate(h.key, o.cloud.Public(), r.url)
		}, 400, "invalid_request"},
		{"certificate of another host", func(r *rig, h, o *host, v map[string]any) {
			v["certificate"] = r.certificate(o.key, h.cloud.Public(), r.url)
		}, 400, "invalid_request"},
		{"certificate signed by another", func(r *rig, h, o *host, v map[string]any) {
			c := v["certificate"].(map[string]any)
			c["sig"] = o.key.Sign(c["payload"].(json.RawMessage))
		}, 400, "invalid_request"},
		{"certificate of the future", func(r *rig, h, o *host, v map[string]any) {
			payload, sig := wire.MakeCloudCertificate(h.key, h.cloud.Public(), r.url, r.clock().Add(6*time.Minute))
			v["certificate"] = map[string]any{"payload": json.RawMessage(payload), "sig": sig}
		}, 400, "invalid_request"},
		{"no proof", func(r *rig, h, o *host, v map[string]any) { delete(v, "proof") }, 400, "invalid_request"},
		{"proof by another cloud key", func(r *rig, h, o *host, v map[string]any) {
			v["proof"] = o.cloud.Sign(wire.CloudProofPayload(v["nonce"].(string), h.key.Public(), h.cloud.Public(), r.url))
		}, 400, "invalid_request"},
		{"proof over another nonce", func(r *rig, h, o *host, v map[string]any) {
			v["proof"] = wire.SignCloudProof(h.cloud, "other", h.key.Public(), r.url)
		}, 400, "invalid_request"},
		{"proof for a relay", func(r *rig, h, o *host, v map[string]any) {
			v["proof"] = wire.SignCloudProof(h.cloud, v["nonce"].(string), h.key.Public(), relayURL)
		}, 400, "invalid_request"},
		{"nothing", func(*rig, *host, *host, map[string]any) {}, 200, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, nil)
			h := newHost(t, "laptop")
			bearer := r.login(h, "alice")
			v := r.enrolment(h, bearer)
			v["-bearer"] = bearer // an unknown member, for a spoiler that asks again
			tt.spoil(r, h, newHost(t, "studio"), v)
			delete(v, "-bearer")
			r.json("/v1/host/enrolments", bearer, v).is(tt.status, tt.code)
			if n := len(r.i.Hosts()); (n == 1) != (tt.status == 200) {
				t.Errorf("got %d hosts", n)
			}
			if tt.name == "nothing" || tt.name == "no proof" { // the nonce was used
				r.json("/v1/host/enrolments", bearer, v).is(400, "invalid_grant")
			}
			r.json("/v1/host/enrolments", "", v).is(401, "invalid_token")
		})
	}
}

func bearerOf(v map[string]any) string { return v["-bearer"].(string) }

func TestEnrolAgain(t *testing.T) {
	r := newRig(t, nil)
	h := r.enrolled(newHost(t, "laptop"), "alice")
	again := *h
	again.name = "laptop2"
	r.enrolled(&again, "alice")
	if again.clientID != h.clientID || again.hostID != h.hostID || len(r.i.Hosts()) != 1 || r.i.Hosts()[0].Name != "laptop2" {
		t.Errorf("the same keys: got %+v of %+v; want the same ids and the new name", again, r.i.Hosts())
	}
	cloud := *newHost(t, "laptop")
	cloud.key = h.key
	r.enrolled(&cloud, "alice")
	if cloud.clientID == h.clientID || cloud.hostID != h.hostID {
		t.Errorf("a new cloud key: got %+v; want another client of the same host", cloud)
	}
	moved := *h
	r.enrolled(&moved, "bob")
	if moved.clientID == h.clientID || moved.hostID == h.hostID {
		t.Errorf("another account: got %+v; want other ids", moved)
	}
	other := r.enrolled(newHost(t, "laptop"), "alice") // names are the relay's matter
	if other.clientID == h.clientID || other.hostID == h.hostID {
		t.Errorf("another host: got %+v; want other ids", other)
	}
	// A cloud key is one host's.
	thief := newHost(t, "thief")
	thief.cloud = h.cloud
	bearer := r.login(thief, "alice")
	r.json("/v1/host/enrolments", bearer, r.enrolment(thief, bearer)).is(409, "invalid_request")
	// What was revoked does not come back, in no account.
	_, err := r.i.Revoke(t.Context(), h.clientID, "")
	noError(t, err)
	for _, account := range []string{"alice", "bob"} {
		bearer = r.login(h, account)
		r.json("/v1/host/enrolments", bearer, r.enrolment(h, bearer)).is(403, "access_denied")
	}
	if n := len(r.i.Hosts()); n != 4 {
		t.Errorf("got %d credentials; want 4", n)
	}
}
