/* runtime/hook.h: gradients reduced by a function of yours: shardc --comm-hook=FILE.c:FUNCTION[:send=N,keep=N].
 *
 * FILE.c includes "runtime/hook.h" and defines
 *
 *   int FUNCTION(const HookCall *c)                        a HookReduce; required
 *   int FUNCTION_init(const HookStart *s, void **state)    a HookInit; optional
 *   void FUNCTION_exit(void *state)                        a HookExit; optional
 *
 * FUNCTION is called on every rank for every reduction of a flat gradient, in the same order on all, in place of the
 * built-in one; it owns communication and division.  It may run on a thread of its own, beside the computing
 * (--comm-threads=1), one call at a time, and may use OpenMP.  It returns 0, or another number to end the run: all
 * ranks end with exit code 3, and the unit, the step and the number are said.  A call that leaves out exchanges which
 * others make is noticed by the watchdog (--timeout).  What the function reads and writes is not checked: it is C.
 *
 * Gradients are f32.  Elements between parameters and behind the last one are zero and should stay so.  A hook that is
 * not deterministic makes runs that are not. */
#ifndef SHARDC_HOOK_H
#define SHARDC_HOOK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum HookKind {
	HOOK_REDUCE_SCATTER,    /* full_shard, shard_grad_op, hybrid_shard inside a group: member i wants part i */
	HOOK_ALL_REDUCE,        /* no_shard; any strategy at one rank: in place, for everybody */
	HOOK_ALL_REDUCE_SHARDS, /* hybrid_shard across groups, behind HOOK_REDUCE_SCATTER: of the shard, in place */
	HOOK_REDUCE             /* oss, sharded_ddp: the owner wants all of it */
} HookKind;

typedef struct HookLink HookLink; /* the runtime's */

typedef struct HookCall {
	HookKind kind;
	const char *unit;       /* "h.3" */
	int flat;               /* of the unit, from 0: its parameters of one dtype */
	int64_t step;           /* from 1 */
	int rank, world;        /* of all ranks */
	int member, members;    /* of those that reduce together; members in the order of the built-in sums */
	int owner;              /* HOOK_REDUCE: the member that wants the result, else -1 */
	float mean;             /* what the built-in reduction multiplies the sum of members by (1/world; across groups at
	                         * the last stage only) */
	float *gradient;        /* n elements, a multiple of 64 * members for HOOK_REDUCE_SCATTER; may be overwritten */
	int64_t n;
	float *out;             /* where the result goes: out_n elements; = gradient: in place; NULL: not wanted here */
	int64_t out_n;
	void *send;             /* scratch of send_bytes = N * n (of --comm-hook=...:send=N) that peers can read; its
	                         * contents do not outlive the call */
	int64_t send_bytes;
	void *keep;             /* N * n bytes (keep=N) of this flat's own: zero at start, kept from step to step, not in
	                         * checkpoints; NULL for HOOK_ALL_REDUCE_SHARDS */
	int64_t keep_bytes;
	void *state;            /* FUNCTION_init's */
	HookLink *link;
} HookCall;

typedef struct HookStart { int rank, world; } HookStart;

typedef int HookReduce(const HookCall *c);
/* Once on every rank, before the first step; not 0: no rank starts. */
typedef int HookInit(const HookStart *s, void **state);
typedef void HookExit(void *state); /* once, behind the last step */

/* ---- what a hook communicates with; all members call the same, with equal sizes ---- */

/* They return when the result is there and nobody reads this member's source any more: 0, or -1 where `x` is not inside
 * of c->gradient or c->send, or bytes is no multiple of 4.  With one member they work, too. */

/* The built-in reduction. */
int hook_built_in(const HookCall *c);
/* x[i] = scale * sum over members, in member order, in place. */
int hook_all_reduce(const HookCall *c, float *x, int64_t n, float scale);
/* out[i] = scale * sum of x[member * n + i]; x has members * n elements. */
int hook_reduce_scatter(const HookCall *c, const float *x, int64_t n, float *out, float scale);
/* out (members * bytes, anywhere) = every member's x (bytes). */
int hook_all_gather(const HookCall *c, const void *x, int64_t bytes, void *out);
/* out (members * bytes, anywhere) = of every member's x (members * bytes) the part number `member`. */
int hook_all_to_all(const HookCall *c, const void *x, int64_t bytes, void *out);

#ifdef __cplusplus
}
#endif

#endif
