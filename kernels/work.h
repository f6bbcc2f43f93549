/* kernels/work.h: how much scratch (work) each CPU kernel wants, in bytes, as plain arithmetic on shapes.
 *
 * Passes call these formulas through kernels.def, and kernels call them themselves, so that what is planned and what
 * is used cannot differ.  No formula depends on the number of threads: the number of chunks of a reduction follows
 * from shapes alone, and tiles are on the threads' stacks. */
#ifndef SHARDC_KERNELS_WORK_H
#define SHARDC_KERNELS_WORK_H

#include <stdbool.h>
#include <stdint.h>

/* An operand or result; dim is NULL where it is absent.  bytes: size of one element. */
typedef struct KShape { int rank; const int64_t *dim; int bytes; } KShape;

/* What a formula may read: the op's operands and results, and its integer attributes of these names. */
typedef struct KWorkArgs {
	KShape in[8], out[8];
	int64_t axis, group, layout, ta, tb, block;
	bool wide;             /* attribute `to` is f32 */
	bool library;          /* attribute of attention */
	const int64_t *pads;   /* of a convolution: all at the beginning, then all at the end; NULL = no padding */
	int64_t cap;           /* --workspace in bytes; 0 = no limit */
} KWorkArgs;

enum { K_BN_CHUNKS = 64, K_NORM_CHUNKS = 64 };

static inline int64_t kwork_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static inline int64_t kwork_numel(const KShape *s, int from, int to)
{
	int64_t n = 1;
	for (int i = from; i < to; i++)
		n *= s->dim[i];
	return n;
}

/* The number of chunks of rows that a statistic is summed by: at least 16 rows each, by the number of rows alone. */
static inline int64_t kwork_norm_chunks(int64_t rows)
{
	int64_t n = (rows + 15) / 16;
	return n < 1 ? 1 : n > K_NORM_CHUNKS ? (int64_t)K_NORM_CHUNKS : n;
}

static inline int64_t kwork_none(const KWorkArgs *a) { (void)a; return 0; }

/* Operand 0 is x, seen as (rows, cols) cut at axis.  Each chunk keeps two partial sums for each column. */
static inline int64_t kwork_norm_grad(const KWorkArgs *a)
{
	const KShape *x = &a->in[0];
	int axis = (int)(a->axis < 0 ? a->axis + x->rank : a->axis);
	int64_t rows = kwork_numel(x, 0, axis), cols = kwork_numel(x, axis, x->rank);
	return kwork_norm_chunks(rows) * cols * 2 * (x->bytes == 2 ? 4 : x->bytes);
}

/* attention_grad (dy, q, k, v, ...) of 16-bit tensors sums dk and dv in f32. */
static inline int64_t kwork_attention_grad(const KWorkArgs *a)
{
	const KShape *k = &a->in[2], *v = &a->in[3];
	return k->bytes == 2 ? (kwork_numel(k, 0, k->rank) + kwork_numel(v, 0, v->rank)) * 4 : 0;
}

/* recurrence (x, r, ..) and recurrence_grad (r, y, ..): packed weights, states and, for gradients, those of two steps'
 * gates, in f32 or f64.  K_RECURRENCE_COLS: rows of states are padded to a multiple of it. */
enum { K_RECURRENCE_COLS = 32 };
static inline int64_t kwork_recurrence_of(const KShape *r, int64_t batch, int states, int gates, int bytes)
{
	int64_t h = r->dim[1], wide = kwork_up(h, K_RECURRENCE_COLS);
	int64_t n = r->dim[0] * wide + batch * (states * wide + gates * r->dim[0]);
	return n * (bytes == 8 ? 8 : 4);
}
static inline int64_t kwork_recurrence(const KWorkArgs *a)
{
	return kwork_recurrence_of(&a->in[1], a->in[0].dim[1], 4, 0, a->in[0].bytes);
}
static inline int64_t kwork_recurrence_grad(const KWorkArgs *a)
{
	return kwork_recurrence_of(&a->in[0], a->in[1].dim[1], 2, 2, a->in[1].bytes);
}

/* gather_grad (dy, ids) of 16-bit rows chains equal ids: work holds a link for each id, the first id of each chain,
 * and a hash table of the last ids. */
static inline int64_t kwork_chain_slots(int64_t n)
{
	int64_t slots = 16;
	while (slots < 2 * n)
		slots *= 2;
	return slots;
}

static inline int64_t kwork_gather_grad(const KWorkArgs *a)
{
	int64_t n = kwork_numel(&a->in[1], 0, a->in[1].rank);
	return a->in[0].bytes == 2 ? (2 * n + kwork_chain_slots(n)) * 4 : 0;
}

/* Channels-last statistics: two f64 for each chunk and channel. */
static inline int64_t kwork_bn(const KWorkArgs *a)
{
	const KShape *x = &a->in[0];
	return a->layout == 1 ? (int64_t)K_BN_CHUNKS * x->dim[x->rank - 1] * 2 * 8 : 0;
}

