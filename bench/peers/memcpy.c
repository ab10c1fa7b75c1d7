// SPDX-License-Identifier: Apache-2.0

// C memcpy from one process's memfd pages into another's, as a put into a mapped window is: hot (one source, one
// destination, used again and again) and cold (walking a span far larger than the caches). Destination pages are touched
// by both processes beforehand. After the timed rounds each size copies one fresh pattern over the whole span, and the
// other process compares every byte with what it computes itself.
//
// usage: memcpy CPU CPU [ROUNDS [SPAN_MIB [SEED]]]
#include "pair.h"

static const struct {
	const char *name;
	size_t bytes;
	int cold, copies; // copies a sample
} cases[] = {
	{"hot", 64 << 10, 0, 256},
	{"hot", 1 << 20, 0, 16},
	{"hot", 4 << 20, 0, 4},
	{"cold", 64 << 10, 1, 256},
	{"cold", 1 << 20, 1, 16},
	{"cold", 4 << 20, 1, 4},
};
enum { CASES = sizeof cases / sizeof cases[0], TOUCH = 1, CHECK = 2 };

static char *src, *dst;
static size_t span;
static uint64_t seed = 1;

static uint64_t work(const struct job *j)
{
	if (j->what == TOUCH) {
		memset(dst + j->off, 0xa5, j->bytes);
		return 0;
	}
	return wrong((uint64_t *)(dst + j->off), j->bytes, seed, j->round);
}

// sample returns ns a copy. All cold cases share one cursor, so that none meets lines that another just left in a cache.
static double sample(int k)
{
	static size_t cursor;
	double t = now_ns();
	for (int i = 0; i < cases[k].copies; i++) {
		size_t off = 0;
		if (cases[k].cold) {
			off = cursor;
			cursor = (cursor + cases[k].bytes) % span;
		}
		memcpy(dst + off, src + off, cases[k].bytes);
		__asm__ volatile("" ::: "memory");
	}
	return (now_ns() - t) / cases[k].copies;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: memcpy CPU CPU [ROUNDS [SPAN_MIB [SEED]]]\n");
		return 2;
	}
	int rounds = argc > 3 ? atoi(argv[3]) : 64;
	span = (size_t)(argc > 4 ? atoi(argv[4]) : 256) << 20;
	if (argc > 5)
		seed = strtoull(argv[5], NULL, 0);
	if (rounds < 1 || rounds > 10000 || span < 64 << 20 || span > (size_t)4 << 30 || span % (4 << 20)) {
		fprintf(stderr, "read arguments: got %d rounds, span %zu; accepted are 1 to 10000, 64 to 4096 MiB in fours\n",
			rounds, span);
		return 2;
	}
	deadline(60);
	src = share(span);
	dst = share(span);
	pin(atoi(argv[1]));
	struct pair p = pair_start(atoi(argv[2]), work);
	fill((uint64_t *)src, span, seed, 0);
	memset(dst, 0x5a, span);
	pair_do(&p, (struct job){TOUCH, 0, span, 0});

	double *ns[CASES];
	for (int k = 0; k < CASES; k++) {
		if (!(ns[k] = calloc(rounds, sizeof(double))))
			die("allocate samples");
		sample(k); // warm-up
	}
	for (int r = 0; r < rounds; r++)
		for (int k = 0; k < CASES; k++) {
			// The other cases went over the caches: a hot one warms them again, off the clock.
			if (!cases[k].cold)
				sample(k);
			ns[k][r] = sample(k);
		}

	for (int k = 0; k < CASES; k++) {
		if (!cases[k].cold)
			continue;
		uint64_t round = k + 1, bad;
		fill((uint64_t *)src, span, seed, round);
		for (size_t n = 0; n < span; n += cases[k].bytes * cases[k].copies)
			sample(k);
		if ((bad = pair_do(&p, (struct job){CHECK, 0, span, round}))) {
			fprintf(stderr, "check copies of %zu bytes: %lu words wrong\n", cases[k].bytes, (unsigned long)bad);
			return 1;
		}
	}
	pair_end(&p);
	for (int k = 0; k < CASES; k++) {
		double med = median(ns[k], rounds);
		report(cases[k].name, cases[k].bytes, cases[k].bytes / ns[k][0], cases[k].bytes / med, "GB/s", rounds);
	}
	return 0;
}
