package api

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay/wire"
)

func TestDecodeQuery(t *testing.T) {
	t.Parallel()
	key := wire.PublicKey{7}
	for _, tt := range []struct {
		name, query string
		want        admin.ItemFilter
		bad         bool
	}{
		{"nothing", "", admin.ItemFilter{}, false},
		{"a number", "limit=7", admin.ItemFilter{Paging: admin.Paging{Limit: 7}}, false},
		{"a key", "target=BwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA%3D", admin.ItemFilter{Target: key}, false},
		{"text", "id=a+%26%25b", admin.ItemFilter{ID: "a &%b"}, false},
		{"a time", "older_than=2026-10-02T12:00:00Z", admin.ItemFilter{OlderThan: time.Date(2026, 10, 2, 12, 0, 0, 0, time.UTC)}, false},
		{"unknown", "limits=7", admin.ItemFilter{}, true},
		{"of another case", "Limit=7", admin.ItemFilter{}, true},
		{"repeated", "limit=7&limit=7", admin.ItemFilter{}, true},
		{"no number", "limit=x", admin.ItemFilter{}, true},
		{"an empty number", "limit=", admin.ItemFilter{}, true},
		{"a number beyond", "limit=99999999999999999999", admin.ItemFilter{}, true},
		{"no key", "target=abc", admin.ItemFilter{}, true},
		{"no time", "older_than=yesterday", admin.ItemFilter{}, true},
		{"no UTF-8", "id=%ff", admin.ItemFilter{}, true},
		{"a broken escape", "id=%zz", admin.ItemFilter{}, true},
		{"a semicolon", "limit=7;id=x", admin.ItemFilter{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got admin.ItemFilter
			err := decodeQuery(tt.query, &got)
			if tt.bad != errors.Is(err, admin.ErrBadRequest) || !tt.bad && (err != nil || !reflect.DeepEqual(got, tt.want)) {
				t.Errorf("got %+v, %v; want %+v, bad %v", got, err, tt.want, tt.bad)
			}
		})
	}
	var all admin.DenialFilter
	if err := decodeQuery("all=yes", &all); !errors.Is(err, admin.ErrBadRequest) {
		t.Errorf("all=yes: got %v; want a bad request", err)
	}
}

// What is read as a filter is written as the same one, and anything else is a bad
// request.
func FuzzDecodeQuery(f *testing.F) {
	for _, s := range []string{"", "limit=7&after=abc", "target=BwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA%3D", "older_than=2026-10-02T12:00:00.5%2B02:00", "id=%ff", "id=a;b", "kind&kind", "limit=-0", "older_than=0001-01-01T00:00:00Z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		var first, second admin.ItemFilter
		if err := decodeQuery(query, &first); err != nil {
			if !errors.Is(err, admin.ErrBadRequest) {
				t.Fatalf("got %v; want a bad request", err)
			}
			return
		}
		again, err := encodeQuery(first)
		if err != nil {
			if len(query) < maxQuery/4 {
				t.Fatalf("encode: got %v; want nil", err)
			}
			return
		}
		if err := decodeQuery(again, &second); err != nil {
			t.Fatalf("decode of %q: got %v; want nil", again, err)
		}
		if !first.OlderThan.Equal(second.OlderThan) {
			t.Fatalf("got %v; want %v", second.OlderThan, first.OlderThan)
		}
		first.OlderThan, second.OlderThan = time.Time{}, time.Time{}
		if first != second {
			t.Fatalf("got %+v; want %+v", second, first)
		}
	})
}
