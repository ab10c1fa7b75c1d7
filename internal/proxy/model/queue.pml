// SPDX-License-Identifier: Apache-2.0

/*
 * The Proxy's queue once more, for spin: written apart from the Go search, and in another shape, so that a mistake in
 * one is not one in both. Weak stores are a process per producer that makes slot words and hints visible in any order.
 *
 *   spin -a queue.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m100000
 *
 * Planted faults, each of which must give an error: -DNOSWEEP -DFETCHADD -DWORD0 -DEARLY -DFLUSHLIES -DSIGOWN
 * -DPLAINCOMPARE (to spin -a). A lost descriptor shows as an invalid end state: everybody waits.
 *
 * -DHOLD: a network without order, for which the consumer holds a strong signal until all before it has completed at the
 * target. Planted faults: -DHOLD with -DNOHOLD, -DHOLDLAST (only the operation before), -DHOLDTABLE (its own place counts
 * too), -DLOCALONLY (completions say nothing of the target); with -DF=3, else the table hides some.
 */

#ifndef D
#define D 1                     /* slots */
#endif
#define W 2                     /* words in a slot */
#define P 2                     /* producers */
#define N 2                     /* puts of producer 0, each with a strong signal; of the others, 1 */
#define PUTS(id) ((id) == 0 -> N : 1)
#ifndef GIVEUP
#define GIVEUP 1                /* waits for credit that may time out, in all */
#endif
#ifndef F
#define F 2                     /* operations in flight */
#endif
#define WRAP 16                 /* tickets count modulo WRAP, a multiple of 2*D */
#ifndef START
#define START 14                /* a multiple of 2*D, since slots begin as zeroes; the wrap is crossed */
#endif
#define TOTAL (N + P - 1)

#define DIST(a, b)  (((b) + WRAP - (a)) % WRAP)
#ifdef PLAINCOMPARE
#define LESS(a, b)  ((a) < (b))
#else
#define LESS(a, b)  (DIST(a, b) != 0 && DIST(a, b) < WRAP/2)
#endif
#define ORD(t)      DIST(START, t)                      /* place in the run, from 0 */
#define TICKET(o)   ((START + (o)) % WRAP)
#define PHASE(t)    ((((t) / D) & 1) ^ 1)
/* A word holds the place of the put that wrote it, plus 1; only its phase is looked at. */
#define FULL(v, t)  (((v) == 0 && PHASE(t) == 0) || ((v) != 0 && PHASE(TICKET((v) - 1)) == PHASE(t)))

byte ticket = START, credit = TICKET(D), hint = START;  /* by producers */
byte consumed = START, completed = START;               /* by the consumer */
byte slot[D*W];
byte head;                                              /* descriptors taken, from 0 */
byte gaveup, posted, finished;
bit  placed[TOTAL], src[TOTAL], noted[TOTAL], raised[TOTAL];
#ifdef HOLD
bit  strong[TOTAL];                                     /* a put has a strong signal or none, as its producer likes */
#define STRONG(i) strong[i]
#else
#define STRONG(i) 1
#endif

/* Stores that are done and not visible: slot words (0: none) and hints in order. */
byte word[P*W], place[P];
chan hints[P] = [N] of { byte };
#define HIDDEN(id)  (word[(id)*W] != 0 || word[(id)*W + 1] != 0)

proctype Stores(byte id) {
	byte h;
end:	do
	:: d_step { word[id*W] != 0 -> slot[place[id]*W] = word[id*W]; word[id*W] = 0 }
	:: d_step { word[id*W + 1] != 0 -> slot[place[id]*W + 1] = word[id*W + 1]; word[id*W + 1] = 0 }
	:: d_step { hints[id] ? h -> hint = h; h = 0 }
	od
}

proctype Producer(byte id) {
	byte t, c, x, n, i;
	do
	:: n == PUTS(id) -> break
	:: n < PUTS(id) ->
#ifdef FETCHADD
		d_step { t = ticket; ticket = (ticket + 1) % WRAP }
again:
#else
again:		t = ticket;
#endif
		c = credit;
		if
		:: LESS(t, c) -> skip
		:: else ->
			x = (consumed + D) % WRAP;
			if
			:: LESS(c, x) -> c = x; credit = c      /* two steps: another's newer store may lie between */
			:: else -> skip
			fi;
			if
			:: LESS(t, c) -> skip
			:: else ->
				if
				:: (consumed + D) % WRAP != x -> goto again
				:: d_step { gaveup < GIVEUP -> gaveup++ }; goto next
				fi
			fi
		fi;
		!HIDDEN(id);                                    /* one descriptor of a producer is under way at once */
		atomic {
#ifndef FETCHADD
			if
			:: ticket != t -> goto again
			:: else -> ticket = (t + 1) % WRAP
			fi;
			assert(DIST(consumed, ticket) <= D);
#endif
			assert(ORD(t) < head + D);              /* no slot is overwritten before it was taken */
			place[id] = t % D;
			word[id*W] = ORD(t) + 1;
			word[id*W + 1] = ORD(t) + 1;
			hints[id] ! (t + 1) % WRAP;
#ifdef HOLD
			if
			:: strong[ORD(t)] = 1
			:: skip
			fi;
#endif
			posted++
		}
next:		n++; t = 0; c = 0; x = 0
	od;
	t = ticket;                                             /* flush */
#ifdef FLUSHLIES
	!LESS(consumed, t);
#else
	!LESS(completed, t);
#endif
	d_step {
		do
		:: i < ORD(t) -> assert(src[i]); i++
		:: else -> break
		od;
		finished++
	}
}

