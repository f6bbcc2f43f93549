/* runtime/store/init.c: random initial values of parameters (--init=random:SEED of the compiler).
 *
 * Element i of a tensor depends only on the seed, the tensor's name and i: each rank makes the elements that it holds,
 * and the weights are the same for any number of ranks, strategy and grouping into units.  Other dtypes than f32 hold
 * the same numbers, rounded.
 *
 * The compiler has chosen each parameter's distribution (passes/init.c); this file only needs a key and a range. */
#include <string.h>

#include "base/philox.h"
#include "runtime/store/private.h"

enum { PIECE = 4096 };

static void random_f32(const RtTensor *t, float *out, int64_t first, int64_t n)
{
	uint64_t key = philox_key((uint64_t)t->seed, hash_bytes(t->name, strlen(t->name), 0));
	if (t->init == RT_INIT_NORMAL)
		k_init_normal_f32(out, key, first, n, (float)t->scale);
	else
		k_init_uniform_f32(out, key, first, n, (float)t->scale);
}

void init_random(const RtTensor *t, const Slice *s)
{
	float made[PIECE];
	if (s->dtype == DT_F32 && s->rounded == DT_F32) {
		random_f32(t, (float *)(void *)s->at, s->first, s->n);
		return;
	}
	for (int64_t at = 0, n; at < s->n; at += n) {
		n = MIN(s->n - at, PIECE);
		random_f32(t, made, s->first + at, n);
		slice_put(s, s->first + at, n, (const char *)made, DT_F32);
	}
}
