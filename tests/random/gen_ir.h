/* tests/random/gen_ir.h: what generators of IR share. */
#ifndef SHARDC_TEST_GEN_IR_H
#define SHARDC_TEST_GEN_IR_H

#include "tests/random/random.h"

typedef struct Gen {
	Module *m;
	Builder b;
	Rng *r;
	VEC(Value *) pool;
	int n_symbols;
} Gen;

/* ---- gen_values.c ---- */

typedef enum Want { WANT_FLOAT, WANT_INT, WANT_BOOL, WANT_ANY } Want;
Type gen_type(Gen *g, DType t, int least_rank);
Type gen_companion(Gen *g, const Type *t, DType dtype);        /* a shape that broadcasts with t's */
Value *gen_symbol(Gen *g, SymbolKind kind, Type t);            /* what a new one holds */
Value *gen_source(Gen *g, Type t);                             /* a symbol or literals of that type */
Value *gen_pick(Gen *g, Want want, int least_rank);            /* some value that exists, else a source */
Value *gen_floats(Gen *g, int least_rank);                     /* some value of f32 */
Value *gen_like(Gen *g, const Value *x);                       /* one that broadcasts with x, of its dtype */
/* Ids below n, negative ones too where `negative`. */
Value *gen_ids(Gen *g, Type t, int64_t n, bool negative);

/* gen_pattern.c: ops as exporters spell norms, softmax, attention and their like, one in three of them with something
 * else than the pattern has; the last op, NULL = none. */
Op *gen_pattern(Gen *g);

#endif
