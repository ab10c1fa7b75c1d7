// SPDX-License-Identifier: Apache-2.0

// Package abi is each structure that host and device share, with its layout. Go, PTX and C++ read them alike; a test
// holds the offsets.
//
// Who writes each word, who polls it and where it lives (device memory is HBM on a GPU, host memory is pinned; on the
// software device both are the same):
//
//	word                  written by                      polled by       lives in
//	Producer.Ticket       device threads (CAS)            -               device memory
//	Producer.Credit       device threads (plain, cached)  -               device memory
//	slot and cell words   device thread with the ticket   proxy           host memory
//	hint                  device threads (plain)          proxy           host memory
//	Index.Consumed        proxy                           device threads  host memory
//	Index.Completed       proxy                           device threads  host memory
//	counter               proxy                           device threads  host memory
//	signal, NET           target's progress, or CPU adds  device threads  shared segment
//	signal, LSA           LSA peers (atomics)             device threads  shared segment
//	LSA barrier inbox     one LSA peer a word             device threads  shared segment
//	signal offset, shadow owner's device threads          -               device memory
//	status, lost          host                            device threads  device memory
//	ended                 host, device threads            device threads  device memory
//	Record                first failing thread or host    host            host memory
//	asleep                progress owner                  device threads  host memory
//	WQE, record, bell     device threads                  NIC             host memory
//	CQE                   NIC                             device threads  host memory
//
// There is one writer class per 64-byte line.
package abi

//go:generate go run ../../tools/abigen -root ../..
