/* kernels/kernels.h: every kernel that an emitted program or the runtime may call.
 *
 * Parameters come in this order: results, operands, sizes, attributes, work.  Tensors are row-major unless a comment
 * says otherwise, and comments give their shapes as (d0, d1, ...).  A kernel allocates nothing, keeps no state, and
 * gives the same bits for any number of threads (the sums that oneDNN makes are an exception: kernels/cpu/prim.h).  A
 * result may overlap an operand only where a comment says "may be".
 *
 * Every function exists twice.  kernels/cpu computes before it returns.  kernels/cuda launches on the stream of
 * kernels/cuda/cuda.h: there tensors, StepScalars, segments, groups and results are in device memory, while
 * descriptors, lists of sizes and lists of pointers are in host memory and are read before the call returns.
 *
 * This header depends on .def files of base/ and kernels/ alone, so that CUDA programs can include it, too. */
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

/* X-macro lists of (C type, suffix), expanded by prototypes and by implementations. */
#define K_FLOATS(X) X(float, f32) X(double, f64)
#define K_INTS(X) X(int64_t, i64) X(int32_t, i32) X(int16_t, i16) X(int8_t, i8) \
	X(uint64_t, u64) X(uint32_t, u32) X(uint16_t, u16) X(uint8_t, u8)
#define K_NUMBERS(X) K_FLOATS(X) K_INTS(X)
/* The same with bf16 and f16, which are stored as raw bits and computed in f32: (C type, type of statistics,
 * suffix). */
#define K_HALVES(X) X(uint16_t, float, bf16) X(uint16_t, float, f16)
#define K_REALS(X) X(float, float, f32) X(double, double, f64) K_HALVES(X)

/* ---- what a step tells its kernels ---- */

/* The runtime writes these before the kernels of a step read them.  On CUDA they are in device memory. */
typedef struct StepScalars {
	float lr;           /* of this step, as the learning-rate schedule gives it */
	float grad_scale;   /* (n*W/C with --loss-norm=global, 1/A with =rank) / loss scale: runtime/scalars.h */
	float clip_coef;    /* min(1, clip / norm); 1 without clipping */
	float clip_value;   /* gradients are clamped to +- this value; 0 = they are not */
	int32_t skip;       /* 1: updates change neither parameters nor states */
	float loss_scale;   /* factor of the gradient that backward begins with; 1 = no scaling */
	int64_t step;       /* 1, 2, ...: updates done, including this one; for bias corrections */
	uint64_t seed;      /* --seed */
	uint64_t rng_step;  /* steps begun so far: the third part of the Philox counter */
	int64_t sample0;    /* global number of the micro-batch's first sample row on this rank */
	int64_t own;        /* 0, or how many of the rows are samples of their own: those behind copy the first row, its
	                     * random numbers as well */
} StepScalars;

/* The part of one parameter that lies in a shard.  Segments are sorted by begin; elements that no segment covers are
 * gaps. */
typedef struct Segment {
	int64_t begin, length; /* elements, from the shard's start */
	int32_t group;         /* index of a Group */
	int32_t tensor;        /* index of the parameter in its unit */
	int64_t began;         /* updates done before its states began; its bias corrections count from there */
} Segment;

/* Hyper-parameters of a parameter group. */
typedef struct Group {
	float lr_scale, weight_decay;
	float beta1, beta2;    /* sgd: beta1 = momentum */
	float eps;
} Group;

/* ---- failures ---- */

/* Reports bad input data (a label or an index out of range).  Any thread may call it and it must return: the kernel
 * goes on with a harmless value.  The runtime sets it to rt_bad_input; by default it prints and aborts. */
