// SPDX-License-Identifier: Apache-2.0

package mlx5

import "fmt"

// field is a field of a command or of its answer: its first bit, counted from the highest bit of the first byte, and its width.
type field struct {
	name       string
	bit, width int
}

// get reads a field of at most 64 bits.
func (f field) get(b []byte) (v uint64) {
	for i := f.bit; i < f.bit+f.width; i++ {
		v = v<<1 | uint64(b[i/8]>>(7-i%8)&1)
	}
	return v
}

// command is a command of the device.
type command struct {
	name string
	in   []byte
	err  error // a value did not fit in its field
}

func newCommand(name string, opcode uint16, bytes int) *command {
	c := &command{name: name, in: make([]byte, bytes)}
	c.set(opcodeField, uint64(opcode))
	return c
}

// set writes a field of at most 64 bits, which was 0.
func (c *command) set(f field, v uint64) {
	if f.width < 64 && v>>f.width != 0 && c.err == nil {
		c.err = fmt.Errorf("%s: %s is %#x, %d bits are accepted", c.name, f.name, v, f.width)
	}
	for i := f.bit + f.width - 1; i >= f.bit; i-- {
		c.in[i/8] |= byte(v&1) << (7 - i%8)
		v >>= 1
	}
}

// flag writes a field of one bit.
func (c *command) flag(f field, on bool) {
	if on {
		c.set(f, 1)
	}
}

// bytes writes a field of whole bytes.
func (c *command) bytes(f field, b []byte) { copy(c.in[f.bit/8:(f.bit+f.width)/8], b) }

// Operations.
const (
	opQueryHCACap = 0x100
	opCreateCQ    = 0x400
	opCreateQP    = 0x500
	opRst2Init    = 0x502
	opInit2RTR    = 0x503
	opRTR2RTS     = 0x504
	opToError     = 0x507
)

// Of every command and answer.
var (
	opcodeField   = field{"opcode", 0x00, 16}
	opModField    = field{"op_mod", 0x30, 16}
	qpnField      = field{"qpn", 0x48, 24} // of commands on a queue pair; where an answer has the number of what was made
	statusField   = field{"status", 0x00, 8}
	syndromeField = field{"syndrome", 0x20, 32}
)

// Sizes of commands and answers, bytes.
const (
	shortBytes  = 0x80 / 8
	capsBytes   = 0x80/8 + 0x1000
	createBytes = 0x880 / 8 // of a completion queue and of a queue pair
	modifyBytes = 0x880 / 8
)

// Groups of capabilities.
const (
	capGeneral = 0
	capAtomic  = 3
	capRoCE    = 4
)

// queryCaps asks for a group of capabilities as they are set now.
func queryCaps(group uint16) *command {
	c := newCommand("QUERY_HCA_CAP", opQueryHCACap, shortBytes)
	c.set(opModField, uint64(group)<<1|1)
	return c
}

// place is where something lies in registered memory of the host.
type place struct {
	umem   uint32
	offset uint64 // bytes
}

// cqSpec is a completion queue.
type cqSpec struct {
	logSize      uint8 // CQEs of 64 bytes
	ring, record place
	uar          uint32 // its page of registers
	eq           uint32 // the event queue, which hears of nothing
}

// The completion queue's context in its command.
const cqc = 0x80

var (
	cqRecordValid = field{"dbr_umem_valid", cqc + 0x06, 1}
	cqOverrun     = field{"oi", cqc + 0x0e, 1}
	cqRecordUmem  = field{"dbr_umem_id", cqc + 0x20, 32}
	cqLogSize     = field{"log_cq_size", cqc + 0x63, 5}
	cqUAR         = field{"uar_page", cqc + 0x68, 24}
	cqEQ          = field{"c_eqn", cqc + 0xb8, 8}
	cqRecord      = field{"dbr_addr", cqc + 0x1c0, 64}
	cqOffset      = field{"cq_umem_offset", 0x280, 64}
	cqUmem        = field{"cq_umem_id", 0x2c0, 32}
	cqUmemValid   = field{"cq_umem_valid", 0x2e0, 1}
)

