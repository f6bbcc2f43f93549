/* predict/diff.c: `shardc trace diff`: where two traces of one program differ most.
 *
 * Compared are times of a step: of the step, of each class of what computes or waits, of each op, and of each
 * collective on its stream.  A trace of several steps counts with their mean, that of an op of a program of several
 * sizes over the steps of its size; steps of sizes that one trace lacks are left out of the step and the classes.
 * Evaluations and what the host does between ops are no part of a step. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "predict/predict.h"

enum { TOP = 10, TITLE = 60 };

/* A row of the comparison: milliseconds of a step in both traces; NAN: the trace has none. */
typedef struct Row { const char *title; double ms[2]; } Row;
typedef struct Rows { Map *of; } Rows; /* what identifies a row in both traces -> the Row */

typedef struct Reading {
	const char *path;
	json_t *root;
	const char *kind, *program;
	int64_t world, threads, steps;
	Map *steps_of;       /* size -> int64_t *: its steps; empty where the program has one */
	int64_t compared;    /* steps of sizes that both have */
	Arena *a;
	Diag *d;
} Reading;

typedef struct Diff { Row step; Rows classes, ops, collectives; Reading of[2]; } Diff;

/* ---- reading ---- */

/* The member of an object; NULL after a message if it is absent or of another type. */
static const json_t *member(const Reading *r, const json_t *of, const char *where, const char *key, json_type type)
{
	const json_t *x = json_object_get(of, key);
	bool number = type == JSON_REAL && json_is_number(x);
	if (x && (number || json_typeof(x) == type))
		return x;
	const char *wanted = type == JSON_STRING ? "a string" : type == JSON_OBJECT ? "an object" : type == JSON_ARRAY ?
		"a list" : type == JSON_INTEGER ? "a whole number" : "a number";
	diag_error(r->d, arena_printf(r->a, "%s: %s.%s", r->path, where, key), x ? "%s is wanted here" :
		"is missing: %s is wanted, as traces of shardc have it", wanted);
	return NULL;
}

static int64_t whole(const Reading *r, const json_t *of, const char *where, const char *key, int64_t least)
{
	const json_t *x = member(r, of, where, key, JSON_INTEGER);
	if (x && json_integer_value(x) < least)
		diag_error(r->d, arena_printf(r->a, "%s: %s.%s", r->path, where, key), "%lld is less than %lld",
			(long long)json_integer_value(x), (long long)least);
	return x ? json_integer_value(x) : 0;
}

static const char *text(const Reading *r, const json_t *of, const char *where, const char *key)
{
	const json_t *x = member(r, of, where, key, JSON_STRING);
	return x ? json_string_value(x) : "";
}

static bool read_trace(Reading *r)
{
	int before = r->d->errors;
	r->root = json_read(r->path, r->a, r->d);
	if (!r->root)
		return false;
	const json_t *other = member(r, r->root, "$", "otherData", JSON_OBJECT);
	member(r, r->root, "$", "traceEvents", JSON_ARRAY);
	if (!other)
		return false;
	r->kind = text(r, other, "$.otherData", "kind");
	r->program = text(r, other, "$.otherData", "program");
	r->world = whole(r, other, "$.otherData", "world", 1);
	r->threads = whole(r, other, "$.otherData", "threads", 1);
	r->steps = whole(r, other, "$.otherData", "steps", 1);
	return r->d->errors == before;
}

/* ---- adding up ---- */

static void add(const Reading *r, Rows *rows, int which, const char *key, const char *title, double ms)
{
	Row *row = map_get(rows->of, key);
	if (!row) {
		row = NEW(r->a, Row);
		*row = (Row){title, {NAN, NAN}};
		map_put(rows->of, key, row);
	}
	row->ms[which] = (isnan(row->ms[which]) ? 0 : row->ms[which]) + ms;
}

static const char *size_of(const json_t *args)
{
	const char *size = json_string_value(json_object_get(args, "size"));
	return size ? size : "";
}

/* Each step has one size. */
static void count_steps(Reading *r)
{
	Map *seen = map_new(r->a);
	size_t i;
	json_t *e;
	json_array_foreach(json_object_get(r->root, "traceEvents"), i, e) {
		const json_t *args = json_object_get(e, "args"), *step = json_object_get(args, "step");
		const char *program = json_string_value(json_object_get(args, "program")), *size = size_of(args);
		if (!*size || !json_is_integer(step) || (program && !strcmp(program, "eval")))
			continue;
		const char *key = arena_printf(r->a, "%s %lld", size, (long long)json_integer_value(step));
		if (map_get(seen, key))
			continue;
		map_put(seen, key, r);
		int64_t *n = map_get(r->steps_of, size);
		if (!n)
			map_put(r->steps_of, arena_strdup(r->a, size), n = NEW(r->a, int64_t));
		++*n;
	}
}

