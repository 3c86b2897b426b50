package web

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

// dist is the front end as it was built (web/ui).
//
//go:embed all:ui/dist
var dist embed.FS

// minGzipBytes is the size from which a file is also kept compressed.
const minGzipBytes = 1024

type pageFile struct {
	data, gz    []byte
	contentType string
	immutable   bool
}

// page serves the front end's files from memory. Only names that were built in
// are known, so no path can lead elsewhere.
type page struct {
	files map[string]*pageFile
}

func newPage() (*page, error) {
	root, err := fs.Sub(dist, "ui/dist")
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	p := &page{files: map[string]*pageFile{}}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		f := &pageFile{data: data, contentType: contentTypeOf(name), immutable: strings.HasPrefix(name, "assets/")}
		if compressible(f.contentType) && len(data) >= minGzipBytes {
			if f.gz, err = compress(data); err != nil {
				return err
			}
		}
		p.files["/"+name] = f
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	if p.files["/index.html"] == nil {
		return nil, fmt.Errorf("page: no index.html was built in")
	}
	return p, nil
}

func contentTypeOf(name string) string {
	switch ext := path.Ext(name); ext {
	case ".js", ".mjs":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".html":
		return "text/html; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".woff2":
		return "font/woff2"
	case ".json", ".map":
		return "application/json"
	default:
		if t := mime.TypeByExtension(ext); t != "" {
			return t
		}
		return "application/octet-stream"
	}
}

func compressible(t string) bool {
	return strings.HasPrefix(t, "text/") || t == "image/svg+xml" || t == "application/json"
}

func compress(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.DefaultCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return bytes.Clone(b.Bytes()), nil
}

// ServeHTTP answers with a file. A path without an extension is a view of the
// page, which is one document.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path
	f := p.files[name]
	if f == nil && path.Ext(name) == "" && !isAPI(name) && !strings.HasPrefix(name, "/-/") && path.Clean(name) == name {
		f = p.files["/index.html"]
	}
	if f == nil {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	if f.immutable {
		// The build puts a hash of the content in these names.
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	} else {
		h.Set("Cache-Control", "no-cache")
	}
	data := f.data
	if f.gz != nil {
		h.Set("Vary", "Accept-Encoding")
		if acceptsGzip(r) {
			h.Set("Content-Encoding", "gzip")
			data = f.gz
		}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

func acceptsGzip(r *http.Request) bool {
	for _, v := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(v), ";")
		if strings.TrimSpace(name) == "gzip" {
			return strings.ReplaceAll(q, " ", "") != "q=0"
		}
	}
	return false
}
