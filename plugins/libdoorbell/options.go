// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/doorbell-net/doorbell"
)

// errInvalid is wrapped by errors about an argument.
var errInvalid = errors.New("invalid argument")

// setters take a value's text each, by option.
type setters map[string]func(text string) error

// parse reads "name=value" with blanks between. An option stands once.
func (s setters) parse(what, text string) error {
	seen := map[string]bool{}
	for _, f := range strings.Fields(text) {
		name, value, ok := strings.Cut(f, "=")
		set := s[name]
		switch {
		case !ok:
			return fmt.Errorf("%s: %q: name=value is accepted: %w", what, f, errInvalid)
		case set == nil:
			return fmt.Errorf("%s: no option %q: accepted are %s: %w", what, name, s.names(), errInvalid)
		case seen[name]:
			return fmt.Errorf("%s: %s stands twice: once is accepted: %w", what, name, errInvalid)
		}
		seen[name] = true
		if err := set(value); err != nil {
			return fmt.Errorf("%s: %s=%s: %w: %w", what, name, value, err, errInvalid)
		}
	}
	return nil
}

func (s setters) names() string {
	var names []string
	for n := range s {
		names = append(names, n)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func text(to *string) func(string) error {
	return func(v string) error {
		*to = v
		return nil
	}
}

func number(to *int) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			return fmt.Errorf("a number of 32 bits is accepted")
		}
		*to = int(n)
		return nil
	}
}

func flag(to *bool) func(string) error {
	return func(v string) error {
		if v != "0" && v != "1" {
			return fmt.Errorf("0 and 1 are accepted")
		}
		*to = v == "1"
		return nil
	}
}

// parseOptions reads what doorbell_open takes.
func parseOptions(s string) (o doorbell.Options, err error) {
	err = setters{
		"net": text(&o.Net), "backend": text(&o.Backend), "device": text(&o.Device), "progress": text(&o.Progress),
		"faults": text(&o.Faults), "inject": text(&o.Inject), "addr": text(&o.Addr), "job": text(&o.Job),
		"ranks_per_node": number(&o.RanksPerNode), "traffic_class": number(&o.TrafficClass),
		"rank": number(&o.Rank), "size": number(&o.Size), "local_rank": number(&o.LocalRank), "local_size": number(&o.LocalSize),
		"timeout": func(v string) (err error) {
			if o.Timeout, err = time.ParseDuration(v); err != nil || o.Timeout <= 0 {
				return fmt.Errorf("a time above 0 with its unit, such as 30s, is accepted")
			}
			return nil
		},
	}.parse("options", s)
	return o, err
}

// parseNeeds reads what doorbell_devcomm_create takes.
func parseNeeds(s string) (n doorbell.Needs, err error) {
	err = setters{
		"contexts": number(&n.Contexts), "signals": number(&n.Signals), "counters": number(&n.Counters), "barriers": number(&n.Barriers),
		"queue_depth": number(&n.QueueDepth), "small_put": number(&n.SmallPut), "traffic_class": number(&n.TrafficClass),
		"lla2a_blocks": number(&n.LLA2ABlocks), "lla2a_slots": number(&n.LLA2ASlots),
		"rail": flag(&n.Rail), "weak_only": flag(&n.WeakOnly), "fence": flag(&n.Fence), "multimem": flag(&n.Multimem),
		"sharing": func(v string) error {
			s, ok := map[string]doorbell.Sharing{"all": doorbell.SharedByAll, "thread": doorbell.OneThread, "block": doorbell.OneBlock}[v]
			if !ok {
				return fmt.Errorf("all, thread and block are accepted")
			}
			n.Sharing = s
			return nil
		},
	}.parse("needs", s)
	return n, err
}
