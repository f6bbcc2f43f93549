/* kernels/cuda/prim.cuh: a primitive on CUDA: one product of cublasLt, one convolution of cuDNN, or a kernel of ours.
 *
 * Everything is chosen at creation, by shapes and the device alone or by --tune's text, among what gives the same bits
 * in every run (no sums by atomics); a run sets pointers and launches.  Our own kernels serve every dtype and shape, so
 * where a library refuses one the program is slower and no less right. */
#ifndef SHARDC_CUDA_PRIM_CUH
#define SHARDC_CUDA_PRIM_CUH

#include <cublasLt.h>
#include <cudnn.h>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/conv_graph.cuh"

/* A product as cublasLt sees it: column-major, so its A is our b and its B our a. */
struct LtProduct {
	cublasLtMatmulDesc_t op;
	cublasLtMatrixLayout_t a, b, y;
	cublasLtMatmulAlgo_t algo;
	int64_t bytes;         /* bytes of workspace */
	int strided;           /* the batch dim that a launch covers; the host loops over the others */
	bool fused_bias;       /* else y is filled with the bias first and the product added */
	const float *a_scale, *b_scale; /* of 8-bit floats, of our a and b; NULL = 1 */
	void *aux;             /* of an epilogue: the operand of gelu, or sums */
};

/* What a convolution on cuDNN has beside its graph.  Offsets are into work, which begins with the graph's scratch. */
struct DnnConv {
	ConvPadding padding;   /* with rims: x is copied with rims of zeros to x_at */
	bool fused_bias;       /* the graph adds it; else a kernel */
	bool repack;           /* channels last: filters are copied as (O, kernel, I) to w_at */
	bool widen;            /* the 16-bit gradient at w_at becomes f32 */
	int64_t w_at, x_at;
};

enum { PRIM_MAX_PRODUCTS = 7 };

typedef void PrimRun(KPrim *p, void *out, const void *a, const void *b, const void *bias, char *work);
struct KPrim {
	PrimRun *run;
	char impl[64];
	int64_t work;
	KMatmulDesc matmul;    /* batch dims merged */
	KConvDesc conv;
	ConvKind kind;
	LtProduct lt;
	DnnConv dnn;
	KLossHeadDesc head;
	KRecurrenceDesc recurrence;
	KAttentionDesc attention;
	Graph *graph;          /* of an attention or a convolution that cuDNN serves, else NULL */
	KPrim *product[PRIM_MAX_PRODUCTS]; /* of a loss head, of a step of a recurrence */
};

/* ---- state.cu ---- */

KPrim *prim_new(void);
void prim_new_graph(KPrim *p); /* empty, for cuDNN's handle */
void prim_free_graph(KPrim *p);
cublasLtHandle_t prim_lt(void);
cudnnHandle_t prim_dnn(void); /* on k_stream */
bool prim_tf32(void);
void prim_check_lt(cublasStatus_t status, const char *what);
void prim_check_dnn(cudnnStatus_t status, const char *what);
static inline bool is_half(KDType t) { return t == K_BF16 || t == K_F16; }
static inline bool is_f8(KDType t) { return t == K_E4M3 || t == K_E5M2; }
static inline int dtype_bytes(KDType t)
{
	if (is_f8(t))
		return 1;
	return is_half(t) ? 2 : t == K_F64 || t == K_I64 || t == K_U64 ? 8 : 4;
}

/* Types of a product's y, b and bias; that of its a is dtype. */
static inline KDType matmul_y(const KMatmulDesc *d) { return is_half(d->dtype) || is_f8(d->dtype) ? d->to : d->dtype; }
static inline KDType matmul_b(const KMatmulDesc *d) { return is_f8(d->dtype) ? d->b_dtype : d->dtype; }
static inline KDType matmul_bias(const KMatmulDesc *d) { return is_f8(d->dtype) ? K_BF16 : d->dtype; }

/* Of matmul.cu, for tune.cu: takes an algorithm; whether one fits p's workspace and gives the same bits in every run;
 * and one launch, which adds to y where the product does. */
void matmul_take(KPrim *p, const cublasLtMatmulHeuristicResult_t *r);
bool matmul_may_take(const KPrim *p, const cublasLtMatmulHeuristicResult_t *r);
cublasStatus_t matmul_launch(KPrim *p, char *y, const char *a, const char *b, const void *bias, void *work);
/* Makes p the product with its epilogue by the library; false where that has none. */
bool matmul_with_epilogue(KPrim *p, const KMatmulDesc *desc);

/* Of tune.cu: whether products are tuned, and p's algorithm of the n that the library proposes, the best first. */
enum { PROPOSALS = 8, TUNE_PROPOSALS = 16 }; /* that the library is asked for */
bool tune_on(void);
void tune_choose(KPrim *p, const cublasLtMatmulHeuristicResult_t *found, int n);

/* Of matmul_tiled.cu and conv_plain.cu: our own kernels, for any shape and dtype, without work: makes p run them, and
 * what runs them for p. */
void matmul_tiled(KPrim *p);
PrimRun *conv_plain_run(const KPrim *p);

#endif