static void count_compared(Reading *r, const Reading *other)
{
	r->compared = map_count(r->steps_of) ? 0 : r->steps;
	for (int i = 0; i < map_count(r->steps_of); i++) {
		const char *size = map_key(r->steps_of, i);
		if (map_get(other->steps_of, size))
			r->compared += *(int64_t *)map_get(r->steps_of, size);
	}
}

/* A slice of computing, of a wait or of a collective. */
static void add_slice(Diff *diff, int which, const json_t *e, const char *where)
{
	const Reading *r = &diff->of[which];
	const char *name = text(r, e, where, "name"), *cat = text(r, e, where, "cat");
	const char *at = arena_printf(r->a, "%s.args", where);
	int64_t thread = whole(r, e, where, "tid", 0);
	const json_t *dur = member(r, e, where, "dur", JSON_REAL), *args = member(r, e, where, "args", JSON_OBJECT);
	if (dur && !(json_number_value(dur) >= 0 && json_number_value(dur) < TRACE_LONGEST))
		diag_error(r->d, arena_printf(r->a, "%s: %s.dur", r->path, where), "a slice takes 0 to %g microseconds",
			TRACE_LONGEST);
	if (!args || !dur || !strcmp(cat, "host"))
		return;
	const char *program = text(r, args, at, "program");
	bool numbered = thread && json_object_get(args, "seq"); /* copies to and from memory of the host have no number */
	int64_t number = whole(r, args, at, numbered ? "seq" : "op", 0);
	const char *size = size_of(args);
	const int64_t *of_size = map_get(r->steps_of, size);
	bool compared = !of_size || map_get(diff->of[!which].steps_of, size);
	double ms = json_number_value(dur) / 1e3, mean = ms / (double)(of_size ? *of_size : r->steps);
	const char *key = arena_printf(r->a, "%s %s %s%" PRId64, size, program, thread && !numbered ? "copy " : "", number);
	const char *title = arena_printf(r->a, "%s%s%s %" PRId64 "  %s", size, *size ? " " : "", program, number, name);
	if (!strcmp(program, "eval"))
		return;
	if (thread) {
		add(r, &diff->collectives, which, key, title, mean);
		return;
	}
	add(r, &diff->ops, which, key, title, mean);
	if (!compared)
		return;
	add(r, &diff->classes, which, cat, cat, ms / (double)MAX(r->compared, 1));
	diff->step.ms[which] += ms / (double)MAX(r->compared, 1);
}

static void add_trace(Diff *diff, int which)
{
	const Reading *r = &diff->of[which];
	size_t i;
	json_t *e;
	json_array_foreach(json_object_get(r->root, "traceEvents"), i, e) {
		const char *where = arena_printf(r->a, "$.traceEvents[%zu]", i);
		const char *ph = text(r, e, where, "ph");
		if (!strcmp(ph, "X"))
			add_slice(diff, which, e, where);
	}
}

static bool comparable(const Diff *diff)
{
	const Reading *a = &diff->of[0], *b = &diff->of[1];
	int before = b->d->errors;
	if (strcmp(a->program, b->program))
		diag_error(b->d, b->path, "is of another program than %s (%s, not %s): compile and plan with the same options",
			a->path, b->program, a->program);
	if (a->world != b->world)
		diag_error(b->d, b->path, "is of %lld rank%s, and %s of %lld: trace as many", (long long)b->world,
			b->world == 1 ? "" : "s", a->path, (long long)a->world);
	if (b->d->errors == before && a->threads != b->threads)
		diag_note(b->d, b->path, "is of %lld thread%s a rank, and %s of %lld", (long long)b->threads,
			b->threads == 1 ? "" : "s", a->path, (long long)a->threads);
	return b->d->errors == before;
}

/* False after a message if no op is in both: of a program of several micro-batches or sizes, traces may have others. */
static bool share_ops(const Diff *diff)
{
	bool both = false;
	for (int i = 0; i < map_count(diff->ops.of); i++) {
		const Row *r = map_get(diff->ops.of, map_key(diff->ops.of, i));
		both |= !isnan(r->ms[0]) && !isnan(r->ms[1]);
	}
	if (!both)
		diag_error(diff->of[1].d, diff->of[1].path, "has no op that %s has: they are of other micro-batches or sizes "
			"of the program (a prediction is of one micro-batch a step, at the largest size)", diff->of[0].path);
	return both;
}

/* ---- showing ---- */

static double of(double ms)
{
	return isnan(ms) ? 0 : ms;
}

static double difference(const Row *r)
{
	return of(r->ms[1]) - of(r->ms[0]);
}

/* The largest differences first; equal ones by title, so that the order is one. */
static int compare(const void *x, const void *y)
{
	const Row *a = *(Row *const *)x, *b = *(Row *const *)y;
	double da = fabs(difference(a)), db = fabs(difference(b));
	return da < db ? 1 : da > db ? -1 : strcmp(a->title, b->title);
}

static const char *number(char *out, size_t size, double ms)
{
	snprintf(out, size, "%.3f", ms);
	return isnan(ms) ? "-" : out;
}

