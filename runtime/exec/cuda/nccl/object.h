/* runtime/exec/cuda/nccl/object.h: what a training program and the shared object libshardrt_nccl.so know of each other.
 *
 * The program has no NCCL in it: nccl.c opens the object when ranks have GPUs of their own.  The object takes all it
 * needs of the program through its arguments, so the program exports nothing.
 *
 * The one idea: the object posts calls and says how communicators are; what is sent, where, and how long one waits is
 * the program's. */
#ifndef SHARDC_RUNTIME_CUDA_COMM_NCCL_H
#define SHARDC_RUNTIME_CUDA_COMM_NCCL_H

#include <cuda_runtime_api.h>

#include "base/base.h"

#define COMM_NCCL_FILE "libshardrt_nccl.so"
#define COMM_NCCL_SYMBOL "shardrt_nccl"

enum { NCCL_ID_BYTES = 128 };

/* Nothing here waits: what is not done yet is NCCL_BUSY, and nccl->state asks again. */
typedef enum NcclState { NCCL_DONE, NCCL_BUSY, NCCL_FAILED } NcclState;
typedef enum NcclKind {
	NCCL_ALL_GATHER, NCCL_REDUCE_SCATTER, NCCL_ALL_REDUCE, NCCL_REDUCE, NCCL_BROADCAST
} NcclKind;
/* Elements that each rank sends of a gather, that each gets of a reduce_scatter; else of all. */
typedef struct NcclCall {
	NcclKind kind;
	const void *send;
	void *recv;
	int64_t count;
	DType dtype;
	bool mean;    /* of reductions: ncclAvg, which divides in the dtype; else the sum */
	int root;     /* of a reduce, of a broadcast */
} NcclCall;

/* Both sides must have been compiled from the same headers. */
typedef struct NcclShape { int version; uint32_t call, backend; } NcclShape;
#define COMM_NCCL_SHAPE {2, sizeof(NcclCall), sizeof(NcclBackend)}

typedef struct NcclBackend {
	NcclShape shape;
	int built;                                /* version of the headers, as 23203 */
	int (*version)(void);                     /* of the library; 0: it does not say */
	NcclState (*id)(char id[NCCL_ID_BYTES]);  /* on one rank, for all */
	NcclState (*open)(void **comm, const char id[NCCL_ID_BYTES], int ranks, int rank);
	/* Ranks of one color, in their order. */
	NcclState (*split)(void *comm, int color, int rank, void **out);
	/* Memory of this process's GPU that communicators can be given as it is: the least that was asked for. */
	NcclState (*take)(void **at, size_t bytes);
	void (*give)(void *at);                   /* when no communicator has it any more */
	NcclState (*enlist)(void *comm, void *at, size_t bytes, void **handle);
	NcclState (*dismiss)(void *comm, void *handle); /* before finish */
	NcclState (*state)(void *comm);           /* of what was asked last, and of all that was posted */
	/* All ranks post the same calls in the same order; calls between begin and end are launched as one. */
	NcclState (*begin)(void);
	NcclState (*post)(void *comm, const NcclCall *call, cudaStream_t stream);
	NcclState (*end)(void);
	NcclState (*finish)(void *comm);          /* all that was posted has run; before close */
	void (*close)(void *comm);
	void (*abort)(void *comm);                /* from any thread: what runs ends */
	const char *(*why)(void *comm);           /* what failed last; comm may be NULL */
} NcclBackend;

#endif
