/* ckpt/show.c: shardc ckpt show: prints what a checkpoint is, its tensors, and statistics of their elements.
 *
 * Everything is collected in one JSON value, which is printed as it is or as a table. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt.h"

/* Statistics of the finite elements; nan and inf are only counted.  Sums are wider than f64, whose range the squares of
 * its own values can exceed. */
typedef struct Stats { double min, max; long double sum, squares; int64_t finite, nan, inf; } Stats;

static void add(Stats *s, const double *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		if (!isfinite(x[i])) {
			s->nan += isnan(x[i]) != 0;
			s->inf += isinf(x[i]) != 0;
			continue;
		}
		s->min = s->finite ? fmin(s->min, x[i]) : x[i];
		s->max = s->finite ? fmax(s->max, x[i]) : x[i];
		s->sum += x[i];
		s->squares += (long double)x[i] * x[i];
		s->finite++;
	}
}

static json_t *number(long double x)
{
	return isfinite((double)x) ? json_real((double)x) : json_null();
}

static json_t *stats_of(const CheckpointTensor *t, double *scratch)
{
	Stats s = {0};
	for (int64_t first = 0, n; first < t->numel; first += n) {
		n = MIN(CKPT_PIECE, t->numel - first);
		ckpt_numbers(t, first, n, scratch);
		ckpt_release(t, first, n);
		add(&s, scratch, n);
	}
	return json_pack("{s:o, s:o, s:o, s:o, s:I, s:I}", "min", s.finite ? json_real(s.min) : json_null(),
		"max", s.finite ? json_real(s.max) : json_null(), "mean", s.finite ? number(s.sum / s.finite) : json_null(),
		"norm", number(sqrtl(s.squares)), "nan", (json_int_t)s.nan, "inf", (json_int_t)s.inf);
}

/* The names of the files, each once, without the folder. */
static json_t *files_of(const CheckpointTensor *t, Arena *a)
{
	json_t *files = json_array();
	ArenaMark mark = arena_mark(a);
	PtrMap *seen = ptrmap_new(a);
	for (int i = 0; i < t->n_pieces; i++) {
		const SafeFile *f = t->piece[i].file;
		const char *slash = strrchr(f->path, '/');
		if (!ptrmap_get(seen, f))
			json_array_append_new(files, json_string(slash ? slash + 1 : f->path));
		ptrmap_put(seen, f, seen);
	}
	arena_rewind(a, mark);
	return files;
}

static json_t *describe_tensor(const Checkpoint *c, CheckpointSection s, const CheckpointTensor *t, double *scratch,
	Arena *a)
{
	json_t *out = json_object(), *shape = json_array();
	for (int i = 0; i < t->rank; i++)
		json_array_append_new(shape, json_integer(t->dim[i]));
	if (c->state)
		json_object_set_new(out, "section", json_string(checkpoint_sections[s]));
	json_object_set_new(out, "name", json_string(t->name));
	json_object_set_new(out, "dtype", json_string(dtype_info[t->dtype].text));
	json_object_set_new(out, "shape", shape);
	json_object_set_new(out, "files", files_of(t, a));
	if (scratch)
		json_object_set_new(out, "stats", stats_of(t, scratch));
	return out;
}

/* Adds what state.json says of the origin; for a single file, its metadata except checksums. */
static void describe_origin(const Checkpoint *c, json_t *out)
{
	static const char *const keys[] = {"model", "optimizer", "step", "updates", "samples", "options", "versions"};
	if (!c->state) {
		json_t *meta = json_object();
		const Map *m = c->files[0]->meta;
		for (int i = 0; i < map_count(m); i++)
			if (strncmp(map_key(m, i), "crc32:", 6))
				json_object_set_new(meta, map_key(m, i), json_string(map_get(m, map_key(m, i))));
		json_object_set_new(out, "metadata", meta);
		return;
	}
	json_object_set_new(out, "kind", json_string(checkpoint_kinds[c->kind]));
	json_object_set(out, "ranks", json_object_get(c->layout, "ranks"));
	json_object_set(out, "strategies", json_object_get(c->layout, "strategies"));
	for (int i = 0; i < COUNT_OF(keys); i++)
		json_object_set(out, keys[i], json_object_get(c->state, keys[i]));
}

static json_t *describe(const Checkpoint *c, const char *path, bool stats, Arena *a)
{
	json_t *out = json_object(), *tensors = json_array();
	double *scratch = stats ? NEW_N(a, double, CKPT_PIECE) : NULL;
	int64_t bytes = 0;
	json_object_set_new(out, "path", json_string(path));
	describe_origin(c, out);
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		for (int i = 0; i < c->section[s].n; i++) {
			const CheckpointTensor *t = &c->section[s].at[i];
			bytes += t->numel * dtype_info[t->dtype].bytes;
			json_array_append_new(tensors, describe_tensor(c, (CheckpointSection)s, t, scratch, a));
		}
	json_object_set_new(out, "bytes", json_integer(bytes));
	json_object_set_new(out, "tensors", tensors);
	return out;
}

