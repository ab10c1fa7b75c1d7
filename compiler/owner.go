// SPDX-License-Identifier: Apache-2.0

package compiler

import (
	"github.com/doorbell-net/doorbell/internal/abi"

	"golang.org/x/tools/go/ssa"
)

// onHost says whether an address is in memory of the host, by the table whose address the device writes into the module
// (abi.HostTable). It is 0 where nobody did.
const onHost = `@` + abi.HostTable + ` = addrspace(1) externally_initialized global i64 0
define internal i1 @doorbell.onHost(i64 %at) #0 {
  %table = load i64, ptr addrspace(1) @` + abi.HostTable + `
  %none = icmp eq i64 %table, 0
  br i1 %none, label %out, label %begin
begin:
  %first = inttoptr i64 %table to ptr addrspace(1)
  br label %next
next:
  %p = phi ptr addrspace(1) [ %first, %begin ], [ %after, %miss ]
  %pair = load volatile <2 x i64>, ptr addrspace(1) %p, align 16
  %from = extractelement <2 x i64> %pair, i64 0
  %to = extractelement <2 x i64> %pair, i64 1
  %end = icmp eq i64 %to, 0
  br i1 %end, label %out, label %look
look:
  %above = icmp uge i64 %at, %from
  %below = icmp ult i64 %at, %to
  %in = and i1 %above, %below
  br i1 %in, label %out, label %miss
miss:
  %after = getelementptr i8, ptr addrspace(1) %p, i64 16
  br label %next
out:
  %is = phi i1 [ false, %0 ], [ false, %next ], [ true, %look ]
  ret i1 %is
}
`

// owned is behind of an atomic: over PCIe a GPU's is none against the host's.
func (e *emitter) owned(in *ssa.Call, align int64) string {
	p := e.behind(in, align)
	if e.opt.Checks {
		e.hosts = true
		host := e.ins("call i1 @doorbell.onHost(i64 %s)", e.ins("ptrtoint ptr %s to i64", p))
		e.require(e.ins("xor i1 %s, true", host), "atomic on memory of the host: a load or a store is accepted")
	}
	return p
}
