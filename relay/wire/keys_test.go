package wire_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

func TestPublicKeyHasOneSpelling(t *testing.T) {
	good := wiretest.NewHost("x").Pub().String()
	raw, _ := base64.StdEncoding.DecodeString(good)
	bad := []string{
		"", good[:43], good[:42] + "==", good + "=", " " + good, good + "\n", good[:20] + "\n" + good[20:],
		good[:20] + "\n" + good[21:], good[:42] + "\n=", base64.RawStdEncoding.EncodeToString(raw),
		strings.Repeat("A", 42) + "B=", strings.Repeat("-", 43) + "=", base64.StdEncoding.EncodeToString(raw[:31]),
		base64.StdEncoding.EncodeToString(append(raw, 0)), strings.Repeat("A", 20000),
	}
	for _, s := range bad {
		if _, err := wire.ParsePublicKey(s); !errors.Is(err, wire.ErrBadKey) {
			t.Errorf("%q: got %v; want ErrBadKey", s, err)
		}
		if _, err := wire.ParsePrivateKey(s); !errors.Is(err, wire.ErrBadKey) {
			t.Errorf("%q: got %v; want ErrBadKey", s, err)
		}
		if _, err := wire.ParseEncPublicKey(s); !errors.Is(err, wire.ErrBadKey) {
			t.Errorf("%q: got %v; want ErrBadKey", s, err)
		}
		if _, err := wire.ParseEncPrivateKey(s); !errors.Is(err, wire.ErrBadKey) {
			t.Errorf("%q: got %v; want ErrBadKey", s, err)
		}
	}
	var k wire.PublicKey
	if err := json.Unmarshal([]byte(`"`+good+`"`), &k); err != nil || k.String() != good {
		t.Errorf("got %s, %v", k, err)
	}
	if err := json.Unmarshal([]byte(`"x"`), &k); err == nil || k.String() != good {
		t.Errorf("got %s, %v; want an error and the key as it was", k, err)
	}
}

func TestVerifyIsStrict(t *testing.T) {
	k := wiretest.NewHost("x").Key
	msg := []byte("text")
	sig := k.Sign(msg)
	if !k.Public().Verify(msg, sig) {
		t.Fatal("the signature does not verify")
	}
	loose := sig[:85] + string(sig[85]+1) + "=="
	for _, s := range []string{"", sig[:86], sig + "\n", sig[:40] + "\n" + sig[40:], strings.TrimRight(sig, "="), loose, strings.Repeat("A", 88)} {
		if k.Public().Verify(msg, s) {
			t.Errorf("verified with %q", s)
		}
	}
	if k.Public().Verify([]byte("Text"), sig) || (wire.PublicKey{}).Verify(msg, sig) {
		t.Error("verified another text or with another key")
	}
}

// No way of printing, logging or encoding a private key shows it.
func TestPrivateKeysStayHidden(t *testing.T) {
	h := wiretest.NewHost("x")
	type nested struct {
		Open   wire.PrivateKey
		hidden wire.PrivateKey
		Enc    wire.EncPrivateKey
		enc    *wire.EncPrivateKey
		list   []wire.PrivateKey
	}
	values := []any{h.Key, &h.Key, h.Enc, &h.Enc, *h, h, nested{h.Key, h.Key, h.Enc, &h.Enc, []wire.PrivateKey{h.Key}}}
	seeds := []string{h.Key.Seed(), h.Enc.Seed()}
	var forms []string
	for _, seed := range seeds {
		raw, err := base64.StdEncoding.DecodeString(seed)
		if err != nil {
			t.Fatal(err)
		}
		forms = append(forms, seed, string(raw), fmt.Sprintf("%x", raw), fmt.Sprintf("%X", raw), strings.Trim(fmt.Sprintf("%d", raw), "[]"),
			strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", raw), "[]byte{"), "}"))
	}
	for _, v := range values {
		var out strings.Builder
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%X", "%q", "%d", "%b", "%T"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		if b, err := json.Marshal(v); err == nil {
			out.Write(b)
		}
		if b, err := jsonv2.Marshal(v); err == nil {
			out.Write(b)
		}
		for _, form := range forms {
			if strings.Contains(out.String(), form) {
				t.Errorf("%T shows a key: %s", v, out.String())
			}
		}
	}
}

