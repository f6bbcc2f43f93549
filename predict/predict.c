/* predict/predict.c: what `shardc plan --machine` does. */
#include "predict/predict.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "passes/changes.h"
#include "predict/answers.h"
#include "predict/private.h"

enum { GLOBAL_BATCH_MAX = 1 << 30 };

/* ---- options ---- */

static void check_device(const Options *o, const Machine *m, Diag *d)
{
	bool cuda = o->target.target == TARGET_CUDA;
	if (cuda != m->cuda)
		diag_error(d, m->file, "describes %s, and the plan is of a program for %s; give --target=%s or another machine",
			m->cuda ? "GPUs" : "CPUs", cuda ? "GPUs" : "CPUs", m->cuda ? "cuda" : "cpu");
	if (!m->cuda && o->what.copy_engines)
		diag_error(d, "--copy-engines", "%s describes CPUs, which have none", m->file);
	if (m->cuda && o->what.threads)
		diag_error(d, "--threads", "%s describes GPUs; threads are of ranks on CPUs", m->file);
	if (!m->cuda && (double)o->what.threads > m->of[MACHINE_RANKS])
		diag_error(d, "--threads", "%s has %g cores on each host, and %" PRId64 " threads do not fit", m->file,
			m->of[MACHINE_RANKS], o->what.threads);
}

/* Warns where passes plan for other GPUs than the machine has: programs for them are others. */
static void check_arch(const Options *o, const Machine *m, Diag *d)
{
	int sm = (int)lround(10 * m->of[MACHINE_CAPABILITY]);
	if (sm && options_cuda(o) && options_sm(o) != sm)
		diag_warn(d, m->file, "has GPUs of compute capability %d.%d, and the plan is of a program for --arch=%s; "
			"--arch=sm_%d%s, here and where it is compiled, is of these GPUs", sm / 10, sm % 10, o->target.arch, sm,
			sm >= 90 ? "a" : "");
}

/* Warns of a limit that the machine does not have: what is within it may not fit there. */
static void check_memory(const Options *o, const Machine *m, Diag *d)
{
	if ((double)o->memory.memory_limit > m->of[MACHINE_MEMORY])
		diag_warn(d, "--memory-limit", "%lld bytes are more than the %.0f that a rank of %s has",
			(long long)o->memory.memory_limit, m->of[MACHINE_MEMORY], m->file);
}

void predict_warn(const Options *o, const Machine *m, Diag *d)
{
	check_arch(o, m, d);
	check_memory(o, m, d);
}

/* On CPUs more ranks than cores share them; a GPU has one rank. */
static void check_size(Options *o, const Machine *m, Diag *d)
{
	int64_t world = MAX(o->sharding.world, 1), of_host = (int64_t)m->of[MACHINE_RANKS];
	int64_t least = m->cuda ? ceil_div(world, of_host) : 1, all = (int64_t)m->of[MACHINE_HOSTS];
	if (!o->sharding.hosts)
		o->sharding.hosts = least;
	if (least > all)
		diag_error(d, m->file, "has %lld rank%s, %lld on each host, and --world is %lld; --world=%lld fits",
			(long long)machine_world(m), machine_world(m) == 1 ? "" : "s", (long long)of_host, (long long)world,
			(long long)machine_world(m));
	else if (o->sharding.hosts < least || o->sharding.hosts > all)
		diag_error(d, "--hosts", "%lld hosts do not fit %s, which has %lld of %lld ranks each, and --world=%lld",
			(long long)o->sharding.hosts, m->file, (long long)all, (long long)of_host, (long long)world);
}

/* Warns of a file that has collectives, and none over the communicator that is asked for. */
static void check_comm(const Options *o, const Machine *m, Diag *d)
{
	Communicator unsaid = machine_comm(m->cuda), comm = o->sharding.comm ? o->sharding.comm : unsaid;
	bool other = comm_info[comm].cuda != m->cuda; /* is refused elsewhere */
	bool has = !m->n_collectives || comm == unsaid || comm == COMM_SELF || other || o->sharding.world < 2;
	for (int i = 0; i < m->n_collectives; i++)
		has = has || m->collective[i].comm == comm;
	if (!has)
		diag_warn(d, "--comm", "%s has no collective over %s: those over %s are taken for it", m->file,
			comm_info[comm].text, comm_info[unsaid].text);
}

