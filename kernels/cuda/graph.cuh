/* kernels/cuda/graph.cuh: operation graphs of cuDNN, of its backend API alone: tensors of four or five dims, operations
 * on them, and a plan that runs them all as one or a few kernels.
 *
 * A graph is made op by op.  The first call that the library refuses is remembered, later ones do nothing, and
 * graph_plan says so: a caller tests once.  Tensors that a run is given have a number of the caller's, below
 * GRAPH_OWN; those between operations are virtual, f32 but where it is said, and have numbers of the graph's.
 *
 * Plain host code: tests/cudnn makes graphs for a device that is only described, where there is none. */
#ifndef SHARDC_CUDA_GRAPH_CUH
#define SHARDC_CUDA_GRAPH_CUH

#include <cudnn.h>
#include <stdint.h>

enum { GRAPH_OWN = 100, GRAPH_DESCRIPTORS = 128, GRAPH_OPS = 40 };

struct Dims { int64_t at[5]; int n = 4; };

/* desc is NULL where the graph has failed. */
struct GraphTensor { cudnnBackendDescriptor_t desc; cudnnDataType_t type; Dims dim; };

struct Graph {
	cudnnHandle_t handle;            /* NULL with `device` */
	cudnnBackendDescriptor_t device; /* a description of one; NULL = that of the handle */
	cudnnStatus_t status;            /* the first that was not a success */
	const char *failed;              /* what the library refused then; a constant */
	cudnnBackendDescriptor_t made[GRAPH_DESCRIPTORS], op[GRAPH_OPS];
	int n_made, n_ops;
	int64_t own;                     /* virtual tensors */
	unsigned refused;                /* bits of cudnnBackendNumericalNote_t: engines that have one are not taken */
	cudnnBackendDescriptor_t plan;   /* what graph_plan has found */
	int64_t work, engine;            /* bytes of scratch of a run; the engine's number */
};

/* Strides of elements that follow each other. */
static inline Dims packed(Dims dim)
{
	Dims stride = {{}, dim.n};
	int64_t step = 1;
	for (int i = dim.n - 1; i >= 0; step *= dim.at[i], i--)
		stride.at[i] = step;
	return stride;
}

/* ---- tensors ---- */

/* A tensor of memory at 16 bytes, with strides in elements. */
GraphTensor graph_tensor(Graph *g, int64_t uid, cudnnDataType_t type, Dims dim, Dims stride);
/* One number, whose address on the host a run is given; it is read before the run returns. */
GraphTensor graph_number(Graph *g, int64_t uid, cudnnDataType_t type);
/* What an operation makes for others, with strides, or packed. */
GraphTensor graph_between(Graph *g, cudnnDataType_t type, Dims dim, Dims stride);
GraphTensor graph_virtual(Graph *g, cudnnDataType_t type, Dims dim);

/* ---- operations: each makes a virtual tensor, or `to` where that is given ---- */

/* b and t may be NULL; y has the dims of x.  Computed in `compute`; numbers along dim `axis` where that is >= 0. */
GraphTensor graph_pointwise(Graph *g, cudnnPointwiseMode_t mode, GraphTensor x, const GraphTensor *b,
	const GraphTensor *t, GraphTensor y, cudnnDataType_t compute, int64_t axis);
GraphTensor graph_each(Graph *g, cudnnPointwiseMode_t mode, GraphTensor x);
GraphTensor graph_pair(Graph *g, cudnnPointwiseMode_t mode, GraphTensor x, GraphTensor b);
GraphTensor graph_matmul(Graph *g, GraphTensor a, GraphTensor b, GraphTensor y);
GraphTensor graph_reduce(Graph *g, cudnnReduceTensorOp_t op, GraphTensor x, GraphTensor y);
/* y has x's elements, dims 2 and 3 swapped. */
GraphTensor graph_transpose(Graph *g, GraphTensor x, cudnnDataType_t type, Dims stride);

/* How the window of a convolution moves along each spatial dim, all but the first two dims of its tensors. */
struct GraphWindow { int64_t pad[3], stride[3], dilation[3]; };

/* kind: one of CUDNN_BACKEND_OPERATION_CONVOLUTION_*_DESCRIPTOR, which makes y, x or w of the other two: x (n, c,
 * in...), w (o, c / groups, kernel...), y (n, o, out...), in the order in memory that their strides say.  Summed in
 * `compute`. */
void graph_conv(Graph *g, cudnnBackendDescriptorType_t kind, const GraphWindow &window, cudnnDataType_t compute,
	GraphTensor x, GraphTensor w, GraphTensor y);

/* ---- plans ---- */

/* Takes the first engine that the library proposes that sums in the same order in every run, has no note that is
 * refused, and needs at most work_bytes.  False if there is none, or if the graph has failed. */
bool graph_plan(Graph *g, int64_t work_bytes);
/* Runs the plan on the handle's stream, with n tensors of these numbers at these addresses. */
cudnnStatus_t graph_run(const Graph *g, int n, const int64_t *uid, void *const *at, void *work);
/* Destroys all that was made, the plan among it. */
void graph_free(Graph *g);

#endif
