// SPDX-License-Identifier: Apache-2.0

// One copy of 4 MiB into another process's pages, in the shape that a put has, with one thing changed at a time. It exists
// to explain a put that looks faster, or slower, than "a memcpy": see README.md.
//
// usage: copyshape CPU CPU [ROUNDS [SEED]]
#include "pair.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { BYTES = 4 << 20, SPAN = 256 << 20, BLOCK = 128 << 10, COPIES = 4, TOUCH = 1, READ = 2, CHECK = 3 };

static char *window;
static uint64_t seed = 1;

typedef void copy_fn(char *d, const char *s);

static void whole(char *d, const char *s) { memcpy(d, s, BYTES); }

static void blocks(char *d, const char *s)
{
	for (size_t i = 0; i < BYTES; i += BLOCK)
		memcpy(d + i, s + i, BLOCK);
}

#if defined(__x86_64__)
static void movsb(char *d, const char *s)
{
	size_t n = BYTES;
	__asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n)::"memory");
}

__attribute__((target("avx2"))) static void vector(char *d, const char *s)
{
	for (size_t i = 0; i < BYTES; i += 64) {
		__m256i a = _mm256_loadu_si256((const void *)(s + i)), b = _mm256_loadu_si256((const void *)(s + i + 32));
		_mm256_storeu_si256((void *)(d + i), a);
		_mm256_storeu_si256((void *)(d + i + 32), b);
	}
}

// SSE2 words, so that a destination at 8 mod 16 can be streamed to as well.
static void stream(char *d, const char *s)
{
	for (size_t i = 0; i < BYTES; i += 8) {
		long long v;
		memcpy(&v, s + i, 8);
		_mm_stream_si64((long long *)(d + i), v);
	}
	_mm_sfence();
}
#endif

enum source { SHARED, PRIVATE, UNTOUCHED };
enum between { NOTHING, REWRITE, READER };

static const struct shape {
	const char *name;
	copy_fn *copy;
	size_t dst_off, src_off;
	enum source source;
	enum between between;
	int cold;
} shapes[] = {
	{"base: one memcpy, same buffers", whole, 0, 0, SHARED, NOTHING, 0},
	{"source private", whole, 0, 0, PRIVATE, NOTHING, 0},
	{"source never written", whole, 0, 0, UNTOUCHED, NOTHING, 0},
	{"source rewritten before each", whole, 0, 0, SHARED, REWRITE, 0},
	{"target reads all before each", whole, 0, 0, SHARED, READER, 0},
	{"cold, 256 MiB span", whole, 0, 0, SHARED, NOTHING, 1},
	{"memcpy in 128 KiB blocks", blocks, 0, 0, SHARED, NOTHING, 0},
	{"blocks, target + 8", blocks, 8, 0, SHARED, NOTHING, 0},
	{"blocks, both + 8", blocks, 8, 8, SHARED, NOTHING, 0},
	{"blocks, target + 264", blocks, 264, 0, SHARED, NOTHING, 0},
	{"one memcpy, target + 8", whole, 8, 0, SHARED, NOTHING, 0},
#if defined(__x86_64__)
	{"rep movsb", movsb, 0, 0, SHARED, NOTHING, 0},
	{"rep movsb, target + 8", movsb, 8, 0, SHARED, NOTHING, 0},
	{"vector loop", vector, 0, 0, SHARED, NOTHING, 0},
	{"vector loop, target + 8", vector, 8, 0, SHARED, NOTHING, 0},
	{"non-temporal stores", stream, 0, 0, SHARED, NOTHING, 0},
	{"non-temporal stores, cold", stream, 0, 0, SHARED, NOTHING, 1},
#endif
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static uint64_t work(const struct job *j)
{
	const char *p = window + j->off;
	uint64_t sum = 0;
	switch (j->what) {
	case TOUCH:
		memset(window, 0xa5, SPAN + 4096);
		return 0;
	case READ:
		for (size_t i = 0; i < j->bytes; i += 8)
			sum += *(const volatile uint64_t *)(p + i);
		return sum;
	default:
		return wrong((const uint64_t *)p, j->bytes, seed, j->round);
	}
}

static char *private(void)
{
	char *p = mmap(NULL, BYTES + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		die("map private pages");
	return p;
}

static char *sources[3];

// sample returns ns a copy; what happens between copies is off the clock, and then each copy is timed alone.
static double sample(struct pair *p, const struct shape *s, uint64_t round)
{
	static size_t cursor;
	char *from = sources[s->source] + s->src_off, *to = window + s->dst_off;
	double sum = 0;
	for (int i = 0; i < COPIES; i++) {
		size_t off = 0;
		if (s->cold) {
			off = cursor;
			cursor = (cursor + BYTES) % SPAN;
		}
		if (s->between == REWRITE)
			fill((uint64_t *)from, BYTES, seed, round * COPIES + i);
		if (s->between == READER)
			pair_do(p, (struct job){READ, s->dst_off, BYTES, 0});
		double t = now_ns();
		s->copy(to + off, from + off);
		__asm__ volatile("" ::: "memory");
		sum += now_ns() - t;
	}
	return sum / COPIES;
}

// verify copies a fresh pattern and has the other process compare every byte.
static void verify(struct pair *p, const struct shape *s, uint64_t round)
{
	if (s->source == UNTOUCHED)
		return; // nothing but zeroes: the point of that shape
	fill((uint64_t *)(sources[s->source] + s->src_off), BYTES, seed, round);
	s->copy(window + s->dst_off, sources[s->source] + s->src_off);
	uint64_t bad = pair_do(p, (struct job){CHECK, s->dst_off, BYTES, round});
	if (bad) {
		fprintf(stderr, "check copy: %s: %lu words wrong\n", s->name, (unsigned long)bad);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: copyshape CPU CPU [ROUNDS [SEED]]\n");
		return 2;
	}
	int rounds = argc > 3 ? atoi(argv[3]) : 24;
	if (argc > 4)
		seed = strtoull(argv[4], NULL, 0);
	if (rounds < 1 || rounds > 1000) {
		fprintf(stderr, "read rounds: got %d, accepted are 1 to 1000\n", rounds);
		return 2;
	}
	deadline(90);
	window = share(SPAN + 4096);
	sources[SHARED] = share(SPAN + 4096);
	sources[PRIVATE] = private();
	sources[UNTOUCHED] = private();
	pin(atoi(argv[1]));
	struct pair p = pair_start(atoi(argv[2]), work);
	fill((uint64_t *)sources[SHARED], SPAN + 4096, seed, 0);
	fill((uint64_t *)sources[PRIVATE], BYTES + 4096, seed, 0);
	memset(window, 0x5a, SPAN + 4096);
	pair_do(&p, (struct job){TOUCH, 0, 0, 0});

	static double ns[SHAPES][1000];
	for (int r = 0; r < rounds; r++)
		for (int k = 0; k < SHAPES; k++) {
			sample(&p, &shapes[k], r); // the shape before left the caches its own way
			ns[k][r] = sample(&p, &shapes[k], r);
		}
	for (int k = 0; k < SHAPES; k++)
		verify(&p, &shapes[k], 1000 * COPIES + k);
	pair_end(&p);
	for (int k = 0; k < SHAPES; k++) {
		double med = median(ns[k], rounds);
		report(shapes[k].name, BYTES, BYTES / ns[k][0], BYTES / med, "GB/s", rounds);
	}
	return 0;
}
