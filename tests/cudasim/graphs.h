/* tests/cudasim/graphs.h: operation graphs of the emulated cuDNN, between what a program has set (graphs.cpp) and what
 * is computed of it (graph_run.cpp). */
#ifndef CUDASIM_GRAPHS_H
#define CUDASIM_GRAPHS_H

#include "tests/cudasim/dnn.h"

#include <map>

struct SimNode {                   /* a tensor */
	int64_t uid, align;
	cudnnDataType_t type;
	int64_t dim[4], stride[4];
	bool is_virtual, by_value;
};

struct SimOp {
	cudnnBackendDescriptorType_t kind;
	int mode;                      /* of pointwise operations and reductions */
	int64_t axis;                  /* of GEN_INDEX */
	int64_t x, b, t, y;            /* uids; 0: none.  A product has its A in x, its B in b */
};

struct SimGraph {
	std::map<int64_t, SimNode> tensor;
	std::vector<SimOp> op;         /* each behind those that make its operands */
	int products;
	bool atomics;                  /* of an engine that was proposed to be turned down */
};

struct SimGiven { std::map<int64_t, void *> at; void *work; };

static inline int64_t sim_numel(const SimNode &t) { return t.dim[0] * t.dim[1] * t.dim[2] * t.dim[3]; }

/* graph_run.cpp: bytes of scratch; whether there is an engine for the graph; a run of it, for which numbers are read
 * now and tensors when the stream comes to it. */
int64_t sim_graph_work(const SimGraph &g);
bool sim_graph_served(const SimGraph &g);
void sim_graph_run(cudaStream_t stream, std::shared_ptr<const SimGraph> g, const SimGiven &given);

#endif
