// Package account is a host's side of an accounts issuer: sign-in, the cloud key,
// and tokens for a relay (protocol §7).
//
// A bearer is held in memory only and stands in no error. What an issuer
// answers is read up to a bound within a deadline; a redirect is an error.
package account

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/agentmbx/agentmbx/relay/host/homefile"
	"github.com/agentmbx/agentmbx/relay/host/relayclient"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Files of a home.
const (
	File    = "account.json"
	KeyFile = "cloud.key"
)

// Record is what a sign-in leaves: who this host is to its issuer. It holds no
// secret.
type Record struct {
	V             int       `json:"v"`
	Base          string    `json:"base"`
	HostID        string    `json:"host_id"`
	ClientID      string    `json:"client_id"`
	TokenEndpoint string    `json:"token_endpoint"`
	JWKSURI       string    `json:"jwks_uri"`
	Resources     Resources `json:"resources"`
}

// Resources are what the issuer gives tokens for; "" for none.
type Resources struct {
	API   string `json:"api"`
	Relay string `json:"relay"`
}

// Errors about a home's account, each with what to do.
var (
	ErrNoRecord  = errors.New("this host is not signed in: agentmbx login --base-url URL")
	ErrBadRecord = errors.New("account.json is not a sign-in's: sign in again: agentmbx login --base-url URL")
	ErrNoKey     = errors.New("cloud.key is missing: put back a copy of it, or run agentmbx logout and sign in again: agentmbx login --base-url URL")
	ErrBadKey    = errors.New("cloud.key is not a key file: put back a copy of it, or move it away, run agentmbx logout and sign in again: agentmbx login --base-url URL")
)

// ReadRecord reads a home's account.json. It returns ErrNoRecord when there is
// none.
func ReadRecord(home string) (Record, error) {
	data, err := homefile.Read(filepath.Join(home, File))
	if errors.Is(err, os.ErrNotExist) {
		return Record{}, ErrNoRecord
	}
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := wire.Decode(data, &r); err != nil || r.V != 1 || r.check() != nil {
		return Record{}, ErrBadRecord
	}
	return r, nil
}

func (r Record) write(home string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return homefile.Write(filepath.Join(home, File), append(data, '\n'))
}

// Remove forgets a sign-in. The cloud key stays: it is who this host is to its
// issuer.
func Remove(home string) error {
	err := os.Remove(filepath.Join(home, File))
	if errors.Is(err, os.ErrNotExist) {
		return ErrNoRecord
	}
	if err != nil {
		return err
	}
	return homefile.SyncDir(home)
}

// check says what of a record can't be used. It comes from the issuer.
func (r Record) check() error {
	base, err := ParseBase(r.Base)
	switch {
	case err != nil:
		return err
	case base != r.Base || !label(r.HostID) || !label(r.ClientID):
		return errors.New("host_id or client_id is none")
	case !endpoint(r.TokenEndpoint, base):
		return errors.New("token_endpoint is not a URL that can be used")
	case r.JWKSURI != "" && !endpoint(r.JWKSURI, base):
		return errors.New("jwks_uri is not a URL that can be used")
	case r.Resources.API != "" && !label(r.Resources.API):
		return errors.New("resources.api is no name of one")
	}
	if r.Resources.Relay == "" {
		return nil
	}
	if url, err := relayclient.ParseURL(r.Resources.Relay); err != nil || url != r.Resources.Relay {
		return errors.New("resources.relay is not a relay's URL")
	}
	return nil
}

// label reports whether s is an id that a person may be shown.
func label(s string) bool {
	return s != "" && s == clean(s)
}

// ReadKey reads a home's cloud key. It returns ErrNoKey when there is none.
func ReadKey(home string) (wire.PrivateKey, error) {
	data, err := homefile.Read(filepath.Join(home, KeyFile))
	if errors.Is(err, os.ErrNotExist) {
		return wire.PrivateKey{}, ErrNoKey
	}
	if err != nil {
		return wire.PrivateKey{}, err
	}
	k, err := wire.ParseKeyFile(data)
	if err != nil {
		return wire.PrivateKey{}, ErrBadKey
	}
	return k, nil
}

// cloudKey is a home's cloud key. It is made once and then stays, also when the
// host's own key is rotated; a host that signed in and lost it is not given
// another one, which its issuer would not know.
func cloudKey(home string) (wire.PrivateKey, error) {
	k, err := ReadKey(home)
	if !errors.Is(err, ErrNoKey) {
		return k, err
	}
	if _, err := os.Lstat(filepath.Join(home, File)); !errors.Is(err, os.ErrNotExist) {
		return wire.PrivateKey{}, ErrNoKey
	}
	if k, err = wire.GenerateKey(); err != nil {
		return wire.PrivateKey{}, err
	}
	err = homefile.Make(filepath.Join(home, KeyFile), wire.FormatKeyFile(k))
	if errors.Is(err, os.ErrExist) { // another process was faster
		return ReadKey(home)
	}
	if err != nil {
		return wire.PrivateKey{}, fmt.Errorf("store %s: %w", KeyFile, err)
	}
	return k, nil
}

// clean is a text from elsewhere as it can be shown: what a terminal could take
// for a command is a question mark, and it is cut to 200 characters.
func clean(s string) string {
	n := 0
	for i, r := range s {
		if n += utf16.RuneLen(r); n > 200 {
			s = s[:i]
			break
		}
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
