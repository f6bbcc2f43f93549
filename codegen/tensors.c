/* codegen/tensors.c: writes the tables of a program's tensors and of the files with their first contents.
 *
 * Files are named by absolute path and identified by size and sampled hash, so that a binary finds them from any
 * folder and refuses changed ones.  The tensors of numbered modules with equal tensors ("h.0", "h.1") are one
 * macro, which is called with what differs: the number, the unit, the first element in its flat, the first byte in
 * the file. */
#include "codegen/pieces.h"

#include "base/file.h"
#include "base/filehash.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *emit_c_string(Emit *e, const char *s)
{
	return s ? arena_printf(e->a, "\"%s\"", str_escape(e->a, ESCAPE_C_STRING, s)) : "NULL";
}

/* ---- macros ---- */

void emit_macro(Buf *out, const char *head, const char *text)
{
	Buf lines = {0};
	if (!strchr(text, '\n') && strlen("#define ") + strlen(head) + strlen(text) <= WRAP_COLUMNS) {
		buf_printf(out, "#define %s %s\n", head, text + 1);
		return;
	}
	wrap_text(&lines, text, WRAP_COLUMNS - 2);
	buf_printf(out, "#define %s \\\n", head);
	for (const char *at = lines.at, *end; *at; at = end + 1) {
		end = strchr(at, '\n');
		buf_printf(out, end[1] ? "%.*s \\\n" : "%.*s\n", (int)(end - at), at);
	}
	buf_free(&lines);
}

const char *emit_unused(Emit *e, const char *stem)
{
	const char *name = stem;
	intptr_t n = (intptr_t)map_get(e->functions, stem); /* the last number that was used */
	while (map_has(e->functions, name))
		name = arena_printf(e->a, "%s_%d", stem, (int)(n = MAX(n, 1) + 1));
	map_put(e->functions, stem, (void *)n);
	map_put(e->functions, name, (void *)(name == stem ? n : 0));
	return name;
}

/* ---- files ---- */

static const char *absolute(Emit *e, const char *path)
{
	char *real = realpath(path, NULL);
	const char *known = arena_strdup(e->a, real ? real : path);
	free(real);
	return known;
}

/* The macro of the file's path. */
static const char *file_macro(Emit *e, const char *path)
{
	return map_get(e->paths, path);
}

static void put_file(Emit *e, Buf *rows, const char *path, const char *name)
{
	FileView file;
	const char *why;
	if (!file_view(&file, path, &why))
		diag_error(e->d, path, "cannot read the initial weights: %s", why);
	buf_printf(rows, "\t{%s, %" PRId64 ", UINT64_C(0x%" PRIx64 ")},\n", name, file.bytes,
		file.at ? filehash_sampled(file.at, file.bytes) : 0);
	file_view_close(&file);
}

int tensors_files(Emit *e, Buf *out)
{
	Map *seen = map_new(e->a); /* absolute path -> its macro: one file may have two names */
	Buf rows = {0}, paths = {0};
	for (int i = 0; i < e->m->n_symbols; i++) {
		const char *file = e->m->symbols[i]->src.file;
		if (!file || map_has(e->paths, file))
			continue;
		const char *path = absolute(e, file), *name = map_get(seen, path);
		if (!name) {
			name = emit_unused(e, "MODEL_FILE");
			map_put(seen, path, (void *)name);
			emit_macro(&paths, name, arena_printf(e->a, "\t%s", emit_c_string(e, path)));
			put_file(e, &rows, path, name);
		}
		map_put(e->paths, file, (void *)name);
	}
	if (rows.n)
		buf_printf(out, "/* Where initial weights come from: path, bytes, hash of samples. */\n%s"
			"static const RtFile files[] = {\n%s};\n\n", paths.at, rows.at);
	buf_free(&paths);
	buf_free(&rows);
	return map_count(seen);
}

/* ---- one tensor ---- */

bool tensors_has(const Symbol *s)
{
	return s->kind != SYM_OUTPUT && s->kind != SYM_SCALE && s->type.kind == TYPE_TENSOR;
}

