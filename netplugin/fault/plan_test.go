// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"strings"
	"testing"
)

// TestParse: what a text asks for is what its String says, spelled out.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "seed=1",
		"seed=7":                             "seed=7",
		"seed=0xff,reorder":                  "seed=255,reorder=50",
		"all":                                "seed=1,reorder=50,delay=20,split=20,again=30,stall=2,cut=1",
		"all,cut=0,delay=90":                 "seed=1,reorder=50,delay=90,split=20,again=30,stall=2",
		" again = 5":                         "",
		" again=5 , stall,duplicate ":        "seed=1,again=5,stall=2,duplicate=20",
		"unordered,split=100":                "seed=1,split=100,unordered",
		"kill=3,bitflip":                     "seed=1,kill=3,bitflip",
		"lostput,doublesignal":               "seed=1,doublesignal",
		"seed=18446744073709551615,again=30": "seed=18446744073709551615,again=30",
	} {
		p, err := parse(text)
		if want == "" {
			if err == nil {
				t.Errorf("%q was taken as %s", text, p)
			}
			continue
		}
		if err != nil || p.String() != want {
			t.Errorf("%q is %q, error %v (want %q)", text, p, err, want)
		}
	}
}

// TestParseRefuses: the error says which word, and which there are.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ text, word string }{
		{"earthquake", "earthquake"}, {"all,", ""}, {"reorder=101", "reorder=101"}, {"delay=-1", "delay=-1"}, {"split=", "split="},
		{"again=half", "again=half"}, {"all=3", "all=3"}, {"unordered=1", "unordered=1"}, {"seed", "seed"}, {"seed=-1", "seed=-1"},
		{"kill", "kill"}, {"kill=-1", "kill=-1"}, {"kill=9999999999", "kill=9999999999"}, {"bitflip=2", "bitflip=2"}, {"Reorder", "Reorder"},
	} {
		_, err := parse(c.text)
		if err == nil {
			t.Errorf("%q was accepted", c.text)
			continue
		}
		for _, part := range []string{`"` + c.text + `": "` + c.word + `"`, "seed=N", "reorder[=0..100]", "duplicate[=0..100]", "kill=RANK", "bitflip"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q: the error %q does not say %s", c.text, err, part)
			}
		}
	}
}

// FuzzParse: a text that is accepted asks for what its String asks for.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "all,seed=7", "reorder,delay=20,split,again=30,stall,cut,duplicate", "kill=0,bitflip,unordered", "seed=0x10", "again=,", "=", "a=b=c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parse(text)
		if err != nil {
			return
		}
		again, err := parse(p.String())
		if err != nil || again != p {
			t.Errorf("%q is %+v, and its String %q is %+v, error %v", text, p, p, again, err)
		}
		for k, n := range p.rate {
			if n < 0 || n > 100 {
				t.Errorf("%q: %s is %d", text, rates[k].word, n)
			}
		}
	})
}
