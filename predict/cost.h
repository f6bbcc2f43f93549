/* predict/cost.h: what an op reads, writes and computes, and how long a machine takes for it.
 *
 * Work is counted once for each operand and result, whatever caches hold; operations that a kernel saves (causal
 * attention: half of the products) are left out.  Time is that of a measured kernel of the same signature, if the
 * machine has one; else that of the measured kernels of its kind whose work is nearest, in proportion; else the longest
 * of three parts that overlap: products at a share of the processor's peak, bytes at the memory's bandwidth, and
 * special values (roofline: Williams, Waterman, Patterson, 2009).  Attention of GPUs does not overlap its products and
 * its exponentials. */
#ifndef SHARDC_COST_H
#define SHARDC_COST_H

#include <string.h>

#include "ir/ir.h"
#include "predict/machine.h"

/* Whether the op computes again what forward has computed. */
static inline bool op_is_again(const Op *op) { return !strcmp(op->loc->role, "remat"); }

typedef enum CostClass {
	COST_NONE,      /* no code, or none that takes time */
	COST_MATMUL, COST_CONV, COST_ATTENTION, COST_RECURRENCE,
	COST_LOOP,      /* elementwise loops */
	COST_ROWS,      /* norms, softmax, reductions, pooling */
	COST_MOVE,      /* copies, transposes, lookups */
	COST_UPDATE,    /* the optimizer */
	COST_COLLECTIVE,
	COST_CLASSES
} CostClass;
extern const char *const cost_class_text[COST_CLASSES]; /* "matmul" */

/* One execution of an op. */
typedef struct Work {
	CostClass class;
	double flops;       /* of products, a multiplication and an addition each */
	double bytes;       /* read and written */
	double states, rest; /* those of them that are optimizer states and masters, and parameters at rest, read; as many
	                      * are written */
	double host;        /* those of states and rest that lie in memory of a GPU's host */
	double special;     /* exponentials, logarithms, random numbers and the like */
	double tiles;       /* of 128 x 128 results of products, which a GPU's processors share; 0: enough for all */
	bool part;          /* of a larger product, whose waves it shares */
	double keys;        /* of attention: that a query sees, on average */
	double calls;       /* kernels that start one after the other */
	bool again;         /* the op computes again what forward has computed, or reads the result of such an op */
	DType dtype;        /* of the products */
	bool backward, library; /* of attention: which; that cuDNN computes it */
} Work;
/* who: the rank whose shards updates work on. */
Work cost_of(const Op *op, const LayoutRank *who);
/* What a CPU computes where it issues a collective: a gather in a lower dtype casts the rank's part of its unit.
 * Broadcasts of owners, which may cast, too, are left out. */
Work cost_of_issue(const Op *op, const LayoutRank *who);

/* Makes it what op takes at least in one product with others that read the same first operand. */
void cost_join(Work *w, const Op *op);

/* Whether its products round to TF32, where a GPU's program may; measured kernels say of which precision they are. */
static inline bool cost_rounds(const Work *w, bool tf32) { return tf32 && w->flops > 0 && w->dtype == DT_F32; }

/* What a kernel is: ir_signature; of updates and issues, which name units of a model, their bytes. */
char *cost_signature(const Op *op, const Work *w, Arena *a);
/* What its measured row is found by.  Work that is `again` has rows of its own, whose names end so: its operands were
 * computed just before, and are in caches more often than what forward has left. */
#define COST_AGAIN " again"
const char *cost_row(const Op *op, const Work *w, Arena *a);

/* How the time was found, from the best evidence to the weakest. */
typedef enum CostEvidence { COST_MEASURED, COST_NEAR, COST_ROOFLINE, COST_EVIDENCES } CostEvidence;
typedef struct CostTime { double seconds; CostEvidence evidence; } CostTime;
/* Of an op that is no collective, alone on its rank; layout: how the host is shared. tf32: f32 products use it.  A row
 * of work that is `again` counts, as near evidence, for work that is not, and the reverse, where the machine has no
 * other. */
CostTime cost_seconds(const Machine *m, const Op *op, const Work *w, MachineLayout layout, bool tf32);
/* What it takes where it is `again`, if that was measured; else INFINITY. */
double cost_again(const Machine *m, const Op *op, const Work *w, MachineLayout layout, bool tf32);

/* The least that its products take, at the peak of what the rank has. */
double cost_at_peak(const Machine *m, const Work *w, MachineLayout layout, bool tf32);

/* A collective in which a rank receives `bytes`; members: its ranks; hosts: those that they are on; comm: how they
 * talk, as the machine's ranks talk by themselves if it is unsaid. */
typedef struct CostMessage { RtCollectiveKind kind; int64_t bytes, members, hosts; Communicator comm; } CostMessage;
double cost_transfer(const Machine *m, const CostMessage *c);
/* The least that these bytes take in collectives of whatever sizes, if such were measured; INFINITY: none was, and
 * cost_transfer is a latency and the bytes at one rate. */
double cost_transfer_least(const Machine *m, const CostMessage *c);

#endif
