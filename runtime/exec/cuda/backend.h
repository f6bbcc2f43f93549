/* runtime/exec/cuda/backend.h: the interface of back ends, by which collectives of a program reach other ranks' GPUs.
 *
 *   self    one rank: gathers that cast, and sums over micro-batches
 *   nccl    a GPU for every rank; also one rank alone, where it is asked for
 *   staged  through host memory, where shm and mpi take over: GPUs may be shared
 *
 * stream.c orders collectives by events; the calls that a back end issues for one are ordered by its stream. */
#ifndef SHARDC_RUNTIME_CUDA_BACKEND_H
#define SHARDC_RUNTIME_CUDA_BACKEND_H

#include <cuda_runtime_api.h>

#include "runtime/exec/cuda/words.h"
#include "runtime/exec/private.h"

typedef struct Backend {
	const char *name;
	bool captures; /* what it issues can be captured in a CUDA graph */
	bool chained;  /* ranks must start collectives of different streams in one order */
	/* Called before memory is allocated.  streams_backend_state returns *state from then on.  NULL: there is nothing to
	 * do. */
	bool (*load)(Rt *rt, void **state, Diag *d);
	/* take allocates device memory that the back end reads and writes, as it needs it, and returns NULL or the reason
	 * of a failure; give frees it, after close.  take NULL: cudaMalloc is used. */
	const char *(*take)(const Rt *rt, void **at, int64_t bytes);
	void (*give)(const Rt *rt, void *at);
	/* All ranks call it, outside of steps. */
	bool (*open)(Rt *rt, void **state, Diag *d);
	void (*close)(Rt *rt);
	/* Issues a collective on its stream, which already waits for its event. */
	void (*issue)(Rt *rt, const RtCollective *row, int seq, cudaStream_t stream);
	/* The host's part of rt_wait, called in the order of the stream, on which it issues the rest of the collective.
	 * NULL: there is none. */
	void (*finish)(Rt *rt, const RtCollective *row, int seq, cudaStream_t stream);
	/* Gathers equal pieces of all ranks, in rank order, in device memory.  NULL: one rank needs none. */
	void (*gather_small)(Rt *rt, void *all, const void *mine, int64_t bytes, cudaStream_t stream);
	void (*broadcast_small)(Rt *rt, void *at, int64_t bytes, cudaStream_t stream); /* from rank 0, in place */
	/* Called by the watchdog's thread: the reason why no collective will end any more; NULL: all is well, or it is not
	 * known. */
	const char *(*failed)(void *state);
	/* Called by the watchdog's thread, which ends the process next: ends what runs on the device.  It is called while
	 * the computing thread may be inside any call of this back end but open and close; that thread returns from none
	 * that uses what is aborted.  What a thread that hangs in NCCL has issued is left to the end of the process.  NULL:
	 * there is nothing to do. */
	void (*abort)(void *state);
	/* Returns only if nothing has been aborted, so that what the device has computed can be used.  NULL: nothing ever
	 * is. */
	void (*trust)(const Rt *rt);
} Backend;

extern const Backend backend_self, backend_nccl, backend_staged;

/* Chooses a back end, the same on all ranks, from --comm or from what GPUs the ranks have.  own_gpu: no other rank uses
 * this rank's GPU.  All ranks call it once they have met. */
const Backend *backend_choose(const Rt *rt, bool own_gpu, Diag *d);

/* ---- stream.c ---- */

void *streams_backend_state(const Rt *rt);
const Collectives *streams_collectives(const Rt *rt);
cudaStream_t streams_of(const Rt *rt, RtStream stream);
/* Whether this rank sends through a back end that communicates; it may be the only rank. */
bool streams_talk(const Rt *rt);
/* Small messages of blocking collectives, on the sync stream, called between streams_sync_begin and streams_sync_end
 * where streams_talk. */
void streams_gather(Rt *rt, void *all, const void *mine, int64_t bytes);
void streams_broadcast(Rt *rt, void *at, int64_t bytes);
/* Makes gathers that are issued from now on wait for the end of a blocking collective. */
void streams_before_gathers(Rt *rt, int seq);
/* These enclose every run of a program, captured or not: streams_fork makes the other streams wait for the compute
 * stream, streams_join makes it wait for them. */
void streams_fork(Rt *rt);
void streams_join(Rt *rt);
/* Called when what the device has computed is there, before it is used: does not return after an abort, which ends
 * collectives without their results. */
void streams_trust(const Rt *rt);
/* Called when a captured program runs again: counts what it sends. */
void streams_replay(Rt *rt);
/* Adds to the sum over micro-batches, after a reduction. */
void streams_keep(const Rt *rt, const RtCollective *row, cudaStream_t stream);
/* Issues a cast of collective.c on a stream. */
void streams_cast(const Rt *rt, const Cast *c, cudaStream_t stream);

#endif
