// SPDX-License-Identifier: Apache-2.0

package mlx5

// pageBytes is a page of the NIC: registered memory begins at one.
const pageBytes = 4096

// handle is an object of the libraries.
type handle uintptr

// verbs is what is called of libibverbs and libmlx5, each call as thin as it can be. One caller at a time uses what came of
// one open. An error says which function failed and why.
type verbs interface {
	// devices lists the NICs that libmlx5 drives.
	devices() ([]string, error)
	// open opens one for commands of one's own (DEVX).
	open(device string) (context handle, err error)
	close(context handle) error
	queryPort(context handle, port uint8) (portFacts, error)
	// queryGID reads an entry of a port's table; false where there is none.
	queryGID(context handle, port uint8, index int) (gidEntry, bool, error)
	// queryDCB asks the kernel how a network interface treats priorities.
	queryDCB(iface uint32) ([]byte, error)
	// queryEQ is the number of an event queue.
	queryEQ(context handle) (uint32, error)
	allocPD(context handle) (pd handle, number uint32, err error)
	freePD(pd handle) error
	// allocUAR maps a page of doorbell registers.
	allocUAR(context handle) (registers, error)
	freeUAR(uar handle)
	// regUmem registers memory for queues, in pages of 4,096 bytes: at an address or, where fd is not noBuffer, at one in that DMA
	// buffer.
	regUmem(context handle, addr uintptr, bytes, fd int) (umem handle, id uint32, err error)
	deregUmem(umem handle) error
	// regMR registers memory whose addresses for the NIC are from 0; regDMABuf memory of another device.
	regMR(pd handle, addr uintptr, bytes int, access uint32) (mr handle, keys mrKeys, err error)
	regDMABuf(pd handle, offset uint64, bytes, fd int, access uint32) (mr handle, keys mrKeys, err error)
	deregMR(mr handle) error
	// resolve finds the Ethernet address by which a peer's GID is reached.
	resolve(pd handle, to peerGID) (mac [6]byte, err error)
	// query, create and modify give a command to the device; out takes its answer, also where the call fails.
	query(context handle, in, out []byte) error
	create(context handle, in, out []byte) (object handle, err error)
	modify(object handle, in, out []byte) error
	destroy(object handle) error
}

// noBuffer stands for the descriptor of a DMA buffer where memory is named by its address.
const noBuffer = -1

// registers is a page of doorbell registers.
type registers struct {
	uar  handle
	page uint32  // its number
	bell uintptr // address of the register that takes the first word of a WQE
}

// mrKeys are the keys of registered memory, for WQEs of its owner and of peers.
type mrKeys struct{ local, remote uint32 }

// What may be done to registered memory (IBV_ACCESS_*).
const (
	accessWrite        = 1 << 0
	accessRemoteWrite  = 1 << 1
	accessRemoteRead   = 1 << 2
	accessRemoteAtomic = 1 << 3
	accessRelaxed      = 1 << 20
)

// portFacts is what a port says of itself (struct ibv_port_attr as ibv_query_port fills it).
type portFacts struct {
	state    uint8
	mtu      uint8 // active, 1 to 5
	gids     int   // places in the table
	lid      uint16
	ethernet bool
	global   bool // packets need a GRH
}

const portActive = 4

// gidEntry is an entry of a port's table of GIDs (struct ibv_gid_entry).
type gidEntry struct {
	gid   [16]byte
	index int
	kind  uint32
	iface uint32 // of the network interface, on Ethernet
}

// Kinds of GID.
const (
	gidIB     = 0
	gidRoCEv2 = 2
)

// peerGID is where a peer is, as packets of a port name it.
type peerGID struct {
	gid    [16]byte
	source uint8 // place of the port's own GID
	class  uint8
	port   uint8
}