extern void (*k_bad_input)(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Of what node the kernels that are called next report bad input; NULL: of none.  Reports name it. */
extern const char *k_node;
void k_at(const char *node);
/* Reports that a kernel cannot do its work (out of memory, a library failed, a case that it does not serve).  Must not
 * return. */
extern void (*k_fail)(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- primitives: created once in setup(), run in every step ---- */

/* Primitives that are created while this is set give the same bits for any number of threads, like all other kernels
 * do, and may be slower.  CPUs only. */
extern bool k_threads_exact;

typedef struct KPrim KPrim;
typedef enum KEpilogue {
	K_NO_EPILOGUE,
#define EPILOGUE(id, ...) K_##id,
#include "base/epilogues.def"
} KEpilogue;
void k_prim_free(KPrim *p);
const char *k_prim_impl(const KPrim *p);       /* "brgemm:avx512_core", "own:plain", ... for -v */
int64_t k_prim_work(const KPrim *p);           /* bytes of work that a run touches */

/* y (batch..., M, N) = op(a) op(b) + bias (N), or y += op(a) op(b) in f32.  op transposes where ta or tb is set: a is
 * (batch..., M, K) or (batch..., K, M), b is (batch..., K, N) or (batch..., N, K).  sa and sb are the elements between
 * the matrices of a batch dim, 0 where that operand is broadcast. */
typedef struct KMatmulDesc {
	KDType dtype;          /* of operands and bias: f32 f64 bf16 f16 i64 i32 u64 u32 */
	KDType to;             /* of y: dtype; of 16-bit operands dtype or f32, rounded once from f32 sums */
	int64_t m, n, k;
	bool ta, tb, bias;
	bool add;              /* add the product, not rounded before, to y, which is f32; not with bias */
	int n_batch;           /* batch dims, 0..6 */
	int64_t batch[6], sa[6], sb[6];
	int64_t lda, ldb, ldy; /* elements from row to row of a, b and y as they lie; 0 = rows follow each other.  What is
	                        * between rows is neither read nor written. */
	int64_t work_bytes;    /* bytes a run may use; implementations that need more are not chosen */
	KDType b_dtype;        /* of b, where dtype is one of 8-bit floats */
	int64_t apart;         /* operands and y lie multiples of this many bytes behind a tensor; 0 = they are tensors */
	KEpilogue epilogue;    /* of k_matmul_epilogue_create; else none */
} KMatmulDesc;
/* The same description, with lda, ldb and ldy. */
static inline KMatmulDesc k_matmul_rows(KMatmulDesc d)
{
	d.lda = d.lda ? d.lda : d.ta ? d.m : d.k;
	d.ldb = d.ldb ? d.ldb : d.tb ? d.k : d.n;
	d.ldy = d.ldy ? d.ldy : d.n;
	return d;
}
/* The products of 8-bit floats: dtype and b_dtype are e4m3 and e5m2, not both e5m2; to is bf16 or f32; bias is bf16;
 * a is (m, k), b (n, k) with tb = true; there is no batch, and n and k are multiples of 16. */
KPrim *k_matmul_f8_create(const KMatmulDesc *d);
/* y = (a b^T) * a_scale[0] * b_scale[0] + bias, or y += that.  a, b and y begin at multiples of 16 bytes. */
void k_matmul_f8_run(KPrim *p, void *y, const void *a, const void *b, const float *a_scale, const float *b_scale,
	const void *bias, void *work);
/* scale[0]: of n elements, for 8-bit floats of type `to` (f8_scale of kernels/f8.h).  work: kwork_cuda_f8_scale; on
 * CPUs none. */
void k_f8_scale_bf16(float *scale, const uint16_t *x, KDType to, int64_t n, void *work);
/* most[0]: the larger of it and of |x|, of n elements; NaN is the largest, and most[0] is not negative. */
void k_f8_largest_f32(float *most, const float *x, int64_t n);
/* y (k, m): x (m, k), turned. */
void k_turn_f8(uint8_t *y, const uint8_t *x, int64_t m, int64_t k);
/* rows (m, k), columns (k, m), either may be NULL: x (m, k) times 1 / scale[0] as 8-bit floats of type `to`. */
void k_to_f8_bf16(uint8_t *rows, uint8_t *columns, const uint16_t *x, const float *scale, KDType to, int64_t m,
	int64_t k);
KPrim *k_matmul_create(const KMatmulDesc *d);
void k_matmul_run(KPrim *p, void *y, const void *a, const void *b, const void *bias, void *work);
/* Products with an epilogue: dtype is bf16 or f16, to f32 of sums and else dtype; there is no batch; y and the operand
 * that is summed have no pitch. */
KPrim *k_matmul_epilogue_create(const KMatmulDesc *d);
/* gelu: x = op(a) op(b) + bias goes to aux, gelu(x) to y; gelu_grad: y = op(a) op(b) * gelu'(x), where aux is x; sums:
 * y = op(a) op(b), or y += that, and the f32 sums of the columns of a or b go to aux.  x has y's shape and dtype.  The
 * product is rounded once behind the epilogue, or before and behind it: what the implementation does. */
void k_matmul_epilogue_run(KPrim *p, void *y, void *aux, const void *a, const void *b, const void *bias, void *work);

/* Convolutions.  layout 0: x (N, C, in...), y (N, O, out...); layout 1: x (N, in..., C), y (N, out..., O).  w is (O,
 * C/group, kernel...), row-major where w_layout is NULL, else packed in the layout of that name (kernels/layouts.h).
 * The arrays of spatial dims have `rank` entries. */
typedef struct KConvDesc {
	KDType dtype;          /* f32 f64 bf16 f16 */
	KDType to;             /* of the weight gradient of 16-bit operands: dtype or f32 */
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

/* Packs row-major weights.  dst has klayout_numel elements in the named layout; src is (O, I, K) with I = C/group and
 * K = the product of the kernel's dims. */
void k_pack_f32(float *dst, const float *src, const char *layout, int64_t o, int64_t i, int64_t k,
	int64_t group);

/* ---- pooling ---- */

typedef struct KPool {
	int rank;              /* 1..3 spatial dims */
	int64_t n, c;
	int64_t in[3], out[3], kernel[3], stride[3], dilation[3], pad[3], pad_end[3];
	int64_t extra[3];      /* what ceil mode adds to the end; an average never counts it */
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

/* ---- sampling at points and in boxes, determinants (grid_sample, roi_pool and det of ir/ops.def) ---- */

enum { K_NEAREST, K_LINEAR, K_CUBIC };
enum { K_OUTSIDE_ZEROS, K_OUTSIDE_BORDER, K_OUTSIDE_REFLECTION };
enum { K_COORDS_PIXELS, K_COORDS_CENTRES, K_COORDS_EDGES };
/* x (n, c, in...), grid (n, points, rank), y (n, c, points).  A gradient adds points in their order. */
typedef struct KSample {
	int rank;              /* 1..3 */
	int64_t n, c, points, in[3];
	int mode, outside, coords;
} KSample;
enum { K_ROI_AVG, K_ROI_MAX, K_ROI_PIXELS };
/* x (n, c, h, w), rois (rois, 4), ids (rois), y (rois, c, ph, pw).  A gradient adds boxes in their order. */
typedef struct KRoi {
	int64_t n, c, h, w, rois, ph, pw;
	int64_t ratio;         /* points a bin and dim; 0 = one for each pixel of the bin */
	double scale;
	bool half_pixel;
	int mode;
} KRoi;
enum { K_DET_MAX = 32 };
#define K_DECL(T, t) \
	void k_grid_sample_##t(T *y, const T *x, const T *grid, const KSample *s); \
	void k_grid_sample_grad_x_##t(T *dx, const T *dy, const T *grid, const KSample *s, void *work /* on CUDA */); \
	void k_grid_sample_grad_grid_##t(T *dgrid, const T *dy, const T *x, const T *grid, const KSample *s); \
	void k_roi_pool_##t(T *y, const T *x, const T *rois, const int64_t *ids, const KRoi *r); \
	void k_roi_pool_grad_##t(T *dx, const T *dy, const T *x, const T *rois, const int64_t *ids, const KRoi *r, \
		void *work /* on CUDA */); \
	void k_det_##t(T *y /* (count) */, const T *x /* (count, n, n) */, int64_t count, int64_t n, \
		void *work /* on CUDA */); \
	void k_det_grad_##t(T *dx, const T *dy, const T *x, int64_t count, int64_t n, void *work /* on CUDA */);
K_FLOATS(K_DECL)
#undef K_DECL

/* ---- normalisation ---- */

/* Batch norm: x is (n, c, s) in layout 0 and (n, s, c) in layout 1, statistics are (c).
 *
 * Layer and RMS norm: x, dy (rows, cols); mean, rstd (rows); w, b (cols), each may be NULL.  r (rows, cols) or NULL:
 * with r, what is normalised is s = x + r, rounded; y and s may each be x or r.  dx, dw and db may each be NULL, dx
 * may be dy.  ds (rows, cols) or NULL: with ds, dx is rounded and ds is added to it.
 */
#define K_DECL(T, W, t) \
	void k_bn_stats_##t(W *mean, W *var, const T *x, int64_t n, int64_t c, int64_t s, int layout, \
		void *work); \
	void k_bn_grad_stats_##t(W *sum_dy, W *sum_dy_xhat, const T *dy, const T *x, const W *mean, \
		const W *var, int64_t n, int64_t c, int64_t s, int layout, double eps, void *work); \
	void k_layer_norm_##t(T *y, W *mean, W *rstd, T *s, const T *x, const T *w, const T *b, const T *r, \
		int64_t rows, int64_t cols, double eps); \
	void k_layer_norm_grad_##t(T *dx, T *dw, T *db, const T *dy, const T *x, const T *w, const W *mean, \
		const W *rstd, const T *ds, int64_t rows, int64_t cols, void *work); \
	void k_rms_norm_##t(T *y, W *rstd, T *s, const T *x, const T *w, const T *r, int64_t rows, int64_t cols, \
		double eps); \
	void k_rms_norm_grad_##t(T *dx, T *dw, const T *dy, const T *x, const T *w, const W *rstd, const T *ds, \
		int64_t rows, int64_t cols, void *work);
