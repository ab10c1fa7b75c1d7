// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"go/constant"

	"golang.org/x/tools/go/ssa"
)

// Where the words of a communicator live, and who reaches them: abi.DevComm says so, and a test holds the names.
var (
	// hosts are in the host's memory.
	hosts = set("DevComm.Net", "DevComm.Counter", "DevComm.Index", "DevComm.Slots", "DevComm.Cells", "DevComm.Hints", "DevComm.Notes", "DevComm.Asleep",
		"Queue.Slots", "Queue.Cells", "Queue.Hint", "Queue.Index", "SignalWindow.Net", "DevComm.CQ", "QP.Record", "QP.Bell")
	// devices are in the device's memory.
	devices = set("DevComm.Control", "DevComm.Status", "DevComm.Lost", "DevComm.Prod", "DevComm.SigOffset", "DevComm.Shadow", "DevComm.CounterOffset",
		"DevComm.Barrier", "DevComm.LSA", "DevComm.Inbox", "DevComm.LL", "DevComm.LLState", "Queue.Prod", "SignalWindow.LSA", "SignalWindow.Offset", "DevComm.QPs", "DevComm.SignalKeys")
	// far are read or written by peers or the host while a kernel runs.
	far = set("DevComm.Net", "DevComm.Counter", "DevComm.Index", "DevComm.Slots", "DevComm.Cells", "DevComm.Hints", "DevComm.Notes", "DevComm.Asleep",
		"Queue.Slots", "Queue.Cells", "Queue.Hint", "Queue.Index", "SignalWindow.Net", "SignalWindow.LSA",
		"DevComm.Status", "DevComm.Lost", "DevComm.LSA", "DevComm.Inbox", "DevComm.LL", "Window.Base", "WindowPeer.Base",
		"DevComm.CQ", "QP.Record", "QP.Bell")
)

func set(names ...string) map[string]bool {
	s := map[string]bool{}
	for _, n := range names {
		s[n] = true
	}
	return s
}

// The scopes of package gpu.
const (
	scopeBlock = 1
	scopeGPU   = 2
)

// scopeAt is where a function of the vocabulary takes its scope.
var scopeAt = map[string]int{"Load": 2, "Store": 3, "AtomicAdd": 3, "AtomicCAS": 4, "AtomicExch": 3, "AtomicMax": 3}

// scope finds operations whose scope does not reach all who use the word.
func (c *checker) scope(f *ssa.Function, call *ssa.Call, name string) {
	at, ok := scopeAt[name]
	if !ok {
		return
	}
	k, ok := call.Call.Args[at].(*ssa.Const)
	if !ok || k.Value == nil {
		return
	}
	s, _ := constant.Int64Val(k.Value)
	for _, o := range c.origins(call.Call.Args[0]) {
		switch {
		case o.kind == local || o.kind == shared:
		case s <= scopeGPU && o.kind == pointee && o.field.in(far):
			c.report(call.Pos(), "gpu.%s of a word that peers or the host reach (%s): its scope must be gpu.ScopeSys", name, o.field)
			return
		case s <= scopeBlock:
			c.report(call.Pos(), "gpu.%s with the scope of a block or less, of memory that is no gpu.Shared: other blocks may reach it, so gpu.ScopeGPU, or gpu.ScopeSys for peers and the host", name)
			return
		}
	}
}

// deviceAtomic finds atomics of device code on the host's memory.
func (c *checker) deviceAtomic(f *ssa.Function, call *ssa.Call, name string) {
	for _, o := range c.origins(call.Call.Args[0]) {
		if o.kind == pointee && o.field.in(hosts) {
			c.report(call.Pos(), "gpu.%s on memory of the host (%s): a device's atomics are not atomic there; store, and let its owner add", name, o.field)
			return
		}
	}
}

// hostAtomic finds atomics of the host on the device's memory.
func (c *checker) hostAtomic(f *ssa.Function, call *ssa.Call) {
	for _, o := range c.origins(call.Call.Args[0]) {
		if o.kind == pointee && o.field.in(devices) {
			c.report(call.Pos(), "an atomic of the host on memory of the device (%s): it is not atomic against a GPU; write it by the copy engine, or leave it to device threads", o.field)
			return
		}
	}
}
