package sqlite

import (
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
)

// space watches the room on the device. New mail is refused before the disk is
// full, so that pulls and acks, which need room too, go on; and a small
// reserve file is given back when it fills up all the same, since a database
// with a write-ahead log cannot even be opened without room.
type space struct {
	reserve string
	dir     string
	measure func(dir string) (free, size int64, err error)
	log     *slog.Logger
	low     atomic.Bool
}

const (
	mostKept    = 32 << 20 // below so much room new mail is refused, or a tenth of a small device
	mostReserve = 16 << 20 // the reserve file, or a twentieth of a small device
)

func kept(size int64) int64 { return min(mostKept, size/10) }

func reserve(size int64) int64 { return min(mostReserve, size/20) }

// logPages is how long the log may grow before it is folded into the database:
// half the reserve, so that the reserve is room enough to fold it.
func (s *space) logPages() int64 {
	_, size, err := s.free(s.dir)
	if err != nil {
		size = 0
	}
	return max(reserve(size)/2/pageSize, 64)
}

func newSpace(dir string, measure func(string) (int64, int64, error), log *slog.Logger) *space {
	if measure == nil {
		measure = statfs
	}
	return &space{reserve: filepath.Join(dir, reserveName), dir: dir, measure: measure, log: log}
}

func statfs(dir string) (free, size int64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
}

// headroom is how much new mail one group may take, 0 when it is refused: no
// more than leaves half of what is kept. It costs one system call; the writer
// asks once a group.
func (s *space) headroom() int64 {
	free, size, err := s.free(s.dir)
	if err != nil {
		return math.MaxInt64 // the write itself will tell
	}
	kept := kept(size)
	switch low := s.low.Load(); {
	case !low && free < kept:
		s.low.Store(true)
		s.log.Error("disk nearly full: new mail is refused until there is room", "dir", s.dir, "free_bytes", free, "needed_bytes", kept)
	case low && free >= kept+kept/4+s.missing(size): // and room for the reserve, which is written after the group
		s.low.Store(false)
		s.log.Info("there is room again: new mail is taken", "dir", s.dir, "free_bytes", free)
	}
	if s.low.Load() {
		return 0
	}
	return free - s.missing(size) - kept/2
}

// missing is what the reserve file lacks.
func (s *space) missing(size int64) int64 {
	st, err := os.Lstat(s.reserve)
	if err != nil {
		return reserve(size)
	}
	return max(reserve(size)-st.Size(), 0)
}

// room reports whether there is any for new mail.
func (s *space) room() bool { return s.headroom() > 0 }

func (s *space) free(dir string) (free, size int64, err error) { return s.measure(dir) }

// full is called when a write met a full disk. It reports whether things
// changed, so that the same acks may find room now.
func (s *space) full() (again bool) {
	if again = !s.low.Swap(true); again {
		s.log.Error("disk full: new mail is refused until there is room; giving back the reserve", "dir", s.dir)
	}
	return s.giveReserve() || again
}

// beforeOpen makes the room that opening needs.
func (s *space) beforeOpen() {
	if !s.room() {
		s.giveReserve()
	}
}

func (s *space) afterOpen() {
	_ = s.room() // look, for keepReserve
	s.keepReserve()
}

func (s *space) giveReserve() (gave bool) {
	err := os.Remove(s.reserve)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("the reserve file stays", "err", err)
	}
	return err == nil
}

// keepReserve writes the reserve file anew, unless room is scarce. It holds real blocks: a file with
// holes would give nothing back.
func (s *space) keepReserve() {
	_, size, err := s.free(s.dir)
	if err != nil {
		return
	}
	if s.low.Load() || s.missing(size) == 0 {
		return
	}
	if err := os.WriteFile(s.reserve, make([]byte, reserve(size)), 0o600); err != nil {
		s.log.Warn("no reserve file: a full disk will need room made by hand", "err", err)
		s.giveReserve()
	}
}
