package main

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/agentmbx/agentmbx/admin/jobs"
	"github.com/agentmbx/agentmbx/backup"
)

// What each kind of setting accepts.

func setDir(to *string) func(string) error {
	return func(v string) (err error) {
		if v == "" {
			return errValue
		}
		*to, err = filepath.Abs(v)
		return err
	}
}

const wantSchedule = "five fields of cron, in UTC, or off"

// setSchedule takes no time zone: a schedule that follows one runs twice, or not
// at all, when its clocks are changed.
func setSchedule(to *string) func(string) error {
	return func(v string) error {
		if strings.EqualFold(v, "off") {
			v = "off"
		} else if err := jobs.CheckSchedule(v); err != nil {
			return err
		}
		*to = v
		return nil
	}
}

func setRange(to *int, low, high int) func(string) error {
	return func(v string) error {
		n, err := strconv.Atoi(v)
		if err == nil && (n < low || n > high) {
			err = errValue
		}
		*to = n
		return err
	}
}

func setRecipients(to *string) func(string) error {
	return func(v string) error {
		*to = v
		_, err := backup.ParseRecipients(v)
		return err
	}
}

func setPort(to *int) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseUint(v, 10, 16)
		*to = int(n)
		return err
	}
}

// hostName is a name with at least one letter: digits and dots alone are an
// IP address, or a mistyped one.
var hostName = regexp.MustCompile(`^[A-Za-z0-9.-]{0,252}[A-Za-z][A-Za-z0-9.-]{0,252}$`)

func setBind(to *string) func(string) error {
	return func(v string) error {
		if _, err := netip.ParseAddr(v); err != nil && !hostName.MatchString(v) {
			return err
		}
		*to = v
		return nil
	}
}

func setTrustProxy(to *string) func(string) error {
	return func(v string) error {
		switch v {
		case "xff", "cloudflare", "real-ip":
			*to = v
		case "1", "true":
			*to = "xff"
		case "0", "false":
			*to = ""
		default:
			return errValue
		}
		return nil
	}
}

func setURL(to *string) func(string) error {
	return func(v string) error {
		u, err := url.Parse(v)
		if err != nil {
			return err
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.ContainsAny(v, "?#") {
			return errValue
		}
		*to = strings.TrimRight(v, "/")
		return nil
	}
}

func setOneOf(to *string, values ...string) func(string) error {
	return func(v string) error {
		for _, ok := range values {
			if v == ok {
				*to = v
				return nil
			}
		}
		return errValue
	}
}
