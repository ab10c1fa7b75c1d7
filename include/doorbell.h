/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's side of Doorbell for C, and for what calls C. It is in libdoorbell.so:
 *
 *   go build -buildmode=c-shared -o libdoorbell.so ./plugins/libdoorbell
 *
 * What kernels call is in doorbell/gin.cuh. The caller launches them, by CUDA's runtime or as threads of its own.
 *
 * Every function returns a doorbell_code; doorbell_last_error() says in words what a call of the same thread last refused.
 * Functions may be called from any thread, at once. Those marked collective are called by each rank, in the same order, and
 * fail on all ranks if they fail on one. Every call that waits ends by the communicator's timeout. What a call fills in is
 * only written when it returns DOORBELL_OK. Handles are numbers, never reused, and good in this process; closing a
 * communicator ends all that was made from it.
 */
#ifndef DOORBELL_H
#define DOORBELL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t doorbell_handle; /* 0 is none */

/* 0 to 6 are what device calls return too. */
enum doorbell_code {
  DOORBELL_OK = 0,
  DOORBELL_TIMEOUT = 1,        /* no end within the timeout */
  DOORBELL_INVALID = 2,        /* an argument or a variable of the environment: option, handle, pointer, size */
  DOORBELL_PEER_LOST = 3,      /* a rank is lost, or has left */
  DOORBELL_REMOTE_ERROR = 4,   /* of device calls: refused after it was posted */
  DOORBELL_ABORTED = 5,        /* the communicator was aborted */
  DOORBELL_REVOKED = 6,        /* the communicator was revoked */
  DOORBELL_CLOSED = 7,         /* what the call is about is closed */
  DOORBELL_NOT_SUPPORTED = 8,  /* not built yet */
  DOORBELL_CANNOT = 9,         /* the network or device cannot */
  DOORBELL_NOT_AVAILABLE = 10, /* the device is not here */
  DOORBELL_OUT_OF_MEMORY = 11,
  DOORBELL_FAILED = 12,        /* anything else: see the text */
  DOORBELL_BUSY = 13,          /* in use: try again when what uses it, a kernel or a window, has ended */
  DOORBELL_DISAGREE = 14,      /* ranks asked for different things, or are of different versions, or two claim one number */
  DOORBELL_REFUSED = 15,       /* another rank refused a collective call, for a reason that its own call returns */
  DOORBELL_DENIED = 16,        /* another rank has another token */
  DOORBELL_CUT_OFF = 17,       /* this rank does not reach the others, and has stopped */
  DOORBELL_DEVICE_FAILED = 18, /* the GPU's driver failed, or a kernel did */
  DOORBELL_SYSTEM = 19,        /* the operating system refused something */
  DOORBELL_BROKEN = 20         /* a mistake in this library */
};

struct doorbell_info {
  int32_t rank, size;         /* of the world */
  int32_t lsa_rank, lsa_size; /* of the ranks that load and store each other's windows */
  char net[32], device[32], progress[32];
};

/* doorbell_cause is the first reason that stuck to a device communicator. Fields that do not apply are 0. */
struct doorbell_cause {
  int32_t status; /* DOORBELL_OK while there is none; then the rest is not set */
  int32_t rank;   /* whose device communicator it is */
  int32_t peer;   /* -1 for several */
  int32_t context;
  uint32_t id, window; /* of the signal, counter or barrier; of the window */
  uint64_t offset, wanted, seen;
  uint64_t since_ns; /* how long it had waited */
  char op[32];       /* such as "wait for signal" */
  char text[512];    /* all of it in words */
};

#ifndef DOORBELL_TYPES_ONLY

/* The last refusal of a call of this thread, "" if there was none. It stands until this thread's next call that fails. */
const char *doorbell_last_error(void);

/* What a code stands for, in a few words; "unknown code" for what is none. */
const char *doorbell_code_text(int code);

