/* passes/shard/units.c: assigns parameters to units, flats and offsets, and makes optimizer states sharded symbols.
 *
 * Requires TRAIN.  Ensures that every parameter has a unit, a flat and an offset; that units are in post-order with
 * the remainder ("root") last; that every unit has a strategy and, if the strategy is an owned one, an owner; and
 * that the optimizer's states are declared.  oss and sharded_ddp fix the number of ranks (Module.world).
 * Refuses what wrap.c and policy_file.c refuse, strategies that cannot be combined, regular expressions that match
 * nothing, groups that do not divide the ranks, broadcasts in a dtype that does not fit, parameters in memory of the
 * host that owners would broadcast, trainable parameters that are not f32, and more than UNIT_MAX_FLATS kinds of
 * parameter in a unit.
 *
 * --wrap makes groups of parameters by their position in the model.  All other choices (strategies, owners, what is
 * ignored) apply to whole groups, and only then are the groups laid out in memory. */
#include "passes/shard/wrap.h"

#include "base/layout.h"
#include "base/near.h"

#include <stdlib.h>
#include <string.h>

enum { WORLD_MAX = 1 << 16 }; /* the most ranks for which owners are found */

/* ---- flats and offsets ---- */

/* What the options say about dtypes, and the dtype in which the program reads each parameter. */
typedef struct Dtypes {
	const Options *o;
	PtrMap *read;        /* Symbol -> DType + 1, for parameters that are read in another dtype than their own */
	PtrMap *f8;          /* Symbol -> itself, for weights that may be gathered in 8 bits; NULL: there are none */
} Dtypes;

/* A parameter is gathered in 16 bits if all its readers read it through casts to the same 16-bit dtype. */
static void find_read(const Module *m, Dtypes *t)
{
	PtrMap *other = ptrmap_new(m->arena);
	t->read = ptrmap_new(m->arena);
	for (int s = 0; s < SEC_COUNT; s++) {
		IR_FOR_OPS(m, s, op) {
			if (op->kind != OP_PARAM)
				continue;
			for (const Use *u = op->out[0]->uses; u; u = u->next) {
				void *dtype = op_is_param_cast(u->op) ? (void *)((intptr_t)u->op->out[0]->type.dtype + 1) : NULL;
				void *known = ptrmap_get(t->read, op->sym);
				if (!dtype || (known && known != dtype))
					ptrmap_put(other, op->sym, op->sym);
				ptrmap_put(t->read, op->sym, dtype ? dtype : known);
			}
		}
	}
	for (int i = 0; i < m->n_symbols; i++)
		if (ptrmap_get(other, m->symbols[i]))
			ptrmap_put(t->read, m->symbols[i], NULL);
}

/* What of a unit lies elsewhere, if a policy file says this of it. */
static LayoutOffload offload_of(const Options *o, int said)
{
	return said >= 0 ? (LayoutOffload)said : o->memory.offload;
}

/* The flat to which a parameter belongs.  In a unit with an owner, all ranks compute with what the owner
 * broadcasts: 16-bit parameters, or f32 numbers that 16 bits can hold; the owner updates an f32 master. */
static Flat flat_of(const Dtypes *t, const Unit *u, const Symbol *s)
{
	void *read = ptrmap_get(t->read, s);
	Flat f = LAYOUT_FLAT(s->type.dtype, s->trainable, 0);
	f.param = read ? (DType)((intptr_t)read - 1) : f.dtype;
	f.away = options_cuda(t->o) && offload_of(t->o, u->offload) == LAYOUT_OFFLOAD_PARAMS;
	if (!s->trainable)
		return f;
	f.reduce = u->reduce_dtype >= 0 ? (DType)u->reduce_dtype : t->o->precision.reduce_dtype;
	f.grad = gradient_dtype(t->o, f.reduce);
	f.kept = t->o->precision.keep_low_precision_grads ? f.param : DT_F32;
	if (!strategy_info[u->strategy].owned)
		return f; /* nothing is broadcast */
	f.bcast = t->o->given.bcast_dtype && t->o->precision.param_dtype == DT_F32 ? t->o->precision.bcast_dtype : f.param;
	if (dtype_is_half(f.param) && f.bcast == f.param)
		f.dtype = f.param;
	f.master = dtype_is_half(f.bcast);
	return f;
}

