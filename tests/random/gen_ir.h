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

Value *gen_source(Gen *g, Type t);                             /* a symbol or literals of that type */
Value *gen_floats(Gen *g, int least_rank);                     /* some value of f32 */
Type gen_companion(Gen *g, const Type *t, DType dtype);        /* a shape that broadcasts with t's */
/* gen_pattern.c: ops as exporters spell norms, softmax, attention and their like, one in three of them with something
 * else than the pattern has; the last op, NULL = none. */
Op *gen_pattern(Gen *g);

#endif
