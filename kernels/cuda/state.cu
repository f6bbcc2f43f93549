/* kernels/cuda/state.cu: what a rank's kernels share on CUDA: the stream, reports of bad input, library handles, and
 * the life of primitives.
 *
 * The functions that report failures are those of kernels/cpu/common.c, which CUDA programs link, too.  cuDNN's handle
 * takes device memory and time to make, so it comes with the first convolution or attention, in setup(). */
#include <stdlib.h>

#include "kernels/cuda/prim.cuh"

cudaStream_t k_stream;
KBad *k_bad_report;

static cublasLtHandle_t lt;
static cudnnHandle_t dnn;
static cudaStream_t dnn_stream;
static bool tf32;

void k_bad_take(KBad *bad)
{
	k_at(bad->kind == K_BAD_NONE ? NULL : bad->node);
	if (bad->kind == K_BAD_LABEL)
		k_bad_input("label %lld in row %lld is neither in 0..%lld nor the ignored index %lld", (long long)bad->value,
			(long long)bad->position, (long long)bad->limit - 1, (long long)bad->ignored);
	else if (bad->kind == K_BAD_INDEX)
		k_bad_input("index %lld at position %lld is outside an axis of %lld", (long long)bad->value,
			(long long)bad->position, (long long)bad->limit);
	else if (bad->kind == K_BAD_LENGTH)
		k_bad_input("sequence length %lld of sample %lld is outside 0..%lld", (long long)bad->value,
			(long long)bad->position, (long long)bad->limit);
	else if (bad->kind == K_BAD_OUTSIDE)
		k_bad_input("%s %.10g at position %lld is outside %g..%g", bad->what,
			bad->number != bad->number ? (double)NAN : bad->number, (long long)bad->position,
			bad->low, bad->high);
	bad->kind = K_BAD_NONE;
}

void k_cuda_open(bool use_tf32)
{
	tf32 = use_tf32;
	prim_check_lt(cublasLtCreate(&lt), "create its handle");
}

void k_cuda_close(void)
{
	if (dnn)
		prim_check_dnn(cudnnDestroy(dnn), "destroy its handle");
	if (lt)
		prim_check_lt(cublasLtDestroy(lt), "destroy its handle");
	dnn = NULL;
	dnn_stream = NULL;
	lt = NULL;
}

size_t k_dnn_version(void) { return cudnnGetVersion(); }
cublasLtHandle_t prim_lt(void) { return lt; }
bool prim_tf32(void) { return tf32; }

cudnnHandle_t prim_dnn(void)
{
	if (!dnn)
		prim_check_dnn(cudnnCreate(&dnn), "create its handle");
	if (dnn_stream != k_stream)
		prim_check_dnn(cudnnSetStream(dnn, k_stream), "take a stream");
	dnn_stream = k_stream;
	return dnn;
}

void prim_check_lt(cublasStatus_t status, const char *what)
{
	if (status != CUBLAS_STATUS_SUCCESS)
		k_fail("cuBLAS could not %s: %s", what, cublasLtGetStatusString(status));
}

void prim_check_dnn(cudnnStatus_t status, const char *what)
{
	if (status != CUDNN_STATUS_SUCCESS)
		k_fail("cuDNN could not %s: %s", what, cudnnGetErrorString(status));
}

KPrim *prim_new(void)
{
	KPrim *p = (KPrim *)calloc(1, sizeof(KPrim));
	if (!p)
		k_fail("out of memory for a primitive");
	return p;
}

void prim_new_graph(KPrim *p)
{
	p->graph = (Graph *)calloc(1, sizeof(Graph));
	if (!p->graph)
		k_fail("out of memory for a graph");
	p->graph->handle = prim_dnn();
}

void prim_free_graph(KPrim *p)
{
	graph_free(p->graph);
	free(p->graph);
	p->graph = NULL;
}

void k_prim_free(KPrim *p)
{
	if (!p)
		return;
	if (p->lt.op) {
		cublasLtMatmulDescDestroy(p->lt.op);
		cublasLtMatrixLayoutDestroy(p->lt.a);
		cublasLtMatrixLayoutDestroy(p->lt.b);
		cublasLtMatrixLayoutDestroy(p->lt.y);
	}
	if (p->graph)
		prim_free_graph(p);
	for (KPrim *product : p->product)
		k_prim_free(product);
	free(p);
}

const char *k_prim_impl(const KPrim *p) { return p->impl; }
int64_t k_prim_work(const KPrim *p) { return p->work; }