/* A kind of parameter has a flat of its own. */
typedef struct Kind { Flat flat; bool f8; } Kind;

static Kind kind_of(const Dtypes *t, const Unit *u, const Symbol *s)
{
	Flat f = flat_of(t, u, s);
	bool casts = f.dtype == DT_F32 && f.param == DT_BF16 && !f.away && !strategy_info[u->strategy].owned;
	return (Kind){f, casts && t->f8 && ptrmap_get(t->f8, s)};
}

static bool kinds_match(const Kind *x, const Kind *y)
{
	const Flat *a = &x->flat, *b = &y->flat;
	return a->dtype == b->dtype && a->param == b->param && a->trainable == b->trainable && x->f8 == y->f8;
}

static int compare_kinds(const void *a, const void *b)
{
	const Kind *k = a, *l = b;
	const Flat *x = &k->flat, *y = &l->flat;
	if (x->trainable != y->trainable)
		return y->trainable - x->trainable;
	if (k->f8 != l->f8)
		return k->f8 - l->f8;
	return x->dtype != y->dtype ? (int)x->dtype - (int)y->dtype : (int)x->param - (int)y->param;
}

/* Makes a flat for each kind of parameter.  Returns the first parameter for which there is no room; NULL: there is. */
static const Symbol *find_flats(Unit *u, const Dtypes *t, Symbol *const *params, int n)
{
	Kind kind[UNIT_MAX_FLATS];
	int n_kinds = 0;
	for (int i = 0; i < n; i++) {
		Kind want = kind_of(t, u, params[i]);
		int k = 0;
		while (k < n_kinds && !kinds_match(&kind[k], &want))
			k++;
		if (k == UNIT_MAX_FLATS)
			return params[i];
		kind[k] = want;
		n_kinds = MAX(n_kinds, k + 1);
	}
	qsort(kind, (size_t)n_kinds, sizeof(*kind), compare_kinds);
	u->n_flats = n_kinds;
	for (int k = 0; k < n_kinds; k++) {
		u->flat[k] = kind[k].flat;
		u->f8 |= kind[k].f8 << k;
	}
	return NULL;
}

static void lay_out(Module *m, Unit *u, const Dtypes *t, Symbol *const *params, int n)
{
	u->params = NEW_N(m->arena, Symbol *, n);
	for (int f = 0; f < u->n_flats; f++) {
		for (int i = 0; i < n; i++) {
			Symbol *s = params[i];
			Kind want = kind_of(t, u, s), is = {u->flat[f], u->f8 >> f & 1};
			if (!kinds_match(&is, &want))
				continue;
			s->unit = u;
			s->flat = f;
			s->offset = layout_next(u->flat[f].numel);
			u->flat[f].numel = s->offset + type_numel(&s->type);
			s->member = u->n_params;
			u->params[u->n_params++] = s;
		}
	}
}

/* Gives the unit what a policy file says of it. */
static void say_unit(Unit *u, const PolicyUnit *said)
{
	u->reshard_after_forward = said->reshard_after_forward;
	u->forward_prefetch = said->forward_prefetch;
	u->backward_prefetch = said->backward_prefetch;
	u->param_dtype = said->param_dtype;
	u->reduce_dtype = said->reduce_dtype;
	u->offload = said->offload;
}

/* Warns of what a policy file says of the unit in vain.  n_states: of each element that is trained. */
static void check_used(const Unit *u, const PolicyUnit *said, int n_states, Diag *d)
{
	bool some = said->reshard_after_forward >= 0 || said->forward_prefetch >= 0 || said->backward_prefetch >= 0;
	if (some && unit_is_resident(u))
		diag_warn(d, said->at, "unit %s is %s, which rests whole on every rank: when it is gathered and resharded is "
			"not used", u->name, strategy_info[u->strategy].text);
	bool trained = u->n_flats && u->flat[0].trainable;
	if (said->reduce_dtype >= 0 && !trained)
		diag_warn(d, said->at, "nothing of unit %s is trained: reduce_dtype is not used", u->name);
	if (said->offload == LAYOUT_OFFLOAD_OPTIM && !(trained && n_states) && !unit_has_master(u))
		diag_warn(d, said->at, "unit %s has no optimizer states: offload, optim, is not used", u->name);
}

