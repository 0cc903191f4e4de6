package wire

import (
	"errors"
	"strconv"
	"time"
)

// Headers of a signed hop.
const (
	HeaderHost = "x-mbx-host"
	HeaderKey  = "x-mbx-key"
	HeaderTS   = "x-mbx-ts"
	HeaderSig  = "x-mbx-sig"
)

// HopSkew is how far a hop's time may be from the relay's clock, either way.
const HopSkew = 300 * time.Second

// ErrHopTime is returned for a hop time that is malformed or too far away.
var ErrHopTime = errors.New("hop time refused")

// HopPayload is what a signed hop signs: canonical JSON of method, path, ts and
// the four of them joined by colons. The body is taken as text; what is not
// UTF-8 counts as U+FFFD.
func HopPayload(method, path, ts string, body []byte) []byte {
	b := make([]byte, 0, HopPayloadSize(method, path, ts, body))
	b = append(b, `{"body":"`...)
	b = appendEscaped(b, []byte(method))
	b = append(b, ':')
	b = appendEscaped(b, []byte(path))
	b = append(b, ':')
	b = appendEscaped(b, []byte(ts))
	b = append(b, ':')
	b = appendEscaped(b, body)
	b = append(b, `","method":`...)
	b = AppendString(b, method)
	b = append(b, `,"path":`...)
	b = AppendString(b, path)
	b = append(b, `,"ts":`...)
	b = AppendString(b, ts)
	return append(b, '}')
}

// HopPayloadSize is the length of HopPayload: up to six times that of a body of
// control characters, so that whoever makes many knows what they cost.
func HopPayloadSize(method, path, ts string, body []byte) int {
	return escapedLen(body) + 2*(escapedLen([]byte(method))+escapedLen([]byte(path))+escapedLen([]byte(ts))) +
		len(`{"body":":::","method":"","path":"","ts":""}`)
}

// SignHop signs a request to a relay at the time now. path carries the query
// string under /v2/ and not under /v1/.
func SignHop(key PrivateKey, method, path string, body []byte, now time.Time) (ts, sig string) {
	ts = strconv.FormatInt(now.UnixMilli(), 10)
	return ts, key.Sign(HopPayload(method, path, ts, body))
}

// VerifyHop reports whether key signed the request. The time is CheckHopTime's.
func VerifyHop(key PublicKey, sig, method, path, ts string, body []byte) bool {
	return len(sig) == 88 && key.Verify(HopPayload(method, path, ts, body), sig)
}

// CheckHopTime returns ErrHopTime unless ts is a plain decimal count of Unix
// milliseconds within HopSkew of now.
func CheckHopTime(ts string, now time.Time) error {
	if len(ts) > 16 || !allDigits(ts) || ts[0] == '0' && len(ts) > 1 {
		return ErrHopTime
	}
	ms, err := strconv.ParseInt(ts, 10, 64)
	if err != nil {
		return ErrHopTime
	}
	skew := ms - now.UnixMilli()
	if skew > HopSkew.Milliseconds() || skew < -HopSkew.Milliseconds() {
		return ErrHopTime
	}
	return nil
}
