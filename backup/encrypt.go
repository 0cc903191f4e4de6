package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// ageIntro is how every age file begins. A file is known by it, not by its name.
const ageIntro = "age-encryption.org/v1\n"

const maxIdentities = 64 << 10 // of a file of identities

// ParseRecipients reads age recipients with commas or white space between them:
// whoever has the identity of one of them can open the backups. None is nil.
func ParseRecipients(s string) ([]age.Recipient, error) {
	var list []age.Recipient
	for i, word := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' }) {
		// The words stay out of the error: one may be a secret key, by mistake.
		if strings.HasPrefix(strings.ToUpper(word), "AGE-SECRET-KEY-") {
			return nil, fmt.Errorf("age recipient %d is a secret key: give the public one, age1…", i+1)
		}
		r, err := age.ParseRecipients(strings.NewReader(word))
		if err != nil {
			return nil, fmt.Errorf("age recipient %d is none: want age1…", i+1)
		}
		list = append(list, r...)
	}
	if len(list) > 1 { // age refuses a mixture that would weaken the stronger ones
		if _, err := age.Encrypt(io.Discard, list...); err != nil {
			return nil, errors.New("these age recipients cannot be used together: post-quantum ones stand alone")
		}
	}
	return list, nil
}

// ReadIdentities reads a file of age identities, one a line.
func ReadIdentities(path string) ([]age.Identity, error) {
	f, err := os.Open(path) // the operator's own, also through a link or a pipe
	if err != nil {
		return nil, fmt.Errorf("read the age identities: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxIdentities+1))
	if err != nil {
		return nil, fmt.Errorf("read the age identities: %w", err)
	}
	if len(b) > maxIdentities {
		return nil, fmt.Errorf("%s is no file of age identities: it is over %d bytes", path, maxIdentities)
	}
	if bytes.HasPrefix(b, []byte(ageIntro)) || bytes.HasPrefix(b, []byte("-----BEGIN AGE")) {
		return nil, fmt.Errorf("%s is encrypted itself: decrypt it with age -d into a private file and give that", path)
	}
	ids, err := age.ParseIdentities(bytes.NewReader(b))
	if err != nil { // whose text is left out: it may quote the file
		return nil, fmt.Errorf("%s is no file of age identities: want lines of AGE-SECRET-KEY-1…, as age-keygen writes them", path)
	}
	return ids, nil
}

// digest is what was seen of a stream.
type digest struct {
	n int64
	h hash.Hash
}

func newDigest() *digest { return &digest{h: sha256.New()} }

func (d *digest) Write(p []byte) (int, error) {
	d.n += int64(len(p))
	return d.h.Write(p)
}

func (d *digest) hex() string { return hex.EncodeToString(d.h.Sum(nil)) }

// stream copies r to w until ctx ends, and tells how far it is.
func stream(ctx context.Context, w io.Writer, r io.Reader, told func(done int64)) (n int64, err error) {
	buf := make([]byte, 256<<10)
	for {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		m, err := r.Read(buf)
		if m > 0 {
			if _, err := w.Write(buf[:m]); err != nil {
				return n, err
			}
			n += int64(m)
			if told != nil {
				told(n)
			}
		}
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// encrypt writes the file plain to path as an age file, durably, and answers what
// of it lies on the disk. The plain bytes must be those that were verified.
func encrypt(ctx context.Context, path, plain, sum string, to []age.Recipient, told func(done, total int64)) (out *digest, err error) {
	in, st, err := openRegular(plain)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	read, written := newDigest(), newDigest()
	w, err := age.Encrypt(io.MultiWriter(f, written), to...)
	if err != nil {
		return nil, err
	}
	total := 2 * st.Size()
	if _, err := stream(ctx, w, io.TeeReader(in, read), func(n int64) { told(n, total) }); err != nil {
		return nil, err
	}
	if err := errors.Join(w.Close(), f.Sync()); err != nil {
		return nil, err
	}
	if read.hex() != sum {
		return nil, fmt.Errorf("%s changed while it was encrypted", plain)
	}
	// Nobody here can open it. What can be known is that all of it was written.
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	back := newDigest()
	if _, err := stream(ctx, back, f, func(n int64) { told(total/2+n, total) }); err != nil {
		return nil, err
	}
	if back.n != written.n || back.hex() != written.hex() {
		return nil, fmt.Errorf("%s was not written whole: %d of %d bytes read back", path, back.n, written.n)
	}
	return back, nil
}

// decryptedPrefix begins the name of the private copy that an encrypted backup of
// this relay is opened into; SweepPartials knows it.
func decryptedPrefix(key wire.PublicKey) string { return ".decrypted-" + shortKey(key) + "-" }

// decrypt opens the age file at path into a private file in dir whose name begins
// with prefix. It stays locked
// while it is open, so that no sweep takes it away; whoever gets it removes and
// closes it. w sees the plain bytes too. An age file is never smaller than what it
// holds, so the room it needs is known.
func decrypt(ctx context.Context, path, dir, prefix string, ids []age.Identity, w io.Writer, told func(done, total int64)) (plain *os.File, err error) {
	in, st, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if dir == "" {
		dir = os.TempDir()
	}
	r, err := age.Decrypt(in, ids...)
	if err != nil {
		return nil, &decryptError{err}
	}
	if free, _, err := statfs(dir); err == nil && free < st.Size()+leftFree {
		return nil, noRoom(dir, st.Size()+leftFree, free, "to decrypt the backup")
	}
	f, err := os.CreateTemp(dir, prefix+"*.partial") // 0600, and new
	if err != nil {
		return nil, fmt.Errorf("decrypt: %w", err)
	}
	_ = lockFile(f) // nobody else has it; where files cannot be locked, nobody sweeps
	src := &ageReader{r: r}
	_, err = stream(ctx, io.MultiWriter(f, w), src, func(n int64) { told(n, st.Size()) })
	if src.err != nil {
		err = &decryptError{src.err}
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()), f.Close())
	}
	return f, nil
}

// lockFile takes a file for as long as it is open, unless somebody has it.
func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// leftFree is what a decrypted copy leaves free.
const leftFree = 16 << 20

// decryptError says that an age file, or the identity for it, is at fault.
type decryptError struct{ err error }

func (e *decryptError) Unwrap() error { return e.err }

// others reports whether the file is for other identities, as far as anybody
// without them can tell.
func (e *decryptError) others() bool {
	var none *age.NoIdentityMatchError
	return errors.As(e.err, &none)
}

func (e *decryptError) Error() string {
	switch {
	case e.others():
		return "none of the identities given opens it: it was encrypted to others"
	case errors.Is(e.err, io.ErrUnexpectedEOF) || errors.Is(e.err, io.EOF):
		return "the age file is cut off"
	}
	return "the age file is damaged: " + e.err.Error()
}

// ageReader tells the errors of decryption from those of writing.
type ageReader struct {
	r   io.Reader
	err error
}

func (a *ageReader) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if err != nil && err != io.EOF {
		a.err = err
	}
	return n, err
}
