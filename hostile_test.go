// SPDX-License-Identifier: Apache-2.0

package doorbell_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/abi"
	"github.com/doorbell-net/doorbell/internal/testenv"
)

// badDescs are descriptors that no correct producer writes, made from one that would be good.
var badDescs = map[string]struct {
	change func(d *abi.Desc)
	says   string
}{
	"version":             {func(d *abi.Desc) { d.Version++ }, "another version"},
	"no operation":        {func(d *abi.Desc) { d.Op = 0 }, "no operation"},
	"unknown operation":   {func(d *abi.Desc) { d.Op = 31 }, "no operation"},
	"both signals":        {func(d *abi.Desc) { d.Flags |= abi.FlagSignalInc | abi.FlagSignalAdd }, "flags"},
	"at address":          {func(d *abi.Desc) { d.Flags, d.SigID = d.Flags|abi.FlagAtAddress, 77 }, "window is not registered"},
	"address in bytes":    {func(d *abi.Desc) { d.Flags, d.SigID = d.Flags|abi.FlagAtAddress, d.SrcWin }, "signal is not there"},
	"get with a signal":   {func(d *abi.Desc) { d.Op = abi.OpGet }, "flags"},
	"get past the end":    {func(d *abi.Desc) { d.Op, d.Flags, d.DstOff = abi.OpGet, 0, 1 }, "out of bounds"},
	"spare flag":          {func(d *abi.Desc) { d.Flags |= 1 << 7 }, "flags"},
	"signal":              {func(d *abi.Desc) { d.SigID = 2 }, "signal is not there"},
	"signal, most":        {func(d *abi.Desc) { d.SigID = 1<<32 - 1 }, "signal is not there"},
	"counter":             {func(d *abi.Desc) { d.Counter = 1 }, "counter is not there"},
	"counter, most":       {func(d *abi.Desc) { d.Counter = 1<<31 - 1 }, "counter is not there"},
	"window":              {func(d *abi.Desc) { d.DstWin = 77 }, "window is not registered"},
	"window, most":        {func(d *abi.Desc) { d.DstWin = 1<<32 - 1 }, "window is not registered"},
	"generation":          {func(d *abi.Desc) { d.DstGen++ }, "stale"},
	"no generation":       {func(d *abi.Desc) { d.DstGen = 0 }, "stale"},
	"source window":       {func(d *abi.Desc) { d.SrcWin = 78 }, "id 78 at this end"},
	"source offset":       {func(d *abi.Desc) { d.Src = 1 }, "source is out of bounds"},
	"source offset, most": {func(d *abi.Desc) { d.Src = 1<<64 - 1 }, "source is out of bounds"},
	"size":                {func(d *abi.Desc) { d.Size = 101 }, "source is out of bounds"},
	"size, most":          {func(d *abi.Desc) { d.Size = 1<<48 - 1 }, "source is out of bounds"},
	"offset":              {func(d *abi.Desc) { d.DstOff = 1 }, "out of bounds"},
	"offset, most":        {func(d *abi.Desc) { d.DstOff = 1<<63 - 1 }, "out of bounds"},
	"value of 9 bytes":    {func(d *abi.Desc) { d.Op, d.Size = abi.OpPutValue, 9 }, "size"},
	"cell without cells":  {func(d *abi.Desc) { d.Op = abi.OpPutCell }, "size"},
	"signal with bytes":   {func(d *abi.Desc) { d.Op = abi.OpSignal }, "size"},
}

