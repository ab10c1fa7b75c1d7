// SPDX-License-Identifier: Apache-2.0

package launchenv

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// dumbName is the language of one name, and dumbBracket a bracket in it.
var (
	dumbName    = regexp.MustCompile(`^([!-+\--Z\\^-~]|\[\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*\])+$`)
	dumbBracket = regexp.MustCompile(`\[([^\]]*)\]`)
)

// dumbHosts writes a list out by replacing one bracket at a time. ok is false for what is no list, or a large one.
func dumbHosts(s string) (hosts []string, ok bool) {
	depth, names := 0, []string{""}
	for _, c := range []byte(s) {
		depth += strings.Count(string(c), "[") - strings.Count(string(c), "]")
		if c == ',' && depth == 0 {
			names = append(names, "")
		} else {
			names[len(names)-1] += string([]byte{c})
		}
	}
	for _, n := range names {
		if !dumbName.MatchString(n) {
			return nil, false
		}
		at := dumbBracket.FindStringSubmatchIndex(n)
		if at == nil {
			hosts = append(hosts, n)
			continue
		}
		for _, part := range strings.Split(n[at[2]:at[3]], ",") {
			low, high, isRange := strings.Cut(part, "-")
			if !isRange {
				high = low
			}
			a, _ := strconv.Atoi(low)
			b, _ := strconv.Atoi(high)
			if b < a || b-a >= 5000 {
				return nil, false
			}
			for i := a; i <= b; i++ {
				more, ok := dumbHosts(fmt.Sprintf("%s%0*d%s", n[:at[0]], len(low), i, n[at[1]:]))
				if hosts = append(hosts, more...); !ok || len(hosts) > 5000 {
					return nil, false
				}
			}
		}
	}
	return hosts, true
}

func TestParseHostlist(t *testing.T) {
	for in, want := range map[string]string{
		"node7":                  "node7",
		"gnode[10,20]":           "gnode10 gnode20",
		"gpu[1-3,07,10]":         "gpu1 gpu2 gpu3 gpu07 gpu10",
		"n[008-011]":             "n008 n009 n010 n011",
		"n[9-11]":                "n9 n10 n11",
		"rack[0-1]n[1-2]":        "rack0n1 rack0n2 rack1n1 rack1n2",
		"a,b[1-2].x,c-0":         "a b1.x b2.x c-0",
		"[1-2]":                  "1 2",
		"a[1][2]":                "a12",
		"a[1,1]":                 "a1 a1",
		"node-a.example.org":     "node-a.example.org",
		"n[999999999-999999999]": "n999999999",
	} {
		got, err := ParseHostlist(in)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v (want %s)", in, got, err, want)
		}
		if dumb, ok := dumbHosts(in); !ok || !slices.Equal(dumb, got) {
			t.Errorf("%q: the reference says %q, %v", in, dumb, ok)
		}
	}
	for _, in := range []string{"", ",", "a,", ",a", "a,,b", "a[", "a]", "a[]", "a[1", "a[1-2]]", "a[[1]]", "a[1-]", "a[-1]", "a[3-1]", "a[1,]", "a[x]", "a[1 ]",
		"a b", "a\n", "\xff", "a[1-70000]", "a[1-300]b[1-300]", "a[0000000001]", strings.Repeat("x", 300), "a[1-99999],b[1-99999]"} {
		if got, err := ParseHostlist(in); err == nil {
			t.Errorf("%q was read as %d hosts (want an error)", in, len(got))
		}
	}
}

func TestHostlistAgainstReference(t *testing.T) {
	piece := rapid.SampledFrom([]string{"a", "node", "-", ".", "7", "[1]", "[08-11]", "[1,3-5]", "[2-1]", "[", "]", ",", ",b", "[00-3,9]"})
	rapid.Check(t, func(t *rapid.T) {
		agree(t, strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(t, "pieces"), ""))
	})
}

// agree holds that parser and reference come to the same for lists of moderate size.
func agree(t interface{ Errorf(string, ...any) }, s string) {
	got, err := ParseHostlist(s)
	want, ok := dumbHosts(s)
	switch {
	case ok && slices.ContainsFunc(want, func(h string) bool { return len(h) > maxName }):
	case ok && (err != nil || !slices.Equal(got, want)):
		t.Errorf("%q: %q, %v (the reference says %q)", s, got, err, want)
	case !ok && err == nil && len(got) < 5000 && !strings.Contains(s, "-"): // the reference refuses long ranges too
		t.Errorf("%q: %q (the reference refuses it)", s, got)
	}
}

func FuzzHostlist(f *testing.F) {
	for _, s := range []string{"gnode[10,20]", "rack[0-1]n[1-4]", "a,b[007-010],c", "[", "]", "a[1-99999999]", "a[1-3", "a[1]b,[2-2]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 200 {
			return // the reference is slow
		}
		if got, err := ParseHostlist(s); err == nil && (len(got) == 0 || len(got) > maxHosts) {
			t.Errorf("%q is %d hosts", s, len(got))
		}
		if strings.Count(s, "[") < 3 {
			agree(t, s)
		}
	})
}

// dumbTasks writes the list out with a regular expression.
func dumbTasks(s string) (out []int, ok bool) {
	form := regexp.MustCompile(`^(\d{1,9})(?:\(x(\d{1,9})\))?$`)
	for _, part := range strings.Split(s, ",") {
		m := form.FindStringSubmatch(part)
		if m == nil {
			return nil, false
		}
		n, _ := strconv.Atoi(m[1])
		k := 1
		if m[2] != "" {
			k, _ = strconv.Atoi(m[2])
		}
		if n == 0 || k == 0 || len(out)+k > maxHosts {
			return nil, false
		}
		out = append(out, slices.Repeat([]int{n}, k)...)
	}
	return out, true
}

func TestParseTasksPerNode(t *testing.T) {
	for in, want := range map[string]string{"4": "[4]", "1(x4)": "[1 1 1 1]", "2(x3),1": "[2 2 2 1]", "8,7(x2),8": "[8 7 7 8]"} {
		if got, err := ParseTasksPerNode(in); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: %v, %v (want %s)", in, got, err, want)
		}
	}
	for _, in := range []string{"", "0", "x", "2(x)", "2(x0)", "2(x3", "2(3)", "2x3", "(x3)", "2(x3),", ",2", " 2", "-1", "2(x-1)", "2(x70000)", "1(x65536),1", "2(x3))"} {
		if got, err := ParseTasksPerNode(in); err == nil {
			t.Errorf("%q was read as %d nodes (want an error)", in, len(got))
		}
	}
}

func FuzzTasksPerNode(f *testing.F) {
	for _, s := range []string{"4", "1(x4)", "2(x3),1", "8,7(x2),8", "2(x99999)", "(", "2(x3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseTasksPerNode(s)
		want, ok := dumbTasks(s)
		if (err == nil) != ok || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v (the reference says %v, %v)", s, got, err, want, ok)
		}
	})
}
