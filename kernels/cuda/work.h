/* kernels/cuda/work.h: how much scratch (work) each CUDA kernel wants, in bytes, as plain arithmetic on shapes.
 *
 * Like kernels/work.h, it is read by passes through kernels.def and by the kernels themselves, so that what is planned
 * and what is used cannot differ. */
#ifndef SHARDC_KERNELS_CUDA_WORK_H
#define SHARDC_KERNELS_CUDA_WORK_H

#include "kernels/work.h"

static inline int64_t kwork_cuda_none(const KWorkArgs *a) { (void)a; return 0; }

/* Attention by cuDNN (library): where in work things begin.  With a mask there are marks of kv heads at the beginning,
 * and the bias, f32 in rows of whole tiles.  rows: a float for each row, of gradients the sums of dy o, of a masked
 * attention its log-sum-exps where nobody else wants them.  Behind it the library's scratch. */
enum { K_DNN_WORK = 4096, K_DNN_TILE = 128 };
typedef struct KDnnPlaces { int64_t rows, bias, scratch; } KDnnPlaces;

/* kv_heads: of all samples; biases: rows of keys that the mask has, 0 = no mask. */
static inline KDnnPlaces kwork_dnn_at(bool grad, int64_t kv_heads, int64_t rows, int64_t keys, int64_t biases)
{
	KDnnPlaces at = {0, 0, 0};
	at.rows = biases > 0 ? kwork_up(kv_heads * 4, 256) : 0;
	at.bias = at.rows + (grad || biases > 0 ? kwork_up(rows * 4, 256) : 0);
	at.scratch = at.bias + biases * kwork_up(keys, K_DNN_TILE) * 4;
	return at;
}

/* The same by operands: q is number `first`, k and v follow, then the mask, if there is one. */
static inline KDnnPlaces kwork_dnn_places(const KWorkArgs *a, int first)
{
	const int64_t *q = a->in[first].dim, *k = a->in[first + 1].dim;
	const KShape *mask = &a->in[first + 3];
	int h = a->layout ? 2 : 1, t = a->layout ? 1 : 2;
	int64_t biases = !mask->dim ? 0 : mask->rank > 1 ? kwork_numel(mask, 0, mask->rank - 1) : 1;
	return kwork_dnn_at(first > 0, k[0] * k[h], q[0] * q[h] * q[t], k[t], biases);
}

/* Forward keeps next to nothing besides. */
static inline int64_t kwork_cuda_attention(const KWorkArgs *a)
{
	return a->library ? kwork_capped(a, kwork_dnn_places(a, 0).scratch + K_DNN_WORK) : 0;
}

/* attention_grad (dy, q, k, v, ...) of any type keeps three floats for each row of dy.  The library's that gives the
 * same bits in every run keeps the gradients of the scores, in tiles of 128 x 128, and those of keys and values by
 * query head where heads are grouped. */
static inline int64_t kwork_cuda_attention_grad(const KWorkArgs *a)
{
	int h = a->layout ? 2 : 1, t = a->layout ? 1 : 2;
	int64_t own = kwork_numel(&a->in[0], 0, 3) * 12;
	if (!a->library)
		return own;
	const int64_t *q = a->in[1].dim, *k = a->in[2].dim, *v = a->in[3].dim;
	int64_t heads = q[0] * q[h], rows = q[t], s = kwork_up(k[t], K_DNN_TILE);
	int64_t pairs = heads * kwork_up(rows, K_DNN_TILE) * s * 2;
	int64_t apart = q[h] != k[h] ? heads * s * (k[3] + v[3]) * 2 : 0;
	KDnnPlaces at = kwork_dnn_places(a, 1);
	int64_t dnn = kwork_capped(a, at.scratch + pairs + apart + K_DNN_WORK);
	return dnn > at.rows + own ? dnn : at.rows + own;
}

/* ---- products and convolutions: what the libraries may use ---- */

/* Room for the f32 parts of long sums, of up to K_LT_SLICES slices.  Integers are counted, too, although they need
 * none. */
enum { K_LT_WORK = 32 << 20, K_LT_MIN = 1 << 20, K_LT_SLICES = 32 };
static inline int64_t kwork_cuda_matmul(const KWorkArgs *a)
{
	int64_t bytes = kwork_numel(&a->out[0], 0, a->out[0].rank) * 4 * K_LT_SLICES + K_LT_MIN;
	return kwork_capped(a, kwork_up(bytes < K_LT_WORK ? bytes : (int64_t)K_LT_WORK, 256));
}

