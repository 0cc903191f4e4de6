package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A backup to a file of the operator's choosing is written where no sweep looks.
// So a note stands in the folder meanwhile: one line, the path of the unfinished
// file.
const (
	notePrefix = ".making-"
	maxNote    = 16 << 10
)

func (f *Folder) noteName() string { return notePrefix + shortKey(f.Key) }

// plainCopy is where what goes to such a file encrypted stands before.
func (f *Folder) plainCopy() string { return filepath.Join(f.Dir, "plain-copy"+f.suffix()) }

// note writes down where the backup is made, before it is. A folder that cannot
// take the note must not be in the way of a backup to another disk: it may be why
// the operator wants one there.
func (m *making) note() {
	path := filepath.Join(m.Dir, m.noteName())
	err := m.prepare()
	if err == nil {
		if err := m.sweepNoted(); err != nil {
			m.log().Warn("what a crash left of an earlier backup stays", "err", err)
		}
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		if err = writeNew(path, []byte(m.path+m.suffix()+"\n")); err == nil {
			m.noted = true
			err = syncDir(m.Dir)
		}
	}
	if err != nil {
		m.log().Warn("if the process is killed now, an unfinished file stays: the backup folder takes no note of it",
			"file", m.path+m.suffix(), "err", err)
	}
}

// unnote removes the note; one that stays does no harm.
func (m *making) unnote() {
	if m.noted {
		m.noted = false
		_ = os.Remove(filepath.Join(m.Dir, m.noteName()))
	}
}

// sweepNoted settles what a crash left of a backup to a file elsewhere. The note
// is believed only as far as it names what we call our unfinished files.
func (f *Folder) sweepNoted() error {
	note := filepath.Join(f.Dir, f.noteName())
	st, err := os.Lstat(note)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !st.Mode().IsRegular() || !ownedByUs(st) {
		return err
	}
	b, err := readSmall(note, maxNote)
	if err != nil {
		return err
	}
	path, whole := strings.CutSuffix(string(b), "\n")
	if whole && filepath.IsAbs(path) && filepath.Clean(path) == path && f.partial().MatchString(filepath.Base(path)) && !strings.ContainsRune(path, 0) {
		if err := f.sweepOne(strings.TrimSuffix(path, f.suffix())); err != nil {
			return fmt.Errorf("sweep what %s names: %w", note, err)
		}
	}
	return f.removeOurs(note)
}