/* What differs among modules: in a row's text each hole is PART_HOLE followed by its number. */
typedef enum Hole { HOLE_NUMBER, HOLE_UNIT, HOLE_AT, HOLE_FROM, HOLES } Hole;

/* One row.  If `holes`, its text has holes, otherwise the values. */
typedef struct Row { Emit *e; Buf text; bool holes; int64_t value[HOLES]; } Row;

static const char *const tensor_kind[] = {
	[SYM_INPUT] = "RT_INPUT", [SYM_PARAM] = "RT_PARAM", [SYM_BUFFER] = "RT_BUFFER", [SYM_DATA] = "RT_DATA",
	[SYM_STATE] = "RT_STATE",
};

static void put_hole(Row *r, const char *before, Hole k, int64_t value)
{
	r->value[k] = value;
	if (r->holes)
		buf_printf(&r->text, "%s%c%d", before, PART_HOLE, k);
	else
		buf_printf(&r->text, "%s%" PRId64, before, value);
}

/* The number of bytes of the name up to its last number that is followed by more names: "h.0" of "h.0.attn.weight";
 * 0: there is none. */
static size_t number_end(const char *name)
{
	size_t end = 0;
	for (const char *at = strchr(name, '.'); at; at = strchr(at + 1, '.')) {
		size_t n = strspn(at + 1, "0123456789");
		if (n && n < 9 && at[1 + n] == '.' && (at[1] != '0' || n == 1))
			end = (size_t)(at + 1 - name) + n;
	}
	return end;
}

static void put_name(Row *r, const char *name)
{
	size_t end = number_end(name), begin = end;
	while (begin && isdigit((unsigned char)name[begin - 1]))
		begin--;
	if (!r->holes || !end) {
		buf_printf(&r->text, ", .name = %s", emit_c_string(r->e, name));
		return;
	}
	put_hole(r, arena_printf(r->e->a, ", .name = %s #", emit_c_string(r->e, arena_strndup(r->e->a, name, begin))),
		HOLE_NUMBER, atoi(name + begin));
	buf_printf(&r->text, " %s", emit_c_string(r->e, name + end));
}

static void put_source(Row *r, const Symbol *s)
{
	Emit *e = r->e;
	Buf *out = &r->text;
	const Source *src = &s->src;
	int64_t perm[IR_MAX_RANK];
	if (!src->file) {
		if (src->init)
			buf_printf(out, ", .init = %s, .scale = %s, .seed = %" PRId64,
				strcmp(src->init, "normal") ? "RT_INIT_UNIFORM" : "RT_INIT_NORMAL", emit_c_float(e, src->scale),
				src->seed);
		else if (src->fill != 0)
			buf_printf(out, ", .fill = %s", emit_c_float(e, src->fill));
		return;
	}
	for (int i = 0; i < src->rank; i++)
		perm[i] = src->perm[i];
	buf_printf(out, ", .file = %s", file_macro(e, src->file));
	put_hole(r, ", .file_offset = ", HOLE_FROM, src->offset);
	buf_printf(out, ", .file_bytes = %" PRId64, src->bytes);
	if (src->dtype) /* f32 is 0, which is left out */
		buf_printf(out, ", .file_dtype = %s", dtype_constant(src->dtype));
	if (src->rank)
		buf_printf(out, ", .file_rank = %d, .file_dim = %s, .perm = %s", src->rank,
			emit_int_list(e, src->rank, src->dim), emit_int_list(e, src->rank, perm));
}

static void put_place(Row *r, const Symbol *s)
{
	if (s->kind == SYM_PARAM && s->unit) {
		put_hole(r, ", .unit = ", HOLE_UNIT, s->unit->index);
		if (s->flat)
			buf_printf(&r->text, ", .flat = %d", s->flat);
	} else {
		buf_printf(&r->text, ", .unit = -1, .flat = -1");
	}
	if (s->offset || r->holes)
		put_hole(r, ", .offset = ", HOLE_AT, s->offset);
}

