/* passes/check/check.h: --check-passes: proves on random data that a module computes the same before and after a
 * pass.  Private to this folder, pipeline.c and tests.
 *
 * The f64 reference evaluates both modules on random inputs, parameters and buffers.  It compares what a user sees
 * of a module: outputs, loss, what evaluation reports, contents written to buffers, gradients and their norm. */
#ifndef SHARDC_CHECK_H
#define SHARDC_CHECK_H

#include "passes/passes.h"

typedef struct Check Check;
Check *check_new(CheckReport *report);
void check_free(Check *c);
/* Runs the pass and, at levels MODEL and TRAIN, compares the module with what it was.  Returns false when the pass
 * failed, or when it changed a result; the change is reported to d and in the CheckReport. */
bool check_run(Check *c, Module *m, const PassInfo *p, const Options *o, Diag *d);

/* ---- eval.c: what a module computes ---- */

enum CheckMode {
	CHECK_ROUND = 1,  /* results are rounded to their dtype after each op; otherwise never */
	CHECK_EVEN = 2,   /* dropout uses one factor for all elements, for passes that move elements */
	CHECK_RANDOM = 4, /* constants of the model's file are random too */
};

/* One item that a pass must keep. */
typedef struct CheckItem {
	const char *what;  /* "output \"y\"" */
	EvalTensor t;
	bool computed;     /* false: the reference cannot compute it from this data */
	const Op *op;      /* the op that reports it, in the module that was evaluated */
} CheckItem;
typedef struct CheckResult {
	Arena *arena;
	CheckItem *item;
	int n;
	EvalEnv *env[2];   /* of the step, of the evaluation: for values by name */
	bool data;         /* some constants had the contents of the model's file */
} CheckResult;

/* Ranges of integer symbols by name, kept from the first module to the last. */
typedef struct CheckData { Arena *arena; Map *limit; } CheckData;

/* What one evaluation costs: elementary operations, and elements held at the same time. */
typedef struct CheckCost { double ops, elements; } CheckCost;
CheckCost check_cost(const Module *m);
CheckResult *check_evaluate(Module *m, CheckData *data, unsigned mode);
void check_result_free(CheckResult *r);
const CheckItem *check_find(const CheckResult *r, const char *what);
/* Binds inputs, parameters, buffers and constants of m in e.  Returns whether any of them has contents of the
 * model's file. */
bool check_bind(EvalEnv *e, Module *m, CheckData *data, unsigned mode, Arena *a);
/* Element i of the random tensor of this name, in [-1, 1). */
double check_random(const char *name, int64_t i);

/* The largest difference of two tensors, the index where it is, and the largest finite number of either.  NaN and
 * infinities agree only with themselves at the same position; otherwise the difference is infinite.  Numbers of a
 * magnitude above `huge` count as infinities. */
typedef struct CheckDistance { double most, scale; int64_t at; bool same_shape; } CheckDistance;
CheckDistance check_distance(const EvalTensor *a, const EvalTensor *b, double huge);
double check_element(const EvalTensor *t, int64_t i);

/* grad.c: compares the gradients of `now`, which autodiff made from `was`, with finite differences of the loss of
 * `was`.  Returns NULL when they agree, or when the loss has a kink at this point.  Otherwise returns the parameter
 * whose gradient is wrong, and in *at the first value of `was`, from the loss backwards, whose gradient is wrong
 * (NULL = unknown). */
const Symbol *check_gradients(Module *was, Module *now, CheckData *data, double *told, double *found, const Value **at);

#endif
