/* kernels/cuda/prim.cuh: a primitive on CUDA: one product of cublasLt, one convolution of cuDNN, or a kernel of ours.
 *
 * The one idea: everything is chosen at creation, by shapes and the device alone, among what gives the same bits in
 * every run (no sums by atomics); a run sets pointers and launches.  Own kernels serve every dtype and shape, so a
 * library that refuses one costs speed, never an answer. */
#ifndef SHARDC_CUDA_PRIM_CUH
#define SHARDC_CUDA_PRIM_CUH

#include <cublasLt.h>
#include <cudnn.h>

#include "kernels/cuda/common.cuh"

typedef enum ConvKind { CONV_FORWARD, CONV_GRAD_X, CONV_GRAD_W } ConvKind;

/* A product as cublasLt knows it: column-major, so that its A is our b and its B our a. */
struct LtProduct {
	cublasLtMatmulDesc_t op;
	cublasLtMatrixLayout_t a, b, y;
	cublasLtMatmulAlgo_t algo;
	int64_t bytes;         /* of workspace */
	int strided;           /* the batch dim that one launch takes; the host loops over the others */
	bool fused_bias;       /* else the bias is written to y first and the product added */
};

/* A convolution as cuDNN knows it.  Offsets are into work. */
struct DnnConv {
	cudnnTensorDescriptor_t x, y, bias;
	cudnnActivationDescriptor_t identity;
	cudnnFilterDescriptor_t w;
	cudnnConvolutionDescriptor_t conv;
	int algo;              /* cudnnConvolution{Fwd,BwdData,BwdFilter}Algo_t */
	int64_t bytes;         /* of workspace, which begins work */
	bool fused_bias;       /* until the library refuses the shape; else a kernel adds it */
	bool repack;           /* channels last: filters (O, kernel, I) are a copy at w_at */
	bool widen;            /* the 16-bit gradient at w_at becomes f32 */
	bool repad;            /* x with rims of zeros is a copy at x_at */
	int64_t w_at, x_at;
	int64_t before[3], padded[3]; /* of x, by spatial dim: the rim that comes first, the sizes with both rims */
};

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
};

/* ---- state.cu ---- */

KPrim *prim_new(void);
cublasLtHandle_t prim_lt(void);
cudnnHandle_t prim_dnn(void); /* on k_stream */
bool prim_tf32(void);
void prim_check_lt(cublasStatus_t status, const char *what);
void prim_check_dnn(cudnnStatus_t status, const char *what);
static inline bool is_half(KDType t) { return t == K_BF16 || t == K_F16; }
static inline int dtype_bytes(KDType t) { return is_half(t) ? 2 : t == K_F64 || t == K_I64 || t == K_U64 ? 8 : 4; }

/* conv.cu: its descriptors. */
void prim_free_dnn(DnnConv *c);

/* matmul_tiled.cu, conv_plain.cu: any shape and dtype, without work. */
void matmul_tiled(KPrim *p);
void conv_plain(KPrim *p);

#endif
