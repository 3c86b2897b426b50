// Package slogkit hands what libraries log through log/slog to a logger of
// go-kit/log, with the same levels and as flat keys.
package slogkit

import (
	"context"
	"log/slog"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// New returns a logger that writes to the given one. The time is left out: the
// logger that writes adds its own.
func New(logger log.Logger) *slog.Logger { return slog.New(&handler{logger: logger}) }

type handler struct {
	logger log.Logger
	prefix string // of the open groups, with a dot at its end
	fields []any  // keys and values so far
}

// Enabled is always true: which levels are written is decided by the logger, which
// cannot be asked.
func (h *handler) Enabled(context.Context, slog.Level) bool { return true }

func (h *handler) Handle(_ context.Context, r slog.Record) error {
	fields := make([]any, 0, 2+len(h.fields)+2*r.NumAttrs())
	fields = append(fields, "msg", r.Message)
	fields = append(fields, h.fields...)
	r.Attrs(func(a slog.Attr) bool {
		fields = appendAttr(fields, h.prefix, a)
		return true
	})
	logger := h.logger
	switch {
	case r.Level >= slog.LevelError:
		logger = level.Error(logger)
	case r.Level >= slog.LevelWarn:
		logger = level.Warn(logger)
	case r.Level >= slog.LevelInfo:
		logger = level.Info(logger)
	default:
		logger = level.Debug(logger)
	}
	return logger.Log(fields...)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	next.fields = append([]any(nil), h.fields...)
	for _, a := range attrs {
		next.fields = appendAttr(next.fields, h.prefix, a)
	}
	return &next
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	next := *h
	next.prefix += name + "."
	return &next
}

// appendAttr adds an attribute; those of a group go under the group's name and a
// dot. Attributes that log/slog says are to be ignored are.
func appendAttr(fields []any, prefix string, a slog.Attr) []any {
	value := a.Value.Resolve()
	if a.Key == "" && value.Equal(slog.Value{}) {
		return fields
	}
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, in := range value.Group() {
			fields = appendAttr(fields, prefix, in)
		}
		return fields
	}
	return append(fields, prefix+a.Key, value.Any())
}