// TestCorruptDescriptors writes bad descriptors into queues. Each is refused: the operations before it arrive, it and
// those after it do nothing, its (context, peer) has RemoteError, and all others go on.
func TestCorruptDescriptors(t *testing.T) {
	rng := testenv.Random(t)
	type bad struct {
		name, says string
		words      [abi.DescWords]uint64
		random     bool
	}
	var list []bad
	for _, name := range slices.Sorted(maps.Keys(badDescs)) {
		list = append(list, bad{name: name, says: badDescs[name].says})
	}
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] }) // each comes first in its turn
	for i := range 40 {
		b := bad{name: fmt.Sprint("random ", i), random: true}
		for j := range b.words {
			b.words[j] = rng.Uint64()
		}
		list = append(list, b)
	}
	var log logText
	cs := local(t, 3, doorbell.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	each(t, cs, func(r *rank) {
		dc := r.devComm(doorbell.Needs{Contexts: len(list), Signals: 2, Counters: 1})
		recv, send := r.guarded(100), r.window(100)
		r.sync()
		if r.Rank() != 0 {
			r.sync()
			recv.untouched(r, "corrupt descriptors")
			r.run(func(t gpu.Thread) {
				d := dc.Device()
				for x := range d.Contexts {
					c := gin.Open(&d, x)
					if s0, s1 := c.ReadSignal(0), c.ReadSignal(1); s0 != uint64(d.Rank) || s1 != 0 {
						panic(fmt.Sprintf("%s: signals are %d and %d, want %d and 0", list[x].name, s0, s1, d.Rank))
					}
				}
			})
			r.sync()
			return
		}
		r.run(func(t gpu.Thread) {
			d, co := dc.Device(), gin.ByThread(t)
			world := gin.World(&d)
			for x, b := range list {
				c := gin.Open(&d, int32(x))
				queue := x*int(d.Peers) + 1
				good := abi.Desc{Op: abi.OpPut, Version: abi.DescVersion, Flags: abi.FlagStrong | abi.FlagSignalInc | abi.FlagCounter, Size: 100, SigVal: 1, SigID: 1,
					DstWin: recv.Device().ID, DstGen: recv.Device().Gen, SrcWin: send.Device().ID}
				if !b.random {
					badDescs[b.name].change(&good)
					good.Encode(&b.words, 0)
				}
				ok(c.Signal(co, world, 1, gin.StrongInc(0)), "signal before")
				takeTicket(&d, queue).publish(b.words)
				s := c.Signal(co, world, 1, gin.StrongInc(1)) // refused when the proxy was quicker
				if s != gin.OK {
					expect(s, gin.RemoteError, "signal after: %s", b.name)
				}
				expect(c.FlushPeer(co, world, 1), gin.RemoteError, "flush: %s", b.name)
				expect(c.WaitSignal(co, 0, 9, 64, gin.FromPeer(world, 1)), gin.RemoteError, "wait: %s", b.name)
				expect(c.WaitCounter(co, 0, 9, 64, gin.FromTeam(world)), gin.RemoteError, "counter: %s", b.name)
				expect(c.Signal(co, world, 1, gin.StrongInc(1)), gin.RemoteError, "signal: %s", b.name)
				expect(c.Flush(co), gin.RemoteError, "flush of all: %s", b.name)
				ok(c.Signal(co, world, 2, gin.StrongAdd(0, 2)), "signal to another peer: %s", b.name)
				ok(c.FlushPeer(co, world, 2), "flush of another peer: %s", b.name)
			}
		})
		var cause *doorbell.Cause
		if err := dc.Cause(); !errors.As(err, &cause) || cause.Status != gin.RemoteError || cause.Peer != 1 || cause.Context != 0 {
			r.fail("cause is %v", err)
		}
		says(r, cause, "cause", "rank 0", "RemoteError", "rank 1, context 0", list[0].says)
		r.sync()
		r.sync()
	})
	for x, b := range list {
		where := fmt.Sprintf("context %d,", x)
		if !slices.ContainsFunc(strings.Split(log.String(), "\n"), func(line string) bool {
			return strings.Contains(line, where) && strings.Contains(line, b.says)
		}) {
			t.Errorf("%s: no log line of %q says %q", b.name, where, b.says)
		}
	}
}

// TestDeadProducer has a thread take a ticket and leave. Its queue is aborted after about a second, with the reason;
// the others go on meanwhile. So it is when others have posted behind it.
func TestDeadProducer(t *testing.T) {
	for _, progress := range []string{"assisted", "thread"} {
		for _, behind := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, others behind it %v", progress, behind), func(t *testing.T) {
				t.Parallel()
				each(t, local(t, 2, doorbell.Options{Progress: progress}), func(r *rank) { deadProducer(r, behind) })
			})
		}
	}
}

