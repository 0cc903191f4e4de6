package api

import (
	"encoding"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agentmbx/agentmbx/admin"
)

// A read's arguments are the query of its URL: a flat struct, one parameter a
// field, named as in JSON. What is zero is left out.

// maxQuery bounds a query, so that it fits a header whatever else stands there.
const maxQuery = 8 << 10

// encodeQuery writes the struct q as a query.
func encodeQuery(q any) (string, error) {
	values := url.Values{}
	var failed error
	eachParam(reflect.ValueOf(q), func(name string, f reflect.Value) {
		if f.IsZero() {
			return
		}
		text, err := paramText(f)
		if err != nil && failed == nil {
			failed = badParam(name, err.Error())
		}
		values.Set(name, text)
	})
	s := values.Encode()
	if failed == nil && len(s) > maxQuery {
		failed = fmt.Errorf("%w: the filter is too long", admin.ErrBadRequest)
	}
	return s, failed
}

// decodeQuery reads a query strictly into the struct that to points to: a
// parameter that is unknown, repeated or no value of its field is
// admin.ErrBadRequest.
func decodeQuery(raw string, to any) error {
	values, err := url.ParseQuery(raw)
	if err != nil || len(raw) > maxQuery {
		return fmt.Errorf("%w: the query is not readable", admin.ErrBadRequest)
	}
	var failed error
	eachParam(reflect.ValueOf(to).Elem(), func(name string, f reflect.Value) {
		given := values[name]
		delete(values, name)
		switch {
		case len(given) == 0 || failed != nil:
		case len(given) > 1:
			failed = badParam(name, "is given more than once")
		default:
			if err := setParam(f, given[0]); err != nil {
				failed = badParam(name, err.Error())
			}
		}
	})
	for name := range values {
		if failed == nil {
			failed = fmt.Errorf("%w: no parameter %.40q", admin.ErrBadRequest, name)
		}
	}
	return failed
}

func badParam(name, what string) error {
	return fmt.Errorf("%w: %s: %s", admin.ErrBadRequest, name, what)
}

// eachParam calls fn with the fields of v, those of embedded structs among them.
func eachParam(v reflect.Value, fn func(name string, f reflect.Value)) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous {
			eachParam(v.Field(i), fn)
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		fn(name, v.Field(i))
	}
}

func paramText(f reflect.Value) (string, error) {
	if m, ok := f.Interface().(encoding.TextMarshaler); ok {
		b, err := m.MarshalText()
		return string(b), err
	}
	return fmt.Sprint(f.Interface()), nil
}

func setParam(f reflect.Value, text string) error {
	if u, ok := f.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if u.UnmarshalText([]byte(text)) != nil {
			return errors.New("not a value of this parameter")
		}
		return nil
	}
	switch f.Kind() {
	case reflect.String:
		if !utf8.ValidString(text) {
			return errors.New("want text in UTF-8")
		}
		f.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return errors.New("want true or false")
		}
		f.SetBool(text == "true")
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, f.Type().Bits())
		if err != nil {
			return errors.New("want a number")
		}
		f.SetInt(n)
	default:
		panic("no parameter can be a " + f.Type().String()) // a test reads each route's query
	}
	return nil
}
