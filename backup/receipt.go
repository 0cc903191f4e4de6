package backup

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// Receipt says what a backup is. It stands beside the file, as FILE.json, and in
// the relay log under "backup".
type Receipt struct {
	V    int       `json:"v"`    // 1
	Type string    `json:"type"` // "relay-backup"
	At   time.Time `json:"at"`   // when the copy was taken, by the relay's clock
	File string    `json:"file"` // absolute when it was made; only its name matters to a list
	// N grows with every backup of a folder and decides its age: clocks lie. It
	// is 0 for a backup to a file of the operator's choosing, which is never pruned.
	N      int64  `json:"n"`
	Bytes  int64  `json:"bytes"`  // of the file
	SHA256 string `json:"sha256"` // of the file, lowercase hex
	// Encrypted: the file is an age file; Plain* are of what it holds.
	Encrypted   bool   `json:"encrypted,omitempty"`
	PlainBytes  int64  `json:"plain_bytes,omitempty"`
	PlainSHA256 string `json:"plain_sha256,omitempty"`

	RelayKey    string        `json:"relay_pubkey"`
	Fingerprint string        `json:"relay_fingerprint"` // of the key that a restore needs
	Epoch       string        `json:"epoch"`
	Schema      int           `json:"schema"`
	Version     string        `json:"version"` // of agentmbx
	Items       int64         `json:"items"`   // queued and held
	ItemBytes   int64         `json:"item_bytes"`
	Enrolments  int64         `json:"enrolments"`                // live
	Contents    string        `json:"contents_sha256,omitempty"` // see Contents
	Took        time.Duration `json:"took_ns"`
	Verified    bool          `json:"verified"`                   // it passed Verify before it was given its name
	Removed     []string      `json:"removed_for_room,omitempty"` // older backups that had to go first
	// Restore is the command that restores it.
	Restore string `json:"restore_command"`

	key wire.PublicKey
}

const (
	receiptType   = "relay-backup"
	receiptSuffix = ".json"
	maxReceipt    = 64 << 10
	maxN          = 999_999_999_999_999 // as far as ownName goes; a receipt that says more is none
)

// Key is the relay key that the backup belongs to; zero in a receipt that was
// not read from a file.
func (r Receipt) Key() wire.PublicKey { return r.key }

// ReadReceipt reads the receipt that stands beside the backup at path. An error
// wraps fs.ErrNotExist when there is none.
func ReadReceipt(path string) (Receipt, error) {
	name := path + receiptSuffix
	b, err := readSmall(name, maxReceipt)
	if err != nil {
		return Receipt{}, err
	}
	r, err := parseReceipt(b)
	if err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	return r, nil
}

// parseReceipt reads a receipt that anybody may have written.
func parseReceipt(b []byte) (r Receipt, err error) {
	bad := func(what string) (Receipt, error) { return Receipt{}, errors.New("not a backup's receipt: " + what) }
	if len(b) > maxReceipt {
		return bad("it is too large")
	}
	if wire.CheckJSON(b) != nil || json.Unmarshal(b, &r) != nil {
		return bad("it is not readable")
	}
	if r.Type != receiptType || r.V != 1 {
		return bad("it is of another kind, or of a newer agentmbx")
	}
	if r.key, err = wire.ParsePublicKey(r.RelayKey); err != nil || r.key.IsZero() || r.Fingerprint != r.key.Fingerprint() {
		return bad("it names no relay key")
	}
	switch name := filepath.Base(r.File); {
	case r.N < 0 || r.N > maxN || r.Bytes < 1 || r.PlainBytes < 0 || r.Items < 0 || r.ItemBytes < 0 || r.Enrolments < 0 || r.Schema < 1:
		return bad("a number is out of range")
	case name == "." || name == "/" || strings.ContainsRune(r.File, 0):
		return bad("it names no file")
	case !isSHA256(r.SHA256) || r.PlainSHA256 != "" && !isSHA256(r.PlainSHA256) || r.Contents != "" && !isSHA256(r.Contents):
		return bad("a hash is none")
	case r.Encrypted != (r.PlainSHA256 != ""):
		return bad("it does not say what it encrypts")
	}
	return r, nil
}

func isSHA256(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32 && s == strings.ToLower(s)
}

// encode is the receipt as its file holds it.
func (r Receipt) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(r)
	return b.Bytes(), err
}

// readBack makes sure that what is going to be written as the receipt of the
// backup at path will be taken for that when it is read.
func (r Receipt) readBack(b []byte, path string) error {
	was, err := parseReceipt(b)
	switch base := filepath.Base(path); {
	case err != nil:
		return fmt.Errorf("%w: the receipt of %s could not be read again: %w", ErrRefused, path, err)
	case filepath.Base(was.File) != base || was.N != r.N || was.N != numberIn(base) && was.N > 0 || was.RelayKey != r.RelayKey || was.SHA256 != r.SHA256 || was.Bytes != r.Bytes:
		return fmt.Errorf("%w: the receipt of %s would be that of another file", ErrRefused, path)
	}
	return nil
}

// RestoreCommand is what an operator types to restore the backup at path.
func RestoreCommand(path, storeDir string, encrypted bool) string {
	c := "agentmbx relay restore " + quoted(path) + " --store-dir " + quoted(storeDir)
	if encrypted {
		c += " --identity IDENTITY_FILE"
	}
	return c
}

// quoted is a word as a shell takes it.
func quoted(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+=:,@%") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// openRegular opens a regular file for reading. A link is not followed, and
// nothing that is opened waits for its other end.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return nil, nil, fmt.Errorf("%s is a symbolic link", path)
		}
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, st, nil
}

// readSmall reads a file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is over %d bytes", path, limit)
	}
	return b, err
}
