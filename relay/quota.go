package relay

import (
	"github.com/agentmbx/agentmbx/relay/store"
)

// quota looks whether every new copy of an item fits, and names the first
// limit it breaks. Quotas charge what the relay can prove (seed 000 §7): the
// target's key, the sender's share of its queue, the target's proven account.
func (b *batch) quota(targets []preparedTarget, known []store.Dedup) (string, error) {
	l := &b.r.limits
	pending := map[string]store.Usage{} // by account: copies of this very item
	for i, pt := range targets {
		if known[i].Seq != 0 {
			continue
		}
		t := b.targets[pt.key]
		size := int64(len(pt.wire))
		queue, err := b.QueueUsage(pt.key)
		if err != nil {
			return "", err
		}
		share, err := b.ShareUsage(pt.key, b.from.Key)
		if err != nil {
			return "", err
		}
		which := ""
		switch {
		case queue.Items+1 > l.MaxQueueItems:
			which = "queue depth"
		case queue.Bytes+size > l.MaxQueueBytes:
			which = "queue bytes"
		case share.Items+1 > l.MaxSenderItems, share.Bytes+size > l.MaxSenderBytes:
			which = "sender share"
		case t.Account != "":
			owner, err := b.AccountUsage(t.Account)
			if err != nil {
				return "", err
			}
			mine := pending[t.Account]
			mine.Items++
			mine.Bytes += size
			pending[t.Account] = mine
			if owner.Items+mine.Items > l.MaxOwnerItems {
				which = "owner queue depth"
			} else if owner.Bytes+mine.Bytes > l.MaxOwnerBytes {
				which = "owner queue bytes"
			}
		}
		if which != "" {
			return which + " exceeded for " + t.Name, nil
		}
	}
	return "", nil
}
