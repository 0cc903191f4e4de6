package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/agentmbx/agentmbx/relay/host/homefile"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// keyring is what keys.json holds: the keys of now, the sealing keys of before
// (mail sealed to them is still on its way) and the rotations between them.
type keyring struct {
	key       wire.PrivateKey
	enc       wire.EncPrivateKey
	retired   []wire.EncPrivateKey
	rotations [][]byte // signed records, oldest first
}

// keysDoc is its form on disk.
type keysDoc struct {
	V         int      `json:"v"`
	HostKey   string   `json:"host_key"`
	EncKey    string   `json:"enc_key"`
	Retired   []string `json:"retired_enc_keys"`
	Rotations []string `json:"rotations"`
}

var errBadKeys = errors.New("keys.json is not a host's key file: put back a copy of it; a new key would make every peer refuse this host")

var errNoKeys = errors.New("keys.json is missing: put back a copy of it; a new key would make every peer refuse this host")

// newKeyring makes fresh keys.
func newKeyring() (*keyring, error) {
	key, err := wire.GenerateKey()
	if err != nil {
		return nil, err
	}
	enc, err := wire.GenerateEncKey()
	if err != nil {
		return nil, err
	}
	return &keyring{key: key, enc: enc}, nil
}

func readKeys(path string) (*keyring, error) {
	data, err := homefile.Read(path)
	if err != nil {
		return nil, err
	}
	var d keysDoc
	if err := wire.Decode(data, &d); err != nil || d.V != 1 {
		return nil, errBadKeys
	}
	k := &keyring{}
	if k.key, err = wire.ParsePrivateKey(d.HostKey); err != nil {
		return nil, errBadKeys
	}
	if k.enc, err = wire.ParseEncPrivateKey(d.EncKey); err != nil {
		return nil, errBadKeys
	}
	for _, s := range d.Retired {
		enc, err := wire.ParseEncPrivateKey(s)
		if err != nil {
			return nil, errBadKeys
		}
		k.retired = append(k.retired, enc)
	}
	for _, s := range d.Rotations {
		if _, err := wire.ParseRotation([]byte(s)); err != nil {
			return nil, errBadKeys
		}
		k.rotations = append(k.rotations, []byte(s))
	}
	return k, nil
}

func (k *keyring) write(path string) error {
	d := keysDoc{V: 1, HostKey: k.key.Seed(), EncKey: k.enc.Seed(), Retired: []string{}, Rotations: []string{}}
	for _, enc := range k.retired {
		d.Retired = append(d.Retired, enc.Seed())
	}
	for _, r := range k.rotations {
		d.Rotations = append(d.Rotations, string(r))
	}
	data, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return homefile.Write(path, append(data, '\n'))
}

// next is the keyring after a rotation.
func (k *keyring) next(host string, now time.Time) (*keyring, error) {
	n, err := newKeyring()
	if err != nil {
		return nil, err
	}
	record := wire.MakeRotation(k.key, n.key, host, n.enc.Public(), now)
	n.retired = append([]wire.EncPrivateKey{k.enc}, k.retired...)
	n.rotations = append(append([][]byte{}, k.rotations...), record)
	return n, nil
}

// follows reports whether k is prev after one rotation.
func (k *keyring) follows(prev *keyring) bool {
	if len(k.rotations) != len(prev.rotations)+1 {
		return false
	}
	r, err := wire.ParseRotation(k.rotations[len(k.rotations)-1])
	return err == nil && r.OldPub == prev.key.Public() && r.NewPub == k.key.Public()
}

// rotateKeys replaces keys.json in two steps: the next keyring is stored whole
// under a name of its own, then takes the place of the old one. A crash between
// them leaves a rotation that the next call completes with the same new key.
func rotateKeys(home, host string, now time.Time, at func(string)) (k *keyring, resumed bool, err error) {
	cur, err := readKeys(filepath.Join(home, keysFile))
	if err != nil {
		return nil, false, err
	}
	staged := filepath.Join(home, nextKeys)
	k, err = readKeys(staged)
	switch {
	case err == nil && k.follows(cur):
		resumed = true
	case err == nil || errors.Is(err, errBadKeys):
		return nil, false, fmt.Errorf("%s does not follow from %s: move it away and run this again", nextKeys, keysFile)
	case errors.Is(err, os.ErrNotExist):
		if k, err = cur.next(host, now); err != nil {
			return nil, false, err
		}
		if err := k.write(staged); err != nil {
			return nil, false, err
		}
	default:
		return nil, false, err
	}
	at("rotate:staged")
	if err := os.Rename(staged, filepath.Join(home, keysFile)); err != nil {
		return nil, false, err
	}
	return k, resumed, homefile.SyncDir(home)
}
