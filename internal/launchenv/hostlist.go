// SPDX-License-Identifier: Apache-2.0

package launchenv

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxHosts bounds what a list may stand for, so that a hostile or broken one costs bounded memory.
const maxHosts = 1 << 16

// maxDigits bounds a number within brackets.
const maxDigits = 9

// maxName bounds a host's name before its last number, in bytes, as DNS does.
const maxName = 253

const hostlistForm = "accepted is a list as node7 or gpu[1-3,07,10],rack[0-1]n[1-4]"

// ParseHostlist returns the hosts that a Slurm list stands for, in its order: names with commas between, where brackets
// hold numbers and ranges, with commas between too. Numbers keep the width of the range's first; with several brackets
// in a name the last runs fastest. It refuses a list of more than 65,536 hosts.
func ParseHostlist(s string) ([]string, error) {
	var hosts []string
	for len(s) > 0 || hosts == nil {
		name, rest, err := cutName(s)
		if err != nil {
			return nil, err
		}
		if hosts, err = expand(hosts, name); err != nil {
			return nil, err
		}
		if rest == "," {
			return nil, fmt.Errorf("ends in a comma (%s)", hostlistForm)
		}
		s = strings.TrimPrefix(rest, ",")
	}
	return hosts, nil
}

// cutName cuts a list at its first comma outside brackets. rest begins with that comma.
func cutName(s string) (name, rest string, err error) {
	open := false
	for i := range len(s) {
		switch c := s[i]; {
		case c == '[' && open, c == ']' && !open:
			return "", "", fmt.Errorf("a bracket too many at byte %d (%s)", i, hostlistForm)
		case c == '[' || c == ']':
			open = !open
		case c == ',' && !open:
			name, rest = s[:i], s[i:]
			if name == "" {
				return "", "", fmt.Errorf("an empty name (%s)", hostlistForm)
			}
			return name, rest, nil
		case c <= ' ' || c >= 0x7f:
			return "", "", fmt.Errorf("byte %#02x (%s)", c, hostlistForm)
		}
	}
	switch {
	case open:
		return "", "", fmt.Errorf("a bracket is not closed (%s)", hostlistForm)
	case s == "":
		return "", "", fmt.Errorf("an empty name (%s)", hostlistForm)
	}
	return s, "", nil
}

// expand appends the hosts of one name, whose brackets are balanced, to those that are there.
func expand(hosts []string, name string) ([]string, error) {
	made := []string{""}
	for name != "" {
		text, rest, bracket := strings.Cut(name, "[")
		if len(made[0])+len(text) > maxName {
			return nil, fmt.Errorf("a name of more than %d bytes", maxName)
		}
		for i := range made {
			made[i] += text
		}
		if name = rest; !bracket {
			break
		}
		list, after, _ := strings.Cut(name, "]")
		numbers, err := numbers(list)
		if err != nil {
			return nil, err
		}
		if len(hosts)+len(made)*len(numbers) > maxHosts {
			return nil, fmt.Errorf("more than %d hosts", maxHosts)
		}
		next := make([]string, 0, len(made)*len(numbers))
		for _, m := range made {
			for _, n := range numbers {
				next = append(next, m+n)
			}
		}
		made, name = next, after
	}
	if len(hosts)+len(made) > maxHosts {
		return nil, fmt.Errorf("more than %d hosts", maxHosts)
	}
	return append(hosts, made...), nil
}

// numbers is what stands within brackets, as texts of the right width.
func numbers(list string) (out []string, err error) {
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		a, err := digits(low)
		if err != nil {
			return nil, err
		}
		b, err := digits(high)
		switch {
		case err != nil:
			return nil, err
		case b < a:
			return nil, fmt.Errorf("range %q runs backwards (%s)", part, hostlistForm)
		case len(out)+b-a+1 > maxHosts:
			return nil, fmt.Errorf("more than %d hosts", maxHosts)
		}
		for n := a; n <= b; n++ {
			text := strconv.Itoa(n)
			for len(text) < len(low) {
				text = "0" + text
			}
			out = append(out, text)
		}
	}
	return out, nil
}

func digits(s string) (int, error) {
	if s == "" || len(s) > maxDigits || strings.Trim(s, "0123456789") != "" {
		return 0, fmt.Errorf("%q is no number of at most %d digits (%s)", s, maxDigits, hostlistForm)
	}
	return strconv.Atoi(s)
}

const tasksForm = "accepted is a list as 4 or 2(x3),1"

// ParseTasksPerNode returns the number of tasks on each node, from Slurm's list: a number for each node, with commas
// between, and (xN) behind one that N nodes in a row have. It refuses a list of more than 65,536 nodes.
func ParseTasksPerNode(s string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		count, times, repeated := strings.Cut(part, "(x")
		k := 1
		var err error
		if repeated {
			inner, ok := strings.CutSuffix(times, ")")
			if !ok {
				return nil, fmt.Errorf("%q: the parenthesis is not closed (%s)", part, tasksForm)
			}
			if k, err = digits(inner); err != nil || k == 0 {
				return nil, fmt.Errorf("%q: %w (%s)", part, errCount, tasksForm)
			}
		}
		n, err := digits(count)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q: %w (%s)", part, errCount, tasksForm)
		}
		if len(out)+k > maxHosts {
			return nil, fmt.Errorf("more than %d nodes", maxHosts)
		}
		for range k {
			out = append(out, n)
		}
	}
	return out, nil
}

var errCount = errors.New("no number from 1 to 999999999")
