/* choose.c: what --remat=auto and --wrap=auto stand for. */
#include "choose.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "build.h"
#include "checks.h"
#include "options.h"
#include "passes/remat/remat.h"
#include "predict/predict.h"
#include "recompute.h"

/* ---- --remat=auto ---- */

/* Checks what is asked of the search, before a model is read. */
bool choose_check(const Options *o, const Search *chosen, Diag *d)
{
	int before = d->errors;
	bool searches = remat_mode(o->memory.remat) == REMAT_AUTO;
	if (o->inspection.remat_out && !searches && !chosen)
		diag_error(d, "--remat-out", "\"%s\" is for what --remat=auto chooses: give that too", o->inspection.remat_out);
	if (o->inspection.remat_out && !remat_is_file(o->inspection.remat_out))
		diag_error(d, "--remat-out", "\"%s\" does not end in .json, so --remat would not take it",
			o->inspection.remat_out);
	if (searches && (o->what.passes || o->what.stop_after))
		diag_error(d, "--remat", "auto plans the whole program: leave out %s, or give the file that --remat-out wrote",
			o->what.passes ? "--passes" : "--stop-after");
	return d->errors == before;
}

/* Puts a policy in the place of --remat=auto.  asked: the options as they were when the model was read.  A machine has
 * no part in it: a plan that is predicted has the choice of the program that is compiled. */
bool choose_remat(Options *o, Options *asked, const PipelineView *view, Arena *a, Diag *d)
{
	Variants copy = {{NULL}};
	bool quiet = d->quiet;
	if (remat_mode(o->memory.remat) != REMAT_AUTO || options_infer(o))
		return true;
	if (!o->memory.memory_limit) {
		diag_note(d, "--remat", "auto recomputes what --memory-limit asks for, and none is given: nothing is "
			"recomputed");
		o->memory.remat = "none";
		return true;
	}
	d->quiet = true; /* notes were said when it was read before */
	bool ok = build_load(&copy, asked, 0, a, d);
	d->quiet = quiet;
	if (!ok)
		return false;
	Recompute *r = recompute_begin(copy.of[VARIANT_ONLY], o, options_many(o) ? sync_of(o) : SYNC_NONE, NULL);
	o->memory.remat = recompute_within(r, o->memory.memory_limit, build_may_reduce_each(o, view), a, d);
	recompute_end(r);
	return o->memory.remat;
}

bool choose_write_remat(const Options *o, Diag *d)
{
	const char *path = o->inspection.remat_out;
	if (remat_mode(o->memory.remat) != REMAT_POLICY) {
		diag_warn(d, "--remat-out", "nothing is recomputed: \"%s\" is not written", path);
		return true;
	}
	FILE *f = fopen(path, "w");
	if (f)
		fputs(o->memory.remat, f);
	if (!file_flush_close(f))
		diag_unwritten(d, path);
	return !d->errors;
}

/* ---- planning from the model, in silence ---- */

/* Whether what is known of plans with options k->o is that of plans with these, whatever their limit. */
static bool is_known(const ChooseKept *k, const Options *o, Sync sync)
{
	Options x = *o;
	x.memory.memory_limit = k->o.memory.memory_limit;
	x.memory.remat = k->o.memory.remat;
	x.given = k->o.given;
	return k->of && k->sync == sync && !memcmp(&x, &k->o, sizeof(x));
}

static void forget(ChooseKept *k)
{
	recompute_end(k->of);
	arena_free(k->a);
}

/* NULL: the model is refused. */
static Recompute *known_of(ChooseAgain *c, const Options *o, Sync sync)
{
	Variants copy = {{NULL}};
	Diag silent = {.silent = true};
	Options asked = c->asked;
	for (int i = 0; i < CHOOSE_KEPT; i++)
		if (is_known(&c->kept[i], o, sync))
			return c->kept[i].of;
	asked.graph.bind = o->graph.bind;
	Arena *a = arena_new();
	if (!build_load(&copy, &asked, 0, a, &silent)) {
		arena_free(a);
		return NULL;
	}
	ChooseKept *k = &c->kept[c->n_kept++ % CHOOSE_KEPT];
	forget(k);
	*k = (ChooseKept){*o, sync, recompute_begin(copy.of[VARIANT_ONLY], o, sync, c->machine), a};
	return k->of;
}

static const char *recompute(const Options *o, void *context, Arena *a)
{
	Diag silent = {.silent = true};
	Recompute *r = known_of(context, o, options_many(o) ? sync_of(o) : SYNC_NONE);
	return r ? recompute_within(r, o->memory.memory_limit, false, a, &silent) : NULL;
}

static bool memory(const Options *o, PlanNeeds *out, void *context)
{
	const ChooseAgain *c = context;
	PipelineView view = {0};
	Variants v = {{NULL}};
	Diag silent = {.silent = true};
	Arena *a = arena_new();
	Options asked = c->asked, planned = *o;
	asked.graph.bind = o->graph.bind;
	bool ok = build_load(&v, &asked, 0, a, &silent) && build_join_block(&v, &planned, &silent)
		&& build_program(&v, &planned, &view, &silent);
	if (ok) {
		LayoutMemory needs = pipeline_memory(&v, &planned);
		*out = (PlanNeeds){needs.total, needs.host.total, v.of[VARIANT_ONLY]->batch};
	}
	pipeline_free(&v);
	arena_free(a);
	return ok;
}