func deadProducer(r *rank, behind bool) {
	dc := r.devComm(doorbell.Needs{Contexts: 2, Signals: 1, QueueDepth: 8})
	r.sync()
	if r.Rank() == 1 {
		r.sync()
		return
	}
	var took time.Duration
	r.start(doorbell.Grid{Blocks: 2, Warps: 1, Cooperative: true}, func(t gpu.Thread) {
		d, co := dc.Device(), gin.ByThread(t)
		c, world := gin.Open(&d, t.Block()), gin.World(&d)
		if t.Block() == 1 { // another context works all the while
			for start := t.Clock(); t.Clock()-start < 1e9; t.Idle(0, 0) {
				ok(c.Signal(co, world, 1, gin.StrongInc(0)), "signal")
				ok(c.FlushPeer(co, world, 1), "flush")
			}
			return
		}
		start := t.Clock()
		takeTicket(&d, 1)
		if behind {
			for range 7 {
				ok(c.Signal(co, world, 1, gin.StrongInc(0)), "signal behind the dead one")
			}
			expect(c.Signal(co, world, 1, gin.StrongInc(0)), gin.Aborted, "signal that waits for room")
		}
		expect(c.FlushPeer(co, world, 1), gin.Aborted, "flush")
		took = time.Duration(t.Clock() - start)
		expect(c.Signal(co, world, 1, gin.StrongInc(0)), gin.Aborted, "signal afterwards")
		ok(c.Signal(co, world, 0, gin.StrongInc(0)), "signal to another peer")
		ok(c.WaitSignal(co, 0, 1, 64, gin.FromPeer(world, 0)), "wait for another peer")
	})
	r.wait()
	if took < 900*time.Millisecond || took > 5*time.Second {
		r.fail("aborted after %v", took)
	}
	says(r, dc.Cause(), "cause", "rank 0", "Aborted", "rank 1, context 0", "took a ticket and never wrote its descriptor")
	r.sync()
}

// TestCredit fills a queue that nobody empties: a put ends by its deadline and leaves no hole behind, from one thread
// and from several at once, again and again. When the queue is emptied all that was taken arrives, and more goes through.
func TestCredit(t *testing.T) {
	const depth, warps = 4, 6
	each(t, local(t, 2, doorbell.Options{}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 1, QueueDepth: depth})
		r.sync()
		if r.Rank() == 1 {
			r.sync()
			return
		}
		taken := make([]uint64, warps)
		d := dc.Device()
		for range 5 {
			was := tickets(&d)[1]
			r.must(r.Paused(r.ctx, func() {
				r.start(doorbell.Grid{Blocks: 1, Warps: warps}, func(t gpu.Thread) {
					co := gin.ByThread(t)
					c, world := gin.Open(&d, 0), gin.World(&d)
					c.SetTimeout(2e6)
					for range depth {
						if s := c.Signal(co, world, 1, gin.StrongInc(0)); s == gin.OK {
							taken[t.Warp()]++
						} else {
							expect(s, gin.Timeout, "signal to a full queue")
						}
					}
				})
				if err := r.st.Wait(r.ctx); err != nil {
					r.Errorf("full queue: %v", err)
				}
			}))
			if n := tickets(&d)[1] - was; n != depth {
				r.fail("%d tickets were taken of a queue with %d places", n, depth)
			}
			r.run(func(t gpu.Thread) {
				c := gin.Open(&d, 0)
				ok(c.Flush(gin.ByThread(t)), "flush when it goes on")
			})
		}
		r.run(func(t gpu.Thread) {
			c, world := gin.Open(&d, 0), gin.World(&d)
			for range 100 {
				ok(c.Signal(gin.ByThread(t), world, 1, gin.StrongInc(0)), "signal afterwards")
			}
			ok(c.Flush(gin.ByThread(t)), "flush afterwards")
		})
		sum := uint64(100)
		for _, n := range taken {
			sum += n
		}
		if sum != 5*depth+100 {
			r.fail("%d signals were taken", sum)
		}
		r.sync()
	})
}

// TestForeignWindow gives a kernel the window of another communicator of this process: nothing is written.
func TestForeignWindow(t *testing.T) {
	other := local(t, 2, doorbell.Options{})
	theirs := make([]*doorbell.Window, 2)
	each(t, other, func(r *rank) { theirs[r.Rank()] = r.window(64) })
	each(t, local(t, 2, doorbell.Options{}), func(r *rank) {
		dc := r.devComm(doorbell.Needs{Signals: 1})
		recv, send := r.guarded(64), r.window(64)
		r.sync()
		if r.Rank() == 0 {
			r.run(func(t gpu.Thread) {
				d, co := dc.Device(), gin.ByThread(t)
				c, world := gin.Open(&d, 0), gin.World(&d)
				s := c.Put(co, world, 1, theirs[0].Device(), 0, send.Device(), 0, 64, gin.StrongInc(0))
				if s == gin.OK { // told from the bits of the window alone: not at the source
					expect(c.Flush(co), gin.RemoteError, "flush after a put to a window of another communicator")
				} else {
					expect(s, gin.Invalid, "put to a window of another communicator")
				}
			})
		}
		r.sync()
		recv.untouched(r, "put to a window of another communicator")
	})
}
