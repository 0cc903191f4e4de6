package api

import (
	"context"
	"encoding/json"
	"reflect"
	"sync"
	"time"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// fake is a Service that remembers what it was asked, and answers values in which
// every field is set, or err.
type fake struct {
	mu   sync.Mutex
	call string
	args []any
	err  error
	hook func(ctx context.Context) // runs inside each call
}

// asked takes what the last call was.
func (f *fake) asked() (call string, args []any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	call, args = f.call, f.args
	f.call, f.args = "", nil
	return call, args
}

func (f *fake) failWith(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func said[A any](ctx context.Context, f *fake, call string, args ...any) (a A, err error) {
	f.mu.Lock()
	f.call, f.args, err = call, args, f.err
	f.mu.Unlock()
	if f.hook != nil {
		f.hook(ctx)
	}
	if err == nil {
		a = filled(reflect.TypeFor[A]()).Interface().(A)
	}
	return a, err
}

func (f *fake) Status(ctx context.Context) (admin.Status, error) {
	return said[admin.Status](ctx, f, "Status")
}

func (f *fake) Overview(ctx context.Context) (admin.Overview, error) {
	return said[admin.Overview](ctx, f, "Overview")
}

func (f *fake) Log(ctx context.Context, q admin.LogFilter) ([]admin.LogEntry, error) {
	return said[[]admin.LogEntry](ctx, f, "Log", q)
}

func (f *fake) RotateEpoch(ctx context.Context, a admin.Action) (string, error) {
	return said[string](ctx, f, "RotateEpoch", a)
}

func (f *fake) Queues(ctx context.Context, q admin.QueueFilter) (admin.Page[admin.Queue], error) {
	return said[admin.Page[admin.Queue]](ctx, f, "Queues", q)
}

func (f *fake) Shares(ctx context.Context, q admin.ShareFilter) (admin.Page[admin.Share], error) {
	return said[admin.Page[admin.Share]](ctx, f, "Shares", q)
}

func (f *fake) Items(ctx context.Context, q admin.ItemFilter) (admin.Page[admin.Item], error) {
	return said[admin.Page[admin.Item]](ctx, f, "Items", q)
}

func (f *fake) Item(ctx context.Context, ref relay.ItemRef) (admin.Item, error) {
	return said[admin.Item](ctx, f, "Item", ref)
}

func (f *fake) Enrolments(ctx context.Context, q admin.EnrolmentFilter) (admin.Page[admin.Enrolment], error) {
	return said[admin.Page[admin.Enrolment]](ctx, f, "Enrolments", q)
}

func (f *fake) Enrolment(ctx context.Context, key wire.PublicKey) (admin.Enrolment, error) {
	return said[admin.Enrolment](ctx, f, "Enrolment", key)
}

func (f *fake) Resolve(ctx context.Context, text string) ([]admin.Enrolment, error) {
	return said[[]admin.Enrolment](ctx, f, "Resolve", text)
}

func (f *fake) SenderLists(ctx context.Context, p admin.Paging) (admin.Page[admin.SenderList], error) {
	return said[admin.Page[admin.SenderList]](ctx, f, "SenderLists", p)
}

func (f *fake) SenderList(ctx context.Context, key wire.PublicKey) (admin.SenderList, error) {
	return said[admin.SenderList](ctx, f, "SenderList", key)
}

func (f *fake) Denials(ctx context.Context, q admin.DenialFilter) (admin.Page[admin.Denial], error) {
	return said[admin.Page[admin.Denial]](ctx, f, "Denials", q)
}

func (f *fake) Quarantine(ctx context.Context, q admin.QuarantineFilter) (admin.Page[admin.Quarantined], error) {
	return said[admin.Page[admin.Quarantined]](ctx, f, "Quarantine", q)
}

func (f *fake) Hold(ctx context.Context, a admin.ItemAction) (admin.ItemResult, error) {
	return said[admin.ItemResult](ctx, f, "Hold", a)
}

func (f *fake) Release(ctx context.Context, a admin.ItemAction) (admin.ItemResult, error) {
	return said[admin.ItemResult](ctx, f, "Release", a)
}

func (f *fake) Discard(ctx context.Context, a admin.ItemAction) (admin.ItemResult, error) {
	return said[admin.ItemResult](ctx, f, "Discard", a)
}

func (f *fake) Dismiss(ctx context.Context, a admin.DismissAction) (admin.DismissResult, error) {
	return said[admin.DismissResult](ctx, f, "Dismiss", a)
}

func (f *fake) Revoke(ctx context.Context, a admin.HostAction) (admin.HostResult, error) {
	return said[admin.HostResult](ctx, f, "Revoke", a)
}

func (f *fake) Block(ctx context.Context, a admin.BlockAction) (admin.HostResult, error) {
	return said[admin.HostResult](ctx, f, "Block", a)
}

func (f *fake) Deny(ctx context.Context, a admin.DenyAction) (admin.DenyResult, error) {
	return said[admin.DenyResult](ctx, f, "Deny", a)
}

func (f *fake) Unblock(ctx context.Context, a admin.UnblockAction) (admin.Denial, error) {
	return said[admin.Denial](ctx, f, "Unblock", a)
}

func (f *fake) Jobs(ctx context.Context) ([]jobs.State, error) {
	return said[[]jobs.State](ctx, f, "Jobs")
}

func (f *fake) Runs(ctx context.Context, q admin.RunFilter) ([]jobs.Run, error) {
	return said[[]jobs.Run](ctx, f, "Runs", q)
}

func (f *fake) StartJob(ctx context.Context, q jobs.Request) (jobs.Run, error) {
	return said[jobs.Run](ctx, f, "StartJob", q)
}

func (f *fake) Run(ctx context.Context, id int64) (jobs.Run, error) {
	return said[jobs.Run](ctx, f, "Run", id)
}

func (f *fake) Backups(ctx context.Context) ([]backup.Entry, error) {
	return said[[]backup.Entry](ctx, f, "Backups")
}

func (f *fake) PruneBackups(ctx context.Context, dryRun bool, a admin.Action) ([]backup.Decision, error) {
	return said[[]backup.Decision](ctx, f, "PruneBackups", dryRun, a)
}

// filled is a value of a type in which everything that JSON carries is set.
func filled(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch {
	case t == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Date(2026, 10, 2, 12, 0, 0, 5e6, time.UTC)))
		return v
	case t == reflect.TypeFor[json.RawMessage]():
		v.SetBytes([]byte(`{"n":"<&>"}`))
		return v
	}
	switch t.Kind() {
	case reflect.String:
		v.SetString("a text of\nwide 字 & <marks>")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1<<31 - 1)
	case reflect.Uint8:
		v.SetUint(7)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint(1<<32 - 1)
	case reflect.Float64:
		v.SetFloat(0.25)
	case reflect.Pointer:
		v.Set(filled(t.Elem()).Addr())
	case reflect.Slice:
		v.Set(reflect.Append(v, filled(t.Elem())))
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).Set(filled(t.Elem()))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(filled(t.Key()), filled(t.Elem()))
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() && f.Tag.Get("json") != "-" {
				v.Field(i).Set(filled(f.Type))
			}
		}
	default:
		panic("what is a " + t.String() + "?")
	}
	return v
}
