package jwks

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwk"
	"github.com/lestrrat-go/jwx/v2/jwt"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// BenchmarkVerify counts enrolments whose proof is checked. The naive one parses
// the key set for each token and leaves the token to the library; it makes fewer
// checks, and those of the certificate in the same way.
func BenchmarkVerify(b *testing.B) {
	for _, alg := range []string{"EdDSA", "ES256"} {
		key := jwkstest.NewKey(alg, "key-1")
		others := []jwkstest.Key{key, jwkstest.NewKey("EdDSA", "key-0"), jwkstest.NewKey("ES256", "key-2")}
		host := jwkstest.NewHost()
		who := relay.Applicant{Name: "alpha", Key: host.Key.Public(), Challenge: "c"}
		who.Proof = host.Proof(key.Sign(nil, host.Claims(fuzzIss, fuzzAud, fuzzNow)), fuzzAud, "c", fuzzNow)
		a := withKeys(b, others...)
		set := jwkstest.Set(others...)
		for _, v := range []struct {
			name   string
			verify func() bool
		}{
			{"ours", func() bool {
				g, err := a.Authorize(context.Background(), who)
				return err == nil && g.OK
			}},
			{"naive", func() bool { return naive(set, who) }},
		} {
			b.Run(alg+"/"+v.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if !v.verify() {
						b.Fatal("refused")
					}
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "verifications/s")
			})
		}
	}
}

func naive(set []byte, who relay.Applicant) bool {
	var p struct {
		Token       string
		Certificate struct {
			Payload json.RawMessage
			Sig     string
		}
		CloudSig string `json:"cloud_sig"`
	}
	if json.Unmarshal(who.Proof, &p) != nil {
		return false
	}
	keys, err := jwk.Parse(set)
	if err != nil {
		return false
	}
	t, err := jwt.ParseString(p.Token, jwt.WithKeySet(keys), jwt.WithIssuer(fuzzIss), jwt.WithAudience(fuzzAud),
		jwt.WithClock(jwt.ClockFunc(func() time.Time { return fuzzNow })), jwt.WithAcceptableSkew(leeway))
	if err != nil {
		return false
	}
	cnf, _ := t.Get("cnf")
	jkt, _ := cnf.(map[string]any)["jkt"].(string)
	c, err := wire.VerifyCloudCertificate(p.Certificate.Payload, p.Certificate.Sig, who.Key)
	return err == nil && c.Aud == fuzzAud && c.CloudPub.Thumbprint() == jkt &&
		wire.VerifyCloudProof(c.CloudPub, p.CloudSig, who.Challenge, who.Key, fuzzAud)
}
