package relay

import (
	"reflect"
	"strings"
	"testing"
)

func TestDefaultLimits(t *testing.T) {
	l := DefaultLimits()
	want := Limits{
		MaxItemBytes: 524_288, MaxBatch: 200, MaxPull: 500, MaxPullBytes: 8_388_608, MaxTargets: 64, RetentionDays: 14,
		MaxQueueItems: 10_000, MaxQueueBytes: 52_428_800, MaxSenderItems: 2_000, MaxSenderBytes: 20_971_520,
		MaxOwnerItems: 10_000, MaxOwnerBytes: 52_428_800, PushesPerMinute: 120, EnrolPerMinute: 30,
		OpenChallenges: 10_000, Enrolments: 100_000, PerName: 16, RateKeys: 50_000,
		BodyBytesInFlight: 268_435_456, PollsPerKey: 4, Polls: 20_000, MaxWaitS: 25,
	}
	if l != want {
		t.Errorf("got %+v; want %+v", l, want)
	}
}

// Every field of Limits is in the table once, under its own name.
func TestLimitFieldsCoverLimits(t *testing.T) {
	var l Limits
	fields := LimitFields(&l)
	v := reflect.ValueOf(&l).Elem()
	if len(fields) != v.NumField() {
		t.Fatalf("got %d limits in the table; want the %d of the struct", len(fields), v.NumField())
	}
	for i, f := range fields {
		got := v.Type().Field(i).Name
		if f.Value != v.Field(i).Addr().Interface() || !strings.EqualFold(got, strings.ReplaceAll(f.Name, "_", "")) {
			t.Errorf("row %d: got %q on another field; want it on %s", i, f.Name, got)
		}
		if f.Doc == "" {
			t.Errorf("%s: got no Doc", f.Name)
		}
	}
}