/* Checks that the program reads a unit's parameters in the dtype that a policy file says, in which pass precision has
 * it read them: some of them, since others may be those of norms that compute in f32. */
static bool check_read(const Unit *u, const PolicyUnit *said, Diag *d)
{
	bool some = said->param_dtype < 0;
	for (int f = 0; f < u->n_flats; f++)
		some = some || (int)u->flat[f].param == said->param_dtype;
	if (!some)
		diag_error(d, said->at, "no parameter of unit %s is read in param_dtype, %s, but in %s: all its readers "
			"compute in that, or pass precision, which reads the file, was not run", u->name,
			dtype_info[said->param_dtype].text, dtype_info[u->flat[0].param].text);
	return some;
}

/* A hook of the user's gets gradients in f32 and decides what is sent. */
static bool check_sent(const Unit *u, const PolicyUnit *said, const Options *o, Diag *d)
{
	bool refused = o->graph.comm_hook && said->reduce_dtype > 0 && dtype_is_half((DType)said->reduce_dtype);
	if (refused)
		diag_error(d, said->at, "the reduce_dtype of unit %s, %s, and --comm-hook exclude each other: a hook gets "
			"gradients in f32 and decides what is sent", u->name, dtype_info[said->reduce_dtype].text);
	return !refused;
}

static bool add_unit(Module *m, const Group *g, const Dtypes *t, const OptimizerInfo *opt, Diag *d)
{
	Unit *u = ir_add_unit(m, g->name, (Strategy)g->strategy);
	u->owner = g->owner;
	if (g->said)
		say_unit(u, g->said);
	if (!m->train && u->offload < 0 && t->o->given.offload)
		u->offload = (int)t->o->memory.offload; /* else the train block has it */
	const Dtypes without = {t->o, t->read, NULL};
	const Symbol *beyond = find_flats(u, t, g->params.at, g->params.n);
	if (beyond) /* then weights in 8 bits have no flat of their own */
		beyond = find_flats(u, t = &without, g->params.at, g->params.n);
	if (beyond) {
		diag_error(d, m->file ? m->file : m->name, "unit %s would hold more than %d kinds of parameters with "
			"\"%s\" of %s; export the frozen ones in fewer dtypes", u->name, UNIT_MAX_FLATS, beyond->name,
			dtype_info[beyond->type.dtype].text);
		return false;
	}
	lay_out(m, u, t, g->params.at, g->params.n);
	if (g->said)
		check_used(u, g->said, opt->n_states, d);
	return !g->said || (check_read(u, g->said, d) && check_sent(u, g->said, t->o, d));
}

/* ---- what is trained ---- */

/* A parameter is trained if it has an update; one on which the loss does not depend is frozen. */
static bool find_trained(Module *m, Diag *d)
{
	PtrMap *updated = ptrmap_new(m->arena);
	bool ok = true;
	IR_FOR_OPS(m, SEC_UPDATE, op)
		if (op->kind == OP_UPDATE)
			ptrmap_put(updated, op->sym, op);
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		if (s->kind != SYM_PARAM)
			continue;
		s->trainable = ptrmap_get(updated, s);
		if (s->trainable && s->type.dtype != DT_F32) {
			diag_error(d, m->file ? m->file : m->name, "parameter \"%s\" is %s; only f32 is trained (export the "
				"model in float32: model.float(), --param-dtype computes in 16 bits; or --freeze it)", s->name,
				dtype_info[s->type.dtype].text);
			ok = false;
		}
	}
	return ok;
}

/* ---- optimizer states ---- */

