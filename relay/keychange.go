package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// keyNext is where the next key waits until the store is bound to it.
const keyNext = KeyFile + ".next"

// ErrKeyThere: another key stands where one would be written.
var ErrKeyThere = errors.New("another relay key is there")

// ReadKey reads a key file of the operator's, which stays as it is.
func ReadKey(path string) (key wire.PrivateKey, err error) {
	data, err := readSmall(path, false)
	if err != nil {
		return key, err
	}
	if key, err = wire.ParseKeyFile(data); err != nil {
		return key, fmt.Errorf("%s: %w: %w", path, ErrKeyFile, err)
	}
	return key, nil
}

// PutKey makes key the one in dir. ErrKeyThere when another one stands there.
func PutKey(dir string, key wire.PrivateKey) error {
	path := filepath.Join(dir, KeyFile)
	err := writeKey(path, key)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	there, err := ReadKey(path)
	if err != nil {
		return err
	}
	if there.Public() != key.Public() {
		return fmt.Errorf("%s: %w: it is %s, not %s; move it away", path, ErrKeyThere, there.Public().Fingerprint(), key.Public().Fingerprint())
	}
	return nil
}

// A change of the relay's key touches two things that cannot change at once, the
// key file and the store. So the next key is stored first, as relay.key.next; then
// the store is bound to it; then FinishRekey puts it in place. Whatever a crash
// leaves, the store says which key is the right one, and that key is there.

// StageKey stores the key that the store in dir will be bound to next. The
// caller holds the store's lock.
func StageKey(dir string, key wire.PrivateKey) error {
	path := filepath.Join(dir, keyNext)
	sweepPartials(filepath.Join(dir, KeyFile))
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a change that never was
		return err
	}
	return writeKey(path, key)
}

// KeyStaged reports whether a key waits in dir: then a change of the key was cut
// off, and FinishRekey has to be called before the key is loaded.
func KeyStaged(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, keyNext))
	return err == nil
}

// FinishRekey brings dir to the key that its store is bound to. A staged key that
// is this one takes its place, and the file it replaces is kept, as
// relay.key.FINGERPRINT.old. Any other staged key is set aside, as
// relay.key.FINGERPRINT.unused: a store that this one replaced by hand may be bound
// to it. kept is where the former or the unused one is, "" for none. The caller
// holds the store's lock.
func FinishRekey(dir string, bound wire.PublicKey) (finished bool, kept string, err error) {
	next, path := filepath.Join(dir, keyNext), filepath.Join(dir, KeyFile)
	data, err := readSmall(next, true)
	if errors.Is(err, fs.ErrNotExist) {
		return false, "", nil
	}
	if err != nil {
		return false, "", err
	}
	staged, err := wire.ParseKeyFile(data)
	if err != nil {
		return false, "", fmt.Errorf("%s: %w; move it away", next, ErrKeyFile)
	}
	if staged.Public() != bound {
		if kept, err = keepAs(next, path+"."+staged.Public().Fingerprint(), "unused", data); err != nil {
			return false, "", err
		}
		if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, kept, err
		}
		return false, kept, syncFolder(dir)
	}
	if kept, err = KeepOldKey(dir, bound); err != nil {
		return false, "", err
	}
	if err := os.Rename(next, path); err != nil {
		return false, kept, err
	}
	return true, kept, syncFolder(dir)
}

// KeepOldKey keeps the file relay.key under a name of its own, unless it is the
// key of now. It never overwrites: the key it holds may be the only copy. kept is
// "" when there was nothing to keep. Where links exist, relay.key stays until a
// rename replaces it.
func KeepOldKey(dir string, now wire.PublicKey) (kept string, err error) {
	path := filepath.Join(dir, KeyFile)
	data, err := readSmall(path, true)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	name := "unreadable"
	if err == nil {
		if old, err := wire.ParseKeyFile(data); err == nil {
			if old.Public() == now {
				return "", nil
			}
			name = old.Public().Fingerprint()
		}
	} else if !errors.Is(err, ErrKeyFile) {
		return "", err
	}
	return keepAs(path, path+"."+name, "old", data)
}

// keepAs gives the file at path, which holds data, a name that no other has, or
// one whose file holds the same. Where links exist, path stays as well.
func keepAs(path, name, suffix string, data []byte) (kept string, err error) {
	dir := filepath.Dir(path)
	for n := 1; ; n++ {
		kept = fmt.Sprintf("%s.%s", name, suffix)
		if n > 1 {
			kept = fmt.Sprintf("%s.%d.%s", name, n, suffix)
		}
		err := os.Link(path, kept)
		if errors.Is(err, fs.ErrExist) {
			if there, err := readSmall(kept, true); err == nil && bytes.Equal(there, data) {
				return kept, syncFolder(dir)
			}
			continue
		}
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOTSUP) { // a file system without links
			if _, err := os.Lstat(kept); err == nil {
				continue
			}
			err = os.Rename(path, kept)
		}
		if err != nil {
			return "", err
		}
		return kept, syncFolder(dir)
	}
}

// DropKey removes relay.key, which KeepOldKey has kept, when the next key is not
// in a file.
func DropKey(dir string) error {
	if err := os.Remove(filepath.Join(dir, KeyFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncFolder(dir)
}

// syncFolder makes what was renamed in a folder durable.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