/* Writes fields in the order of the struct, as C++ requires; fields that are 0 are left out. */
static void put_tensor(Row *r, const Symbol *s)
{
	const Emit *e = r->e;
	Buf *out = &r->text;
	buf_printf(out, "{.kind = %s", tensor_kind[s->kind]);
	put_name(r, s->name);
	buf_printf(out, ", .dtype = %s", dtype_constant(s->type.dtype));
	if (s->type.rank)
		buf_printf(out, ", .rank = %d, .dim = %s", s->type.rank, emit_int_list(r->e, s->type.rank, s->type.dim));
	put_place(r, s);
	put_source(r, s);
	if (s->trainable)
		buf_printf(out, ", .trainable = true");
	if (s->batched)
		buf_printf(out, ", .batched = true");
	if (s->pads && e->sizes->n > 1)
		buf_printf(out, ", .pad = %s%s", emit_c_float(r->e, s->pad), s->pad_free ? ", .pad_free = true" : "");
	if (s->trainable && e->train->no_decay_1d && s->type.rank <= 1)
		buf_printf(out, ", .no_decay = true");
	if (s->narrowed)
		buf_printf(out, ", .narrowed = true, .saved = %s", dtype_constant(s->saved));
	if (s->trainable && s->group)
		buf_printf(out, ", .group = %d", s->group);
	buf_printf(out, "}");
}

/* ---- tensors of equal modules ---- */

/* Consecutive tensors whose names begin with the same module: those of "h.0." */
typedef struct Run { const Symbol *const *at; int n; struct Same *same; int row; } Run;
typedef struct Same { VEC(const Run *) runs; Columns columns; const char *macro; } Same;

static int run_length(const Symbol *const *at, int n)
{
	size_t end = number_end(at[0]->name);
	int i = 1;
	while (end && i < n && number_end(at[i]->name) == end && !strncmp(at[i]->name, at[0]->name, end))
		i++;
	return i;
}

static const char *text_with_holes(Emit *e, const Symbol *s, int64_t *value)
{
	Row r = {.e = e, .holes = true};
	put_tensor(&r, s);
	memcpy(value, r.value, sizeof(r.value));
	const char *text = arena_strndup(e->a, r.text.at, r.text.n);
	buf_free(&r.text);
	return text;
}

static const char *run_key(Emit *e, const Run *run)
{
	Buf b = {0};
	int64_t value[HOLES];
	for (int i = 0; i < run->n; i++)
		buf_printf(&b, "%s\n", text_with_holes(e, run->at[i], value));
	const char *key = arena_strndup(e->a, b.at, b.n);
	buf_free(&b);
	return key;
}

/* Whether modules may have the value at a fixed distance.  Only for int64 fields: sums of an int could overflow. */
static bool is_distance(int kind)
{
	return kind == HOLE_AT || kind == HOLE_FROM;
}

static const char *hole_text(Emit *e, const Same *same, Columns *c, int tensor, Hole k)
{
	static const char *const name[] = {"i", "u", "at", "from"}; /* none is the name of a field */
	int64_t *v = NEW_N(e->a, int64_t, c->n_rows), value[HOLES];
	for (int r = 0; r < c->n_rows; r++) {
		text_with_holes(e, same->runs.at[r]->at[tensor], value);
		v[r] = value[k];
	}
	bool stays = k != HOLE_NUMBER && columns_constant(c, v);
	return stays ? emit_int(e, v[0]) : columns_text(c, k, is_distance((int)k), name[k], v, "");
}

