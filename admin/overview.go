package admin

import (
	"context"
	"encoding/json"

	"github.com/agentmbx/agentmbx/backup/drill"
	"github.com/agentmbx/agentmbx/relay/store"
)

// topQueues is how many queues an overview names in each order.
const topQueues = 8

// Overview answers from counters and from the first rows of indexes, as Status does.
func (l *Local) Overview(ctx context.Context) (o Overview, err error) {
	if o.Status, err = l.Status(ctx); err != nil {
		return o, err
	}
	o.Activity = l.o.Relay.Activity()
	refused, err := l.o.Relay.Refusals(ctx)
	if err != nil {
		return o, err
	}
	o.Refused = len(refused)
	err = l.look(ctx, func(v *look) error {
		for _, top := range []struct {
			list *[]Queue
			by   store.QueueOrder
		}{{&o.Deepest, store.ByDepth}, {&o.Longest, store.ByOldest}} {
			p := newPager[Queue](ctx, Paging{Limit: topQueues})
			if err := v.queues(p, QueueFilter{Sort: top.by}, nil); err != nil {
				return err
			}
			*top.list = p.page.Items
		}
		o.Drill, err = v.lastDrill()
		return err
	})
	return o, err
}

// lastDrill is the receipt of the last drill, nil when the log has none that can be
// read.
func (v *look) lastDrill() (*drill.Receipt, error) {
	lines, err := v.Log("drill", 0, 1)
	if err != nil || len(lines) == 0 {
		return nil, err
	}
	var r drill.Receipt
	if json.Unmarshal(lines[0].Receipt, &r) != nil {
		return nil, nil
	}
	return &r, nil
}
