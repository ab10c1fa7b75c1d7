// SPDX-License-Identifier: Apache-2.0

package mlx5

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/netplugin"
	"github.com/doorbell-net/doorbell/netplugin/devnic"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// pages are n bytes at a page.
func pages(n int) []byte {
	b := make([]byte, n+pageBytes)
	return b[-gpu.PtrOf(b).Addr()&(pageBytes-1):][:n:n]
}

// lines are n bytes at a line, and at no page.
func lines(n int) []byte { return pages(n + lineSize)[lineSize:] }

// rank is a rank over a double.
type rank struct {
	devnic.NIC
	*double
	mapped int // times registers
	told   []devnic.Failure
}

func (r *rank) config(rank, ranks int) devnic.Config {
	return devnic.Config{
		Rank: rank, Ranks: ranks, TrafficClass: 0x68, Failed: func(f devnic.Failure) { r.told = append(r.told, f) },
		MapRegisters: func(mem []byte) (gpu.Ptr[byte], func() error, error) {
			err := r.step("MapRegisters")
			if err == nil {
				r.mapped++
			}
			if &mem[0] != &r.page[0] || len(mem) != len(r.page) {
				r.Errorf("%d bytes of registers are mapped, not the %d that there are", len(mem), len(r.page))
			}
			return gpu.PtrOf(mem), func() error { r.mapped--; return r.step("unmap registers") }, err
		},
		DMABuf: func(at gpu.Ptr[byte], _ int) (*os.File, uint64, error) {
			f, err := os.Open(os.DevNull)
			return f, 64, errors.Join(err, r.step("DMABuf"))
		},
	}
}

func newRank(t testing.TB, f *fabric) *rank { return &rank{double: f.join(t)} }

func (r *rank) provider() provider { return provider{func() (verbs, error) { return r.double, nil }} }

// world is ranks on one fabric.
func world(t testing.TB, ranks int) (*fabric, []*rank) {
	f, all := new(fabric), make([]*rank, ranks)
	for i := range all {
		all[i] = newRank(t, f)
		var err error
		if all[i].NIC, err = all[i].provider().Open(all[i].config(i, ranks)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for i, r := range all {
			if err := r.NIC.Close(); err != nil || len(r.left()) > 0 || r.mapped != 0 {
				t.Errorf("rank %d: closed with %v, %q are left, and registers mapped %d times", i, err, r.left(), r.mapped)
			}
		}
	})
	return f, all
}

// queue is a queue pair as kernels use it.
type queue struct {
	devnic.QP
	devnic.QPConfig
	next, read uint64
}

func newConfig(peer, depth int) devnic.QPConfig {
	c := devnic.QPConfig{
		Peer: peer, Depth: depth, Send: gpu.Cast[uint64](gpu.PtrOf(lines(depth * wqe.Bytes))), Done: gpu.Cast[uint64](gpu.PtrOf(lines(depth * wqe.Bytes))),
		Record: gpu.Cast[uint32](gpu.PtrOf(lines(lineSize))).At(1),
	}
	for i := range depth {
		c.Done.At(i*wqe.Words + wqe.TailWord).Store(uint64(wqe.EmptyTail))
	}
	return c
}

func (r *rank) queue(peer, depth int) *queue {
	r.Helper()
	c := newConfig(peer, depth)
	qp, err := r.NIC.Create(c)
	if err != nil {
		r.Fatal(err)
	}
	return &queue{qp, c, wqe.FirstIndex, wqe.FirstIndex}
}

// join makes queue pairs between two ranks.
func join(t testing.TB, all []*rank, a, b, depth int) (*queue, *queue) {
	t.Helper()
	qa, qb := all[a].queue(b, depth), all[b].queue(a, depth)
	if err := errors.Join(all[a].Connect(qa.Number, qb.Address), all[b].Connect(qb.Number, qa.Address)); err != nil {
		t.Fatal(err)
	}
	return qa, qb
}

