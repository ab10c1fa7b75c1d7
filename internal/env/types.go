// SPDX-License-Identifier: Apache-2.0

package env

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The types of variables. Bytes is a size: a whole number with an optional unit, K, M, G or T (powers of 1024; "KiB" and
// "KB" mean the same).
type (
	String   = Var[string]
	Int      = Var[int]
	Uint64   = Var[uint64]
	Duration = Var[time.Duration]
	Bool     = Var[bool]
	Bytes    = Var[int64]
)

// stringVar declares a variable that takes one of values, or anything that accepts describes if there are none.
func stringVar(name, def, accepts, help string, values ...string) String {
	if len(values) > 0 {
		accepts = strings.Join(values, ", ")
	}
	return declare(Info{name, "string", def, accepts, help}, func(s string) (string, error) {
		if len(values) > 0 && !slices.Contains(values, s) {
			return "", errors.New("no such choice")
		}
		return s, nil
	})
}

// intVar declares a variable that takes a whole number in lo..hi, a power of two where pow2 says so.
func intVar(name, def string, lo, hi int, pow2 bool, help string) Int {
	accepts := fmt.Sprintf("a whole number from %d", lo)
	if hi < math.MaxInt {
		accepts = fmt.Sprintf("%s to %d", accepts, hi)
	}
	if pow2 {
		accepts = fmt.Sprintf("a power of two from %d to %d", lo, hi)
	}
	return declare(Info{name, "int", def, accepts, help}, func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return 0, errors.New("out of range")
		case err != nil:
			return 0, errors.New("not a number")
		case n < lo || n > hi:
			return 0, errors.New("out of range")
		case pow2 && bits.OnesCount(uint(n)) != 1:
			return 0, errors.New("not a power of two")
		}
		return n, nil
	})
}

// uint64Var declares a variable that takes any 64-bit pattern, decimal or 0x..., so that a printed seed can be set.
func uint64Var(name, def, help string) Uint64 {
	accepts := "a whole number from 0 to 2^64-1, decimal or 0x hexadecimal"
	return declare(Info{name, "uint64", def, accepts, help}, func(s string) (uint64, error) {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			return 0, errors.New("not such a number")
		}
		return n, nil
	})
}

// durationVar declares a variable that takes a positive duration.
func durationVar(name, def, help string) Duration {
	accepts := "a positive duration with its unit, such as 250ms, 30s or 2m"
	return declare(Info{name, "duration", def, accepts, help}, func(s string) (time.Duration, error) {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			return 0, errors.New("not a duration")
		case d <= 0:
			return 0, errors.New("not positive")
		}
		return d, nil
	})
}

// boolVar declares a variable that takes 1 or 0, or true or false.
func boolVar(name, def, help string) Bool {
	return declare(Info{name, "bool", def, "1, true, 0, false", help}, func(s string) (bool, error) {
		switch strings.ToLower(s) {
		case "1", "true":
			return true, nil
		case "0", "false":
			return false, nil
		}
		return false, errors.New("neither yes nor no")
	})
}

// bytesVar declares a variable that takes a size in lo..hi bytes.
func bytesVar(name, def string, lo, hi int64, help string) Bytes {
	accepts := fmt.Sprintf("a size from %d to %d bytes, with K, M, G or T for powers of 1024", lo, hi)
	return declare(Info{name, "bytes", def, accepts, help}, func(s string) (int64, error) {
		n, err := ParseBytes(s)
		if err == nil && (n < lo || n > hi) {
			err = errors.New("out of range")
		}
		return n, err
	})
}

// ParseBytes reads a size: digits and an optional unit K, M, G or T, which may be followed by "B" or "iB". Upper and lower
// case are alike. Units are powers of 1024. The error says what is wrong but does not repeat s.
func ParseBytes(s string) (int64, error) {
	digits := strings.TrimRight(s, "KMGTBkmgtbi")
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return 0, errors.New("not a size")
	}
	shift := 0
	switch strings.ToUpper(s[len(digits):]) {
	case "", "B":
	case "K", "KB", "KIB":
		shift = 10
	case "M", "MB", "MIB":
		shift = 20
	case "G", "GB", "GIB":
		shift = 30
	case "T", "TB", "TIB":
		shift = 40
	default:
		return 0, errors.New("no such unit")
	}
	if n > math.MaxInt64>>shift {
		return 0, errors.New("more than 2^63-1 bytes")
	}
	return int64(n) << shift, nil
}
