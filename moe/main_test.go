// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"errors"
	"flag"
	"os"
	"testing"

	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

func TestMain(m *testing.M) {
	flag.Parse()
	testenv.Rapid(100, 1000)
	os.Exit(m.Run())
}

// onDevice says whether ranks have memory that the host does not reach: they are on a GPU, or the software device does as if.
func onDevice() bool {
	device, err1 := env.Device.Get(nil)
	far, err2 := env.Far.Get(nil)
	return errors.Join(err1, err2) == nil && (device == "cuda" || far)
}
