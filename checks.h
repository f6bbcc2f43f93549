/* checks.h: options against each other and against the files that they name, before a model is read.  Each is false
 * after messages. */
#ifndef SHARDC_CHECKS_H
#define SHARDC_CHECKS_H

#include "codegen/codegen.h"
#include "passes/passes.h"

CodegenTarget target_options(const Options *o);

bool check_target(const Options *o, Diag *d);   /* options that belong to the other target */
void check_products(Module *m, const Options *o, Diag *d); /* a text's, of dtypes that the GPU has not */
bool check_compiler(const Options *o, Diag *d); /* a compiler or runtime that is missing */
bool check_ranks(const Options *o, Diag *d);    /* the number of ranks for which a plan is requested */
bool check_accum(const Options *o, Diag *d);    /* options of several micro-batches where a step has one */
bool check_half_hook(Options *o, Diag *d);      /* bf16 and f16 as --comm-hook, which become --reduce-dtype */
/* Other dtypes than f32 for what a hook gets, and a hook where the reduced gradient must be added up. */
bool check_sent(const Options *o, Diag *d);
bool check_hook(const Options *o, const Hook *hook, Diag *d);
/* A program may replace an older program, but no other file that somebody may miss. */
bool check_output(const char *path, Diag *d);
/* A file to be written must not be one that this command reads. */
bool check_apart(const Options *o, const char *option, const char *path, Diag *d);

#endif
