package sqlite

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
)

// A copy carries a checksum of itself, so that a file that lies somewhere alone,
// without its receipt, still tells when a byte of it changed: SQLite's own check
// sees neither what stands in free space nor a changed letter in a text. Its
// place is the four bytes of the header that SQLite leaves to applications, its
// user version. A store that is opened for writing loses it.
const sealAt = 60

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Seal finds out, of a file that is written to it from the first byte to the
// last, whether the file still is what Copy made.
type Seal struct {
	sum uint32
	at  int64 // bytes seen
	has [4]byte
}

// Write takes the next bytes of the file; it never fails.
func (s *Seal) Write(p []byte) (int, error) {
	n := len(p)
	for i := s.at; i < sealAt+4 && len(p) > 0; i++ {
		b := p[0]
		if i >= sealAt {
			s.has[i-sealAt], b = b, 0
		}
		s.sum = crc32.Update(s.sum, castagnoli, []byte{b})
		p = p[1:]
	}
	s.sum = crc32.Update(s.sum, castagnoli, p)
	s.at += int64(n)
	return n, nil
}

// Whole reports whether the file carries a checksum, and whether it is right.
func (s *Seal) Whole() (sealed, whole bool) {
	has := binary.BigEndian.Uint32(s.has[:])
	return has != 0, has == s.want()
}

// want is never 0, which is what a file without a checksum has.
func (s *Seal) want() uint32 { return max(s.sum, 1) }

// seal puts the checksum into a finished copy.
func seal(ctx context.Context, f *os.File) error {
	if _, err := f.WriteAt(make([]byte, 4), sealAt); err != nil {
		return err
	}
	var s Seal
	buf := make([]byte, 1<<20)
	for at := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.ReadAt(buf, at)
		_, _ = s.Write(buf[:n])
		at += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err := f.WriteAt(binary.BigEndian.AppendUint32(nil, s.want()), sealAt)
	return err
}

// unseal takes the checksum out of a store that is about to change.
func unseal(c *conn) error {
	v, err := reader{c}.pragma("user_version")
	if err != nil || v == 0 {
		return err
	}
	_, err = c.exec("PRAGMA user_version = 0")
	return err
}
