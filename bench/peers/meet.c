// SPDX-License-Identifier: Apache-2.0

// Barriers of four processes on two CPUs, two on each: what one of ours can cost at best where ranks share cores. Each has
// a line in each other's row and stores its epoch there; then it looks at its own row, and gives the CPU away at each look
// that finds somebody missing.
//
// usage: meet CPU CPU [ROUNDS]
#include "common.h"
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { RANKS = 4, EPOCHS = 2000 };

struct cell {
	_Alignas(2 * LINE) _Atomic uint64_t epoch;
};

static void barrier(struct cell (*rows)[RANKS], int me, uint64_t epoch)
{
	for (int p = 0; p < RANKS; p++)
		atomic_store_explicit(&rows[p][me].epoch, epoch, memory_order_release);
	for (int p = 0; p < RANKS; p++)
		while (atomic_load_explicit(&rows[me][p].epoch, memory_order_acquire) < epoch)
			sched_yield();
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: meet CPU CPU [ROUNDS]\n");
		return 2;
	}
	int rounds = argc > 3 ? atoi(argv[3]) : 10;
	if (rounds < 1)
		rounds = 1;
	deadline(20);
	struct cell(*rows)[RANKS] = share(sizeof(struct cell) * RANKS * RANKS);
	int me = 0;
	for (int r = 1; r < RANKS && me == 0; r++) {
		pid_t pid = fork();
		if (pid < 0)
			die("fork");
		if (pid == 0) {
			me = r;
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			deadline(20);
		}
	}
	pin(atoi(argv[1 + me % 2]));
	double *ns = calloc(rounds, sizeof *ns);
	if (!ns)
		die("samples");
	uint64_t epoch = 0;
	for (int r = -1; r < rounds; r++) { // the first round warms up
		double t = now_ns();
		for (int i = 0; i < EPOCHS; i++)
			barrier(rows, me, ++epoch);
		if (r >= 0)
			ns[r] = (now_ns() - t) / EPOCHS;
	}
	if (me != 0)
		return 0;
	for (int r = 1; r < RANKS; r++)
		wait(NULL);
	double med = median(ns, rounds);
	report("all-to-all", 0, ns[0], med, "ns", rounds);
	return 0;
}