K_REALS(K_DECL)
#undef K_DECL
/* The same gradients with dw and db in f32, which are never rounded to 16 bits. */
#define K_DECL(T, W, t) \
	void k_layer_norm_grad_##t##_f32(T *dx, W *dw, W *db, const T *dy, const T *x, const T *w, const W *mean, \
		const W *rstd, const T *ds, int64_t rows, int64_t cols, void *work); \
	void k_rms_norm_grad_##t##_f32(T *dx, W *dw, const T *dy, const T *x, const T *w, const W *rstd, const T *ds, \
		int64_t rows, int64_t cols, void *work);
K_HALVES(K_DECL)
#undef K_DECL

/* ---- attention ---- */

enum { K_MASK_NONE, K_MASK_BOOL, K_MASK_FLOAT /* f32 */, K_MASK_HALF /* of q's 16-bit type */ };
enum { K_LSE_COARSE = 1024 }; /* a log-sum-exp in f32 misses 6e-5 from here on */
/* layout 0: q (B,H,T,D) k (B,Hk,S,D) v (B,Hk,S,Dv) o (B,H,T,Dv);
 * layout 1: q (B,T,H,D) k (B,S,Hk,D) v (B,S,Hk,Dv) o (B,T,H,Dv).
 * lse (B,H,T) is the log-sum-exp of the scaled, capped, masked scores, -inf for a row that sees no key.  Beyond
 * +-K_LSE_COARSE, as where a finite mask hides every key, rounding has lost part of what the number of keys adds to it;
 * gradients take the sums of such rows anew.  Element
 * (b,h,t,s) of the mask stands at mask + b*mask_stride[0] + h*mask_stride[1] + t*mask_stride[2] + s*mask_stride[3], in
 * elements.
 * The weights pass through dropout as k_dropout's x (pre, rows, post) with post = B*H*T*S / (pre*rows): a head's T*S
 * weights lie in one row. */
