/* runtime/exec/schedule.c: what depends only on a step's number: the learning rate and the order of samples.
 *
 * Both are pure functions of a position, so a resumed run needs no state to continue them. */
#include <math.h>

#include "runtime/exec/exec.h"

double schedule_lr(const LrSchedule *s, int64_t step)
{
	if (step < s->warmup)
		return s->lr * (double)(step + 1) / (double)s->warmup;
	double span = (double)MAX(s->steps - s->warmup, 1);
	double done = MIN((double)(step - s->warmup) / span, 1.0);
	switch (s->kind) {
	case SCHEDULE_CONSTANT: return s->lr;
	case SCHEDULE_LINEAR: return s->lr + (s->min_lr - s->lr) * done;
	case SCHEDULE_COSINE:
		return s->min_lr + (s->lr - s->min_lr) * (0.5 + 0.5 * cos(done * 3.14159265358979323846));
	}
	return s->lr;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* A Feistel network permutes the numbers of 2*half bits; a number that lands outside [0,n) is sent through again (cycle
 * walking), which makes it a permutation of [0,n).  As 2^(2*half) < 4n, this takes fewer than four passes on
 * average. */
int64_t schedule_permute(uint64_t seed, int64_t epoch, int64_t i, int64_t n)
{
	enum { ROUNDS = 8 };
	int half = 1;
	while (half < 31 && INT64_C(1) << 2 * half < n)
		half++;
	uint64_t mask = (UINT64_C(1) << half) - 1;
	uint64_t key = mix(mix(seed + 0x9e3779b97f4a7c15u) + (uint64_t)epoch + 0x9e3779b97f4a7c15u);
	uint64_t x = (uint64_t)i;
	do {
		uint64_t left = x >> half, right = x & mask;
		for (uint64_t round = 0; round < ROUNDS; round++) {
			uint64_t next = left ^ (mix(right + key + round * 0x9e3779b97f4a7c15u) & mask);
			left = right;
			right = next;
		}
		x = left << half | right;
	} while (x >= (uint64_t)n);
	return (int64_t)x;
}
