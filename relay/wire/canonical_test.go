package wire_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestCanonicalRefuses(t *testing.T) {
	for _, doc := range []string{
		"", " ", "{", `{"a":1,"a":1}`, `{"a":1,"\u0061":2}`, `"\ud800"`, `"\udc00"`, `"\ud800\u0041"`, "\"\xff\"", "{}{}", "[1 2]",
		`{"a" 1}`, `{a:1}`, `'a'`, "01", "+1", ".5", "1.", "1e", "0x1", "NaN", "Infinity", "1e309", "-1e309", "True", "nul", "\"\t\"", `"\x"`,
		`"\u00g0"`, `[1,]`, `{"a":1,}`, strings.Repeat("[", 65) + strings.Repeat("]", 65), strings.Repeat("9", 400), "\ufeff{}",
	} {
		if got, err := wire.Canonical([]byte(doc)); !errors.Is(err, wire.ErrNotJSON) {
			t.Errorf("%q: got %s, %v; want ErrNotJSON", doc, got, err)
		}
	}
	for doc, want := range map[string]string{
		`"\ud83d\ude00"`:   "\"\U0001F600\"",
		`"\u2028\u007f"`:   "\"\u2028\u007f\"",
		`-0`:               `0`,
		`-0.0e5`:           `0`,
		`1e-400`:           `0`,
		`9007199254740993`: `9007199254740992`,
		`"\u001F\u000B"`:   `"\u001f\u000b"`,
		` {"b":1,"":2} `:   `{"":2,"b":1}`,
		strings.Repeat("[", 64) + strings.Repeat("]", 64): strings.Repeat("[", 64) + strings.Repeat("]", 64),
	} {
		if got, err := wire.Canonical([]byte(doc)); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", doc, got, err, want)
		}
	}
	many := map[string]int{}
	for i := range 1000 {
		many[strings.Repeat("k", i+1)] = i
	}
	b, err := json.Marshal(many)
	if err != nil || wire.CheckJSON(b) != nil {
		t.Fatal("an object of 1000 members is refused")
	}
	for i := range wire.MaxMembers {
		many[fmt.Sprint(i)] = i
	}
	if over, err := json.Marshal(many); err != nil || !errors.Is(wire.CheckJSON(over), wire.ErrNotJSON) {
		t.Error("an object over MaxMembers is accepted")
	}
	dup := append(b[:len(b)-1:len(b)-1], []byte(`,"kkk":1}`)...)
	if err := wire.CheckJSON(dup); !errors.Is(err, wire.ErrNotJSON) {
		t.Errorf("got %v for a duplicate among 1000 members", err)
	}
}

func TestDecode(t *testing.T) {
	var v struct {
		Name string `json:"name"`
	}
	if err := wire.Decode([]byte(`{"Name":"x","other":1}`), &v); err != nil || v.Name != "" {
		t.Errorf("got %+v, %v; want names matched by case", v, err)
	}
	if err := wire.Decode([]byte(`{"name":7,"secret":"s3cr3t"}`), &v); err == nil || errors.Is(err, wire.ErrNotJSON) || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("got %v", err)
	}
	if err := wire.Decode([]byte(`{"name":"a","name":"b"}`), &v); !errors.Is(err, wire.ErrNotJSON) {
		t.Errorf("got %v; want ErrNotJSON", err)
	}
	b, err := wire.Marshal(struct {
		B string  `json:"b,omitempty"`
		C *string `json:"c"`
		A string  `json:"a"`
	}{A: "<&>\u2028"})
	if err != nil || string(b) != "{\"a\":\"<&>\u2028\",\"c\":null}" {
		t.Errorf("got %s, %v", b, err)
	}
}

func TestHopTime(t *testing.T) {
	now := time.UnixMilli(1790000000000)
	for ts, ok := range map[string]bool{
		"1790000000000": true, "1790000300000": true, "1789999700000": true, "1790000300001": false, "1789999699999": false,
		"NaN": false, "1e3": false, "1.79e12": false, "+1790000000000": false, "-1790000000000": false, "01790000000000": false,
		"1790000000000.0": false, "": false, " 1790000000000": false, "0": false, "1790000000": false, "99999999999999999999": false,
		"0x1a0c5a5a000": false, "١٧٩٠٠٠٠٠٠٠٠٠٠": false,
	} {
		if err := wire.CheckHopTime(ts, now); (err == nil) != ok {
			t.Errorf("%q: got %v; want accepted %v", ts, err, ok)
		}
	}
	for ts, ok := range map[string]bool{
		"2026-10-02T12:34:57.000Z": true, "2026-10-02T12:39:57.000Z": true, "2026-10-02T12:39:57.001Z": false,
		"2026-10-02T12:29:56.999Z": false, "2026-10-02": false, "1790000000000": false, "": false,
	} {
		if err := wire.CheckLANHopTime(ts, day); (err == nil) != ok {
			t.Errorf("%q: got %v; want accepted %v", ts, err, ok)
		}
	}
}

// The body counts as a JavaScript text decoder reads it: one U+FFFD for each
// maximal subpart of invalid UTF-8.
func TestHopBodyText(t *testing.T) {
	const x = "\uFFFD"
	for body, want := range map[string]string{
		"\xe2\x82": x, "\xe2\x82A": x + "A", "\xf0\x9f\x98": x, "\xc0\x80": x + x, "\xed\xa0\x80": x + x + x,
		"\xf4\x90\x80\x80": x + x + x + x, "\xff\xfe": x + x, "\xe0\x80\x80": x + x + x, "\xf0\x80\x80": x + x + x,
		"\xc3": x, "\xe2\xe2\x82\xac": x + "€", "a\x00\x1f\"\\\b": `a\u0000\u001f\"\\\b`, "\uFFFD": x,
	} {
		got := string(wire.HopPayload("M", "P", "T", []byte(body)))
		if want := `{"body":"M:P:T:` + want + `","method":"M","path":"P","ts":"T"}`; got != want {
			t.Errorf("%q: got %s; want %s", body, got, want)
		}
	}
}

func TestTimes(t *testing.T) {
	for s, ok := range map[string]bool{
		"2026-10-02T12:34:56.789Z": true, "2026-10-02T12:34:56Z": true, "2026-10-02T12:34:56.123456789Z": true,
		"2026-10-02T12:34:56.1234567891Z": false, "2026-10-02T12:34:56.Z": false, "2026-10-02T12:34:56,7Z": false,
		"2026-10-02T12:34:56+00:00": false, "2026-10-02t12:34:56Z": false, "2026-10-02T12:34:56z": false, "2026-10-02 12:34:56Z": false,
		"2026-02-30T00:00:00Z": false, "2026-10-02T24:00:00Z": false, "2026-10-02": false, "": false,
	} {
		if _, err := wire.ParseTime(s); (err == nil) != ok {
			t.Errorf("%q: got %v; want accepted %v", s, err, ok)
		}
	}
	zone := time.FixedZone("x", 7200)
	if got := wire.FormatTime(time.Date(2026, 10, 2, 14, 34, 56, 789999999, zone)); got != "2026-10-02T12:34:56.789Z" {
		t.Errorf("got %s", got)
	}
}