func TestKeyFile(t *testing.T) {
	a, b := wiretest.NewHost("a").Key, wiretest.NewHost("b").Key
	good := []string{a.Seed(), "\n " + a.Seed() + "\r\n", string(wire.FormatKeyFile(a)),
		`{ "privateKey": "` + a.Seed() + `", "publicKey":"` + a.Public().String() + `" }`}
	for _, s := range good {
		if k, err := wire.ParseKeyFile([]byte(s)); err != nil || k.Public() != a.Public() {
			t.Errorf("got %v", err)
		}
	}
	bad := map[string]string{
		"mismatch":         `{"publicKey":"` + b.Public().String() + `","privateKey":"` + a.Seed() + `"}`,
		"no public key":    `{"privateKey":"` + a.Seed() + `"}`,
		"no private key":   `{"publicKey":"` + a.Public().String() + `"}`,
		"another member":   `{"publicKey":"` + a.Public().String() + `","privateKey":"` + a.Seed() + `","x":1}`,
		"duplicate":        `{"publicKey":"` + a.Public().String() + `","privateKey":"` + a.Seed() + `","privateKey":"` + a.Seed() + `"}`,
		"case":             `{"publickey":"` + a.Public().String() + `","privateKey":"` + a.Seed() + `"}`,
		"number":           `{"publicKey":7,"privateKey":"` + a.Seed() + `"}`,
		"cut":              `{"publicKey":"` + a.Public().String() + `","privateKey":"` + a.Seed(),
		"trailing":         string(wire.FormatKeyFile(a)) + "x",
		"array":            `["` + a.Seed() + `"]`,
		"JSON string":      `"` + a.Seed() + `"`,
		"short":            a.Seed()[:40],
		"two":              a.Seed() + "\n" + a.Seed(),
		"empty":            "",
		"expanded private": wire.EncodeBase64(make([]byte, 64)),
		"large":            strings.Repeat("A", 1<<20),
	}
	for name, s := range bad {
		k, err := wire.ParseKeyFile([]byte(s))
		if err == nil || !k.IsZero() {
			t.Errorf("%s: accepted", name)
			continue
		}
		if (name == "mismatch") != errors.Is(err, wire.ErrKeyMismatch) {
			t.Errorf("%s: got %v", name, err)
		}
		for i := 0; i+6 <= len(s); i++ {
			if piece := s[i : i+6]; !strings.Contains(`{"publicKey":…,"privateKey":…}`, piece) && strings.Contains(err.Error(), piece) {
				t.Errorf("%s: the error echoes %q: %v", name, piece, err)
			}
		}
	}
}

func TestParseFingerprint(t *testing.T) {
	for _, s := range []string{"1f3a-09bc-77d0-e214", "1F3A09BC77D0E214", "1f:3a:09:bc:77:d0:e2:14", " 1f3a 09bc 77d0 e214 "} {
		if got, err := wire.ParseFingerprint(s); err != nil || got != "1f3a-09bc-77d0-e214" {
			t.Errorf("%q: got %q, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "junk", "1f3a-09bc-77d0-e21", "1f3a-09bc-77d0-e2145", "1f3a-09bc-77d0-e21g", strings.Repeat("-", 100)} {
		if got, err := wire.ParseFingerprint(s); !errors.Is(err, wire.ErrBadFingerprint) {
			t.Errorf("%q: got %q, %v", s, got, err)
		}
	}
}

func TestNames(t *testing.T) {
	tests := []struct {
		what string
		ok   func(string) bool
		s    string
		want bool
	}{
		{"host", wire.ValidHostName[string], "a", true}, {"host", wire.ValidHostName[string], "MacBook-Pro.local_1", true},
		{"host", wire.ValidHostName[string], strings.Repeat("a", 63), true}, {"host", wire.ValidHostName[string], strings.Repeat("a", 64), false},
		{"host", wire.ValidHostName[string], "", false}, {"host", wire.ValidHostName[string], ".a", false},
		{"host", wire.ValidHostName[string], "a b!", false}, {"host", wire.ValidHostName[string], "a\n", false}, {"host", wire.ValidHostName[string], "é", false},
		{"agent", wire.ValidAgentName[string], "owner", true}, {"agent", wire.ValidAgentName[string], "a1", true},
		{"agent", wire.ValidAgentName[string], "a", false}, {"agent", wire.ValidAgentName[string], "-a", false},
		{"agent", wire.ValidAgentName[string], "Ab", false}, {"agent", wire.ValidAgentName[string], strings.Repeat("a", 40), true},
		{"agent", wire.ValidAgentName[string], strings.Repeat("a", 41), false},
		{"owner", wire.ValidOwnerFP, "", true}, {"owner", wire.ValidOwnerFP, strings.Repeat("f", 64), true},
		{"owner", wire.ValidOwnerFP, strings.Repeat("f", 65), false}, {"owner", wire.ValidOwnerFP, "a b", false},
		{"item", wire.ValidItemID, "", false}, {"item", wire.ValidItemID, strings.Repeat("é", 300), true},
		{"item", wire.ValidItemID, strings.Repeat("é", 301), false}, {"item", wire.ValidItemID, strings.Repeat("\U0001F600", 150), true},
		{"item", wire.ValidItemID, strings.Repeat("\U0001F600", 151), false}, {"item", wire.ValidItemID, "\xff", false},
		{"item", wire.ValidItemID, strings.Repeat("€", 300), true},
		{"id", wire.ValidID[string], "01JB2Q3R4S5T6V7W8X9YZABCDE", true}, {"id", wire.ValidID[string], "01JB2Q3R4S5T6V7W8X9YZABCDU", false},
	}
	for _, tt := range tests {
		if got := tt.ok(tt.s); got != tt.want {
			t.Errorf("%s %q: got %v; want %v", tt.what, tt.s, got, tt.want)
		}
	}
	if got := wire.FoldName("MacBook-É"); got != "macbook-É" {
		t.Errorf("got %q; want only ASCII folded", got)
	}
	if id := wire.NewID(day); !wire.ValidID(id) || id == wire.NewID(day) {
		t.Errorf("got id %q", id)
	}
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		s    string
		most int
		want string
	}{
		{"", 0, ""}, {"abc", 3, "abc"}, {"abc", 2, "ab"}, {"abc", 0, ""},
		{"äöü", 2, "äö"}, {"a😀b", 3, "a😀"}, {"a😀b", 2, "a"}, {"a\xffb", 2, "a\xff"},
	} {
		if got := wire.Cut(tt.s, tt.most); got != tt.want {
			t.Errorf("Cut(%q, %d): got %q; want %q", tt.s, tt.most, got, tt.want)
		}
	}
}