func (q *queue) post(build func(b *wqe.Block, index uint64)) {
	var b wqe.Block
	build(&b, q.next)
	for i, w := range b {
		gpu.Store(q.Send.At(int(q.next%uint64(q.Depth))*wqe.Words+i), w, gpu.Relaxed, gpu.ScopeSys)
	}
	q.next++
	gpu.Store(q.Record, wqe.Record(q.next), gpu.Release, gpu.ScopeSys)
	gpu.Store(q.Bell, b[0], gpu.Release, gpu.ScopeSys)
}

// ended are the CQEs since.
func (q *queue) ended() (all []wqe.CQE) {
	for ; q.read != q.next; q.read++ {
		var b wqe.Block
		for i := range b {
			b[i] = gpu.Load(q.Done.At(int(q.read%uint64(q.Depth))*wqe.Words+i), gpu.Acquire, gpu.ScopeSys)
		}
		if t := wqe.Tail(b[wqe.TailWord]); t.Is() == wqe.CQEInvalid || t.Ahead(q.read) != 0 {
			break
		}
		all = append(all, b.DecodeCQE())
	}
	return all
}

func (q *queue) ok(t testing.TB) {
	t.Helper()
	all := q.ended()
	for _, c := range all {
		if c.Is != wqe.CQEDone {
			t.Fatalf("a WQE ended with %+v", c)
		}
	}
	if q.read != q.next {
		t.Fatalf("%d WQEs have not ended", q.next-q.read)
	}
}

// share registers memory of a rank, and gives another rank's key for it.
func share(t testing.TB, all []*rank, owner, user int, mem []byte, signals bool) (key uint32, export []byte) {
	t.Helper()
	export, err := all[owner].Export(mem, signals)
	if err != nil {
		t.Fatal(err)
	}
	k, err := all[user].Import(owner, netplugin.Key{Bytes: export, Size: len(mem)})
	if err != nil {
		t.Fatal(err)
	}
	return uint32(k), export
}

// TestOperations: what kernels write where Create and Import told them to is done by a NIC that knows commands and registered
// memory alone, over several laps; a queue of this rank's own waits for another one's CQE.
func TestOperations(t *testing.T) {
	f, all := world(t, 2)
	near, far, words := pages(4096), pages(4096), pages(64)
	nearKey, _ := share(t, all, 0, 0, near, false)
	farKey, _ := share(t, all, 1, 0, far, false)
	wordKey, _ := share(t, all, 1, 0, words, true)
	homeKey, _ := share(t, all, 0, 0, pages(128), true)
	q, _ := join(t, all, 0, 1, 8)
	self := all[0].queue(0, 4)
	if err := all[0].Connect(self.Number, self.Address); err != nil {
		t.Fatal(err)
	}
	for i := range near {
		near[i] = byte(i * 7)
	}
	home := uint64(0)
	for round := range uint64(10) {
		self.post(func(b *wqe.Block, i uint64) { b.Wait(i, self.Number, q.CQ, q.next) })
		self.post(func(b *wqe.Block, i uint64) { b.FetchAdd(i, self.Number, 64, homeKey, 1, 0, homeKey) })
		f.drive()
		if all[0].Idle(self.Number) || len(self.ended()) != 0 {
			t.Fatal("a wait ended before what it waits for")
		}
		q.post(func(b *wqe.Block, i uint64) { b.Write(i, q.Number, 100, farKey, 200+round, nearKey, 1000) })
		q.post(func(b *wqe.Block, i uint64) { b.WriteValue(i, q.Number, 4088, farKey, round, 8) })
		q.post(func(b *wqe.Block, i uint64) { b.FetchAdd(i, q.Number, 8, wordKey, 3, 0, homeKey) })
		f.drive()
		q.ok(t)
		self.ok(t)
		home++
		if !bytes.Equal(far[100:1100], near[200+round:1200+round]) || binary.LittleEndian.Uint64(far[4088:]) != round || binary.LittleEndian.Uint64(words[8:]) != 3*home {
			t.Fatalf("round %d: what was written is not there", round)
		}
		if !all[0].Idle(q.Number) || !all[0].Idle(self.Number) || all[0].Poll() || !all[0].Quiet() {
			t.Fatal("the NIC is not idle when all have ended")
		}
	}
}

