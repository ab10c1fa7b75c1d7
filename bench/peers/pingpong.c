// SPDX-License-Identifier: Apache-2.0

// Round trips of cache lines between two processes, pinned apart: the floor under every put and signal on this machine.
//
//   line      a sequence number; request and reply each in a line of their own
//   inline8   8 bytes of payload and their flag in one line: what a put value could be at best
//   putsignal 8 bytes of payload in one line, then an atomic add on a flag in another: what a put followed by a signal
//             that many may raise must at least do
//
// Each once with a plain poll and once with the CPU's pause between polls.
//
// usage: pingpong CPU CPU [ROUNDS [SEED]]
#include "common.h"
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { TRIPS = 500, BATCHES = 40, PER_ROUND = TRIPS * BATCHES };
#define BUDGET_NS 5e9

// Two lines apart, so that the adjacent-line prefetcher does not tie what is meant to be apart.
struct cell {
	_Alignas(2 * LINE) _Atomic uint64_t flag;
	uint64_t beside;                     // payload in the flag's own line
	_Alignas(2 * LINE) uint64_t payload; // payload in another line
};

struct shared {
	struct cell to, from;
};

static uint64_t seed = 1;


// relax is what CPUs have for polling: on some it makes the trip a third shorter, as the poller no longer takes the line
// away from a writer that is about to need it again. Others poll without, so both are measured.
static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline void await(struct cell *c, uint64_t n, int relaxed)
{
	while (atomic_load_explicit(&c->flag, memory_order_acquire) != n)
		if (relaxed)
			relax();
}

static void check(const char *name, uint64_t got, uint64_t n)
{
	uint64_t want = pattern(seed, n, 0);
	if (got == want)
		return;
	fprintf(stderr, "check payload: %s trip %lu: got %lx, want %lx\n", name, (unsigned long)n, (unsigned long)got,
		(unsigned long)want);
	exit(1);
}

enum { LINE_ONLY, INLINE8, PUTSIGNAL, KINDS };

// send and recv are inlined with constant kind and relaxed: no branch on them is left in the loops.
static inline __attribute__((always_inline)) void send(struct cell *c, uint64_t n, int kind)
{
	if (kind == INLINE8)
		c->beside = pattern(seed, n, 0);
	if (kind == PUTSIGNAL) {
		c->payload = pattern(seed, n, 0);
		atomic_fetch_add_explicit(&c->flag, 1, memory_order_release);
	} else
		atomic_store_explicit(&c->flag, n, memory_order_release);
}

static inline __attribute__((always_inline)) void recv(struct cell *c, uint64_t n, int kind, int relaxed)
{
	await(c, n, relaxed);
	if (kind == INLINE8)
		check("inline8", c->beside, n);
	if (kind == PUTSIGNAL)
		check("putsignal", c->payload, n);
}

#define BOTH_SIDES(name, kind, relaxed)                                             \
	static void ask_##name(struct shared *s, uint64_t n, uint64_t end)          \
	{                                                                           \
		while (n++ < end) {                                                 \
			send(&s->to, n, kind);                                      \
			recv(&s->from, n, kind, relaxed);                           \
		}                                                                   \
	}                                                                           \
	static void answer_##name(struct shared *s, uint64_t n, uint64_t end)       \
	{                                                                           \
		while (n++ < end) {                                                 \
			recv(&s->to, n, kind, relaxed);                             \
			send(&s->from, n, kind);                                    \
		}                                                                   \
	}
BOTH_SIDES(line, LINE_ONLY, 0)
BOTH_SIDES(inline8, INLINE8, 0)
BOTH_SIDES(putsignal, PUTSIGNAL, 0)
BOTH_SIDES(line_relaxed, LINE_ONLY, 1)
BOTH_SIDES(inline8_relaxed, INLINE8, 1)
BOTH_SIDES(putsignal_relaxed, PUTSIGNAL, 1)

// A side plays the trips after n, to end.
typedef void side_fn(struct shared *, uint64_t n, uint64_t end);

static const struct {
	const char *name;
	size_t bytes;
	side_fn *ask, *answer;
} cases[] = {
	{"line", 0, ask_line, answer_line},
	{"line, relaxed poll", 0, ask_line_relaxed, answer_line_relaxed},
	{"inline8", 8, ask_inline8, answer_inline8},
	{"inline8, relaxed poll", 8, ask_inline8_relaxed, answer_inline8_relaxed},
	{"putsignal", 8, ask_putsignal, answer_putsignal},
	{"putsignal, relaxed poll", 8, ask_putsignal_relaxed, answer_putsignal_relaxed},
};
enum { CASES = sizeof cases / sizeof cases[0] };

// pages holds a pair of cells a case, and one more whose flags start each round, or end the answering process.
#define END (~0ull)

static void answer_all(struct shared *pages)
{
	struct cell *go = &pages[CASES].to;
	for (uint64_t r = 0;; r++) {
		uint64_t v;
		while ((v = atomic_load_explicit(&go->flag, memory_order_acquire)) == r)
			relax();
		if (v == END)
			return;
		for (int k = 0; k < CASES; k++)
			cases[k].answer(&pages[k], r * PER_ROUND, (r + 1) * PER_ROUND);
	}
}

// ask_all runs the cases in turn within each round, so that a noisy moment touches all alike. It stops after BUDGET_NS, for
// on a CPU that others use each trip may wait for the scheduler, and returns the rounds made.
static int ask_all(struct shared *pages, int rounds, double *ns[CASES])
{
	struct cell *go = &pages[CASES].to;
	double begin = now_ns();
	int r = 0;
	for (; r < rounds && (r == 0 || now_ns() - begin < BUDGET_NS); r++) {
		atomic_store_explicit(&go->flag, r + 1, memory_order_release);
		for (int k = 0; k < CASES; k++)
			for (int b = 0; b < BATCHES; b++) {
				uint64_t n = (uint64_t)r * PER_ROUND + b * TRIPS;
				double t = now_ns();
				cases[k].ask(&pages[k], n, n + TRIPS);
				ns[k][r * BATCHES + b] = (now_ns() - t) / TRIPS;
			}
	}
	atomic_store_explicit(&go->flag, END, memory_order_release);
	return r;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: pingpong CPU CPU [ROUNDS [SEED]]\n");
		return 2;
	}
	int rounds = argc > 3 ? atoi(argv[3]) : 12;
	if (argc > 4)
		seed = strtoull(argv[4], NULL, 0);
	if (rounds < 1 || rounds > 1000) {
		fprintf(stderr, "read rounds: got %d, accepted are 1 to 1000\n", rounds);
		return 2;
	}
	double *ns[CASES];
	for (int k = 0; k < CASES; k++)
		if (!(ns[k] = calloc(rounds * BATCHES, sizeof(double))))
			die("allocate samples");
	struct shared *s = share((CASES + 1) * sizeof *s);
	pid_t parent = getpid(), pid = fork();
	if (pid < 0)
		die("fork");
	deadline(30);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		pin(atoi(argv[2]));
		answer_all(s);
		_exit(0);
	}
	pin(atoi(argv[1]));
	rounds = ask_all(s, rounds, ns);
	int status;
	if (waitpid(pid, &status, 0) < 0 || status != 0) {
		fprintf(stderr, "end the answering process: status %d\n", status);
		return 1;
	}
	for (int k = 0; k < CASES; k++) {
		double med = median(ns[k], rounds * BATCHES);
		report(cases[k].name, cases[k].bytes, ns[k][0], med, "ns", rounds * BATCHES);
	}
	return 0;
}
