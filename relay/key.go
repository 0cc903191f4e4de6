package relay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// NewKey ends the source of a key that LoadKey made.
const NewKey = " (new)"

// KeyFile is the relay's private key in its store folder.
const KeyFile = "relay.key"

// Errors of LoadKey. Neither repeats any of the key.
var (
	// ErrKeyLost: a store is there and its key is not. A new key would make
	// every host stop, so it is never made by itself.
	ErrKeyLost = errors.New("the store is there but its key is not")
	ErrKeyFile = errors.New("not a relay key")
)

// LoadKey finds the relay's key: secret (MBX_RELAY_KEY) when it is given, else
// relay.key in dir, else a new one, which it writes there. It answers where
// the key came from.
func LoadKey(dir, secret string, storeExists bool) (key wire.PrivateKey, source string, err error) {
	if secret != "" {
		if key, err = wire.ParseKeyFile([]byte(secret)); err != nil {
			return key, "", fmt.Errorf("MBX_RELAY_KEY: %w: %w", ErrKeyFile, err)
		}
		return key, "MBX_RELAY_KEY", nil
	}
	path := filepath.Join(dir, KeyFile)
	sweepPartials(path)
	switch data, err := readSmall(path, true); {
	case err == nil:
		if key, err = wire.ParseKeyFile(data); err != nil {
			return key, "", fmt.Errorf("%s: %w: %w", path, ErrKeyFile, err)
		}
		return key, path, nil
	case !errors.Is(err, fs.ErrNotExist):
		return key, "", err
	case storeExists:
		return key, "", fmt.Errorf("%w: put relay.key back into %s or set MBX_RELAY_KEY", ErrKeyLost, dir)
	}
	if key, err = wire.GenerateKey(); err != nil {
		return key, "", err
	}
	err = writeKey(path, key)
	if errors.Is(err, fs.ErrExist) { // another first start was quicker
		return LoadKey(dir, "", true)
	}
	return key, path + NewKey, err
}

// sweepPartials removes what a crash left of a key that was being written. Those
// of the last minute may be another start's.
func sweepPartials(path string) {
	left, _ := filepath.Glob(path + ".*.partial") // the pattern is well-formed
	for _, p := range left {
		if st, err := os.Lstat(p); err == nil && time.Since(st.ModTime()) > time.Minute {
			_ = os.Remove(p) // it is in nobody's way
		}
	}
}

// readSmall reads a key file, which should be tiny; one of ours it takes from the
// eyes of others where it can.
func readSmall(path string, ours bool) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > 4096 {
		return nil, fmt.Errorf("%s: %w", path, ErrKeyFile)
	}
	if ours && st.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(path, 0o600); err != nil {
			return nil, fmt.Errorf("others may read the relay's key, and its mode cannot be changed: %w; make it 0600", err)
		}
	}
	return os.ReadFile(path)
}

// writeKey puts a key in place whole or not at all, and durably: the store
// that is made next is bound to it.
func writeKey(path string, key wire.PrivateKey) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, KeyFile+".*.partial") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(wire.FormatKeyFile(key))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	// A link fails where a rename would replace: two first starts at once must
	// not end with one's key and the other's store.
	err = os.Link(f.Name(), path)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) { // a file system without links
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncFolder(dir)
}
