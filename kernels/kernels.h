/* kernels/kernels.h: every kernel that an emitted program or the runtime may call.
 *
 * Order of parameters: results, operands, sizes, attributes, work.  All tensors are row-major unless a
 * comment says so.  A kernel allocates nothing, keeps no state, and gives the same bits for any number
 * of threads (own reductions; oneDNN's are listed in kernels/cpu/prim.h).  Results never overlap
 * operands unless "may be" says so.  Shapes stand in the comments as (d0, d1, ...).
 *
 * The same functions exist twice: kernels/cpu computes on the spot; kernels/cuda launches on the stream of
 * kernels/cuda/cuda.h.  There tensors, StepScalars, segments, groups and results are in device memory; descriptors,
 * lists of sizes and lists of pointers are the host's and are read before a call returns.
 *
 * Depends on nothing but base/dtypes.def, so that CUDA programs can include it too. */
#ifndef SHARDC_KERNELS_H
#define SHARDC_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { K_MAX_RANK = 8 };

typedef enum KDType {
#define DTYPE(id, ...) K_##id,
#include "base/dtypes.def"
	K_DTYPES
} KDType;

/* X-macro lists of (C type, suffix) that prototypes and implementations expand. */
#define K_FLOATS(X) X(float, f32) X(double, f64)
#define K_INTS(X) X(int64_t, i64) X(int32_t, i32) X(int16_t, i16) X(int8_t, i8) \
	X(uint64_t, u64) X(uint32_t, u32) X(uint16_t, u16) X(uint8_t, u8)
#define K_NUMBERS(X) K_FLOATS(X) K_INTS(X)
/* The same with bf16 and f16 (raw bits), which are computed in f32: (C type, type of statistics, suffix). */
#define K_HALVES(X) X(uint16_t, float, bf16) X(uint16_t, float, f16)
#define K_REALS(X) X(float, float, f32) X(double, double, f64) K_HALVES(X)

/* ---- what a step tells its kernels ---- */

/* Written by the runtime before the kernels of a step read it; on CUDA it lies in device memory. */
typedef struct StepScalars {
	float lr;           /* of this step, schedule applied */
	float grad_scale;   /* n*W/C of --loss-norm=global, 1/A of =rank; times 1/loss scale */
	float clip_coef;    /* min(1, clip / norm); 1 without clipping */
	float clip_value;   /* gradients are clamped to +- this; 0 = not */
	int32_t skip;       /* 1: updates leave everything as it is */
	float loss_scale;   /* what backward's seed is multiplied with, 1 = nothing */
	int64_t step;       /* 1, 2, ...: updates done with this one; bias corrections use it */
	uint64_t seed;      /* --seed */
	uint64_t rng_step;  /* third part of the Philox counter: the steps begun so far */
	int64_t sample0;    /* global number of the micro-batch's first sample row on this rank */
} StepScalars;

/* A part of one parameter that lies in a shard.  Sorted by begin; what no segment covers is a gap. */
typedef struct Segment {
	int64_t begin, length; /* elements, from the shard's start */
	int32_t group;         /* index of a Group */
	int32_t tensor;        /* index of the parameter in its unit */
	int64_t began;         /* updates done before its states began: its own count starts there */
} Segment;

/* Hyper-parameters of a parameter group. */
typedef struct Group {
	float lr_scale, weight_decay;
	float beta1, beta2;    /* sgd: beta1 = momentum */
	float eps;
} Group;

/* ---- failures ---- */

/* Bad input data (a label or an index out of range): called from any thread, must return; the kernel
 * goes on with a harmless value.  The runtime sets it to rt_bad_input; by default it prints and aborts. */
