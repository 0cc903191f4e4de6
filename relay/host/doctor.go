package host

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Level is how much a check matters.
type Level string

// The levels, from good to bad. A warning asks for a person sooner or later; a
// failure is mail that does not flow, or a home that can't be used.
const (
	LevelOK   Level = "ok"
	LevelInfo Level = "info"
	LevelWarn Level = "warn"
	LevelFail Level = "fail"
)

// Check is one thing that Doctor looked at. What is a warning or a failure has a fix.
type Check struct {
	Level Level  `json:"level"`
	Name  string `json:"name"`
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"`
}

// Diagnosis is what Doctor found. Host and Fingerprint are empty when the home
// does not say them.
type Diagnosis struct {
	Home        string  `json:"home"`
	Host        string  `json:"host"`
	Fingerprint string  `json:"fingerprint"`
	Healthy     bool    `json:"healthy"` // no check failed
	Checks      []Check `json:"checks"`
}

// Doctor looks at a home and says how it is, also at one that can't be opened.
// It reads what is stored there and calls nobody: of the relay it tells how the
// last pass went. It changes nothing.
func Doctor(ctx context.Context, o Options) Diagnosis {
	return newExaminer(o).examine(ctx)
}

// examiner collects the checks of one home.
type examiner struct {
	o        Options
	now      time.Time
	free     func(dir string) (int64, error) // bytes
	writable func(path string) error

	config  Config
	keys    *keyring
	running bool // a daemon
	lockBad bool // whether one runs can't be told

	badAccount bool // the sign-in or the cloud key can't be used
	checks     []Check
}

func newExaminer(o Options) *examiner {
	now := time.Now
	if o.Now != nil {
		now = o.Now
	}
	return &examiner{o: o, now: now(), free: freeBytes, writable: mayWrite}
}

func (e *examiner) examine(ctx context.Context) Diagnosis {
	if e.checkHome() {
		e.checkConfig()
		e.checkKeys()
		e.checkAccount()
		e.checkDisk()
		e.checkLock()
		e.checkDatabase(ctx)
	}
	d := Diagnosis{Home: e.o.Home, Host: e.config.Host, Checks: e.checks, Healthy: true}
	if e.keys != nil {
		d.Fingerprint = e.keys.key.Public().Fingerprint()
	}
	for _, c := range d.Checks {
		d.Healthy = d.Healthy && c.Level != LevelFail
	}
	return d
}

// checkContents looks at what is stored.
func (e *examiner) checkContents(t *tx) error {
	for _, check := range []func(*tx) error{
		e.checkClock, e.checkDaemon, e.checkRelay, e.checkSession, e.checkHeld, e.checkQuarantine,
		e.checkRotations, e.checkPeers, e.checkTokens, e.checkOutbox, e.checkReceipts,
	} {
		if err := check(t); err != nil {
			return err
		}
	}
	return nil
}

func (e *examiner) ok(name, text string)        { e.add(LevelOK, name, text, "") }
func (e *examiner) info(name, text, fix string) { e.add(LevelInfo, name, text, fix) }
func (e *examiner) warn(name, text, fix string) { e.add(LevelWarn, name, text, fix) }
func (e *examiner) fail(name, text, fix string) { e.add(LevelFail, name, text, fix) }

func (e *examiner) add(level Level, name, text, fix string) {
	e.checks = append(e.checks, Check{level, name, printable(text), printable(fix)})
}

// failed adds the check of an error. Ours say what is wrong, then what to do.
func (e *examiner) failed(name string, err error, otherwise string) {
	text, fix, ok := strings.Cut(oneLine(err), ": ")
	if !ok {
		fix = otherwise
	}
	e.fail(name, text, fix)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// String is the diagnosis for people: a line a check, its fix below it, and the
// sum at the end.
func (d Diagnosis) String() string {
	width := 0
	for _, c := range d.Checks {
		width = max(width, len(c.Name))
	}
	var b strings.Builder
	var fails, warns int64
	for _, c := range d.Checks {
		switch c.Level {
		case LevelFail:
			fails++
		case LevelWarn:
			warns++
		}
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", c.Level, width, c.Name, c.Text)
		if c.Fix != "" {
			fmt.Fprintf(&b, "      %*s  fix: %s\n", width, "", c.Fix)
		}
	}
	switch {
	case fails > 0:
		fmt.Fprintf(&b, "\n%s, %s\n", plural(fails, "failure"), plural(warns, "warning"))
	case warns > 0:
		fmt.Fprintf(&b, "\nhealthy, %s\n", plural(warns, "warning"))
	default:
		b.WriteString("\nhealthy\n")
	}
	return b.String()
}

// at is a stored time.
func (e *examiner) at(ms int64) time.Time { return time.UnixMilli(ms) }

// ago says how long something is past.
func (e *examiner) ago(ms int64) string {
	switch d := e.now.Sub(e.at(ms)); {
	case d < -time.Minute:
		return span(-d) + " ahead of the clock"
	case d < 2*time.Second:
		return "just now"
	default:
		return span(d) + " ago"
	}
}

// lasts says for how long something has been so.
func (e *examiner) lasts(ms int64) string { return "for " + span(max(0, e.now.Sub(e.at(ms)))) }

// span is a duration in the largest unit that fits it.
func span(d time.Duration) string {
	switch {
	case d < time.Minute:
		return plural(int64(d/time.Second), "second")
	case d < time.Hour:
		return plural(int64(d/time.Minute), "minute")
	case d < 48*time.Hour:
		return plural(int64(d/time.Hour), "hour")
	}
	return plural(int64(d/(24*time.Hour)), "day")
}

// few joins names, the first ones of many.
func few(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}