/* Writes the macro; its parameters are the columns. */
static void put_macro(Emit *e, Buf *out, Same *same)
{
	const Run *first = same->runs.at[0];
	Columns *c = &same->columns;
	Buf text = {0}, head = {0};
	int64_t value[HOLES];
	*c = columns_new(e->a, same->runs.n);
	for (int i = 0; i < first->n; i++) {
		buf_printf(&text, "\t");
		for (const char *s = text_with_holes(e, first->at[i], value); *s; s++)
			if (*s == PART_HOLE)
				buf_printf(&text, "%s", hole_text(e, same, c, i, (Hole)(*++s - '0')));
			else
				buf_put(&text, s, 1);
		buf_printf(&text, i + 1 < first->n ? ",\n" : "\n");
	}
	const char *name = first->at[0]->name;
	size_t end = number_end(name);
	while (isdigit((unsigned char)name[end - 1]) || name[end - 1] == '.')
		end--;
	size_t begin = end;
	while (begin && name[begin - 1] != '.')
		begin--;
	char *stem = str_escape(e->a, ESCAPE_C_IDENT, arena_strndup(e->a, name + begin, end - begin));
	for (char *s = stem; *s; s++)
		*s = (char)toupper((unsigned char)*s);
	same->macro = emit_unused(e, arena_printf(e->a, "%s_TENSORS", stem));
	buf_printf(&head, "%s(", same->macro);
	for (int i = 0; i < c->all.n; i++)
		buf_printf(&head, i ? ", %s" : "%s", c->all.at[i]->name);
	buf_printf(&head, ")");
	emit_macro(out, head.at, text.at);
	buf_printf(out, "\n");
	buf_free(&head);
	buf_free(&text);
}

static void put_call(Buf *out, const Run *run)
{
	const Columns *c = &run->same->columns;
	buf_printf(out, "%s(", run->same->macro);
	for (int i = 0; i < c->all.n; i++)
		buf_printf(out, "%s%" PRId64 "%s", i ? ", " : "", c->all.at[i]->at[run->row],
			is_distance(c->all.at[i]->kind) ? "L" : "");
	buf_printf(out, ")");
}

static void put_plain(Emit *e, Buf *out, const Run *run)
{
	for (int i = 0; i < run->n; i++) {
		Row r = {.e = e};
		put_tensor(&r, run->at[i]);
		buf_printf(out, "\t%s,\n", r.text.at);
		buf_free(&r.text);
	}
}

typedef VEC(Run) Runs;

static Runs find_runs(Emit *e, const Symbol *const *at, int n)
{
	enum { SMALL = 4 }; /* tensors: with fewer a macro saves no text */
	Map *found = map_new(e->a);
	Runs runs = {0};
	for (int i = 0; i < n; i += runs.at[runs.n - 1].n) {
		Run run = {.at = at + i, .n = run_length(at + i, n - i)};
		vec_push(e->a, &runs, run);
	}
	for (int i = 0; i < runs.n; i++) {
		Run *run = &runs.at[i];
		if (run->n < SMALL)
			continue;
		const char *key = run_key(e, run);
		if (!map_has(found, key))
			map_put(found, key, NEW(e->a, Same));
		run->same = map_get(found, key);
		run->row = run->same->runs.n;
		vec_push(e->a, &run->same->runs, run);
	}
	return runs;
}

int tensors_write(Emit *e, Buf *out)
{
	int n = 0;
	const Symbol **at = NEW_N(e->a, const Symbol *, e->m->n_symbols);
	for (int i = 0; i < e->m->n_symbols; i++)
		if (tensors_has(e->m->symbols[i]))
			at[n++] = e->m->symbols[i];
	Runs runs = find_runs(e, at, n);
	for (int i = 0; i < runs.n; i++)
		if (runs.at[i].same && runs.at[i].same->runs.n > 1 && !runs.at[i].same->macro)
			put_macro(e, out, runs.at[i].same);
	if (n)
		buf_printf(out, "static const RtTensor tensors[] = {\n");
	for (int i = 0; i < runs.n; i++) {
		const Run *run = &runs.at[i];
		if (!run->same || !run->same->macro) {
			put_plain(e, out, run);
			continue;
		}
		bool more = i && run[-1].same == run->same;
		out->n -= more; /* the line of calls continues */
		buf_printf(out, more ? " " : "\t");
		put_call(out, run);
		buf_printf(out, ",\n");
	}
	if (n)
		buf_printf(out, "};\n\n");
	return n;
}