typedef struct KAttention {
	int64_t b, h, hk, t, s, d, dv;
	float scale, softcap;  /* softcap 0 = none */
	bool has_left;
	int64_t left;          /* row t sees keys from t - left on, if has_left */
	bool has_right;
	int64_t right;         /* row t sees keys up to t + right, if has_right */
	int layout;
	int mask;              /* K_MASK_ */
	int64_t mask_stride[4];
	bool ids32;            /* document ids are int32_t, else int64_t */
	int64_t id_stride;     /* between samples, in elements; 0 = all have the same documents */
	bool empty_nan;        /* a row that sees no key gives NaN, else zeros */
	double p;              /* share of the weights that dropout drops; 0 = none */
	int64_t pre, rows;     /* of dropout; rows 0 = no samples */
	int64_t q_pitch, k_pitch, v_pitch;    /* of q, k and v, in layout 1 alone: see below */
	int64_t dq_pitch, dk_pitch, dv_pitch; /* of their gradients */
} KAttention;
/* q, k, v and their gradients may be columns of wider rows: the pitch is the number of elements from the row of a token
 * (of all its heads) to that of the next one, 0 where nothing lies between them.  Pointers are to the first column;
 * they need no alignment but an element's.  A sample begins as many rows after the one before as it has.  Columns
 * beside are neither read nor written.
 * ids (B,S) or (1,S), or NULL: the documents; S = T then, and row t sees keys of its document alone.  id and s: of the
 * dropout, not read if p = 0.
 * work: only gradients of 16-bit tensors need it on the CPU (kwork_attention_grad), all gradients on CUDA
 * (kwork_cuda_attention_grad). */
#define K_DECL(T, W, t) \
	void k_attention_##t(T *o, W *lse, const T *q, const T *k, const T *v, const void *mask, const void *ids, \
		const KAttention *a, uint64_t id, const StepScalars *s, void *work); \
	void k_attention_grad_##t(T *dq, T *dk, T *dv, const T *dy, const T *q, const T *k, const T *v, \
		const void *mask, const void *ids, const T *o, const W *lse, const KAttention *a, uint64_t id, \
		const StepScalars *s, void *work);
