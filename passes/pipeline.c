/* passes/pipeline.c: runs passes.def, or a list of its passes, and verifies the module after each.
 *
 * With --accum=many the module is compiled four times from level SHARD on, once for each position that a
 * micro-batch may have in its step.  The text of the module at TRAIN is parsed again for each, so the clones share
 * nothing and are compiled separately.
 *
 * Refuses passes that do not exist, and passes at a level that they do not accept.  The module is verified before
 * the first pass too, since a text may come from anyone. */
#include "base/near.h"
#include "passes/check/check.h"
#include "passes/dumps.h"

#include <stdlib.h>
#include <string.h>

const PassInfo pass_info[] = {
#define PASS(name, from, to, ensures) {#name, pass_##name, LEVEL_##from, LEVEL_##to, ensures},
#include "passes/passes.def"
};
const int pass_count = COUNT_OF(pass_info);

static const PassInfo *pass_find(const char *name, size_t n)
{
	for (int i = 0; i < pass_count; i++)
		if (strlen(pass_info[i].name) == n && !memcmp(pass_info[i].name, name, n))
			return &pass_info[i];
	return NULL;
}

int pass_index(const char *name)
{
	const PassInfo *p = pass_find(name, strlen(name));
	return p ? (int)(p - pass_info) : -1;
}

bool pass_is_among(const char *names, const char *name)
{
	for (const char *s = names; *s; s += *s == ',') {
		size_t n = strcspn(s, ",");
		if (strlen(name) == n && !memcmp(s, name, n))
			return true;
		s += n;
	}
	return false;
}

typedef VEC(const PassInfo *) PassVec;

static void refuse_pass(Arena *a, const char *option, const char *name, Diag *d)
{
	const char *known[COUNT_OF(pass_info)];
	for (int i = 0; i < pass_count; i++)
		known[i] = pass_info[i].name;
	diag_error(d, option, "there is no pass \"%s\"%s (see shardc --list-passes)", name,
		near_hint(a, option, name, known, pass_count));
}

/* Appends each comma-separated name; all must be passes. */
static bool parse_names(Arena *a, const char *names, const char *option, PassVec *out, Diag *d)
{
	bool ok = true;
	for (const char *s = names ? names : ""; *s; s += *s == ',') {
		size_t n = strcspn(s, ",");
		const PassInfo *p = pass_find(s, n);
		if (p)
			vec_push(a, out, p);
		else
			refuse_pass(a, option, arena_strndup(a, s, n), d);
		ok = ok && p;
		s += n;
	}
	return ok;
}

static bool contains(const PassVec *v, const PassInfo *p)
{
	for (int i = 0; i < v->n; i++)
		if (v->at[i] == p)
			return true;
	return false;
}

typedef struct Show {
	const PipelineView *view;
	PassVec print_after;
	Arena *scratch;
	char *text; /* text of the current module, by malloc; kept only where dumps or --print-changed need it */
	Dumps dumps;  /* dir is NULL: none are wanted, or none could be written */
	const char *variant; /* in the names of dumped files; NULL: not there */
	bool quiet;   /* a variant that the user did not ask to see */
	Check *check; /* NULL: passes are not checked */
} Show;

/* Takes the text of the module; returns whether it differs from the one before. */
static bool text_changed(Show *show, const Module *m)
{
	char *now = NULL;
	size_t size;
	if (!show->view->dump_dir && !show->view->print_changed)
		return true;
	FILE *f = open_memstream(&now, &size);
	if (!f || (ir_print(f, m), fclose(f)))
		ice("out of memory");
	bool changed = !show->text || strcmp(show->text, now);
	free(show->text);
	show->text = now;
	return changed;
}

/* A pass that changed nothing leaves no file. */
static bool dump(Show *show, int number, const char *name, bool changed, Diag *d)
{
	return !show->dumps.dir || !changed || dumps_write(&show->dumps, number, name, show->variant, show->text, d);
}