/* What the product may use, or partial sums of columns where the library has no epilogue. */
static inline int64_t kwork_cuda_chunks(int64_t outputs, int64_t count);
static inline int64_t kwork_cuda_column_sums(int64_t rows, int64_t cols)
{
	int64_t chunks = kwork_cuda_chunks(cols, rows);
	return chunks > 1 ? chunks * cols * 8 : 0;
}
static inline int64_t kwork_cuda_matmul_epilogue(const KWorkArgs *a)
{
	int64_t product = kwork_cuda_matmul(a), sums = 0;
	for (int i = 0; i < 2 && a->wide; i++) {
		int64_t of = a->in[i].rank == 2 ? kwork_cuda_column_sums(a->in[i].dim[0], a->in[i].dim[1]) : 0;
		sums = of > sums ? of : sums;
	}
	return product > sums ? product : sums;
}

/* The largest number of each block. */
enum { K_F8_BLOCKS = 1024 };
static inline int64_t kwork_cuda_f8_scale(const KWorkArgs *a) { (void)a; return K_F8_BLOCKS * 4; }

/* recurrence and its gradient: the product of a step and the gates' gradients, f32 or f64, three states, and scratch of
 * the product: where each begins. */
typedef struct KRecurrenceWork { int64_t z, h, c, more, product; } KRecurrenceWork;
static inline KRecurrenceWork kwork_cuda_recurrence_at(int64_t batch, int64_t h, int64_t rows, int bytes)
{
	int64_t wide = bytes == 8 ? 8 : 4, state = kwork_up(batch * h * wide, 256);
	KRecurrenceWork at = {0, 0, 0, 0, 0};
	at.h = kwork_up(batch * rows * wide, 256);
	at.c = at.h + state;
	at.more = at.c + state;
	at.product = at.more + state;
	return at;
}
static inline int64_t kwork_cuda_recurrence(const KWorkArgs *a)
{
	const KShape *x = &a->in[0], *r = &a->in[1];
	return kwork_cuda_recurrence_at(x->dim[1], r->dim[1], r->dim[0], x->bytes).product + kwork_capped(a, K_LT_WORK);
}
static inline int64_t kwork_cuda_recurrence_grad(const KWorkArgs *a)
{
	const KShape *r = &a->in[0], *y = &a->in[1];
	return kwork_cuda_recurrence_at(y->dim[1], r->dim[1], r->dim[0], y->bytes).product + kwork_capped(a, K_LT_WORK);
}

/* Twice what the convolution reads and writes, within bounds: room for copies of all of it in other layouts. */
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
	if (rims > images) /* room for a copy of x with even padding */
		bytes += kwork_up(rims * x->bytes, 256);
	bytes += library < K_DNN_MIN ? (int64_t)K_DNN_MIN : library > K_DNN_MAX ? (int64_t)K_DNN_MAX : library;
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

/* ---- norms, losses, embeddings, flats ---- */

static inline int64_t kwork_clamp(int64_t n, int64_t least, int64_t most)
{
	return n < least ? least : n > most ? most : n;
}

/* Norm gradients: each team of warps keeps the column sums of its rows, a lane those of up to K_NORM_LANE columns, and
 * a block joins those of its teams; for wider rows the sums are made by columns.  K_NORM_ALL_WARPS: about 32 on each of
 * an H100's processors. */
enum { K_NORM_LANE = 16, K_NORM_WARPS = 16, K_NORM_BLOCK_WARPS = 8, K_NORM_ALL_WARPS = 4096 };
static inline int64_t kwork_norm_warps(int64_t cols) /* of a team: a power of two; K_NORM_WARPS at most */
{
	int64_t warps = 1;
	while (warps < K_NORM_WARPS && warps * 32 * K_NORM_LANE < cols)
		warps *= 2;
	return warps;
}
static inline int64_t kwork_norm_blocks(int64_t rows, int64_t cols) /* a team has at least eight rows */
{
	int64_t warps = kwork_norm_warps(cols), teams = warps < K_NORM_BLOCK_WARPS ? K_NORM_BLOCK_WARPS / warps : 1;
	return kwork_clamp(rows / (8 * teams), 1, K_NORM_ALL_WARPS / (teams * warps));
}
static inline int64_t kwork_cuda_norm_grad(const KWorkArgs *a)
{
	const KShape *x = &a->in[0];
	int axis = (int)(a->axis < 0 ? a->axis + x->rank : a->axis);
	int64_t rows = kwork_numel(x, 0, axis), cols = kwork_numel(x, axis, x->rank);
	return kwork_norm_blocks(rows, cols) * cols * 2 * (x->bytes == 2 ? 4 : x->bytes);
}

/* Batch norm's statistics: two f64 for each chunk and channel.  With channels last a block has up to 256 channels, else
 * one, and 16384 elements or more; all channels have about four blocks for each of an H100's processors. */
