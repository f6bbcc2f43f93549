/* codegen/pieces.c: decides which calls of a section become one function, and which functions are the same.
 *
 * The order of calls is kept.  A piece ends where a module of the model ends: the block whose number is in the
 * scope, else the unit, else the outermost module.  Collectives belong to the piece in which they stand; the wait
 * for a unit begins the unit's own piece.  Pieces become one function if their calls have equal texts.  What may
 * differ are the parts, and calls of the runtime about units, which a row may lack (the last block prefetches no
 * next one). */
#include "codegen/pieces.h"

#include <ctype.h>
#include <string.h>

/* Numbers of calls.  Compilers need superlinear time for functions above LONG; one below SMALL is not worth a
 * reader's jump. */
enum { LONG = 500, SMALL = 4 };

/* ---- modules ---- */

struct Scopes {
	const Module *m;
	Arena *a;
	Map *names;     /* interned modules */
	Sorted all;     /* scopes of ops */
	Map *wraps;     /* names of units */
	int wrap_parts; /* so many parts has the longest of them */
	PtrMap *known;  /* scope -> its module */
	PtrMap *units;  /* unit -> its module */
	const char *common; /* the common prefix of all scopes, up to a dot; "" = none */
	const char *lists;  /* the same of all numbered modules; NULL = there are none */
};

/* The name without the owner, since units of several owners are one here: "h.0" for "h.0:1". */
static const char *wrap_name(Arena *a, const Unit *u)
{
	const char *end = u->owner < 0 ? NULL : strrchr(u->name, ':');
	return end ? arena_strndup(a, u->name, (size_t)(end - u->name)) : u->name;
}

static int parts_of(const char *name)
{
	int n = 1;
	for (; *name; name++)
		n += *name == '.';
	return n;
}

static void learn_units(Scopes *s)
{
	for (int u = s->m->n_units - 1; u >= 0; u--) {
		const char *name = wrap_name(s->a, s->m->units[u]);
		map_put(s->wraps, name, s->m->units[u]);
		s->wrap_parts = MAX(s->wrap_parts, parts_of(name));
	}
}

/* The first unit whose name is what `scope` begins with up to a dot, or `best` if that one is before it. */
static const Unit *unit_at(const Scopes *s, char *scope, const Unit *best)
{
	char *end = scope;
	for (int i = 0; i < s->wrap_parts && *end; i++) {
		end += i > 0;
		end += strcspn(end, ".");
		char dot = *end;
		*end = 0;
		const Unit *u = map_get(s->wraps, scope);
		*end = dot;
		if (u && (!best || u->index < best->index))
			best = u;
	}
	return best;
}

/* The name of the unit that the scope is in: "h.0" for "transformer.h.0.attn". */
static const char *unit_around(const Scopes *s, const char *scope)
{
	const Unit *found = NULL;
	char *at = arena_strdup(s->a, scope);
	for (; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL)
		found = unit_at(s, at, found);
	return found ? wrap_name(s->a, found) : NULL;
}

static bool is_number(const char *at, size_t n)
{
	return n && strspn(at, "0123456789") >= n;
}

static bool ends_in_number(const char *name)
{
	const char *dot = strrchr(name, '.');
	return dot && is_number(dot + 1, strlen(dot + 1));
}

/* "layers.0.blocks.1" of "layers.0.blocks.1.attn.q": the scope up to its last number that contains modules; NULL:
 * there is no such number. */
static const char *numbered_module(const Scopes *s, const char *scope)
{
	for (size_t end = strlen(scope), begin = end; end; end = begin ? begin - 1 : 0) {
		for (begin = end; begin && scope[begin - 1] != '.';)
			begin--;
		if (begin && is_number(scope + begin, end - begin) && sorted_has_inside(&s->all, scope, end))
			return arena_strndup(s->a, scope, end);
	}
	return NULL;
}

static const char *find_module(const Scopes *s, const char *scope)
{
	const char *unit = unit_around(s, scope), *numbered = numbered_module(s, scope);
	if (unit && (!numbered || ends_in_number(unit)))
		return unit;
	if (numbered)
		return numbered;
	size_t n = (size_t)(scopes_short(s, scope) - scope);
	return !n && *s->common ? "" : arena_strndup(s->a, scope, n + strcspn(scope + n, "."));
}

