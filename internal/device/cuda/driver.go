// SPDX-License-Identifier: Apache-2.0

package cuda

import (
	"fmt"
	"strings"
	"sync"

	"github.com/doorbell-net/doorbell/internal/device"
	"github.com/doorbell-net/doorbell/internal/sys/ffi"
)

// function is a function of the driver. Names and numbers in this package are those of cuda.h of CUDA 12.9.
type function int

const (
	cuInit function = iota
	cuDriverGetVersion
	cuGetErrorName
	cuGetErrorString
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetAttribute
	cuDeviceTotalMem
	cuDeviceGetUuid
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuDeviceCanAccessPeer
	cuCtxSetCurrent
	cuCtxEnablePeerAccess
	cuCtxGetStreamPriorityRange
	cuCtxGetLimit
	cuCtxSetLimit
	cuLinkCreate
	cuLinkAddData
	cuLinkComplete
	cuLinkDestroy
	cuModuleLoadDataEx
	cuModuleUnload
	cuModuleGetFunction
	cuFuncGetAttribute
	cuOccupancyMaxActiveBlocksPerMultiprocessor
	cuMemAlloc
	cuMemFree
	cuMemHostAlloc
	cuMemFreeHost
	cuMemGetInfo
	cuMemGetAllocationGranularity
	cuMemCreate
	cuMemRelease
	cuMemAddressReserve
	cuMemAddressFree
	cuMemMap
	cuMemUnmap
	cuMemSetAccess
	cuMemExportToShareableHandle
	cuMemImportFromShareableHandle
	cuMemRetainAllocationHandle
	cuMulticastCreate
	cuMulticastAddDevice
	cuMulticastBindMem
	cuMulticastUnbind
	cuMulticastGetGranularity
	cuMemHostRegister
	cuMemHostUnregister
	cuMemHostGetDevicePointer
	cuMemGetHandleForAddressRange
	cuMemcpyAsync
	cuMemcpyBatchAsync
	cuMemsetD8Async
	cuStreamCreateWithPriority
	cuStreamDestroy
	cuStreamQuery
	cuStreamWriteValue64
	cuStreamWaitValue64
	cuStreamBatchMemOp
	cuStreamBeginCapture
	cuStreamEndCapture
	cuGraphInstantiateWithFlags
	cuGraphLaunch
	cuGraphDestroy
	cuGraphExecDestroy
	cuLaunchKernel
	cuLaunchCooperativeKernel
	functions
)

// symbols are the functions' names in the library: cuda.h maps some to later versions of them.
var symbols = [functions]string{
	cuInit:                      "cuInit",
	cuDriverGetVersion:          "cuDriverGetVersion",
	cuGetErrorName:              "cuGetErrorName",
	cuGetErrorString:            "cuGetErrorString",
	cuDeviceGetCount:            "cuDeviceGetCount",
	cuDeviceGet:                 "cuDeviceGet",
	cuDeviceGetName:             "cuDeviceGetName",
	cuDeviceGetAttribute:        "cuDeviceGetAttribute",
	cuDeviceTotalMem:            "cuDeviceTotalMem_v2",
	cuDeviceGetUuid:             "cuDeviceGetUuid_v2",
	cuDevicePrimaryCtxRetain:    "cuDevicePrimaryCtxRetain",
	cuDevicePrimaryCtxRelease:   "cuDevicePrimaryCtxRelease_v2",
	cuDeviceCanAccessPeer:       "cuDeviceCanAccessPeer",
	cuCtxSetCurrent:             "cuCtxSetCurrent",
	cuCtxEnablePeerAccess:       "cuCtxEnablePeerAccess",
	cuCtxGetStreamPriorityRange: "cuCtxGetStreamPriorityRange",
	cuCtxGetLimit:               "cuCtxGetLimit",
	cuCtxSetLimit:               "cuCtxSetLimit",
	cuLinkCreate:                "cuLinkCreate_v2",
	cuLinkAddData:               "cuLinkAddData_v2",
	cuLinkComplete:              "cuLinkComplete",
	cuLinkDestroy:               "cuLinkDestroy",
	cuModuleLoadDataEx:          "cuModuleLoadDataEx",
	cuModuleUnload:              "cuModuleUnload",
	cuModuleGetFunction:         "cuModuleGetFunction",
	cuFuncGetAttribute:          "cuFuncGetAttribute",
	cuOccupancyMaxActiveBlocksPerMultiprocessor: "cuOccupancyMaxActiveBlocksPerMultiprocessor",
	cuMemAlloc:                     "cuMemAlloc_v2",
	cuMemFree:                      "cuMemFree_v2",
	cuMemHostAlloc:                 "cuMemHostAlloc",
	cuMemFreeHost:                  "cuMemFreeHost",
	cuMemGetInfo:                   "cuMemGetInfo_v2",
	cuMemGetAllocationGranularity:  "cuMemGetAllocationGranularity",
	cuMemCreate:                    "cuMemCreate",
	cuMemRelease:                   "cuMemRelease",
	cuMemAddressReserve:            "cuMemAddressReserve",
	cuMemAddressFree:               "cuMemAddressFree",
	cuMemMap:                       "cuMemMap",
	cuMemUnmap:                     "cuMemUnmap",
	cuMemSetAccess:                 "cuMemSetAccess",
	cuMemExportToShareableHandle:   "cuMemExportToShareableHandle",
	cuMemImportFromShareableHandle: "cuMemImportFromShareableHandle",
	cuMemRetainAllocationHandle:    "cuMemRetainAllocationHandle",
	cuMulticastCreate:              "cuMulticastCreate",
	cuMulticastAddDevice:           "cuMulticastAddDevice",
	cuMulticastBindMem:             "cuMulticastBindMem",
	cuMulticastUnbind:              "cuMulticastUnbind",
	cuMulticastGetGranularity:      "cuMulticastGetGranularity",
	cuMemHostRegister:              "cuMemHostRegister_v2",
	cuMemHostUnregister:            "cuMemHostUnregister",
	cuMemHostGetDevicePointer:      "cuMemHostGetDevicePointer_v2",
	cuMemGetHandleForAddressRange:  "cuMemGetHandleForAddressRange",
	cuMemcpyAsync:                  "cuMemcpyAsync",
	cuMemcpyBatchAsync:             "cuMemcpyBatchAsync",
	cuMemsetD8Async:                "cuMemsetD8Async",
	cuStreamCreateWithPriority:     "cuStreamCreateWithPriority",
	cuStreamDestroy:                "cuStreamDestroy_v2",
	cuStreamQuery:                  "cuStreamQuery",
	cuStreamWriteValue64:           "cuStreamWriteValue64_v2",
	cuStreamWaitValue64:            "cuStreamWaitValue64_v2",
	cuStreamBatchMemOp:             "cuStreamBatchMemOp_v2",
	cuStreamBeginCapture:           "cuStreamBeginCapture_v2",
	cuStreamEndCapture:             "cuStreamEndCapture",
	cuGraphInstantiateWithFlags:    "cuGraphInstantiateWithFlags",
	cuGraphLaunch:                  "cuGraphLaunch",
	cuGraphDestroy:                 "cuGraphDestroy",
	cuGraphExecDestroy:             "cuGraphExecDestroy",
	cuLaunchKernel:                 "cuLaunchKernel",
	cuLaunchCooperativeKernel:      "cuLaunchCooperativeKernel",
}

