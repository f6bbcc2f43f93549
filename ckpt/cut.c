/* ckpt/cut.c: reads units, flats and parameters from state.json, and computes the ranges that ranks hold of them.
 *
 * A unit is read back into the LayoutUnit that the program had.  So base/layout.h, which placed its elements, also says
 * where they lie at any number of ranks.  Refuses layouts in which a parameter occurs twice or begins outside its flat;
 * ckpt/convert.c checks that parameters do not overlap. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checkpoint.h"
#include "ckpt/cut.h"

static const int64_t MAX_NUMEL = INT64_C(1) << 56;

typedef struct Reader { Cut *c; Arena *a; const char *where; Diag *d; } Reader;

static bool wrong(const Reader *r, const char *unit, const char *what)
{
	diag_error(r->d, r->where, "$.layout.units: unit \"%s\": %s", unit, what);
	return false;
}

/* Reads a parameter such as ["h.0.ln_1.weight", 128]. */
static bool read_param(Reader *r, CutUnit *u, int flat, json_t *v)
{
	CutFlat *f = &u->flat[flat];
	CutParam *p = &f->param[f->n];
	const char *name = json_string_value(json_array_get(v, 0));
	json_t *at = json_array_get(v, 1);
	if (!name || !json_is_integer(at))
		return wrong(r, u->name, "a parameter is [NAME, at]");
	*p = (CutParam){arena_strdup(r->a, name), json_integer_value(at), f->n};
	if (p->at < 0 || p->at > u->layout.flat[flat].numel)
		return wrong(r, u->name, arena_printf(r->a, "\"%s\" begins outside of its flat", name));
	if (map_has(r->c->by_param, name))
		return wrong(r, u->name, arena_printf(r->a, "\"%s\" stands in two places", name));
	CutPlace *place = NEW(r->a, CutPlace);
	*place = (CutPlace){u, flat, p->at};
	map_put(r->c->by_param, p->name, place);
	f->n++;
	return true;
}

static int by_place(const void *pa, const void *pb)
{
	const CutParam *a = pa, *b = pb;
	return a->at != b->at ? (a->at > b->at) - (a->at < b->at) : a->listed - b->listed;
}

static bool read_flat(Reader *r, CutUnit *u, json_t *v)
{
	int k = u->layout.n_flats;
	const char *dtype = json_string_value(json_object_get(v, "dtype"));
	json_t *numel = json_object_get(v, "numel"), *params = json_object_get(v, "params"), *p;
	DType t;
	size_t i;
	if (k == LAYOUT_MAX_FLATS || !dtype || !dtype_from_text(dtype, &t) || !json_is_array(params) ||
		!json_is_integer(numel) || json_integer_value(numel) < 0 || json_integer_value(numel) > MAX_NUMEL)
		return wrong(r, u->name, "a flat has dtype, numel, trainable and params");
	u->layout.flat[k] = (LayoutFlat)LAYOUT_FLAT(t, json_is_true(json_object_get(v, "trainable")),
		json_integer_value(numel));
	u->flat[k].param = NEW_N(r->a, CutParam, json_array_size(params) + 1);
	u->layout.n_flats++;
	json_array_foreach(params, i, p)
		if (!read_param(r, u, k, p))
			return false;
	if (u->flat[k].n)
		qsort(u->flat[k].param, (size_t)u->flat[k].n, sizeof(CutParam), by_place);
	return true;
}

static bool read_unit(Reader *r, CutUnit *u, json_t *v)
{
	const char *name = json_string_value(json_object_get(v, "name"));
	const char *strategy = json_string_value(json_object_get(v, "strategy"));
	json_t *flats = json_object_get(v, "flats"), *owner = json_object_get(v, "owner"), *flat;
	size_t i;
	u->name = name ? arena_strdup(r->a, name) : "?";
	u->layout.owner = json_is_integer(owner) ? (int)json_integer_value(owner) : -1;
	if (!name || !strategy || !strategy_from_text(strategy, &u->layout.strategy) || !json_is_array(flats))
		return wrong(r, u->name, "name, a known strategy, owner and flats were expected");
	for (const CutUnit *before = r->c->unit; before < u; before++)
		if (!strcmp(before->name, u->name))
			return wrong(r, u->name, "there are two of this name");
	if (u->layout.owner >= r->c->ranks)
		return wrong(r, u->name, "its owner is no rank");
	json_array_foreach(flats, i, flat)
		if (!read_flat(r, u, flat))
			return false;
	return true;
}

static int64_t count_of(json_t *layout, const char *key)
{
	return MAX(json_integer_value(json_object_get(layout, key)), 1);
}

Cut *cut_read(json_t *layout, Arena *a, const char *where, Diag *d)
{
	json_t *units = json_object_get(layout, "units"), *v;
	Cut *c = NEW(a, Cut);
	Reader r = {c, a, where, d};
	bool ok = true;
	size_t i;
	if (units && !json_is_array(units)) {
		diag_error(d, where, "$.layout.units is no list");
		return NULL;
	}
	if (count_of(layout, "ranks") > CHECKPOINT_MAX_RANKS || count_of(layout, "shard_size") > CHECKPOINT_MAX_RANKS) {
		diag_error(d, where, "$.layout: ranks and shard_size are at most %d", CHECKPOINT_MAX_RANKS);
		return NULL;
	}
	*c = (Cut){.by_param = map_new(a), .ranks = count_of(layout, "ranks"),
		.shard_size = count_of(layout, "shard_size")};
	c->unit = NEW_N(a, CutUnit, json_array_size(units) + 1);
	json_array_foreach(units, i, v)
		ok = read_unit(&r, &c->unit[c->n++], v) && ok;
	return ok ? c : NULL;
}

static bool is_owned(const CutUnit *u)
{
	return strategy_info[u->layout.strategy].owned;
}

void cut_forget_owners(Cut *c)
{
	for (int i = 0; i < c->n; i++)
		c->unit[i].layout.owner = -1;
}

bool cut_has_unknown_owner(const Cut *c)
{
	for (int i = 0; i < c->n; i++)
		if (is_owned(&c->unit[i]) && c->unit[i].layout.owner < 0)
			return true;
	return false;
}

bool cut_has_groups(const Cut *c)
{
	for (int i = 0; i < c->n; i++)
		if (strategy_info[c->unit[i].layout.strategy].group == GROUP_SHARD)
			return true;
	return false;
}

LayoutRange cut_flat(const CutUnit *u, int flat, const LayoutRank *who)
{
	LayoutUnit layout = u->layout;
	if (is_owned(u) && layout.owner < 0)
		layout.strategy = STRATEGY_FULL_SHARD;
	return layout_saved(&layout, flat, who);
}

LayoutRange cut_tensor(const Cut *c, const CutPlace *place, int64_t numel, const LayoutRank *who)
{
	CutUnit alone = {.layout = {.strategy = STRATEGY_FULL_SHARD, .owner = -1, .n_flats = 1,
		.flat = {LAYOUT_FLAT(DT_F32, true, numel)}}};
	if (!place && c->n)
		return (LayoutRange){0, who->rank == 0 ? numel : 0};
	LayoutRange held = place ? cut_flat(place->unit, place->flat, who) : cut_flat(&alone, 0, who);
	int64_t at = place ? place->at : 0, begin = MAX(held.begin, at), end = MIN(held.begin + held.n, at + numel);
	return end > begin ? (LayoutRange){begin - at, end - begin} : (LayoutRange){0, 0};
}
