/* ir/verify.h: what the parts of the verifier share.  Private to ir/verify*.c. */
#ifndef SHARDC_VERIFY_H
#define SHARDC_VERIFY_H

#include "ir/ir.h"

/* What the verifier knows of a value; indexed by its id. */
typedef struct OfValue {
	int scope; /* where it is defined; 0 = not defined yet */
	int more;  /* operand slots that name it, minus its n_uses */
	uint32_t links; /* hashes of forward links minus hashes of backward links in its list of uses; 0 if they agree */
} OfValue;

typedef struct Verify {
	Module *m;
	const char *after;  /* the pass to blame; NULL: the module was parsed */
	Diag *diag;
	Arena *arena;       /* freed at the end of the check */
	int errors;
	OfValue *of;        /* by Value.id */
	uint64_t *hash;     /* hashes of the names of all results */
	int n_names;
	int n_scopes;
} Verify;

/* Reports a violation at op (NULL: of the whole module).  Does not return if it is an internal error. */
void verify_fail(Verify *v, const Op *op, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The same of a symbol, a unit or a block: at is its place in the text. */
void verify_fail_at(Verify *v, TextPlace at, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* verify_train.c: checks the train block. */
void verify_train(Verify *v);

/* verify_shard.c: verify_units checks units, flats and offsets; verify_sharding the life of gathered values. */
void verify_units(Verify *v);
void verify_sharding(Verify *v);

#endif