PlanAgain choose_again(ChooseAgain *context)
{
	return (PlanAgain){recompute, memory, context};
}

void choose_again_end(ChooseAgain *context)
{
	for (int i = 0; i < CHOOSE_KEPT; i++)
		forget(&context->kept[i]);
}

/* ---- --wrap=auto ---- */

/* Reports what --wrap=auto cannot be given with. */
static bool check_search(const Options *o, Diag *d)
{
	int before = d->errors;
	const char *where = "--wrap";
	if (o->command != COMMAND_COMPILE && o->command != COMMAND_PLAN)
		diag_error(d, where, "auto chooses the units of a program or of a plan");
	if (!o->what.machine)
		diag_error(d, where, "auto wants --machine=FILE, for which it looks for the fastest plan: one of machines/ or "
			"your own (docs/prediction.md)");
	if (o->sharding.wrap.n > 1)
		diag_error(d, where, "auto stands alone, and there are %d policies", o->sharding.wrap.n);
	if (o->sharding.schedule_in)
		diag_error(d, where, "auto chooses the order of collectives, and --schedule-in=%s has one",
			o->sharding.schedule_in);
	if (o->what.passes)
		diag_error(d, where, "auto runs all passes, and --passes some");
	return d->errors == before;
}

/* The name of the samples' axis, where --global-batch leaves it to the search: the free first axis of the inputs that
 * nothing binds.  "": there is none; NULL after a message. */
static const char *free_batch(const Options *o, Arena *a, Diag *d)
{
	DeclaredInputVec inputs = {0};
	const char *found = "";
	if (!o->what.global_batch || options_reads_text(o))
		return found;
	if (!onnx_declared(o->input, a, &inputs, d))
		return NULL;
	for (int i = 0; i < inputs.n; i++) {
		const DeclaredInput *in = &inputs.at[i];
		const char *name = in->rank > 0 ? in->param[0] : "";
		if (!name || !*name || options_list_has(&o->graph.bind, name)
				|| options_list_has(&o->graph.input_shape, in->name))
			continue;
		if (*found && strcmp(found, name)) {
			diag_error(d, "--global-batch", "the inputs of the model begin with the axes \"%s\" and \"%s\": give "
				"--bind for the one that is not the samples'", found, name);
			return NULL;
		}
		found = name;
	}
	return found;
}

/* Whether the time of the plan without a choice is predicted, and a step is whole micro-batches; what keeps it from
 * that is in every other plan too. */
static bool is_predicted(const Variants *v, const Options *o, const Machine *machine, Arena *a, Diag *d)
{
	const Module *m = v->of[VARIANT_ONLY];
	LayoutModel layout = memory_layout(m, a);
	LayoutRank who;
	Options many = *o;
	many.graph.accum = search_may_many(o) ? ACCUM_MANY : ACCUM_ONE;
	memory_describe(&layout, &who, m, o);
	return predict_accepts(m, &layout, machine, d) && predict_divides(&many, m->batch, d);
}

/* Reads and plans the model with one size of the micro-batch, and keeps where planning can begin again.  bind: the
 * option that says the size; NULL: none does. */
static bool begin_batch(SearchBatch *b, Options *o, const char *bind, const Machine *machine, Arena *a, Diag *d)
{
	Variants v = {0};
	PipelineView view = {.restart = &b->start};
	int binds = o->graph.bind.n;
	pipeline_forget(&b->start); /* of a size that was left out */
	*b = (SearchBatch){.bind = bind, .start.arena = a};
	if (bind)
		o->graph.bind.at[o->graph.bind.n++] = bind;
	bool ok = build_load(&v, o, 0, a, d);
	if (ok && build_is_planned(&v, o)) {
		diag_error(d, "--wrap", "auto plans, and %s is planned already: give the model", o->input);
		ok = false;
	}
	ok = ok && build_join_block(&v, o, d) && build_program(&v, o, &view, d) && is_predicted(&v, o, machine, a, d);
	b->size = ok ? v.of[VARIANT_ONLY]->batch : 0;
	o->graph.bind.n = binds;
	pipeline_free(&v);
	return ok;
}

/* Prepares the micro-batches that are tried: those of --global-batch whose plan is not refused, or else the one that
 * the options say.  Returns their number; 0 after messages. */
