/* build.h: the modules of a program: read as the options say, and planned. */
#ifndef SHARDC_BUILD_H
#define SHARDC_BUILD_H

#include "frontend/frontend.h"
#include "passes/passes.h"

static inline bool is_plan(const Options *o)
{
	return o->command == COMMAND_PLAN;
}

static inline bool calibrates(const Options *o)
{
	return o->command == COMMAND_CALIBRATE;
}

/* Whether IR is printed instead of a program being compiled. */
static inline bool prints_ir(const Options *o)
{
	EmitKind e = o->what.emit;
	return o->what.passes || o->what.stop_after || e == EMIT_IR || e == EMIT_DOT || e == EMIT_JSON;
}

/* The variant of the micro-batch that is shown. */
static inline Variant shown_variant(const Options *o)
{
	return o->given.micro_batch ? o->what.micro_batch : options_many(o) ? VARIANT_LAST : VARIANT_ONLY;
}

static inline Sync sync_of(const Options *o)
{
	return o->given.sync ? o->graph.sync : SYNC_LAST;
}

/* With which a model is read. */
FrontendOptions frontend_options(const Options *o);
/* twin.c: notes in the outputs of a model that was read with one sample what two samples show of them.  path: its file;
 * as: how it was read. */
void twin_note(Module *m, const char *path, const FrontendOptions *as);
/* Reads the model or text.  smaller: how many sizes of --bind below the largest.  False after messages. */
bool build_load(Variants *v, const Options *o, int smaller, Arena *a, Diag *d);
/* Joins the options with the train block of a text on which passes run; false after messages. */
bool build_join_block(const Variants *v, Options *o, Diag *d);
/* Whether a text at PLAN was read, which is a program already: no pass runs unless --passes names some. */
bool build_is_planned(const Variants *v, const Options *o);
/* Whether micro-batches may be reduced one by one for the sake of --memory-limit: the user did not say when, and
 * nothing that was shown of the other plan would be wrong. */
bool build_may_reduce_each(const Options *o, const PipelineView *view);
/* Plans the modules of a step: `only` alone, or all variants; false after messages. */
bool build_program(Variants *v, const Options *o, const PipelineView *view, Diag *d);

/* The number of sizes that --bind has; 0 after a message. */
int build_count_sizes(const Options *o, Diag *d);
/* Plans the smaller sizes as the largest was, which is s->of[0], and puts all n plans into one memory. */
bool build_sizes(Sizes *s, int n, Options *o, Arena *a, Diag *d);
void build_free_sizes(Sizes *s);

#endif