static void show_after(const Show *show, const Module *m, const PassInfo *p, bool changed)
{
	FILE *out = show->view->out ? show->view->out : stdout;
	if (show->quiet)
		return;
	if (show->view->print_changed && !changed)
		fprintf(out, "# %s changed nothing\n", p->name);
	if (contains(&show->print_after, p) || (show->view->print_changed && changed)) {
		fprintf(out, "# after %s\n", p->name);
		ir_print(out, m);
	}
}

/* Passes after which the module is copied to contiguous memory, so that later walks go through memory in order,
 * above all the verifier after each pass.  fuse leaves behind the ops that became bodies, and prefetch is the last
 * pass that moves any. */
static bool is_compacted_after(const PassInfo *p)
{
	return p->run == pass_fuse || p->run == pass_prefetch;
}

/* Only the variant `only` evaluates.  Up to pass fp8 the others know what evaluations read of weights, so that all have
 * one layout: a weight that an evaluation reads otherwise than forward does may keep a flat from 8 bits. */
static void drop_eval(Module *m)
{
	while (m->variant != VARIANT_ONLY && m->last[SEC_EVAL])
		ir_remove(m, m->last[SEC_EVAL]);
}

/* from_text: passes before p were not run in this process, so the text may violate what they ensure.  verify: the
 * module is verified behind p. */
static bool run_one(Module *m, const PassInfo *p, bool from_text, bool verify, const Options *o, Check *check,
	Diag *d)
{
	if (m->level != p->from) {
		diag_error(d, ir_where(m, m->at), "pass %s wants a module at level %s, this one is at %s",
			p->name, level_text[p->from], level_text[m->level]);
		return false;
	}
	int before = d->errors;
	if (!(check ? check_run(check, m, p, o, d) : pass_apply(p, m, o, d))) {
		if (d->errors == before)
			ice("pass %s failed without an error message", p->name);
		return false;
	}
	m->level = p->to;
	if (p->run == pass_fp8)
		drop_eval(m);
	if (verify && !ir_verify(m, from_text ? NULL : p->name, d)) {
		diag_note(d, ir_where(m, (TextPlace){0}), "found after pass %s: the text lacks what passes before it ensure",
			p->name);
		return false;
	}
	if (is_compacted_after(p))
		ir_compact(m);
	return true;
}

/* The module as its text says it, which shares nothing with m. */
Module *pipeline_copy(const Module *m)
{
	Diag d = {.out = stderr};
	Arena *a = arena_new();
	Module *out = ir_parse(m->file ? m->file : m->name, ir_text(m, a), &d);
	if (!out)
		ice("the text of a module cannot be read back");
	out->text = NULL; /* the user has not seen it */
	arena_free(a);
	return out;
}

/* Keeps the module in front of pass i, if planning again begins there. */
static void keep_restart(Restart *r, const Module *m, const PassVec *todo, int i, const Options *o)
{
	Buf rest = {0};
	bool first = todo->at[i]->run == pass_precision;
	if (!first && todo->at[i]->run != pass_remat)
		return;
	for (int k = i; k < todo->n; k++)
		buf_printf(&rest, "%s%s", k > i ? "," : "", todo->at[k]->name);
	RestartAt *at = first ? &r->at : &r->late;
	ir_module_free(at->m);
	*at = (RestartAt){pipeline_copy(m), arena_strdup(r->arena, rest.at)};
	r->of_late = first ? r->of_late : *o;
	buf_free(&rest);
}

void pipeline_forget(Restart *r)
{
	ir_module_free(r->at.m);
	ir_module_free(r->late.m);
	r->at.m = r->late.m = NULL;
}

/* Whether no pass in front of remat reads an option that differs.  The texts of two policies may differ in what they
 * say of dtypes, which such passes read. */
