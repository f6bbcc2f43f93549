/* predict/search.c: which options make the fastest plan that fits. */
#include "predict/searching.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "passes/changes.h"

#define FREED 0.5       /* of what values free between forward and backward, is free where a plan needs most, too */
#define ROUNDING 1e-9   /* of sums of a step's times */
#define ENOUGH 1e-2     /* of the bound: a plan this near is not improved by keeping units */
enum { ROUNDS_MAX = 3, AGAIN_MAX = 2 };

/* ---- numbers that divide another ---- */

/* Sets out[] to divisors of n, the smallest first: all of them or, where these are more than `most`, as many that lie
 * evenly among them.  inner: without 1 and n. */
static int divisors(int64_t n, bool inner, int most, int64_t *out)
{
	VEC(int64_t) all = {0};
	Arena *a = arena_new();
	for (int64_t d = inner ? 2 : 1; d * d <= n; d++)
		if (n % d == 0)
			vec_push(a, &all, d);
	for (int i = all.n - 1; i >= 0; i--)
		if (all.at[i] * all.at[i] != n)
			vec_push(a, &all, n / all.at[i]);
	int kept = MIN(all.n, most);
	for (int i = 0; i < kept; i++)
		out[i] = all.at[kept == all.n || kept == 1 ? i : (int64_t)i * (all.n - 1) / (kept - 1)];
	arena_free(a);
	return kept;
}

bool search_may_many(const Options *o)
{
	return o->given.accum ? options_many(o) : o->what.emit != EMIT_LIB;
}

int search_batches(const Options *o, int64_t size[SEARCH_BATCHES])
{
	int64_t of_rank = o->what.global_batch / MAX(o->sharding.world, 1);
	size[0] = of_rank;
	return search_may_many(o) ? divisors(of_rank, false, SEARCH_BATCHES, size) : 1;
}

/* Groups of hybrid_shard are whole hosts, or parts of one that share it evenly. */
static void find_groups(Search *s)
{
	int64_t hosts = MAX(s->given.sharding.hosts, 1), of_host = MAX(s->given.sharding.world, 1) / hosts;
	s->n_groups = divisors(hosts, true, LARGER_MAX, s->group);
	for (int i = 0; i < s->n_groups; i++)
		s->group[i] *= of_host;
	s->n_groups += divisors(of_host, true, SMALLER_MAX, s->group + s->n_groups);
}

/* ---- options ---- */

static const char *batch_at(const Search *s, int i)
{
	return i < s->from.n_batches ? s->from.batch[i].bind : NULL;
}

static const char *group_at(const Search *s, int i)
{
	return i < s->n_groups ? arena_printf(s->a, "%" PRId64, s->group[i]) : NULL;
}

static void set_batch(Options *o, const char *text)
{
	o->graph.bind.at[o->graph.bind.n++] = text;
}

static void set_wrap(Options *o, const char *text)
{
	o->sharding.wrap = (OptionList){.at = {text}, .n = 1};
}

/* Policies of units that are a part of the model: of so many bytes, or at least of so many elements.  mark: ">" or
 * "", as of values in search.def. */
static const char *exec_order(const Search *s, const char *mark, int64_t parts)
{
	return arena_printf(s->a, "%sexec-order:%" PRId64, mark, MAX(ceil_div(s->parameters, parts), 1));
}

/* Few units, which are best where a message takes long to begin; NULL where such a unit takes more than a quarter of
 * the memory, since it is gathered whole. */
static const char *few_units(const Search *s, int64_t parts)
{
	return s->parameters / parts <= s->limit / 4 ? exec_order(s, "", parts) : NULL;
}

static const char *least_size(const Search *s, const char *mark, int64_t parts)
{
	return arena_printf(s->a, "%ssize:%" PRId64, mark, MAX(ceil_div(s->elements, parts), 1));
}

static void set_knob(KnobId k, Options *o, const char *text)
{
	switch (k) {
#define KNOB(id, option, given, when, set, ...) case KNOB_##id: set break;
#include "predict/search.def"
	case KNOBS: ice("knob %d", (int)k);
	}
}

