/* runtime/exec/cuda/nccl/object.h: the interface between a training program and the shared object libshardrt_nccl.so.
 *
 * The program is not linked with NCCL: nccl.c opens the object when ranks have GPUs of their own.  The object gets
 * everything it needs from the program through arguments, so the program exports no symbols.
 *
 * The object posts calls and reports the state of communicators; the program decides what is sent, where to, and how
 * long to wait. */
#ifndef SHARDC_RUNTIME_CUDA_COMM_NCCL_H
#define SHARDC_RUNTIME_CUDA_COMM_NCCL_H

#include <cuda_runtime_api.h>

#include "base/base.h"

#define COMM_NCCL_FILE "libshardrt_nccl.so"
#define COMM_NCCL_SYMBOL "shardrt_nccl"

enum { NCCL_ID_BYTES = 128 };

/* No call waits: the result of one that is not done yet is NCCL_BUSY, and nccl->state asks again. */
typedef enum NcclState { NCCL_DONE, NCCL_BUSY, NCCL_FAILED } NcclState;
typedef enum NcclKind {
	NCCL_ALL_GATHER, NCCL_REDUCE_SCATTER, NCCL_ALL_REDUCE, NCCL_REDUCE, NCCL_BROADCAST
} NcclKind;
/* count: elements that each rank sends in a gather, or gets from a reduce_scatter; else elements of the whole. */
typedef struct NcclCall {
	NcclKind kind;
	const void *send;
	void *recv;
	int64_t count;
	DType dtype;
	bool mean;    /* reductions: ncclAvg, which divides each rank's numbers in the dtype, then adds; else the sum */
	int root;     /* of a reduce, of a broadcast */
} NcclCall;

/* Both sides must have been compiled from the same headers. */
typedef struct NcclShape { int version; uint32_t call, backend; } NcclShape;
#define COMM_NCCL_SHAPE {2, sizeof(NcclCall), sizeof(NcclBackend)}

typedef struct NcclBackend {
	NcclShape shape;
	int built;                                /* version of NCCL's headers, such as 23203 */
	int (*version)(void);                     /* of NCCL's library; 0: unknown */
	NcclState (*id)(char id[NCCL_ID_BYTES]);  /* makes an id on one rank, for all */
	NcclState (*open)(void **comm, const char id[NCCL_ID_BYTES], int ranks, int rank);
	/* Makes a communicator of the ranks with this color, in their order. */
	NcclState (*split)(void *comm, int color, int rank, void **out);
	/* Allocates memory of this process's GPU that can be registered with communicators. */
	NcclState (*take)(void **at, size_t bytes);
	void (*give)(void *at);                   /* called when no communicator has it registered any more */
	NcclState (*enlist)(void *comm, void *at, size_t bytes, void **handle);
	NcclState (*dismiss)(void *comm, void *handle); /* called before finish */
	NcclState (*state)(void *comm);           /* of the last call that was busy, and of all that was posted */
	/* All ranks post the same calls in the same order; calls between begin and end are launched as one. */
	NcclState (*begin)(void);
	NcclState (*post)(void *comm, const NcclCall *call, cudaStream_t stream);
	NcclState (*end)(void);
	NcclState (*finish)(void *comm);          /* asks to end what was posted: done when all has run; before close */
	void (*close)(void *comm);
	/* Ends what runs, and frees the communicator.  Called from any thread, while no other one is inside a call. */
	void (*abort)(void *comm);
	const char *(*why)(void *comm);           /* the last failure; comm may be NULL */
} NcclBackend;

#endif