// createCQ makes a completion queue that does not stop for a consumer.
func createCQ(s cqSpec) *command {
	c := newCommand("CREATE_CQ", opCreateCQ, createBytes)
	c.flag(cqRecordValid, true)
	c.flag(cqOverrun, true)
	c.set(cqRecordUmem, uint64(s.record.umem))
	c.set(cqLogSize, uint64(s.logSize))
	c.set(cqUAR, uint64(s.uar))
	c.set(cqEQ, uint64(s.eq))
	c.set(cqRecord, s.record.offset)
	c.set(cqOffset, s.ring.offset)
	c.set(cqUmem, uint64(s.ring.umem))
	c.flag(cqUmemValid, true)
	return c
}

// qpSpec is a queue pair.
type qpSpec struct {
	logSize      uint8 // WQEs of 64 bytes
	ring, record place
	uar, pd, cq  uint32
	waits        bool // for CQEs of other queues
	realTime     bool // the NIC wants the format of timestamps named
}

// The queue pair's context, and its path to the peer, in all commands that have them.
const (
	qpc  = 0xc0
	path = qpc + 0xc0
)

const (
	stateMigrated = 3
	noReceive     = 3 // type of receive queue
	atomics8      = 3 // of up to 8 bytes
	timeDefault   = 1
)

var (
	qpState       = field{"pm_state", qpc + 0x13, 2}
	qpPD          = field{"pd", qpc + 0x28, 24}
	qpMTU         = field{"mtu", qpc + 0x40, 3}
	qpLogMsgMax   = field{"log_msg_max", qpc + 0x43, 5}
	qpLogSize     = field{"log_sq_size", qpc + 0x51, 4}
	qpTime        = field{"ts_format", qpc + 0x58, 2}
	qpUAR         = field{"uar_page", qpc + 0x68, 24}
	qpRemote      = field{"remote_qpn", qpc + 0xa8, 24}
	qpLogInitiate = field{"log_sra_max", qpc + 0x388, 3}
	qpRetries     = field{"retry_count", qpc + 0x38d, 3}
	qpNotReady    = field{"rnr_retry", qpc + 0x390, 3}
	qpSendPSN     = field{"next_send_psn", qpc + 0x3c8, 24}
	qpSendCQ      = field{"cqn_snd", qpc + 0x3e8, 24}
	qpLogRespond  = field{"log_rra_max", qpc + 0x488, 3}
	qpAtomics     = field{"atomic_mode", qpc + 0x48c, 4}
	qpReads       = field{"rre", qpc + 0x490, 1}
	qpWrites      = field{"rwe", qpc + 0x491, 1}
	qpAdds        = field{"rae", qpc + 0x492, 1}
	qpWaits       = field{"cd_master", qpc + 0x49f, 1}
	qpMinNotReady = field{"min_rnr_nak", qpc + 0x4a3, 5}
	qpReceivePSN  = field{"next_rcv_psn", qpc + 0x4a8, 24}
	qpReceiveCQ   = field{"cqn_rcv", qpc + 0x4e8, 24}
	qpRecord      = field{"dbr_addr", qpc + 0x500, 64}
	qpReceiveType = field{"rq_type", qpc + 0x565, 3}
	qpRecordValid = field{"dbr_umem_valid", qpc + 0x683, 1}
	qpRecordUmem  = field{"dbr_umem_id", qpc + 0x720, 32}
	qpOffset      = field{"wq_umem_offset", 0x800, 64}
	qpUmem        = field{"wq_umem_id", 0x840, 32}
	qpUmemValid   = field{"wq_umem_valid", 0x860, 1}

	pathGRH        = field{"grh", path + 0x28, 1}
	pathLID        = field{"rlid", path + 0x30, 16}
	pathAckTimeout = field{"ack_timeout", path + 0x40, 5}
	pathSource     = field{"src_addr_index", path + 0x48, 8}
	pathHops       = field{"hop_limit", path + 0x58, 8}
	pathClass      = field{"tclass", path + 0x64, 8}
	pathGID        = field{"rgid_rip", path + 0x80, 128}
	pathDSCP       = field{"dscp", path + 0x10a, 6}
	pathUDP        = field{"udp_sport", path + 0x110, 16}
	pathPort       = field{"vhca_port_num", path + 0x128, 8}
	pathMAC        = field{"rmac", path + 0x130, 48}
)

