// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"

	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// double is verbs without hardware. It keeps what it is given and made, refuses what comes in a wrong order, and can fail each
// call in turn. Several on one fabric reach each other: see drive.
type double struct {
	testing.TB
	fabric *fabric
	names  []string // of the NICs that are there
	caps   map[uint16][]byte
	ports  []portFacts
	gids   []gidEntry // of each port
	mac    [6]byte
	dcb    []byte // what the kernel says of interface 4
	page   []byte // of registers, from the one that rings on

	calls  int
	failAt int      // which call fails; 0 for none
	failed string   // the one that did
	status uint8    // what it says of a command, 0 for the call's own error
	given  [][]byte // commands that were done
	live   map[handle]*thing
	last   handle
}

// thing is what a call made, until it is ended. It may not end before what depends on it.
type thing struct {
	kind   string
	number uint32 // of a queue, a page, registered memory: its key
	on     []handle

	addr  uintptr // of registered memory
	bytes int
	fd    int
	queue []byte // the command that made it
	state string // of a queue pair
	peer  []byte // the command that connected it
	sends []byte // the one that let it send
	done  uint64 // WQEs, CQEs
}

// fabric gives numbers that no two NICs share.
type fabric struct {
	nics   []*double
	number uint32
}

func (f *fabric) join(t testing.TB) *double {
	d := &double{
		TB: t, fabric: f, names: []string{"mlx5_0"}, page: lines(512), live: map[handle]*thing{}, mac: [6]byte{2, 0, 0, 0, 0, byte(len(f.nics))},
		caps: map[uint16][]byte{
			capGeneral: answer(map[field]uint64{
				capLogQPSize: 15, capLogCQSize: 22, capLogMsg: 30, capLogInitiate: 4, capLogRespond: 3, capLogRegisters: 9, capPorts: 1,
				capHasRoCE: 1, capHasAtomics: 1, capOverrun: 1, capWaits: 1, capReliable: 1,
			}),
			capAtomic: answer(map[field]uint64{capAtomicOps: 3, capAtomicSizes: 8}),
			capRoCE:   answer(map[field]uint64{capRoCETime: 2}),
		},
		ports: []portFacts{{state: portActive, mtu: 5, gids: 4, lid: 7, ethernet: true}},
		gids:  []gidEntry{{gid: [16]byte{0xfe, 0x80, 15: 1}, kind: gidRoCEv2, iface: 4}, {gid: v4(len(f.nics)), index: 2, kind: 1}, {gid: v4(len(f.nics)), index: 3, kind: gidRoCEv2, iface: 4}},
		dcb:   dcbAnswer(1<<3, 0x68>>2, 3),
	}
	f.nics = append(f.nics, d)
	return d
}

// v4 is the GID of an IPv4 address.
func v4(host int) [16]byte { return [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: byte(host)} }

// answer is one of capabilities.
func answer(fields map[field]uint64) []byte {
	c := &command{in: make([]byte, capsBytes)}
	for f, v := range fields {
		c.set(f, v)
	}
	return c.in
}

// step is the begin of each call.
func (d *double) step(name string) error {
	if d.calls++; d.calls == d.failAt {
		d.failed = name
		return fmt.Errorf("%s: %w", name, syscall.ENOMEM)
	}
	return nil
}

// made keeps what a call made of others.
func (d *double) made(t thing, on ...handle) handle {
	d.last++
	t.on = on
	d.live[d.last] = &t
	for _, h := range on {
		d.get(h, "")
	}
	return d.last
}

func (d *double) get(h handle, kind string) *thing {
	d.Helper()
	t := d.live[h]
	if t == nil || kind != "" && t.kind != kind {
		d.Fatalf("%s %d is used, and is %+v", kind, h, t)
	}
	return t
}

// end is the end of a thing, also where the call says that it failed: nobody tries twice.
func (d *double) end(name string, h handle, kind string) error {
	d.get(h, kind)
	delete(d.live, h)
	for _, t := range d.live {
		if slices.Contains(t.on, h) {
			d.Errorf("%s: a %s is ended before its %s", name, kind, t.kind)
		}
	}
	return d.step(name)
}

