// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/doorbell-net/doorbell/internal/env"
)

const (
	maxSize  = 1 << 40 // bytes of one message
	maxSizes = 64      // in one sweep
)

// parseSizes reads "4..4M" (powers of two from 4 B to 4 MiB), "8,64,1K", or both mixed. It keeps the order and refuses a
// size that is there twice. 0 is legal: such a message carries only its signal.
func parseSizes(s string) ([]int64, error) {
	var sizes []int64
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		low, high, isRange := strings.Cut(part, "..")
		if !isRange {
			high = low
		}
		a, err := parseSize(low)
		if err != nil {
			return nil, err
		}
		b, err := parseSize(high)
		if err != nil {
			return nil, err
		}
		if isRange && (a < 1 || a&(a-1) != 0 || b&(b-1) != 0 || a > b) {
			return nil, fmt.Errorf("range %q: it must lead from one power of two up to another", part)
		}
		for n := a; n <= b; n *= 2 {
			if slices.Contains(sizes, n) {
				return nil, fmt.Errorf("%d bytes are there twice", n)
			}
			if sizes = append(sizes, n); len(sizes) > maxSizes {
				return nil, fmt.Errorf("more than %d sizes", maxSizes)
			}
			if n == 0 {
				break
			}
		}
	}
	return sizes, nil
}

func parseSize(s string) (int64, error) {
	if s == "" {
		return 0, errors.New("a size is empty; accepted are lists as 8,64,1K and ranges as 4..4M")
	}
	n, err := env.ParseBytes(s)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", s, err)
	}
	if n > maxSize {
		return 0, fmt.Errorf("%q: at most 1T is accepted", s)
	}
	return n, nil
}
