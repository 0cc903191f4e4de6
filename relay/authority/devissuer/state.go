package devissuer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// The files of an issuer's folder.
const (
	stateFile = "issuer.json"
	lockFile  = "issuer.lock"
	doorFile  = "admin.json" // where the running issuer's own commands reach it
)

const (
	stateVersion = 1
	maxStateFile = 32 << 20
)

// state is what an issuer must not forget.
type state struct {
	V        int       `json:"v"`
	Base     string    `json:"base"`
	Keys     []keyRow  `json:"keys"` // the first one signs
	Hosts    []Host    `json:"hosts"`
	Sessions []session `json:"sessions"`
	Denials  []denial  `json:"denials"`
}

// Host is a host's credential: a cloud key that a host key certified for an
// account.
type Host struct {
	HostID     string    `json:"host_id"` // one for a host key in an account
	ClientID   string    `json:"client_id"`
	Name       string    `json:"host_name"`
	HostPub    string    `json:"host_pub"`
	HostFP     string    `json:"host_fp"`
	CloudPub   string    `json:"cloud_pub"`
	Account    string    `json:"account"`
	Org        string    `json:"org"`
	EnrolledAt time.Time `json:"enrolled_at"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
	Reason     string    `json:"reason,omitempty"` // of the revocation
}

func (h Host) revoked() bool { return !h.RevokedAt.IsZero() }

func (s state) clone() state {
	s.Keys = slices.Clone(s.Keys)
	s.Hosts = slices.Clone(s.Hosts)
	s.Sessions = slices.Clone(s.Sessions)
	s.Denials = slices.Clone(s.Denials)
	return s
}

// change makes a change that is stored when it returns nil, and that has not
// happened when it returns an error. Under mu.
func (i *Issuer) change(f func(*state) error) error {
	next := i.state.clone()
	if err := f(&next); err != nil {
		return err
	}
	now := i.o.Now()
	next.Sessions = slices.DeleteFunc(next.Sessions, func(s session) bool { return !s.Ends.After(now) })
	next.Denials = slices.DeleteFunc(next.Denials, func(d denial) bool { return d.Until <= now.Unix() })
	doc, err := json.MarshalIndent(next, "", " ")
	if err != nil {
		return err
	}
	if err := writeWhole(filepath.Join(i.o.Dir, stateFile), append(doc, '\n')); err != nil {
		return fmt.Errorf("store the issuer's state: %w", err)
	}
	i.state = next
	return nil
}

// open reads the state, or makes the first one.
func (i *Issuer) open() error {
	path := filepath.Join(i.o.Dir, stateFile)
	doc, err := readPrivate(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return i.change(func(s *state) error {
			s.V, s.Base = stateVersion, i.o.Base
			return i.addKey(s)
		})
	case err != nil:
		return err
	}
	// Other keys than those of before would make every relay refuse every host, so
	// a damaged file never gets replaced.
	if err := wire.Decode(doc, &i.state); err != nil || i.state.V != stateVersion || len(i.state.Keys) == 0 {
		return fmt.Errorf("%s is not an issuer's state of this version: put back a copy of it", path)
	}
	if i.keys, err = readKeys(i.state.Keys); err != nil {
		return fmt.Errorf("%s: %w: put back a copy of it", path, err)
	}
	if before := i.state.Base; before != i.o.Base {
		i.o.Log.Warn("the issuer's URL is another one than before: relays and hosts that know the old one must be told", "before", before, "now", i.o.Base)
		return i.change(func(s *state) error { s.Base = i.o.Base; return nil })
	}
	return nil
}

// takeFolder makes the folder and takes its lock, which the operating system
// holds for this process.
func takeFolder(dir string) (*flock.Flock, error) {
	if dir == "" {
		return nil, errors.New("an issuer needs a folder")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := flock.New(filepath.Join(dir, lockFile), flock.SetPermissions(0o600))
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond) // one that is about to end
	defer cancel()
	ok, err := l.TryLockContext(ctx, 20*time.Millisecond)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("lock the issuer's folder: %w", err)
	}
	if !ok {
		return nil, ErrInUse
	}
	return l, nil
}

// readPrivate reads a file that nobody else may read.
func readPrivate(path string) ([]byte, error) {
	fi, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case fi.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s can be read by others (mode %04o): run chmod 600 on it", path, fi.Mode().Perm())
	case fi.Size() > maxStateFile:
		return nil, fmt.Errorf("%s is over %d bytes", path, maxStateFile)
	}
	return os.ReadFile(path)
}

// writeWhole puts a file in place in one step: a crash leaves the old one or the
// new one.
func writeWhole(path string, doc []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after the rename there is nothing under it
	_, err = f.Write(doc)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
