// SPDX-License-Identifier: Apache-2.0

// Round trips of 8 bytes over a loopback TCP socket between two processes, pinned apart: the floor under the tcp network on
// this machine. Once with sockets that do not block and a reader that asks again and again, as a progress pass does, and
// once with ones that block. The receiver compares each message.
//
// With PAIRS 2, two pairs of processes on the same two cores, each core with one end of either, as four ranks have them: who
// finds nothing gives the core away, and single trips are timed.
//
// usage: socket CPU CPU [ROUNDS [SEED [PAIRS]]]
#include "common.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { TRIPS = 200, BATCHES = 10 };

static uint64_t seed = 1;
static int crowded;

static void all(int fd, int out, uint64_t *v)
{
	char *p = (char *)v;
	for (size_t n = sizeof *v; n > 0;) {
		ssize_t k = out ? write(fd, p, n) : read(fd, p, n);
		if (k > 0) {
			p += k;
			n -= k;
		} else if (k == 0 || (errno != EAGAIN && errno != EINTR)) {
			die(out ? "write" : "read");
		} else if (crowded) {
			sched_yield();
		}
	}
}

static void trip(int fd, int first, uint64_t i)
{
	uint64_t out = pattern(seed, i, first), in;
	if (first)
		all(fd, 1, &out);
	all(fd, 0, &in);
	if (in != pattern(seed, i, !first)) {
		fprintf(stderr, "check message %lu: wrong\n", (unsigned long)i);
		exit(1);
	}
	if (!first)
		all(fd, 1, &out);
}

static int cmp(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void run(const char *name, int fd, int first, int rounds, int block)
{
	int flags = fcntl(fd, F_GETFL);
	fcntl(fd, F_SETFL, block ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
	int n = rounds * BATCHES;
	double *t = calloc(n, sizeof *t);
	uint64_t i = 0;
	for (int k = 0; k < n; k++) {
		double start = now_ns();
		for (int j = 0; j < TRIPS; j++)
			trip(fd, first, i++);
		t[k] = (now_ns() - start) / TRIPS;
	}
	qsort(t, n, sizeof *t, cmp);
	if (first)
		printf("%s\t8\t%.4g\t%.4g\tns\t%d\n", name, t[0], t[n / 2], n);
	fflush(stdout);
	free(t);
}

static void single(int fd, int first, int rounds, int shown)
{
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	int n = rounds * TRIPS * BATCHES;
	double *t = calloc(n, sizeof *t);
	for (int k = 0; k < n; k++) {
		double start = now_ns();
		trip(fd, first, k);
		t[k] = now_ns() - start;
	}
	qsort(t, n, sizeof *t, cmp);
	if (first && shown)
		printf("tcp crowded\t8\t%.4g\t%.4g\tns\t%d\ntcp crowded p99\t8\t%.4g\t%.4g\tns\t%d\n", t[0], t[n / 2], n, t[n / 100 * 99], t[n / 100 * 99], n);
	free(t);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: socket CPU CPU [ROUNDS [SEED [PAIRS]]]\n");
		return 2;
	}
	int rounds = argc > 3 ? atoi(argv[3]) : 20;
	seed = argc > 4 ? strtoull(argv[4], 0, 10) : 1;
	deadline(60);
	pid_t other = -1;
	if (argc > 5 && atoi(argv[5]) == 2) {
		crowded = 1;
		if ((other = fork()) < 0)
			die("fork");
		if (other == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			deadline(60);
			char *swap = argv[1];
			argv[1] = argv[2];
			argv[2] = swap;
		}
	}
	int ln = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof a;
	if (ln < 0 || bind(ln, (void *)&a, sizeof a) || listen(ln, 1) || getsockname(ln, (void *)&a, &len))
		die("listen");
	pid_t child = fork();
	if (child < 0)
		die("fork");
	int fd;
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		deadline(60);
		pin(atoi(argv[2]));
		fd = socket(AF_INET, SOCK_STREAM, 0);
		if (fd < 0 || connect(fd, (void *)&a, sizeof a))
			die("connect");
	} else {
		pin(atoi(argv[1]));
		fd = accept(ln, 0, 0);
		if (fd < 0)
			die("accept");
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (crowded) {
		single(fd, child != 0, rounds, other > 0);
	} else {
		run("tcp polled", fd, child != 0, rounds, 0);
		run("tcp blocking", fd, child != 0, rounds, 1);
	}
	if (child == 0)
		return 0;
	int status, late = 0;
	waitpid(child, &status, 0);
	if (other > 0)
		waitpid(other, &late, 0);
	return status != 0 || late != 0;
}
