package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/agentmbx/agentmbx/relay"
)

// limitSettings makes a setting of every limit: limits.<name> in the file,
// MBX_RELAY_LIMIT_<NAME> in the environment, and no flag.
func limitSettings(l *relay.Limits) []setting {
	var rows []setting
	for _, f := range relay.LimitFields(l) {
		env := []string{"MBX_RELAY_LIMIT_" + strings.ToUpper(f.Name)}
		if f.Name == "retention_days" { // has a shorter name of its own
			env = append([]string{"MBX_RELAY_RETENTION_DAYS"}, env...)
		}
		rows = append(rows, setting{
			key: "limits." + f.Name, env: env, doc: f.Doc,
			def:  strconv.FormatInt(f.Default, 10),
			kind: number,
			want: fmt.Sprintf("%d to %d", f.Min, f.Max),
			set: func(v string) error {
				n, err := strconv.ParseInt(v, 10, 64)
				if err == nil && (n < f.Min || n > f.Max) {
					err = errValue
				}
				*f.Value = n
				return err
			},
		})
	}
	return rows
}
