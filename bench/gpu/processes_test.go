// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package gpu_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell"
	"github.com/doorbell-net/doorbell/bench/kernels"
	"github.com/doorbell-net/doorbell/gin"
	"github.com/doorbell-net/doorbell/gpu"
	"github.com/doorbell-net/doorbell/internal/env"
)

const (
	killEnv = "TEST_KILL" // 1 has rank 1 of a pair kill itself while both kernels run
	netEnv  = "TEST_NET"  // the network that they are to have
)

// TestProcesses: two processes, on the software device and on one GPU, load and store each other's memory, and put to the
// host's and to the device's. A peer that is killed while its kernel runs ends the other's wait, soon and by name, and leaves the
// GPU free for those who come next.
func TestProcesses(t *testing.T) {
	if env.Rank.IsSet(nil) {
		if err := beRank(os.Getenv(killEnv) == "1"); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, c := range []struct{ device, far, asked, net string }{
		{"soft", "0", "auto", "shm"}, {"soft", "1", "auto", "dma"}, {"soft", "1", "staged+tcp", "staged+tcp"},
		{"cuda", "0", "auto", "dma"}, {"cuda", "0", "staged+tcp", "staged+tcp"},
	} {
		t.Run(fmt.Sprintf("%s/%s", c.device, c.net), func(t *testing.T) {
			if c.device == "cuda" {
				needGPU(t)
			}
			for _, kill := range []string{"0", "1", "0"} {
				pair(t, kill, "DOORBELL_DEVICE="+c.device, env.Far.Name()+"="+c.far, netEnv+"="+c.net, env.Net.Name()+"="+c.asked)
			}
		})
	}
}

// pair runs two ranks as processes.
func pair(t *testing.T, kill string, environ ...string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	id := fmt.Sprintf("%d-%x", os.Getpid(), rand.Uint64())
	var cmds [2]*exec.Cmd
	var outs [2]bytes.Buffer
	for r := range cmds {
		c := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestProcesses$", "-test.v")
		c.Env = append(os.Environ(), killEnv+"="+kill, "DOORBELL_ADDR=unix:@doorbell-gpu-"+id, "DOORBELL_JOB="+id, "DOORBELL_TOKEN=secret-"+id,
			"DOORBELL_RANK="+strconv.Itoa(r), "DOORBELL_WORLD_SIZE=2", "DOORBELL_LOCAL_SIZE=2", "DOORBELL_LOCAL_RANK=0", "DOORBELL_TIMEOUT="+limit.String())
		c.Env = append(c.Env, environ...)
		c.Stdout, c.Stderr = &outs[r], &outs[r]
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		cmds[r] = c
	}
	for r, c := range cmds {
		err := c.Wait()
		var ended *exec.ExitError
		killed := errors.As(err, &ended) && ended.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL && ctx.Err() == nil
		if wanted := kill == "1" && r == 1; killed != wanted || !wanted && err != nil {
			t.Errorf("rank %d: %v\n%s", r, err, outs[r].String())
		}
	}
	t.Logf("rank 0, kill %s:\n%s", kill, outs[0].String())
}

// beRank is one rank of a pair.
func beRank(kill bool) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := doorbell.Open(ctx, doorbell.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if info, net := c.Info(), os.Getenv(netEnv); info.Net != net || c.LSASize() != 2 {
		return fmt.Errorf("rank %d: network %s, LSA team of %d: want %s and 2", c.Rank(), info.Net, c.LSASize(), net)
	}
	if kill {
		return untilLost(ctx, c)
	}
	for way, name := range []string{byStores: "stores", byPutsNear: "puts to memory of the host", byPutsFar: "puts to memory of the device"} {
		p, err := newPartner(ctx, c, way, 50)
		if err != nil {
			return err
		}
		if err := p.launch(); err != nil {
			return err
		}
		if err := errors.Join(p.stream.Wait(ctx), c.Barrier(ctx)); err != nil {
			return err
		}
		if r := p.result(); r.Status != gin.OK || r.Done != 1 {
			return fmt.Errorf("rank %d, %s: %v after %d round trips, %w", c.Rank(), name, r.Status, r.At, p.dc.Cause())
		} else {
			fmt.Printf("%s: %.1f us a round trip\n", name, float64(r.Ns)/1e3/float64(r.Count))
		}
		var got [8]byte
		if err := p.recv.Buffer().Read(0, got[:]); err != nil || binary.LittleEndian.Uint64(got[:]) != uint64(p.x.Peer)+1 {
			return fmt.Errorf("rank %d, %s: received %x (%v)", c.Rank(), name, got, err)
		}
	}
	return c.Barrier(ctx)
}

// untilLost has both kernels send to and fro for ever, until rank 1 is killed.
func untilLost(ctx context.Context, c *doorbell.Comm) error {
	p, err := newPartner(ctx, c, byStores, 1<<40)
	if err != nil {
		return err
	}
	if err := p.launch(); err != nil {
		return err
	}
	for got := [8]byte{}; c.Rank() == 1; { // both kernels run when something has come
		if err := p.recv.Buffer().Read(0, got[:]); err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if got != [8]byte{} {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	start := time.Now()
	if err := p.stream.Wait(ctx); err != nil {
		return err
	}
	var cause *doorbell.Cause
	if r := p.result(); r.Status != gin.PeerLost || !errors.As(p.dc.Cause(), &cause) || cause.Peer != 1 {
		return fmt.Errorf("the wait for a killed rank ended with %v, cause %v; want PeerLost, and rank 1", r.Status, p.dc.Cause())
	}
	fmt.Printf("it ended after %v: %v\n", time.Since(start), cause)
	return nil
}

// partner is what a rank sends to the other with.
type partner struct {
	stream *doorbell.Stream
	dc     *doorbell.DevComm
	recv   *doorbell.Window
	out    *doorbell.Buffer
	x      kernels.Exchange
}

// Ways of a partner to send.
const (
	byStores = iota
	byPutsNear
	byPutsFar
)

func newPartner(ctx context.Context, c *doorbell.Comm, way int, iters uint64) (*partner, error) {
	alloc := c.Alloc
	if way == byPutsNear {
		alloc = c.AllocHost
	}
	var windows [2]*doorbell.Window
	for i := range windows {
		b, err := alloc(4096)
		if err != nil {
			return nil, err
		}
		if err := b.Write(0, binary.LittleEndian.AppendUint64(nil, uint64(1-i)*uint64(c.Rank()+1))); err != nil {
			return nil, err
		}
		if windows[i], err = c.Register(ctx, b); err != nil {
			return nil, err
		}
	}
	out, err := c.Alloc(resultBytes)
	if err != nil {
		return nil, err
	}
	dc, err := c.DevComm(ctx, doorbell.Needs{Signals: 1})
	if err != nil {
		return nil, err
	}
	p := &partner{stream: c.Stream(), dc: dc, recv: windows[1], out: out}
	p.x = kernels.Exchange{DC: dc.Device(), Send: windows[0].Device(), Recv: windows[1].Device(), Bytes: 8, Iters: iters, Every: 1,
		Peer: int32(1 - c.Rank()), Result: gpu.Cast[kernels.Result](out.Ptr())}
	if way == byStores {
		p.x.LSA = 1
	}
	return p, nil
}

func (p *partner) launch() error {
	return doorbell.Launch(p.stream, kernels.PingPongKernel, doorbell.Grid{Blocks: 1, Warps: 1}, p.x)
}

func (p *partner) result() (r kernels.Result) {
	b := make([]byte, resultBytes)
	if err := p.out.Read(0, b); err != nil {
		panic(err)
	}
	r.Status, r.Done = gin.Status(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint32(b[4:])
	r.At, r.Ns, r.Count = binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
	return r
}
