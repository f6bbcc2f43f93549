/* examples/hooks/int8.c: gradients sent in 8 bits, with error feedback.
 *
 *   shardc MODEL.onnx -o train --comm-hook=examples/hooks/int8.c:int8_feedback:send=3,keep=4
 *
 * Each member adds the error of earlier steps to its gradient, and sends every block of 64 elements as one f32 scale
 * and 64 signed bytes: 1.06 bytes an element instead of 4.  The error of the rounding is kept for the next step (Seide
 * and others 2014, 1-bit SGD; Karimireddy and others 2019 show that such a scheme converges as the exact one).  Sums
 * are made in f32, in the order of members, so every run repeats bit by bit.
 *
 * send=3: 3 bytes of send buffer for each element, for the packed gradient and behind it the packed parts of all
 * members.  keep=4: 4 bytes that last from step to step, for the error in f32. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "runtime/hook.h"

enum { BLOCK = 64, PACKED = BLOCK + 4 };

/* Packs blocks of x + error into out, and sets error to what the rounding lost. */
static void pack(char *out, const float *x, float *error, int64_t blocks)
{
#pragma omp parallel for schedule(static) if (blocks > 1024)
	for (int64_t b = 0; b < blocks; b++) {
		const float *from = x + b * BLOCK;
		float *lost = error + b * BLOCK, most = 0;
		int8_t *to = (int8_t *)(out + b * PACKED + 4);
		for (int i = 0; i < BLOCK; i++) {
			lost[i] += from[i];
			most = fmaxf(most, fabsf(lost[i]));
		}
		float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
		memcpy(out + b * PACKED, &scale, 4);
		for (int i = 0; i < BLOCK; i++) {
			to[i] = (int8_t)lrintf(lost[i] * inverse);
			lost[i] -= (float)to[i] * scale;
		}
	}
}

/* out = mean of the members' blocks. */
static void unpack(float *out, const char *parts, int64_t blocks, int members, float mean)
{
#pragma omp parallel for schedule(static) if (blocks > 1024)
	for (int64_t b = 0; b < blocks; b++) {
		float sum[BLOCK] = {0};
		for (int m = 0; m < members; m++) {
			const char *part = parts + (m * blocks + b) * PACKED;
			float scale;
			memcpy(&scale, part, 4);
			for (int i = 0; i < BLOCK; i++)
				sum[i] += (float)((const int8_t *)part)[4 + i] * scale;
		}
		for (int i = 0; i < BLOCK; i++)
			out[b * BLOCK + i] = sum[i] * mean;
	}
}

/* Rounding would hide a number that is not finite, which the run has to see. */
static int is_finite(const float *x, int64_t n)
{
	float sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += x[i] * 0;
	return sum == 0;
}

/* For reductions whose result all members need: gathers the reduced parts, in f32. */
static int share(const HookCall *c, int64_t part)
{
	float *own = (float *)c->send;
	memcpy(own, c->gradient + c->member * part, (size_t)part * 4);
	return hook_all_gather(c, own, part * 4, c->gradient);
}

int int8_feedback(const HookCall *c)
{
	int64_t part = c->n / c->members / BLOCK * BLOCK, blocks = part / BLOCK;
	char *packed = c->send, *parts = packed + c->n / BLOCK * PACKED;
	/* reductions of shards across groups, and sizes that do not divide into blocks, stay exact */
	if (c->kind == HOOK_ALL_REDUCE_SHARDS || part * c->members != c->n || c->members == 1)
		return hook_built_in(c);
	int finite = is_finite(c->gradient, c->n);
	pack(packed, c->gradient, c->keep, c->n / BLOCK);
	if (!finite) {
		memset(c->keep, 0, (size_t)c->keep_bytes);
		const float nan_scale = NAN;
		for (int64_t b = 0; b < c->n / BLOCK; b++)
			memcpy(packed + b * PACKED, &nan_scale, 4);
	}
	if (hook_all_to_all(c, packed, blocks * PACKED, parts))
		return 1;
	float *to = c->kind == HOOK_REDUCE_SCATTER ? c->out : c->gradient + c->member * part;
	unpack(to, parts, blocks, c->members, c->mean);
	if (c->kind == HOOK_REDUCE_SCATTER)
		return 0;
	if (share(c, part))
		return 2;
	if (c->kind == HOOK_REDUCE && c->out)
		memcpy(c->out, c->gradient, (size_t)c->n * 4);
	return 0;
}
