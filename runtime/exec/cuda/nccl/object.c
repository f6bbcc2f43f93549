/* runtime/exec/cuda/nccl/object.c: libshardrt_nccl.so, which implements nccl/object.h with NCCL.
 *
 * Communicators never block: a call that is not done returns NCCL_BUSY, and the caller polls as long as it likes. */
#include <nccl.h>
#include <string.h>

#include "runtime/exec/cuda/nccl/object.h"

_Static_assert(sizeof(ncclUniqueId) == NCCL_ID_BYTES, "the id travels as bytes");

static const char *failed = "";

static NcclState state_of(ncclResult_t r)
{
	if (r == ncclSuccess)
		return NCCL_DONE;
	if (r == ncclInProgress)
		return NCCL_BUSY;
	failed = ncclGetErrorString(r);
	return NCCL_FAILED;
}

static int version(void)
{
	int v = 0;
	return ncclGetVersion(&v) == ncclSuccess ? v : 0;
}

static NcclState new_id(char id[NCCL_ID_BYTES])
{
	ncclUniqueId u;
	NcclState s = state_of(ncclGetUniqueId(&u));
	memcpy(id, &u, sizeof(u));
	return s;
}

/* Asks NCCL to start kernels of several communicators in the order in which the program issued them, where its version
 * can do that. */
static ncclConfig_t config(void)
{
	ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
	c.blocking = 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0)
	c.launchOrderImplicit = 1;
#endif
	return c;
}

static NcclState open_comm(void **comm, const char id[NCCL_ID_BYTES], int ranks, int rank)
{
	ncclUniqueId u;
	ncclConfig_t c = config();
	memcpy(&u, id, sizeof(u));
	return state_of(ncclCommInitRankConfig((ncclComm_t *)comm, ranks, u, rank, &c));
}

static NcclState split(void *comm, int color, int rank, void **out)
{
	ncclConfig_t c = config();
	return state_of(ncclCommSplit(comm, color, rank, (ncclComm_t *)out, &c));
}

static NcclState take(void **at, size_t bytes) { return state_of(ncclMemAlloc(at, bytes)); }
static void give(void *at) { ncclMemFree(at); }

static NcclState enlist(void *comm, void *at, size_t bytes, void **handle)
{
	return state_of(ncclCommRegister(comm, at, bytes, handle));
}

static NcclState dismiss(void *comm, void *handle) { return state_of(ncclCommDeregister(comm, handle)); }

static NcclState state(void *comm)
{
	ncclResult_t r = ncclSuccess;
	NcclState asked = state_of(ncclCommGetAsyncError(comm, &r));
	return asked == NCCL_FAILED ? asked : state_of(r);
}

static NcclState begin(void) { return state_of(ncclGroupStart()); }
static NcclState end(void) { return state_of(ncclGroupEnd()); }

static ncclDataType_t type_of(DType t)
{
	switch (t) {
	case DT_F32: return ncclFloat32;
	case DT_F64: return ncclFloat64;
	case DT_F16: return ncclFloat16;
	case DT_BF16: return ncclBfloat16;
	default: return ncclUint8;
	}
}

static NcclState post(void *comm, const NcclCall *c, cudaStream_t s)
{
	ncclDataType_t t = type_of(c->dtype);
	ncclRedOp_t op = c->mean ? ncclAvg : ncclSum;
	size_t n = (size_t)c->count;
	switch (c->kind) {
	case NCCL_ALL_GATHER: return state_of(ncclAllGather(c->send, c->recv, n, t, comm, s));
	case NCCL_REDUCE_SCATTER: return state_of(ncclReduceScatter(c->send, c->recv, n, t, op, comm, s));
	case NCCL_ALL_REDUCE: return state_of(ncclAllReduce(c->send, c->recv, n, t, op, comm, s));
	case NCCL_REDUCE: return state_of(ncclReduce(c->send, c->recv, n, t, op, c->root, comm, s));
	case NCCL_BROADCAST: return state_of(ncclBroadcast(c->send, c->recv, n, t, c->root, comm, s));
	}
	failed = "no such call";
	return NCCL_FAILED;
}

static NcclState finish(void *comm) { return state_of(ncclCommFinalize(comm)); }
static void close_comm(void *comm) { ncclCommDestroy(comm); }
static void abort_comm(void *comm) { ncclCommAbort(comm); }

static const char *why(void *comm)
{
	const char *last = ncclGetLastError(comm);
	return last && *last ? last : failed;
}

extern const NcclBackend shardrt_nccl;
const NcclBackend shardrt_nccl = {COMM_NCCL_SHAPE, NCCL_VERSION_CODE, version, new_id, open_comm, split, take, give,
	enlist, dismiss, state, begin, post, end, finish, close_comm, abort_comm, why};