bool predict_begin(Options *o, Machine **out, Arena *a, Diag *d)
{
	int before = d->errors;
	const WhatOptions *w = &o->what;
	*out = NULL;
	if (!w->machine) {
		const struct { bool given; const char *name; } rows[] = {{w->threads, "--threads"}, {w->trace, "--trace"},
			{w->copy_engines, "--copy-engines"}, {w->global_batch, "--global-batch"}, {w->ask, "--ask"}};
		for (int i = 0; i < COUNT_OF(rows); i++)
			if (rows[i].given)
				diag_error(d, rows[i].name, "is of a prediction: give --machine=FILE, one of machines/ or your own "
					"(docs/prediction.md)");
		return d->errors == before;
	}
	Machine *m = machine_read(w->machine, a, d);
	if (m)
		check_device(o, m, d);
	if (m)
		predict_warn(o, m, d);
	if (m)
		check_size(o, m, d);
	if (m)
		check_comm(o, m, d);
	if (w->global_batch > GLOBAL_BATCH_MAX)
		diag_error(d, "--global-batch", "%lld samples are more than %d, the most of a step", (long long)w->global_batch,
			GLOBAL_BATCH_MAX);
	if (w->trace)
		timeline_may_replace(w->trace, d);
	if (m && m->cuda)
		machine_limit_host(m, o->memory.host_limit);
	*out = m;
	return d->errors == before;
}

/* Whether values lie in memory of the host from forward to backward. */
static bool copies(const Module *m)
{
	IR_FOR_OPS(m, SEC_FORWARD, op)
		if (op->kind == OP_OFFLOAD)
			return true;
	return false;
}

static bool multiplies_f8(const Module *m)
{
	for (int s = SEC_FORWARD; s <= SEC_BACKWARD; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == OP_MATMUL_F8)
				return true;
	return false;
}

bool predict_accepts(const Module *m, const LayoutModel *layout, const Machine *machine, Diag *d)
{
	const Train *t = ir_train(m);
	bool offloads = layout_offloads(layout);
	static const char leave_out[] = "plan without them, or without a machine";
	const struct { bool is; const char *what, *instead; } unknown[] = {
		{offloads && !machine->cuda, "reads and writes of the file of --offload", "which pages of it the system keeps "
			"decides; plan with --offload=none for the least that a step takes, or without a machine for the bytes in "
			"memory and in the file"},
		{offloads && machine->cuda && !machine->of[MACHINE_HOST], "--offload on a machine whose file has no "
			"host.bandwidth", leave_out},
		{copies(m) && !machine->of[MACHINE_HOST], "--offload-acts on a machine whose file has no host.bandwidth",
			leave_out},
		{multiplies_f8(m) && machine->cuda && !machine->of[MACHINE_FLOPS_F8], "--matmul-dtype=fp8 on a machine whose "
			"GPUs have no products of 8-bit floats (its flops.f8 is 0)", leave_out},
		{t->check_nan, "checks of --check-nan", leave_out},
		{t->hook.file, "calls of the function of --comm-hook", leave_out},
		{layout->cuda.on && layout->cuda.staged, "copies between GPUs and their host for --comm=shm and mpi",
			leave_out},
	};
	int before = d->errors;
	for (int i = 0; i < COUNT_OF(unknown); i++)
		if (unknown[i].is)
			diag_error(d, "--machine", "the time of %s is not predicted: %s", unknown[i].what, unknown[i].instead);
	return d->errors == before;
}

bool predict_asks(const Options *o, const Restart *start, Diag *d)
{
	const char *instead = o->sharding.schedule_in ? "a schedule of --schedule-in is of one plan alone"
		: !start->at.m ? "a text at PLAN is planned already; give the model" : NULL;
	if (o->what.ask && instead)
		diag_error(d, "--ask", "plans again with other options, and %s", instead);
	return !o->what.ask || !instead;
}

/* ---- the micro-batches of a step ---- */

int64_t predict_micro_batches(const Options *o, int64_t batch)
{
	int64_t all = o->what.global_batch, of_one = MAX(batch, 1) * MAX(o->sharding.world, 1);
	int64_t n = !all ? 1 : all % of_one ? 0 : all / of_one;
	return n > 1 && !options_many(o) ? 0 : n;
}