static bool same_before_remat(const Options *x, const Options *y)
{
	const char *policy[2] = {policy_path(x), policy_path(y)};
	bool same = (!policy[0] && !policy[1]) || (policy[0] && policy[1] && !strcmp(policy[0], policy[1]));
	return same && !memcmp(&x->graph, &y->graph, sizeof(x->graph))
		&& !memcmp(&x->precision, &y->precision, sizeof(x->precision))
		&& !memcmp(&x->target, &y->target, sizeof(x->target)) && x->memory.offload == y->memory.offload;
}

/* Runs passes [first, end) of the list, or up to `stop`. */
static bool run_some(Module *m, const Options *o, const PassVec *todo, int first, int end, const PassInfo *stop,
	bool from_text, Show *show, Diag *d)
{
	text_changed(show, m);
	if (!first && !dump(show, 0, "input", true, d))
		return false;
	for (int i = first; i < end; i++) {
		const PassInfo *p = todo->at[i];
		if (show->view->restart)
			keep_restart(show->view->restart, m, todo, i, o);
		bool verify = !show->view->tried || i + 1 == end || p == stop;
		bool ok = run_one(m, p, from_text, verify, o, show->check, d);
		bool whole = ok || (show->view->check && show->view->check->differs);
		bool changed = whole && text_changed(show, m);
		if ((whole && !dump(show, i + 1, p->name, changed, d)) || !ok)
			return false;
		show_after(show, m, p, changed);
		if (p == stop)
			break;
	}
	return true;
}

/* Whether the list contains p at or before its end. */
static bool is_reached(const PassVec *todo, const PassVec *stop, const PassInfo *p)
{
	for (int i = 0; i < todo->n; i++) {
		if (todo->at[i] == p)
			return true;
		if (stop->n && todo->at[i] == stop->at[0])
			return false;
	}
	return false;
}

/* Finds which passes are run on m, which was read, and where the list ends; false after a message. */
static bool prepare(Show *show, const Module *m, PassVec *todo, PassVec *stop, const char *names, Diag *d)
{
	const PipelineView *v = show->view;
	bool ok = parse_names(show->scratch, names, "--passes", todo, d);
	ok = parse_names(show->scratch, v->stop_after, "--stop-after", stop, d) && ok;
	ok = parse_names(show->scratch, v->print_after, "--print-after", &show->print_after, d) && ok;
	if (!names)
		for (int i = 0; i < pass_count; i++)
			vec_push(show->scratch, todo, &pass_info[i]);
	for (int i = 0; i < show->print_after.n && ok; i++)
		if (!is_reached(todo, stop, show->print_after.at[i]))
			diag_warn(d, "--print-after", "pass %s is not among those that are run", show->print_after.at[i]->name);
	for (int i = 0; i < stop->n; i++)
		if (!contains(todo, stop->at[i])) {
			diag_error(d, "--stop-after", "pass %s is not among those that are run", stop->at[i]->name);
			ok = false;
		}
	return ok && (!v->dump_dir || dumps_open(&show->dumps, v->dump_dir, m->text, todo->n, show->scratch, d));
}

/* The module has been run, or refused after some of its dumps. */
static void finish(Show *show, Diag *d)
{
	if (show->dumps.dir)
		dumps_tidy(&show->dumps, d);
	check_free(show->check);
	free(show->text);
	arena_free(show->scratch);
}

/* ---- micro-batches ---- */

static Module *clone(const Module *m, Variant variant, Sync sync)
{
	Module *out = pipeline_copy(m);
	out->variant = variant;
	out->sync = sync;
	return out;
}

/* A gradient that is summed in place must use the same slot in all micro-batches. */
static bool check_slots(const Variants *v, const char *where, Diag *d)
{
	Arena *a = arena_new();
	LayoutModel first = memory_layout(v->of[VARIANT_FIRST], a);
	bool same = true;
	for (int k = VARIANT_MIDDLE; k <= VARIANT_LAST; k++) {
		LayoutModel other = memory_layout(v->of[k], a);
		for (int u = 0; u < first.n_units; u++) {
			if (first.unit[u].grad_slot == other.unit[u].grad_slot)
				continue;
			diag_error(d, where, "the gradient of unit %s lies in slot %d in micro-batch first and in slot "
				"%d in micro-batch %s: reduces have to be waited for at the same points in all of them",
				v->of[k]->units[u]->name, first.unit[u].grad_slot, other.unit[u].grad_slot, variant_text[k]);
			same = false;
		}
	}
	arena_free(a);
	return same;
}