// createQP makes a reliable connected queue pair (service type 0) that sends only, and whose reads come to no CQE.
func createQP(s qpSpec) *command {
	c := newCommand("CREATE_QP", opCreateQP, createBytes)
	c.set(qpState, stateMigrated)
	c.set(qpPD, uint64(s.pd))
	c.set(qpLogSize, uint64(s.logSize))
	if s.realTime {
		c.set(qpTime, timeDefault)
	}
	c.set(qpUAR, uint64(s.uar))
	c.set(qpSendCQ, uint64(s.cq))
	c.set(qpReceiveCQ, uint64(s.cq))
	c.flag(qpWaits, s.waits)
	c.set(qpRecord, s.record.offset)
	c.set(qpReceiveType, noReceive)
	c.flag(qpRecordValid, true)
	c.set(qpRecordUmem, uint64(s.record.umem))
	c.set(qpOffset, s.ring.offset)
	c.set(qpUmem, uint64(s.ring.umem))
	c.flag(qpUmemValid, true)
	return c
}

// toInit lets the peer write, read and add, once the queue pair is connected.
func toInit(number uint32, port uint8) *command {
	c := newCommand("RST2INIT_QP", opRst2Init, modifyBytes)
	c.set(qpnField, uint64(number))
	c.set(qpState, stateMigrated)
	c.set(qpAtomics, atomics8)
	c.flag(qpReads, true)
	c.flag(qpWrites, true)
	c.flag(qpAdds, true)
	c.set(pathPort, uint64(port))
	return c
}

// connection is a queue pair's other end, and how packets get there.
type connection struct {
	remote      uint32
	mtu         uint8 // as in verbs: 1 is 256 bytes, 5 is 4,096
	logMsgMax   uint8
	logInitiate uint8 // reads and fetch-adds under way to the peer, and from it
	logRespond  uint8
	sendPSN     uint32
	receivePSN  uint32
	port        uint8
	ethernet    bool
	lid         uint16 // of the peer, on InfiniBand
	global      bool   // packets have a GRH: what follows counts
	source      uint8  // place of this port's GID
	gid         [16]byte
	class       uint8
	mac         [6]byte // on Ethernet
	udp         uint16
}

const (
	hopLimit = 64
	// A packet is repeated after 4.096 us times 2 to ackTimeout, 1.1 s, and retries times: then the peer is lost, after 8.6 s.
	ackTimeout = 18
	retries    = 7
	// No receive queue is ever empty here, since none is used: 7 would stand for "for ever".
	notReadyRetries = 6
	minNotReady     = 12 // 0.64 ms
)

// toReceive connects a queue pair to its peer's.
func toReceive(number uint32, p connection) *command {
	c := newCommand("INIT2RTR_QP", opInit2RTR, modifyBytes)
	c.set(qpnField, uint64(number))
	c.set(qpMTU, uint64(p.mtu))
	c.set(qpLogMsgMax, uint64(p.logMsgMax))
	c.set(qpRemote, uint64(p.remote))
	c.set(qpLogRespond, uint64(p.logRespond))
	c.set(qpMinNotReady, minNotReady)
	c.set(qpReceivePSN, uint64(p.receivePSN))
	c.set(pathPort, uint64(p.port))
	if p.global {
		c.set(pathSource, uint64(p.source))
		c.set(pathHops, hopLimit)
		c.bytes(pathGID, p.gid[:])
	}
	if p.ethernet {
		c.bytes(pathMAC, p.mac[:])
		c.set(pathUDP, uint64(p.udp))
		c.set(pathDSCP, uint64(p.class>>2)) // the NIC marks congestion itself
		return c
	}
	c.set(pathLID, uint64(p.lid))
	if p.global {
		c.flag(pathGRH, true)
		c.set(pathClass, uint64(p.class))
	}
	return c
}

// toSend lets a connected queue pair send.
func toSend(number uint32, p connection) *command {
	c := newCommand("RTR2RTS_QP", opRTR2RTS, modifyBytes)
	c.set(qpnField, uint64(number))
	c.set(qpLogInitiate, uint64(p.logInitiate))
	c.set(qpRetries, retries)
	c.set(qpNotReady, notReadyRetries)
	c.set(qpSendPSN, uint64(p.sendPSN))
	c.set(pathAckTimeout, ackTimeout)
	return c
}

// toError ends what a queue pair has under way, with CQEs that say so.
func toError(number uint32) *command {
	c := newCommand("2ERR_QP", opToError, shortBytes)
	c.set(qpnField, uint64(number))
	return c
}
