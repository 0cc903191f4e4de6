package admin

import (
	"context"
	"fmt"

	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
)

// ReadOnly is a Service that lets through what reads and refuses with ErrRefused
// what may change something, a dry run too.
func ReadOnly(s Service) Service { return readOnly{s} }

type readOnly struct{ Service }

func refuseWrite(what string) error {
	return fmt.Errorf("%w: this desk is read-only, and may not %s", ErrRefused, what)
}

func (readOnly) RotateEpoch(context.Context, Action) (string, error) {
	return "", refuseWrite("rotate the epoch")
}

func (readOnly) Hold(context.Context, ItemAction) (ItemResult, error) {
	return ItemResult{}, refuseWrite("hold items")
}

func (readOnly) Release(context.Context, ItemAction) (ItemResult, error) {
	return ItemResult{}, refuseWrite("release items")
}

func (readOnly) Discard(context.Context, ItemAction) (ItemResult, error) {
	return ItemResult{}, refuseWrite("discard items")
}

func (readOnly) Dismiss(context.Context, DismissAction) (DismissResult, error) {
	return DismissResult{}, refuseWrite("dismiss refused pushes")
}

func (readOnly) Revoke(context.Context, HostAction) (HostResult, error) {
	return HostResult{}, refuseWrite("revoke a host")
}

func (readOnly) Block(context.Context, BlockAction) (HostResult, error) {
	return HostResult{}, refuseWrite("block a host")
}

func (readOnly) Deny(context.Context, DenyAction) (DenyResult, error) {
	return DenyResult{}, refuseWrite("add a denial")
}

func (readOnly) Unblock(context.Context, UnblockAction) (Denial, error) {
	return Denial{}, refuseWrite("unblock a host")
}

func (readOnly) StartJob(context.Context, jobs.Request) (jobs.Run, error) {
	return jobs.Run{}, refuseWrite("start a job")
}

func (readOnly) PruneBackups(context.Context, bool, Action) ([]backup.Decision, error) {
	return nil, refuseWrite("prune backups")
}
