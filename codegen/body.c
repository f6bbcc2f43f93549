/* codegen/body.c: writes the text of one function of step.c.
 *
 * Places are named after values: those in the arena are declared by the function; those of inputs, states and
 * parameters are declared at the head of step.c.  A function that serves several rows gets one of them as `b`.  A
 * part that is the same in all rows becomes a constant; places whose distance is the same in all rows share one
 * field and differ by constants.  Names and comments are those of the first row. */
#include "codegen/pieces.h"

#include <inttypes.h>
#include <string.h>

enum { NAME_BYTES = 40, ABSENT = -1 };

typedef struct Body {
	Emit *e;
	const Scopes *scopes;
	const Block *b;
	Columns columns; /* fields of the rows */
	PlaceNames locals;
	Buf lines;
} Body;

static const char *const prefix[] = {[PART_ACT] = "A_", [PART_HOST] = "H_", [PART_IN] = "I_", [PART_STATE] = "S_",
	[PART_PARAM] = "P_", [PART_GRAD] = "G_"};

static bool is_place(PartKind kind)
{
	return kind <= PART_GRAD;
}

/* ---- names ---- */

PlaceNames places_new(Arena *a)
{
	return (PlaceNames){map_new(a), map_new(a)};
}

/* A name in one module of a list, without the name of that module: the other modules have the same name in them. */
static const char *without(const char *name, const char *module)
{
	size_t n = strlen(module);
	bool listed = n && module[n - 1] >= '0' && module[n - 1] <= '9';
	return listed && !strncmp(name, module, n) && name[n] == '.' && name[n + 1] ? name + n + 1 : name;
}

/* The identifier of a value in a module: "attn_c_attn_weight" of model.transformer.h.0.attn.c_attn.weight in h.0. */
static const char *identifier(const Body *t, const char *name, const char *module)
{
	const char *inside = without(name, module), *id;
	id = str_escape(t->e->a, ESCAPE_C_IDENT, inside == name ? scopes_short(t->scopes, name) : inside);
	size_t n = strlen(id);
	return n > NAME_BYTES ? id + n - NAME_BYTES : id; /* keeps the end, where names differ */
}

/* ---- parts ---- */

static const Call *first_of(const Body *t, const BlockLine *line, const char **module)
{
	for (int r = 0; r < t->b->n_rows; r++)
		if (line->of[r]) {
			*module = t->b->row[r]->module;
			return line->of[r];
		}
	ice("a line that no row has");
}

/* The part's value in each row. */
static int64_t *values_of(const Body *t, const BlockLine *line, int part)
{
	int64_t *v = NEW_N(t->e->a, int64_t, t->b->n_rows);
	for (int r = 0; r < t->b->n_rows; r++)
		v[r] = line->of[r] ? line->of[r]->part[part].n : ABSENT;
	return v;
}

/* The name of a place, which is declared once: by the function, or by step.c for all functions.  No name of the
 * function hides one of step.c. */
static const char *name_of(Body *t, const Part *part, const char *module, const char *value)
{
	bool local = part->kind == PART_ACT || part->kind == PART_HOST || strchr(value, 'b');
	PlaceNames *names = local ? &t->locals : &t->e->constants, *others = local ? &t->e->constants : &t->locals;
	const char *stem = arena_printf(t->e->a, "%s%s", prefix[part->kind], identifier(t, part->name, module));
	const char *place = arena_printf(t->e->a, "%s = %s", stem, value), *name = map_get(names->of_place, place);
	intptr_t n = MAX((intptr_t)map_get(names->of_place, stem), (intptr_t)map_get(others->of_place, stem));
	if (!name) {
		for (name = stem; map_has(names->defined, name) || map_has(others->defined, name);)
			name = arena_printf(t->e->a, "%s_%d", stem, (int)(n = MAX(n, 1) + 1));
		map_put(names->defined, name, (void *)value);
		map_put(names->of_place, place, (void *)name);
		map_put(names->of_place, stem, (void *)n);
	}
	return name + strlen(prefix[part->kind]);
}

static const char *constant(const Body *t, PartKind kind, int64_t n)
{
	return arena_printf(t->e->a, kind == PART_ID ? "UINT64_C(%" PRIu64 ")" : "%" PRId64, n);
}

/* A call that some rows lack gets a field of its own, named after the call: "reshard". */
static const char *field_name(const Body *t, const BlockLine *line, const Call *c, const Part *part, const char *module)
{
	size_t n = strcspn(c->text, "(");
	if (is_place(part->kind))
		return arena_printf(t->e->a, "%s%s", prefix[part->kind], identifier(t, part->name, module));
	return line->absent && n > 3 && c->op->kind != OP_WAIT ? arena_strndup(t->e->a, c->text + 3, n - 3) : part->name;
}

static const char *part_text(Body *t, const BlockLine *line, int k)
{
	const char *module;
	const Call *c = first_of(t, line, &module);
	const Part *part = &c->part[k];
	int64_t *v = values_of(t, line, k);
	const char *text = columns_constant(&t->columns, v) ? constant(t, part->kind, v[0]) : columns_text(&t->columns,
		part->kind, is_place(part->kind), field_name(t, line, c, part, module), v, "b->");
	return is_place(part->kind) ? name_of(t, part, module, text) : text;
}

/* ---- lines ---- */

