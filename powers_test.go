// SPDX-License-Identifier: Apache-2.0

package doorbell

import (
	"errors"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/internal/device"
)

// weakDevice is a device without any power.
type weakDevice struct{ device.Device }

func (weakDevice) Name() string          { return "weak" }
func (weakDevice) Powers() device.Powers { return device.Powers{} }

// TestMultimemIsRefused: a device that has no Multimem is named, and one that has it.
func TestMultimemIsRefused(t *testing.T) {
	c := &Comm{dev: weakDevice{}}
	err := c.multimem(Needs{Multimem: true})
	if !errors.Is(err, ErrNotSupported) {
		t.Fatalf("%v, want ErrNotSupported", err)
	}
	for _, s := range []string{"multimem", `"weak"`, `"soft"`, "emulated"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v: it does not say %s", err, s)
		}
	}
	if err := c.multimem(Needs{}); err != nil {
		t.Errorf("who does not ask for it is refused: %v", err)
	}
}
