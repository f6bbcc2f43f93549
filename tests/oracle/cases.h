/* tests/oracle/cases.h: the schedules whose mutants are judged: a model, and how it is sharded. */
#ifndef SHARDC_TEST_CASES_H
#define SHARDC_TEST_CASES_H

#include "passes/passes.h"

typedef struct Case {
	const char *model;     /* gpt | cnn | tied */
	const char *strategy, *wrap, *forward, *backward, *limit, *reduces; /* options of these names, NULL = default */
	const char *unit_strategy, *ignore;
	const char *remat;
	bool reshard_root, early; /* early: --update=backward */
	BnSync bn_sync;
	DType param, reduce;   /* 0 = f32 */
	DType bcast;           /* 0 = not given */
	Sync sync;             /* 0 = one micro-batch a step; else variant is the one that is changed */
	Variant variant;
} Case;
extern const Case cases[];
extern const int n_cases;

const char *case_name(const Case *c, Arena *a);
Options case_options(const Case *c);
/* The PLANs of a case, freed by pipeline_free(); schedule: path of an edited schedule of its variant, or NULL.
 * Returns that variant, NULL after a message to d. */
Module *case_build(const Case *c, const char *schedule, Variants *v, Diag *d);
/* The case's variant after a pass, as text; NULL after a message to d. */
const char *case_text(const Case *c, const char *pass, Arena *a, Diag *d);

#endif
