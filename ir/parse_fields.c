/* ir/parse_fields.c: reads the header of a module, its train block, units and symbols, as module_fields.def,
 * train_fields.def, unit_fields.def and symbol_fields.def list their fields.
 *
 * A field is KEY=VALUE.  Fields come in any order, each at most once.  Refuses keys that the table lacks and values
 * that a field of its kind cannot have. */
#include "base/near.h"
#include "base/safetensors.h"
#include "ir/parse.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* ---- fields ---- */

typedef struct FieldAt {
	void *owner, *at; /* owner: the symbol, unit, block or module; at: the field in it */
} FieldAt;
typedef void ReadField(Parser *p, const FieldAt *f);
typedef struct FieldRow { const char *key; ReadField *read; size_t at; } FieldRow;

/* The fields of one kind of owner; what: its name in messages. */
typedef struct FieldTable { const char *what; const FieldRow *row; int n; } FieldTable;

static const char *key_hint(Parser *p, const FieldTable *t, const char *key)
{
	const char **known = NEW_N(p->lex.arena, const char *, t->n);
	for (int i = 0; i < t->n; i++)
		known[i] = t->row[i].key;
	return near_hint(p->lex.arena, "field", key, known, t->n);
}

/* The row of the next key; NULL after an error.  seen: a bit for each row that was read. */
static const FieldRow *take_key(Parser *p, const FieldTable *t, ReadField *repeated, uint64_t *seen)
{
	const char *key = lex_take(&p->lex, TOK_WORD, "a field");
	int i = 0;
	while (i < t->n && strcmp(t->row[i].key, key))
		i++;
	if (i == t->n) {
		lex_refuse(&p->lex, "unknown field \"%s\" of %s%s", key, t->what, key_hint(p, t, key));
		return NULL;
	}
	if (*seen >> i & 1 && t->row[i].read != repeated)
		lex_refuse(&p->lex, "field \"%s\" of %s is given twice", key, t->what);
	*seen |= UINT64_C(1) << i;
	return &t->row[i];
}

/* Reads KEY=VALUE for the owner; repeated: the kind of field that may be given more than once, NULL = none. */
static void read_field(Parser *p, const FieldTable *t, ReadField *repeated, void *owner, uint64_t *seen)
{
	const FieldRow *row = take_key(p, t, repeated, seen);
	lex_expect(&p->lex, '=');
	if (row && !p->lex.failed)
		row->read(p, &(FieldAt){owner, (char *)owner + row->at});
}

static void read_flag(Parser *p, const FieldAt *f)
{
	*(bool *)f->at = lex_integer(&p->lex);
}

static void read_count(Parser *p, const FieldAt *f)
{
	int64_t v = lex_integer(&p->lex);
	if (v != (int)v)
		lex_refuse(&p->lex, "%lld is not a number of 32 bits", (long long)v);
	*(int *)f->at = (int)v;
}

static void read_integer(Parser *p, const FieldAt *f)
{
	*(int64_t *)f->at = lex_integer(&p->lex);
}

static void read_size(Parser *p, const FieldAt *f)
{
	read_integer(p, f);
}

static void read_real(Parser *p, const FieldAt *f)
{
	*(double *)f->at = parse_real(p);
}

static void read_string(Parser *p, const FieldAt *f)
{
	*(const char **)f->at = ir_intern(p->m, lex_take(&p->lex, TOK_STRING, "a string"));
}

static void read_dtype(Parser *p, const FieldAt *f)
{
	const char *text = lex_take(&p->lex, TOK_WORD, "a dtype");
	if (!p->lex.failed && !dtype_from_text(text, f->at))
		lex_refuse(&p->lex, "unknown dtype \"%s\"", text);
}

static void read_offload(Parser *p, const FieldAt *f)
{
	const char *text = lex_take(&p->lex, TOK_WORD, "none, optim or params");
	if (!p->lex.failed && !offload_from_text(text, f->at))
		lex_refuse(&p->lex, "unknown offload \"%s\"; expected none, optim or params", text);
}

/* Refuses the name that was just taken if checkpoints cannot hold it: a run would save what no run can read. */
static void check_saved_name(Parser *p, const char *text)
{
	const char *why = safetensors_refuses(text);
	if (!p->lex.failed && why)
		lex_refuse(&p->lex, "the name \"%s\" %s: checkpoints cannot hold it, so another is expected",
			str_escape(p->lex.arena, ESCAPE_JSON, text), why);
}

/* ---- symbols ---- */