// TestCommands: what the NIC is told, in its order, with what was read and not with what is usual.
func TestCommands(t *testing.T) {
	_, all := world(t, 2)
	all[1].NIC.Close()
	all[1].ports[0].mtu, all[1].caps[capGeneral] = 3, answer(map[field]uint64{
		capLogQPSize: 6, capLogCQSize: 22, capLogMsg: 20, capLogInitiate: 2, capLogRespond: 1, capPorts: 1, capHasRoCE: 1, capHasAtomics: 1, capOverrun: 1, capWaits: 1, capReliable: 1, capLogRegisters: 9,
	})
	all[1].caps[capRoCE] = answer(nil)
	var err error
	if all[1].NIC, err = all[1].provider().Open(all[1].config(1, 2)); err != nil {
		t.Fatal(err)
	}
	a, b := all[0].Facts(), all[1].Facts()
	a.About, b.About = "", ""
	if a != (devnic.Facts{MaxMessage: 1 << 30, MaxDepth: 1 << 15, FarQueues: true}) || b != (devnic.Facts{MaxMessage: 1 << 20, MaxDepth: 1 << 6, FarQueues: true}) {
		t.Errorf("facts %+v and %+v", a, b)
	}
	all[0].given, all[1].given = nil, nil
	qa, _ := join(t, all, 0, 1, 16)
	want := []uint64{opCreateCQ, opCreateQP, opRst2Init, opInit2RTR, opRTR2RTS}
	for i, r := range all {
		other := all[1-i]
		if got := r.ops(); !slices.Equal(got, want) {
			t.Fatalf("rank %d gave %#x, want %#x", i, got, want)
		}
		cq, qp, ready, send := r.given[0], r.given[1], r.given[3], r.given[4]
		for _, c := range []struct {
			name string
			f    field
			in   []byte
			want uint64
		}{
			{"its CQ's size", cqLogSize, cq, 4}, {"its CQ's registers", cqUAR, cq, 0x55}, {"events", cqEQ, cq, 9},
			{"its CQ's record", cqRecord, cq, qpRecord.get(qp) + 8}, {"in the same line", cqRecordUmem, cq, qpRecordUmem.get(qp)},
			{"size", qpLogSize, qp, 4}, {"timestamps", qpTime, qp, []uint64{1, 0}[i]}, {"waits", qpWaits, qp, 0}, {"uar", qpUAR, qp, 0x55}, {"pd", qpPD, qp, 0x77},
			{"peer", qpRemote, ready, uint64(other.pairs()[0].number)}, {"mtu", qpMTU, ready, 3}, {"message", qpLogMsgMax, ready, []uint64{30, 20}[i]},
			{"answers", qpLogRespond, ready, []uint64{3, 1}[i]}, {"asks", qpLogInitiate, send, []uint64{1, 2}[i]}, {"port", pathPort, ready, 1},
			{"GID", pathSource, ready, 3}, {"class", pathDSCP, ready, 0x1a}, {"packets", qpReceivePSN, ready, qpSendPSN.get(other.given[4])},
			{"UDP", pathUDP, ready, pathUDP.get(other.given[3])}, {"hops", pathHops, ready, 64}, {"GRH", pathGRH, ready, 0},
		} {
			if got := c.f.get(c.in); got != c.want {
				t.Errorf("rank %d: %s: %s is %#x, want %#x", i, c.name, c.f.name, got, c.want)
			}
		}
		if gid := v4(1 - i); !bytes.Equal(ready[pathGID.bit/8:][:16], gid[:]) || !bytes.Equal(ready[pathMAC.bit/8:][:6], other.mac[:]) || pathUDP.get(ready)>>14 != 3 {
			t.Errorf("rank %d sends to GID %x, MAC %x", i, ready[pathGID.bit/8:][:16], ready[pathMAC.bit/8:][:6])
		}
	}
	if a, b := qpSendPSN.get(all[0].given[4]), qpSendPSN.get(all[1].given[4]); a == b {
		t.Errorf("both begin at packet %#x", a) // once in 16 million runs by chance
	}
	// What has a wrong order the NIC refuses, and the error says which command.
	if err := all[0].Connect(qa.Number, all[1].queue(0, 2).Address); err == nil || !strings.Contains(err.Error(), "INIT2RTR_QP: the NIC refuses it: bad queue pair state (status 0x10, syndrome 0xabcd1234)") {
		t.Errorf("connected twice: %v", err)
	}
}