#define NOTE(i) d_step { src[i] && !noted[i] -> noted[i] = 1; \
		do \
		:: ORD(completed) < head && noted[ORD(completed)] -> completed = (completed + 1) % WRAP \
		:: else -> break \
		od }
#define INFLIGHT (head - ORD(completed))

#ifdef HOLD
/* Whether the operation at head is held. */
#define FLYING   (head - noted[0] - noted[1] - noted[2])
#if defined(NOHOLD)
#define HELD     0
#elif defined(HOLDLAST)
#define HELD     (STRONG(head) && head > 0 && !noted[head - 1])
#elif defined(HOLDTABLE)
#define HELD     (STRONG(head) && FLYING + 1 > 0)
#else
#define HELD     (STRONG(head) && FLYING > 0)
#endif
#endif

proctype Consumer() {
	byte seen = START, t, v0, v1;
end:	do
	:: hint != seen && INFLIGHT < F -> seen = hint; goto look
#ifndef NOSWEEP
	/* The sweep comes to every head again and again; only the time when it finds something matters here. */
	:: INFLIGHT < F && FULL(slot[(TICKET(head) % D)*W], TICKET(head)) && FULL(slot[(TICKET(head) % D)*W + 1], TICKET(head)) -> goto look
#endif
	/* A completion, in any order. */
	:: NOTE(0)
	:: NOTE(1)
	:: NOTE(2)
	od;
look:	t = TICKET(head);
	v0 = slot[(t % D)*W];
	if
	:: !FULL(v0, t) -> v0 = 0; t = 0; goto end
	:: else -> skip
	fi;
	v1 = slot[(t % D)*W + 1];
	if
#ifndef WORD0
	:: !FULL(v1, t) -> v0 = 0; v1 = 0; t = 0; goto end
#endif
	:: else -> skip
	fi;
#ifdef EARLY
	consumed = (t + 1) % WRAP;
	v0 = slot[(t % D)*W];
	v1 = slot[(t % D)*W + 1];
#endif
	assert(v0 == head + 1 && v1 == head + 1);               /* whole, in order, once */
#ifdef HOLD
	if
	:: HELD -> v0 = 0; v1 = 0; t = 0; goto end              /* it stays in its slot */
	:: else -> skip
	fi;
#endif
	head++;
	consumed = (t + 1) % WRAP;
	if
	:: INFLIGHT < F -> v0 = 0; v1 = 0; t = 0; goto look
	:: else -> v0 = 0; v1 = 0; t = 0; goto end
	fi
}

/* Strong: held until every earlier put is visible. */
#define ALLPLACED(i) (placed[0] && ((i) < 1 || placed[1]) && ((i) < 2 || placed[2]))
#if defined(SIGOWN) || defined(HOLD)
#define MAYRAISE(i) placed[i]
#else
#define MAYRAISE(i) ALLPLACED(i)
#endif

proctype Network(byte i) {
end:	i < head;
	do
#if defined(HOLD) && !defined(LOCALONLY)
	:: d_step { !src[i] && placed[i] -> src[i] = 1 }        /* complete at the target */
#else
	:: d_step { !src[i] -> src[i] = 1 }
#endif
	:: d_step { !placed[i] -> placed[i] = 1 }
	:: d_step { STRONG(i) && !raised[i] && MAYRAISE(i) -> assert(ALLPLACED(i)); raised[i] = 1 }
	:: src[i] && (raised[i] || placed[i] && !STRONG(i)) -> break
	od
}

init {
	byte i;
	atomic {
		do
		:: i < P -> run Producer(i); run Stores(i); i++
		:: else -> break
		od;
		run Consumer();
		i = 0;
		do
		:: i < TOTAL -> run Network(i); i++
		:: else -> break
		od
	};
	/* Everything that was posted is taken, complete and raised. Otherwise this is an invalid end state. */
	finished == P && head == posted && ORD(ticket) == posted && consumed == ticket && completed == ticket
}
