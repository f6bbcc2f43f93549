/* passes/rewrite/rewrite.h: tables of rewrite rules and the worklist that applies them.
 *
 * A rule looks at one op and returns the value that stands for the op's first result from now on, made
 * of ops it emitted through r->b (before the op, with its location) or of values that exist; NULL when
 * it does not apply.  The value must equal the old one for every input, up to rounding.  Results from
 * the second on must have been replaced by the rule itself, or be unused.  Rules never edit ops in
 * place, so constants once evaluated stay true.  Rewriting goes on until no rule applies, so a second run
 * changes nothing.  That it ends is shown by the measure of measure.h, which every application of a rule
 * lowers; progress.h checks that in the tests, and ends a runaway in every build. */
#ifndef SHARDC_REWRITE_H
#define SHARDC_REWRITE_H

#include "ir/ir.h"

typedef struct Rewriter {
	Module *m;
	Builder b;      /* emits before the op at hand */
	Diag *d;
	Arena *scratch;
	EvalEnv *env;   /* of constants */
	void *context;  /* of the pass's own rules */
	PtrMap *told;   /* ops whose refusal was said */
	PtrMap *memo;   /* of the pass's own rules, by value */
	struct Progress *progress;
	const char *detail; /* set by a rule that stands for several: which of them it was; NULL = itself */
	VEC(Op *) queue;
	int head;
} Rewriter;

/* What rewriting a module that has one applied.  No rule is applied once n has reached the limit; so the first that
 * does harm can be found. */
typedef struct RewriteTrace {
	int64_t limit, n;
	const char *rule;   /* the last one: its pattern, */
	const char *detail; /*   which of several it was, NULL = it is one, */
	const Loc *loc;     /*   and where the op came from */
	const char *value;  /*   and what it made was called */
} RewriteTrace;

typedef Value *RuleFn(Rewriter *r, Op *op);
enum { RULE_ANY = OP_COUNT };
typedef struct Rule { int kind; const char *pattern; RuleFn *fn; } Rule; /* kind: OpKind or RULE_ANY */
typedef struct RuleSet { const Rule *rule; int n; } RuleSet;

/* Applies the sets, earlier ones first at each op, and removes what becomes unused.  prepare, if any, is
 * called before the first rule. */
typedef void PrepareFn(Rewriter *r);
void rewrite_module(Module *m, Diag *d, int n_sets, const RuleSet *sets, PrepareFn *prepare, void *context);
/* For rules that emit elsewhere than before their op. */
void rewrite_enqueue(Rewriter *r, Op *op);
/* Emits op's kind with other operands and attributes; replaces op's results but the first. */
Value *rewrite_again(Rewriter *r, Op *op, int n_in, Value *const *in, Attr *attrs);

/* Has now called what old, which is to go, was called. */
void rewrite_take_name(Value *now, Value *old);

/* ---- what rules ask ---- */

/* v's op when it is of that kind, else NULL. */
static inline Op *def_of(const Value *v, OpKind kind)
{
	return v && v->op && v->op->kind == kind ? v->op : NULL;
}
/* The literal that all elements of v are; sees through broadcast, reshape and float casts. */
bool match_number(const Value *v, double *out);
static inline bool match_is(const Value *v, double want)
{
	double got;
	return match_number(v, &got) && got == want;
}
/* op is binary with operands x and a number, in this order (either order if it commutes). */
bool match_with_number(const Op *op, Value **x, double *number);
/* A literal, evenly spaced numbers, or a broadcast of one. */
bool match_literal(const Value *v);
/* Constants that may be evaluated without harm: literals and what is made of them. */
EvalTensor *match_constant(Rewriter *r, Value *v, int64_t max_numel);
/* value attribute of a const that is one literal for all elements. */
const Attr *const_splat(const Value *v);
/* A const of t's contents, one literal when they agree. */
Value *rewrite_const(Rewriter *r, const EvalTensor *t);
Value *rewrite_splat(Rewriter *r, const Attr *value, Type type);

static inline int axis_of(const Op *op) { return (int)attr_get_int(op->attrs, "axis", 0); }
/* attrs' list of ints, which has n entries (an ice otherwise). */
const int64_t *ints_of(const Op *op, const char *name, int n);
/* The permutation of a transpose. */
void perm_of(const Op *transpose, int *perm);
/* v is a transpose by exactly perm: its operand, else NULL. */
Value *match_transpose(const Value *v, int rank, const int *perm);
/* v without a broadcast (or a reshape that puts dims of 1 in front). */
Value *strip_broadcast(Value *v);

#endif