// of is the thing of a kind with a number.
func (d *double) of(kind string, number uint32) (handle, *thing) {
	for h, t := range d.live {
		if t.kind == kind && t.number == number {
			return h, t
		}
	}
	return 0, nil
}

func (d *double) left() (kinds []string) {
	for _, t := range d.live {
		kinds = append(kinds, t.kind)
	}
	return kinds
}

func (d *double) devices() ([]string, error) { return d.names, d.step("devices") }

func (d *double) open(name string) (handle, error) {
	if err := d.step("open"); err != nil {
		return 0, err
	}
	return d.made(thing{kind: "context"}), nil
}
func (d *double) close(c handle) error { return d.end("close", c, "context") }

func (d *double) queryPort(c handle, port uint8) (portFacts, error) {
	d.get(c, "context")
	return d.ports[port-1], d.step("queryPort")
}

func (d *double) queryGID(c handle, port uint8, index int) (gidEntry, bool, error) {
	d.get(c, "context")
	for _, g := range d.gids {
		if g.index == index {
			return g, true, d.step("queryGID")
		}
	}
	return gidEntry{}, false, d.step("queryGID")
}

func (d *double) queryDCB(iface uint32) ([]byte, error) {
	if iface != 4 {
		d.Errorf("interface %d is asked for", iface)
	}
	return d.dcb, d.step("queryDCB")
}

func (d *double) queryEQ(c handle) (uint32, error) { d.get(c, "context"); return 9, d.step("queryEQ") }

func (d *double) allocPD(c handle) (handle, uint32, error) {
	if err := d.step("allocPD"); err != nil {
		return 0, 0, err
	}
	return d.made(thing{kind: "pd", number: 0x77}, c), 0x77, nil
}
func (d *double) freePD(pd handle) error { return d.end("freePD", pd, "pd") }

func (d *double) allocUAR(c handle) (registers, error) {
	if err := d.step("allocUAR"); err != nil {
		return registers{}, err
	}
	h := d.made(thing{kind: "uar", number: 0x55}, c)
	return registers{uar: h, page: 0x55, bell: ffi.Addr(&d.page[0])}, nil
}
func (d *double) freeUAR(uar handle) { _ = d.end("freeUAR", uar, "uar") }

func (d *double) regUmem(c handle, addr uintptr, bytes, fd int) (handle, uint32, error) {
	if addr%pageBytes != 0 || bytes%pageBytes != 0 || bytes == 0 {
		d.Errorf("%d bytes at %#x are registered: they are no pages", bytes, addr)
	}
	name := "regUmem"
	if fd != noBuffer {
		name = "regUmem of a buffer"
	}
	if err := d.step(name); err != nil {
		return 0, 0, err
	}
	d.fabric.number++
	return d.made(thing{kind: "umem", number: d.fabric.number, addr: addr, bytes: bytes, fd: fd}, c), d.fabric.number, nil
}
func (d *double) deregUmem(h handle) error { return d.end("deregUmem", h, "umem") }

func (d *double) regMR(pd handle, addr uintptr, bytes int, access uint32) (handle, mrKeys, error) {
	return d.reg("regMR", pd, thing{addr: addr, bytes: bytes}, access)
}

func (d *double) regDMABuf(pd handle, offset uint64, bytes, fd int, access uint32) (handle, mrKeys, error) {
	return d.reg("regDMABuf", pd, thing{addr: uintptr(offset), bytes: bytes, fd: fd}, access)
}

func (d *double) reg(name string, pd handle, t thing, access uint32) (handle, mrKeys, error) {
	if err := d.step(name); err != nil {
		return 0, mrKeys{}, err
	}
	d.fabric.number++
	t.kind, t.number, t.state = "mr", d.fabric.number<<8, fmt.Sprintf("%#x", access)
	return d.made(t, pd), mrKeys{t.number, t.number}, nil
}
func (d *double) deregMR(h handle) error { return d.end("deregMR", h, "mr") }

