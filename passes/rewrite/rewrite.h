/* passes/rewrite/rewrite.h: tables of rewrite rules and the worklist that applies them.
 *
 * A rule looks at one op and returns the value that replaces the op's first result, made of ops that it emitted
 * through r->b (before the op, with its location) or of existing values; NULL when it does not apply.  The value
 * must equal the old one for every input, up to rounding.  The rule itself must have replaced the other results,
 * unless they are unused.  Rules never edit ops in place, so a constant that was evaluated once stays valid.
 * Rewriting goes on until no rule applies, so a second run changes nothing.  It terminates because every
 * application lowers the measure of measure.h; progress.h checks this in the tests and stops a runaway in every
 * build. */
#ifndef SHARDC_REWRITE_H
#define SHARDC_REWRITE_H

#include "ir/ir.h"

typedef struct Rewriter {
	Module *m;
	Builder b;      /* emits before the current op */
	Diag *d;
	Arena *scratch;
	EvalEnv *env;   /* evaluated constants */
	void *context;  /* for the pass's own rules */
	PtrMap *told;   /* ops whose refusal was noted */
	PtrMap *memo;   /* for the pass's own rules, by value */
	struct Progress *progress;
	const char *detail; /* set by a rule that stands for several: which of them it was; NULL = itself */
	VEC(Op *) queue;
	int head;
} Rewriter;

/* What was applied to a module that has a RewriteTrace.  No rule is applied once n has reached the limit, so that
 * the first application that does harm can be found. */
typedef struct RewriteTrace {
	int64_t limit, n;
	const char *rule;   /* pattern of the last rule that was applied */
	const char *detail; /*   which of several rules it was; NULL = the rule is only one */
	const Loc *loc;     /*   the location of the op */
	const char *value;  /*   the name of the value that it made */
} RewriteTrace;

typedef Value *RuleFn(Rewriter *r, Op *op);
enum { RULE_ANY = OP_COUNT };
typedef struct Rule { int kind; const char *pattern; RuleFn *fn; } Rule; /* kind: OpKind or RULE_ANY */
typedef struct RuleSet { const Rule *rule; int n; } RuleSet;

/* Applies the rule sets, earlier ones first at each op, and removes ops that become unused.  prepare may be NULL;
 * it is called before the first rule. */
typedef void PrepareFn(Rewriter *r);
void rewrite_module(Module *m, Diag *d, int n_sets, const RuleSet *sets, PrepareFn *prepare, void *context);
/* Puts an op on the list, for rules that emit elsewhere than before their op. */
void rewrite_enqueue(Rewriter *r, Op *op);
/* Emits an op of op's kind with other operands and attributes, and replaces all results of op but the first. */
Value *rewrite_again(Rewriter *r, Op *op, int n_in, Value *const *in, Attr *attrs);

/* Gives `now` the name of `old`, which is going to be removed. */
void rewrite_take_name(Value *now, Value *old);

/* ---- what rules ask ---- */

/* v's op when it is of that kind, else NULL. */
static inline Op *def_of(const Value *v, OpKind kind)
{
	return v && v->op && v->op->kind == kind ? v->op : NULL;
}
/* The number that all elements of v are; looks through broadcast, reshape and float casts. */
bool match_number(const Value *v, double *out);
static inline bool match_is(const Value *v, double want)
{
	double got;
	return match_number(v, &got) && got == want;
}
/* Whether op is binary with operands x and a number, in this order (in either order if it commutes). */
bool match_with_number(const Op *op, Value **x, double *number);
/* Whether v is a literal, evenly spaced numbers, or a broadcast of one of these. */
bool match_literal(const Value *v);
/* The contents of v if it is a literal, or computed from literals only, and has at most max_numel elements; else
 * NULL. */
EvalTensor *match_constant(Rewriter *r, Value *v, int64_t max_numel);
/* The value attribute of a const that is one literal for all elements, else NULL. */
const Attr *const_splat(const Value *v);
/* A const with the contents of t; a single literal when all elements agree. */
Value *rewrite_const(Rewriter *r, const EvalTensor *t);
Value *rewrite_splat(Rewriter *r, const Attr *value, Type type);

static inline int axis_of(const Op *op) { return (int)attr_get_int(op->attrs, "axis", 0); }
/* The list of ints of this name, which must have n entries (otherwise an ice). */
const int64_t *ints_of(const Op *op, const char *name, int n);
/* The permutation of a transpose. */
void perm_of(const Op *transpose, int *perm);
/* v's operand if v is a transpose by exactly perm, else NULL. */
Value *match_transpose(const Value *v, int rank, const int *perm);
/* v without a broadcast (or without a reshape that only puts dims of 1 in front). */
Value *strip_broadcast(Value *v);

#endif
