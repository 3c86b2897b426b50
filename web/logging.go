package web

import (
	"bytes"
	"context"
	stdlog "log"
	"log/slog"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// slogLogger lets the exporter toolkit, which speaks log/slog, log here. What it
// says at the level info the server has said itself.
func slogLogger(logger log.Logger) *slog.Logger {
	return slog.New(&slogHandler{logger: log.With(logger, "component", "web")})
}

type slogHandler struct {
	logger log.Logger
}

func (h *slogHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *slogHandler) Handle(_ context.Context, r slog.Record) error {
	kv := []any{"msg", r.Message}
	r.Attrs(func(a slog.Attr) bool {
		kv = append(kv, a.Key, a.Value.String())
		return true
	})
	switch {
	case r.Level >= slog.LevelError:
		return level.Error(h.logger).Log(kv...)
	case r.Level >= slog.LevelWarn:
		return level.Warn(h.logger).Log(kv...)
	}
	return level.Debug(h.logger).Log(kv...)
}

func (h *slogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var kv []any
	for _, a := range attrs {
		kv = append(kv, a.Key, a.Value.String())
	}
	return &slogHandler{logger: log.With(h.logger, kv...)}
}

func (h *slogHandler) WithGroup(string) slog.Handler { return h }

// stdLogger takes net/http's own messages: mostly clients that break off, so at
// the level debug.
func stdLogger(logger log.Logger) *stdlog.Logger {
	return stdlog.New(writerFunc(func(b []byte) {
		// A logger that fails has nowhere to say so.
		_ = level.Debug(logger).Log("component", "web", "msg", string(bytes.TrimSpace(b)))
	}), "", 0)
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}
