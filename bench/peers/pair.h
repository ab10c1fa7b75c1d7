// SPDX-License-Identifier: Apache-2.0

// A child process that does off-the-clock work on shared pages when told, and sleeps in read() while the parent times.
#ifndef PEERS_PAIR_H
#define PEERS_PAIR_H

#include "common.h"
#include <sys/prctl.h>
#include <sys/wait.h>

struct job {
	int what; // 0 ends the child; the rest is the program's own
	size_t off, bytes;
	uint64_t round;
};

struct pair {
	pid_t pid;
	int ask, answer;
};

// pair_start forks; work runs in the child, on its own CPU, for each job, and its result comes back to pair_do.
static inline struct pair pair_start(int cpu, uint64_t (*work)(const struct job *))
{
	int down[2], up[2];
	if (pipe(down) || pipe(up))
		die("create pipes");
	pid_t parent = getpid(), pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		close(down[1]);
		close(up[0]);
		pin(cpu);
		struct job j;
		while (read(down[0], &j, sizeof j) == sizeof j && j.what) {
			uint64_t r = work(&j);
			if (write(up[1], &r, sizeof r) != sizeof r)
				_exit(1);
		}
		_exit(0);
	}
	close(down[0]);
	close(up[1]);
	return (struct pair){pid, down[1], up[0]};
}

static inline uint64_t pair_do(struct pair *p, struct job j)
{
	uint64_t r;
	if (write(p->ask, &j, sizeof j) != sizeof j || read(p->answer, &r, sizeof r) != sizeof r)
		die("ask the other process");
	return r;
}

static inline void pair_end(struct pair *p)
{
	close(p->ask);
	int status;
	if (waitpid(p->pid, &status, 0) < 0 || status != 0) {
		fprintf(stderr, "end the other process: status %d\n", status);
		exit(1);
	}
}

#endif