extern void (*k_bad_input)(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A primitive cannot be created (out of memory, the library failed): must not return. */
extern void (*k_fail)(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- primitives: created once in setup(), run in every step ---- */

typedef struct KPrim KPrim;
void k_prim_free(KPrim *p);
const char *k_prim_impl(const KPrim *p);       /* "brgemm:avx512_core", "own:naive", ... for -v */
int64_t k_prim_work(const KPrim *p);           /* bytes of work that run really touches */

/* y (batch..., M, N) = op(a) op(b) + bias (N), or y += op(a) op(b) in f32, op = transposed when ta / tb:
 * a is (batch..., M, K) or (batch..., K, M), b is (batch..., K, N) or (batch..., N, K).
 * sa, sb: elements between the matrices of a batch dim, 0 where that operand is broadcast. */
typedef struct KMatmulDesc {
	KDType dtype;          /* of operands and bias: f32 f64 bf16 f16 i64 i32 u64 u32 */
	KDType to;             /* of y where dtype is 16-bit: dtype or f32, rounded once from f32 sums; else dtype */
	int64_t m, n, k;
	bool ta, tb, bias;
	bool add;              /* y is an f32 sum and the product, not rounded before, is added to it; without bias */
	int n_batch;           /* batch dims, 0..6 */
	int64_t batch[6], sa[6], sb[6];
	int64_t work_bytes;    /* what run may use; implementations that need more are passed over */
} KMatmulDesc;
KPrim *k_matmul_create(const KMatmulDesc *d);
void k_matmul_run(KPrim *p, void *y, const void *a, const void *b, const void *bias, void *work);

/* Convolutions.  layout 0: x (N, C, in...), y (N, O, out...); 1: x (N, in..., C), y (N, out..., O).
 * w (O, C/group, kernel...) row-major, or packed (kernels/layouts.h) when w_layout is not NULL.
 * Spatial arrays have `rank` entries. */
typedef struct KConvDesc {
	KDType dtype;          /* f32 f64 bf16 f16 */
	KDType to;             /* of a 16-bit convolution's weight gradient: dtype or f32 */
	int rank;              /* 1..3 */
	int64_t n, c, o, group;
	int64_t in[3], out[3], kernel[3], stride[3], dilation[3], pad[3], pad_end[3];
	int layout;
	bool bias;
	const char *w_layout;
	int64_t work_bytes;
} KConvDesc;
KPrim *k_conv_create(const KConvDesc *d);
KPrim *k_conv_grad_x_create(const KConvDesc *d);
KPrim *k_conv_grad_w_create(const KConvDesc *d);
void k_conv_run(KPrim *p, void *y, const void *x, const void *w, const void *bias /* (O) */, void *work);
void k_conv_grad_x_run(KPrim *p, void *dx, const void *dy, const void *w, const void *bias /* (C) */,
	void *work);
void k_conv_grad_w_run(KPrim *p, void *dw /* row-major */, const void *x, const void *dy, void *work);

/* dst: klayout_numel elements in the named layout; src (O, I, K): I = C/group, K = product of kernel dims. */
void k_pack_f32(float *dst, const float *src, const char *layout, int64_t o, int64_t i, int64_t k,
	int64_t group);

/* ---- pooling ---- */

typedef struct KPool {
	int rank;              /* 1..3 spatial dims */
	int64_t n, c;
	int64_t in[3], out[3], kernel[3], stride[3], dilation[3], pad[3], pad_end[3];
	int64_t extra[3];      /* ceil mode's additions at the end: never counted */
	int layout;            /* 0 (N, C, in...), 1 (N, in..., C) */
	bool count_pad;
} KPool;
#define K_DECL(T, t) void k_max_pool_##t(T *y, int32_t *idx /* or NULL */, const T *x, const KPool *p);
K_NUMBERS(K_DECL)
#undef K_DECL
#define K_DECL(T, W, t) void k_max_pool_##t(T *y, int32_t *idx /* or NULL */, const T *x, const KPool *p);
K_HALVES(K_DECL)
#undef K_DECL
#define K_DECL(T, W, t) \
	void k_max_pool_grad_##t(T *dx, const T *dy, const int32_t *idx, const KPool *p); \
	void k_avg_pool_##t(T *y, const T *x, const KPool *p); \
	void k_avg_pool_grad_##t(T *dx, const T *dy, const KPool *p);
K_REALS(K_DECL)
#undef K_DECL

/* ---- normalisation, softmax ---- */

/* x: layout 0 (n, c, s), layout 1 (n, s, c); statistics (c).
 * x, dy (rows, cols) for layer and rms norm; mean, rstd (rows); w, b (cols), each may be NULL.
 * r (rows, cols) or NULL: s = x + r, rounded, is what is normalised; each of y, s may be one of x, r.
 * dx may be dy.  dx, dw, db may each be NULL.  ds (rows, cols) or NULL: dx, rounded, + ds is written.
 * softmax family: (outer, n, inner), along n; y may be x, dx may be dy or y. */
#define K_DECL(T, t) \
	void k_bn_stats_##t(T *mean, T *var, const T *x, int64_t n, int64_t c, int64_t s, int layout, \
		void *work); \
	void k_bn_grad_stats_##t(T *sum_dy, T *sum_dy_xhat, const T *dy, const T *x, const T *mean, \
		const T *var, int64_t n, int64_t c, int64_t s, int layout, double eps, void *work);
