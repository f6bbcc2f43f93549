/* passes/check/check.h: --check-passes: a module computes the same before and after a pass.  Private to this folder, to
 * pipeline.c and to tests.
 *
 * Both are evaluated by the f64 reference on random inputs, parameters and buffers.  What is compared is what a module
 * is for: outputs, loss, what evaluation reports, contents written to buffers, gradients, their norm. */
#ifndef SHARDC_CHECK_H
#define SHARDC_CHECK_H

#include "passes/passes.h"

typedef struct Check Check;
Check *check_new(CheckReport *report);
void check_free(Check *c);
/* Runs the pass; at levels MODEL and TRAIN, compares.  false: the pass failed, or it makes a difference, which was
 * reported to d and to the CheckReport. */
bool check_run(Check *c, Module *m, const PassInfo *p, const Options *o, Diag *d);

/* ---- eval.c: what a module computes ---- */

enum CheckMode {
	CHECK_ROUND = 1,  /* rounded to each dtype after each op; else not at all */
	CHECK_EVEN = 2,   /* dropout as one number for all elements: where a pass may move elements */
	CHECK_RANDOM = 4, /* constants of the model's file are random too */
};

/* One thing that has to be kept. */
typedef struct CheckItem {
	const char *what;  /* "output \"y\"" */
	EvalTensor t;
	bool computed;     /* else the reference cannot compute it from this data */
	const Op *op;      /* that tells it; of the module that was evaluated */
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

/* Elementary operations of one evaluation, and elements that it holds at once. */
typedef struct CheckCost { double ops, elements; } CheckCost;
CheckCost check_cost(const Module *m);
CheckResult *check_evaluate(Module *m, CheckData *data, unsigned mode);
void check_result_free(CheckResult *r);
const CheckItem *check_find(const CheckResult *r, const char *what);
/* Inputs, parameters, buffers and constants of m, in e.  Returns whether any is of the model's file. */
bool check_bind(EvalEnv *e, Module *m, CheckData *data, unsigned mode, Arena *a);
/* Element i of a random tensor of that name, in [-1, 1). */
double check_random(const char *name, int64_t i);

/* The largest difference of two tensors, its index, and the largest finite number.  NaN and infinities agree with
 * themselves at the same place; else the difference is infinite.  Numbers beyond `huge` count as infinities. */
typedef struct CheckDistance { double most, scale; int64_t at; bool same_shape; } CheckDistance;
CheckDistance check_distance(const EvalTensor *a, const EvalTensor *b, double huge);
double check_element(const EvalTensor *t, int64_t i);

/* grad.c: the gradients of `now`, that autodiff made of `was`, against differences of the loss of `was`.  NULL:
 * they agree, or the loss has a kink here; else the parameter whose gradient does not, *at: the value of `was`, NULL =
 * unknown, whose does first. */
const Symbol *check_gradients(Module *was, Module *now, CheckData *data, double *told, double *found, const Value **at);

#endif