K_DECL(float, float, f32)
K_HALVES(K_DECL)
#undef K_DECL

/* On CUDA alone: an attention that a library may serve, 16-bit, without documents, soft cap and dropout, whose band
 * shows each row a key (pass `attend`); mask is NULL where the descriptor has none.  Where the library does not take
 * it, and in heads with rows of which a mask hides every key, k_attention_* above computes the same: lse is the same
 * number either way, so an attention and its gradient may be of different kernels.  Bits of equal descriptors are equal
 * in every run. */
typedef struct KAttentionDesc {
	KDType dtype;          /* bf16 f16 */
	KAttention a;
	bool stats;            /* of k_attention_run: lse is wanted */
	int64_t work_bytes;
} KAttentionDesc;
KPrim *k_attention_create(const KAttentionDesc *d);
KPrim *k_attention_grad_create(const KAttentionDesc *d);
void k_attention_run(KPrim *p, void *o, float *lse, const void *q, const void *k, const void *v, const void *mask,
	void *work);
void k_attention_grad_run(KPrim *p, void *dq, void *dk, void *dv, const void *dy, const void *q, const void *k,
	const void *v, const void *mask, const void *o, const float *lse, void *work);

/* x (B,H,T,D) in layout 0, (B,T,H,D) in layout 1; cos, sin (T, R/2), or (B, T, R/2) with cos_batched.  The first R of
 * the D dims are rotated.  y may be x. */
typedef struct KRope {
	int64_t b, h, t, d, r;
	int layout;
	bool interleaved, inverse, cos_batched;
	int64_t pitch;         /* of x and y, as of attention's tensors; the rest of a row stays as it is */
} KRope;
#define K_DECL(T, W, t) void k_rope_##t(T *y, const T *x, const T *cos, const T *sin, const KRope *r);
K_DECL(float, float, f32)
K_HALVES(K_DECL)
#undef K_DECL

/* ---- recurrence ---- */

typedef enum KCell { K_CELL_RNN, K_CELL_GRU, K_CELL_LSTM } KCell;
typedef enum KActivation {
#define ACTIVATION(id, ...) K_ACT_##id,
#include "base/activations.def"
	K_ACTIVATIONS
} KActivation;

/* One direction of a recurrent layer, as op recurrence of ir/ops.def: T steps of B samples with H states, G gates. */
typedef struct KRecurrenceDesc {
	KDType dtype;          /* of all tensors but gates and all_c: f32 f64 bf16 f16; those are f32 of 16-bit ones */
	KCell cell;            /* G is 1, 3 or 4 */
	int64_t t, b, h;
	bool reverse, after, couple;
	bool ids32;            /* lengths are int32_t, else int64_t */
	double clip;           /* of what activations of gates are given; 0 = none */
	KActivation act[3];
	double alpha[3], beta[3];
	int64_t work_bytes;
} KRecurrenceDesc;
KPrim *k_recurrence_create(const KRecurrenceDesc *d);
KPrim *k_recurrence_grad_create(const KRecurrenceDesc *d);
/* y, all_c (T,B,H), h, c (B,H), gates (T,B,G*H or, with after, 4*H): all results but y may be NULL.  x (T,B,G*H),
 * r (G*H,H), h0, c0 (B,H), lengths (B), bias, peep (3*H): all operands but x and r may be NULL.  A length out of 0 to T
 * is bad input and read as T. */
void k_recurrence_run(KPrim *p, void *y, void *h, void *gates, void *c, void *all_c, const void *x, const void *r,
	const void *h0, const void *c0, const void *lengths, const void *bias, const void *peep, void *work);
/* dx (T,B,G*H), before (T,B,H), dh0, dc0 (B,H), dpeep (3*H), product (T,B,3*H with after, else T,B,H): all may be NULL.
 * dy (T,B,H), dh, dc (B,H) and what may be NULL there may be NULL. */
void k_recurrence_grad_run(KPrim *p, void *dx, void *before, void *dh0, void *dc0, void *dpeep, void *product,
	const void *r, const void *y, const void *gates, const void *dy, const void *dh, const void *dc, const void *all_c,
	const void *h0, const void *c0, const void *lengths, const void *peep, void *work);

/* ---- loss, randomness, accuracy ---- */

