// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package launch

import (
	"context"
	"fmt"
	"runtime"
)

// Main does nothing here.
func Main() {}

// Run needs what only Linux gives: process groups that die with their launcher.
func Run(context.Context, Options) (int, error) {
	return ExitUnavailable, fmt.Errorf("starting ranks as processes is not available on %s; use ranks in one process", runtime.GOOS)
}