/* Whether the machine says how fast GPUs reach the memory of their host; and how much of it there is, of which values
 * may need any amount. */
static bool offloads(const Search *s)
{
	return s->m->of[MACHINE_HOST] > 0;
}

static bool offloads_values(const Search *s)
{
	return offloads(s) && s->m->of[MACHINE_HOST_MEMORY] > 0;
}

bool search_matters(const Search *s, KnobId k, const Options *o)
{
	switch (k) {
#define KNOB(id, option, given, when, ...) case KNOB_##id: return when;
#include "predict/search.def"
	default: ice("knob %d", (int)k);
	}
}

static void make_knobs(Search *s)
{
	const Options *o = &s->given;
#define KNOB(id, option_, given_, when, set, ...) \
	s->knob[KNOB_##id] = (Knob){.option = option_, .open = !o->given.given_, .value = {__VA_ARGS__}};
#include "predict/search.def"
	s->knob[KNOB_WRAP].open = true;
	s->knob[KNOB_BATCH].open = s->from.batch[0].bind;
	s->knob[KNOB_SYNC].open = s->knob[KNOB_SYNC].open && o->what.global_batch && !o->precision.keep_low_precision_grads;
	s->knob[KNOB_STRATEGY].open = s->knob[KNOB_STRATEGY].open && !o->sharding.unit_strategy.n;
	for (int k = 0; k < KNOBS; k++) {
		Knob *knob = &s->knob[k];
		while (knob->n < VALUES_MAX && knob->value[knob->n] && (knob->open || !knob->n)) {
			knob->further[knob->n] = knob->value[knob->n][0] == '>';
			knob->value[knob->n] += knob->further[knob->n];
			knob->n++;
		}
	}
}

bool search_says(const Search *s, const Trial *t, int k)
{
	return s->knob[k].open && (t->pick[k] || k == KNOB_WRAP || k == KNOB_BATCH);
}

int64_t search_micro_batches(const Search *s, const Trial *t)
{
	Options o = s->given;
	o.graph.accum = search_may_many(&o) ? ACCUM_MANY : ACCUM_ONE;
	return predict_micro_batches(&o, batch_of(s, t)->size);
}

bool search_adds_many(const Search *s, const Trial *t)
{
	return !s->given.given.accum && search_micro_batches(s, t) > 1;
}

static Options options_of(const Search *s, const Trial *t)
{
	Options o = s->given;
	if (search_adds_many(s, t))
		o.graph.accum = ACCUM_MANY;
	for (int k = 0; k < KNOBS; k++)
		if (search_says(s, t, k))
			set_knob((KnobId)k, &o, s->knob[k].value[t->pick[k]]);
	if (t->keep)
		o.sharding.unit_strategy = (OptionList){.at = {arena_printf(s->a, "%s=shard_grad_op", t->keep)}, .n = 1};
	return o;
}

/* ---- trials ---- */

static Sync sync_of(const Search *s, const Options *o)
{
	return o->given.sync ? o->graph.sync : s->sync;
}

static void try_plan(Search *s, Trial *x)
{
	Options o = options_of(s, x);
	x->refused = !predict_played(&batch_of(s, x)->start, &o, sync_of(s, &o), s->m, s->limit, &x->of);
	x->over = x->refused ? 0 : MAX(x->of.memory.total - s->limit, 0) + machine_overpins(s->m, x->of.memory.host.total);
	x->bound = x->refused ? INFINITY : search_bound(s, x, &o);
}

const Trial *search_try(Search *s, const Trial *choice)
{
	for (int i = 0; i < s->n; i++)
		if (!memcmp(s->trial[i]->pick, choice->pick, sizeof(choice->pick))
				&& same_text(s->trial[i]->keep, choice->keep))
			return s->trial[i];
	if (s->n == s->most)
		return NULL;
	Trial *x = s->trial[s->n++] = NEW(s->a, Trial);
	*x = *choice;
	try_plan(s, x);
	return x;
}

bool search_better(const Trial *x, const Trial *than)
{
	if (!x || x->refused)
		return false;
	if (!than || x->over != than->over)
		return !than || x->over < than->over;
	if (fabs(x->of.seconds - than->of.seconds) > 1e-4 * than->of.seconds)
		return x->of.seconds < than->of.seconds;
	return (double)x->of.memory.total < 0.99 * (double)than->of.memory.total;
}

bool search_takes(Search *s, const Trial *x)
{
	bool is = search_better(x, s->best);
	s->best = is ? x : s->best;
	return is;
}

/* ---- units that stay gathered ---- */

/* The units of a trial that backward gathers again: *n of them. */
static const char **gathered_in_backward(const Search *s, const Trial *x, int *n)
{
	Variants v;
	Options o = options_of(s, x);
	*n = 0;
	const char **name = change_plan(&batch_of(s, x)->start, &o, sync_of(s, &o), &v)
		? gathered_again(v.of[VARIANT_ONLY], n, s->a) : NULL;
	pipeline_free(&v);
	return name;
}

/* Keeps as many units gathered after forward as fit, the last ones, which are kept for the shortest time. */
static void keep_units(Search *s)
{
	int n = 0, low = 0;
	const Trial *from = s->best;
	bool open = s->knob[KNOB_STRATEGY].open && !from->pick[KNOB_STRATEGY] && !from->over
		&& from->of.seconds > search_least(s) * (1 + ENOUGH);
	const char **name = open ? gathered_in_backward(s, from, &n) : NULL;
	for (int high = n; low < high;) {
		int middle = (low + high + 1) / 2;
		Trial choice = *from;
		choice.keep = pattern_of_names(name, middle, s->a);
		const Trial *x = search_try(s, &choice);
		if (!x || x->refused || x->over) {
			high = middle - 1;
		} else {
			search_takes(s, x);
			low = middle;
		}
	}
}

/* ---- the search ---- */

const Trial *search_with(Search *s, const Trial *from, int knob, int value)
{
	Trial choice = *from;
	choice.pick[knob] = value;
	return search_try(s, &choice);
}

static bool descend_knob(Search *s, int k, const Trial **at)
{
	bool changed = false, was = true;
	Options o = options_of(s, *at);
	for (int i = 0; i < s->knob[k].n && search_matters(s, (KnobId)k, &o); i++) {
		const Trial *x = !s->knob[k].further[i] || was ? search_with(s, *at, k, i) : NULL;
		was = search_better(x, *at);
		changed = changed || was;
		*at = was ? x : *at;
	}
	return changed;
}

/* Changes one choice after the other while that helps; once where nothing fits. */
static void descend(Search *s, const Trial *from)
{
	const Trial *at = from;
	bool changed = true;
	for (int round = 0; round < (at->over ? 1 : ROUNDS_MAX) && changed; round++) {
		changed = false;
		for (int k = KNOB_REMAT + 1; k < KNOBS; k++)
			changed = descend_knob(s, k, &at) || changed;
	}
	search_takes(s, at);
}

const Trial *search_recompute(Search *s, const Trial *from, int64_t pinned)
{
	Knob *knob = &s->knob[KNOB_REMAT];
	if (!knob->open || knob->n == VALUES_MAX)
		return NULL;
	Options o = options_of(s, from);
	o.memory.remat = "auto";
	o.memory.memory_limit = s->limit;
	o.memory.host_limit = pinned;
	const char *found = s->from.again->recompute(&o, s->from.again->context, s->a);
	if (!found || *found != '{')
		return NULL;
	char *policy = arena_strdup(s->a, found);
	for (char *at = policy; (at = strchr(at, '\n'));)
		*at = ' ';
	knob->value[knob->n] = policy;
	return search_with(s, from, KNOB_REMAT, knob->n++);
}

/* Less recomputation than of blocks, which from, a plan within the limit, has; NULL: none that is better. */
static const Trial *recompute_less(Search *s, const Trial *from)
{
	const Trial *x = from->pick[KNOB_REMAT] && !from->over ? search_recompute(s, from, 0) : NULL;
	return search_better(x, from) ? x : NULL;
}

/* The plan of this trial's micro-batch of which nothing else was chosen; NULL: it was not tried, or is refused. */
static const Trial *plain_of(const Search *s, const Trial *x)
{
	Trial plain = {.pick[KNOB_BATCH] = x->pick[KNOB_BATCH]};
	for (int i = 0; i < s->n; i++)
		if (!memcmp(s->trial[i]->pick, plain.pick, sizeof(plain.pick)) && !s->trial[i]->keep)
			return s->trial[i]->refused ? NULL : s->trial[i];
	return NULL;
}

/* The plan within the limit, of those that recompute as the best does, that could be the fastest if it recomputed less
 * for the memory that it leaves; NULL: none could be faster than the best.  What the memory is worth is the price of
 * the bytes that the best plan frees last. */
static const Trial *worth_less(const Search *s)
{
	const Trial *plain = plain_of(s, s->best), *found = NULL;
	const Price *price = s->price[s->best->pick[KNOB_BATCH]];
	double least = s->best->of.seconds * (1 - NEGLIGIBLE);
	double freed = plain && price ? (double)(plain->of.memory.total - s->best->of.memory.total) : 0;
	freed = freed > 0 ? MIN(freed, price_bytes(price)) : 0;
	for (int i = 0; i < s->n && freed > 0; i++) {
		const Trial *x = s->trial[i];
		if (x->refused || x->over || x->pick[KNOB_REMAT] != s->best->pick[KNOB_REMAT]
				|| x->pick[KNOB_BATCH] != s->best->pick[KNOB_BATCH])
			continue;
		double room = (double)(s->limit - x->of.memory.total);
		double saved = FREED * (search_price(s, x, freed) - search_price(s, x, freed - room));
		if (x->of.seconds - saved < least) {
			least = x->of.seconds - saved;
			found = x;
		}
	}
	return found;
}

/* Where the best plan recomputes, lets it and others that need less memory recompute less. */
static void recompute_again(Search *s)
{
	for (int i = 0; i < AGAIN_MAX; i++) {
		const Trial *from = !s->best->over && s->best->pick[KNOB_REMAT] ? worth_less(s) : NULL;
		if (!from || !search_takes(s, recompute_less(s, from)))
			break;
	}
}

/* Where no start fits, the fastest that fits with what --remat=auto chooses for it; NULL: none was found. */
static const Trial *recompute_over(Search *s, const TrialVec *from)
{
	double slowest = 0;
	for (int tried = 0; tried < OVER_MAX; tried++) {
		const Trial *x = NULL;
		for (int i = 0; i < from->n; i++) {
			const Trial *t = from->at[i];
			if (t->over && !t->pick[KNOB_REMAT] && !isinf(t->bound) && t->of.seconds > slowest
					&& (!x || t->of.seconds < x->of.seconds))
				x = t;
		}
		const Trial *fits = x ? search_recompute(s, x, 0) : NULL;
		if (!x || (fits && !fits->refused && !fits->over))
			return fits;
		slowest = x->of.seconds;
	}
	return NULL;
}

static bool is_elsewhere(const Trial *x) { return x->pick[KNOB_OFFLOAD] || x->pick[KNOB_ACTS]; }

/* Of the plans that need least, with or without what lies in memory of the host, the first that fits with what
 * --remat=auto chooses for it; NULL: none was found. */
static const Trial *recompute_least(Search *s, bool elsewhere)
{
	int64_t below = 0;
	s->most = TRIALS_MAX + TRIALS_SPARE;
	for (int tried = 0; tried < OVER_MAX; tried++) {
		const Trial *x = NULL;
		for (int i = 0; i < s->n; i++) {
			const Trial *t = s->trial[i];
			bool counts = !t->refused && is_elsewhere(t) == elsewhere;
			if (counts && t->of.memory.total > below && (!x || t->of.memory.total < x->of.memory.total))
				x = t;
		}
		const Trial *fits = x ? search_recompute(s, x, 0) : NULL;
		if (!x || (fits && !fits->refused && !fits->over))
			return fits;
		below = x->of.memory.total;
	}
	return NULL;
}

static bool same_units(const Trial *x, const Trial *y)
{
	return x->pick[KNOB_WRAP] == y->pick[KNOB_WRAP] && x->pick[KNOB_STRATEGY] == y->pick[KNOB_STRATEGY]
		&& x->pick[KNOB_BATCH] == y->pick[KNOB_BATCH];
}

/* Where the best plan has something on the host or does not fit, lets others recompute what they lack: one for each
 * kind of units, those first that could be the fastest by the least seconds for which that can be computed again. */
static void recompute_here(Search *s)
{
	const Trial *done[OVER_MAX];
	if (s->best && (s->best->over || is_elsewhere(s->best)))
		s->most = TRIALS_MAX + TRIALS_SPARE;
	for (int n = 0; n < OVER_MAX && s->best && (s->best->over || is_elsewhere(s->best)); n++) {
		const Trial *x = NULL;
		double least = s->best->over ? INFINITY : s->best->of.seconds;
		for (int i = 0; i < s->n; i++) {
			const Trial *t = s->trial[i];
			bool out = t->refused || !t->over || isinf(t->bound) || is_elsewhere(t) || t->pick[KNOB_REMAT] || t->keep;
			for (int k = 0; k < n && !out; k++)
				out = same_units(t, done[k]);
			const Price *price = out ? NULL : s->price[t->pick[KNOB_BATCH]];
			double again = price ? search_price(s, t, (double)t->over) - search_price(s, t, 0) : 0;
			if (!out && t->of.seconds + again < least) {
				least = t->of.seconds + again;
				x = t;
			}
		}
		if (!x)
			return;
		done[n] = x;
		const Trial *fits = search_recompute(s, x, 0);
		if (search_takes(s, fits))
			descend(s, fits);
	}
}

int search_picks(const Search *s, KnobId k)
{
	return search_matters(s, k, &s->given) ? s->knob[k].n : 1;
}

/* What lies in memory of the host, as values of --offload and --offload-acts. */
static const struct { int offload, acts; } elsewhere[] = {{0, 0}, {1, 0}, {0, 1}, {2, 0}, {1, 1}, {2, 1}};

/* Plans a choice and, where that does not fit, the same with recomputation or with more in memory of the host, up to
 * the first of each that fits: what gives more room than is needed takes longer.  So values that lie there are computed
 * again only where nothing else fits, and more lies there than they only where neither they nor the rest alone is
 * enough to recompute nothing.  False: none may fit, whatever its units are. */
static bool start_recomputing(Search *s, Trial choice, TrialVec *from)
{
	bool may = false, enough = false, some = false;
	for (int i = 0; i < COUNT_OF(elsewhere); i++) {
		bool fits = false, values = elsewhere[i].acts, alone = values && !elsewhere[i].offload;
		choice.pick[KNOB_OFFLOAD] = elsewhere[i].offload;
		choice.pick[KNOB_ACTS] = elsewhere[i].acts;
		if (enough && !alone)
			break;
		if (elsewhere[i].offload >= search_picks(s, KNOB_OFFLOAD) || elsewhere[i].acts >= search_picks(s, KNOB_ACTS))
			continue;
		for (int k = 0; k < s->knob[KNOB_REMAT].n && !fits && !(k && values && some); k++) {
			choice.pick[KNOB_REMAT] = k;
			const Trial *x = search_try(s, &choice);
			if (!x || x->refused)
				continue;
			vec_push(s->a, from, x);
			may = may || x->of.rigid <= s->limit;
			fits = !x->over;
			some = some || fits;
			enough = enough || (fits && !k);
		}
	}
	return may;
}

/* Plans all starts: each strategy and size of its groups with each micro-batch, of which larger ones need more memory,
 * and each recomputation. */
static void start_all(Search *s, TrialVec *from)
{
	for (int i = 0; i < s->knob[KNOB_STRATEGY].n; i++) {
		Trial choice = {.pick[KNOB_STRATEGY] = i};
		Options o = options_of(s, &choice);
		int sizes = search_matters(s, KNOB_SHARD_SIZE, &o) ? s->knob[KNOB_SHARD_SIZE].n : 1;
		for (choice.pick[KNOB_SHARD_SIZE] = 0; choice.pick[KNOB_SHARD_SIZE] < sizes; choice.pick[KNOB_SHARD_SIZE]++) {
			bool may = true;
			for (int b = 0; b < s->from.n_batches && may; b++) {
				choice.pick[KNOB_BATCH] = b;
				may = start_recomputing(s, choice, from) || !from->n;
			}
		}
	}
}

/* A start's bounds, of time and of what no units do without, are of its --sync.  Where that is open they may be too
 * large: one that fits with values on the host is tried all the same, behind those that need nothing there. */
static bool may_lead(const Search *s, const Trial *x)
{
	bool hopeless = x->of.rigid > s->limit && s->best && !s->best->over;
	double least = MAX(x->of.bound.seconds, x->of.bound.copies);
	return !s->best || s->best->over || (s->knob[KNOB_SYNC].open && !x->over && is_elsewhere(x))
		|| (!hopeless && least < s->best->of.seconds * (1 - NEGLIGIBLE));
}

/* Descends from starts with or without something in memory of the host, of those that do not fit from `most`. */
static void descend_from(Search *s, const TrialVec *from, bool host, int most)
{
	int over = 0;
	for (int i = 0; i < from->n; i++) {
		const Trial *x = from->at[i];
		if (is_elsewhere(x) == host && (!x->over || over++ < most) && may_lead(s, x))
			descend(s, x);
	}
}

/* Descends from those starts that may lead to the best plan: the ones whose bound is below the best so far, the fastest
 * first.  Where plans with something on the host fit, these would use up all trials: others go first, but not many of
 * those that do not fit. */
static void descend_all(Search *s)
{
	TrialVec from = {0};
	start_all(s, &from);
	for (int i = 1; i < from.n; i++)
		for (int k = i; k > 0 && search_better(from.at[k], from.at[k - 1]); k--) {
			const Trial *moved = from.at[k];
			from.at[k] = from.at[k - 1];
			from.at[k - 1] = moved;
		}
	const Trial *less = !from.n ? NULL : from.at[0]->over ? recompute_over(s, &from) : recompute_less(s, from.at[0]);
	if (less)
		descend(s, less);
	descend_from(s, &from, false, OVER_MAX);
	descend_from(s, &from, true, from.n);
	descend_from(s, &from, false, from.n);
	const Trial *some = search_offload(s, &from);
	if (search_takes(s, some))
		descend(s, some);
	recompute_here(s);
	for (int i = 0; i < 2 && s->best && (s->best->over || (!i && is_elsewhere(s->best))); i++) {
		const Trial *least = recompute_least(s, i);
		if (search_takes(s, least))
			descend(s, least);
	}
}

bool search_wanted(const Options *o)
{
	for (int i = 0; i < o->sharding.wrap.n; i++)
		if (!strcmp(o->sharding.wrap.at[i], "auto"))
			return true;
	return false;
}

static void count_parameters(Search *s)
{
	const Module *m = s->from.batch[0].start.at.m;
	for (int i = 0; i < m->n_symbols; i++)
		if (m->symbols[i]->kind == SYM_PARAM) {
			s->parameters += type_bytes(&m->symbols[i]->type);
			s->elements += type_numel(&m->symbols[i]->type);
		}
}

/* Options that may make the smallest plan smaller and are not in effect, as a list in words. */
static const char *may_need_less(const Search *s, const LayoutMemory *l)
{
	const Options *o = &s->given;
	bool offloaded = o->memory.offload == LAYOUT_OFFLOAD_PARAMS || (s->knob[KNOB_OFFLOAD].open && offloads(s));
	const struct { const char *text; bool may; } all[] = {
		{"smaller batches", !s->knob[KNOB_BATCH].open},
		{"--workspace=1M", l->workspace > 1 << 20 && l->workspace > l->total / 8},
		{"--tile-rows=auto", o->memory.tile_rows && !strcmp(o->memory.tile_rows, "off")},
		{"--loss-chunk=auto", o->graph.loss_chunk && !strcmp(o->graph.loss_chunk, "off")},
		{"--param-dtype=bf16", o->precision.param_dtype == DT_F32},
		{"--offload", !offloaded},
	};
	const char *text = "";
	for (int i = 0; i < COUNT_OF(all); i++)
		if (all[i].may)
			text = arena_printf(s->a, "%s%s%s", text, *text ? ", " : "", all[i].text);
	return *text ? text : "a smaller model";
}

/* What the smallest plan that was found needs, when none is within --memory-limit and what a rank may pin. */
static void refuse_limit(const Search *s, Diag *d)
{
	const LayoutMemory *l = &s->best->of.memory;
	char *how = arena_strdup(s->a, "");
	for (const char *const *o = search_options(s); *o; o++)
		how = arena_printf(s->a, "%s %s", how, *o);
	if (l->total <= s->limit) {
		diag_error(d, "--wrap", "no plan that auto tried is within --memory-limit and the %lld bytes of memory of its "
			"host that a rank may pin; the least needs %lld of these, by%s: activations %s, optimizer states and "
			"parameters %s", (long long)s->m->of[MACHINE_HOST_MEMORY], (long long)l->host.total, how,
			plan_human(s->a, l->host.activations), plan_human(s->a, l->host.states + l->host.params));
		return;
	}
	diag_error(d, "--memory-limit", "no plan that --wrap=auto tried is within %lld bytes; the least needs %lld, by%s: "
		"%s. Less may be needed with %s", (long long)s->limit, (long long)l->total, how, plan_memory_text(l, s->a),
		may_need_less(s, l));
}

/* Other micro-batches and groups with all else that was chosen: starts had the first units and prefetch alone. */
static void change_start(Search *s)
{
	static const KnobId knobs[] = {KNOB_BATCH, KNOB_SHARD_SIZE};
	for (int i = 0; i < COUNT_OF(knobs); i++) {
		const Trial *at = s->best;
		if (descend_knob(s, knobs[i], &at))
			descend(s, at);
	}
}

/* Leaves out choices of the best plan that do nothing for it, as one does that helped before another was made. */
static void simplify(Search *s)
{
	for (int k = KNOBS - 1; k > KNOB_REMAT; k--) {
		const Trial *x = s->best->pick[k] ? search_with(s, s->best, k, 0) : NULL;
		bool worse = !x || x->refused || x->over != s->best->over || x->of.seconds > s->best->of.seconds
			|| x->of.memory.total > s->best->of.memory.total;
		s->best = worse ? s->best : x;
	}
}

Search *search_run(const SearchFrom *from, Arena *a, Diag *d)
{
	const Options *o = from->options;
	Search *s = NEW(a, Search);
	*s = (Search){.from = *from, .given = *o, .sync = from->sync, .m = from->machine, .a = a, .most = TRIALS_MAX,
		.limit = o->memory.memory_limit ? o->memory.memory_limit : (int64_t)from->machine->of[MACHINE_MEMORY]};
	count_parameters(s);
	find_groups(s);
	make_knobs(s);
	descend_all(s);
	if (!s->best) {
		diag_error(d, "--wrap", "auto found no plan of this model whose time is predicted; plan it with --wrap=block "
			"and --machine=%s, which says why", s->m->file);
		return NULL;
	}
	recompute_again(s);
	search_offload_faster(s);
	change_start(s);
	simplify(s);
	keep_units(s);
	s->bound = search_least(s);
	if (s->best->over || fabs(s->bound / s->best->of.seconds - 1) < ROUNDING) /* the bound is of plans that fit */
		s->bound = MIN(s->bound, s->best->of.seconds);
	if (o->memory.memory_limit && s->best->over) {
		refuse_limit(s, d);
		return NULL;
	}
	return s;
}
