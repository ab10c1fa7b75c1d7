// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"errors"
	"fmt"

	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// statuses are what a NIC says of a command that it refuses (MLX5_CMD_STAT_*).
var statuses = map[uint8]string{
	0x01: "internal error", 0x02: "unknown operation", 0x03: "bad parameter", 0x04: "bad system state", 0x05: "bad resource",
	0x06: "resource busy", 0x08: "limit exceeded", 0x09: "bad resource state", 0x0a: "bad index", 0x0f: "no resources",
	0x10: "bad queue pair state", 0x30: "bad packet", 0x40: "bad size of outstanding CQEs", 0x50: "bad input length", 0x51: "bad output length",
}

// RefusedError is a command that the NIC refused.
type RefusedError struct {
	Command  string
	Status   uint8
	Syndrome uint32 // the maker's word on it
}

func (e *RefusedError) Error() string {
	what, ok := statuses[e.Status]
	if !ok {
		what = "unknown status"
	}
	return fmt.Sprintf("%s: the NIC refuses it: %s (status %#x, syndrome %#x)", e.Command, what, e.Status, e.Syndrome)
}

// checkAnswer says why a command was not done. err is the call's own error: the NIC's word says more, if there is one.
func checkAnswer(name string, out []byte, err error) error {
	if len(out) < shortBytes {
		return fmt.Errorf("%s: an answer of %d bytes, at least %d are accepted: %w", name, len(out), shortBytes, errors.Join(errShort, err))
	}
	if status := statusField.get(out); status != 0 {
		return &RefusedError{name, uint8(status), uint32(syndromeField.get(out))}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

var errShort = errors.New("answer too short")

// Fields of the groups of capabilities, behind the head of their answer.
var (
	capLogQPSize    = field{"log_max_qp_sz", 0x80 + 0x88, 8}
	capLogCQSize    = field{"log_max_cq_sz", 0x80 + 0xc8, 8}
	capLogInitiate  = field{"log_max_ra_req_qp", 0x80 + 0x14a, 6}
	capLogRespond   = field{"log_max_ra_res_qp", 0x80 + 0x15a, 6}
	capPorts        = field{"num_ports", 0x80 + 0x1b8, 8}
	capLogMsg       = field{"log_max_msg", 0x80 + 0x1c3, 5}
	capHasRoCE      = field{"roce", 0x80 + 0x21d, 1}
	capHasAtomics   = field{"atomic", 0x80 + 0x21e, 1}
	capOverrun      = field{"cq_oi", 0x80 + 0x220, 1}
	capWaits        = field{"cd", 0x80 + 0x22c, 1}
	capReliable     = field{"rc", 0x80 + 0x23f, 1}
	capLogRegisters = field{"log_bf_reg_size", 0x80 + 0x26b, 5}
	capTime         = field{"sq_ts_format", 0x80 + 0x440, 2} // where there is no RoCE
	capRoCETime     = field{"qp_ts_format", 0x80 + 0x1e, 2}
	capAtomicOps    = field{"atomic_operations", 0x80 + 0x90, 16}
	capAtomicSizes  = field{"atomic_size_qp", 0x80 + 0xb0, 16}
)

const (
	atomicFetchAdd = 1 << 1
	atomicBytes8   = 1 << 3
)

// caps is what a NIC can.
type caps struct {
	logQP, logCQ            uint8 // deepest queues
	logMsg                  uint8 // largest message, bytes
	logInitiate, logRespond uint8 // reads and fetch-adds under way on a queue pair, to and from the peer
	logRegisters            uint8 // bytes of a doorbell register's buffers
	ports                   uint8
	roce                    bool
	reliable, waits         bool
	overrun                 bool
	atomics                 bool // so far that there are any
	realTime                bool
}

// decodeCaps reads the general group.
func decodeCaps(out []byte) caps {
	one := func(f field) uint8 { return uint8(f.get(out)) }
	return caps{
		logQP: one(capLogQPSize), logCQ: one(capLogCQSize), logMsg: one(capLogMsg), logInitiate: one(capLogInitiate), logRespond: one(capLogRespond),
		logRegisters: one(capLogRegisters), ports: one(capPorts), roce: one(capHasRoCE) != 0, reliable: one(capReliable) != 0, waits: one(capWaits) != 0,
		overrun: one(capOverrun) != 0, atomics: one(capHasAtomics) != 0, realTime: one(capTime) != 0,
	}
}

// decodeAtomics reads the group of atomics into caps.
func (c *caps) decodeAtomics(out []byte) {
	c.atomics = capAtomicOps.get(out)&atomicFetchAdd != 0 && capAtomicSizes.get(out)&atomicBytes8 != 0
}

// decodeRoCE reads the group of RoCE into caps.
func (c *caps) decodeRoCE(out []byte) { c.realTime = capRoCETime.get(out) != 0 }

// lacks says what of what is needed the NIC cannot.
func (c *caps) lacks() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("it has no %s", what))
		}
	}
	need(c.reliable, "reliable connections (rc)")
	need(c.atomics, "fetch-add of 8 bytes (atomic)")
	need(c.overrun, "completion queues without a consumer index (cq_oi)")
	need(c.waits, "waits for another queue's completion (cd)")
	need(c.logQP > 0 && c.logCQ > 0 && c.logMsg > 0 && c.logMsg < 32, "sizes that make sense")
	return errors.Join(errs...)
}

// maxDepth is the deepest queue pair: the index of a WQE has 16 bits, and half of them tell late from early.
func (c *caps) maxDepth() int { return 1 << min(15, c.logQP, c.logCQ) }

// maxMessage is the largest write or read.
func (c *caps) maxMessage() uint32 { return uint32(min(uint64(1)<<c.logMsg, wqe.MaxMessage)) }
