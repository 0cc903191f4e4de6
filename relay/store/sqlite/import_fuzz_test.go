package sqlite

import (
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"testing"
)

// FuzzImportRow puts anything into a column of a row of a foreign store: it is
// refused with a name, or what comes out agrees with itself. It never panics, and
// a refusal leaves nothing.
func FuzzImportRow(f *testing.F) {
	var places [][2]string
	for name, t := range tsTables {
		for _, c := range t.columns {
			places = append(places, [2]string{name, c.name})
		}
	}
	slices.SortFunc(places, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	texts := []string{"", "\x00\xff", "GRSk+RixrMyVG2FtIphVfZFE9hSj/TODWe1qALH5PK8=", "[[[[", "2026-02-30T00:00:00.000Z"}
	for n := range places {
		f.Add(uint8(n), uint8(n/2), texts[n%len(texts)], int64(n-20))
	}
	f.Fuzz(func(t *testing.T, place, kind uint8, text string, number int64) {
		if len(text) > 1<<16 {
			return
		}
		at := places[int(place)%len(places)]
		if at[1] == "org" { // no column of the fixture
			return
		}
		var value any
		switch kind % 5 {
		case 0:
			value = text
		case 1:
			value = []byte(text)
		case 2:
			value = number
		case 3:
			value = float64(number) / 3
		}
		file, dir := tsStore(t), t.TempDir()
		db, err := sql.Open("sqlite", file)
		if err != nil {
			t.Fatal(err)
		}
		_, err = db.Exec("UPDATE "+at[0]+" SET "+at[1]+" = ? WHERE rowid = (SELECT max(rowid) FROM "+at[0]+")", value)
		if e := db.Close(); err != nil || e != nil {
			return // it would break a rule of its own tables
		}
		_, err = importInto(t, importOptions(t, file, dir))
		if err != nil {
			if !errors.Is(err, ErrForeign) && !errors.Is(err, ErrOtherKey) && !errors.Is(err, ErrInUse) && !errors.Is(err, ErrNewerSchema) {
				t.Errorf("%v = %#v: got %v; want a refusal", at, value, err)
			}
			wantOnly(t, dir, "relay.lock")
			return
		}
		s, err := OpenFile(filepath.Join(dir, FileName))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Check(t.Context()), s.Close()); err != nil {
			t.Errorf("%v = %#v: %v", at, value, err)
		}
	})
}