/* logits (rows, C), labels (rows), weights (C) or NULL, lse (rows).  *sum and *weight are the sums over rows of the
 * losses and of the labels' weights, both without ignored rows.  lse: the rows' log-sum-exps, by which gradients know
 * the softmax of a row; from +-K_LSE_COARSE on they read the row a second time instead.  dlogits may be logits.  pitch:
 * elements from row to row of logits and of dlogits, at least C; what is between is neither read nor written. */
#define K_DECL(T, W, t) \
	void k_cross_entropy_##t(W *sum, W *weight, W *lse, const T *logits, const int64_t *labels, const W *weights, \
		int64_t rows, int64_t c, int64_t pitch, int64_t ignore_index, double smoothing, void *work /* on CUDA */); \
	void k_cross_entropy_grad_##t(T *dlogits, const W *dloss /* () */, const T *logits, const int64_t *labels, \
		const W *weights, const W *lse, int64_t rows, int64_t c, int64_t pitch, int64_t ignore_index, \
		double smoothing);
K_DECL(float, float, f32)
K_HALVES(K_DECL)
#undef K_DECL
/* The loss head by blocks of rows: cross-entropy of logits = h (rows, D) op(w) + bias (C), and its gradients, where w
 * is (C, D) with tb, else (D, C).  All blocks have `block` rows but the last one, which has the rest.  One block of
 * logits lies in work (kwork_loss_blocks), becomes its own gradient there and is multiplied at once; dw and db are sums
 * over blocks in f32. */
typedef struct KLossHeadDesc {
	KDType dtype;          /* of h, w, bias and dh: f32, bf16 or f16 */
	KDType to;             /* of the logits of 16-bit operands: dtype or f32 */
	int64_t rows, block, c, d;
	bool tb, bias;
	bool dh, dw, db;       /* which gradients are wanted */
	bool add;              /* dw is added to what is there */
	int64_t ignore_index;
	double smoothing;
	int64_t work_bytes;    /* of all of work */
} KLossHeadDesc;
KPrim *k_linear_cross_entropy_create(const KLossHeadDesc *d);
/* *sum, *weight, labels (rows) and weights (C) or NULL: as of k_cross_entropy.  best (rows) or NULL: the first class
 * with the largest logit.  dloss () is NULL where no gradient is wanted, and so are dh (rows, D), dw (as w) and
 * db (C). */
void k_linear_cross_entropy_run(KPrim *p, float *sum, float *weight, int64_t *best, void *dh, float *dw, float *db,
	const float *dloss, const void *h, const void *w, const int64_t *labels, const float *weights, const void *bias,
	void *work);

/* Adds to out[0] the rows whose arg max is the label, and to out[1] the rows whose label is not ignore_index.  type is
 * that of logits: f32, bf16 or f16; i64: they are (rows), the arg max itself, and c is 1. */
void k_accuracy(double out[2], const void *logits, KDType type, const int64_t *labels, int64_t rows, int64_t c,
	int64_t ignore_index);
/* x (pre, rows, post), where rows is the sample axis; (1, 0, n) is an x without samples, which has one mask on all
 * ranks and in all micro-batches of the step.  y may be x. */
#define K_DECL(T, W, t) void k_dropout_##t(T *y, const T *x, int64_t pre, int64_t rows, int64_t post, double p, \
	uint64_t id, const StepScalars *s);
K_REALS(K_DECL)
#undef K_DECL
void k_dropout_mask(uint8_t *y, int64_t pre, int64_t rows, int64_t post, double p, uint64_t id,
	const StepScalars *s);

/* Fills y (pre, rows, post) with numbers of the kind, rows as k_dropout's.  uniform: [0, 1), never 1; normal: mean 0,
 * deviation 1, up to 6.76 deviations (kernels/random.h); bernoulli: lo with probability p, else hi. */
typedef enum KDraw { K_DRAW_UNIFORM, K_DRAW_NORMAL, K_DRAW_BERNOULLI } KDraw;
#define K_DECL(T, W, t) void k_draw_##t(T *y, int64_t pre, int64_t rows, int64_t post, KDraw kind, double p, \
	double lo, double hi, uint64_t id, const StepScalars *s);
K_REALS(K_DECL)
#undef K_DECL

/* ---- data movement: `size` = bytes of an element, 1 2 4 8 ---- */

void k_copy(void *y, const void *x, int64_t bytes);
void k_fill(void *y, const void *value /* host's */, int64_t numel, int size);
void k_set(void *y, const void *values /* host's, constant */, int64_t bytes);
void k_transpose(void *y, const void *x, int rank, const int64_t *dim /* of x */, const int64_t *perm,
	int size);
