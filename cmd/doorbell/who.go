// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"

	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/launchenv"
)

// world takes the number of ranks from the launcher that started this process, if one did, and otherwise finds out
// which of the hosts this is.
func (c *benchConfig) world(lookup env.Lookup, given func(flag string) bool) (err error) {
	if c.me, err = launchenv.RankOf(lookup); err != nil {
		return usagef("%w", err)
	}
	switch {
	case c.me == nil:
		err = cmp.Or(c.check(), c.hosts(lookup, given))
		if err == nil && c.Local && c.Nodes > 1 {
			err = usagef("--local: all ranks in this process, and --nodes %d: they exclude each other", c.Nodes)
		}
		return err
	case c.Local:
		return usagef("--local: a launcher has started this process as one rank of several (%s)", c.me)
	case given("ranks") && c.Ranks != c.me.Size:
		return usagef("-n %d: the launcher has started %d ranks (%s)", c.Ranks, c.me.Size, c.me)
	}
	c.Ranks = c.me.Size
	c.Nodes = 1
	if n := c.me.LocalSize; n > 0 && c.Ranks%n == 0 {
		c.Nodes = c.Ranks / n
	}
	if c.RanksPerNode == 0 && env.RanksPerNode.IsSet(lookup) {
		if c.RanksPerNode, err = env.RanksPerNode.Get(lookup); err != nil {
			return usagef("%w", err)
		}
	}
	return c.check()
}
