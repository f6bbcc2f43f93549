/* ir/verify.h: what the parts of the verifier share.  Private to ir/verify*.c. */
#ifndef SHARDC_VERIFY_H
#define SHARDC_VERIFY_H

#include "ir/ir.h"

/* What is known of a value, by its id. */
typedef struct OfValue {
	int scope; /* where it is defined, 0 = nowhere yet */
	int more;  /* operand slots that name it, less as many as it says */
	uint32_t links; /* of its list of uses: those forward less those backward, 0 when they are the same */
} OfValue;

typedef struct Verify {
	Module *m;
	const char *after;  /* pass to blame; NULL: the text's author */
	Diag *diag;
	Arena *arena;       /* of this run */
	int errors;
	OfValue *of;        /* by Value.id */
	uint64_t *hash;     /* of the names of all results */
	int n_names;
	int n_scopes;
} Verify;

/* The violation of op (NULL: of the module).  Internal errors do not return. */
void verify_fail(Verify *v, const Op *op, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* verify_train.c: the train block. */
void verify_train(Verify *v);

/* verify_shard.c: units, flats and offsets; what lives between gather and reshard. */
void verify_units(Verify *v);
void verify_sharding(Verify *v);

#endif
