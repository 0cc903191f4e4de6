package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store/sqlite"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// records checks the signature of every record that hosts signed: a restore hands
// them out again, and to carry on it compares what they say.
func (v *verification) records(ctx context.Context, f *sqlite.File) error {
	n, bad, first := 0, 0, ""
	err := f.Signed(ctx, func(s sqlite.Signed) error {
		n++
		if err := checkRecord(s); err != nil {
			if bad++; bad == 1 {
				first = fmt.Sprintf("%s of %s: %v", s.What, s.Host.Fingerprint(), err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if bad > 0 {
		_ = v.fail(CheckRecords, "%d of %d signed records do not verify, the first is the %s", bad, n, first)
		return nil
	}
	v.ok(CheckRecords, "%d signed records verify", n)
	return nil
}

// checkRecord checks one record as of its own time: it may have expired since.
func checkRecord(s sqlite.Signed) (err error) {
	switch s.What {
	case sqlite.SignedSenders: // which moves with a rotation, and stays signed by the key before it
		for _, k := range s.Signers {
			if _, err = wire.ParseSenderList(s.Record, s.Sig, k, s.At); err == nil {
				return nil
			}
		}
		return err
	case sqlite.SignedEncKey:
		enc, err := wire.ParseEncPublicKey(string(s.Record))
		if err != nil {
			return err
		}
		if !s.Host.Verify(wire.EncKeyV1Payload(s.Name, enc), s.Sig) {
			return wire.ErrBadSignature
		}
		return nil
	case sqlite.SignedEncAd:
		var said struct {
			Host string `json:"host"`
			IAT  string `json:"iat"`
		}
		if err := json.Unmarshal(s.Record, &said); err != nil {
			return wire.ErrMalformed
		}
		var iat time.Time
		if iat, err = wire.ParseTime(said.IAT); err == nil {
			_, err = wire.ParseEncAd(s.Record, s.Sig, said.Host, s.Host, iat)
		}
		return err
	case sqlite.SignedRotation:
		r, err := wire.ParseRotation(s.Record)
		if err == nil && (r.OldPub != s.Host || r.NewPub != s.New) {
			err = errors.New("it is of other keys")
		}
		return err
	}
	return fmt.Errorf("a record of a kind that nobody checks: %s", s.What)
}