/* What --global-batch may be instead: near what was given, at most the most of a step. */
static const char *nearest(const Options *o, long long of_one, char *out, size_t room)
{
	long long below = o->what.global_batch / of_one * of_one, above = below + of_one;
	bool many = options_many(o), has_above = above <= GLOBAL_BATCH_MAX && (many || above > of_one);
	bool has_below = below >= (many ? 1 : 2 * of_one);
	if (of_one > GLOBAL_BATCH_MAX)
		return "a smaller batch, or fewer ranks: one micro-batch of each has more samples than a step may have";
	int n = many ? 0 : snprintf(out, room, "%lld%s", of_one, has_below || has_above ? ", or --accum=many and " : "");
	if (has_below)
		n += snprintf(out + n, room - (size_t)n, "%lld%s", below, has_above ? " or " : "");
	if (has_above)
		snprintf(out + n, room - (size_t)n, "%lld", above);
	return out;
}

bool predict_divides(const Options *o, int64_t batch, Diag *d)
{
	const char *where = "--global-batch";
	long long all = o->what.global_batch, world = MAX(o->sharding.world, 1), of_one = MAX(batch, 1) * world;
	char near[96], ranks[48];
	if (!all || (batch && predict_micro_batches(o, batch)))
		return true;
	snprintf(ranks, sizeof(ranks), world == 1 ? "%lld rank" : "each of %lld ranks", world);
	if (!batch)
		diag_error(d, where, "no input of the model has an axis of samples");
	else if (all % of_one == 0)
		diag_error(d, where, "%lld samples are %lld micro-batches of %lld on %s, and the program has one a step; give "
			"--accum=many", all, all / of_one, (long long)batch, ranks);
	else
		diag_error(d, where, "%lld sample%s no whole number of micro-batches of %lld on %s; give %s", all,
			all == 1 ? " is" : "s are", (long long)batch, ranks, nearest(o, of_one, near, sizeof(near)));
	return false;
}

int64_t predict_runs(int64_t micro_batches, Variant k)
{
	switch (k) {
	case VARIANT_ONLY: return micro_batches == 1;
	case VARIANT_MIDDLE: return MAX(micro_batches - 2, 0);
	default: return micro_batches > 1;
	}
}

/* ---- the prediction ---- */

/* Tokens of a rank's micro-batch: those of labels that are sequences, else of an input of integers that is. */
static int64_t count_tokens(const Module *m)
{
	int64_t of_inputs = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		bool ids = s->kind == SYM_INPUT && s->batched && s->type.rank == 2 && !dtype_is_float(s->type.dtype);
		if (ids && !strcmp(s->name, "labels"))
			return type_numel(&s->type);
		of_inputs = ids ? MAX(of_inputs, type_numel(&s->type)) : of_inputs;
	}
	return of_inputs;
}

/* As the program decides by itself: all cores are shared out, and collectives get threads where cores are left. */
static SimulateOptions options_of(const Plan *plan, const Machine *m, const Options *o)
{
	int64_t ranks = ceil_div(plan->who.world, MAX(plan->layout->hosts, 1)), cores = (int64_t)m->of[MACHINE_RANKS];
	int64_t threads = machine_layout(m, ranks, o->what.threads).threads;
	Communicator fits = comm_fitting(plan->who.world, plan->layout->hosts, m->cuda);
	return (SimulateOptions){.machine = m, .plan = plan, .threads = (int)threads, .copy_engines = o->what.copy_engines,
		.comm = o->sharding.comm ? o->sharding.comm : fits,
		.comm_threads = !m->cuda && plan->who.world > 1 && ranks * threads < cores && cores / ranks > threads,
		.tf32 = o->precision.matmul_precision == MATMUL_TF32};
}

SimulateOptions *predict_how(const Variants *v, const Options *o, const Machine *m, Arena *a)
{
	LayoutModel *layout = NEW(a, LayoutModel);
	Plan *plan = NEW(a, Plan);
	SimulateOptions *how = NEW(a, SimulateOptions);
	*layout = memory_layout(v->of[VARIANT_ONLY], a);
	memory_describe(layout, &plan->who, v->of[VARIANT_ONLY], o);
	plan->layout = layout;
	*how = options_of(plan, m, o);
	return how;
}