static void put_line(Body *t, const BlockLine *line)
{
	const char *module;
	const Call *c = first_of(t, line, &module);
	Buf b = {0};
	const char *part = "";
	buf_printf(&b, "%s", c->marked ? "OP " : "");
	int k = 0;
	for (const char *s = c->text; *s; s++)
		if (*s == PART_HOLE)
			buf_printf(&b, "%s", part = part_text(t, line, k++));
		else
			buf_put(&b, s, 1);
	if (line->absent) {
		wrap_statement(&t->lines, "\t", arena_printf(t->e->a, "if (%s >= 0)", part), c->comment);
		wrap_statement(&t->lines, "\t\t", b.at, NULL);
	} else {
		wrap_statement(&t->lines, "\t", b.at, c->comment);
	}
	buf_free(&b);
}

/* The number of lines from `at` on that differ only in a number that rises by one from line to line. */
static int run_at(const Block *b, int at)
{
	const Call *first = b->line[at].of[0];
	int n = 1;
	if (b->n_rows > 1 || first->n_parts != 1 || is_place(first->part[0].kind) || first->part[0].kind == PART_ID)
		return 1;
	for (; at + n < b->n_lines; n++) {
		const Call *c = b->line[at + n].of[0];
		if (strcmp(c->text, first->text) || c->marked != first->marked ||
			c->part[0].n != first->part[0].n + n)
			break;
	}
	return n;
}

static void put_run(Body *t, int at, int n)
{
	const Call *first = t->b->line[at].of[0], *last = t->b->line[at + n - 1].of[0];
	const char *comment = first->comment && last->comment ?
		arena_printf(t->e->a, "%s .. %s", first->comment, last->comment) : NULL;
	size_t head = strcspn(first->text, "\1");
	wrap_statement(&t->lines, "\t", arena_printf(t->e->a, "for (int i = %" PRId64 "; i <= %" PRId64 "; i++)",
		first->part[0].n, last->part[0].n), comment);
	buf_printf(&t->lines, "\t\t%s%.*si%s\n", first->marked ? "OP " : "", (int)head, first->text,
		first->text + head + 1);
}

static void put_lines(Body *t)
{
	enum { RUN = 3 };
	for (int i = 0; i < t->b->n_lines; i++) {
		int n = run_at(t->b, i);
		if (n < RUN) {
			put_line(t, &t->b->line[i]);
			continue;
		}
		put_run(t, i, n);
		i += n - 1;
	}
}

/* ---- the function ---- */

void body_constants(const PlaceNames *names, const char *head, Buf *out)
{
	for (int i = 0; i < map_count(names->defined); i++) {
		const char *name = map_key(names->defined, i);
		buf_printf(out, "%s%s = %s", i ? ", " : head, name, (const char *)map_get(names->defined, name));
	}
	if (map_count(names->defined))
		buf_printf(out, ";\n\n");
}

/* Events exist on GPUs only.  They are last, so that the rest is the same on all targets. */
enum { NUMBERS, IDS, PLACES, EVENTS, FIELD_KINDS };
static int field_kind(const Column *c)
{
	return is_place(c->kind) ? PLACES : c->kind == PART_ID ? IDS : c->kind == PART_EVENT ? EVENTS : NUMBERS;
}

static void put_fields(const Body *t, Buf *out)
{
	static const char *const ctype[] = {"int", "uint64_t", "int64_t", "int"};
	buf_printf(out, "\tconst char *name;\n");
	for (int k = 0; k < FIELD_KINDS; k++) {
		const char *before = arena_printf(t->e->a, "\t%s ", ctype[k]), *first = before;
		for (int i = 0; i < t->columns.all.n; i++) {
			if (field_kind(t->columns.all.at[i]) != k)
				continue;
			buf_printf(out, "%s%s", before, t->columns.all.at[i]->name);
			before = ", ";
		}
		buf_printf(out, before != first ? ";\n" : "");
	}
}

static void put_rows(const Body *t, const char *label, Buf *out)
{
	for (int r = 0; r < t->b->n_rows; r++) {
		buf_printf(out, "\t{\"%s %s\"", label, str_escape(t->e->a, ESCAPE_C_STRING,
			scopes_short(t->scopes, t->b->row[r]->module)));
		for (int k = 0; k < FIELD_KINDS; k++)
			for (int i = 0; i < t->columns.all.n; i++)
				if (field_kind(t->columns.all.at[i]) == k)
					buf_printf(out, ", %s", constant(t, t->columns.all.at[i]->kind, t->columns.all.at[i]->at[r]));
		buf_printf(out, "},\n");
	}
}

/* Puts the range that profilers show for the function around its lines: "forward h.0". */
static void frame(const Body *t, const char *label, Buf *out)
{
	const char *module = scopes_short(t->scopes, t->b->row[0]->module);
	const char *name = t->b->n_rows > 1 ? "b->name" : arena_printf(t->e->a, "\"%s%s%s\"", label, *module ? " " : "",
		str_escape(t->e->a, ESCAPE_C_STRING, module));
	buf_printf(out, "\trt_enter(rt, %s);\n%s\trt_leave(rt);\n", name, t->lines.at);
}

void body_write(Emit *e, const Scopes *s, const Block *b, const char *label, Buf *body, Buf *fields, Buf *rows)
{
	Body t = {.e = e, .scopes = s, .b = b, .columns = columns_new(e->a, b->n_rows),
		.locals = places_new(e->a)};
	map_add(t.columns.names, "name");
	put_lines(&t);
	body_constants(&t.locals, "\tconst int64_t ", body);
	if (codegen_cuda(e->target))
		frame(&t, label, body);
	else
		buf_put(body, t.lines.at, t.lines.n);
	if (b->n_rows > 1) {
		put_fields(&t, fields);
		put_rows(&t, label, rows);
	}
	buf_free(&t.lines);
}