K_FLOATS(K_DECL)
#undef K_DECL
#define K_DECL(T, W, t) \
	void k_layer_norm_##t(T *y, W *mean, W *rstd, T *s, const T *x, const T *w, const T *b, const T *r, \
		int64_t rows, int64_t cols, double eps); \
	void k_layer_norm_grad_##t(T *dx, T *dw, T *db, const T *dy, const T *x, const T *w, const W *mean, \
		const W *rstd, const T *ds, int64_t rows, int64_t cols, void *work); \
	void k_rms_norm_##t(T *y, W *rstd, T *s, const T *x, const T *w, const T *r, int64_t rows, int64_t cols, \
		double eps); \
	void k_rms_norm_grad_##t(T *dx, T *dw, const T *dy, const T *x, const T *w, const W *rstd, const T *ds, \
		int64_t rows, int64_t cols, void *work); \
	void k_softmax_##t(T *y, const T *x, int64_t outer, int64_t n, int64_t inner); \
	void k_softmax_grad_##t(T *dx, const T *dy, const T *y, int64_t outer, int64_t n, int64_t inner); \
	void k_log_softmax_##t(T *y, const T *x, int64_t outer, int64_t n, int64_t inner); \
	void k_log_softmax_grad_##t(T *dx, const T *dy, const T *y, int64_t outer, int64_t n, int64_t inner);
K_REALS(K_DECL)
#undef K_DECL

/* ---- attention ---- */

enum { K_MASK_NONE, K_MASK_BOOL, K_MASK_FLOAT /* f32 */, K_MASK_HALF /* of q's 16-bit type */ };
/* layout 0: q (B,H,T,D) k (B,Hk,S,D) v (B,Hk,S,Dv) o (B,H,T,Dv);  1: q (B,T,H,D) k (B,S,Hk,D) v (B,S,Hk,Dv)
 * o (B,T,H,Dv).  lse (B,H,T): log-sum-exp of the scaled, capped, masked scores; -inf for an empty row.
 * mask element (b,h,t,s) at mask + b*mask_stride[0] + h*[1] + t*[2] + s*[3] elements. */
typedef struct KAttention {
	int64_t b, h, hk, t, s, d, dv;
	float scale, softcap;  /* softcap 0 = none */
	bool causal, causal_end; /* row t sees s <= t, or s <= t + S - T when causal_end */
	int layout;
	int mask;              /* K_MASK_ */
	int64_t mask_stride[4];
	bool empty_nan;        /* what a row that sees nothing gives: NaN, else zeros */
} KAttention;
/* work: of 16-bit gradients only, kwork_attention_grad */
#define K_DECL(T, W, t) \
	void k_attention_##t(T *o, W *lse, const T *q, const T *k, const T *v, const void *mask, \
		const KAttention *a, void *work); \
	void k_attention_grad_##t(T *dq, T *dk, T *dv, const T *dy, const T *q, const T *k, const T *v, \
		const void *mask, const T *o, const W *lse, const KAttention *a, void *work);
