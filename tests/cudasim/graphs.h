/* tests/cudasim/graphs.h: operation graphs of the emulated cuDNN, between what a program has set (graphs.cpp) and what
 * is computed of it (graph_run.cpp). */
#ifndef CUDASIM_GRAPHS_H
#define CUDASIM_GRAPHS_H

#include "tests/cudasim/dnn.h"

#include <map>

struct SimNode {                   /* a tensor */
	int64_t uid, align;
	cudnnDataType_t type;
	int n;                         /* dims: 4, or 5 of convolutions */
	int64_t dim[5], stride[5];
	bool is_virtual, by_value;
};

struct SimWindow { int n; int64_t pad[3], end[3], stride[3], dilation[3]; cudnnDataType_t compute; };

struct SimOp {
	cudnnBackendDescriptorType_t kind;
	int mode;                      /* of pointwise operations and reductions */
	int64_t axis;                  /* of GEN_INDEX */
	int64_t x, b, t, y;            /* uids; 0: none.  A product has its A in x, its B in b, a convolution the two
	                                * that it reads, in the order x, w, y */
	SimWindow window;
};

/* Notes of engines: those of atomics and of Winograd's transforms are proposed to be turned down. */
enum SimEngine { SIM_ATOMICS, SIM_WINOGRAD, SIM_TF32, SIM_PLAIN };

struct SimGraph {
	std::map<int64_t, SimNode> tensor;
	std::vector<SimOp> op;         /* each behind those that make its operands */
	int products, convs;
	SimEngine engine;
};

struct SimGiven { std::map<int64_t, void *> at; void *work; };

static inline int64_t sim_numel(const SimNode &t)
{
	int64_t n = 1;
	for (int i = 0; i < t.n; i++)
		n *= t.dim[i];
	return n;
}

/* The tensors x, w and y of a convolution, and its kind. */
struct SimConvParts { SimConvKind kind; int64_t x, w, y; };
static inline SimConvParts sim_conv_parts(const SimOp &op)
{
	return op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ? SimConvParts{SIM_CONV, op.x, op.b, op.y}
		: op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
			? SimConvParts{SIM_CONV_GRAD_X, op.y, op.x, op.b} : SimConvParts{SIM_CONV_GRAD_W, op.x, op.y, op.b};
}
static inline bool sim_is_conv(const SimOp &op)
{
	return op.kind >= CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
		&& op.kind <= CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
}

/* graph_run.cpp: bytes of scratch; whether there is an engine for the graph; a run of it, for which numbers are read
 * now and tensors when the stream comes to it. */
int64_t sim_graph_work(const SimGraph &g);
bool sim_graph_served(const SimGraph &g);
void sim_graph_run(cudaStream_t stream, std::shared_ptr<const SimGraph> g, const SimGiven &given);

#endif
