package relay_test

import (
	"github.com/agentmbx/agentmbx/relay/wire"
	"github.com/agentmbx/agentmbx/relay/wire/wiretest"
)

// to is one target of an item.
func to(h *wiretest.Host, w []byte) wire.PushTarget {
	return wire.PushTarget{Key: h.Pub(), KeyOK: true, Wire: w, WireOK: len(w) > 0}
}

func item(kind, id string, targets ...wire.PushTarget) wire.PushItem {
	return wire.PushItem{ID: id, IDOK: true, Kind: kind, Targets: targets, TargetsOK: len(targets) > 0}
}

// mail is a fresh sealed envelope as an item for one or more hosts, sealed for
// each.
func mail(from *wiretest.Host, hosts ...*wiretest.Host) wire.PushItem {
	return sealed(from, from.Draft(hosts[0], "hello", "the build is green"), hosts...)
}

func sealed(from *wiretest.Host, draft wire.Envelope, hosts ...*wiretest.Host) wire.PushItem {
	it := item(wire.KindEnvelope, draft.ID)
	for _, h := range hosts {
		_, w := from.Seal(draft, h)
		it.Targets = append(it.Targets, to(h, w))
	}
	it.TargetsOK = true
	return it
}

// receipt is a delivery receipt of by for a message of the host to.
func receipt(by, sender *wiretest.Host, msg string, seq int64) wire.PushItem {
	id, w := by.Receipt(msg, "delivered", seq)
	return item(wire.KindReceipt, id, to(sender, w))
}
