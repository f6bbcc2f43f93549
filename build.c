/* build.c: reads the modules of a program and plans them. */
#include "build.h"

#include <string.h>

FrontendOptions frontend_options(const Options *o)
{
	return (FrontendOptions){
		.graph = o->graph, .inputs = o->what.inputs_dir, .infer = options_infer(o),
		.init_elsewhere = o->graph.init && strcmp(o->graph.init, "onnx"),
		.shapes_only = prints_ir(o) || is_plan(o),
	};
}

/* smaller: how many sizes of --bind below the largest. */
bool build_load(Variants *v, const Options *o, int smaller, Arena *a, Diag *d)
{
	if (!options_reads_text(o)) {
		FrontendOptions f = frontend_options(o);
		f.say_roles = !f.infer;
		f.smaller = smaller;
		v->of[VARIANT_ONLY] = onnx_load(o->input, &f, d);
		if (v->of[VARIANT_ONLY])
			twin_note(v->of[VARIANT_ONLY], o->input, &f);
		return v->of[VARIANT_ONLY];
	}
	char *text = diag_read_file(d, o->input, a);
	bool ok = text && ir_parse_program(o->input, text, v, d);
	for (int k = 0; k < VARIANT_COUNT && ok; k++)
		ok = !v->of[k] || ir_verify(v->of[k], NULL, d);
	return ok;
}

/* Checks --offload beside a text that has units: of GPUs, those that say nothing are made for what its block says. */
static bool check_offload(const Module *m, const Options *o, Diag *d)
{
	bool unsaid = false, asked = o->memory.offload == LAYOUT_OFFLOAD_PARAMS;
	for (int i = 0; i < m->n_units; i++)
		unsaid = unsaid || m->units[i]->offload < 0;
	bool refused = m->train->cuda && unsaid && asked != (m->train->offload == LAYOUT_OFFLOAD_PARAMS);
	if (refused)
		diag_error(d, "--offload", "%s: \"%s\" has units already, for GPUs and offload=%s: leave it out, or compile "
			"the model again", offload_text[o->memory.offload], o->input, offload_text[m->train->offload]);
	return !refused;
}

/* Joins the options with the train block of a text on which passes run.  Its optimizer is there as ops and states, and
 * its target decided some of its ops; the passes behind it read --offload and --matmul-precision, which are those of
 * the block unless they are given. */
bool build_join_block(const Variants *v, Options *o, Diag *d)
{
	Train *t = v->of[VARIANT_ONLY]->train;
	const char *asked = o->graph.optimizer;
	if (!t)
		return true;
	if (asked && strcmp(asked, t->optimizer))
		diag_warn(d, "--optimizer", "the train block of \"%s\" says optimizer=\"%s\": \"%s\" is not used", o->input,
			t->optimizer, asked);
	if (o->given.offload && !check_offload(v->of[VARIANT_ONLY], o, d))
		return false;
	if (o->given.offload)
		t->offload = o->memory.offload;
	o->memory.offload = t->offload;
	if (o->given.matmul_precision)
		t->tf32 = o->precision.matmul_precision == MATMUL_TF32;
	o->precision.matmul_precision = t->tf32 ? MATMUL_TF32 : MATMUL_HIGHEST;
	if (t->cuda == options_cuda(o))
		return true;
	diag_error(d, o->input, "its train block is for --target=%s: give that, or compile the model again",
		t->cuda ? "cuda" : "cpu");
	return false;
}

/* Whether a text at PLAN was read, which is a program already: no pass runs unless --passes names some. */
bool build_is_planned(const Variants *v, const Options *o)
{
	return options_reads_text(o) && v->of[VARIANT_ONLY]->level == LEVEL_PLAN && !o->what.passes;
}

/* Whether micro-batches may be reduced one by one for the sake of --memory-limit: the user did not say when, and
 * nothing that was shown of the other plan would be wrong. */
bool build_may_reduce_each(const Options *o, const PipelineView *view)
{
	bool shows = view->stop_after || view->dump_dir || view->print_after || view->print_changed || view->check;
	return options_many(o) && o->memory.memory_limit && !o->given.sync && !shows && !o->sharding.schedule_in
		&& !o->graph.comm_hook && !o->precision.keep_low_precision_grads;
}

/* Plans steps that keep whole gradients over micro-batches and, where these are above --memory-limit, steps that keep
 * the reduced parts. */
static bool build_within_limit(Variants *v, const Options *o, const PipelineView *view, Diag *d)
{
	Options unlimited = *o;
	unlimited.memory.memory_limit = 0;
	if (!pipeline_fork(v->of[VARIANT_ONLY], &unlimited, view, SYNC_LAST, shown_variant(o), v, d))
		return false;
	int64_t last = pipeline_memory(v, o).total;
	if (last <= o->memory.memory_limit)
		return true;
	pipeline_free(v);
	d->quiet = true; /* notes and warnings were said before */
	bool ok = pipeline_again(view->restart, o, SYNC_EVERY, false, v, d);
	d->quiet = false;
	if (ok)
		diag_note(d, "--sync", "every is taken, in which each micro-batch is reduced: with last, which keeps whole "
			"gradients between them, the plan needs %lld bytes and --memory-limit is %lld", (long long)last,
			(long long)o->memory.memory_limit);
	return ok;
}

