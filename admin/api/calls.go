package api

import (
	"context"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// Every call of the Service, asked of the relay.

func (c *Client) Status(ctx context.Context) (admin.Status, error) {
	return ask(ctx, c, status, none{})
}

func (c *Client) Overview(ctx context.Context) (admin.Overview, error) {
	return ask(ctx, c, overview, none{})
}

func (c *Client) Log(ctx context.Context, f admin.LogFilter) ([]admin.LogEntry, error) {
	return ask(ctx, c, log, f)
}

func (c *Client) RotateEpoch(ctx context.Context, a admin.Action) (string, error) {
	e, err := ask(ctx, c, rotateEpoch, a)
	return e.Epoch, err
}

func (c *Client) Queues(ctx context.Context, f admin.QueueFilter) (admin.Page[admin.Queue], error) {
	return ask(ctx, c, queues, f)
}

func (c *Client) Shares(ctx context.Context, f admin.ShareFilter) (admin.Page[admin.Share], error) {
	return ask(ctx, c, shares, f)
}

func (c *Client) Items(ctx context.Context, f admin.ItemFilter) (admin.Page[admin.Item], error) {
	return ask(ctx, c, items, f)
}

func (c *Client) Item(ctx context.Context, ref relay.ItemRef) (admin.Item, error) {
	return ask(ctx, c, item, ref)
}

func (c *Client) Enrolments(ctx context.Context, f admin.EnrolmentFilter) (admin.Page[admin.Enrolment], error) {
	return ask(ctx, c, enrolments, f)
}

func (c *Client) Enrolment(ctx context.Context, key wire.PublicKey) (admin.Enrolment, error) {
	return ask(ctx, c, enrolment, keyQuery{key})
}

func (c *Client) Resolve(ctx context.Context, text string) ([]admin.Enrolment, error) {
	return ask(ctx, c, resolve, textQuery{text})
}

func (c *Client) SenderLists(ctx context.Context, p admin.Paging) (admin.Page[admin.SenderList], error) {
	return ask(ctx, c, senderLists, p)
}

func (c *Client) SenderList(ctx context.Context, key wire.PublicKey) (admin.SenderList, error) {
	return ask(ctx, c, senderList, keyQuery{key})
}

func (c *Client) Denials(ctx context.Context, f admin.DenialFilter) (admin.Page[admin.Denial], error) {
	return ask(ctx, c, denials, f)
}

func (c *Client) Quarantine(ctx context.Context, f admin.QuarantineFilter) (admin.Page[admin.Quarantined], error) {
	return ask(ctx, c, quarantine, f)
}

func (c *Client) Hold(ctx context.Context, a admin.ItemAction) (admin.ItemResult, error) {
	return ask(ctx, c, hold, a)
}

func (c *Client) Release(ctx context.Context, a admin.ItemAction) (admin.ItemResult, error) {
	return ask(ctx, c, release, a)
}

func (c *Client) Discard(ctx context.Context, a admin.ItemAction) (admin.ItemResult, error) {
	return ask(ctx, c, discard, a)
}

func (c *Client) Dismiss(ctx context.Context, a admin.DismissAction) (admin.DismissResult, error) {
	return ask(ctx, c, dismiss, a)
}

func (c *Client) Revoke(ctx context.Context, a admin.HostAction) (admin.HostResult, error) {
	return ask(ctx, c, revoke, a)
}

func (c *Client) Block(ctx context.Context, a admin.BlockAction) (admin.HostResult, error) {
	return ask(ctx, c, block, a)
}

func (c *Client) Deny(ctx context.Context, a admin.DenyAction) (admin.DenyResult, error) {
	return ask(ctx, c, deny, a)
}

func (c *Client) Unblock(ctx context.Context, a admin.UnblockAction) (admin.Denial, error) {
	return ask(ctx, c, unblock, a)
}

func (c *Client) Jobs(ctx context.Context) ([]jobs.State, error) {
	return ask(ctx, c, jobStates, none{})
}

func (c *Client) Runs(ctx context.Context, f admin.RunFilter) ([]jobs.Run, error) {
	return ask(ctx, c, runs, f)
}

func (c *Client) StartJob(ctx context.Context, q jobs.Request) (jobs.Run, error) {
	return ask(ctx, c, startJob, q)
}

func (c *Client) Run(ctx context.Context, id int64) (jobs.Run, error) {
	return ask(ctx, c, run, runQuery{id})
}

func (c *Client) Backups(ctx context.Context) ([]backup.Entry, error) {
	return ask(ctx, c, backups, none{})
}

func (c *Client) PruneBackups(ctx context.Context, dryRun bool, a admin.Action) ([]backup.Decision, error) {
	return ask(ctx, c, pruneBackups, pruneRequest{a, dryRun})
}