/* stride: of x, in elements, for each dim of y; 0 where x is broadcast. */
void k_broadcast(void *y, const void *x, int rank, const int64_t *dim /* of y */, const int64_t *stride,
	int size);
void k_slice(void *y, const void *x, int rank, const int64_t *dim /* of y */, const int64_t *xdim,
	const int64_t *start, const int64_t *step, int size);
void k_slice_grad(void *dx, const void *dy, int rank, const int64_t *dim /* of dy */, const int64_t *xdim,
	const int64_t *start, const int64_t *step, int size);
typedef enum KPadMode { K_PAD_CONSTANT, K_PAD_REFLECT, K_PAD_EDGE, K_PAD_WRAP } KPadMode;
void k_pad(void *y, const void *x, int rank, const int64_t *xdim, const int64_t *before, const int64_t *after,
	KPadMode mode, const void *value, int size);
/* chunk[i]: bytes of operand i for each outer index, that is of its dims from the axis on. */
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
/* y may be x.  Updates of one target are applied in the order of their positions.  Bool tensors use the u8 kernels.
 * gather_grad: dx (outer, n, inner), dy (outer, n_ids, inner); with add, dy is added to what dx holds. */
#define K_DECL(T, t) \
	void k_scatter_elements_##t(T *y, const T *x, const void *ids, const T *updates, int rank, \
		const int64_t *dim /* of ids, updates */, const int64_t *xdim, int axis, KScatter mode, \
		int id_size); \
	void k_scatter_nd_##t(T *y, const T *x, const void *ids, const T *updates, int64_t n, int depth, \
		const int64_t *xdim, int64_t inner, KScatter mode, int id_size); \
	void k_iota_##t(T *y, int rank, const int64_t *dim, int axis, double start, double step); \
	/* y = x where low <= x <= high; another x is bad input, which `what` names, and gives low.  y may be x. */ \
	void k_in_range_##t(T *y, const T *x, int64_t n, double low, double high, const char *what);
K_NUMBERS(K_DECL)
#undef K_DECL
#define K_DECL(T, t) \
	void k_gather_grad_##t(T *dx, const T *dy, const void *ids, int64_t outer, int64_t n, int64_t inner, \
		int64_t n_ids, bool add, int id_size, void *work /* of 16-bit ones: kwork_gather_grad */);
K_FLOATS(K_DECL)
K_DECL(uint16_t, bf16)
K_DECL(uint16_t, f16)
#undef K_DECL

/* ---- kernels whose arguments are in kernels.def ----
 *
 * Softmax, log-softmax and what runs along an axis: tensors are (outer, n, inner), along n; y of topk is (outer, k,
 * inner), idx of argmax and argmin (outer, inner).  y of softmax and log-softmax may be x, dx may be dy or y.
 * Reductions: x (dim...); y has the dims of x without those whose bit is set in axes. */
#define Y_X(T) T *y, const T *x
#define IDX_X(T) int64_t *idx, const T *x
#define Y_IDX_X(T) T *y, int64_t *idx, const T *x
#define DX_DY_Y(T) T *dx, const T *dy, const T *y
#define ALONG int64_t outer, int64_t n, int64_t inner
#define SHAPE int rank, const int64_t *dim
#define AXES unsigned axes
#define FLAG(attr) bool attr
#define COUNT(attr) int64_t attr
#define WORK void *work
#define K_CALL(T, t, op, tensors, ...) void k_##op##_##t(tensors(T), __VA_ARGS__);
#define K_CALL_FLOATS(...) K_CALL(float, f32, __VA_ARGS__) K_CALL(double, f64, __VA_ARGS__)
#define K_CALL_HALVES(...) K_CALL_FLOATS(__VA_ARGS__) K_CALL(uint16_t, bf16, __VA_ARGS__) \
	K_CALL(uint16_t, f16, __VA_ARGS__)
#define K_CALL_INTS(...) K_CALL(int64_t, i64, __VA_ARGS__) K_CALL(int32_t, i32, __VA_ARGS__) \
	K_CALL(int16_t, i16, __VA_ARGS__) K_CALL(int8_t, i8, __VA_ARGS__) K_CALL(uint64_t, u64, __VA_ARGS__) \
	K_CALL(uint32_t, u32, __VA_ARGS__) K_CALL(uint16_t, u16, __VA_ARGS__) K_CALL(uint8_t, u8, __VA_ARGS__)