K_DECL(float, float, f32)
K_HALVES(K_DECL)
#undef K_DECL

/* x (B,H,T,D) layout 0 or (B,T,H,D) layout 1; cos, sin (T, R/2), or (B, T, R/2) when cos_batched; the first
 * R of D dims rotated.  y may be x. */
typedef struct KRope {
	int64_t b, h, t, d, r;
	int layout;
	bool interleaved, inverse, cos_batched;
} KRope;
#define K_DECL(T, W, t) void k_rope_##t(T *y, const T *x, const T *cos, const T *sin, const KRope *r);
K_DECL(float, float, f32)
K_HALVES(K_DECL)
#undef K_DECL

/* ---- loss, randomness, accuracy ---- */

/* logits (rows, C), labels (rows), weights (C) or NULL, lse (rows).  dlogits may be logits. */
#define K_DECL(T, W, t) \
	void k_cross_entropy_##t(W *sum, W *weight, W *lse, const T *logits, const int64_t *labels, const W *weights, \
		int64_t rows, int64_t c, int64_t ignore_index, double smoothing, void *work /* on CUDA */); \
	void k_cross_entropy_grad_##t(T *dlogits, const W *dloss /* () */, const T *logits, const int64_t *labels, \
		const W *weights, const W *lse, int64_t rows, int64_t c, int64_t ignore_index, double smoothing);
K_DECL(float, float, f32)
K_HALVES(K_DECL)
#undef K_DECL
/* out[0] += rows whose arg max is the label, out[1] += rows whose label is not ignore_index.  type: of logits, f32,
 * bf16 or f16. */
void k_accuracy(double out[2], const void *logits, KDType type, const int64_t *labels, int64_t rows, int64_t c,
	int64_t ignore_index);
/* x (pre, rows, post): rows is the sample axis; (1, 0, n): x has none, its mask is the step's.  y may be x. */
#define K_DECL(T, W, t) void k_dropout_##t(T *y, const T *x, int64_t pre, int64_t rows, int64_t post, double p, \
	uint64_t id, const StepScalars *s);
K_REALS(K_DECL)
#undef K_DECL
void k_dropout_mask(uint8_t *y, int64_t pre, int64_t rows, int64_t post, double p, uint64_t id,
	const StepScalars *s);

/* ---- data movement: `size` = bytes of an element, 1 2 4 8 ---- */

void k_copy(void *y, const void *x, int64_t bytes);
void k_fill(void *y, const void *value /* host's */, int64_t numel, int size);
void k_set(void *y, const void *values /* host's, constant */, int64_t bytes);
void k_transpose(void *y, const void *x, int rank, const int64_t *dim /* of x */, const int64_t *perm,
	int size);
/* stride: of x in elements, per dim of y, 0 where broadcast. */
void k_broadcast(void *y, const void *x, int rank, const int64_t *dim /* of y */, const int64_t *stride,
	int size);
void k_slice(void *y, const void *x, int rank, const int64_t *dim /* of y */, const int64_t *xdim,
	const int64_t *start, const int64_t *step, int size);
void k_slice_grad(void *dx, const void *dy, int rank, const int64_t *dim /* of dy */, const int64_t *xdim,
	const int64_t *start, const int64_t *step, int size);
typedef enum KPadMode { K_PAD_CONSTANT, K_PAD_REFLECT, K_PAD_EDGE, K_PAD_WRAP } KPadMode;
void k_pad(void *y, const void *x, int rank, const int64_t *xdim, const int64_t *before, const int64_t *after,
	KPadMode mode, const void *value, int size);