/* ---- the table ---- */

enum { COLUMNS = 10 };
typedef struct Table { Buf cell; VEC(size_t) at; size_t width[COLUMNS]; int columns; Arena *a; } Table;

static void put_cell(Table *t, const char *text)
{
	int column = t->at.n % t->columns;
	t->width[column] = MAX(t->width[column], strlen(text));
	vec_push(t->a, &t->at, t->cell.n);
	buf_put(&t->cell, text, strlen(text) + 1);
}

/* The text with control characters escaped. */
static const char *on_terminal(json_t *v, Arena *a)
{
	return str_escape(a, ESCAPE_IR, json_string_value(v));
}

static void put_json(Table *t, json_t *v)
{
	char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
	put_cell(t, json_is_string(v) ? on_terminal(v, t->a) : text ? text : "");
	free(text);
}

/* "a, b"; of a longer list the first and the last item. */
static const char *join(Arena *a, json_t *list)
{
	size_t n = json_array_size(list);
	const char *first = n ? on_terminal(json_array_get(list, 0), a) : "";
	const char *last = n ? on_terminal(json_array_get(list, n - 1), a) : "";
	return n < 2 ? first : n == 2 ? arena_printf(a, "%s, %s", first, last) :
		arena_printf(a, "%s .. %s (%zu files)", first, last, n);
}

static void print_table(const Table *t)
{
	for (int i = 0; i < t->at.n; i++) {
		const char *text = t->cell.at + t->at.at[i];
		int column = i % t->columns;
		if (column + 1 == t->columns)
			printf("%s\n", text);
		else
			printf("%-*s  ", (int)t->width[column], text);
	}
}

static void print_text(json_t *root, bool stats, Arena *a)
{
	static const char *const numbers[] = {"min", "max", "mean", "norm", "nan", "inf"};
	json_t *tensors = json_object_get(root, "tensors"), *v;
	const char *key;
	Table t = {.columns = stats ? 10 : 4, .a = a};
	json_object_foreach(root, key, v) {
		char *text = v == tensors ? NULL : json_dumps(v, JSON_ENCODE_ANY);
		if (text)
			printf("%s: %s\n", key, json_is_string(v) ? on_terminal(v, a) : text);
		free(text);
	}
	static const char *const heads[] = {"name", "dtype", "shape"};
	for (int i = 0; i < COUNT_OF(heads); i++)
		put_cell(&t, heads[i]);
	for (int i = 0; i < COUNT_OF(numbers) && stats; i++)
		put_cell(&t, numbers[i]);
	put_cell(&t, "files");
	for (size_t i = 0; i < json_array_size(tensors); i++) {
		json_t *tensor = json_array_get(tensors, i);
		for (int k = 0; k < COUNT_OF(heads); k++)
			put_json(&t, json_object_get(tensor, heads[k]));
		for (int k = 0; k < COUNT_OF(numbers) && stats; k++)
			put_json(&t, json_object_get(json_object_get(tensor, "stats"), numbers[k]));
		put_cell(&t, join(a, json_object_get(tensor, "files")));
	}
	printf("\n");
	print_table(&t);
	buf_free(&t.cell);
}

int ckpt_show(const CkptCall *call)
{
	Diag *d = call->d;
	const char *format = "text";
	bool stats = false;
	const CkptOption options[] = {
		{"--stats", CKPT_FLAG, &stats, "",
			"of each tensor min, max, mean and norm of what is finite, NaN and infinities",
			false},
		{"--format", CKPT_CHOICE, &format, "text|json", "a table, or one JSON object", false},
	};
	Arena *a = arena_new();
	CkptArgs args;
	Checkpoint *c = NULL;
	if (ckpt_parse(call, options, COUNT_OF(options), 1, 1, a, &args)) {
		c = ckpt_open(a, args.at[0], d);
		args.status = c && (!stats || checkpoint_verify(c, 0, 1, true, d)) ? CKPT_OK : CKPT_INPUT;
	}
	if (c && args.status == CKPT_OK) {
		json_t *root = describe(c, args.at[0], stats, a);
		if (strcmp(format, "json"))
			print_text(root, stats, a);
		else
			json_dumpf(root, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII), printf("\n");
		json_decref(root);
	}
	if (c)
		checkpoint_close(c);
	arena_free(a);
	return args.status;
}