func (d *double) resolve(pd handle, to peerGID) (mac [6]byte, err error) {
	d.get(pd, "pd")
	for _, n := range d.fabric.nics {
		for _, g := range n.gids {
			if g.gid == to.gid && g.kind == gidRoCEv2 {
				mac = n.mac
			}
		}
	}
	return mac, d.step("resolve")
}

// do is what all commands have: the call's own error, or an answer that refuses.
func (d *double) do(in, out []byte) error {
	err := d.step(fmt.Sprintf("command %#x", opcodeField.get(in)))
	if err != nil {
		if d.status != 0 {
			d.refuse(out, d.status)
		}
		return err
	}
	d.given = append(d.given, slices.Clone(in))
	return nil
}

func (d *double) refuse(out []byte, status uint8) error {
	out[0] = status
	copy(out[4:], []byte{0xab, 0xcd, 0x12, 0x34})
	return syscall.EIO
}

func (d *double) query(c handle, in, out []byte) error {
	d.get(c, "context")
	if err := d.do(in, out); err != nil {
		return err
	}
	copy(out, d.caps[uint16(opModField.get(in)>>1)])
	return nil
}

func (d *double) create(c handle, in, out []byte) (handle, error) {
	if err := d.do(in, out); err != nil {
		return 0, err
	}
	t, on := thing{queue: slices.Clone(in)}, []handle{c}
	need := func(kind string, f field) {
		h, _ := d.of(kind, uint32(f.get(in)))
		if h == 0 {
			d.Fatalf("%s %#x of a queue is not there", kind, f.get(in))
		}
		on = append(on, h)
	}
	switch opcodeField.get(in) {
	case opCreateCQ:
		t.kind = "cq"
		need("umem", cqUmem)
		need("umem", cqRecordUmem)
		need("uar", cqUAR)
	case opCreateQP:
		t.kind, t.state = "qp", "reset"
		need("umem", qpUmem)
		need("umem", qpRecordUmem)
		need("uar", qpUAR)
		need("pd", qpPD)
		need("cq", qpSendCQ)
		need("cq", qpReceiveCQ)
	default:
		return 0, d.refuse(out, 0x02)
	}
	d.fabric.number++
	t.number = d.fabric.number
	(&command{in: out}).set(qpnField, uint64(t.number))
	return d.made(t, on...), nil
}

func (d *double) modify(object handle, in, out []byte) error {
	q := d.get(object, "qp")
	if err := d.do(in, out); err != nil {
		return err
	}
	if uint32(qpnField.get(in)) != q.number {
		return d.refuse(out, 0x05)
	}
	op := opcodeField.get(in)
	step := map[uint64][2]string{opRst2Init: {"reset", "init"}, opInit2RTR: {"init", "receive"}, opRTR2RTS: {"receive", "send"}, opToError: {q.state, "error"}}[op]
	if q.state != step[0] || q.state == "reset" && op == opToError {
		return d.refuse(out, 0x10)
	}
	q.state = step[1]
	switch op {
	case opInit2RTR:
		q.peer = slices.Clone(in)
	case opRTR2RTS:
		q.sends = slices.Clone(in)
	}
	return nil
}

func (d *double) destroy(object handle) error {
	return d.end("destroy", object, d.get(object, "").kind)
}

// ops are the operations of the commands that were done.
func (d *double) ops() (ops []uint64) {
	for _, in := range d.given {
		ops = append(ops, opcodeField.get(in))
	}
	return ops
}

// pairs are the queue pairs that are there.
func (d *double) pairs() []*thing {
	return slices.SortedFunc(func(yield func(*thing) bool) {
		for t := range maps.Values(d.live) {
			if t.kind == "qp" && !yield(t) {
				return
			}
		}
	}, func(a, b *thing) int { return int(a.number) - int(b.number) })
}
