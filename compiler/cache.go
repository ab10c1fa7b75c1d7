// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/cache"
)

// once is what make makes of parts, which are all that it depends on. It is kept in doorbell/kernels of the user's cache folder
// for five days after its last use, as the go command keeps what it compiles: of a package's kernels few change at a time,
// and to assemble all of them takes minutes. Where nothing can be kept, make is called each time; with
// GODEBUG=gocacheverify=1 too, and it panics if what it makes is not what is kept. Goroutines and processes may share it.
func once(make func() ([]byte, error), parts ...string) ([]byte, error) {
	kept := open()
	if kept == nil {
		return make()
	}
	h := cache.NewHash("kernels")
	for _, p := range parts {
		fmt.Fprintf(h, "%d\n%s", len(p), p)
	}
	id := cache.ActionID(h.Sum())
	if made, _, err := kept.GetBytes(id); err == nil {
		return made, nil
	}
	made, err := make()
	if err != nil {
		return nil, err
	}
	if kept.PutBytes(id, made) == nil {
		_ = kept.Trim() // once a day; what is too much then stays
	}
	return made, nil
}

// open is nil where there is no cache.
func open() *cache.Cache {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil
	}
	dir = filepath.Join(dir, "doorbell", "kernels")
	if os.MkdirAll(dir, 0o700) != nil {
		return nil
	}
	kept, err := cache.Open(dir)
	if err != nil {
		return nil
	}
	return kept
}
