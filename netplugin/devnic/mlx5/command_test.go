// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"bytes"
	"math/big"
	"strings"
	"testing"
)

// entry is a field of a golden image: its place and width are what the headers' structures add up to, field after field, from
// the command's first bit on.
type entry struct {
	name       string
	bit, width int
	value      uint64
}

// image puts fields together as one number of as many bits as the command has.
func image(t *testing.T, size int, fields []entry) []byte {
	sum, used := new(big.Int), new(big.Int)
	for _, f := range fields {
		shift := uint(8*size - f.bit - f.width)
		mask := new(big.Int).Lsh(new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(f.width)), big.NewInt(1)), shift)
		if new(big.Int).And(used, mask).Sign() != 0 || f.width < 64 && f.value>>f.width != 0 {
			t.Fatalf("%s overlaps another field or does not fit", f.name)
		}
		used.Or(used, mask)
		sum.Or(sum, new(big.Int).Lsh(new(big.Int).SetUint64(f.value), shift))
	}
	return sum.FillBytes(make([]byte, size))
}

// TestCommandGolden: each command is, to the bit, the image of its fields, and nothing else.
func TestCommandGolden(t *testing.T) {
	gid := [16]byte{0xe0, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xeb, 0xec, 0xed, 0xee, 0xef}
	ethernet := connection{
		remote: 0x717273, mtu: 5, logMsgMax: 30, logInitiate: 3, logRespond: 4, sendPSN: 0x818283, receivePSN: 0x919293, port: 1, ethernet: true, global: true,
		lid: 0xa1a2, source: 3, gid: gid, class: 0x6a, mac: [6]byte{0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6}, udp: 0xc123,
	}
	infiniband := connection{remote: 0x717273, mtu: 4, port: 1, lid: 0xa1a2, source: 3, gid: gid, class: 0x68, mac: [6]byte{1}, udp: 2}
	routed := infiniband
	routed.global = true
	for _, c := range []struct {
		name   string
		got    *command
		bytes  int
		fields []entry
	}{
		{"query of atomics", queryCaps(capAtomic), 16, []entry{
			{"opcode", 0x0, 16, 0x100}, {"op_mod", 0x30, 16, 7},
		}},
		{"completion queue", createCQ(cqSpec{logSize: 10, ring: place{0x11121314, 0xfc0}, record: place{0x21222324, 0x148}, uar: 0x313233, eq: 0x41}), 272, []entry{
			{"opcode", 0x0, 16, 0x400}, {"dbr_umem_valid", 0x86, 1, 1}, {"oi", 0x8e, 1, 1}, {"dbr_umem_id", 0xa0, 32, 0x21222324},
			{"log_cq_size", 0xe3, 5, 0xa}, {"uar_page", 0xe8, 24, 0x313233}, {"c_eqn", 0x138, 8, 0x41}, {"dbr_addr", 0x240, 64, 0x148},
			{"cq_umem_offset", 0x280, 64, 0xfc0}, {"cq_umem_id", 0x2c0, 32, 0x11121314}, {"cq_umem_valid", 0x2e0, 1, 1},
		}},
		{"queue pair", createQP(qpSpec{logSize: 13, ring: place{0x11121314, 0xf80}, record: place{0x21222324, 0x140}, uar: 0x313233, pd: 0x414243, cq: 0x515253}), 272, []entry{
			{"opcode", 0x0, 16, 0x500}, {"pm_state", 0xd3, 2, 3}, {"pd", 0xe8, 24, 0x414243}, {"log_sq_size", 0x111, 4, 0xd},
			{"uar_page", 0x128, 24, 0x313233}, {"cqn_snd", 0x4a8, 24, 0x515253}, {"cqn_rcv", 0x5a8, 24, 0x515253}, {"dbr_addr", 0x5c0, 64, 0x140},
			{"rq_type", 0x625, 3, 3}, {"dbr_umem_valid", 0x743, 1, 1}, {"dbr_umem_id", 0x7e0, 32, 0x21222324}, {"wq_umem_offset", 0x800, 64, 0xf80},
			{"wq_umem_id", 0x840, 32, 0x11121314}, {"wq_umem_valid", 0x860, 1, 1},
		}},
		{"queue pair that waits", createQP(qpSpec{logSize: 1, waits: true, realTime: true}), 272, []entry{
			{"opcode", 0x0, 16, 0x500}, {"pm_state", 0xd3, 2, 3}, {"log_sq_size", 0x111, 4, 1}, {"ts_format", 0x118, 2, 1},
			{"rq_type", 0x625, 3, 3}, {"cd_master", 0x55f, 1, 1}, {"dbr_umem_valid", 0x743, 1, 1}, {"wq_umem_valid", 0x860, 1, 1},
		}},
		{"to init", toInit(0x616263, 2), 272, []entry{
			{"opcode", 0x0, 16, 0x502}, {"qpn", 0x48, 24, 0x616263}, {"pm_state", 0xd3, 2, 3}, {"atomic_mode", 0x54c, 4, 3},
			{"rre", 0x550, 1, 1}, {"rwe", 0x551, 1, 1}, {"rae", 0x552, 1, 1}, {"vhca_port_num", 0x2a8, 8, 2},
		}},
		{"to receive, Ethernet", toReceive(0x616263, ethernet), 272, []entry{
			{"opcode", 0x0, 16, 0x503}, {"qpn", 0x48, 24, 0x616263}, {"mtu", 0x100, 3, 5}, {"log_msg_max", 0x103, 5, 0x1e},
			{"remote_qpn", 0x168, 24, 0x717273}, {"log_rra_max", 0x548, 3, 4}, {"min_rnr_nak", 0x563, 5, 0xc}, {"next_rcv_psn", 0x568, 24, 0x919293},
			{"vhca_port_num", 0x2a8, 8, 1}, {"src_addr_index", 0x1c8, 8, 3}, {"hop_limit", 0x1d8, 8, 0x40}, {"rgid_rip, first half", 0x200, 64, 0xe0e1e2e3e4e5e6e7},
			{"rgid_rip, second half", 0x240, 64, 0xe8e9eaebecedeeef}, {"udp_sport", 0x290, 16, 0xc123}, {"dscp", 0x28a, 6, 0x1a}, {"rmac_47_32", 0x2b0, 16, 0xb1b2},
			{"rmac_31_0", 0x2c0, 32, 0xb3b4b5b6},
		}},
		{"to receive, InfiniBand", toReceive(0x616263, infiniband), 272, []entry{
			{"opcode", 0x0, 16, 0x503}, {"qpn", 0x48, 24, 0x616263}, {"mtu", 0x100, 3, 4}, {"remote_qpn", 0x168, 24, 0x717273},
			{"min_rnr_nak", 0x563, 5, 0xc}, {"vhca_port_num", 0x2a8, 8, 1}, {"rlid", 0x1b0, 16, 0xa1a2},
		}},
		{"to receive, InfiniBand with a GRH", toReceive(0x616263, routed), 272, []entry{
			{"opcode", 0x0, 16, 0x503}, {"qpn", 0x48, 24, 0x616263}, {"mtu", 0x100, 3, 4}, {"remote_qpn", 0x168, 24, 0x717273},
			{"min_rnr_nak", 0x563, 5, 0xc}, {"vhca_port_num", 0x2a8, 8, 1}, {"rlid", 0x1b0, 16, 0xa1a2}, {"grh", 0x1a8, 1, 1},
			{"src_addr_index", 0x1c8, 8, 3}, {"hop_limit", 0x1d8, 8, 0x40}, {"tclass", 0x1e4, 8, 0x68}, {"rgid_rip, first half", 0x200, 64, 0xe0e1e2e3e4e5e6e7},
			{"rgid_rip, second half", 0x240, 64, 0xe8e9eaebecedeeef},
		}},
		{"to send", toSend(0x616263, ethernet), 272, []entry{
			{"opcode", 0x0, 16, 0x504}, {"qpn", 0x48, 24, 0x616263}, {"log_sra_max", 0x448, 3, 3}, {"retry_count", 0x44d, 3, 7},
			{"rnr_retry", 0x450, 3, 6}, {"next_send_psn", 0x488, 24, 0x818283}, {"ack_timeout", 0x1c0, 5, 0x12},
		}},
		{"to error", toError(0x616263), 16, []entry{
			{"opcode", 0x0, 16, 0x507}, {"qpn", 0x48, 24, 0x616263},
		}},
	} {
		want := image(t, c.bytes, c.fields)
		if c.got.err != nil || !bytes.Equal(c.got.in, want) {
			t.Errorf("%s (%s): %v\ngot  %x\nwant %x", c.name, c.got.name, c.got.err, c.got.in, want)
		}
		for _, f := range c.fields {
			if got := (field{f.name, f.bit, f.width}).get(c.got.in); got != f.value {
				t.Errorf("%s: %s reads as %#x, want %#x", c.name, f.name, got, f.value)
			}
		}
	}
}

