package host

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/authority/jwks"
	"github.com/agentmbx/agentmbx/relay/authority/jwks/jwkstest"
	"github.com/agentmbx/agentmbx/relay/host/account"
	"github.com/agentmbx/agentmbx/relay/host/homefile"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// hosted is a world whose relay takes hosts by an account's token: the real
// checks, over the keys of an issuer of the test's.
type hosted struct {
	*world
	issuer *jwkstest.Issuer
	key    jwkstest.Key
	given  int
}

func newHosted(t testing.TB) *hosted {
	w := &hosted{world: newWorld(t), key: jwkstest.NewKey("EdDSA", "key-1")}
	w.issuer = jwkstest.NewIssuer(t, w.key)
	w.relay.stop()
	w.relay.authority = func() relay.EnrolmentAuthority {
		return must(jwks.New(context.Background(), jwks.Options{
			Issuer: w.issuer.URL, Audience: w.relay.url, URL: w.issuer.URL + jwkstest.JWKSPath, Store: w.relay.store, Now: w.clock,
		}))
	}
	w.relay.start()
	return w
}

// member is a host whose tokens are in a file, with a cloud key.
type member struct {
	*testHost
	hosted *hosted
	cloud  wire.PrivateKey
}

func (w *hosted) member(name string) *member {
	w.t.Helper()
	m := &member{testHost: w.host(name), hosted: w, cloud: must(wire.GenerateKey())}
	noError(w.t, homefile.Write(filepath.Join(m.opts.Home, account.KeyFile), wire.FormatKeyFile(m.cloud)))
	m.opts.TokenFile = filepath.Join(w.t.TempDir(), "token")
	m.reopen()
	m.patience = time.Minute
	m.give(nil)
	return m
}

// give puts a fresh token of ten minutes into the file, with other claims.
func (m *member) give(change jwkstest.JSON) {
	m.w.t.Helper()
	m.hosted.given++
	claims := jwkstest.Host{Key: m.keyring().key, Cloud: m.cloud}.Claims(m.hosted.issuer.URL, m.hosted.relay.url, m.w.clock())
	claims["client_id"], claims["sub"], claims["jti"] = "client-"+m.Name(), m.Name(), fmt.Sprint("token-", m.hosted.given)
	maps.Copy(claims, change)
	m.put(m.hosted.key.Sign(nil, claims))
}

func (m *member) put(token string) {
	m.w.t.Helper()
	noError(m.w.t, os.WriteFile(m.opts.TokenFile, []byte(token+"\n"), 0o600))
}

// sessionRow is what the host knows of its session.
func (m *member) sessionRow() (r sessionRow) {
	m.w.t.Helper()
	noError(m.w.t, m.db.read(context.Background(), func(t *tx) (err error) {
		r, err = loadSession(t, m.relayURL())
		return err
	}))
	return r
}