static void add_bound(BoundAt *sum, const BoundAt *x, double times)
{
	sum->behind += times * x->behind;
	sum->beside += times * x->beside;
	sum->fewer += times * x->fewer;
}

bool predict_play(const Variants *v, const Options *o, const Machine *m, int64_t limit, Played *out, Diag *d)
{
	Arena *a = arena_new();
	const SimulateOptions *how = predict_how(v, o, m, a);
	const Module *one = v->of[VARIANT_ONLY];
	int64_t n = predict_micro_batches(o, one->batch);
	bool ok = predict_accepts(one, how->plan->layout, m, d) && predict_divides(o, one->batch, d);
	if (ok) {
		LayoutMemory memory = pipeline_memory(v, o);
		BoundLive live;
		*out = (Played){.memory = memory, .rigid = bound_bytes(v, how->plan, &memory, n, &live)};
		for (int k = 0; k < VARIANT_COUNT; k++) {
			double times = (double)predict_runs(n, (Variant)k);
			if (times <= 0)
				continue;
			const Timeline *t = simulate(v->of[k], how, a);
			Bound b = timeline_bound(t, v->of[k], (Variant)k, &live, (double)(limit - out->rigid));
			out->seconds += times * t->seconds;
			out->computing += times * (t->alone - t->recomputed);
			out->saved += times * t->saved;
			out->forward += times * t->forward;
			out->before += times * timeline_before(t, live.op[k]);
			out->bound.seconds += times * b.seconds;
			out->bound.roomy += times * b.roomy;
			out->bound.beside += times * b.beside;
			out->bound.wire += times * b.wire;
			out->bound.copies += times * b.copies;
			add_bound(&out->bound.fullest, &b.fullest, times);
			add_bound(&out->bound.early, &b.early, times);
			out->of = (PriceOf){m, t->rows, t->turns};
		}
		out->samples = (double)(n * one->batch * how->plan->who.world) / out->seconds;
	}
	arena_free(a);
	return ok;
}

bool predict_played(const Restart *start, const Options *o, Sync sync, const Machine *m, int64_t limit, Played *out)
{
	Variants v;
	Diag silent = {.silent = true};
	bool ok = change_plan(start, o, sync, &v) && predict_play(&v, o, m, limit, out, &silent);
	pipeline_free(&v);
	return ok;
}

void predict_trace(FILE *f, const Sizes *program, const Machine *m, int64_t micro_batches, const Options *o)
{
	const Variants *v = &program->of[program->n - 1];
	Arena *a = arena_new();
	const SimulateOptions *how = predict_how(v, o, m, a);
	TimelinePart part[VARIANT_COUNT];
	int n = 0;
	for (int k = 0; k < VARIANT_COUNT; k++)
		if (predict_runs(micro_batches, (Variant)k))
			part[n++] = (TimelinePart){simulate(v->of[k], how, a), k == VARIANT_ONLY ? "step" : variant_text[k]};
	timeline_put(f, part, n, program);
	arena_free(a);
}

bool predict_show(FILE *f, const PredictOf *of, const Options *o, Diag *d)
{
	const Sizes *program = of->program;
	const Machine *m = of->machine;
	const Variants *v = &program->of[program->n - 1];
	Arena *a = arena_new();
	const SimulateOptions *how = predict_how(v, o, m, a);
	const Module *one = v->of[VARIANT_ONLY];
	Prediction p = {.micro_batches = predict_micro_batches(o, one->batch), .samples = one->batch,
		.tokens = count_tokens(one)};
	LayoutMemory memory = pipeline_memory(v, o);
	p.bytes = memory.total;
	p.pinned = memory.host.total;
	for (int k = 0; k < VARIANT_COUNT; k++)
		p.of[k] = v->of[k] ? simulate(v->of[k], how, a) : NULL;
	(o->what.format == FORMAT_JSON ? prediction_json : prediction_text)(f, &p);
	if (of->answers)
		(o->what.format == FORMAT_JSON ? answers_json : answers_text)(f, of->answers, m);
	bool ok = !o->what.trace || timeline_write(p.of[VARIANT_ONLY], program, o->what.trace, d);
	arena_free(a);
	return ok;
}
