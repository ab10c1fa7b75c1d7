// SPDX-License-Identifier: Apache-2.0

// Package testenv is what tests take from the environment: how long they may be, and a seed that repeats them.
package testenv

import (
	"flag"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/internal/env"
)

// Rapid sets how many checks each property gets, short or with DOORBELL_LONG=1, and their seed if DOORBELL_SEED is set.
// Flags of the command line win. TestMain calls it, after flag.Parse.
func Rapid(short, long int) {
	checks := short
	if Long() {
		checks = long
	} else if Race {
		checks = (checks + 4) / 5 // the detector takes several times as long, and finds a race in the first of them or by chance
	}
	set("rapid.checks", strconv.Itoa(checks))
	if env.Seed.IsSet(nil) {
		set("rapid.seed", strconv.FormatUint(Seed, 10))
	}
}

func set(name, value string) {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if !given {
		flag.Set(name, value)
	}
}

// Long is DOORBELL_LONG.
func Long() bool {
	v, err := env.Long.Get(nil)
	return err == nil && v
}

// Seed is DOORBELL_SEED, or from the clock.
var Seed = func() uint64 {
	if s, err := env.Seed.Get(nil); err == nil && env.Seed.IsSet(nil) {
		return s
	}
	return uint64(time.Now().UnixNano())
}()

// Random is a source of numbers for one test; its seed is printed.
func Random(t testing.TB) *rand.Rand {
	t.Logf("DOORBELL_SEED=%d", Seed)
	return rand.New(rand.NewPCG(Seed, uint64(len(t.Name()))))
}