static void read_aliases(Parser *p, const FieldAt *f)
{
	Symbol *s = f->owner;
	const char *name = ir_intern(p->m, lex_take(&p->lex, TOK_STRING, "a name"));
	bool full = (s->n_aliases & (s->n_aliases - 1)) == 0; /* grow to the next power of two */
	const char **all = full ? NEW_N(p->m->arena, const char *, 2 * s->n_aliases + 1) : s->alias;
	for (int i = 0; full && i < s->n_aliases; i++)
		all[i] = s->alias[i];
	all[s->n_aliases++] = name;
	s->alias = all;
	if (s->kind != SYM_PARAM)
		lex_refuse(&p->lex, "only a parameter has further names");
}

static void read_saved(Parser *p, const FieldAt *f)
{
	Symbol *s = f->owner;
	s->saved = parse_float_dtype(p);
	s->narrowed = true;
	if (s->kind != SYM_BUFFER || !dtype_is_float(s->type.dtype))
		lex_refuse(&p->lex, "only a buffer of floats is saved in another dtype than it has");
}

/* Reads the distribution of random contents. */
static void read_law(Parser *p, const FieldAt *f)
{
	static const char *const laws[] = {"uniform", "normal"};
	const char *text = lex_take(&p->lex, TOK_STRING, "a distribution"), **law = f->at;
	for (int i = 0; !p->lex.failed && i < COUNT_OF(laws); i++)
		if (!strcmp(text, laws[i]))
			*law = laws[i];
	if (!p->lex.failed && !*law)
		lex_refuse(&p->lex, "init: \"%s\" is neither \"uniform\" nor \"normal\"", text);
}

static void read_dims(Parser *p, const FieldAt *f)
{
	Source *src = &((Symbol *)f->owner)->src;
	src->rank = parse_ints(p, src->dim);
}

static void read_perm(Parser *p, const FieldAt *f)
{
	int64_t perm[IR_MAX_RANK];
	int n = parse_ints(p, perm), *to = f->at;
	for (int i = 0; i < n; i++) {
		if (perm[i] < 0 || perm[i] >= n)
			lex_refuse(&p->lex, "perm: %lld is not an axis", (long long)perm[i]);
		to[i] = (int)perm[i];
	}
}

void parse_symbol(Parser *p, SymbolKind kind)
{
	static const FieldRow rows[] = {
#define SYMBOL_FIELD(key, kind, field, shown) {#key, read_##kind, offsetof(Symbol, field)},
#include "ir/symbol_fields.def"
	};
	static const FieldTable table = {"a symbol", rows, COUNT_OF(rows)};
	TextPlace at = p->lex.tok_at;
	lex_next(&p->lex);
	const char *text = lex_take(&p->lex, TOK_STRING, "a name");
	uint64_t seen = 0;
	if (kind == SYM_PARAM || kind == SYM_BUFFER || kind == SYM_STATE)
		check_saved_name(p, text);
	lex_expect(&p->lex, ':');
	Type t = parse_type(p);
	if (p->lex.failed)
		return;
	if (ir_find_symbol(p->m, text)) {
		lex_refuse(&p->lex, "symbol \"%s\" is declared twice", text);
		return;
	}
	Symbol *s = ir_add_symbol(p->m, kind, text, t);
	s->at = at;
	s->src.dtype = t.dtype;
	s->src.rank = t.rank;
	for (int i = 0; i < t.rank; i++) {
		s->src.dim[i] = t.dim[i];
		s->src.perm[i] = i;
	}
	s->unit = t.unit;
	s->flat = t.flat;
	if (!lex_accept(&p->lex, '{'))
		return;
	do {
		read_field(p, &table, read_aliases, s, &seen);
	} while (lex_accept(&p->lex, ','));
	lex_expect(&p->lex, '}');
}

/* ---- units ---- */

static void read_strategy(Parser *p, const FieldAt *f)
{
	const char *text = lex_take(&p->lex, TOK_STRING, "a strategy");
	if (!p->lex.failed && !strategy_from_text(text, f->at))
		lex_refuse(&p->lex, "unknown strategy \"%s\"", text);
}

static void read_role(Parser *p, const FieldAt *f)
{
	lex_expect(&p->lex, '=');
	*(DType *)f->at = parse_float_dtype(p);
}

static void read_gathered(Parser *p, const FieldAt *f)
{
	lex_expect(&p->lex, '=');
	*(DType *)f->at = parse_flat_dtype(p);
}

static void read_word(Parser *p, const FieldAt *f)
{
	*(bool *)f->at = !p->lex.failed;
}