// String is the name as cuda.h has it.
func (f function) String() string { return strings.TrimSuffix(symbols[f], "_v2") }

// optional says whether a driver may lack the function: those of multicast came with CUDA 12.1, batches of copies with 12.8.
func (f function) optional() bool {
	return f >= cuMulticastCreate && f <= cuMulticastGetGranularity || f == cuMemcpyBatchAsync
}

// driver is the driver's library.
type driver struct {
	path        string
	addr        [functions]uintptr
	version     int
	connections int // hardware queues for streams
}

// minVersion is 12.0: the first whose stream memory operations need no switch of the kernel module.
const minVersion = 12000

func versionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

var drivers = struct {
	sync.Mutex
	open map[string]*driver
}{open: map[string]*driver{}}

// load opens the driver's library and starts it, once in a process. What is missing may come later: a failure is not kept.
func load(path string) (*driver, error) {
	drivers.Lock()
	defer drivers.Unlock()
	if d := drivers.open[path]; d != nil {
		return d, nil
	}
	lib, err := ffi.Open(path)
	if err != nil {
		return nil, fmt.Errorf("NVIDIA's driver: %w: %w; doorbell runs without a GPU with --device soft", err, device.ErrNotAvailable)
	}
	d := &driver{path: path}
	if d.connections, err = setEnvironment(); err != nil {
		return nil, err
	}
	missing := ""
	for f := range functions {
		if d.addr[f], err = lib.Symbol(symbols[f]); err != nil && missing == "" && !f.optional() {
			missing = symbols[f]
		}
	}
	if d.addr[cuDriverGetVersion] != 0 { // before what an old driver may lack
		var out outs
		if r := d.call(cuDriverGetVersion, out.at(0)); r == success {
			d.version = int(out.int32(0))
		}
		if d.version < minVersion {
			return nil, fmt.Errorf("the NVIDIA driver in %s is of CUDA %s, doorbell needs %s or later (driver 525): %w; it runs without a GPU with --device soft",
				path, versionText(d.version), versionText(minVersion), device.ErrNotAvailable)
		}
	}
	if missing != "" {
		return nil, fmt.Errorf("%s has no function %s, so it is no NVIDIA driver's library or an old one: %w", path, missing, device.ErrNotAvailable)
	}
	if r := d.call(cuInit, 0); r != success {
		return nil, fmt.Errorf("%w: %w; doorbell runs without a GPU with --device soft", d.fault(cuInit, r, ""), device.ErrNotAvailable)
	}
	drivers.open[path] = d
	return d, nil
}

// call calls a function that needs no context.
func (d *driver) call(f function, args ...uintptr) result { return d.in(0, f, args...) }

// in calls a function with ctx as the context of the thread that calls: both in one foreign call, since a goroutine may
// change threads between two.
func (d *driver) in(ctx uintptr, f function, args ...uintptr) result {
	c := ffi.Call{Fn: d.addr[f]}
	copy(c.Args[:], args)
	if ctx != 0 {
		c.Before, c.BeforeArg = d.addr[cuCtxSetCurrent], ctx
	}
	c.Do()
	return result(uint32(c.Result))
}

// outs is where the driver writes results. It is on the heap as soon as an address of it is taken.
type outs [4]uint64

func (o *outs) at(i int) uintptr    { return ffi.Addr(&o[i]) }
func (o *outs) int32(i int) int32   { return int32(uint32(o[i])) }
func (o *outs) addr(i int) uintptr  { return uintptr(o[i]) }
func (o *outs) bytes(i int) uint64  { return o[i] }
func (o *outs) string(i int) string { return ffi.String(uintptr(o[i])) }
