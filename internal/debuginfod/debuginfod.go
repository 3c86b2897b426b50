// Package debuginfod fetches separate debug files by build id from servers that speak
// debuginfod's protocol, and keeps them in a directory within a bound of bytes. Whoever
// asks for a file never waits: it is there, or it may be there later.
//
// Both sides are hostile. Build ids come from programs that are profiled: they are
// checked, and their number is bounded. What a server sends is bounded in size and time,
// and is kept only if it is an ELF file with the build id that was asked for.
//
// Format: debuginfod(8) of elfutils, "WEBAPI".
package debuginfod

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	promconfig "github.com/prometheus/common/config"
)

// Options of a client. The zero value asks nobody.
type Options struct {
	// URLs are the servers, asked in this order. User information becomes basic
	// authentication.
	URLs []string
	// Dir is the folder that files are kept in, made if it is missing. It is the
	// client's alone.
	Dir string
	// MaxBytes bounds the files in Dir, those that are being fetched too; 1 GiB by default.
	MaxBytes int64
	// Timeout is how long a server may take until it answers, and then for each further
	// 100 KiB; 90 s by default.
	Timeout time.Duration
}

// Defaults of Options.
const (
	DefaultMaxBytes = 1 << 30
	DefaultTimeout  = 90 * time.Second
)

// Equal says whether two options do the same.
func (o Options) Equal(p Options) bool {
	if len(o.URLs) == 0 && len(p.URLs) == 0 {
		return true
	}
	return slices.Equal(o.URLs, p.URLs) && o.Dir == p.Dir && o.MaxBytes == p.MaxBytes && o.Timeout == p.Timeout
}

// Results of asking for a file, as they are counted.
const (
	Found     = "found"
	NotFound  = "not_found"  // no server has it
	Failed    = "failed"     // a server could not be asked, and no other has it
	Invalid   = "invalid"    // what came is not the file that was asked for
	TooLarge  = "too_large"  // than MaxBytes, or than 2 GiB
	NotKept   = "not_kept"   // the folder cannot be written to, or is full
	QueueFull = "queue_full" // it was not asked for, because too many are being waited for
)

// Results are all of them.
var Results = []string{Found, NotFound, Failed, Invalid, TooLarge, NotKept, QueueFull}

// Hooks are called when something is to be counted; nil ones are not.
type Hooks struct {
	Result  func(result string)
	Evicted func()
}

const (
	workers    = 2
	maxWaiting = 256     // files in the queue
	maxRefused = 1 << 14 // build ids that are remembered not to be had
	maxFile    = 2 << 30
	maxBuildID = 64

	// How long it takes until a file is asked for again.
	retryNotFound = time.Hour
	retryFailed   = 10 * time.Minute
	// How long a server is left alone that failed, or the folder; doubled each time.
	minPause = 30 * time.Second
	maxPause = time.Hour
)

// Client fetches files. It is safe for concurrent use.
type Client struct {
	logger  log.Logger
	opts    Options
	hooks   Hooks
	http    *http.Client
	servers []*server
	dir     *directory
	queue   chan string
	now     func() time.Time

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex           // guards the rest, and the servers' pauses
	waiting map[string]struct{}  // in the queue, or being fetched
	refused map[string]time.Time // when to ask for a file again
	disk    pause
}

// server is one of Options.URLs.
type server struct {
	url   *url.URL
	name  string // without user information: for logs
	pause pause
}

// pause grows with each failure. Its methods say whether to log.
type pause struct {
	failures int
	until    time.Time
}

func (p *pause) fail(now time.Time, least time.Duration) (first bool) {
	d := minPause << min(p.failures, 10)
	p.until = now.Add(min(max(d, least), maxPause))
	p.failures++
	return p.failures == 1
}

func (p *pause) succeed() (again bool) {
	again = p.failures > 0
	*p = pause{}
	return again
}

// New makes a client and starts its workers. A folder that cannot be used is no error:
// it is logged, and tried again.
func New(logger log.Logger, opts Options, hooks Hooks) (*Client, error) {
	return newClient(logger, opts, hooks, time.Now)
}

func newClient(logger log.Logger, opts Options, hooks Hooks, now func() time.Time) (*Client, error) {
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = DefaultMaxBytes
	}
	if opts.Timeout <= 0 {
		opts.Timeout = DefaultTimeout
	}
	if hooks.Result == nil {
		hooks.Result = func(string) {}
	}
	if hooks.Evicted == nil {
		hooks.Evicted = func() {}
	}
	c := &Client{
		logger: logger, opts: opts, hooks: hooks, now: now,
		queue:   make(chan string, maxWaiting),
		waiting: map[string]struct{}{},
		refused: map[string]time.Time{},
	}
	for _, s := range opts.URLs {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, errors.New("debuginfod: not the URL of a server") // without it: there may be a password in it
		}
		plain := *u
		plain.User = nil
		c.servers = append(c.servers, &server{url: u, name: plain.String()})
	}
	var err error
	if c.http, err = promconfig.NewClientFromConfig(promconfig.DefaultHTTPClientConfig, "debuginfod"); err != nil {
		return nil, fmt.Errorf("debuginfod: HTTP client: %w", err)
	}
	c.http.CheckRedirect = checkRedirect
	c.dir = newDirectory(opts.Dir, opts.MaxBytes, now, hooks.Evicted)
	if err := c.dir.open(); err != nil {
		c.diskFailed(err)
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for range workers {
		c.wg.Add(1)
		go c.work()
	}
	return c, nil
}

// Close ends what is being fetched. Files that were opened stay usable.
func (c *Client) Close() {
	c.cancel()
	c.wg.Wait()
	c.http.CloseIdleConnections()
	c.dir.close()
}

