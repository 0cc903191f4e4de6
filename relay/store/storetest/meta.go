package storetest

import (
	"fmt"
	"time"

	"github.com/agentmbx/agentmbx/relay/store"
)

var metaTests = []subtest{
	{"a new store knows its key, has an epoch and the time it began", func(h *Harness) {
		in := h.info()
		want(h, "key", in.RelayKey, RelayKey)
		if in.Epoch == "" || in.Schema < 1 {
			h.Errorf("got epoch %q, schema %d; want one of each", in.Epoch, in.Schema)
		}
		want(h, "created", in.CreatedAt, epoch0)
		want(h, "expiry from", in.ExpiryFrom, epoch0)
		want(h, "heartbeat", in.Heartbeat, epoch0)
		want(h, "totals", h.totals(), store.Totals{})
		h.now.Add(int64(time.Hour / time.Millisecond))
		h.Reopen()
		want(h, "info after a reopen", h.info(), in)
	}},
	{"epoch and heartbeat persist", func(h *Harness) {
		at := epoch0.Add(90 * time.Second)
		h.Write(func(tx store.Tx) error { return tx.SetEpoch("epoch-2") })
		h.Write(func(tx store.Tx) error { return tx.SetHeartbeat(at) })
		for range 2 {
			in := h.info()
			want(h, "epoch", in.Epoch, "epoch-2")
			want(h, "heartbeat", in.Heartbeat, at)
			want(h, "created", in.CreatedAt, epoch0)
			h.Reopen()
		}
	}},
	{"the log lists the newest first, of one kind or all", func(h *Harness) {
		for i, op := range []string{"restore", "sweep", "backup", "sweep"} {
			h.Write(func(tx store.Tx) error {
				return tx.AppendLog(epoch0.Add(time.Duration(i)*time.Second), op, fmt.Append(nil, i))
			})
		}
		for _, tt := range []struct {
			name, op string
			limit    int
			want     []string
		}{
			{"all", "", 10, []string{"sweep 3", "backup 2", "sweep 1", "restore 0"}},
			{"some", "", 2, []string{"sweep 3", "backup 2"}},
			{"a kind", "sweep", 10, []string{"sweep 3", "sweep 1"}},
			{"the last of a kind", "sweep", 1, []string{"sweep 3"}},
			{"no such kind", "drill", 10, nil},
		} {
			var got []string
			last := int64(1 << 62)
			for _, o := range get(h, func(r store.Reader) ([]store.Op, error) { return r.Log(tt.op, 0, tt.limit) }) {
				got = append(got, fmt.Sprintf("%s %s", o.Op, o.Receipt))
				if o.ID >= last || o.At.Before(epoch0) {
					h.Errorf("%s: got id %d after %d, at %s; want ids going down and its time", tt.name, o.ID, last, o.At)
				}
				last = o.ID
			}
			want(h, tt.name, got, tt.want)
		}
	}},
	{"the log keeps the last lines of each kind", func(h *Harness) {
		add := func(op string, from, to int) {
			h.Write(func(tx store.Tx) error {
				for i := from; i < to; i++ {
					if err := tx.AppendLog(epoch0, op, fmt.Append(nil, i)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		lines := func(op string) []store.Op {
			return get(h, func(r store.Reader) ([]store.Op, error) { return r.Log(op, 0, 2*store.LogKeep) })
		}
		add("restore", 0, 1)
		add("sweep", 0, store.LogKeep)
		first := lines("sweep")[0].ID
		want(h, "lines at the bound", len(lines("sweep")), store.LogKeep)
		add("sweep", store.LogKeep, store.LogKeep+7)
		h.Reopen()
		sweeps := lines("sweep")
		want(h, "lines kept", len(sweeps), store.LogKeep)
		want(h, "the newest", string(sweeps[0].Receipt), fmt.Sprint(store.LogKeep+6))
		want(h, "the oldest", string(sweeps[len(sweeps)-1].Receipt), "7")
		want(h, "another kind", len(lines("restore")), 1)
		want(h, "all kinds", len(lines("")), store.LogKeep+1)
		if sweeps[0].ID <= first {
			h.Errorf("newest id: got %d; want above %d", sweeps[0].ID, first)
		}
	}},
	{"a log line that is no JSON is refused", func(h *Harness) {
		if err := h.Update(h.Context(), func(tx store.Tx) error { return tx.AppendLog(epoch0, "sweep", []byte("{")) }); err == nil {
			h.Error("got nil; want an error")
		}
	}},
}

func (h *Harness) info() store.Info {
	h.Helper()
	return get(h, func(r store.Reader) (store.Info, error) { return r.Info() })
}