/* Builds the modules of a step: `only` alone, or all variants. */
bool build_program(Variants *v, const Options *o, const PipelineView *view, Diag *d)
{
	if (build_may_reduce_each(o, view))
		return build_within_limit(v, o, view, d);
	if (options_many(o))
		return pipeline_fork(v->of[VARIANT_ONLY], o, view, sync_of(o), shown_variant(o), v, d);
	return pipeline_run(v->of[VARIANT_ONLY], o, view, o->what.passes, d);
}

/* ---- several sizes ---- */

/* "seq=128" or, where several dimensions have sizes, "src=128 tgt=64". */
static const char *size_name(const Options *o, int k, Arena *a)
{
	const char *name = "";
	int64_t size[SIZES_MAX];
	for (int i = 0; i < o->graph.bind.n; i++) {
		const char *bind = o->graph.bind.at[i];
		if (sizes_several(bind) && sizes_of(bind, size))
			name = arena_printf(a, "%s%s%.*s=%lld", name, *name ? " " : "", (int)strcspn(bind, "="), bind,
				(long long)size[k]);
	}
	return name;
}

/* Checks one list of sizes; *n: how many the lists before it have, 1 = there was none. */
static bool check_list(const char *bind, int *n, Diag *d)
{
	int64_t size[SIZES_MAX];
	int has = sizes_of(bind, size), before = d->errors;
	if (!has)
		diag_error(d, "--bind", "\"%s\" is no DIM=N,N,.. of at most %d sizes", bind, SIZES_MAX);
	for (int k = 0; k < has && d->errors == before; k++)
		if (size[k] < 1)
			diag_error(d, "--bind", "\"%s\": a size is at least 1", bind);
		else if (k && size[k] == size[k - 1])
			diag_error(d, "--bind", "\"%s\": %lld is there twice", bind, (long long)size[k]);
		else if (k && size[k] < size[k - 1])
			diag_error(d, "--bind", "\"%s\": sizes stand in rising order, %lld is below %lld", bind, (long long)size[k],
				(long long)size[k - 1]);
	if (d->errors == before && *n > 1 && has != *n)
		diag_error(d, "--bind", "\"%s\" has %d sizes, the dimension before it %d: the k-th sizes of all of them belong "
			"together, so give as many", bind, has, *n);
	*n = has;
	return d->errors == before;
}

/* The number of sizes; 0 after a message. */
int build_count_sizes(const Options *o, Diag *d)
{
	int n = 1, before = d->errors;
	for (int i = 0; i < o->graph.bind.n; i++)
		if (sizes_several(o->graph.bind.at[i]) && !check_list(o->graph.bind.at[i], &n, d))
			return 0;
	if (n > 1 && prints_ir(o))
		diag_error(d, "--bind", "IR is that of one size: give this dimension one number, as %s", "--bind seq=128");
	else if (n > 1 && options_infer(o))
		diag_error(d, "--bind", "shardc run takes one size, that of its inputs");
	else if (n > 1 && (o->sharding.schedule_in || o->inspection.schedule_out))
		diag_error(d, o->sharding.schedule_in ? "--schedule-in" : "--schedule-out", "a schedule is that of one size, "
			"and --bind gives %d", n);
	return d->errors == before ? n : 0;
}

/* Plans the smaller sizes as the largest was, and puts all plans into one memory. */
bool build_sizes(Sizes *s, int n, Options *o, Arena *a, Diag *d)
{
	PipelineView silent = {0};
	bool quiet = d->quiet, ok = true;
	Module *large = s->of[0].of[VARIANT_ONLY];
	Sync sync = s->of[0].of[VARIANT_FIRST] ? s->of[0].of[VARIANT_FIRST]->sync : SYNC_NONE;
	if (n == 1)
		return true;
	s->of[n - 1] = s->of[0];
	s->of[0] = (Variants){{NULL}};
	s->n = n;
	for (int k = 0; k < n; k++)
		s->name[k] = size_name(o, k, large->arena);
	d->quiet = true; /* notes about the largest size hold for all */
	for (int k = 0; k < n - 1 && ok; k++) {
		Variants *v = &s->of[k];
		ok = build_load(v, o, n - 1 - k, a, d) && (sync == SYNC_NONE
			? pipeline_run(v->of[VARIANT_ONLY], o, &silent, NULL, d)
			: pipeline_fork(v->of[VARIANT_ONLY], o, &silent, sync, shown_variant(o), v, d));
		d->quiet = quiet;
		if (!ok)
			diag_note(d, "--bind", "found at %s, one of %d sizes", s->name[k], n);
		d->quiet = true;
	}
	d->quiet = quiet;
	return ok && sizes_join(s, o, d);
}

void build_free_sizes(Sizes *s)
{
	for (int k = 0; k < s->n; k++)
		pipeline_free(&s->of[k]);
}
