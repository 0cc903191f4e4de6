package admin

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// Every call of the Service is tagged, and there is no tag for one that is none.
func TestEachCallIsTagged(t *testing.T) {
	service := reflect.TypeFor[Service]()
	for i := range service.NumMethod() {
		if a := AccessOf(service.Method(i).Name); a != Reads && a != Writes {
			t.Errorf("%s is tagged %q; want %s or %s", service.Method(i).Name, a, Reads, Writes)
		}
	}
	for name := range calls {
		if _, ok := service.MethodByName(name); !ok {
			t.Errorf("%s is tagged, and is no call", name)
		}
	}
}

// A read-only desk lets exactly the reads through: what is refused never reaches
// the desk behind it, which here is nil and would panic.
func TestReadOnlyLetsTheReadsThrough(t *testing.T) {
	desk := reflect.ValueOf(ReadOnly(nil))
	service := reflect.TypeFor[Service]()
	for i := range service.NumMethod() {
		name := service.Method(i).Name
		err, reached := callWithNothing(desk.MethodByName(name))
		switch AccessOf(name) {
		case Reads:
			if !reached {
				t.Errorf("%s: got %v; want it let through", name, err)
			}
		default:
			if reached || !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "read-only") {
				t.Errorf("%s: got %v, let through %v; want it refused", name, err, reached)
			}
		}
	}
}

// callWithNothing calls a method with zero arguments. reached tells that it was
// handed on to the nil behind.
func callWithNothing(method reflect.Value) (err error, reached bool) {
	defer func() { reached = recover() != nil }()
	in := []reflect.Value{reflect.ValueOf(context.Background())}
	for i := 1; i < method.Type().NumIn(); i++ {
		in = append(in, reflect.Zero(method.Type().In(i)))
	}
	out := method.Call(in)
	err, _ = out[len(out)-1].Interface().(error)
	return err, false
}
