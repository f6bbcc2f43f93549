/* runtime/exec/cuda/cuda.h: what the files of the CUDA runtime share: the device, its streams, tables and pinned
 * memory.  It is plain C. */
#ifndef SHARDC_RUNTIME_CUDA_CUDA_H
#define SHARDC_RUNTIME_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda.h"
#include "runtime/exec/exec.h"

/* The streams after those of collectives.  COPY: inputs; OUT, IN: values that lie in memory of the host meanwhile. */
enum { CUDA_COMPUTE = RT_STREAMS, CUDA_COPY, CUDA_OUT, CUDA_IN, CUDA_STREAMS };

typedef struct CudaStep CudaStep;     /* step.c */
typedef struct CudaGraphs CudaGraphs; /* graph.c */
typedef struct CudaCopies CudaCopies; /* copies.c */
typedef struct CudaTrace CudaTrace;   /* trace.c */
typedef struct OpTimes OpTimes;       /* op_times.c */
struct Backend;                       /* backend.h */

/* Made by device_map.  Device memory consists of the plan's arenas; rt->p->memory.base has them all, and each is one
 * allocation of memory.planned bytes. */
struct Cuda {
	int device;
	cudaStream_t stream[CUDA_STREAMS];
	const struct Backend *backend;
	void *backend_state;        /* of the back end */
	bool lent[ARENA_COUNT];     /* the arena was allocated by the back end, not by cudaMalloc */
	KBad *bad;                  /* pinned; k_bad_report is its address on the device */
	/* In ARENA_TABLES.  step_state: LAYOUT_CUDA_STATE bytes, then StepSums of all ranks; step_norm: parts of a norm;
	 * step_staging: the inputs of the next micro-batch. */
	char *step_state, *step_norm, *step_staging;
	char *step_slot[LAYOUT_CUDA_SLOTS]; /* pinned; same contents as step_staging */
	char *step_outcome;         /* pinned: LAYOUT_CUDA_SLOTS * LAYOUT_CUDA_OUTCOME bytes */
	CudaStep *step;
	CudaGraphs *graphs;
	CudaCopies *copies;
	CudaTrace *trace;           /* NULL: none is written, or it has been */
	OpTimes *times;             /* NULL: kernels are not timed alone */
	/* Used by device.c: */
	Segment *segments;          /* in ARENA_TABLES */
	Group *groups;
	char *pinned;               /* one cudaHostAlloc */
	int64_t pinned_bytes, pinned_used;
	char *shared;               /* registered memory that peers map; NULL: none */
};

/* If e is an error, ends the run with a message that has the rank, its GPU, `what` and CUDA's text. */
void cuda_must(cudaError_t e, const char *what);
/* Copies bytes of the host to the device and waits until they are there: cudaMemcpy returns when bytes of memory that
 * is not pinned are staged, and none of our streams waits for what it left to do. */
void cuda_send(void *to, const void *from, size_t bytes);
/* Allocates from the pinned memory of the host that the plan counts (layout_cuda_pinned), aligned to 64 bytes. */
void *cuda_pinned(Rt *rt, int64_t bytes);
/* The optimizer's lists in device memory: segments of the whole flat, or of the part that this rank updates. */
SegmentList cuda_segments(const Rt *rt, int unit, int flat, bool whole);
const Group *cuda_groups(const Rt *rt);
/* copies.c: called by step_open and step_close. */
void copies_open(Rt *rt);
void copies_close(Rt *rt);
/* op_times.c: runs the program of a step op by op, and measures some. */
void op_times_program(Rt *rt);
/* Whether code for `arch` ("sm_90a") runs on a GPU of that compute capability.  sm_NNa runs on exactly NN, sm_NNf on
 * later ones of the same generation, too; sm_NN runs on NN and all later ones, since nvcc puts PTX beside it.  True for
 * other names, which do not name a GPU. */
bool cuda_runs_on(const char *arch, int major, int minor);

#endif