/* Reads the fields behind a flat: param=bf16 grad=bf16 ... master away. */
static void read_flat_fields(Parser *p, Flat *f)
{
	static const FieldRow rows[] = {
#define FLAT_FIELD(key, kind, field) {#key, read_##kind, offsetof(Flat, field)},
#include "ir/unit_fields.def"
	};
	static const FieldTable table = {"a flat", rows, COUNT_OF(rows)};
	uint64_t seen = 0;
	while (!p->lex.failed && !lex_is_punct(&p->lex, ',') && !lex_is_punct(&p->lex, ']')) {
		const FieldRow *row = take_key(p, &table, NULL, &seen);
		if (row)
			row->read(p, &(FieldAt){f, (char *)f + row->at});
	}
}

static void read_flat(Parser *p, Flat *f)
{
	static const char *const words[] = {"frozen", "trainable"};
	const char *dtype = lex_take(&p->lex, TOK_WORD, "a dtype");
	if (!p->lex.failed && !dtype_from_text(dtype, &f->dtype))
		lex_refuse(&p->lex, "unknown dtype \"%s\"", dtype);
	f->trainable = lex_keyword(&p->lex, words, COUNT_OF(words), "kind of flat");
	f->numel = lex_integer(&p->lex);
	if (f->numel < 0 || f->numel > INT64_MAX / 64)
		lex_refuse(&p->lex, "a flat cannot have %lld elements", (long long)f->numel);
	*f = (Flat)LAYOUT_FLAT(f->dtype, f->trainable, f->numel);
	read_flat_fields(p, f);
}

static void read_flats(Parser *p, const FieldAt *at)
{
	Unit *u = at->owner;
	lex_expect(&p->lex, '[');
	while (!p->lex.failed && !lex_is_punct(&p->lex, ']')) {
		if (u->n_flats == UNIT_MAX_FLATS) {
			lex_fail(&p->lex, "a unit has at most %d flats", UNIT_MAX_FLATS);
			return;
		}
		read_flat(p, &u->flat[u->n_flats++]);
		if (!lex_accept(&p->lex, ','))
			break;
	}
	lex_expect(&p->lex, ']');
}

static void read_members(Parser *p, const FieldAt *f)
{
	Unit *u = f->owner;
	lex_expect(&p->lex, '[');
	while (!p->lex.failed && p->lex.tok.kind == TOK_STRING) {
		Member m = {.unit = u, .name = lex_take(&p->lex, TOK_STRING, "a parameter")};
		lex_expect(&p->lex, '@');
		m.offset = lex_integer(&p->lex);
		m.flat = parse_flat_suffix(p);
		vec_push(p->lex.arena, &p->members, m);
		u->n_params++;
		if (!lex_accept(&p->lex, ','))
			break;
	}
	lex_expect(&p->lex, ']');
}

void parse_unit(Parser *p)
{
	static const FieldRow rows[] = {
#define UNIT_FIELD(key, kind, field, shown) {#key, read_##kind, offsetof(Unit, field)},
#include "ir/unit_fields.def"
	};
	static const FieldTable table = {"a unit", rows, COUNT_OF(rows)};
	TextPlace at = p->lex.tok_at;
	uint64_t seen = 0;
	lex_next(&p->lex);
	lex_expect(&p->lex, '@');
	const char *text = parse_unit_name(p);
	if (!p->lex.failed && ir_find_unit(p->m, text))
		lex_refuse(&p->lex, "unit \"%s\" is declared twice", text);
	check_saved_name(p, text);
	if (p->lex.failed)
		return;
	Unit *u = ir_add_unit(p->m, text, STRATEGY_FULL_SHARD);
	u->at = at;
	lex_expect(&p->lex, '{');
	do {
		read_field(p, &table, NULL, u, &seen);
	} while (lex_accept(&p->lex, ','));
	lex_expect(&p->lex, '}');
	for (int i = 0; i < table.n; i++)
		if (!(seen >> i & 1) && rows[i].read != read_count && rows[i].read != read_dtype
				&& rows[i].read != read_offload)
			lex_refuse(&p->lex, "unit \"%s\" lacks its %s", text, rows[i].key);
}

void parse_members(Parser *p)
{
	for (int i = 0; i < p->m->n_units; i++) {
		Unit *u = p->m->units[i];
		u->params = NEW_N(p->m->arena, Symbol *, u->n_params);
		u->n_params = 0;
	}
	for (int i = 0; !p->lex.failed && i < p->members.n; i++) {
		const Member *member = &p->members.at[i];
		Symbol *s = ir_find_symbol(p->m, member->name);
		Unit *u = member->unit;
		if (!s || s->kind != SYM_PARAM) {
			lex_fail(&p->lex, "unit \"%s\" names \"%s\", which is not a parameter", u->name, member->name);
			return;
		}
		s->unit = u;
		s->flat = member->flat;
		s->offset = member->offset;
		if (s->flat >= u->n_flats)
			lex_fail(&p->lex, "parameter \"%s\": unit \"%s\" has no flat %d", s->name, u->name, s->flat);
		s->member = u->n_params;
		u->params[u->n_params++] = s;
	}
}

