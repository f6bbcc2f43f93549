/* runtime/exec/cuda/cuda.h: what files of the CUDA runtime know of each other: the device, its streams, tables and
 * pinned memory.  Plain C. */
#ifndef SHARDC_RUNTIME_CUDA_CUDA_H
#define SHARDC_RUNTIME_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda.h"
#include "runtime/exec/exec.h"

/* Streams behind those of collectives. */
enum { CUDA_COMPUTE = RT_STREAMS, CUDA_COPY, CUDA_STREAMS };

typedef struct CudaStep CudaStep;     /* step.c */
typedef struct CudaGraphs CudaGraphs; /* graph.c */
struct Backend;                       /* backend.h */

/* Made by device_map.  What is in device memory lies in arenas of the plan; rt->p->memory.base has them all, each one
 * allocation of memory.planned bytes. */
struct Cuda {
	int device;
	cudaStream_t stream[CUDA_STREAMS];
	const struct Backend *backend;
	void *backend_state;        /* its own */
	bool lent[ARENA_COUNT];     /* taken of the back end, not of cudaMalloc */
	KBad *bad;                  /* pinned; k_bad_report is its address on the device */
	/* In ARENA_TABLES: LAYOUT_CUDA_STATE bytes, then StepSums of all ranks; parts of a norm; the inputs of the next
	 * micro-batch. */
	char *step_state, *step_norm, *step_staging;
	char *step_slot[LAYOUT_CUDA_SLOTS]; /* pinned, as step_staging */
	char *step_outcome;         /* pinned: LAYOUT_CUDA_SLOTS * LAYOUT_CUDA_OUTCOME bytes */
	CudaStep *step;
	CudaGraphs *graphs;
	/* Of device.c: */
	Segment *segments;          /* in ARENA_TABLES */
	Group *groups;
	char *pinned;               /* one cudaHostAlloc */
	int64_t pinned_bytes, pinned_used;
	char *shared;               /* registered memory that peers map; NULL: none */
};

/* Ends the run with the rank, its GPU, what was tried and CUDA's own words. */
void cuda_must(cudaError_t e, const char *what);
/* Pinned memory of the host that the plan counts (layout_cuda_pinned), at 64 bytes' alignment. */
void *cuda_pinned(Rt *rt, int64_t bytes);
/* The optimizer's lists in device memory: segments of the whole flat, or of the part that this rank updates. */
SegmentList cuda_segments(const Rt *rt, int unit, int flat, bool whole);
const Group *cuda_groups(const Rt *rt);
/* Whether code for `arch` ("sm_90a") runs on a GPU of that compute capability.  sm_NNa runs on exactly NN; sm_NN on all
 * from NN on, since nvcc puts PTX beside it.  Other names say nothing of GPUs. */
bool cuda_runs_on(const char *arch, int major, int minor);

#endif
