// Package runtimes is the list of the runtimes whose code the agent can name by reading
// their own structures in memory. To add one, write a package in a folder of this one, and
// put its Runtime in the list: nothing else has to change.
package runtimes

import (
	"github.com/spanflame/spanflame/internal/madecode"
	"github.com/spanflame/spanflame/runtimes/hotspot"
	"github.com/spanflame/spanflame/runtimes/v8"
)

// All are the runtimes.
var All = []madecode.Runtime{
	hotspot.Runtime,
	v8.Runtime,
}