/* The module of a scope.  Scopes are interned, so that each is searched once. */
static const char *module_of(Scopes *s, const char *scope)
{
	const char *known = ptrmap_get(s->known, scope);
	if (!known) {
		known = map_intern(s->names, find_module(s, scope));
		ptrmap_put(s->known, scope, (void *)known);
	}
	return known;
}

static const char *module_of_unit(Scopes *s, const Unit *u)
{
	const char *known = ptrmap_get(s->units, u);
	if (!known) {
		known = map_intern(s->names, find_module(s, wrap_name(s->a, u)));
		ptrmap_put(s->units, u, (void *)known);
	}
	return known;
}

/* The number of bytes of the common prefix of a and b, up to a dot. */
static size_t common_bytes(const char *a, const char *b, size_t n)
{
	size_t i = 0, dot = 0;
	for (; i < n && a[i] && a[i] == b[i]; i++)
		dot = a[i] == '.' ? i + 1 : dot;
	return dot;
}

/* Shortens a prefix that ends in a number, since a number alone is not a name. */
static size_t before_number(const char *scope, size_t n)
{
	while (n && isdigit((unsigned char)scope[n]))
		for (n--; n && scope[n - 1] != '.'; n--)
			;
	return n;
}

static void learn_scopes(Scopes *s)
{
	size_t common = 0;
	const char *first = NULL;
	Map *seen = map_new(s->a);
	for (int k = 0; k < SEC_COUNT; k++)
		IR_FOR_OPS(s->m, k, op) {
			const char *scope = op->loc->scope;
			if (!*scope || !map_add(seen, scope))
				continue;
			common = first ? common_bytes(first, scope, common) : common_bytes(scope, scope, strlen(scope));
			common = before_number(scope, common);
			first = scope;
		}
	s->common = arena_strndup(s->a, first ? first : "", common);
	s->all = map_sorted(seen, s->a);
}

/* Finds the common prefix of lists: "model.transformer." of model.transformer.h.0 and model.transformer.h.1. */
static void learn_lists(Scopes *s)
{
	for (int k = 0; k < SEC_COUNT; k++)
		IR_FOR_OPS(s->m, k, op) {
			const char *module = module_of(s, op->loc->scope);
			if (!ends_in_number(module))
				continue;
			size_t n = (size_t)(strrchr(module, '.') - module);
			while (n && module[n - 1] != '.')
				n--;
			if (s->lists)
				n = common_bytes(s->lists, module, MIN(n, strlen(s->lists)));
			n = before_number(module, n);
			if (!s->lists || n < strlen(s->lists))
				s->lists = arena_strndup(s->a, module, n);
		}
	s->known = ptrmap_new(s->a); /* scopes in no list are looked up again: now named below that prefix, too */
}

Scopes *scopes_new(const Module *m, Arena *a)
{
	Scopes *s = NEW(a, Scopes);
	*s = (Scopes){.m = m, .a = a, .names = map_new(a), .wraps = map_new(a), .known = ptrmap_new(a),
		.units = ptrmap_new(a)};
	learn_units(s);
	learn_scopes(s);
	learn_lists(s);
	return s;
}

const char *scopes_short(const Scopes *s, const char *module)
{
	const char *const known[] = {s->lists ? s->lists : "", s->common};
	for (int i = 0; i < COUNT_OF(known); i++) {
		size_t n = strlen(known[i]);
		if (!strncmp(module, known[i], n) && module[n] && n)
			return module + n;
	}
	return module;
}

/* ---- pieces ---- */

/* Whether the call is about a unit, or a copy to or from memory of the host, and may stand in any piece. */
static bool floats(const Call *c)
{
	OpKind k = c->op->kind;
	if (k == OP_OFFLOAD || k == OP_RELOAD || k == OP_COPIED)
		return true;
	return c->n_parts == 1 && (op_info[k].flags & COMM || k == OP_WAIT || k == OP_RESHARD || k == OP_ZERO_GAPS ||
		k == OP_RECORD);
}

