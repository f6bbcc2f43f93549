/* tests/cudasim/masks.h: masked attentions that kernels_attention_mask.c computes, and that tests/cudnn asks the real
 * library for.  The code is valid C and C++. */
#ifndef SHARDC_TEST_MASKS_H
#define SHARDC_TEST_MASKS_H

#include "kernels/kernels.h"

/* What a mask hides: the end of each sample, its beginning (behind causal attention the first rows see no key then),
 * some keys, rows and keys alike; by floats, some keys or whole rows, by numbers of all kinds. */
typedef enum Hides { END, BEGINNING, SOME, ROWS, KEYS_BY_FLOATS, ROWS_BY_FLOATS } Hides;

/* on: the dims of the mask (b, h, t, s) that are not 1; served: what the library may compute: nothing (0), forward (1),
 * or the gradient, too (2). */
typedef struct MaskCase { KAttention a; Hides hides; bool on[4]; int served; } MaskCase;

static const MaskCase mask_cases[] = {
	{{.b = 3, .h = 2, .hk = 2, .t = 70, .s = 70, .d = 16, .dv = 16, .mask = K_MASK_BOOL}, END, {1, 0, 0, 1}, 1},
	{{.b = 2, .h = 4, .hk = 2, .t = 128, .s = 128, .d = 16, .dv = 24, .mask = K_MASK_BOOL}, END, {1, 0, 0, 1}, 2},
	{{.b = 2, .h = 2, .hk = 1, .t = 128, .s = 128, .d = 16, .dv = 16, .has_right = true, .mask = K_MASK_BOOL},
		BEGINNING, {1, 0, 0, 1}, 2},
	{{.b = 2, .h = 1, .hk = 1, .t = 33, .s = 40, .d = 8, .dv = 8, .has_right = true, .mask = K_MASK_BOOL,
		.empty_nan = true}, BEGINNING, {1, 0, 0, 1}, 1},
	{{.b = 1, .h = 2, .hk = 2, .t = 128, .s = 128, .d = 8, .dv = 8, .mask = K_MASK_BOOL}, ROWS, {0, 0, 1, 0}, 2},
	{{.b = 2, .h = 2, .hk = 2, .t = 40, .s = 65, .d = 64, .dv = 64, .mask = K_MASK_BOOL}, SOME, {1, 1, 1, 1}, 1},
	{{.b = 2, .h = 2, .hk = 2, .t = 128, .s = 256, .d = 16, .dv = 16, .mask = K_MASK_FLOAT}, KEYS_BY_FLOATS,
		{0, 1, 1, 1}, 2},
	{{.b = 2, .h = 4, .hk = 2, .t = 128, .s = 128, .d = 16, .dv = 16, .has_right = true, .mask = K_MASK_HALF},
		KEYS_BY_FLOATS, {1, 0, 1, 1}, 2},
	{{.b = 2, .h = 2, .hk = 1, .t = 128, .s = 128, .d = 16, .dv = 16, .mask = K_MASK_HALF}, ROWS_BY_FLOATS,
		{1, 0, 1, 1}, 2},
	{{.b = 2, .h = 2, .hk = 2, .t = 77, .s = 90, .d = 40, .dv = 24, .mask = K_MASK_FLOAT}, ROWS_BY_FLOATS,
		{1, 1, 1, 1}, 1},
	{{.b = 2, .h = 2, .hk = 2, .t = 40, .s = 65, .d = 16, .dv = 16, .mask = K_MASK_HALF}, KEYS_BY_FLOATS,
		{0, 0, 0, 1}, 1},
	{{.b = 1, .h = 2, .hk = 2, .t = 20, .s = 20, .d = 16, .dv = 16, .mask = K_MASK_FLOAT}, KEYS_BY_FLOATS,
		{0, 0, 0, 0}, 1},
	/* what the library does not serve: a bias beside another band than that of causal attention */
	{{.b = 1, .h = 2, .hk = 2, .t = 40, .s = 65, .d = 16, .dv = 16, .has_right = true, .right = 25,
		.mask = K_MASK_BOOL}, SOME, {0, 0, 1, 1}, 0},
	{{.b = 1, .h = 2, .hk = 2, .t = 128, .s = 128, .d = 16, .dv = 16, .has_left = true, .left = 9,
		.has_right = true, .mask = K_MASK_FLOAT}, KEYS_BY_FLOATS, {0, 0, 1, 1}, 0},
};

/* The dims of its mask, and where they stand; returns the mask's number of elements. */
static inline int64_t mask_dims(const MaskCase *c, int64_t dim[4], int64_t stride[4])
{
	const int64_t all[4] = {c->a.b, c->a.h, c->a.t, c->a.s};
	int64_t n = 1;
	for (int i = 3; i >= 0; i--) {
		dim[i] = c->on[i] ? all[i] : 1;
		stride[i] = c->on[i] ? n : 0;
		n *= dim[i];
	}
	return n;
}

#endif
