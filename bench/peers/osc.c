// SPDX-License-Identifier: Apache-2.0

// MPI one-sided: put + flush inside lock_all, on a window from MPI_Win_allocate.
//
//   osc lat                    ping-pong of 8 B between ranks 0 and 1: put, flush, poll of the flag at the target
//   osc bw [SRC_OFF [FRESH]]   4 MiB put + flush from rank 0 to 1. SRC_OFF is the source's offset in its page, or "same" to
//                              take the window's; FRESH 1 times one put of bytes never sent before, to a target that has
//                              read all of the last ones; 0 times 8 puts of the same. Every round has a fresh pattern, and
//                              the target compares every byte of it off the clock.
//   osc pairs [SPIN]           ranks i and N-1-i play lat all at once for SECONDS; SPIN 1 polls without giving MPI a turn
//
// PEERS_CPUS ("0 1": a CPU for each rank; "0,1": all ranks share the two; unset leaves them free) and PEERS_SEED come from the environment.
#include "common.h"
#include <mpi.h>
#include <stdatomic.h>

enum { BYTES = 4 << 20, TRIPS = 500, BATCHES = 200, SECONDS = 8, MAX_TRIPS = 1 << 22, ROUNDS = 24, PUTS = 8 };

static int rank, ranks, spin;
static MPI_Win win;
static char *base; // this rank's part of win

static void window(MPI_Aint bytes)
{
	MPI_Win_allocate(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
	memset(base, 0, bytes);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, win);
}

// await polls this rank's flag. MPI gets a turn every 64 polls: some components move bytes only then, and an
// oversubscribed MPI gives its core away only there.
static uint64_t await(uint64_t last)
{
	_Atomic uint64_t *flag = (_Atomic uint64_t *)base;
	for (unsigned n = 1;; n++) {
		uint64_t v = atomic_load_explicit(flag, memory_order_acquire);
		if (v != last)
			return v;
		if (n % 64 == 0 && !spin) {
			int any;
			MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE);
			MPI_Win_sync(win);
		}
	}
}

static void send(int peer, uint64_t value)
{
	static uint64_t word;
	word = value;
	MPI_Put(&word, 8, MPI_BYTE, peer, 0, 8, MPI_BYTE, win);
	MPI_Win_flush(peer, win);
}

#define LAST (1ull << 63) // marks the last trip

