/* passes/remat/remat.h: what backward computes again instead of keeping it, and what a choice comes to.
 *
 * Others than the chosen values live into backward where it reads them.  A value is named by the ONNX node of the op
 * that makes it, since ops have other names and kinds once they are fused. */
#ifndef SHARDC_REMAT_H
#define SHARDC_REMAT_H

#include "passes/passes.h"

/* POLICY: FILE.json, or its text, which begins with a brace. */
typedef enum RematMode { REMAT_NONE, REMAT_BLOCK, REMAT_AUTO, REMAT_POLICY, REMAT_WRONG } RematMode;
RematMode remat_mode(const char *text); /* NULL: none */
bool remat_is_file(const char *text);    /* ends in .json, as a policy's file does */

/* The arrays are by Value.id, of values that the forward defines. */
typedef struct Remat {
	Module *m;
	Arena *a;
	Blocks *blocks;
	bool *kept;      /* not to be recomputed: read outside of its block, so it lives anyway, or part of an effect */
	bool *fixed;     /* made of parameters and constants alone: blocks keep nothing for it */
	bool *chosen;    /* backward may compute it again; set by the caller */
	bool *wanted;    /* backward reads it, or needs it for what it reads, and computes it again */
	Op **before;     /* by block: first op of backward that wants something of it */
	Op **first;      /* by Value.id, of wanted values outside of blocks: first op of backward that needs it */
} Remat;
/* m: at TRAIN, after pass fuse.  Nothing is chosen yet. */
Remat *remat_begin(Module *m, Arena *a);
/* Sets wanted and before to what follows from chosen. */
void remat_find_wanted(Remat *r);
bool remat_may(const Remat *r, const Value *v);           /* a policy may choose it */
bool remat_is_inner(const Remat *r, const Value *v);      /* of a block, and not kept */
/* --remat=auto decides about it: it is inner or, in a model without repeated blocks, a policy may choose it. */
bool remat_is_open(const Remat *r, const Value *v);
bool remat_is_recomputed(const Remat *r, const Value *v); /* it may be, and is chosen */
bool remat_is_op(const Op *op, OpKind kind);              /* of this kind, or a loop that has such an op */

/* policy.c: sets chosen to what the policy says: a path, or the text itself.  False after messages, one for each
 * problem. */
bool remat_policy(Remat *r, const char *policy, Diag *d);

/* classes.c: inner values of repeated blocks that are alike: the same node in each of them. */
typedef struct RematClass {
	const char *rule;   /* of a policy, that chooses these values and no others that memory is needed for */
	Value **value;
	int n;
} RematClass;
typedef struct RematClasses { RematClass *at; int n; } RematClasses;
/* In program order.  Values whose op has no node, and those of parameters alone, are in none. */
RematClasses remat_classes(const Remat *r);
/* The rule of those values of a class that blocks with a smaller turn than this have; NULL: they have none.  turn: by
 * block. */
const char *remat_class_rule(const Remat *r, const RematClass *c, const int *turn, int blocks);

#endif
