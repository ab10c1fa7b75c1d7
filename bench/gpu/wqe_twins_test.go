// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/netplugin/devnic/wqe"
)

// wqeShape is how a rank posts to itself over a NIC that it drives. Its name is that of tools/measure's rows.
type wqeShape struct {
	name    string
	sharing doorbell.Sharing
	args    kernels.WQEsArgs
}

var wqeShapes = []wqeShape{
	{"one thread, write", doorbell.OneThread, kernels.WQEsArgs{}},
	{"one thread, write, signal", doorbell.OneThread, kernels.WQEsArgs{Signal: 1}},
	{"one thread, value", doorbell.OneThread, kernels.WQEsArgs{Value: 1}},
	{"one thread, value, signal", doorbell.OneThread, kernels.WQEsArgs{Value: 1, Signal: 1}},
	{"a block's, write, signal", doorbell.OneBlock, kernels.WQEsArgs{Signal: 1}},
	{"shared by all, write", doorbell.SharedByAll, kernels.WQEsArgs{}},
	{"shared by all, value, signal", doorbell.SharedByAll, kernels.WQEsArgs{Value: 1, Signal: 1}},
	{"32 lanes, write", doorbell.SharedByAll, kernels.WQEsArgs{Lanes: 1}},
	{"32 lanes, write, signal", doorbell.SharedByAll, kernels.WQEsArgs{Signal: 1, Lanes: 1}},
}

const (
	wqeBytes = 64 // of a put
	wqeLanes = 32
)

// TestWQETwins: the CUDA C++ twin of WQEs writes the WQEs that ours writes and rings as often, alone, for the threads of a block,
// for any, and by the lanes of a warp together; a NIC does what it is told by either. On a GPU each launch is told of in a line for
// tools/measure, which has its instructions counted.
func TestWQETwins(t *testing.T) {
	t.Setenv(env.Backend.Name(), "gdaki")
	onDevices(t, "gdaki", func(t *testing.T, w *twins, device string) {
		twin(t, w, &kernels.WQEsKernel, kernels.WQEs)
		c := open(t, 1, device)[0]
		send, recv := window(t, c, wqeLanes*wqeBytes), window(t, c, wqeLanes*wqeBytes)
		for _, s := range wqeShapes {
			t.Run(s.name, func(t *testing.T) {
				w.compare(t, 1, func(_ int, round uint64) ([]byte, error) {
					s := s
					s.args.X.Iters = 8 << round
					if device == "soft" && !w.theirs && s.args.Lanes != 0 {
						s.args.X.Iters *= wqeLanes // a warp of ours has one lane there, and puts for all of the twin's
					}
					return s.post(t.Context(), c, send, recv, device, !w.theirs)
				})
			})
		}
	})
}

// post posts over a queue of its own, and returns what that and the receive window have then. Where warps are of different widths,
// what each lane adds to that is left out.
func (s *wqeShape) post(ctx context.Context, c *doorbell.Comm, send, recv *doorbell.Window, device string, ours bool) ([]byte, error) {
	dc, err := c.DevComm(ctx, doorbell.Needs{Signals: 1, Sharing: s.sharing, QueueDepth: 2048})
	if err != nil {
		return nil, err
	}
	defer dc.Close()
	st, out := c.Stream(), make([]kernels.Result, 2)
	defer st.Close()
	results, err := c.Alloc(128)
	if err != nil {
		return nil, err
	}
	defer results.Free()
	at := gpu.Cast[kernels.Result](results.Ptr())
	a, one := s.args, doorbell.Grid{Blocks: 1, Warps: 1}
	a.X.DC, a.X.Send, a.X.Recv, a.X.Bytes, a.X.Result = dc.Device(), send.Device(), recv.Device(), wqeBytes, at
	lanes := uint64(1)
	if a.Lanes != 0 && (device == "cuda" || !ours) {
		lanes = wqeLanes
	}
	puts, payload := lanes*a.X.Iters, make([]byte, wqeLanes*wqeBytes)
	for i := range payload {
		payload[i] = byte(i*7 + int(puts))
	}
	if err := errors.Join(doorbell.Write(c, at, out), send.Buffer().Write(0, payload), recv.Buffer().Write(0, make([]byte, len(payload))),
		doorbell.Launch(st, kernels.WQEsKernel, one, a), doorbell.Launch(st, kernels.PostedKernel, one, kernels.PostedArgs{DC: a.X.DC, Result: at.At(1)}), st.Wait(ctx), doorbell.Read(c, out, at)); err != nil {
		return nil, err
	}
	if out[0].Status != gin.OK {
		return nil, fmt.Errorf("it posted with %v: %w", out[0].Status, dc.Cause())
	}
	bells, posted := out[1].Count, out[1].At-wqe.FirstIndex
	if device == "cuda" {
		fmt.Printf("launch: {\"case\":%q,\"ours\":%t,\"puts\":%d,\"bells\":%d}\n", s.name, ours, puts, bells)
	}
	left, err := s.queue(&a.X.DC, posted, device)
	if err != nil {
		return nil, err
	}
	if err := dc.Close(); err != nil { // the NIC has done all of it
		return nil, err
	}
	received := make([]byte, len(payload))
	if err := recv.Buffer().Read(0, received); err != nil {
		return nil, err
	}
	if device == "soft" && a.Lanes != 0 {
		received, bells = received[:wqeBytes], bells*lanes
	}
	return fmt.Appendf(nil, "%d doorbells, %d WQEs: %v, received %x", bells, posted, left, received), nil
}

// queue is what the first n WQEs of the communicator's queue say, in order but for what each lane wrote. Of each, all bytes are what
// its fields make, and what differs from one communicator to the next is this one's; on a GPU, whose tables the host does not see,
// the same in all.
func (s *wqeShape) queue(dc *gin.DevComm, n uint64, device string) (all []string, err error) {
	var number, signals uint32
	if device == "soft" {
		number, signals = dc.QPs.Load().Number, dc.SignalKeys.Load()
	}
	for i := range n {
		block := wqe.Block(gpu.Slice(dc.Slots.At(int(i*wqe.Words)), wqe.Words))
		w, err := block.Decode()
		number = cmp.Or(number, w.Number)
		var want wqe.Block
		switch {
		case w.Op == wqe.OpFetchAdd:
			signals = cmp.Or(signals, w.RemoteKey)
			want.FetchAdd(i, number, w.Remote, signals, w.Add, w.Local, dc.HomeKey)
			w.RemoteKey, w.LocalKey = 0, 0
		case w.Inline:
			want.WriteValue(i, number, w.Remote, w.RemoteKey, w.Value, w.Bytes)
		default:
			want.Write(i, number, w.Remote, w.RemoteKey, w.Local, w.LocalKey, w.Bytes)
		}
		if err != nil || block != want {
			return nil, fmt.Errorf("WQE %d is %x, want %x: %+v: %w", i, block, want, w, err)
		}
		w.Number = 0
		if s.args.Lanes != 0 {
			w.Index = 0
		}
		if s.args.Lanes != 0 && device == "soft" && w.Op == wqe.OpWrite {
			w.Remote, w.Local = 0, 0
		}
		all = append(all, fmt.Sprintf("%+v", w))
	}
	if s.args.Lanes != 0 {
		slices.Sort(all)
	}
	return all, nil
}