/* Join a job as one of its ranks. Collective. options is "name=value" with blanks between, or NULL; what it does not say comes
 * from the environment (DOORBELL_*, and what launchers set), then from defaults:
 *   rank, size, local_rank, local_size   who this process is; size=0: as the launcher says
 *   addr, job                            where ranks meet, and what keeps jobs apart there
 *   net, backend, device, progress       auto, or one by name; device=cuda, device=soft; progress=thread, progress=assisted
 *   ranks_per_node, traffic_class        numbers
 *   timeout                              such as 30s
 *   faults, inject                       for tests, with net=fault+NAME
 * Who launches kernels by other means than Go's says progress=thread: "assisted" counts on kernels and waits of ours.
 */
int doorbell_open(const char *options, doorbell_handle *comm);

/* Make ranks 0 to ranks-1 in this process, comms[ranks] of them. Those on a GPU share it: their kernels wait for each other, so
 * all of them have to fit there at once. */
int doorbell_open_local(int32_t ranks, const char *options, doorbell_handle *comms);

int doorbell_get_info(doorbell_handle comm, struct doorbell_info *out);
int doorbell_barrier(doorbell_handle comm);                 /* collective */
int doorbell_abort(doorbell_handle comm, const char *why);  /* ends every wait of this rank, on host and device; then only close */
int doorbell_revoke(doorbell_handle comm);                  /* the same, though nothing failed */
int doorbell_close(doorbell_handle comm);                   /* waits for no other rank; after this rank's kernels have ended */

/* On a GPU: kernels that the caller launches use the communicator between begin and end, which are counted. Progress stays
 * awake meanwhile, and nothing is done that would wait for kernels. Launch on streams made with cudaStreamNonBlocking. */
int doorbell_kernels_begin(doorbell_handle comm);
int doorbell_kernels_end(doorbell_handle comm);

/* Zeroed memory of the rank's device; of the host, pinned, which kernels reach at the same address. */
int doorbell_alloc(doorbell_handle comm, uint64_t bytes, doorbell_handle *buffer);
int doorbell_alloc_host(doorbell_handle comm, uint64_t bytes, doorbell_handle *buffer);
int doorbell_free(doorbell_handle buffer); /* refused while a window stands on it */
int doorbell_write(doorbell_handle buffer, uint64_t offset, const void *from, uint64_t bytes);
int doorbell_read(doorbell_handle buffer, uint64_t offset, void *to, uint64_t bytes);
int doorbell_address(doorbell_handle buffer, void **device, void **host); /* host: NULL where the host does not reach it */

/* Make a buffer a window, and n signals a signal window. Collective; sizes may differ. out is a doorbell::window or a
 * doorbell::signal_window of doorbell/abi.cuh, out_bytes its size: one of another version of the header is refused. A copy of it
 * that outlives doorbell_deregister is refused by device calls. */
int doorbell_register(doorbell_handle comm, doorbell_handle buffer, doorbell_handle *window, void *out, uint64_t out_bytes);
int doorbell_register_signals(doorbell_handle comm, uint64_t n, doorbell_handle *window, void *out, uint64_t out_bytes);
int doorbell_deregister(doorbell_handle window);

/* Make a device communicator; out is a doorbell::dev_comm, a kernel's argument. Collective: each rank asks for the same. needs is
 * "name=value" with blanks between, or NULL:
 *   contexts=1, signals=0, counters=0, barriers=0
 *   queue_depth                          descriptors per context and peer, a power of two
 *   small_put=8                          up to so many bytes, at most 256, travel with the descriptor
 *   sharing=all, sharing=thread, sharing=block   which threads use a context at once
 *   rail=1, weak_only=1, fence=1, multimem=1, lla2a_blocks=0, lla2a_slots=0, traffic_class=0
 */
int doorbell_devcomm_create(doorbell_handle comm, const char *needs, doorbell_handle *devcomm, void *out, uint64_t out_bytes);
int doorbell_devcomm_close(doorbell_handle devcomm);
int doorbell_get_cause(doorbell_handle devcomm, struct doorbell_cause *out);

#endif /* DOORBELL_TYPES_ONLY */

#ifdef __cplusplus
}
#endif
#endif /* DOORBELL_H */