LayoutMemory pipeline_memory(const Variants *v, const Options *o)
{
	Arena *a = arena_new();
	LayoutModel one = memory_layout(v->of[VARIANT_ONLY], a);
	LayoutRank who = memory_rank(o);
	memory_complete(&one, v->of[VARIANT_ONLY], o);
	LayoutMemory sum = layout_memory_most(&one, &who), more = sum;
	if (v->of[VARIANT_FIRST]) {
		LayoutModel several = memory_join(v, true, a);
		memory_complete(&several, v->of[VARIANT_ONLY], o);
		more = layout_memory_most(&several, &who);
	}
	arena_free(a);
	return more.total > sum.total ? more : sum;
}

/* Checks the memory that is mapped for steps of several micro-batches against --memory-limit. */
static bool check_limit(const Variants *v, const Options *o, Diag *d)
{
	int64_t total = pipeline_memory(v, o).total;
	bool fits = !o->memory.memory_limit || total <= o->memory.memory_limit;
	if (!fits)
		diag_error(d, "--memory-limit", "steps of several micro-batches need %lld bytes at %lld rank(s), the limit is "
			"%lld (shardc plan --accum=many shows what of)", (long long)total, (long long)memory_rank(o).world,
			(long long)o->memory.memory_limit);
	return fits;
}

/* ---- a plan that was read ---- */

/* The modules of a step must come from one model and have the same train block. */
static bool check_alike(const Variants *v, Diag *d)
{
	Arena *a = arena_new();
	const Module *only = v->of[VARIANT_ONLY];
	const char *all = ir_declarations(only, a);
	bool same = true;
	for (int k = VARIANT_FIRST; k <= VARIANT_LAST && same && v->of[k]; k++) {
		const Module *m = v->of[k];
		same = !strcmp(ir_declarations(m, a), all) && m->level == only->level && m->batch == only->batch
			&& m->world == only->world && m->input_bytes == only->input_bytes && m->state_bytes == only->state_bytes;
		if (!same)
			diag_error(d, ir_where(m, m->at), "the modules of variant=%s and variant=only differ in their train "
				"block, their units or their symbols: they are not of one program", variant_text[k]);
	}
	arena_free(a);
	return same;
}

static bool check_whole(const Variants *v, bool cuda, Diag *d)
{
	const Module *m = v->of[VARIANT_ONLY];
	const Train *t = ir_train(m);
	int before = d->errors;
	if (m->first[SEC_BACKWARD] && !m->train)
		diag_error(d, ir_where(m, m->at), "the module has gradients and no train block, which says by what "
			"optimizer and how they are used (pass optimizer makes it)");
	else if (t->accum && !v->of[VARIANT_FIRST])
		diag_error(d, ir_where(m, t->at), "the module is one micro-batch of several (accum=1): a program is made "
			"of a file with all four of them, variant=only, first, middle and last");
	else if (m->train && t->cuda != cuda)
		diag_error(d, ir_where(m, t->at), "the memory is planned for --target=%s: give that, or compile the model "
			"again", t->cuda ? "cuda" : "cpu");
	return d->errors == before;
}

bool pipeline_accept(const Variants *v, const Options *o, Diag *d)
{
	const Module *only = v->of[VARIANT_ONLY];
	if (!check_whole(v, options_cuda(o), d) || !accept_declarations(only, d) || !check_alike(v, d))
		return false;
	for (int k = 0; k < VARIANT_COUNT; k++)
		if (v->of[k] && (!memory_accept(v->of[k], d) || !memory_fits(v->of[k], o, d)))
			return false;
	return !v->of[VARIANT_FIRST] || (check_slots(v, ir_where(only, only->at), d) && check_limit(v, o, d));
}

