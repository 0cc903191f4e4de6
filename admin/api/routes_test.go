package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/agentmbx/agentmbx/admin"
	"github.com/agentmbx/agentmbx/relay"
	"github.com/agentmbx/agentmbx/relay/wire"
)

// over is a client of s without a listener in between.
func over(s admin.Service) *Client {
	h := newHandler(s, slog.New(slog.DiscardHandler), usualTimes)
	c := At("nowhere")
	c.http.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result(), nil
	})
	return c
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// eachCall makes every call of the Service with all its arguments set.
func eachCall(t *testing.T, s admin.Service, check func(call string, args []any, answer any, err error)) {
	t.Helper()
	service := reflect.TypeFor[admin.Service]()
	for i := range service.NumMethod() {
		name := service.Method(i).Name
		m := reflect.ValueOf(s).MethodByName(name)
		in := []reflect.Value{reflect.ValueOf(t.Context())}
		args := []any(nil)
		for j := 1; j < m.Type().NumIn(); j++ {
			v := filled(m.Type().In(j))
			in, args = append(in, v), append(args, v.Interface())
		}
		out := m.Call(in)
		err, _ := out[1].Interface().(error)
		check(name, args, out[0].Interface(), err)
	}
}

// Every call, every argument and every field of every answer crosses.
func TestEveryCallCrosses(t *testing.T) {
	t.Parallel()
	f := &fake{}
	eachCall(t, over(f), func(call string, args []any, answer any, err error) {
		got, gotArgs := f.asked()
		if err != nil || got != call || !reflect.DeepEqual(gotArgs, args) {
			t.Errorf("%s: got %v, asked %s with %+v; want %+v", call, err, got, gotArgs, args)
		}
		if want := filled(reflect.TypeOf(answer)).Interface(); !reflect.DeepEqual(answer, want) {
			t.Errorf("%s: got %+v; want %+v", call, answer, want)
		}
	})
}

// An error keeps its text and its kind on the way.
func TestErrorsCross(t *testing.T) {
	t.Parallel()
	for _, kind := range []error{admin.ErrBadRequest, admin.ErrRefused, admin.ErrNotFound, admin.ErrUnhealthy, errors.New("a failure")} {
		f := &fake{}
		f.failWith(fmt.Errorf("%w: because", kind))
		eachCall(t, over(f), func(call string, _ []any, answer any, err error) {
			if err == nil || err.Error() != kind.Error()+": because" || admin.Kind(err) != admin.Kind(kind) {
				t.Errorf("%s: got %v of kind %q; want %v", call, err, admin.Kind(err), kind)
			}
			if !reflect.ValueOf(answer).IsZero() {
				t.Errorf("%s: got %+v beside an error; want nothing", call, answer)
			}
		})
	}
}

// The routes are the Service, and read what its own table says they read.
func TestRoutesAgreeWithTheService(t *testing.T) {
	t.Parallel()
	seen, paths := map[string]bool{}, map[string]bool{}
	for _, rt := range routes {
		method, path := rt.pattern()
		want := map[string]admin.Access{http.MethodGet: admin.Reads, http.MethodPost: admin.Writes}[method]
		if got := admin.AccessOf(rt.name()); got != want || seen[rt.name()] || paths[method+path] {
			t.Errorf("%s: %s %s, which admin says is %q; want it once, and the same", rt.name(), method, path, got)
		}
		seen[rt.name()], paths[method+path] = true, true
	}
	if service := reflect.TypeFor[admin.Service](); len(seen) != service.NumMethod() {
		t.Errorf("got %d routes; want the %d calls of the Service", len(seen), service.NumMethod())
	}
}

func TestReadOnlyDeskOverHTTP(t *testing.T) {
	t.Parallel()
	f := &fake{}
	eachCall(t, over(admin.ReadOnly(f)), func(call string, _ []any, _ any, err error) {
		got, _ := f.asked()
		if writes := admin.AccessOf(call) == admin.Writes; writes && (!errors.Is(err, admin.ErrRefused) || got != "") || !writes && err != nil {
			t.Errorf("%s: got %v and %q of the service; want reads only", call, err, got)
		}
	})
}

// As many items as a call takes fit, with the longest ids there can be.
func TestManyItemsCross(t *testing.T) {
	t.Parallel()
	f := &fake{}
	a := admin.ItemAction{Action: admin.Action{Actor: strings.Repeat("\x01", 200), Reason: strings.Repeat("<", 1000)}}
	id := strings.Repeat("\x01", wire.MaxItemID)
	for i := range relay.MaxItems {
		a.Items = append(a.Items, relay.ItemRef{Target: wire.PublicKey{1}, Seq: 1<<62 + int64(i), ID: id})
	}
	if _, err := over(f).Hold(t.Context(), a); err != nil {
		t.Fatalf("Hold: got %v; want nil", err)
	}
	if _, args := f.asked(); !reflect.DeepEqual(args, []any{a}) {
		t.Error("the items did not arrive as they were")
	}
	a.Items = append(a.Items, a.Items...)
	a.Items = append(a.Items, a.Items...)
	if _, err := over(f).Hold(t.Context(), a); !errors.Is(err, admin.ErrBadRequest) {
		t.Errorf("four times as many: got %v; want a bad request", err)
	}
}

// A call that panics is answered, and the relay goes on.
func TestPanicIsAnswered(t *testing.T) {
	t.Parallel()
	c := over(&panics{})
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "see its log") {
		t.Errorf("got %v; want an error that tells where to look", err)
	}
}

type panics struct{ admin.Service }

func TestTooLongAFilter(t *testing.T) {
	t.Parallel()
	f := &fake{}
	if _, err := over(f).Queues(t.Context(), admin.QueueFilter{Text: strings.Repeat("x", maxQuery)}); !errors.Is(err, admin.ErrBadRequest) {
		t.Errorf("got %v; want a bad request", err)
	}
}
