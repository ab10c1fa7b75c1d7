// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// socketCases are of the tcp network, over the loopback interface: select them by "-case tcp".
var socketCases = []benchCase{
	{name: "tcp, 8 B, minimum", what: "round trip of put + signal between two processes over loopback TCP", unit: "us", better: "less", target: "at most 1.3x",
		ours: bench(pp+" --net tcp --progress assisted", minus), peer: "bare C socket, polled", theirs: scaled(c("socket", "20 1", "tcp polled", "8", false), 1e-3)},
	{name: "tcp, 8 B, median", what: "the same, median", unit: "us", better: "less",
		ours: bench(pp+" --net tcp --progress assisted", p50us), peer: "bare C socket, polled", theirs: scaled(c("socket", "20 1", "tcp polled", "8", true), 1e-3)},
	{name: "tcp, 8 B, beside UCX put", what: "the same, median", unit: "us", better: "less", target: "ahead",
		ours: bench(pp+" --net tcp --progress assisted", p50us), peer: "UCX put_lat over tcp, doubled", theirs: ucx("-t ucp_put_lat -s 8 -n 20000 -w 1000", 2, 2)},
	{name: "tcp, 8 B, beside UCX tag", what: "the same, median", unit: "us", better: "less", target: "ahead",
		ours: bench(pp+" --net tcp --progress assisted", p50us), peer: "UCX tag_lat over tcp, doubled", theirs: ucx("-t tag_lat -s 8 -n 20000 -w 1000", 2, 2)},
	{name: "tcp, 4 MiB, beside UCX put", what: "puts of 4 MiB, one source and one destination", unit: "GB/s", better: "more", target: "ahead",
		ours: bench("bw -n 2 --sizes 4M --net tcp", gbps("hot")), peer: "UCX put_bw over tcp", theirs: ucx("-t ucp_put_bw -s 4194304 -n 60 -w 5", 6, 1<<20/1e9)},
	{name: "tcp, 4 MiB, beside UCX tag", what: "the same", unit: "GB/s", better: "more", target: "ahead",
		ours: bench("bw -n 2 --sizes 4M --net tcp", gbps("hot")), peer: "UCX tag_bw over tcp", theirs: ucx("-t tag_bw -s 4194304 -n 500 -w 20", 6, 1<<20/1e9)},
	{name: "tcp, 4 MiB, beside iperf3", what: "the same", unit: "GB/s", better: "more", target: "ahead",
		ours: bench("bw -n 2 --sizes 4M --net tcp", gbps("hot")), peer: "iperf3, one stream, 3 s", theirs: iperf("")},
	{name: "tcp, 4 MiB, beside iperf3 with Reno", what: "the same; tcp asks for Reno within a host, where there is no congestion", unit: "GB/s", better: "more",
		ours: bench("bw -n 2 --sizes 4M --net tcp", gbps("hot")), peer: "iperf3, one stream, 3 s, -C reno", theirs: iperf(" -C reno")},
	{name: "tcp, 4 ranks on 2 cores", what: "round trips of both pairs together", unit: "M/s", better: "more", target: "at least 0.5x",
		ours: bench("pingpong -n 4 --sizes 8 --net tcp", mops), peer: "two ranks", theirs: bench(pp+" --net tcp", mops)},
	{name: "tcp, 4 ranks on 2 cores, p99", what: "single round trips", unit: "us", better: "less", target: "at most 100 us", ours: bench("pingpong -n 4 --sizes 8 --net tcp", p99),
		peer: "two pairs of bare C sockets", theirs: scaled(c("socket", "5 1 2", "tcp crowded p99", "8", true), 1e-3)},
	{name: "tcp, 4 ranks on 2 cores, longest", what: "single round trips", unit: "ms", better: "less", target: "at most 20 ms", ours: bench("pingpong -n 4 --sizes 8 --net tcp", longest)},
}

func p50us(r result) float64 { return r.Rows[0].P50 }
func minus(r result) float64 { return r.Rows[0].Min }

func scaled(p probe, by float64) probe {
	run := p.run
	p.run = func(e *env) (float64, error) {
		v, err := run(e)
		return v * by, err
	}
	return p
}

// ucx is a probe of ucx_perftest over loopback TCP: the number in that column (from 1) of its last line, times scale.
func ucx(args string, column int, scale float64) probe {
	return probe{text: "UCX_TLS=tcp,self UCX_NET_DEVICES=lo ucx_perftest " + args, run: func(e *env) (float64, error) {
		port := strconv.Itoa(20000 + time.Now().Nanosecond()/1000%10000)
		server := "UCX_TLS=tcp,self UCX_NET_DEVICES=lo exec stdbuf -oL ucx_perftest -f -c " + e.cpus[0] + " -p " + port
		client := "UCX_TLS=tcp,self UCX_NET_DEVICES=lo exec ucx_perftest 127.0.0.1 -f -c " + e.cpus[1] + " -p " + port + " " + args
		out, err := pair(server, "Waiting", client)
		if err != nil {
			return 0, err
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		f := strings.Fields(lines[len(lines)-1])
		if len(f) < column {
			return 0, fmt.Errorf("read %q of ucx_perftest: %d columns, %d wanted", lines[len(lines)-1], len(f), column)
		}
		v, err := strconv.ParseFloat(f[column-1], 64)
		return v * scale, err
	}}
}

// iperf is a probe of iperf3's one stream over loopback, in GB/s as its receiver has it.
func iperf(more string) probe {
	return probe{text: "iperf3 -c 127.0.0.1 -t 3 -l 1M" + more, run: func(e *env) (float64, error) {
		port := strconv.Itoa(20000 + time.Now().Nanosecond()/1000%10000)
		out, err := pair("exec iperf3 -s -1 --forceflush -A "+e.cpus[0]+" -p "+port, "listening", "exec iperf3 -J -c 127.0.0.1 -t 3 -l 1M -A "+e.cpus[1]+" -p "+port+more)
		if err != nil {
			return 0, err
		}
		var r struct {
			End struct {
				Received struct {
					BitsPerSecond float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			}
		}
		err = json.Unmarshal([]byte(out), &r)
		return r.End.Received.BitsPerSecond / 8e9, err
	}}
}

// pair starts a server, waits until it says that it is ready, and returns what a client printed.
func pair(server, ready, client string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := exec.LookPath(program(client)); err != nil {
		return "", err
	}
	s := exec.CommandContext(ctx, "sh", "-c", server)
	pipe, err := s.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := s.Start(); err != nil {
		return "", err
	}
	read := bufio.NewReader(pipe)
	for line := ""; !strings.Contains(line, ready); {
		if line, err = read.ReadString('\n'); err != nil {
			cancel()
			return "", fmt.Errorf("%s: ended before it was ready: %w", server, s.Wait())
		}
	}
	out, err := exec.CommandContext(ctx, "sh", "-c", client).Output()
	if err != nil {
		cancel()
	}
	_, _ = io.Copy(io.Discard, read)
	if werr := s.Wait(); err == nil {
		err = werr
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", client, err)
	}
	return string(out), nil
}

// program is the one that a line of shell runs.
func program(line string) string {
	_, after, _ := strings.Cut(line, "exec ")
	name, _, _ := strings.Cut(after, " ")
	return name
}
