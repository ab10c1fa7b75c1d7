// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// environ is the environment of one rank: base, then what the caller added, then what we say. The later wins, and no
// name is there twice, because programs differ in which of two they read. What says which host this is stays with us: a
// rank that launches a job of its own does so on its host.
func (o *Options) environ(base []string, rank int, id, job, tokenFile string) []string {
	env := slices.DeleteFunc(append(slices.Clone(base), o.Env...), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == "DOORBELL_NODES" || name == "DOORBELL_NODE_RANK" || o.TokenFile != "" && name == "DOORBELL_TOKEN"
	})
	set := func(k, v string) {
		if v != "" {
			env = append(env, k+"="+v)
		}
	}
	set("DOORBELL_RANK", strconv.Itoa(rank))
	set("DOORBELL_WORLD_SIZE", strconv.Itoa(o.N))
	set("DOORBELL_LOCAL_RANK", strconv.Itoa(rank-o.first()))
	set("DOORBELL_LOCAL_SIZE", strconv.Itoa(o.share()))
	set("DOORBELL_JOB", job)
	set("DOORBELL_LAUNCH_ID", id)
	if o.Nodes > 1 {
		set("DOORBELL_ADDR", o.Rendezvous)
	} else {
		set("DOORBELL_ADDR", "unix:@doorbell-"+id)
	}
	set("DOORBELL_TOKEN_FILE", tokenFile)
	if o.RanksPerNode > 0 {
		set("DOORBELL_RANKS_PER_NODE", strconv.Itoa(o.RanksPerNode))
	}
	set("DOORBELL_NET", o.Net)
	set("DOORBELL_GIN_BACKEND", o.Backend)
	set("DOORBELL_DEVICE", o.Device)
	set("DOORBELL_PROGRESS", o.Progress)
	return lastWins(env)
}

func lastWins(env []string) []string {
	seen := make(map[string]bool, len(env))
	var out []string
	for _, kv := range slices.Backward(env) {
		k, _, _ := strings.Cut(kv, "=")
		if !seen[k] {
			seen[k] = true
			out = append(out, kv)
		}
	}
	slices.Reverse(out)
	return out
}

// given says whether the environment that a rank will get has a value for a name.
func (o *Options) given(base []string, name string) bool { return o.value(base, name) != "" }

// value is the one that a rank's environment will have.
func (o *Options) value(base []string, name string) (value string) {
	for _, kv := range append(slices.Clone(base), o.Env...) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			value = v
		}
	}
	return value
}

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	rand.Read(b) // never fails: the runtime ends the process instead
	return hex.EncodeToString(b)
}

// newTokenFile writes a fresh secret to a file that only this user can read.
func newTokenFile() (string, error) {
	f, err := os.CreateTemp("", "doorbell-token-*") // mode 0600, and never an existing file
	if err != nil {
		return "", fmt.Errorf("create token file: %w", err)
	}
	_, err = f.WriteString(randomHex(32) + "\n")
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(f.Name())
		return "", fmt.Errorf("write token file: %w", err)
	}
	return f.Name(), nil
}
