// SPDX-License-Identifier: Apache-2.0

package report

// sample is a pingpong result as it looks on a small machine without a GPU or a network.
func sample() Result {
	r := Result{Bench: "pingpong", Verified: true, Config: map[string]any{"ranks": 2, "seed": 1}, Host: Host{
		Machine: "test", CPU: "Example CPU @ 2.0GHz", Cores: 2, Arch: "amd64", Kernel: "6.1.0", Go: "go1.26.8",
		MemBytes: 24 << 30, Load1: 0.25, StealPct: 1.5, Date: "2026-01-02T03:04:05Z", Hosts: 1,
	}}
	for b := int64(4); b <= 4<<20; b *= 2 {
		t := 0.62 + float64(b)/9000
		r.Rows = append(r.Rows, Row{
			Bytes: b, Ranks: 2, Nodes: 2, Net: "shm", Backend: "proxy", Device: "soft", Progress: "assisted", Emulated: true,
			Iters: 10000, P50US: t, P99US: t*1.6 + 1.1, MinUS: t * 0.85, GBps: 2 * float64(b) / t / 1e3, CheckedBytes: b * 64,
		})
	}
	return r
}