static void show_row(Arena *a, const Row *r)
{
	char x[32], y[32];
	printf("  %-*s %12s %12s %+12.3f\n", TITLE, str_escape(a, ESCAPE_TERMINAL, r->title),
		number(x, sizeof(x), r->ms[0]), number(y, sizeof(y), r->ms[1]), difference(r));
}

static void show_rows(Arena *a, const Rows *rows, const char *title, int64_t top)
{
	int n = map_count(rows->of);
	Row **row = NEW_N(a, Row *, n + 1);
	for (int i = 0; i < n; i++)
		row[i] = map_get(rows->of, map_key(rows->of, i));
	qsort(row, (size_t)n, sizeof(*row), compare);
	printf("%s, %d of %d:\n", title, (int)MIN(n, top), n);
	for (int i = 0; i < n && i < top; i++)
		show_row(a, row[i]);
}

static void show(Arena *a, const Diff *diff, int64_t top)
{
	for (int k = 0; k < 2; k++) {
		const Reading *r = &diff->of[k];
		printf("%c: %s, %s, %" PRId64 " step%s", "AB"[k], str_escape(a, ESCAPE_TERMINAL, r->path),
			str_escape(a, ESCAPE_TERMINAL, r->kind), r->steps, r->steps == 1 ? "" : "s");
		if (r->compared != r->steps)
			printf(", %" PRId64 " of sizes that %c has", r->compared, "BA"[k]);
		putchar('\n');
	}
	printf("  %-*s %12s %12s %12s\n", TITLE, "milliseconds of a step", "A", "B", "B - A");
	show_row(a, &diff->step);
	show_rows(a, &diff->classes, "by class", INT32_MAX);
	show_rows(a, &diff->ops, "by op", top);
	show_rows(a, &diff->collectives, "by collective, on its stream", top);
}

/* ---- the command ---- */

static const char usage[] = "usage: shardc trace diff A.json B.json [--top=N]\n"
	"Says where two traces of one program, predicted (shardc plan --trace) or measured (--trace of the binary),\n"
	"differ most.  --top=N: so many ops and collectives (default 10).\n";

/* Two paths and --top; false after a message. */
static bool read_arguments(int argc, char **argv, const char *path[2], int64_t *top, Diag *d)
{
	int n = 0;
	bool ok = true;
	for (int i = 2; i < argc; i++) {
		const char *value = strncmp(argv[i], "--top=", 6) ? NULL : argv[i] + 6;
		if (value && !str_to_count(value, false, top)) {
			diag_error(d, "shardc trace diff: --top", "\"%s\" is not a positive number", value);
			ok = false;
		} else if (!value && argv[i][0] == '-') {
			diag_error(d, "shardc trace diff", "unknown option %s", argv[i]);
			ok = false;
		} else if (!value) {
			if (n < 2)
				path[n] = argv[i];
			n++;
		}
	}
	if (ok && n != 2)
		diag_error(d, "shardc trace diff", "wants two traces, and %d %s given", n, n == 1 ? "is" : "are");
	return ok && n == 2;
}

int trace_main(int argc, char **argv, Diag *d)
{
	const char *path[2];
	int64_t top = TOP;
	bool help = argc > 1 && (!strcmp(argv[argc - 1], "--help") || !strcmp(argv[argc - 1], "-h"));
	if (help) {
		fputs(usage, stdout);
		return TRACE_OK;
	}
	if (argc < 2 || strcmp(argv[1], "diff")) {
		diag_error(d, "shardc trace", "the command is diff%s%s%s: shardc trace diff A.json B.json",
			argc < 2 ? "" : ", not \"", argc < 2 ? "" : argv[1], argc < 2 ? "" : "\"");
		return TRACE_USAGE;
	}
	if (!read_arguments(argc, argv, path, &top, d))
		return TRACE_USAGE;
	Arena *a = arena_new();
	Diff diff = {.step = {"step", {0, 0}}, .classes = {map_new(a)}, .ops = {map_new(a)}, .collectives = {map_new(a)}};
	bool ok = true;
	for (int k = 0; k < 2; k++) {
		diff.of[k] = (Reading){.path = path[k], .steps_of = map_new(a), .a = a, .d = d};
		ok = read_trace(&diff.of[k]) && ok;
	}
	ok = ok && comparable(&diff);
	for (int k = 0; k < 2 && ok; k++)
		count_steps(&diff.of[k]);
	for (int k = 0; k < 2 && ok; k++)
		count_compared(&diff.of[k], &diff.of[!k]);
	for (int k = 0; k < 2 && ok; k++)
		add_trace(&diff, k);
	ok = ok && !d->errors && share_ops(&diff);
	if (ok)
		show(a, &diff, top);
	for (int k = 0; k < 2; k++)
		json_decref(diff.of[k].root);
	arena_free(a);
	return ok ? TRACE_OK : TRACE_INPUT;
}