/* Whether a unit's module begins with this call: its parameters or gradients become available. */
static bool begins(Scopes *s, const Call *c, const char *module)
{
	const Op *op = c->op->kind == OP_WAIT ? op_in(c->op, 0)->op : c->op;
	return (op->kind == OP_ALL_GATHER || op->kind == OP_ZERO_GAPS) && op->unit && module_of_unit(s, op->unit) == module;
}

/* Where in [from, to), a range of calls that may stand in any piece, the module's piece begins. */
static int begin_of(Scopes *s, const Call *call, int from, int to, const char *module)
{
	for (int i = from; i < to; i++)
		if (begins(s, &call[i], module))
			return i > from && call[i - 1].op->kind == OP_RECORD ? i - 1 : i;
	return to;
}

/* The module of each call.  Calls without a scope belong to the module before them if they are few, or stand inside
 * it. */
static const char **modules_of(Emit *e, Scopes *s, const Call *call, int n)
{
	const char **of = NEW_N(e->a, const char *, n), *none = map_intern(s->names, ""), *before = NULL;
	for (int i = 0; i < n; i++)
		of[i] = floats(&call[i]) ? NULL : module_of(s, call[i].op->loc->scope);
	for (int i = 0; i < n; i++) {
		if (of[i] != none) {
			before = of[i] ? of[i] : before;
			continue;
		}
		int few = 0, next = i;
		for (; next < n && (!of[next] || of[next] == none); next++)
			few += of[next] == none;
		for (; i < next; i++)
			if (of[i] && before && next < n && (before == of[next] || few < SMALL))
				of[i] = before;
		i = next - 1;
	}
	return of;
}

static void put_piece(Emit *e, Pieces *out, const char *module, const Call *call, int n)
{
	for (int at = 0; at < n; at += LONG) {
		Piece p = {.module = module, .call = call + at, .n = MIN(n - at, LONG)};
		vec_push(e->a, out, p);
	}
}

static Pieces cut(Emit *e, Scopes *s, const Call *call, int n)
{
	const char **of = modules_of(e, s, call, n), *module = NULL;
	Pieces out = {0};
	int start = 0, last = -1;
	for (int i = 0; i < n; i++) {
		if (!of[i])
			continue;
		if (module && of[i] != module) {
			int begin = begin_of(s, call, last + 1, i, of[i]);
			put_piece(e, &out, module, call + start, begin - start);
			start = begin;
		}
		module = of[i];
		last = i;
	}
	put_piece(e, &out, module ? module : "", call + start, n - start);
	return out;
}

/* ---- pieces that do the same ---- */

static int count_fixed(const Piece *p)
{
	int n = 0;
	for (int i = 0; i < p->n; i++)
		n += !floats(&p->call[i]);
	return n;
}

/* The texts of all calls that every row must have. */
static const char *skeleton(Emit *e, const Piece *p)
{
	Buf b = {0};
	for (int i = 0; i < p->n; i++)
		if (!floats(&p->call[i]))
			buf_printf(&b, "%s%s\n", p->call[i].marked ? "OP " : "", p->call[i].text);
	const char *text = arena_strndup(e->a, b.at, b.n);
	buf_free(&b);
	return text;
}

static void find_same(Emit *e, Pieces *pieces)
{
	Map *found = map_new(e->a);
	for (int i = 0; i < pieces->n; i++) {
		Piece *p = &pieces->at[i];
		if (count_fixed(p) < SMALL)
			continue;
		const char *key = skeleton(e, p);
		Block *b = map_get(found, key);
		if (!b) {
			b = NEW(e->a, Block);
			map_put(found, key, b);
		}
		p->block = b;
		p->row = b->n_rows++;
	}
	for (int i = 0; i < pieces->n; i++)
		if (pieces->at[i].block && pieces->at[i].block->n_rows < 2)
			pieces->at[i].block = NULL;
}

/* The number of calls without events, which only a GPU has, so that functions are the same on all targets. */
static int size_of(const Piece *p)
{
	int n = 0;
	for (int i = 0; i < p->n; i++)
		n += p->call[i].op->kind != OP_RECORD;
	return n;
}