static void declare_states(Module *m, const OptimizerInfo *opt)
{
	for (int i = 0; i < m->n_units; i++) {
		Unit *u = m->units[i];
		for (int f = 0; f < u->n_flats; f++) {
			for (int k = 0; u->flat[f].trainable && k < opt->n_states; k++) {
				Type t = {.kind = TYPE_SHARD, .dtype = DT_F32, .unit = u, .flat = f};
				const char *name = arena_printf(m->arena, "%s.%s", u->name, opt->states[k]);
				Symbol *s = ir_add_symbol(m, SYM_STATE, name, t);
				s->unit = u;
				s->flat = f;
			}
		}
	}
}

/* ---- what is ignored ---- */

static bool ignore(Module *m, const char *pattern, const char *where, PtrMap *ignored, Arena *a, Diag *d)
{
	regex_t re;
	int n = 0;
	if (!pattern_compile(&re, pattern, where, d))
		return false;
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		if (s->kind != SYM_PARAM || !param_matches(&re, s))
			continue;
		n++;
		ptrmap_put(ignored, s, s);
	}
	regfree(&re);
	if (!n)
		diag_error(d, where, "\"%s\" matches no parameter; there are: %s%s", pattern, parameter_names(m, NULL, a),
			parameter_near(m, pattern, a));
	return n > 0;
}

bool params_ignored(Module *m, const Options *o, const PolicyFile *f, PtrMap *ignored, Arena *a, Diag *d)
{
	bool ok = true;
	for (int i = 0; i < o->sharding.ignore.n; i++)
		ok = ignore(m, o->sharding.ignore.at[i], "--ignore", ignored, a, d) && ok;
	for (int i = 0; i < f->ignore.n; i++)
		ok = ignore(m, f->ignore.at[i], arena_printf(a, "%s: $.ignore[%d]", f->path, i), ignored, a, d) && ok;
	return ok;
}

/* Makes the group of the parameters that are ignored. */
static bool find_ignored(Module *m, const Options *o, const PolicyFile *f, PtrMap *ignored, Group *group, Arena *a,
	Diag *d)
{
	bool ok = params_ignored(m, o, f, ignored, a, d), all = true;
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		if (s->kind != SYM_PARAM)
			continue;
		if (ptrmap_get(ignored, s))
			vec_push(a, &group->params, s);
		else
			all = false;
	}
	if (all && group->params.n) {
		diag_error(d, "--ignore", "every parameter is ignored, nothing is left to shard; "
			"--strategy=no_shard does this");
		return false;
	}
	return ok;
}

/* ---- strategies ---- */

static const char *group_names(const Groups *groups, Arena *a)
{
	enum { SHOWN = 6 };
	char *text = arena_strdup(a, "");
	for (int i = 0; i < groups->n && i <= SHOWN; i++)
		text = arena_printf(a, "%s%s%s", text, i ? ", " : "", i < SHOWN ? groups->at[i].name : "...");
	return text;
}

/* As module_near, for the names of groups. */
static const char *group_near(const Groups *groups, const char *pattern, Arena *a)
{
	const char **names = NEW_N(a, const char *, groups->n);
	for (int i = 0; i < groups->n; i++)
		names[i] = groups->at[i].name;
	return near_pattern(a, pattern, names, groups->n);
}

/* Which --unit-strategy set the strategy of a group, and the strategy that it would have without it. */
typedef struct Chosen { int by; int before; } Chosen;

/* Refuses another strategy than that which a policy file says of the unit. */
static bool said_agrees(const Group *g, const char *text, int strategy, Diag *d)
{
	if (!g->said || g->said->strategy == STRATEGY_UNSET || g->said->strategy == strategy)
		return true;
	diag_error(d, "--unit-strategy", "\"%s\" contradicts \"%s\" of unit %s in %s.strategy; give one of them", text,
		strategy_info[g->said->strategy].text, g->name, g->said->at);
	return false;
}