// TestCommandRefuses: a value that its field has no room for is refused by name, and not cut.
func TestCommandRefuses(t *testing.T) {
	for _, c := range []struct {
		c    *command
		want string
	}{
		{createCQ(cqSpec{logSize: 32}), "CREATE_CQ: log_cq_size is 0x20, 5 bits"},
		{createCQ(cqSpec{eq: 256}), "CREATE_CQ: c_eqn is 0x100, 8 bits"},
		{createQP(qpSpec{logSize: 16}), "CREATE_QP: log_sq_size is 0x10, 4 bits"},
		{createQP(qpSpec{pd: 1 << 24}), "CREATE_QP: pd is 0x1000000, 24 bits"},
		{toInit(1<<24, 1), "RST2INIT_QP: qpn is 0x1000000, 24 bits"},
		{toReceive(1, connection{mtu: 8}), "INIT2RTR_QP: mtu is 0x8, 3 bits"},
		{toReceive(1, connection{receivePSN: 1 << 24}), "INIT2RTR_QP: next_rcv_psn is"},
		{toSend(1, connection{logInitiate: 8}), "RTR2RTS_QP: log_sra_max is 0x8, 3 bits"},
		{toError(1 << 30), "2ERR_QP: qpn is"},
	} {
		if c.c.err == nil || !strings.Contains(c.c.err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.c.name, c.c.err, c.want)
		}
	}
}
