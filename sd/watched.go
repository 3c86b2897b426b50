package sd

import (
	"context"
	"fmt"
	"sync"

	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
)

// starts follows the discoverers that Prometheus's manager makes, which itself
// neither waits for them nor says which it could not make.
type starts struct {
	running *sync.WaitGroup
	failed  []error // of the configuration that is being applied
}

// watched is a mechanism's configuration whose discoverers are followed. The
// manager compares configurations with reflect.DeepEqual to recognise one that
// stays: all those of a Manager share one starts, so that it makes no difference.
type watched struct {
	discovery.Config
	starts *starts
}

// NewDiscoverer makes a discoverer that is counted until its Run returns. The
// manager runs each that it makes.
func (w *watched) NewDiscoverer(opts discovery.DiscovererOptions) (discovery.Discoverer, error) {
	d, err := w.Config.NewDiscoverer(opts)
	if err != nil {
		err = fmt.Errorf("start %s discovery of job %q: %w", w.Name(), opts.SetName, err)
		w.starts.failed = append(w.starts.failed, err)
		return nil, err
	}
	w.starts.running.Add(1)
	return &counted{d, w.starts.running}, nil
}

type counted struct {
	discovery.Discoverer
	running *sync.WaitGroup
}

func (c *counted) Run(ctx context.Context, up chan<- []*targetgroup.Group) {
	defer c.running.Done()
	c.Discoverer.Run(ctx, up)
}