/* Parses REGEX=STRATEGY, split at the last "=". */
static bool unit_strategy(const char *text, int number, Groups *groups, Chosen *chosen, Arena *a, Diag *d)
{
	const char *where = "--unit-strategy", *equals = strrchr(text, '=');
	regex_t re;
	int n = 0;
	bool agree = true;
	if (!equals || equals == text) {
		diag_error(d, where, "\"%s\" is not REGEX=STRATEGY, such as '^h\\.0$=no_shard'", text);
		return false;
	}
	const char *pattern = arena_strndup(a, text, (size_t)(equals - text));
	int strategy = wrap_strategy(equals + 1, where, a, d);
	bool known = strategy != STRATEGY_UNSET;
	if (!pattern_compile(&re, pattern, where, d))
		return false;
	for (int i = 0; i < groups->n && known; i++) {
		if (!pattern_matches(&re, groups->at[i].name))
			continue;
		chosen[i] = (Chosen){number, groups->at[i].strategy};
		agree = said_agrees(&groups->at[i], text, strategy, d) && agree;
		groups->at[i].strategy = strategy;
		n++;
	}
	regfree(&re);
	if (known && !n)
		diag_error(d, where, "\"%s\" matches no unit; there are: %s%s", pattern, group_names(groups, a),
			group_near(groups, pattern, a));
	return known && n && agree;
}

static bool unit_strategies(const Options *o, Groups *groups, Arena *a, Diag *d)
{
	Chosen *chosen = NEW_N(a, Chosen, groups->n);
	bool ok = true;
	for (int i = 0; i < o->sharding.unit_strategy.n; i++)
		ok = unit_strategy(o->sharding.unit_strategy.at[i], i + 1, groups, chosen, a, d) && ok;
	for (int i = 0; i < o->sharding.unit_strategy.n && ok; i++) {
		bool changes = false;
		for (int g = 0; g < groups->n; g++)
			changes = changes || (chosen[g].by == i + 1 && chosen[g].before != groups->at[g].strategy);
		if (!changes)
			diag_warn(d, "--unit-strategy", "\"%s\": the units that it matches have the same strategies without it: "
				"it is not used", o->sharding.unit_strategy.at[i]);
	}
	return ok;
}

/* Refuses to mix owned and other strategies: owners are chosen by one greedy rule over all parameters. */
static bool check_mix(const Groups *groups, int whole, Diag *d)
{
	bool ok = true;
	for (int i = 0; i < groups->n; i++) {
		int s = groups->at[i].strategy;
		if (s == whole || (!strategy_info[s].owned && !strategy_info[whole].owned))
			continue;
		diag_error(d, "--unit-strategy", "unit %s is to be %s and others %s: oss and sharded_ddp are for the "
			"whole program; give --strategy=%s and nothing else", groups->at[i].name, strategy_info[s].text,
			strategy_info[whole].text, strategy_info[strategy_info[s].owned ? s : whole].text);
		ok = false;
	}
	return ok;
}

/* Checks that the groups of hybrid_shard divide the ranks. */
static bool check_groups(const Options *o, const Groups *groups, Diag *d)
{
	int64_t world = MAX(o->sharding.world, 1);
	bool hybrid = false;
	for (int i = 0; i < groups->n; i++)
		hybrid = hybrid || groups->at[i].strategy == STRATEGY_HYBRID_SHARD;
	if (o->sharding.shard_size && !hybrid)
		diag_warn(d, "--shard-size", "no unit is hybrid_shard: %lld is not used", (long long)o->sharding.shard_size);
	if (!hybrid || !o->sharding.shard_size || world % o->sharding.shard_size == 0)
		return true;
	diag_error(d, "--shard-size", "groups of %lld ranks do not divide --world=%lld", (long long)o->sharding.shard_size,
		(long long)world);
	return false;
}

static bool set_strategies(const Options *o, Groups *groups, int *whole, Arena *a, Diag *d)
{
	bool ok = true;
	*whole = (int)o->sharding.strategy;
	for (int i = 0; i < groups->n; i++)
		if (groups->at[i].strategy == STRATEGY_UNSET)
			groups->at[i].strategy = *whole;
	ok = unit_strategies(o, groups, a, d) && ok;
	ok = ok && check_mix(groups, *whole, d);
	ok = ok && check_groups(o, groups, d);
	if (ok && strategy_info[*whole].owned && o->sharding.world > WORLD_MAX) {
		diag_error(d, "--world", "%lld ranks are more than %s is made for (%d)", (long long)o->sharding.world,
			strategy_info[*whole].text, WORLD_MAX);
		return false;
	}
	return ok;
}

