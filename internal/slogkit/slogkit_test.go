package slogkit

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

type lazy struct{}

func (lazy) LogValue() slog.Value { return slog.StringValue("resolved") }

func TestLines(t *testing.T) {
	var out bytes.Buffer
	logger := New(level.NewFilter(log.NewLogfmtLogger(&out), level.AllowInfo()))
	base := logger.With("shared", 1)
	_ = base.With("other", 2) // must not show in base's lines
	for _, c := range []struct {
		name string
		log  func()
		want string
	}{
		{"a level that is not written", func() { logger.Debug("no") }, ""},
		{"keys and values", func() { logger.Info("hello", "n", 1, "err", errors.New("bad luck")) }, "level=info msg=hello n=1 err=\"bad luck\"\n"},
		{"a level between", func() { logger.Log(t.Context(), slog.LevelWarn+1, "x") }, "level=warn msg=x\n"},
		{"above error", func() { logger.Log(t.Context(), slog.LevelError+4, "x") }, "level=error msg=x\n"},
		{"groups", func() {
			logger.With("a", 1).WithGroup("g").WithGroup("").With("b", 2).Warn("x", slog.Group("h", "c", 3), slog.Group("", "d", 4), slog.Attr{})
		}, "level=warn msg=x a=1 g.b=2 g.h.c=3 g.d=4\n"},
		{"values that are made late", func() { logger.Info("x", "v", lazy{}) }, "level=info msg=x v=resolved\n"},
		{"loggers do not share fields", func() { base.Info("x") }, "level=info msg=x shared=1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out.Reset()
			c.log()
			if got := out.String(); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