/* Primitives: what the fastest implementations use.  Under a smaller cap, or with very many threads, other
 * implementations serve that need less. */
static inline int64_t kwork_capped(const KWorkArgs *a, int64_t bytes)
{
	return a->cap > 0 && bytes > a->cap ? a->cap : bytes;
}

/* At most copies of both operands; 16-bit products on tile units also want room for the tiles of each thread. */
enum { K_GEMM_WORK = 8 << 20, K_GEMM_MIN = 1 << 16, K_GEMM_TILES = 2 << 20 };
static inline int64_t kwork_matmul(const KWorkArgs *a)
{
	const KShape *x = &a->in[0], *y = &a->in[1];
	int64_t bytes = (kwork_numel(x, 0, x->rank) + kwork_numel(y, 0, y->rank)) * x->bytes;
	bytes += x->bytes == 2 ? K_GEMM_TILES : K_GEMM_MIN;
	return kwork_capped(a, kwork_up(bytes < K_GEMM_WORK ? bytes : (int64_t)K_GEMM_WORK, 64));
}

/* Products of 8-bit floats: both operands in bf16, the product in f32, and what the product of these may use. */
typedef struct KF8Work { int64_t b, y, product; } KF8Work;
static inline KF8Work kwork_f8_at(int64_t m, int64_t n, int64_t k)
{
	KF8Work at = {kwork_up(m * k * 2, 64), 0, 0};
	at.y = at.b + kwork_up(n * k * 2, 64);
	at.product = at.y + kwork_up(m * n * 4, 64);
	return at;
}
static inline int64_t kwork_matmul_f8(const KWorkArgs *a)
{
	const KShape *b = &a->in[1];
	int64_t n = b->dim[0], k = b->dim[1], m = k ? kwork_numel(&a->in[0], 0, a->in[0].rank) / k : 0;
	return kwork_f8_at(m, n, k).product + K_GEMM_WORK;
}

/* A loss head by blocks: what lies where in work, in bytes.  The gradient of f32 logits is narrowed to the operands'
 * dtype elsewhere; losses are the parts of sums on CUDA; what is left is the products'. */
typedef struct KLossBlocks { int64_t block, narrow, lse, losses, product; } KLossBlocks;
static inline KLossBlocks kwork_loss_blocks(int64_t rows, int64_t pitch, int bytes, bool wide, int64_t losses)
{
	KLossBlocks b = {0};
	b.narrow = kwork_up(rows * pitch * (wide ? 4 : bytes), 256);
	b.lse = b.narrow + (wide && bytes < 4 ? kwork_up(rows * pitch * bytes, 256) : 0);
	b.losses = b.lse + kwork_up(rows * 4, 256);
	b.product = b.losses + kwork_up(losses, 256);
	return b;
}

/* The elements from row to row of a block of logits.  On CUDA each row begins at a multiple of 64 elements, since TMA
 * and 16-byte accesses want rows that are aligned. */
static inline int64_t kwork_logits_pitch(int64_t c, bool on_cuda) { return on_cuda ? kwork_up(c, 64) : c; }

/* h: which operand is h; labels are behind w. */
static inline int64_t kwork_loss_head(const KWorkArgs *a, int h, bool on_cuda, int64_t product)
{
	const KShape *x = &a->in[h], *w = &a->in[h + 1], *labels = &a->in[h + 2];
	int64_t rows = kwork_numel(labels, 0, labels->rank);
	int64_t pitch = kwork_logits_pitch(w->dim[a->tb ? 0 : 1], on_cuda);
	return kwork_loss_blocks(a->block, pitch, x->bytes, a->wide, on_cuda ? rows * 2 * 8 : 0).product
		+ kwork_capped(a, product);
}
static inline int64_t kwork_linear_cross_entropy(const KWorkArgs *a)
{
	return kwork_loss_head(a, 0, false, K_GEMM_WORK);
}
static inline int64_t kwork_linear_cross_entropy_grad(const KWorkArgs *a)
{
	return kwork_loss_head(a, 1, false, K_GEMM_WORK);
}

/* Bytes of weights (o, i, kernel...) in the largest packed layout, whose blocks have up to 64 x 32 elements. */
static inline int64_t kwork_packed(const KShape *w, int64_t group)
{
	int64_t o = kwork_up(w->dim[0] / group, 64), i = kwork_up(w->dim[1], 32);
	if (w->dim[1] == 1 && w->dim[0] == group) /* depthwise: blocks of channels */
		return kwork_up(group, 64) * kwork_numel(w, 2, w->rank) * w->bytes;
	return group * o * i * kwork_numel(w, 2, w->rank) * w->bytes;
}

