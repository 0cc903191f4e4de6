package wire

import (
	"strings"
	"time"
)

// LANHopPayload is what a host signs towards another host on the LAN: method,
// path without its query, time and the hash of the body, a line each.
func LANHopPayload(method, path, ts string, body []byte) []byte {
	path, _, _ = strings.Cut(path, "?")
	return []byte(method + "\n" + path + "\n" + ts + "\n" + HashHex(body))
}

// SignLANHop signs a LAN request at the time now.
func SignLANHop(key PrivateKey, method, path string, body []byte, now time.Time) (ts, sig string) {
	ts = FormatTime(now)
	return ts, key.Sign(LANHopPayload(method, path, ts, body))
}

// VerifyLANHop reports whether key signed the request. The time is CheckLANHopTime's.
func VerifyLANHop(key PublicKey, sig, method, path, ts string, body []byte) bool {
	return len(sig) == 88 && key.Verify(LANHopPayload(method, path, ts, body), sig)
}

// CheckLANHopTime returns ErrHopTime unless ts is a record time within HopSkew of now.
func CheckLANHopTime(ts string, now time.Time) error {
	t, err := ParseTime(ts)
	if err != nil {
		return ErrHopTime
	}
	if d := t.Sub(now); d > HopSkew || d < -HopSkew {
		return ErrHopTime
	}
	return nil
}