/* Joins two neighbours if at least `small` of them (1 or 2) are small; the larger one gives the name. */
static Pieces join_small(Emit *e, const Pieces *pieces, int small)
{
	Pieces out = {0};
	for (int i = 0; i < pieces->n; i++) {
		const Piece *p = &pieces->at[i];
		Piece *before = out.n ? &out.at[out.n - 1] : NULL;
		if (!before || before->block || p->block || p->n + before->n > LONG ||
			(size_of(p) < SMALL) + (size_of(before) < SMALL) < small) {
			vec_push(e->a, &out, *p);
			continue;
		}
		if (!*before->module || (*p->module && size_of(p) >= size_of(before)))
			before->module = p->module;
		before->n += p->n;
	}
	return out;
}

/* ---- lines ---- */

/* Whether two calls may be one line of a function.  Waits for gathers and waits for reduces may not. */
static bool same_line(const Call *a, const Call *b)
{
	if (strcmp(a->text, b->text) || a->marked != b->marked)
		return false;
	return a->op->kind != OP_WAIT || b->op->kind != OP_WAIT || !a->n_parts || a->part[0].name == b->part[0].name;
}

/* Calls about units that stand between two calls which every row has.  They are in one order in all rows. */
typedef VEC(const Call *) Gap;

static void add_gap(Emit *e, Gap *all, const Call *call, int n)
{
	int at = 0;
	for (int i = 0; i < n; i++) {
		int k = at;
		while (k < all->n && !same_line(all->at[k], &call[i]))
			k++;
		if (k == all->n) {
			vec_push(e->a, all, NULL);
			memmove(&all->at[at + 1], &all->at[at], sizeof(*all->at) * (size_t)(all->n - 1 - at));
			all->at[k = at] = &call[i];
		}
		at = k + 1;
	}
}

static int gap_at(const Piece *p, int from)
{
	int n = 0;
	while (from + n < p->n && floats(&p->call[from + n]))
		n++;
	return n;
}

/* at: for each row, the index behind the calls that have lines already. */
static BlockLine line_of(Emit *e, const Block *b, int *at, const Call *like)
{
	BlockLine line = {.of = NEW_N(e->a, const Call *, b->n_rows)};
	for (int r = 0; r < b->n_rows; r++) {
		const Call *c = at[r] < b->row[r]->n ? &b->row[r]->call[at[r]] : NULL;
		if (c && (!like || (floats(c) && same_line(c, like))))
			line.of[r] = b->row[r]->call + at[r]++;
		line.absent = line.absent || !line.of[r];
	}
	return line;
}

static void align(Emit *e, Block *b)
{
	VEC(BlockLine) lines = {0};
	int *at = NEW_N(e->a, int, b->n_rows);
	for (bool more = true; more;) {
		Gap gap = {0};
		for (int r = 0; r < b->n_rows; r++)
			add_gap(e, &gap, b->row[r]->call + at[r], gap_at(b->row[r], at[r]));
		for (int i = 0; i < gap.n; i++)
			vec_push(e->a, &lines, line_of(e, b, at, gap.at[i]));
		more = at[0] < b->row[0]->n;
		if (more)
			vec_push(e->a, &lines, line_of(e, b, at, NULL));
	}
	b->line = lines.at;
	b->n_lines = lines.n;
}

Pieces pieces_find(Emit *e, Scopes *s)
{
	Pieces pieces = {0};
	if (!e->calls.n)
		return pieces;
	pieces = cut(e, s, e->calls.at, e->calls.n);
	find_same(e, &pieces);
	pieces = join_small(e, &pieces, 2);
	pieces = join_small(e, &pieces, 1);
	for (int i = 0; i < pieces.n; i++) {
		Piece *p = &pieces.at[i];
		if (!p->block) {
			p->block = NEW(e->a, Block);
			p->block->n_rows = 1;
		}
		if (!p->block->row)
			p->block->row = NEW_N(e->a, const Piece *, p->block->n_rows);
		p->block->row[p->row] = p;
	}
	for (int i = 0; i < pieces.n; i++)
		if (!pieces.at[i].block->line)
			align(e, pieces.at[i].block);
	return pieces;
}
