package devissuer

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestTokenRefusals(t *testing.T) {
	r := newRig(t, nil)
	h, other := r.enrolled(newHost(t, "laptop"), "alice"), r.enrolled(newHost(t, "studio"), "alice")
	_, err := r.i.Revoke(t.Context(), r.enrolled(newHost(t, "lost"), "alice").clientID, "")
	noError(t, err)
	claims := func(name string, value any) map[string]string {
		c := r.asserted(h)
		if c[name] = value; value == nil {
			delete(c, name)
		}
		return map[string]string{"client_assertion": compact(h.cloud, edDSA, c)}
	}
	signed := func(key wire.PrivateKey, header map[string]any) map[string]string {
		return map[string]string{"client_assertion": compact(key, header, r.asserted(h))}
	}
	now := t0.Unix()
	const client = "invalid_client"
	for _, tt := range []struct {
		name   string
		change map[string]string
		status int
		code   string
	}{
		{"nothing", nil, 200, ""},
		{"another grant", map[string]string{"grant_type": "password"}, 400, "unsupported_grant_type"},
		{"another type of assertion", map[string]string{"client_assertion_type": "saml"}, 401, client},
		{"no assertion", map[string]string{"client_assertion": ""}, 401, client},
		{"assertion that is none", map[string]string{"client_assertion": "a.b.c"}, 401, client},
		{"large assertion", map[string]string{"client_assertion": strings.Repeat("a", maxAssertion+1)}, 401, client},
		{"another client_id", map[string]string{"client_id": other.clientID}, 401, client},
		{"signed by another host", signed(other.cloud, edDSA), 401, client},
		{"signed by the host key", signed(h.key, edDSA), 401, client},
		{"algorithm none", signed(h.cloud, map[string]any{"alg": "none"}), 401, client},
		{"algorithm of a secret", signed(h.cloud, map[string]any{"alg": "HS256"}), 401, client},
		{"unknown extension", signed(h.cloud, map[string]any{"alg": "EdDSA", "crit": []string{"b64x"}, "b64x": true}), 401, client},
		{"no algorithm", signed(h.cloud, map[string]any{}), 401, client},
		{"claims twice", map[string]string{"client_assertion": twice(r, h)}, 401, client},
		{"unknown client", claims("sub", "client_x"), 401, client},
		{"iss is another", claims("iss", other.clientID), 401, client},
		{"no aud", claims("aud", nil), 401, client},
		{"aud of a relay", claims("aud", relayURL), 401, client},
		{"two aud", claims("aud", []string{r.url, relayURL}), 401, client},
		{"aud is the base", claims("aud", r.url), 200, ""},
		{"aud as a list", claims("aud", []string{r.url + "/token"}), 200, ""},
		{"no exp", claims("exp", nil), 401, client},
		{"exp is a text", claims("exp", "soon"), 401, client},
		{"expired", claims("exp", now-60), 401, client},
		{"just not expired", claims("exp", now-59), 200, ""},
		{"long life", claims("exp", now+361), 401, client},
		{"iat ahead", claims("iat", now+61), 401, client},
		{"iat a little ahead", claims("iat", now+60), 200, ""},
		{"no iat", claims("iat", nil), 200, ""},
		{"nbf ahead", claims("nbf", now+61), 401, client},
		{"no jti", claims("jti", nil), 401, client},
		{"long jti", claims("jti", strings.Repeat("a", 201)), 401, client},
		{"no resource", map[string]string{"resource": ""}, 400, "invalid_target"},
		{"another resource", map[string]string{"resource": "https://other.example"}, 400, "invalid_target"},
		{"resource with a slash", map[string]string{"resource": relayURL + "/"}, 400, "invalid_target"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := r.form("/token", r.asking(h, relayURL, tt.change))
			a.t = t
			a.is(tt.status, tt.code)
		})
	}
	r.json("/token", "", r.asking(h, relayURL, nil)).is(400, "unsupported_grant_type") // no form
}

func TestAssertionsServeOnce(t *testing.T) {
	r := newRig(t, nil)
	h, other := r.enrolled(newHost(t, "laptop"), "alice"), r.enrolled(newHost(t, "studio"), "alice")
	c := r.asserted(h)
	form := r.asking(h, relayURL, map[string]string{"client_assertion": compact(h.cloud, edDSA, c)})
	r.form("/token", form).is(200, "")
	r.form("/token", form).is(401, "invalid_client")
	r.pass(119 * time.Second) // the last moment in which it would be good
	r.form("/token", form).is(401, "invalid_client")
	c["exp"] = r.clock().Unix() + 60
	r.form("/token", r.asking(h, relayURL, map[string]string{"client_assertion": compact(h.cloud, edDSA, c)})).is(401, "invalid_client")
	mine := r.asserted(other) // ids are each client's own
	mine["jti"] = c["jti"]
	r.form("/token", r.asking(other, relayURL, map[string]string{"client_assertion": compact(other.cloud, edDSA, mine)})).is(200, "")
}

func TestRevokedClient(t *testing.T) {
	r := newRig(t, nil)
	h := r.enrolled(newHost(t, "laptop"), "alice")
	_, err := r.i.Revoke(t.Context(), "laptop", "lost")
	noError(t, err)
	a := r.form("/token", r.asking(h, relayURL, nil))
	a.is(401, "invalid_client")
	if !strings.Contains(a.text("error_description"), "revoked") {
		t.Errorf("got %s; want it to say why", a.body)
	}
	// Who has not the key does not hear of it.
	a = r.form("/token", r.asking(h, relayURL, map[string]string{"client_assertion": compact(h.key, edDSA, r.asserted(h))}))
	a.is(401, "invalid_client")
	if strings.Contains(a.text("error_description"), "revoked") {
		t.Errorf("got %s", a.body)
	}
}

// twice is an assertion whose sub stands there twice.
func twice(r *rig, h *host) string {
	doc, err := json.Marshal(r.asserted(h))
	noError(r.t, err)
	return compact(h.cloud, edDSA, json.RawMessage(`{"sub":"other",`+string(doc[1:])))
}
