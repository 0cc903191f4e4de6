package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// route is one call of the Service as it travels, for both ends: a read is a GET
// with its arguments in the query, whatever may change something a POST of one
// JSON object.
type route[Q, A any] struct {
	call    string // the Service's method
	path    string
	write   bool
	body    int64 // bytes of a write's body
	serve   func(admin.Service, context.Context, Q) (A, error)
	actor   func(*Q) *string // who does it, in a write's arguments
	patient bool             // it may take as long as it needs
}

// endpoint is a route whose types do not matter.
type endpoint interface {
	name() string
	pattern() (method, path string)
	// answer reads a call, puts who it came from before the actor that it names,
	// and has s do it.
	answer(w http.ResponseWriter, r *http.Request, s admin.Service, from string) (any, error)
}

const (
	maxBody = 64 << 10
	// maxItemsBody takes relay.MaxItems of the longest ids in JSON's longest spelling.
	maxItemsBody = 2 << 20
)

func read[Q, A any](call, path string, serve func(admin.Service, context.Context, Q) (A, error)) route[Q, A] {
	return route[Q, A]{call: call, path: path, serve: serve}
}

func write[Q, A any](call, path string, actor func(*Q) *string, serve func(admin.Service, context.Context, Q) (A, error)) route[Q, A] {
	return route[Q, A]{call: call, path: path, write: true, body: maxBody, serve: serve, actor: actor}
}

func writeItems(call, path string, serve func(admin.Service, context.Context, admin.ItemAction) (admin.ItemResult, error)) route[admin.ItemAction, admin.ItemResult] {
	r := write(call, path, func(a *admin.ItemAction) *string { return &a.Actor }, serve)
	r.body = maxItemsBody
	return r
}

// bare makes a call without arguments one with none.
func bare[A any](serve func(admin.Service, context.Context) (A, error)) func(admin.Service, context.Context, none) (A, error) {
	return func(s admin.Service, ctx context.Context, _ none) (A, error) { return serve(s, ctx) }
}

// Arguments and answers of calls that have no struct of their own.
type (
	none     struct{}
	keyQuery struct {
		Key wire.PublicKey `json:"key"`
	}
	textQuery struct {
		Text string `json:"text"`
	}
	runQuery struct {
		ID int64 `json:"id"`
	}
	pruneRequest struct {
		admin.Action
		DryRun bool `json:"dry_run"`
	}
	epochAnswer struct {
		Epoch string `json:"epoch"`
	}
)

var (
	status      = read("Status", "/v1/status", bare(admin.Service.Status))
	overview    = read("Overview", "/v1/overview", bare(admin.Service.Overview))
	log         = read("Log", "/v1/log", admin.Service.Log)
	queues      = read("Queues", "/v1/queues", admin.Service.Queues)
	shares      = read("Shares", "/v1/shares", admin.Service.Shares)
	items       = read("Items", "/v1/items", admin.Service.Items)
	item        = read("Item", "/v1/item", admin.Service.Item)
	enrolments  = read("Enrolments", "/v1/enrolments", admin.Service.Enrolments)
	senderLists = read("SenderLists", "/v1/sender-lists", admin.Service.SenderLists)
	denials     = read("Denials", "/v1/denials", admin.Service.Denials)
	quarantine  = read("Quarantine", "/v1/quarantine", admin.Service.Quarantine)
	jobStates   = read("Jobs", "/v1/jobs", bare(admin.Service.Jobs))
	runs        = read("Runs", "/v1/runs", admin.Service.Runs)
	backups     = read("Backups", "/v1/backups", bare(admin.Service.Backups))

	enrolment = read("Enrolment", "/v1/enrolment", func(s admin.Service, ctx context.Context, q keyQuery) (admin.Enrolment, error) {
		return s.Enrolment(ctx, q.Key)
	})
	resolve = read("Resolve", "/v1/resolve", func(s admin.Service, ctx context.Context, q textQuery) ([]admin.Enrolment, error) {
		return s.Resolve(ctx, q.Text)
	})
	senderList = read("SenderList", "/v1/sender-list", func(s admin.Service, ctx context.Context, q keyQuery) (admin.SenderList, error) {
		return s.SenderList(ctx, q.Key)
	})
	run = read("Run", "/v1/run", func(s admin.Service, ctx context.Context, q runQuery) (jobs.Run, error) {
		return s.Run(ctx, q.ID)
	})

	hold     = writeItems("Hold", "/v1/hold", admin.Service.Hold)
	release  = writeItems("Release", "/v1/release", admin.Service.Release)
	discard  = writeItems("Discard", "/v1/discard", admin.Service.Discard)
	dismiss  = write("Dismiss", "/v1/dismiss", func(a *admin.DismissAction) *string { return &a.Actor }, admin.Service.Dismiss)
	revoke   = write("Revoke", "/v1/revoke", func(a *admin.HostAction) *string { return &a.Actor }, admin.Service.Revoke)
	block    = write("Block", "/v1/block", func(a *admin.BlockAction) *string { return &a.Actor }, admin.Service.Block)
	deny     = write("Deny", "/v1/deny", func(a *admin.DenyAction) *string { return &a.Actor }, admin.Service.Deny)
	unblock  = write("Unblock", "/v1/unblock", func(a *admin.UnblockAction) *string { return &a.Actor }, admin.Service.Unblock)
	startJob = write("StartJob", "/v1/runs", func(q *jobs.Request) *string { return &q.By }, admin.Service.StartJob)

	rotateEpoch = write("RotateEpoch", "/v1/rotate-epoch", func(a *admin.Action) *string { return &a.Actor },
		func(s admin.Service, ctx context.Context, a admin.Action) (epochAnswer, error) {
			epoch, err := s.RotateEpoch(ctx, a)
			return epochAnswer{epoch}, err
		})
	pruneBackups = func() route[pruneRequest, []backup.Decision] {
		r := write("PruneBackups", "/v1/backups/prune", func(q *pruneRequest) *string { return &q.Actor },
			func(s admin.Service, ctx context.Context, q pruneRequest) ([]backup.Decision, error) {
				return s.PruneBackups(ctx, q.DryRun, q.Action)
			})
		r.patient = true
		return r
	}()
)

// routes is every call of the Service.
var routes = []endpoint{
	status, overview, log, queues, shares, items, item, enrolments, enrolment, resolve, senderLists, senderList, denials,
	quarantine, jobStates, runs, run, backups,
	hold, release, discard, dismiss, revoke, block, deny, unblock, startJob, rotateEpoch, pruneBackups,
}

func (rt route[Q, A]) name() string { return rt.call }

func (rt route[Q, A]) pattern() (method, path string) {
	if rt.write {
		return http.MethodPost, rt.path
	}
	return http.MethodGet, rt.path
}

func (rt route[Q, A]) answer(w http.ResponseWriter, r *http.Request, s admin.Service, from string) (any, error) {
	var q Q
	if !rt.write {
		if err := decodeQuery(r.URL.RawQuery, &q); err != nil {
			return nil, err
		}
		return rt.serve(s, r.Context(), q)
	}
	if r.URL.RawQuery != "" {
		return nil, fmt.Errorf("%w: a call that changes something takes no query", admin.ErrBadRequest)
	}
	if err := decodeBody(w, r, rt.body, &q); err != nil {
		return nil, err
	}
	// An actor that is missing stays so: the Service refuses it.
	if who := rt.actor(&q); strings.TrimSpace(*who) != "" {
		*who = from + *who
	}
	return rt.serve(s, r.Context(), q)
}