// Stats are the files that are kept, and their bytes on disk.
func (c *Client) Stats() (files int, bytes int64) { return c.dir.stats() }

// Open opens the debug file of a build id if it is here. It is not evicted until release is
// called. Else the file is asked for, and the error wraps os.ErrNotExist.
func (c *Client) Open(id string) (f *os.File, release func(), err error) {
	if !c.Ask(id) {
		return nil, nil, fmt.Errorf("debug file of build id %.40q: %w", id, os.ErrNotExist)
	}
	return c.dir.openFile(id)
}

// Discard removes a file that turned out to be unusable.
func (c *Client) Discard(id string) {
	c.refuse(id, retryFailed)
	c.dir.remove(id)
}

// Ask says whether the debug file of a build id is here. If not, it will be fetched, unless
// that has failed lately. It takes no longer than a look into a map.
func (c *Client) Ask(id string) (here bool) {
	if !validBuildID(id) {
		return false
	}
	if c.dir.has(id) {
		return true
	}
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.waiting[id]; ok || now.Before(c.disk.until) || c.ctx.Err() != nil {
		return false
	}
	if again, ok := c.refused[id]; ok {
		if now.Before(again) {
			return false
		}
		delete(c.refused, id)
	}
	if !slices.ContainsFunc(c.servers, func(s *server) bool { return !now.Before(s.pause.until) }) {
		return false
	}
	select {
	case c.queue <- id:
		c.waiting[id] = struct{}{}
	default:
		c.hooks.Result(QueueFull)
	}
	return false
}

// validBuildID says whether the id is safe in a URL and as the name of a file.
func validBuildID(id string) bool {
	if len(id) < 4 || len(id) > 2*maxBuildID || len(id)%2 != 0 {
		return false
	}
	for i := range len(id) {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func (c *Client) work() {
	defer c.wg.Done()
	for {
		select {
		case <-c.ctx.Done():
			return
		case id := <-c.queue:
			if c.ctx.Err() != nil {
				return
			}
			c.fetch(id)
			c.mu.Lock()
			delete(c.waiting, id)
			c.mu.Unlock()
		}
	}
}

// fetch asks one server after the other.
func (c *Client) fetch(id string) {
	if err := c.dir.open(); err != nil {
		c.diskFailed(err)
		return
	}
	if c.dir.has(id) {
		return // the folder could not be opened when it was asked for
	}
	result, asked := NotFound, false
	for _, s := range c.servers {
		c.mu.Lock()
		paused := c.now().Before(s.pause.until)
		c.mu.Unlock()
		if paused {
			result = Failed
			continue
		}
		asked = true
		err := c.get(s, id)
		if c.ctx.Err() != nil {
			return
		}
		var de *diskError
		var se *serverError
		switch {
		case err == nil:
			c.succeeded(s)
			c.mu.Lock()
			c.disk.succeed()
			c.mu.Unlock()
			c.hooks.Result(Found)
			level.Debug(c.logger).Log("msg", "a debug file was fetched", "build_id", id, "server", s.name)
			return
		case errors.As(err, &de):
			c.diskFailed(de)
			return
		case errors.Is(err, errNoRoom):
			c.refuse(id, retryNotFound)
			c.hooks.Result(NotKept)
			level.Debug(c.logger).Log("msg", "a debug file was not kept", "build_id", id, "err", err)
			return
		case errors.As(err, &se):
			c.failed(s, se)
			result = Failed
		case errors.Is(err, errNotFound):
			c.succeeded(s)
		default:
			c.succeeded(s)
			level.Debug(c.logger).Log("msg", "a debug file was refused", "build_id", id, "server", s.name, "err", err)
			if result == NotFound {
				result = Invalid
				if errors.Is(err, errTooLarge) {
					result = TooLarge
				}
			}
		}
	}
	if !asked {
		return // all failed while it was in the queue; it may be asked for again at once
	}
	again := retryNotFound
	if result == Failed {
		again = retryFailed
	}
	c.refuse(id, again)
	c.hooks.Result(result)
}

// refuse remembers that a file is not to be had.
func (c *Client) refuse(id string, d time.Duration) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.refused) >= maxRefused {
		for other, again := range c.refused {
			if !now.Before(again) {
				delete(c.refused, other)
			}
		}
		for other := range c.refused { // any: it is asked for once more
			if len(c.refused) < maxRefused {
				break
			}
			delete(c.refused, other)
		}
	}
	c.refused[id] = now.Add(d)
}

func (c *Client) succeeded(s *server) {
	c.mu.Lock()
	again := s.pause.succeed()
	c.mu.Unlock()
	if again {
		level.Info(c.logger).Log("msg", "the debuginfod server answers again", "server", s.name)
	}
}

func (c *Client) failed(s *server, err *serverError) {
	c.mu.Lock()
	first := s.pause.fail(c.now(), err.retryAfter)
	c.mu.Unlock()
	l := level.Debug(c.logger)
	if first {
		l = level.Warn(c.logger)
	}
	l.Log("msg", "a debuginfod server failed; it is left alone for a while", "server", s.name, "err", err)
}

// diskFailed pauses everything: it is no matter of one file.
func (c *Client) diskFailed(err error) {
	c.hooks.Result(NotKept)
	c.mu.Lock()
	first := c.disk.fail(c.now(), 0)
	c.mu.Unlock()
	l := level.Debug(c.logger)
	if first {
		l = level.Warn(c.logger)
	}
	l.Log("msg", "debug files cannot be kept; the profile goes on without them", "err", err)
}