/* chunk[i]: bytes of operand i per outer index (its dims from the axis on). */
void k_concat(void *y, const void *const *x, int n, int64_t outer, const int64_t *chunk);
void k_split(void *const *y, const void *x, int n, int64_t outer, const int64_t *chunk);
/* ids of id_size bytes (4 or 8).  x (outer, n, inner), ids (n_ids), y (outer, n_ids, inner). */
void k_gather(void *y, const void *x, const void *ids, int64_t outer, int64_t n, int64_t inner, int64_t n_ids,
	int size, int id_size);
void k_gather_elements(void *y, const void *x, const void *ids, int rank, const int64_t *dim /* of ids, y */,
	const int64_t *xdim, int axis, int size, int id_size);
/* x (batch, xdim[0..depth), inner), ids (batch, n, depth), y (batch, n, inner). */
void k_gather_nd(void *y, const void *x, const void *ids, int64_t batch, int64_t n, int depth,
	const int64_t *xdim, int64_t inner, int size, int id_size);

typedef enum KScatter { K_SCATTER_NONE, K_SCATTER_ADD, K_SCATTER_MUL, K_SCATTER_MAX, K_SCATTER_MIN } KScatter;
/* y may be x.  Order of equal targets: position.  Bool tensors use the u8 kernels.
 * gather_grad: dx (outer, n, inner), dy (outer, n_ids, inner); add: dx keeps what it has.
 * cumsum, argmax, topk: (outer, n, inner) along n; y (outer, k, inner) for topk, (outer, inner) for arg. */
#define K_DECL(T, t) \
	void k_scatter_elements_##t(T *y, const T *x, const void *ids, const T *updates, int rank, \
		const int64_t *dim /* of ids, updates */, const int64_t *xdim, int axis, KScatter mode, \
		int id_size); \
	void k_scatter_nd_##t(T *y, const T *x, const void *ids, const T *updates, int64_t n, int depth, \
		const int64_t *xdim, int64_t inner, KScatter mode, int id_size); \
	void k_cumsum_##t(T *y, const T *x, int64_t outer, int64_t n, int64_t inner, bool exclusive, \
		bool reverse); \
	void k_argmax_##t(int64_t *y, const T *x, int64_t outer, int64_t n, int64_t inner, bool last); \
	void k_argmin_##t(int64_t *y, const T *x, int64_t outer, int64_t n, int64_t inner, bool last); \
	void k_topk_##t(T *y, int64_t *idx, const T *x, int64_t outer, int64_t n, int64_t inner, int64_t k, \
		bool largest); \
	void k_iota_##t(T *y, int rank, const int64_t *dim, int axis, double start, double step);
K_NUMBERS(K_DECL)
#undef K_DECL
/* x (dim...), y: x without the dims whose bit is set in axes */
#define K_DECL(T, t) \
	void k_reduce_sum_##t(T *y, const T *x, int rank, const int64_t *dim, unsigned axes, void *work); \
	void k_reduce_mean_##t(T *y, const T *x, int rank, const int64_t *dim, unsigned axes, void *work); \
	void k_reduce_max_##t(T *y, const T *x, int rank, const int64_t *dim, unsigned axes, void *work); \
	void k_reduce_min_##t(T *y, const T *x, int rank, const int64_t *dim, unsigned axes, void *work); \
	void k_reduce_prod_##t(T *y, const T *x, int rank, const int64_t *dim, unsigned axes, void *work);
K_NUMBERS(K_DECL)
K_DECL(uint16_t, bf16)
K_DECL(uint16_t, f16)
#undef K_DECL
#define K_DECL(T, t) \
	void k_gather_grad_##t(T *dx, const T *dy, const void *ids, int64_t outer, int64_t n, int64_t inner, \
		int64_t n_ids, bool add, int id_size, void *work /* of 16-bit ones: kwork_gather_grad */);