// TestInfiniBand: packets have a GRH where the port needs one, or the peer is of another subnet.
func TestInfiniBand(t *testing.T) {
	for _, c := range []struct {
		needs  bool
		prefix byte
		want   uint64
	}{{false, 0, 0}, {true, 0, 1}, {false, 9, 1}} {
		f := new(fabric)
		all := []*rank{newRank(t, f), newRank(t, f)}
		for i, r := range all {
			r.ports = []portFacts{{state: 2}, {state: portActive, mtu: 5, gids: 1, lid: uint16(0x30 + i), global: c.needs}}
			r.gids = []gidEntry{{gid: [16]byte{0xfe, 0x80, 7: byte(i) * c.prefix, 15: byte(i)}, kind: gidIB}}
			(&command{in: r.caps[capGeneral]}).set(capPorts, 2) // 1 was there
			var err error
			if r.NIC, err = r.provider().Open(r.config(i, 2)); err != nil {
				t.Fatal(err)
			}
		}
		join(t, all, 0, 1, 4)
		ready := all[0].given[len(all[0].given)-2]
		if pathGRH.get(ready) != c.want || pathLID.get(ready) != 0x31 || pathPort.get(ready) != 2 || pathMAC.get(ready) != 0 || pathClass.get(ready) != c.want*0x68 {
			t.Errorf("%+v: GRH %d, lid %#x, port %d, class %#x", c, pathGRH.get(ready), pathLID.get(ready), pathPort.get(ready), pathClass.get(ready))
		}
		for _, r := range all {
			if err := r.NIC.Close(); err != nil || len(r.left()) > 0 {
				t.Errorf("closed with %v, %q are left", err, r.left())
			}
		}
	}
}