/* ---- all of it ---- */

/* Adds the ignored parameters as a unit in front of the root. */
static void add_ignored(Groups *groups, const Group *ignored, Arena *a)
{
	if (!ignored->params.n)
		return;
	vec_push(a, groups, *ignored);
	int last = groups->n - 1;
	if (last > 0 && !strcmp(groups->at[last - 1].name, "root")) {
		Group root = groups->at[last - 1];
		groups->at[last - 1] = groups->at[last];
		groups->at[last] = root;
	}
}

/* Wherever a policy file has the root, it is the last unit; what owners have of it may be any. */
static void put_root_last(Groups *groups)
{
	int at = groups->n - 1;
	while (at >= 0 && strcmp(groups->at[at].name, "root"))
		at--;
	for (; at >= 0 && at < groups->n - 1; at++) {
		Group root = groups->at[at];
		groups->at[at] = groups->at[at + 1];
		groups->at[at + 1] = root;
	}
}

/* Module names come from the user.  Two units of one name get different names, and "root" stays that of the
 * remainder. */
static void name_apart(Groups *groups, Arena *a)
{
	Map *seen = map_new(a);
	for (int i = groups->n - 1; i >= 0; i--) {
		const char *name = groups->at[i].name;
		for (int k = 1; map_has(seen, groups->at[i].name); k++)
			groups->at[i].name = arena_printf(a, "%s.%d", name, k);
		map_put(seen, groups->at[i].name, NULL);
	}
}

/* Checks that a broadcast does not have fewer bits than those in which parameters are read. */
static bool check_broadcast(const Options *o, int whole, Diag *d)
{
	DType to = o->precision.bcast_dtype, param = o->precision.param_dtype;
	const char *where = "--bcast-dtype";
	if (!o->given.bcast_dtype)
		return true;
	if (!strategy_info[whole].owned)
		diag_error(d, where, "%s: parameters are broadcast by oss and sharded_ddp alone, the strategy is %s; gathers "
			"move --param-dtype", dtype_info[to].text, strategy_info[whole].text);
	else if (param != DT_F32 && to == DT_F32)
		diag_error(d, where, "f32 is wider than --param-dtype=%s, which is all that ranks read of it; give %s or leave "
			"it out", dtype_info[param].text, dtype_info[param].text);
	else if (param != DT_F32 && to != param)
		diag_error(d, where, "%s is another 16-bit dtype than --param-dtype=%s: both roundings would be made; give "
			"%s or leave it out", dtype_info[to].text, dtype_info[param].text, dtype_info[param].text);
	else
		return true;
	return false;
}

/* Checks what lies elsewhere: an owner broadcasts from parameters at rest to parameters at rest. */
static bool check_offload(const Options *o, int whole, const Groups *groups, Arena *a, Diag *d)
{
	const char *where = o->memory.offload == LAYOUT_OFFLOAD_PARAMS ? "--offload" : NULL;
	for (int i = 0; i < groups->n && !where; i++) {
		const PolicyUnit *said = groups->at[i].said;
		where = said && said->offload == LAYOUT_OFFLOAD_PARAMS ? arena_printf(a, "%s.offload", said->at) : NULL;
	}
	bool refused = where && options_cuda(o) && strategy_info[whole].owned;
	if (refused)
		diag_error(d, where, "params is refused with --target=cuda and %s, whose owners broadcast from GPU to GPU what "
			"rests there: give optim, or another strategy", strategy_info[whole].text);
	return !refused;
}

