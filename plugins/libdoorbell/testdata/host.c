/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a rank, by the C header alone: host.c OPTIONS. Each rank of a job of two runs it. It prints what it checked and
 * ends with 0, or says what is not as it should be.
 */
#include <doorbell.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sizes of the structures in doorbell/abi.cuh, which is C++. */
#define WINDOW_BYTES 40
#define SIGNAL_WINDOW_BYTES 56
#define DEV_COMM_BYTES 336

static void want(int line, int got, int code, const char *text) {
  if (got == code && (code == DOORBELL_OK || strstr(doorbell_last_error(), text))) return;
  fprintf(stderr, "line %d: code %d, want %d; text %s, want %s\n", line, got, code, doorbell_last_error(), text);
  exit(1);
}
#define OK(call) want(__LINE__, call, DOORBELL_OK, "")
#define REFUSED(code, text, call) want(__LINE__, call, code, text)

static doorbell_handle comm;

/* Another thread has an error text of its own. */
static void *other_thread(void *unused) {
  if (doorbell_last_error()[0] != 0) return "a thread that failed nothing has an error text";
  for (int i = 0; i < 100; i++) {
    doorbell_handle b;
    uint64_t v = 0;
    OK(doorbell_alloc(comm, 4096, &b));
    OK(doorbell_write(b, 8, &i, sizeof i));
    OK(doorbell_read(b, 8, &v, sizeof i));
    if (v != (uint64_t)i) return "a buffer holds something else than what was written";
    OK(doorbell_free(b));
  }
  return unused;
}

int main(int argc, char **argv) {
  doorbell_handle b, w, s, dc, none = 0;
  struct doorbell_info info;
  struct doorbell_cause cause;
  char window[WINDOW_BYTES], signals[SIGNAL_WINDOW_BYTES], dev[DEV_COMM_BYTES], bytes[16];
  void *device, *host;
  if (argc != 2) return 2;

  for (int code = DOORBELL_OK; code <= DOORBELL_BROKEN; code++)
    if (strcmp(doorbell_code_text(code), doorbell_code_text(-1)) == 0) return 7;
  if (strcmp(doorbell_code_text(DOORBELL_BROKEN + 1), "unknown code") != 0) return 8;

  /* What is wrong is named, before anybody is waited for. */
  REFUSED(DOORBELL_INVALID, "comm is NULL", doorbell_open(argv[1], NULL));
  REFUSED(DOORBELL_INVALID, "no option \"colour\"", doorbell_open("colour=red", &comm));
  REFUSED(DOORBELL_INVALID, "name=value", doorbell_open("net", &comm));
  REFUSED(DOORBELL_INVALID, "stands twice", doorbell_open("net=shm net=tcp", &comm));
  REFUSED(DOORBELL_INVALID, "timeout=soon", doorbell_open("timeout=soon", &comm));
  REFUSED(DOORBELL_INVALID, "rank 5 of 2", doorbell_open("rank=5 size=2", &comm));
  REFUSED(DOORBELL_INVALID, "handle 0: nothing", doorbell_barrier(none));

  OK(doorbell_open(argv[1], &comm));
  OK(doorbell_get_info(comm, &info));
  if (info.size != 2 || strcmp(info.device, "soft") != 0) return 3;

  OK(doorbell_alloc_host(comm, 4096, &b));
  OK(doorbell_address(b, &device, &host));
  memcpy(host, "a host sees it", 14);
  OK(doorbell_read(b, 0, bytes, 14));
  if (memcmp(bytes, "a host sees it", 14) != 0 || device != host) return 4;
  REFUSED(DOORBELL_INVALID, "17 bytes at 4080 of a buffer of 4096", doorbell_read(b, 4080, bytes, 17));
  REFUSED(DOORBELL_INVALID, "a buffer, want a communicator", doorbell_barrier(b));
  REFUSED(DOORBELL_INVALID, "less than 2^63", doorbell_alloc(comm, ~0ull, &w));
  REFUSED(DOORBELL_INVALID, "0 bytes", doorbell_alloc(comm, 0, &w));

  REFUSED(DOORBELL_INVALID, "of another version", doorbell_register(comm, b, &w, window, 32));
  OK(doorbell_register(comm, b, &w, window, sizeof window));
  OK(doorbell_register_signals(comm, 16, &s, signals, sizeof signals));
  REFUSED(DOORBELL_BUSY, "windows stand on it", doorbell_free(b));
  REFUSED(DOORBELL_INVALID, "no option \"sugnals\"", doorbell_devcomm_create(comm, "sugnals=8", &dc, dev, sizeof dev));
  REFUSED(DOORBELL_INVALID, "2000 contexts asked for", doorbell_devcomm_create(comm, "contexts=2000", &dc, dev, sizeof dev));
  if (info.rank == 0)
    REFUSED(DOORBELL_INVALID, "-1 signals asked for", doorbell_devcomm_create(comm, "signals=-1", &dc, dev, sizeof dev));
  else
    REFUSED(DOORBELL_REFUSED, "rank 0 refused", doorbell_devcomm_create(comm, "", &dc, dev, sizeof dev));
  REFUSED(DOORBELL_DISAGREE, "they must agree", doorbell_devcomm_create(comm, info.rank == 0 ? "signals=1" : "signals=2", &dc, dev, sizeof dev));
  REFUSED(DOORBELL_INVALID, "backend", doorbell_open("rank=0 size=1 backend=abacus", &none));
  OK(doorbell_devcomm_create(comm, "contexts=2 signals=8 counters=1 barriers=1 sharing=block", &dc, dev, sizeof dev));
  OK(doorbell_get_cause(dc, &cause));
  if (cause.status != DOORBELL_OK) return 5;

  REFUSED(DOORBELL_INVALID, "without a begin", doorbell_kernels_end(comm));
  OK(doorbell_kernels_begin(comm));
  OK(doorbell_kernels_end(comm));

  pthread_t threads[4];
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, other_thread, NULL);
  for (int i = 0; i < 4; i++) {
    void *wrong;
    pthread_join(threads[i], &wrong);
    if (wrong) {
      fprintf(stderr, "%s\n", (char *)wrong);
      return 6;
    }
  }
  OK(doorbell_barrier(comm));
  OK(doorbell_deregister(w));
  OK(doorbell_deregister(s));
  REFUSED(DOORBELL_INVALID, "nothing, want a window", doorbell_deregister(w));
  OK(doorbell_free(b));
  OK(doorbell_devcomm_close(dc));

  /* A rank that leaves ends the other's wait for it. */
  if (info.rank == 0) {
    REFUSED(DOORBELL_PEER_LOST, "rank 1", doorbell_barrier(comm));
    OK(doorbell_abort(comm, "enough"));
    REFUSED(DOORBELL_ABORTED, "enough", doorbell_barrier(comm));
    REFUSED(DOORBELL_ABORTED, "enough", doorbell_alloc(comm, 4096, &b));
  }
  OK(doorbell_close(comm));
  REFUSED(DOORBELL_INVALID, "nothing, want a communicator", doorbell_close(comm));
  printf("rank %d of %d over %s: all right\n", info.rank, info.size, info.net);
  return 0;
}
