package wire_test

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// wire3K is a sealed envelope of about 3 KiB.
func wire3K(b *testing.B) []byte {
	b.Helper()
	home, work := wiretest.NewHost("home"), wiretest.NewHost("work")
	_, w := work.Envelope(home, "Build ok", strings.Repeat("The build is green. ", 42))
	if len(w) < 2900 || len(w) > 3300 {
		b.Fatalf("got a wire of %d bytes", len(w))
	}
	return w
}

func BenchmarkCheckEnvelope(b *testing.B) {
	w := wire3K(b)
	b.SetBytes(int64(len(w)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wire.CheckEnvelope(w); err != nil {
			b.Fatal(err)
		}
	}
}

// The two ways that CheckEnvelope did not take, without a single rule checked:
// what reading alone costs there.
func BenchmarkEnvelopeByDecoder(b *testing.B) {
	w := wire3K(b)
	b.SetBytes(int64(len(w)))
	b.ReportAllocs()
	for b.Loop() {
		d := jsontext.NewDecoder(bytes.NewBuffer(w))
		for {
			if _, err := d.ReadToken(); err != nil {
				break
			}
		}
	}
}

func BenchmarkEnvelopeByUnmarshal(b *testing.B) {
	w := wire3K(b)
	b.SetBytes(int64(len(w)))
	b.ReportAllocs()
	for b.Loop() {
		var env wire.Envelope
		if err := json.Unmarshal(w, &env); err != nil {
			b.Fatal(err)
		}
	}
}

func pushBody(b *testing.B, n int) []byte {
	b.Helper()
	w := base64.StdEncoding.EncodeToString(wire3K(b))
	key := wiretest.NewHost("x").Pub().String()
	var s strings.Builder
	s.WriteString(`{"items":[`)
	for i := range n {
		if i > 0 {
			s.WriteByte(',')
		}
		s.WriteString(`{"kind":"envelope","item_id":"id-` + strconv.Itoa(i) + `","targets":[{"host_pubkey":"` + key + `","wire_b64":"` + w + `"}]}`)
	}
	s.WriteString(`]}`)
	return []byte(s.String())
}

func BenchmarkParsePush100(b *testing.B) {
	body := pushBody(b, 100)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if items, err := wire.ParsePush(body, 200, 64); err != nil || len(items) != 100 || !items[99].Targets[0].WireOK {
			b.Fatal(err)
		}
	}
}

func BenchmarkPushByUnmarshal100(b *testing.B) {
	body := pushBody(b, 100)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		var v struct {
			Items []struct {
				Kind    string `json:"kind"`
				ItemID  string `json:"item_id"`
				Targets []struct {
					HostPubkey string `json:"host_pubkey"`
					Wire       []byte `json:"wire_b64"`
				} `json:"targets"`
			} `json:"items"`
		}
		if err := json.Unmarshal(body, &v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHopPayload300K(b *testing.B) {
	body := pushBody(b, 75)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		wire.HopPayload("POST", "/v2/relay/items", "1790000000000", body)
	}
}

func BenchmarkCheckReceipt(b *testing.B) {
	_, w := wiretest.NewHost("home").Receipt("01JB2Q3R4S5T6V7W8X9YZABCDE", "read", 7)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wire.CheckReceipt(w); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSignAccept(b *testing.B) {
	relay, home := wiretest.NewHost("relay"), wiretest.NewHost("home")
	targets := []wire.AcceptTarget{{HostPubkey: home.Pub(), Seq: 1790000000001, WireHash: wire.HashHex(nil)}}
	b.ReportAllocs()
	for b.Loop() {
		wire.SignAccept(relay.Key, wire.NewAccept(relay.Pub(), "6e1f0c1e", home.Pub(), "id", targets, time.UnixMilli(0)))
	}
}

func BenchmarkCanonical(b *testing.B) {
	w := wire3K(b)
	b.SetBytes(int64(len(w)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wire.Canonical(w); err != nil {
			b.Fatal(err)
		}
	}
}
