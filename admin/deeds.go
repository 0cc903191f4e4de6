package admin

import (
	"time"

	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// ItemAction is something to do to items, at most relay.MaxItems of them, in one
// transaction. A hold or release moves at most relay.MaxDeedBytes at once.
type ItemAction struct {
	Action
	Items  []relay.ItemRef `json:"items"`
	DryRun bool            `json:"dry_run,omitempty"`
}

// ItemResult says what became of each.
type ItemResult struct {
	Outcomes []relay.Outcome `json:"outcomes"`
	Done     int             `json:"done"`
	Failed   int             `json:"failed"`
	Later    int             `json:"later,omitempty"` // not tried, since the call moved all that one may: ask again for these
	DryRun   bool            `json:"dry_run,omitempty"`
}

// HostAction is something to do to a host.
type HostAction struct {
	Action
	Key    wire.PublicKey `json:"key"`
	DryRun bool           `json:"dry_run,omitempty"`
}

// BlockAction blocks a host.
type BlockAction struct {
	HostAction
	Until time.Time `json:"until,omitzero"` // until it is unblocked when zero
}

// DenyAction refuses who is all that it names. One of the two may be "".
type DenyAction struct {
	Action
	HostFP   string    `json:"host_fp,omitempty"`
	ClientID string    `json:"client_id,omitempty"`
	Until    time.Time `json:"until,omitzero"` // until it is removed when zero
	DryRun   bool      `json:"dry_run,omitempty"`
}

// DenyResult says what became of a denial.
type DenyResult struct {
	Denial  Denial `json:"denial"`  // as it is now
	Changed bool   `json:"changed"` // false when it was there already
	DryRun  bool   `json:"dry_run,omitempty"`
}

// UnblockAction removes a denial. HostFP and AddedAt are what was seen of it: one of
// another host or time under its number is not found. Either may be left out.
type UnblockAction struct {
	Action
	ID      int64     `json:"id"`
	HostFP  string    `json:"host_fp,omitempty"`
	AddedAt time.Time `json:"added_at,omitzero"`
	DryRun  bool      `json:"dry_run,omitempty"`
}

// HostResult says what became of a host.
type HostResult struct {
	Enrolment Enrolment `json:"enrolment"` // as it is now
	Changed   bool      `json:"changed"`   // false when it was so already
	DryRun    bool      `json:"dry_run,omitempty"`
}

// DismissAction takes refused pushes out of the quarantine.
type DismissAction struct {
	Action
	IDs    []int64 `json:"ids"` // none means all
	DryRun bool    `json:"dry_run,omitempty"`
}

// DismissResult says how many went.
type DismissResult struct {
	Dismissed int  `json:"dismissed"`
	DryRun    bool `json:"dry_run,omitempty"`
}
