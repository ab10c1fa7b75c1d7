// SPDX-License-Identifier: Apache-2.0

// What the C peers share: a clock, pinning, a deadline, statistics over rounds.
#ifndef PEERS_COMMON_H
#define PEERS_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LINE 64

static inline double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static inline void die(const char *what)
{
	perror(what);
	exit(1);
}

// Every spin in these programs ends: by its answer or by this.
static inline void on_alarm(int sig)
{
	static const char msg[] = "wait for the other process: no answer before the deadline\n";
	(void)sig;
	(void)!write(2, msg, sizeof msg - 1);
	_exit(3);
}

static inline void deadline(unsigned seconds)
{
	signal(SIGALRM, on_alarm);
	alarm(seconds);
}

// pin binds the caller to one CPU; a negative one leaves it free.
static inline void pin(int cpu)
{
	if (cpu < 0)
		return;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		die("pin to cpu");
}

// share returns bytes of zeroed memfd pages mapped MAP_SHARED, as a window between processes is.
static inline void *share(size_t bytes)
{
	int fd = memfd_create("peers", MFD_CLOEXEC);
	if (fd < 0)
		die("create memfd");
	if (ftruncate(fd, bytes))
		die("size memfd");
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		die("map memfd");
	close(fd);
	return p;
}

static inline int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

// median sorts v; v[0] is then the minimum.
static inline double median(double *v, int n)
{
	qsort(v, n, sizeof *v, by_value);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

// pattern is the word at word offset i of round r: each round differs in every word.
static inline uint64_t pattern(uint64_t seed, uint64_t r, uint64_t i)
{
	uint64_t x = seed + r * 0x9e3779b97f4a7c15u + i * 0xd1342543de82ef95u;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	x ^= x >> 32;
	return x;
}

static inline void fill(uint64_t *p, size_t bytes, uint64_t seed, uint64_t r)
{
	for (size_t i = 0; i < bytes / 8; i++)
		p[i] = pattern(seed, r, i);
}

// wrong counts the words of p that are not round r's.
static inline size_t wrong(const uint64_t *p, size_t bytes, uint64_t seed, uint64_t r)
{
	size_t bad = 0;
	for (size_t i = 0; i < bytes / 8; i++)
		bad += p[i] != pattern(seed, r, i);
	return bad;
}

// report prints one result: a tab-separated line that the script turns into two rows.
static inline void report(const char *name, size_t bytes, double min, double med, const char *unit, int rounds)
{
	printf("%s\t%zu\t%.4g\t%.4g\t%s\t%d\n", name, bytes, min, med, unit, rounds);
	fflush(stdout);
}

#endif
