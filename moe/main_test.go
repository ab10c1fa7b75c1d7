// SPDX-License-Identifier: Apache-2.0

package moe_test

import (
	"flag"
	"os"
	"testing"

	"github.com/doorbell-net/doorbell/internal/testenv"
)

func TestMain(m *testing.M) {
	flag.Parse()
	testenv.Rapid(100, 1000)
	os.Exit(m.Run())
}
