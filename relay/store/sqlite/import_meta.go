package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/agentmbx/agentmbx/relay/wire"
)

// tsMeta is what a TypeScript relay's store knows of itself.
type tsMeta struct {
	key        wire.PublicKey
	epoch      string
	heartbeat  time.Time            // zero: none
	expiryFrom time.Time            // zero: none
	paths      map[string]time.Time // restored through MBX_RELAY_RESTORE_FROM, and when
	unknown    []string
}

func (f *foreign) meta(ctx context.Context) (m tsMeta, err error) {
	err = f.rows(ctx, "meta", func(r *tsRow) error {
		switch k := r.text("k"); k {
		case "schema_version":
		case "relay_pubkey":
			m.key = r.key("v")
		case "epoch":
			m.epoch = r.label("v")
		case "heartbeat":
			m.heartbeat = r.moment("v")
		case "expiry_from":
			m.expiryFrom = r.moment("v")
		case "restored_paths":
			m.paths = r.paths("v")
		default:
			m.unknown = append(m.unknown, fmt.Sprintf("%.60q of meta", k))
		}
		return r.err
	})
	switch {
	case err != nil:
	case m.key.IsZero():
		err = fmt.Errorf("%s: %w: table meta has no relay_pubkey", f.path, ErrForeign)
	case m.epoch == "":
		err = fmt.Errorf("%s: %w: table meta has no epoch", f.path, ErrForeign)
	}
	return m, err
}

// moment is a time in milliseconds, or an ISO time.
func (r *tsRow) moment(column string) time.Time {
	s, isText := r.value(column).(string)
	if !isText {
		return time.UnixMilli(r.number(column, 1)).UTC()
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		if n < 1 || n > 1<<53-1 {
			_ = r.bad(column, "it is out of range")
			return time.Time{}
		}
		return time.UnixMilli(n).UTC()
	}
	return r.time(column)
}

// paths are the files that MBX_RELAY_RESTORE_FROM named, and when.
func (r *tsRow) paths(column string) map[string]time.Time {
	b := r.record(column)
	var texts map[string]string
	if r.err == nil && json.Unmarshal(b, &texts) != nil {
		_ = r.bad(column, "it is no list of paths and times")
	}
	paths := map[string]time.Time{}
	for path, text := range texts {
		at, err := wire.ParseTime(text)
		if err != nil || at.UnixMilli() <= 0 {
			_ = r.bad(column, "it is no list of paths and times")
			return nil
		}
		paths[path] = at.Truncate(time.Millisecond)
	}
	return paths
}

// warnings are what the operator should know though the import goes on.
func (m tsMeta) warnings(f *foreign, now time.Time) (list []string) {
	if age := now.Sub(m.heartbeat); !m.heartbeat.IsZero() && age > 10*time.Minute {
		list = append(list, fmt.Sprintf("its relay's last sign of life is %s old: if a newer copy of this store was served since, "+
			"run agentmbx relay rotate-epoch before you serve this one", age.Round(time.Minute)))
	}
	behind := append(f.unknown(), m.unknown...)
	slices.Sort(behind)
	for _, what := range behind[:min(len(behind), 20)] {
		list = append(list, what+" is not known here and stays behind")
	}
	if more := len(behind) - 20; more > 0 {
		list = append(list, fmt.Sprintf("%d more stay behind", more))
	}
	return list
}
