/* kernels/cuda/work.h: how much scratch each CUDA kernel wants, as plain arithmetic on shapes (see kernels/work.h).
 *
 * Read by passes through kernels.def and by the kernels themselves, so that plan and use cannot differ. */
#ifndef SHARDC_KERNELS_CUDA_WORK_H
#define SHARDC_KERNELS_CUDA_WORK_H

#include "kernels/work.h"

static inline int64_t kwork_cuda_none(const KWorkArgs *a) { (void)a; return 0; }

/* ---- products and convolutions: what the libraries may use ---- */

/* Parts of long sums, in f32, for up to so many slices; integers are counted, too, and need none. */
enum { K_LT_WORK = 32 << 20, K_LT_MIN = 1 << 20, K_LT_SLICES = 32 };
static inline int64_t kwork_cuda_matmul(const KWorkArgs *a)
{
	int64_t bytes = kwork_numel(&a->out[0], 0, a->out[0].rank) * 4 * K_LT_SLICES + K_LT_MIN;
	return kwork_capped(a, kwork_up(bytes < K_LT_WORK ? bytes : K_LT_WORK, 256));
}

/* Twice what the convolution reads and writes, within bounds: room for other layouts of all of it. */
enum { K_DNN_MIN = 1 << 20, K_DNN_MAX = 256 << 20 };
static inline int64_t kwork_cuda_conv_of(const KWorkArgs *a, const KShape *x, const KShape *w, const KShape *y)
{
	int spatial = w->rank - 2, first = a->layout ? 1 : 2;
	int64_t w_bytes = kwork_numel(w, 0, w->rank) * x->bytes, images = kwork_numel(x, 0, x->rank), rims = images;
	int64_t library = 2 * ((images + kwork_numel(y, 0, y->rank)) * x->bytes + w_bytes), bytes = kwork_up(w_bytes, 256);
	for (int i = 0; a->pads && i < spatial && images > 0; i++) {
		int64_t uneven = a->pads[i] - a->pads[i + spatial], d = x->dim[first + i];
		rims = rims / d * (d + (uneven < 0 ? -uneven : uneven));
	}
	if (rims > images) /* a copy of x whose padding is even */
		bytes += kwork_up(rims * x->bytes, 256);
	bytes += library < K_DNN_MIN ? K_DNN_MIN : library > K_DNN_MAX ? K_DNN_MAX : library;
	return kwork_capped(a, kwork_up(bytes, 256));
}
static inline int64_t kwork_cuda_conv(const KWorkArgs *a)
{
	return kwork_cuda_conv_of(a, &a->in[0], &a->in[1], &a->out[0]);
}
static inline int64_t kwork_cuda_conv_grad_x(const KWorkArgs *a)
{
	return kwork_cuda_conv_of(a, &a->out[0], &a->in[1], &a->in[0]);
}
static inline int64_t kwork_cuda_conv_grad_w(const KWorkArgs *a)
{
	return kwork_cuda_conv_of(a, &a->in[0], &a->out[0], &a->in[1]);
}

#endif