enum { K_BN_BLOCKS = 512, K_BN_ELEMENTS = 16384, K_BN_CHANNELS = 256 };
static inline int64_t kwork_bn_chunks(int64_t rows, int64_t c, int layout)
{
	int64_t channels = !layout ? 1 : kwork_clamp(c, 1, K_BN_CHANNELS), tiles = (c + channels - 1) / channels;
	int64_t most = K_BN_BLOCKS / tiles, wanted = rows / ((K_BN_ELEMENTS + channels - 1) / channels);
	return kwork_clamp(wanted < most ? wanted : most, 1, K_BN_BLOCKS);
}
static inline int64_t kwork_cuda_bn(const KWorkArgs *a)
{
	const KShape *x = &a->in[0];
	int64_t c = x->dim[a->layout ? x->rank - 1 : 1], all = kwork_numel(x, 0, x->rank);
	return c > 0 ? kwork_bn_chunks(all / c, c, (int)a->layout) * c * 2 * 8 : 0;
}

/* Cross-entropy: the loss and the weight of each chunk of rows, in f64. */
static inline int64_t kwork_loss_chunks(int64_t rows) { return kwork_clamp(rows, 1, 8192); }
static inline int64_t kwork_cuda_cross_entropy(const KWorkArgs *a)
{
	const KShape *x = &a->in[0];
	return kwork_loss_chunks(kwork_numel(x, 0, x->rank - 1)) * 2 * 8;
}

static inline int64_t kwork_cuda_linear_cross_entropy(const KWorkArgs *a)
{
	return kwork_loss_head(a, 0, true, K_LT_WORK);
}
static inline int64_t kwork_cuda_linear_cross_entropy_grad(const KWorkArgs *a)
{
	return kwork_loss_head(a, 1, true, K_LT_WORK);
}

/* Gradients of sampling in f32, the result: a sum of 64 bits for each element, behind the largest of dy. */
static inline int64_t kwork_cuda_fixed_sums(const KWorkArgs *a)
{
	return a->out[0].bytes == 4 ? 16 + kwork_numel(&a->out[0], 0, a->out[0].rank) * 8 : 0;
}

/* Determinants of in[0]: a copy of each matrix in f64.  Their gradient: two copies and the cofactors. */
static inline int64_t kwork_cuda_det(const KWorkArgs *a) { return kwork_numel(&a->in[0], 0, a->in[0].rank) * 8; }
static inline int64_t kwork_cuda_det_grad(const KWorkArgs *a)
{
	return kwork_numel(&a->out[0], 0, a->out[0].rank) * 24;
}

/* gather_grad (dy, ids): two arrays of keys for sorting, and for each chunk of sorted ids the sums of its first and
 * its last row of the table, which may continue in other chunks. */
enum { K_GATHER_CHUNK = 32 };
static inline int64_t kwork_cuda_gather_grad(const KWorkArgs *a)
{
	const KShape *dy = &a->in[0], *ids = &a->in[1];
	int64_t n = kwork_numel(ids, 0, ids->rank), chunks = (n + K_GATHER_CHUNK - 1) / K_GATHER_CHUNK;
	int64_t row = n > 0 ? kwork_numel(dy, 0, dy->rank) / n : 0;
	return kwork_up(2 * n * 8, 64) + chunks * 2 * row * (dy->bytes == 2 ? 4 : dy->bytes);
}

/* k_norm: a partial result for each chunk of the flat that meets a segment. */
enum { K_FLAT_CHUNKS = 1024 };
static inline int64_t kwork_cuda_norm_parts(int64_t n_seg) { return (K_FLAT_CHUNKS + n_seg) * 8; }

/* The number of parts of a reduction of `count` elements to each of `outputs` results: enough to fill a device when
 * there are few results, each of at least 512 elements.  A block of columns makes up to 256 results of 16 bits, so that
 * there are 512 blocks, about four for each of an H100's processors. */
enum { K_REDUCE_PARTS = 131072 };
static inline int64_t kwork_cuda_chunks(int64_t outputs, int64_t count)
{
	int64_t most = count / 512, wanted = outputs > 0 ? K_REDUCE_PARTS / outputs : 1;
	int64_t n = most < wanted ? most : wanted;
	return n < 1 ? 1 : n > 256 ? 256 : n;
}

/* Partial results of at most 8 bytes each. */
static inline int64_t kwork_cuda_reduce(const KWorkArgs *a)
{
	int64_t in = kwork_numel(&a->in[0], 0, a->in[0].rank), out = kwork_numel(&a->out[0], 0, a->out[0].rank);
	int64_t chunks = kwork_cuda_chunks(out, out > 0 ? in / out : 0);
	return chunks > 1 ? chunks * out * 8 : 0;
}

#endif