// TestEachCallFails: whichever call fails, the error names it, and nothing is left of what was made before. Where a DMA buffer
// fails there is another way; what becomes of packets is for the text alone; the end of a page of registers is told to nobody.
func TestEachCallFails(t *testing.T) {
	for _, status := range []uint8{0, 0x0f} {
		for failAt := 1; ; failAt++ {
			f := new(fabric)
			peer, r := newRank(t, f), newRank(t, f)
			var err error
			if peer.NIC, err = peer.provider().Open(peer.config(1, 2)); err != nil {
				t.Fatal(err)
			}
			to := peer.queue(0, 4).Address
			r.failAt, r.status = failAt, status
			err = r.whole(to)
			if r.failed == "" {
				if err != nil {
					t.Fatalf("nothing failed, and %v", err)
				}
				if failAt < 30 {
					t.Errorf("all was done in %d calls", failAt)
				}
				break
			}
			names := map[string]string{"command 0x100": "QUERY_HCA_CAP", "command 0x400": "CREATE_CQ", "command 0x500": "CREATE_QP", "command 0x502": "RST2INIT_QP", "command 0x503": "INIT2RTR_QP", "command 0x504": "RTR2RTS_QP", "command 0x507": "2ERR_QP"}
			want := r.failed
			if n, ok := names[r.failed]; ok {
				if want = n; status != 0 {
					want += ": the NIC refuses it: no resources (status 0xf, syndrome 0xabcd1234)"
				}
			}
			harmless := slices.Contains([]string{"DMABuf", "regDMABuf", "regUmem of a buffer", "freeUAR", "queryDCB"}, r.failed)
			if harmless != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("call %d, %s, failed: %v", failAt, r.failed, err)
			}
			if len(r.left()) > 0 || r.mapped != 0 {
				t.Errorf("call %d, %s, failed (%v): %q are left, registers mapped %d times", failAt, r.failed, err, r.left(), r.mapped)
			}
			if err := peer.NIC.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// whole opens a NIC, uses all of it, and closes it.
func (r *rank) whole(to []byte) (err error) {
	if r.NIC, err = r.provider().Open(r.config(0, 2)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.NIC.Close()) }()
	host, err := r.Export(pages(64), true)
	if err != nil {
		return err
	}
	if _, err = r.NIC.(netplugin.DeviceExporter).ExportDevice(gpu.PtrOf(pages(4096)), 4096); err != nil {
		return err
	}
	r.Withdraw(host)
	for _, far := range []bool{false, true} {
		c := newConfig(1, 4)
		c.Far = far
		qp, err := r.Create(c)
		if err != nil {
			return err
		}
		if err := r.Connect(qp.Number, to); err != nil {
			return err
		}
		defer r.Destroy(qp.Number)
	}
	r.Lose(1)
	return nil
}

// TestWhatIsMissing: the error names it.
func TestWhatIsMissing(t *testing.T) {
	without := func(f field) func(*rank) {
		return func(r *rank) { r.caps[capGeneral][f.bit/8] &^= byte((1<<f.width - 1) << (7 - (f.bit+f.width-1)%8)) }
	}
	for _, c := range []struct {
		name  string
		spoil func(r *rank)
		want  []string
	}{
		{"NICs", func(r *rank) { r.names = nil }, []string{"no NIC that libmlx5 drives", "mlx5_ib"}},
		{"reliable connections", without(capReliable), []string{"NIC mlx5_0", "(rc)"}},
		{"atomics", without(capHasAtomics), []string{"NIC mlx5_0", "fetch-add"}},
		{"fetch-add of 8 bytes", func(r *rank) { r.caps[capAtomic] = answer(map[field]uint64{capAtomicOps: 3, capAtomicSizes: 4}) }, []string{"fetch-add of 8 bytes"}},
		{"fetch-add", func(r *rank) { r.caps[capAtomic] = answer(map[field]uint64{capAtomicOps: 1, capAtomicSizes: 8}) }, []string{"fetch-add of 8 bytes"}},
		{"overrun", without(capOverrun), []string{"(cq_oi)"}},
		{"waits", without(capWaits), []string{"(cd)"}},
		{"depth", without(capLogQPSize), []string{"sizes"}},
		{"RoCE", without(capHasRoCE), []string{"port 1", "no RoCE"}},
		{"ports", without(capPorts), []string{"no port can be used"}},
		{"a link", func(r *rank) { r.ports[0].state = 1 }, []string{"NIC mlx5_0", "port 1", "not active (state 1; 4 is)"}},
		{"an MTU", func(r *rank) { r.ports[0].mtu = 0 }, []string{"port 1", "MTU is number 0"}},
		{"RoCE v2", func(r *rank) { r.gids = r.gids[1:2] }, []string{"port 1", "none of its 4 GIDs", "RoCE v2"}},
	} {
		r := newRank(t, new(fabric))
		c.spoil(r)
		_, err := r.provider().Open(r.config(0, 1))
		says(t, err, c.name, append(c.want, "open mlx5 on rank 0")...)
		says(t, r.provider().Probe(), c.name, append(c.want, "mlx5: ")...)
		if len(r.left()) > 0 {
			t.Errorf("%s: %q are left", c.name, r.left())
		}
	}
	missing := provider{func() (verbs, error) { return nil, errors.New("open library libibverbs.so.1: no such file") }}
	says(t, missing.Probe(), "library", "mlx5: open library libibverbs.so.1")
	_, err := missing.Open(newRank(t, new(fabric)).config(0, 1))
	says(t, err, "library", "open mlx5 on rank 0: open library libibverbs.so.1")
}

// TestOneOfSeveral: a NIC that cannot be used is passed over, and ranks take turns among the others; of GIDs, one of more than
// the link is taken.
func TestOneOfSeveral(t *testing.T) {
	for rank, want := range []string{"mlx5_0", "mlx5_1", "mlx5_0"} {
		r := newRank(t, new(fabric))
		r.names = []string{"mlx5_0", "mlx5_1"}
		if err := r.provider().Probe(); err != nil {
			t.Error(err)
		}
		n, err := r.provider().Open(r.config(rank, 3))
		if err != nil {
			t.Fatal(err)
		}
		if a := n.(*nic).adapter; a.name != want || a.gid.index != 3 {
			t.Errorf("rank %d has NIC %s, want %s, and GID %d, want 3", rank, a.name, want, a.gid.index)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	r := newRank(t, new(fabric))
	r.gids = r.gids[:2]
	n, err := r.provider().Open(r.config(0, 1))
	if err != nil || n.(*nic).gid.index != 0 {
		t.Fatalf("with a GID of the link alone: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

func says(t testing.TB, err error, what string, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%s: error %v does not say %q", what, err, w)
		}
	}
}

// TestRefuses: what is asked for wrongly is refused before the NIC hears of it.
func TestRefuses(t *testing.T) {
	_, all := world(t, 2)
	r, calls := all[0], func() int { return all[0].calls }
	for _, c := range []struct {
		name  string
		spoil func(c *devnic.QPConfig)
		want  string
	}{
		{"rank", func(c *devnic.QPConfig) { c.Peer = 2 }, "to rank 2: 0 to 1 is accepted"},
		{"depth", func(c *devnic.QPConfig) { c.Depth = 12 }, "depth 12; a power of two from 2 to 32768"},
		{"too deep", func(c *devnic.QPConfig) { c.Depth = 1 << 16 }, "depth 65536"},
		{"ring", func(c *devnic.QPConfig) { c.Send = c.Send.At(1) }, "multiples of 64"},
		{"record", func(c *devnic.QPConfig) { c.Record = c.Record.At(1) }, "of the record's 4 more"},
		{"nothing", func(c *devnic.QPConfig) { c.Done = gpu.Ptr[uint64]{} }, "queues at"},
	} {
		before, q := calls(), newConfig(1, 4)
		c.spoil(&q)
		_, err := r.NIC.Create(q)
		says(t, err, c.name, "mlx5 on rank 0", c.want)
		if calls() != before {
			t.Errorf("%s: the NIC heard of it", c.name)
		}
	}
	q, other := r.queue(1, 4), all[1].queue(1, 4)
	says(t, r.Connect(q.Number+100, q.Address), "number", fmt.Sprint("queue pair ", q.Number+100), "not there")
	says(t, r.Connect(q.Number, q.Address), "peer", "to rank 1: it is of rank 0")
	says(t, r.Connect(q.Number, other.Address[1:]), "address", "none of version 1")
	a, err := decodeAddress(other.Address)
	if err != nil {
		t.Fatal(err)
	}
	a.ethernet = false
	says(t, r.Connect(q.Number, a.encode()), "link", "one end is of Ethernet and the other of InfiniBand")
	for _, spoil := range []func(c *devnic.Config){func(c *devnic.Config) { c.Rank = 2 }, func(c *devnic.Config) { c.TrafficClass = 256 }, func(c *devnic.Config) { c.Failed = nil }} {
		before, c := calls(), r.config(0, 2)
		spoil(&c)
		if _, err := r.provider().Open(c); err == nil || calls() != before {
			t.Errorf("opened with %+v: %v", c, err)
		}
	}
}