static int begin_batches(SearchBatch *batch, Options *o, const Machine *machine, Arena *a, Diag *d)
{
	const char *name = free_batch(o, a, d);
	if (!name)
		return 0;
	if (!*name)
		return begin_batch(&batch[0], o, NULL, machine, a, d);
	int64_t size[SEARCH_BATCHES];
	Options many = *o;
	many.graph.accum = ACCUM_MANY;
	if (!predict_divides(&many, 1, d))
		return 0;
	if (o->graph.bind.n == OPTION_LIST_MAX) {
		diag_error(d, "--bind", "there are %d of them, and none is left for %s, the axis of the samples",
			OPTION_LIST_MAX, name);
		return 0;
	}
	int n = 0, sizes = search_batches(o, size);
	for (int i = 0; i < sizes; i++) {
		Diag silent = {.silent = true};
		const char *bind = arena_printf(a, "%s=%lld", name, (long long)size[i]);
		bool ok = begin_batch(&batch[n], o, bind, machine, a, &silent);
		n += ok && batch[n].size == size[i];
	}
	if (!n && begin_batch(&batch[0], o, arena_printf(a, "%s=%lld", name, (long long)size[0]), machine, a, d))
		diag_error(d, "--global-batch", "\"%s\", the first axis of the inputs, is not that of the samples: give --bind "
			"%s=N, with which a micro-batch has %s", name, name, str_count(a, batch[0].size, "sample"));
	return n;
}

static void forget_batches(SearchBatch *batch)
{
	for (int i = 0; i < SEARCH_BATCHES; i++)
		pipeline_forget(&batch[i].start);
}

/* Finds the options that --wrap=auto stands for; NULL after messages. */
static Search *search(const Options *given, Arena *a, Diag *d)
{
	Options o = *given;
	Machine *machine = NULL;
	PipelineView silent = {0};
	SearchBatch *batch = NEW_N(a, SearchBatch, SEARCH_BATCHES);
	o.memory.memory_limit = o.memory.host_limit = 0;
	o.sharding.wrap.n = 0;
	if (remat_mode(o.memory.remat) == REMAT_AUTO) {
		o.memory.remat = NULL;
		o.given.remat = false;
	}
	if (!check_search(given, d) || !check_half_hook(&o, d))
		return NULL;
	ChooseAgain context = {.asked = o};
	if (!predict_begin(&o, &machine, a, d) || !check_ranks(&o, d) || !check_accum(&o, d))
		return NULL;
	if (options_cuda(&o))
		machine_limit_host(machine, given->memory.host_limit);
	int n = begin_batches(batch, &o, machine, a, d);
	if (!n) {
		forget_batches(batch);
		return NULL;
	}
	context.machine = machine;
	PlanAgain again = choose_again(&context);
	o.memory.memory_limit = given->memory.memory_limit;
	SearchFrom from = {batch, n, &o, sync_of(&o), machine, &again};
	Diag unsaid = {.silent = true};
	bool may_each = build_may_reduce_each(&o, &silent) && from.sync == SYNC_LAST && !o.what.global_batch;
	Search *found = search_run(&from, a, may_each ? &unsaid : d);
	from.sync = may_each ? SYNC_EVERY : from.sync; /* as the build does where whole gradients do not fit */
	found = found || !may_each ? found : search_run(&from, a, d);
	choose_again_end(&context);
	forget_batches(batch);
	return found;
}

/* Whether an argument is one of those for which the search puts others; two words count as one. */
static bool is_settled(int argc, char **argv, int *i)
{
	static const char *const options[] = {"--wrap", "--remat"};
	for (int k = 0; k < COUNT_OF(options); k++) {
		size_t n = strlen(options[k]);
		if (!strcmp(argv[*i], options[k]) && *i + 1 < argc && !strcmp(argv[*i + 1], "auto"))
			return ++*i;
		if (!strncmp(argv[*i], options[k], n) && !strcmp(argv[*i] + n, "=auto"))
			return true;
	}
	return false;
}

const Search *choose_units(int argc, char **argv, const Options *o, Options *settled, Arena *a, Diag *d)
{
	VEC(char *) args = {0};
	bool usage = false, quiet = d->quiet;
	d->quiet = true; /* notes and warnings are said when the plan that was found is made */
	Search *found = search(o, a, d);
	d->quiet = quiet;
	if (!found)
		return NULL;
	for (int i = 0; i < argc; i++)
		if (!is_settled(argc, argv, &i))
			vec_push(a, &args, argv[i]);
	const char *chosen = "";
	for (const char *const *x = search_options(found); *x; x++) {
		vec_push(a, &args, arena_strdup(a, *x));
		chosen = arena_printf(a, "%s %s", chosen, str_escape(a, ESCAPE_SHELL, *x));
	}
	d->quiet = true; /* what options of --config are replaced was said when they were read */
	bool parsed = options_parse(args.n, args.at, settled, a, d, &usage);
	d->quiet = quiet;
	if (!parsed)
		return NULL;
	if (remat_mode(settled->memory.remat) == REMAT_AUTO) /* of a --config file */
		settled->memory.remat = "none";
	d->verbose = settled->inspection.verbose;
	if (!is_plan(o)) /* which warns itself */
		predict_warn(o, search_machine(found), d);
	if (search_over(found))
		diag_warn(d, "--wrap", "no plan that auto tried fits a rank of %s: the smallest needs %lld bytes more",
			o->what.machine, (long long)search_over(found));
	const char *flags = search_flags(found);
	diag_note(d, "--wrap", "auto is%s%s%s (shardc plan shows what else was tried)", chosen,
		*flags ? "; the binary then wants " : "", flags);
	return found;
}
