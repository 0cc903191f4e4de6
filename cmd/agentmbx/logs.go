package main

import (
	"io"
	"log/slog"
)

// newLog makes the logger of a serving process. As text it is talk and goes to
// errw; as JSON it is for a machine that reads out, and that wants the text
// under "message" (stderr lines count as errors there).
func newLog(format string, out, errw io.Writer) *slog.Logger {
	if format == "json" {
		return slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) > 0 {
				return a
			}
			switch a.Key {
			case slog.MessageKey:
				a.Key = "message"
			case slog.LevelKey:
				if l, ok := a.Value.Any().(slog.Level); ok {
					a.Value = slog.StringValue(lower(l))
				}
			}
			return a
		}}))
	}
	return slog.New(slog.NewTextHandler(errw, nil))
}

func lower(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "error"
	case l >= slog.LevelWarn:
		return "warn"
	case l >= slog.LevelInfo:
		return "info"
	}
	return "debug"
}
