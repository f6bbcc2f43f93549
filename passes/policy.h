/* passes/policy.h: the file of --wrap=file:POLICY.json, for those who call the pipeline.  Members that say what an
 * option says are options (policy_options); the passes read the rest of the file themselves. */
#ifndef SHARDC_POLICY_H
#define SHARDC_POLICY_H

#include "passes/passes.h"

/* An option that the file says. */
typedef struct PolicyOption {
	const char *option;  /* "--strategy" */
	const char *text;    /* its value, "" of a flag; NULL: the flag must not be given */
	const char *at;      /* "policy.json: $.strategy" */
} PolicyOption;
typedef VEC(PolicyOption) PolicyOptions;
/* Reads the file that --wrap names; nothing where it names none.  False after messages about all that is wrong. */
bool policy_options(const Options *o, PolicyOptions *out, Arena *a, Diag *d);

/* passes/shard/policy_write.c: writes the units of a module at SHARD or later as a file that makes the same units; o: the
 * options that they were made with. */
void policy_write(FILE *f, const Module *m, const Options *o);

#endif
