/* runtime/hook.h: the interface of a function of yours that reduces gradients: shardc
 * --comm-hook=FILE.c:FUNCTION[:send=N,keep=N].
 *
 * FILE.c includes "runtime/hook.h" and defines
 *
 *   int FUNCTION(const HookCall *c)                        a HookReduce; required
 *   int FUNCTION_init(const HookStart *s, void **state)    a HookInit; optional
 *   void FUNCTION_exit(void *state)                        a HookExit; optional
 *
 * FUNCTION is called on every rank for every reduction of a flat gradient, in the same order on all, in place of the
 * built-in reduction; it does the communication and the division.  It may be called on a thread of its own, beside the
 * computing (--comm-threads=1), one call at a time, and may use OpenMP.  It returns 0, or another number to end the
 * run: then all ranks end with exit code 3, and a message says the unit, the step and the number.  If a call leaves out
 * exchanges that other ranks make, the watchdog notices it (--timeout).  What the function reads and writes is not
 * checked: it is C.
 *
 * Gradients are f32.  Elements between parameters and after the last one are zero and should stay so.  Runs are
 * deterministic only if the hook is. */
#ifndef SHARDC_HOOK_H
#define SHARDC_HOOK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum HookKind {
	HOOK_REDUCE_SCATTER,    /* full_shard, shard_grad_op, and hybrid_shard inside a group: member i wants part i */
	HOOK_ALL_REDUCE,        /* no_shard, and any strategy at one rank: in place, all members want all of it */
	HOOK_ALL_REDUCE_SHARDS, /* hybrid_shard across groups, after HOOK_REDUCE_SCATTER: the shard, in place */
	HOOK_REDUCE             /* oss, sharded_ddp: the owner wants all of it */
} HookKind;

typedef struct HookLink HookLink; /* the runtime's */

typedef struct HookCall {
	HookKind kind;
	const char *unit;       /* "h.3" */
	int flat;               /* number of the flat in its unit, from 0; a flat has the unit's parameters of one dtype */
	int64_t step;           /* from 1 */
	int rank, world;        /* among all ranks */
	int member, members;    /* this rank among those that reduce together; members are in the order of the built-in
	                         * sums */
	int owner;              /* HOOK_REDUCE: the member that wants the result, else -1 */
	float mean;             /* by which the built-in reduction multiplies the sum of members: 1/world; where there are
	                         * two stages, only the last one does */
	float *gradient;        /* n elements; for HOOK_REDUCE_SCATTER n is a multiple of 64 * members; may be
	                         * overwritten */
	int64_t n;
	float *out;             /* where the result goes, out_n elements; equal to gradient: in place; NULL: this member
	                         * does not want it */
	int64_t out_n;
	void *send;             /* scratch memory that peers can read, send_bytes = N * n bytes (--comm-hook=...:send=N);
	                         * its contents are lost after the call */
	int64_t send_bytes;
	void *keep;             /* N * n bytes (keep=N) that belong to this flat: zero at start, kept from step to step, not
	                         * in checkpoints; NULL for HOOK_ALL_REDUCE_SHARDS */
	int64_t keep_bytes;
	void *state;            /* what FUNCTION_init gave */
	HookLink *link;
} HookCall;

typedef struct HookStart { int rank, world; } HookStart;

typedef int HookReduce(const HookCall *c);
/* Called once on every rank, before the first step; a result other than 0 keeps all ranks from starting. */
typedef int HookInit(const HookStart *s, void **state);
typedef void HookExit(void *state); /* called once, after the last step */

/* ---- calls by which a hook communicates; all members make the same calls, with equal sizes ---- */

/* They return when the result is there and no member reads this member's source any more.  They return 0, or -1 where
 * `x` is not inside c->gradient or c->send, or bytes is not a multiple of 4.  They also work with one member. */

/* Does the built-in reduction. */
int hook_built_in(const HookCall *c);
/* x[i] = scale * sum over members, in member order, in place. */
int hook_all_reduce(const HookCall *c, float *x, int64_t n, float scale);
/* out[i] = scale * sum of x[member * n + i]; x has members * n elements. */
int hook_reduce_scatter(const HookCall *c, const float *x, int64_t n, float *out, float scale);
/* out (members * bytes, anywhere in memory) = every member's x (bytes), in member order. */
int hook_all_gather(const HookCall *c, const void *x, int64_t bytes, void *out);
/* out (members * bytes, anywhere in memory) = part number `member` of every member's x (members * bytes). */
int hook_all_to_all(const HookCall *c, const void *x, int64_t bytes, void *out);

#ifdef __cplusplus
}
#endif

#endif
