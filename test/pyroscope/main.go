// Command pyroscope-test is a real Pyroscope v1.7.1 for tests: its distributor
// and its ingester, unmodified, in one process on loopback, with a small query
// surface of our own (see query.go). It keeps nothing that a test should rely on
// across a restart, and it is no server for anybody's data.
//
// SPDX-License-Identifier: AGPL-3.0-only
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c"
)

type options struct {
	listen        string
	readyFile     string
	data          string
	tenants       bool
	rateMB        float64
	burstMB       float64
	exitWithStdin bool
	debug         bool
}

func main() {
	var o options
	flag.StringVar(&o.listen, "listen", "127.0.0.1:0", "Address to serve HTTP on.")
	flag.StringVar(&o.readyFile, "ready-file", "", "File that is written with the server's URL once it can take pushes.")
	flag.StringVar(&o.data, "data", "", "Directory for the server's data. Empty: a temporary one, removed at exit.")
	flag.BoolVar(&o.tenants, "tenants", false, "Demand the header X-Scope-OrgID.")
	flag.Float64Var(&o.rateMB, "rate-mb", 0, "Ingestion rate limit of a tenant in MB/s. 0: Pyroscope's default.")
	flag.Float64Var(&o.burstMB, "burst-mb", 0, "Ingestion burst of a tenant in MB. 0: Pyroscope's default.")
	flag.BoolVar(&o.exitWithStdin, "exit-with-stdin", false, "Exit when standard input is closed, so as not to outlive the test.")
	flag.BoolVar(&o.debug, "debug", false, "Log at debug level.")
	flag.Parse()

	logger := log.NewLogfmtLogger(log.NewSyncWriter(os.Stderr))
	lvl := level.AllowWarn()
	if o.debug {
		lvl = level.AllowDebug()
	}
	logger = level.NewFilter(log.With(logger, "ts", log.DefaultTimestampUTC), lvl)

	if err := run(o, logger); err != nil {
		fmt.Fprintln(os.Stderr, "pyroscope-test:", err)
		os.Exit(1)
	}
}

func run(o options, logger log.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.exitWithStdin {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}

	if o.data == "" {
		dir, err := os.MkdirTemp("", "pyroscope-test-")
		if err != nil {
			return fmt.Errorf("make a data directory: %w", err)
		}
		defer os.RemoveAll(dir)
		o.data = dir
	}

	ln, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", o.listen, err)
	}
	url := "http://" + ln.Addr().String()

	s, err := newServer(o, ln.Addr().(*net.TCPAddr), logger)
	if err != nil {
		_ = ln.Close()
		return err
	}
	// The distributor calls the ingester over HTTP/2 without TLS, and so does the
	// query surface for its streams.
	srv := &http.Server{
		Handler:           h2c.NewHandler(s.mux, &http2.Server{}),
		ReadHeaderTimeout: 10 * time.Second,
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()

	if err := s.start(ctx); err != nil {
		_ = srv.Close()
		return err
	}
	defer s.stop()

	if o.readyFile != "" {
		if err := writeReadyFile(o.readyFile, url); err != nil {
			_ = srv.Close()
			return err
		}
	}
	fmt.Println(url)

	select {
	case <-ctx.Done():
		_ = srv.Close()
		return nil
	case err := <-served:
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serve on %s: %w", url, err)
	}
}

// writeReadyFile makes the file appear whole: whoever waits for it may read it
// as soon as it is there.
func writeReadyFile(name, url string) error {
	tmp := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".tmp")
	if err := os.WriteFile(tmp, []byte(url), 0o644); err != nil {
		return fmt.Errorf("write ready file: %w", err)
	}
	if err := os.Rename(tmp, name); err != nil {
		return fmt.Errorf("write ready file: %w", err)
	}
	return nil
}