K_FLOATS(K_DECL)
K_DECL(uint16_t, bf16)
K_DECL(uint16_t, f16)
#undef K_DECL

/* ---- flat buffers: gradients, shards, states ---- */

/* Zeroes what no segment covers of flat (numel). */
void k_zero_gaps(void *flat, int64_t numel, const Segment *seg, int64_t n_seg, int size);
/* *out = sum of |g|^p over the segments, in f64; p = inf: the largest |g|, NaN if there is one.  Each part also
 * joins by_tensor[seg.tensor], or by_tensor is NULL.  g: f32, bf16 or f16.  work: on CUDA, of kwork_cuda_norm_parts
 * bytes. */
void k_norm(double *out, double *by_tensor, const void *g, KDType g_type, const Segment *seg, int64_t n_seg,
	double p, void *work);
double k_norm_join(double a, double b, double p); /* of two parts */

/* sum += x, of gradients over micro-batches. */
void k_accumulate_f32(float *sum, const float *x, int64_t n);
void k_accumulate_f16(float *sum, const uint16_t *x, int64_t n);
void k_accumulate_bf16(float *sum, const uint16_t *x, int64_t n);

/* Collectives, by all threads; types are f32, bf16 or f16.
 * k_fold: out = (in[0] + in[1] + ...) * scale, each element a left fold in f32, rounded once to out's type; out
 * may be one of in where both types are the same.  k_cast_wide: out = in, rounded; they do not overlap.
 * k_copy_wide: any bytes. */
void k_fold(void *out, KDType out_type, const void *const *in, KDType in_type, int n_in, int64_t n, float scale);
void k_cast_wide(void *out, KDType out_type, const void *in, KDType in_type, int64_t n);
void k_copy_wide(void *out, const void *in, int64_t bytes);

/* out (bf16 or f16) = in, rounded up or down by chance (ew_round_*): element i by the number that base/philox.h has of
 * this key for inner index first + i, row 0 and this step. */
void k_cast_by_chance(void *out, KDType out_type, const float *in, int64_t n, uint64_t key, int64_t first,
	uint64_t step);

/* Elements [first, first + n) of a random tensor with this key (base/philox.h): uniform in (-bound, bound), normal. */
void k_init_uniform_f32(float *out, uint64_t key, int64_t first, int64_t n, float bound);
void k_init_normal_f32(float *out, uint64_t key, int64_t first, int64_t n, float std);

/* First index of a NaN and of an infinity in x (n), f32 f64 f16 bf16; -1: there is none. */
void k_not_finite(int64_t *nan, int64_t *inf, const void *x, int64_t n, KDType t);

/* Optimizers: p, states and g are flat shards (numel), p and states f32, g f32, bf16 or f16; g is read as
 * clamp(g * grad_scale * clip_coef).
 * The rules are PyTorch's: weight decay is added to the gradient (sgd, adam, adagrad) or decoupled
 * (adamw, lion).  Gaps are not touched.  sgd: m may be NULL (no momentum). */
void k_sgd_f32(float *p, float *m, const void *g, KDType g_type, const Segment *seg, int64_t n_seg,
	const Group *group, const StepScalars *s, bool nesterov);
void k_adam_f32(float *p, float *m, float *v, const void *g, KDType g_type, const Segment *seg, int64_t n_seg,
	const Group *group, const StepScalars *s);
void k_adamw_f32(float *p, float *m, float *v, const void *g, KDType g_type, const Segment *seg, int64_t n_seg,
	const Group *group, const StepScalars *s);
void k_adagrad_f32(float *p, float *sum, const void *g, KDType g_type, const Segment *seg, int64_t n_seg,
	const Group *group, const StepScalars *s);
void k_lion_f32(float *p, float *m, const void *g, KDType g_type, const Segment *seg, int64_t n_seg,
	const Group *group, const StepScalars *s);

#ifdef __cplusplus
}
#endif

#endif
