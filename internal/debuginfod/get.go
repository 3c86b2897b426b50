package debuginfod

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/prometheus/common/version"

	"github.com/spanflame/spanflame/internal/elffile"
)

const (
	maxRedirects = 5
	// A server is to send this much within each Options.Timeout, as elfutils has it
	// (DEBUGINFOD_TIMEOUT), and all within wholeTimeouts of them.
	progressBytes = 100 << 10
	wholeTimeouts = 20
	maxWords      = 200 // of an error
)

var (
	errNotFound = errors.New("the server does not have it")
	errTooLarge = errors.New("larger than what may be kept")
	errInvalid  = errors.New("not the debug file that was asked for")
	errStalled  = errors.New("the server is too slow")
)

// serverError is one that is likely to meet the next request, too.
type serverError struct {
	words      string
	retryAfter time.Duration // that the server asks for
}

func (e *serverError) Error() string { return e.words }

// checkRedirect follows to other hosts, as servers of distributions store their files
// elsewhere, but not from https to http.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	if via[len(via)-1].URL.Scheme == "https" && req.URL.Scheme != "https" {
		return errors.New("redirected from https to " + req.URL.Scheme)
	}
	return nil
}

// get fetches a file from one server into the directory.
func (c *Client) get(s *server, id string) error {
	ctx, cancelWhole := context.WithTimeoutCause(c.ctx, wholeTimeouts*c.opts.Timeout, errStalled)
	defer cancelWhole()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(c.opts.Timeout, func() { cancel(errStalled) })
	defer stall.Stop()

	limit := min(maxFile, c.opts.MaxBytes)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url.JoinPath("buildid", id, "debuginfo").String(), nil)
	if err != nil {
		return &serverError{words: "the URL cannot be used"}
	}
	req.Header.Set("User-Agent", "spanflame/"+version.Version)
	req.Header.Set("X-DEBUGINFOD-MAXSIZE", strconv.FormatInt(limit, 10))
	resp, err := c.http.Do(req)
	if err != nil {
		return transportError(ctx, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone, http.StatusBadRequest:
		return errNotFound
	case http.StatusNotAcceptable: // the answer to X-DEBUGINFOD-MAXSIZE
		return errTooLarge
	default:
		return &serverError{words: "status " + strconv.Itoa(resp.StatusCode), retryAfter: retryAfter(resp.Header.Get("Retry-After"))}
	}
	if resp.ContentLength > limit {
		return errTooLarge
	}
	stall.Reset(c.opts.Timeout)
	return c.receive(ctx, resp, id, limit, &progress{r: resp.Body, stall: stall, every: c.opts.Timeout})
}

// receive writes an answer to a temporary file, and keeps it if it is the right one.
func (c *Client) receive(ctx context.Context, resp *http.Response, id string, limit int64, body io.Reader) error {
	// Error pages and the like are refused before room is made for them.
	buf := make([]byte, 256<<10)
	n, err := io.ReadFull(body, buf[:len(elf.ELFMAG)])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return transportError(ctx, err)
	}
	if string(buf[:n]) != elf.ELFMAG {
		return fmt.Errorf("%w: no ELF file", errInvalid)
	}
	t, err := c.dir.create()
	if err != nil {
		return err
	}
	defer t.drop() // does nothing once it is kept
	if resp.ContentLength > 0 {
		if err := t.reserve(resp.ContentLength); err != nil {
			return err
		}
	}
	if err := t.write(buf[:n]); err != nil {
		return err
	}
	for {
		n, err := body.Read(buf)
		if t.size+int64(n) > limit {
			return errTooLarge
		}
		if werr := t.write(buf[:n]); werr != nil {
			return werr
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return transportError(ctx, err)
		}
	}
	if want, err := strconv.ParseInt(resp.Header.Get("X-DEBUGINFOD-SIZE"), 10, 64); err == nil && want != t.size {
		return fmt.Errorf("%w: %d of %d bytes", errInvalid, t.size, want)
	}
	if err := check(t.f, t.size, id); err != nil {
		return err
	}
	return t.keep(id)
}

// check says whether a file is the debug file of a build id.
func check(f *os.File, size int64, id string) error {
	e, err := elffile.Open(f, size)
	if err == nil {
		err = e.SectionsErr
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	if e.GNUBuildID() != id {
		return fmt.Errorf("%w: it has another build id", errInvalid)
	}
	return nil
}

// progress puts the end of a request off as long as enough comes.
type progress struct {
	r     io.Reader
	stall *time.Timer
	every time.Duration
	n     int
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if p.n += n; p.n >= progressBytes {
		p.n = 0
		p.stall.Reset(p.every)
	}
	return n, err
}

// transportError leaves out the URL, which net/http puts first.
func transportError(ctx context.Context, err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return &serverError{words: clean(err.Error())}
}

// clean makes what may hold a server's words fit for a line of a log.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), maxWords)], "")
}

// retryAfter reads the header's form in seconds (RFC 9110, section 10.2.3).
func retryAfter(s string) time.Duration {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Second
}