/* ---- steps of several micro-batches ---- */

/* names: of the passes, NULL = all. */
static bool fork_passes(Module *m, const Options *o, const PipelineView *v, const char *names, Sync sync, Variant shown,
	Variants *out, Diag *d)
{
	Show show = {.view = v, .scratch = arena_new(), .check = v->check ? check_new(v->check) : NULL};
	PassVec todo = {0}, stop = {0};
	int fork = 0;
	bool ok = prepare(&show, m, &todo, &stop, names, d);
	while (fork < todo.n && todo.at[fork]->from < LEVEL_SHARD && todo.at[fork]->to < LEVEL_SHARD)
		fork++;
	const PassInfo *last = stop.n ? stop.at[0] : NULL;
	ok = ok && (v->tried || ir_verify(m, NULL, d)) && run_some(m, o, &todo, 0, fork, last, false, &show, d);
	*out = (Variants){.of[VARIANT_ONLY] = m};
	bool ended = false, quiet = d->quiet;
	for (int i = 0; i < fork; i++)
		ended = ended || todo.at[i] == last;
	for (int k = VARIANT_FIRST; k <= VARIANT_LAST && ok && !ended; k++) {
		out->of[k] = clone(m, (Variant)k, sync);
		if (o->precision.matmul_dtype != MATMUL_FP8)
			drop_eval(out->of[k]);
	}
	m->sync = sync;
	for (int k = VARIANT_ONLY; k <= VARIANT_LAST && ok && !ended; k++) {
		show.variant = k == VARIANT_ONLY ? NULL : variant_text[k];
		show.quiet = k != (int)shown;
		d->quiet = quiet || k != VARIANT_ONLY; /* notes about one variant hold for all */
		Options mine = *o;
		mine.sharding.schedule_in = k == (int)shown ? o->sharding.schedule_in : NULL; /* describes one variant */
		ok = run_some(out->of[k], &mine, &todo, fork, todo.n, last, false, &show, d);
	}
	d->quiet = quiet;
	if (ok && !ended && out->of[VARIANT_LAST]->level == LEVEL_PLAN)
		ok = check_slots(out, "--schedule-in", d) && check_limit(out, o, d);
	finish(&show, d);
	return ok;
}

bool pipeline_fork(Module *m, const Options *o, const PipelineView *v, Sync sync, Variant shown, Variants *out,
	Diag *d)
{
	return fork_passes(m, o, v, NULL, sync, shown, out, d);
}

bool pipeline_again(const Restart *r, const Options *o, Sync sync, bool tried, Variants *out, Diag *d)
{
	PipelineView silent = {.tried = tried};
	const RestartAt *at = r->late.m && same_before_remat(&r->of_late, o) ? &r->late : &r->at;
	Module *m = ir_copy(at->m);
	*out = (Variants){.of[VARIANT_ONLY] = m};
	return options_many(o) ? fork_passes(m, o, &silent, at->passes, sync, VARIANT_LAST, out, d)
		: pipeline_run(m, o, &silent, at->passes, d);
}

void pipeline_free(Variants *v)
{
	for (int k = 0; k < VARIANT_COUNT; k++)
		ir_module_free(v->of[k]);
}

bool pipeline_run(Module *m, const Options *o, const PipelineView *v, const char *names, Diag *d)
{
	Show show = {.view = v, .scratch = arena_new(), .check = v->check ? check_new(v->check) : NULL};
	PassVec todo = {0}, stop = {0};
	bool ok = prepare(&show, m, &todo, &stop, names, d);
	ok = ok && (v->tried || ir_verify(m, NULL, d))
		&& run_some(m, o, &todo, 0, todo.n, stop.n ? stop.at[0] : NULL, names, &show, d);
	finish(&show, d);
	return ok;
}
