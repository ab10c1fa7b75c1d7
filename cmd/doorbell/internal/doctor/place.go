// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// place looks at a rendezvous that is a file: whether this host sees its folder and may write there, of what storage that
// is, and whether something stands at the path already. It leaves nothing behind.
func place(m *Machine, path string) Result {
	const how = "give file:/PATH in a folder that all hosts share, and that you may write to"
	dir := filepath.Dir(path)
	probe, err := os.CreateTemp(dir, ".doorbell-doctor.*")
	if err != nil {
		return Result{Missing, true, "write to " + dir + ": " + errors.Unwrap(err).Error(), how}
	}
	probe.Close()
	if err := os.Remove(probe.Name()); err != nil {
		return Result{Missing, true, err.Error(), how}
	}
	r := Result{OK, true, path + ": its folder can be written to", ""}
	if kind, local := m.Storage(dir); local {
		r.Verdict, r.Found = Limited, r.Found+"; "+kind+", which is of this host alone"
		r.How = "for several hosts, " + how
	} else if kind != "" {
		r.Found += "; " + kind
	}
	switch st, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return Result{Missing, true, err.Error(), how}
	case !st.Mode().IsRegular():
		return Result{Missing, true, path + " is no regular file", how}
	default:
		r.Found += fmt.Sprintf("\nsomething stands there, written %v ago: a job that starts, or one that was killed, whose file rank 0 replaces", time.Since(st.ModTime()).Round(time.Second))
	}
	return r
}