/* ---- the train block ---- */

static void read_group_key(Parser *p, ParamGroup *g)
{
	const char *text = lex_take(&p->lex, TOK_WORD, "a key of a group");
	GroupKey key = group_key_find(text, strlen(text));
	bool match = !strcmp(text, "match");
	if (!match && key == GROUP_KEYS)
		lex_refuse(&p->lex, "unknown key \"%s\" of a group; expected match, lr_scale, weight_decay, beta1, beta2, eps "
			"or momentum", text);
	else if (match ? g->regex != NULL : !isnan(g->value[key]))
		lex_refuse(&p->lex, "%s is given twice", text);
	lex_expect(&p->lex, '=');
	if (p->lex.failed)
		return;
	if (match) {
		g->regex = ir_intern(p->m, lex_take(&p->lex, TOK_STRING, "a regular expression"));
		return;
	}
	g->value[key] = parse_real(p);
	if (!group_value_right(key, g->value[key]))
		lex_refuse(&p->lex, "%s takes %s, not %g", text, group_value_wanted(key), g->value[key]);
}

/* Reads a parameter group: {match="bias$", weight_decay=0.0}. */
static ParamGroup read_group(Parser *p)
{
	ParamGroup g = {0};
	for (int k = 0; k < GROUP_KEYS; k++)
		g.value[k] = (double)NAN;
	lex_expect(&p->lex, '{');
	do {
		read_group_key(p, &g);
	} while (lex_accept(&p->lex, ','));
	lex_expect(&p->lex, '}');
	return g;
}

static void read_groups(Parser *p, const FieldAt *f)
{
	Train *t = f->owner;
	VEC(ParamGroup) all = {0};
	lex_expect(&p->lex, '[');
	while (!p->lex.failed && !lex_is_punct(&p->lex, ']')) {
		ParamGroup g = read_group(p);
		vec_push(p->m->arena, &all, g);
		if (!lex_accept(&p->lex, ','))
			break;
	}
	lex_expect(&p->lex, ']');
	t->group = all.at;
	t->n_groups = all.n;
}

void parse_train(Parser *p)
{
	static const FieldRow rows[] = {
#define TRAIN_FIELD(key, kind, field, shown) {#key, read_##kind, offsetof(Train, field)},
#include "ir/train_fields.def"
	};
	static const FieldTable table = {"train", rows, COUNT_OF(rows)};
	uint64_t seen = 0;
	if (p->m->train)
		lex_fail(&p->lex, "a module has one train block");
	Train *t = p->m->train = NEW(p->m->arena, Train);
	t->at = p->lex.tok_at;
	lex_next(&p->lex);
	lex_expect(&p->lex, '{');
	do {
		read_field(p, &table, NULL, t, &seen);
	} while (lex_accept(&p->lex, ','));
	lex_expect(&p->lex, '}');
}

/* ---- modules ---- */

static void read_level(Parser *p, const FieldAt *f)
{
	*(Level *)f->at = (Level)lex_keyword(&p->lex, level_text, LEVEL_COUNT, "level");
}

static void read_variant(Parser *p, const FieldAt *f)
{
	*(Variant *)f->at = (Variant)lex_keyword(&p->lex, variant_text, VARIANT_COUNT, "variant");
}

static void read_sync(Parser *p, const FieldAt *f)
{
	*(Sync *)f->at = (Sync)lex_keyword(&p->lex, sync_text, SYNC_COUNT, "mode");
}

void parse_header(Parser *p)
{
	static const FieldRow rows[] = {
#define MODULE_FIELD(key, kind, field, shown) {#key, read_##kind, offsetof(Module, field)},
#include "ir/module_fields.def"
	};
	static const FieldTable table = {"a module", rows, COUNT_OF(rows)};
	Module *m = p->m;
	uint64_t seen = 0;
	m->text = ir_intern(m, p->lex.file);
	m->at = p->lex.tok_at;
	lex_expect_word(&p->lex, "module");
	m->name = ir_intern(m, lex_take(&p->lex, TOK_STRING, "a module name"));
	while (!p->lex.failed && !lex_is_punct(&p->lex, '{'))
		read_field(p, &table, NULL, m, &seen);
	if (m->variant != VARIANT_ONLY && m->sync == SYNC_NONE)
		lex_fail(&p->lex, "variant=%s wants sync=last or sync=every", variant_text[m->variant]);
	lex_expect(&p->lex, '{');
}