static void expect(uint64_t got, uint64_t want)
{
	if ((got & ~LAST) == want)
		return;
	fprintf(stderr, "check flag on rank %d: got %llx, want %llx\n", rank, (unsigned long long)got,
		(unsigned long long)want);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void answer(int peer)
{
	for (uint64_t last = 0, n = 1;; n++) {
		uint64_t v = await(last);
		expect(v, n);
		send(peer, v);
		if (v & LAST)
			return;
		last = v;
	}
}

static void lat(void)
{
	window(LINE);
	if (rank == 1)
		answer(0);
	if (rank == 0) {
		static double ns[BATCHES];
		uint64_t n = 0;
		for (int b = -5; b < BATCHES; b++) { // five batches of warm-up
			double t = now_ns();
			for (int i = 0; i < TRIPS; i++) {
				int end = b == BATCHES - 1 && i == TRIPS - 1;
				uint64_t last = n++;
				send(1, end ? n | LAST : n);
				expect(await(last), n);
			}
			if (b >= 0)
				ns[b] = (now_ns() - t) / TRIPS;
		}
		double med = median(ns, BATCHES);
		report("put_flush_pingpong", 8, ns[0], med, "ns", BATCHES);
	}
}

static void bw(size_t src_off, int same, int fresh)
{
	uint64_t seed = getenv("PEERS_SEED") ? strtoull(getenv("PEERS_SEED"), NULL, 0) : 1, bad = 0;
	int puts = fresh ? 1 : PUTS, at;
	window(BYTES);
	at = (uintptr_t)base % 4096;
	MPI_Bcast(&at, 1, MPI_INT, 1, MPI_COMM_WORLD);
	if (same)
		src_off = at;
	char *pages = mmap(NULL, BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		die("map source");
	char *src = pages + src_off;
	static double ns[ROUNDS];
	for (int r = -2; r < ROUNDS; r++) { // two rounds of warm-up, checked too
		if (rank == 0) {
			fill((uint64_t *)src, BYTES, seed, r + 2);
			double t = now_ns();
			for (int i = 0; i < puts; i++) {
				MPI_Put(src, BYTES, MPI_BYTE, 1, 0, BYTES, MPI_BYTE, win);
				MPI_Win_flush(1, win);
			}
			if (r >= 0)
				ns[r] = (now_ns() - t) / puts;
		}
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 1) {
			MPI_Win_sync(win);
			bad += wrong((uint64_t *)base, BYTES, seed, r + 2);
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}
	if (rank == 1 && bad) {
		fprintf(stderr, "check puts: %lu words wrong at the target\n", (unsigned long)bad);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	if (rank == 0) {
		double med = median(ns, ROUNDS);
		fprintf(stderr, "window at %d, source at %zu of their pages\n", at, src_off);
		report(fresh ? "put_flush_fresh" : "put_flush_bw", BYTES, BYTES / ns[0], BYTES / med, "GB/s", ROUNDS);
	}
}

// pairs reports the trips of all pairs together in each second, and the 99th percentile and longest trip of any pair.
static void pairs(void)
{
	enum { RATE, P99, MAX, KINDS };
	static double trip[MAX_TRIPS], mine[KINDS][SECONDS], sum[KINDS][SECONDS];
	int peer = ranks - 1 - rank;
	window(LINE);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank > peer)
		answer(peer);
	else {
		uint64_t n = 0, last;
		for (int s = 0; s < SECONDS; s++) {
			double begin = now_ns(), t = begin;
			int count = 0, end = 0;
			while (!end) {
				// The last trip has to say so when it leaves: the one after the time is up.
				int over = t - begin >= 1e9 || count == MAX_TRIPS - 1;
				last = n++;
				send(peer, over && s == SECONDS - 1 ? n | LAST : n);
				expect(await(last), n);
				double u = now_ns();
				trip[count++] = u - t;
				t = u;
				end = over;
			}
			median(trip, count);
			mine[RATE][s] = count / ((t - begin) / 1e9);
			mine[P99][s] = trip[(size_t)(count * 0.99)] / 1e3;
			mine[MAX][s] = trip[count - 1] / 1e3;
		}
	}
	MPI_Reduce(mine[RATE], sum[RATE], SECONDS, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	MPI_Reduce(mine[P99], sum[P99], SECONDS, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	MPI_Reduce(mine[MAX], sum[MAX], SECONDS, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		const char *units[] = {"trips/s", "us", "us"};
		const char *names[] = {"put_flush_pairs", "put_flush_pairs_p99", "put_flush_pairs_longest"};
		for (int k = 0; k < KINDS; k++) {
			double med = median(sum[k], SECONDS);
			// The best second: most trips, or the shortest time.
			report(names[k], 8, k == RATE ? sum[k][SECONDS - 1] : sum[k][0], med, units[k], SECONDS);
		}
	}
}

// place pins rank i to the i-th of PEERS_CPUS, if that many are named, or lets all ranks share two.
static void place(void)
{
	const char *at = getenv("PEERS_CPUS");
	int both[2];
	if (at && sscanf(at, "%d,%d", &both[0], &both[1]) == 2) {
		cpu_set_t set;
		CPU_ZERO(&set);
		CPU_SET(both[0], &set);
		CPU_SET(both[1], &set);
		if (sched_setaffinity(0, sizeof set, &set))
			die("confine to two cpus");
		return;
	}
	for (int i = 0; at && *at; i++) {
		char *end;
		long cpu = strtol(at, &end, 10);
		if (end == at)
			return;
		if (i == rank)
			pin(cpu);
		at = end;
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	deadline(60);
	place();
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "lat") && ranks == 2)
		lat();
	else if (!strcmp(what, "bw") && ranks == 2) {
		int same = argc > 2 && !strcmp(argv[2], "same");
		size_t off = argc > 2 ? strtoul(argv[2], NULL, 0) : 0;
		if (off % 8 || off > 4096) {
			fprintf(stderr, "read source offset: got %zu, accepted are multiples of 8 up to 4096\n", off);
			MPI_Abort(MPI_COMM_WORLD, 2);
		}
		bw(off, same, argc > 3 && atoi(argv[3]));
	} else if (!strcmp(what, "pairs") && ranks % 2 == 0)
		pairs();
	else {
		fprintf(stderr, "usage: mpirun -n 2 osc lat | osc bw [SRC_OFF|same [FRESH]]; mpirun -n 4 osc pairs [SPIN]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	MPI_Win_unlock_all(win);
	MPI_Win_free(&win);
	MPI_Finalize();
	return 0;
}
