// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// TestAnswerGolden: each capability is read from its bits in the headers' structures, and from no other: one that has all others
// set is read as 0.
func TestAnswerGolden(t *testing.T) {
	const size, head = capsBytes, 0x80
	read := func(b []byte) []uint64 {
		c, on := decodeCaps(b), map[bool]uint64{true: 1}
		return []uint64{
			uint64(c.logQP), uint64(c.logCQ), uint64(c.logInitiate), uint64(c.logRespond), uint64(c.ports), uint64(c.logMsg),
			on[c.roce], on[c.atomics], on[c.overrun], on[c.waits], on[c.reliable], uint64(c.logRegisters), on[c.realTime],
		}
	}
	for i, f := range []entry{
		{"log_max_qp_sz", head + 0x88, 8, 0xab}, {"log_max_cq_sz", head + 0xc8, 8, 0xcd}, {"log_max_ra_req_qp", head + 0x14a, 6, 0x2a},
		{"log_max_ra_res_qp", head + 0x15a, 6, 0x15}, {"num_ports", head + 0x1b8, 8, 0x71}, {"log_max_msg", head + 0x1c3, 5, 0x1e},
		{"roce", head + 0x21d, 1, 1}, {"atomic", head + 0x21e, 1, 1}, {"cq_oi", head + 0x220, 1, 1}, {"cd", head + 0x22c, 1, 1},
		{"rc", head + 0x23f, 1, 1}, {"log_bf_reg_size", head + 0x26b, 5, 0x15}, {"sq_ts_format", head + 0x440, 2, 1},
	} {
		alone := image(t, size, []entry{f})
		for k, got := range read(alone) {
			if want := map[bool]uint64{true: f.value}[k == i]; got != want {
				t.Errorf("%s alone: value %d is %#x, want %#x", f.name, k, got, want)
			}
		}
		others := image(t, size, []entry{{f.name, f.bit, f.width, 1<<f.width - 1}})
		for k := range others {
			others[k] = ^others[k]
		}
		if got := read(others)[i]; got != 0 {
			t.Errorf("%s is read as %#x from other bits", f.name, got)
		}
	}
	for name, c := range map[string]struct {
		fields []entry
		want   bool
		read   func(c *caps, b []byte) bool
	}{
		"fetch-add of 8":  {[]entry{{"atomic_operations", head + 0x90, 16, 2}, {"atomic_size_qp", head + 0xb0, 16, 8}}, true, readAtomics},
		"swap of 8":       {[]entry{{"atomic_operations", head + 0x90, 16, 0xfffd}, {"atomic_size_qp", head + 0xb0, 16, 8}}, false, readAtomics},
		"fetch-add of 16": {[]entry{{"atomic_operations", head + 0x90, 16, 2}, {"atomic_size_qp", head + 0xb0, 16, 0xfff7}}, false, readAtomics},
		"real time":       {[]entry{{"qp_ts_format", head + 0x1e, 2, 1}}, true, readTime},
		"both times":      {[]entry{{"qp_ts_format", head + 0x1e, 2, 2}}, true, readTime},
		"one time":        {[]entry{{"sw_r_roce_src_udp_port", head + 0x04, 1, 1}, {"more", head + 0x20, 32, 1<<32 - 1}}, false, readTime},
	} {
		if got := c.read(new(caps), image(t, size, c.fields)); got != c.want {
			t.Errorf("%s is read as %v", name, got)
		}
	}
	made := image(t, 16, []entry{{"cqn, qpn", 0x48, 24, 0xabcdef}})
	if got := qpnField.get(made); got != 0xabcdef {
		t.Errorf("what was made has number %#x", got)
	}
	refused := image(t, 16, []entry{{"status", 0, 8, 0x10}, {"syndrome", 0x20, 32, 0x12345678}})
	err := checkAnswer("INIT2RTR_QP", refused, syscall.EIO)
	if want := "INIT2RTR_QP: the NIC refuses it: bad queue pair state (status 0x10, syndrome 0x12345678)"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	refused[0] = 0x77
	if err := checkAnswer("A", refused, nil); err == nil || !strings.Contains(err.Error(), "unknown status (status 0x77") {
		t.Errorf("a status that is none: %v", err)
	}
	if err := checkAnswer("A", made, syscall.EPERM); !errors.Is(err, syscall.EPERM) {
		t.Errorf("the call's own error: %v", err)
	}
}

func readAtomics(c *caps, b []byte) bool { c.decodeAtomics(b); return c.atomics }
func readTime(c *caps, b []byte) bool    { c.decodeRoCE(b); return c.realTime }