/* Bytes of the input rows that a 1x1 kernel meets, copied together (kernels/cpu/conv_product.c); 0 for larger
 * kernels. */
static inline int64_t kwork_gathered(const KShape *w, const KShape *y, int64_t group)
{
	if (group != 1 || w->dim[0] < 1 || kwork_numel(w, 2, w->rank) != 1)
		return 0;
	return kwork_numel(y, 0, y->rank) / w->dim[0] * w->dim[1] * w->bytes + K_GEMM_WORK / 4;
}

/* Depthwise convolutions of 16-bit data (kernels/cpu/conv_depthwise.c) keep weights and a bias, or by chunks of rows
 * the sums of a weight gradient, in f32, by blocks of channels.  In f32 (conv_depthwise_f32.c) such sums fit into
 * K_CONV_SCRATCH, or the library serves. */
enum { K_DEPTHWISE_CHANNELS = 32, K_DEPTHWISE_CHUNKS = 16 };
static inline int64_t kwork_depthwise(const KShape *w, int64_t group, int64_t copies)
{
	if (w->dim[1] != 1 || w->dim[0] != group)
		return 0;
	return kwork_up(group, K_DEPTHWISE_CHANNELS) * (kwork_numel(w, 2, w->rank) * copies + 1) * 4;
}

/* Convolutions as products (kernels/cpu/conv_patch.c) copy rows of patches by chunks of this size, or one row where
 * that is larger; their products widen operands where no scratch is left.  Chunks of f32 are what K_CONV_SCRATCH
 * holds. */
enum { K_PATCH_BYTES = 2 << 20 };
static inline int64_t kwork_patches(const KShape *w, int64_t group)
{
	int64_t channels = w->dim[1] > w->dim[0] / group ? w->dim[1] : w->dim[0] / group;
	int64_t row = kwork_numel(w, 2, w->rank) * channels * 2;
	return kwork_up(row > K_PATCH_BYTES ? row : (int64_t)K_PATCH_BYTES, 64);
}

enum { K_CONV_SCRATCH = 1 << 20 };
static inline int64_t kwork_conv_of(const KWorkArgs *a, const KShape *w, const KShape *y)
{
	int64_t group = a->group ? a->group : 1;
	int64_t bytes = kwork_packed(w, group) + kwork_gathered(w, y, group) + K_CONV_SCRATCH;
	if (w->bytes == 2)
		bytes += kwork_depthwise(w, group, 1) + kwork_patches(w, group);
	return kwork_capped(a, kwork_up(bytes, 64));
}
static inline int64_t kwork_conv(const KWorkArgs *a) { return kwork_conv_of(a, &a->in[1], &a->out[0]); }
static inline int64_t kwork_conv_grad_x(const KWorkArgs *a) { return kwork_conv_of(a, &a->in[1], &a->in[0]); }

/* Weight gradients by taps (kernels/cpu/conv_grad_w.c) pack x and dy by chunks of about this many positions. */
enum { K_TAPS_CHUNK = 512 };
static inline int64_t kwork_conv_grad_w(const KWorkArgs *a)
{
	const KShape *x = &a->in[0], *dy = &a->in[1], *dw = &a->out[0];
	int64_t group = a->group ? a->group : 1, wide = x->bytes == 2 ? 4 : x->bytes; /* 16-bit sums are f32 */
	int64_t bytes = kwork_packed(dw, group) * (dw->bytes == 2 ? 2 : 1) + K_CONV_SCRATCH;
	int64_t gathered = kwork_gathered(dw, dy, group);
	if (x->bytes == 2)
		bytes += kwork_depthwise(dw, group, K_DEPTHWISE_CHUNKS) + kwork_patches(dw, group);
	if (gathered || group != 1 || x->rank > 4 || a->layout != 1)
		return kwork_capped(a, kwork_up(bytes + gathered, 64));
	bool two = x->rank == 4;
	int64_t h = two ? x->dim[1] : 1, w = x->dim[x->rank - 2];
	int64_t oh = two ? dy->dim[1] : 1, ow = dy->dim[x->rank - 2];
	int64_t kh = two ? dw->dim[2] : 1, kw = dw->dim[dw->rank - 1], c = kwork_up(x->dim[x->rank - 1], 32);
	int64_t o = kwork_up(dy->dim[x->rank - 1], 12), images = 1;
	int64_t rows = ow > 0 ? (K_TAPS_CHUNK + ow - 1) / ow : 1;
	if (rows >= oh && oh > 0) {
		images = (rows + oh - 1) / oh;
		rows = oh;
	}
	int64_t x_rows = oh > 0 ? rows * ((h + oh - 1) / oh) + 2 * kh : 1; /* an upper bound unless the dilation is large */
	bytes += images * (x_rows * (w + 2 * kw) * c + rows * ow * o) * wide;
	return kwork_capped(a, kwork_up(bytes, 64));
}

#endif