static bool find_groups(Module *m, const Options *o, Groups *groups, Arena *a, Diag *d)
{
	Wrap wrap;
	int whole = STRATEGY_UNSET;
	Group ignored = {.name = "ignored", .strategy = STRATEGY_NO_SHARD, .owner = -1};
	PtrMap *left_out = ptrmap_new(a);
	bool ok = wrap_parse(o, &wrap, a, d);
	ok = find_ignored(m, o, &wrap.file, left_out, &ignored, a, d) && ok;
	ok = ok && wrap_groups(m, &wrap, left_out, groups, a, d);
	ok = ok && set_strategies(o, groups, &whole, a, d);
	ok = ok && check_broadcast(o, whole, d) && check_offload(o, whole, groups, a, d);
	if (!ok)
		return false;
	if (strategy_info[whole].owned) {
		m->world = MAX(o->sharding.world, 1);
		owners_split(m, groups, (Strategy)whole, (int)m->world, a);
	} else if (wrap.file.order) {
		put_root_last(groups);
	}
	add_ignored(groups, &ignored, a);
	name_apart(groups, a);
	return true;
}

/* Warns that --keep-low-precision-grads has no effect when every rank keeps gradients whole: a reduced gradient
 * then stays where backward wrote it. */
static void check_kept(const Module *m, const Options *o, Diag *d)
{
	bool stays = o->precision.keep_low_precision_grads;
	for (int i = 0; i < m->n_units; i++)
		stays = stays && strategy_info[m->units[i]->strategy].reduce == REDUCE_TO_ALL;
	if (stays)
		diag_warn(d, "--keep-low-precision-grads", "every reduced gradient stays where backward wrote it (%s), in %s: "
			"it is not used", strategy_info[m->n_units ? m->units[0]->strategy : STRATEGY_NO_SHARD].text,
			dtype_info[gradient_dtype(o, o->precision.reduce_dtype)].text);
}

/* Warns that --offload has no effect: where all units say for themselves what of them lies elsewhere; of optim, without
 * states or f32 masters. */
static void check_offloaded(const Module *m, const Options *o, const OptimizerInfo *opt, Diag *d)
{
	bool some = opt->n_states > 0, unsaid = !m->train;
	for (int i = 0; i < m->n_units; i++) {
		some = some || unit_has_master(m->units[i]);
		unsaid = unsaid || m->units[i]->offload < 0;
	}
	if (o->memory.offload != LAYOUT_OFFLOAD_NONE && !unsaid)
		diag_warn(d, "--offload", "the policy file says of all units what of them lies elsewhere: %s is not used",
			offload_text[o->memory.offload]);
	else if (o->memory.offload == LAYOUT_OFFLOAD_OPTIM && !some)
		diag_warn(d, "--offload", "%s keeps no states: optim is not used", opt->name);
}

static bool check_rounding(const Module *m, const Options *o, Diag *d)
{
	bool rounds = !o->precision.stochastic_rounding;
	for (int i = 0; i < m->n_units; i++)
		rounds = rounds || unit_gathers_rounded(m->units[i]) || unit_has_master(m->units[i]);
	if (!rounds)
		diag_error(d, "--stochastic-rounding", "no parameter is rounded from f32 to %s: those that all read in 16 "
			"bits are 16-bit in the model, or it has none; leave it out", dtype_info[o->precision.param_dtype].text);
	return rounds;
}

bool pass_units(Module *m, const Options *o, Diag *d)
{
	OptimizerChoice opt;
	Groups groups = {0};
	Arena *a = arena_new();
	Dtypes dtypes = {.o = o};
	bool ok = optimizer_of(m, o, &opt, d) && find_trained(m, d);
	find_read(m, &dtypes);
	/* sizes of one program have the same flats, though other products; all working copies are rounded alike */
	if (o->precision.matmul_dtype == MATMUL_FP8 && !options_sizes(o) && !o->precision.stochastic_rounding)
		fp8_weights(m, dtypes.f8 = ptrmap_new(m->arena));
	ok = ok && find_groups(m, o, &groups, a, d);
	for (int i = 0; i < groups.n && ok; i++)
		ok = add_unit(m, &groups.at[i], &dtypes, opt.info, d);
	arena_free(a);
	if (!ok)
		return false;
	check_kept(m, o, d);
	check_offloaded(m, o, opt.info, d);
	declare_states(m, opt.info);
	return check_rounding(m, o, d);
}
