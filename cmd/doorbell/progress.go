// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// newProgress returns benchConfig.Step and a function that removes what it drew. Where w is no terminal, or show is
// false, nothing is drawn.
func newProgress(w io.Writer, name string, show bool) (step func(done, total int, what string), clear func()) {
	f, ok := w.(*os.File)
	if !show || !ok || !term.IsTerminal(int(f.Fd())) {
		return func(int, int, string) {}, func() {}
	}
	bar := progressbar.NewOptions(1,
		progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(name), progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(50*time.Millisecond), progressbar.OptionClearOnFinish(), progressbar.OptionShowCount())
	step = func(done, total int, what string) {
		bar.ChangeMax(max(total, 1))
		bar.Describe(name + " " + what)
		_ = bar.Set(min(done, total)) // a bar that can't be drawn is no reason to stop
	}
	return step, func() { _ = bar.Clear() }
}