#define K_CALL_NUMBERS(...) K_CALL_FLOATS(__VA_ARGS__) K_CALL_INTS(__VA_ARGS__)
#define K_CALL_ALL(...) K_CALL_HALVES(__VA_ARGS__) K_CALL_INTS(__VA_ARGS__)
#define CALL(op, types, work, cuda, ...) K_CALL_##types(op, __VA_ARGS__)
#include "kernels/kernels.def"
/* Sums of 16-bit elements that stay f32. */
#define K_DECL(T, W, t) void k_reduce_sum_##t##_f32(W *y, const T *x, SHAPE, AXES, WORK);
K_HALVES(K_DECL)
#undef K_DECL
#undef Y_X
#undef IDX_X
#undef Y_IDX_X
#undef DX_DY_Y
#undef ALONG
#undef SHAPE
#undef AXES
#undef FLAG
#undef COUNT
#undef WORK

/* ---- flat buffers: gradients, shards, states ---- */

/* Sets the gaps of flat (numel elements of `size` bytes) to zero. */
void k_zero_gaps(void *flat, int64_t numel, const Segment *seg, int64_t n_seg, int size);
/* Joins to *norm, which is 0 in front of the first part, the sum of |g|^p over the segments, in f64; for p = inf the
 * largest |g|, or NaN if there is a NaN.  g is f32, bf16 or f16.  work: on CUDA kwork_cuda_norm_parts bytes. */
void k_norm(double *norm, const void *g, KDType g_type, const Segment *seg, int64_t n_seg, double p, void *work);
double k_norm_join(double a, double b, double p); /* the norm's sum or maximum of two parts */

/* sum += x; adds the gradients of micro-batches. */
void k_accumulate_f32(float *sum, const float *x, int64_t n);
void k_accumulate_f16(float *sum, const uint16_t *x, int64_t n);
void k_accumulate_bf16(float *sum, const uint16_t *x, int64_t n);

/* What collectives compute, with all threads; types are f32, bf16 or f16.
 * k_fold: out = (in[0] + in[1] + ...) * scale.  Each element is summed from left to right in f32 and rounded once to
 * out's type; out may be one of in where both types are the same.
 * k_cast_wide: out = in, rounded; they do not overlap.
 * k_cast_f8_wide: out = in, rounded to bf16, times 1 / scale[0], as e4m3.
 * k_copy_wide: out = in, any bytes. */
void k_fold(void *out, KDType out_type, const void *const *in, KDType in_type, int n_in, int64_t n, float scale);
void k_cast_wide(void *out, KDType out_type, const void *in, KDType in_type, int64_t n);
void k_cast_f8_wide(uint8_t *out, const float *in, const float *scale, int64_t n);
void k_copy_wide(void *out, const void *in, int64_t bytes);

/* out (bf16 or f16) = in, rounded up or down by chance (ew_round_* of kernels/ew.h).  The random number of element i
 * is the one that base/philox.h gives for this key, inner index first + i, row 0 and this step. */
void k_cast_by_chance(void *out, KDType out_type, const float *in, int64_t n, uint64_t key, int64_t first,
	uint64_t step);

/* Elements [first, first + n) of the random tensor of this key (base/philox.h): uniform in (-bound, bound), or
 * normal. */
void k_init_uniform_f32(float *out, uint64_t key, int64_t first, int64_t n, float bound);
void k_init_normal_f32(float *out, uint64_t key, int64_t first, int64_t n, float std);

/* The indices of the first NaN and of the first infinity in x (n) of f32, f64, f16 or bf16; -1 where there is none. */
void k_not_finite(int64_t *nan, int64_t *inf, const void *x, int64_t n, KDType t);

/* What an optimizer updates: flat shards of parameters, states (f32) and gradients (f32, bf16 or f16), of which the
 * segments; g is read as clamp(g * grad_scale * clip_coef).  Gaps are not touched. */
typedef struct KUpdate {
	float *p, *state[2];   /* NULL where the optimizer has no such state */
	const void *g;
	KDType g_type;
	const Segment *segment;
	int64_t n_segments;
	const Group *group;
	const StepScalars *s;
	bool nesterov;         /* of momentum */
} KUpdate;

/* The rules are PyTorch's: weight decay is added to the gradient, or decoupled (adamw, lion). */
#define OPTIMIZER(kernel, ...) void k_##kernel##_f32(const KUpdate *u);
#include "base/optimizers.def"

#ifdef __cplusplus
}
#endif

#endif
