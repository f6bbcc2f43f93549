/* report/inputs.c: reads what a run wrote: its log and its trace.
 *
 * Both come from anywhere: only numbers and known words of them reach the page, and what is wrong with a line or a
 * slice is said with its place. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "report/private.h"

/* ---- the log ---- */

const char *const report_columns[REPORT_COLUMNS] = {"step", "loss", "lr", "grad_norm", "loss_scale", "step_ms",
	"samples_per_s", "tokens_per_s", "exposed_comm_ms", "eval_loss", "eval_accuracy"};

static const char *member(const char *at, const char *key, Arena *a)
{
	return arena_printf(a, "%s: $.%s", at, key);
}

/* The member of a line as text; otherwise, where it has none, or after a message. */
static const char *take_text(const json_t *line, const char *key, const char *otherwise, const char *at, Arena *a,
	Diag *d)
{
	const json_t *v = json_object_get(line, key);
	if (v && !json_is_string(v))
		diag_error(d, member(at, key, a), "expected a text");
	return json_is_string(v) ? arena_strdup(a, json_string_value(v)) : otherwise;
}

/* One line; false after a message. */
static bool take_line(Report *r, const json_t *line, const char *at, Arena *a, Diag *d)
{
	json_t *row = json_array();
	int before = d->errors;
	for (int i = 0; i < REPORT_COLUMNS; i++) {
		json_t *v = json_object_get(line, report_columns[i]);
		if (v && !json_is_number(v) && !json_is_null(v))
			diag_error(d, member(at, report_columns[i], a), "expected a number or null");
		json_array_append_new(row, json_is_number(v) ? json_real(json_number_value(v)) : json_null());
	}
	if (!json_is_number(json_array_get(row, 0)) && d->errors == before)
		diag_error(d, member(at, "step", a), "is missing; expected a line as --log of a training binary writes it");
	json_array_append_new(r->log, row);
	r->log_model = take_text(line, "model", r->log_model, at, a, d);
	r->log_program = take_text(line, "program", r->log_program, at, a, d);
	return d->errors == before;
}

/* The run may be going on, or have been killed: the last line may end anywhere. */
static bool read_lines(Report *r, const char *path, const char *text, int64_t bytes, Arena *a, Diag *d)
{
	int before = d->errors, number = 0;
	for (int64_t at = 0; at < bytes && d->errors - before < (number == 1 ? 1 : 10);) {
		const char *end = memchr(text + at, '\n', (size_t)(bytes - at));
		size_t n = end ? (size_t)(end - text - at) : (size_t)(bytes - at);
		const char *where = arena_printf(a, "%s:%d", path, ++number);
		json_error_t e;
		json_t *line = n ? json_loadb(text + at, n, JSON_REJECT_DUPLICATES, &e) : NULL;
		if (json_is_object(line))
			take_line(r, line, where, a, d);
		else if (n && !end)
			diag_warn(d, where, "the last line is cut short: it is left out");
		else if (n)
			diag_error(d, where, "expected a JSON object%s%s", line ? "" : ": ",
				line ? "" : str_escape(a, ESCAPE_TERMINAL, e.text));
		json_decref(line);
		at += (int64_t)n + 1;
	}
	if (d->errors == before && !json_array_size(r->log))
		diag_error(d, path, "has no line: expected what --log of a training binary writes");
	return d->errors == before;
}

bool report_read_log(Report *r, const char *path, Arena *a, Diag *d)
{
	FileView v;
	const char *why;
	if (!file_view(&v, path, &why)) {
		diag_error(d, path, "cannot be read: %s", why);
		return false;
	}
	r->log = json_array();
	bool ok = read_lines(r, path, v.at, v.bytes, a, d);
	file_view_close(&v);
	return ok;
}

/* ---- traces ---- */

json_t *report_read_trace(const char *path, Arena *a, Diag *d)
{
	json_t *root = json_read(path, a, d), *about = json_object_get(root, "otherData");
	const char *kind = json_string_value(json_object_get(about, "kind"));
	bool known = kind && (!strcmp(kind, "measured") || !strcmp(kind, "predicted"));
	if (!root)
		return NULL;
	if (!json_is_array(json_object_get(root, "traceEvents")))
		diag_error(d, member(path, "traceEvents", a), "expected an array, as in a trace of a program that shardc has "
			"made");
	else if (!known)
		diag_error(d, member(path, "otherData.kind", a), "expected \"measured\" or \"predicted\", as in a trace of a "
			"program that shardc has made");
	else
		return root;
	json_decref(root);
	return NULL;
}

/* The ops of the programs of a step, one program behind the other, by number and by the number of a collective. */
typedef struct Step {
	const StepParts *parts;
	const Op **op; int n;
	int *of_seq[VARIANT_COUNT]; /* by part; -1: no collective has this number */
	const char *size;        /* of several the largest, which the page is about; NULL where there is one */
} Step;

static void add_part(Step *s, int i, Arena *a)
{
	const StepPart *part = &s->parts->at[i];
	int *of_seq = s->of_seq[i] = NEW_N(a, int, part->n_ops + 1), p = part->first;
	for (int k = 0; k <= part->n_ops; k++)
		of_seq[k] = -1;
	for (int section = SEC_FORWARD; section <= SEC_UPDATE; section++)
		IR_FOR_OPS(part->m, section, op) {
			int64_t seq = op_info[op->kind].flags & COMM ? attr_get_int(op->attrs, "seq", 0) : 0;
			if (seq > 0 && seq <= part->n_ops)
				of_seq[seq] = p;
			s->op[p++] = op;
		}
}

static Step step_of(const Sizes *program, const StepParts *parts, Arena *a)
{
	Step s = {.parts = parts, .size = program->name[program->n - 1]};
	for (int i = 0; i < parts->n; i++)
		s.n += parts->at[i].n_ops;
	s.op = NEW_N(a, const Op *, s.n + 1);
	for (int i = 0; i < parts->n; i++)
		add_part(&s, i, a);
	return s;
}

/* What a slice is: an op, a wait for a collective, its issue, or what the host does beside the program. */
typedef enum Mark { MARK_OP, MARK_WAIT, MARK_ISSUE, MARK_HOST, MARKS, MARK_NONE = MARKS } Mark;
static const char *const mark_text[MARKS] = {[MARK_WAIT] = "wait", [MARK_ISSUE] = "issue", [MARK_HOST] = "host"};

/* A slice of a trace; MARK_NONE: it is none of a step.  op: s->n where the program has no such op; -1 of the host. */
typedef struct TraceSlice {
	Mark mark;
	int stream, op, step;
	double begin, duration;
	const char *kind, *name;
} TraceSlice;

static double number_of(const json_t *object, const char *key, double otherwise)
{
	const json_t *v = json_object_get(object, key);
	return json_is_number(v) ? json_number_value(v) : otherwise;
}

static bool is_text(const json_t *v, const char *text)
{
	return json_is_string(v) && !strcmp(json_string_value(v), text);
}

static int whole(double x, int limit)
{
	return x >= 0 && x < limit ? (int)x : -1;
}

static Mark mark_of(const char *kind)
{
	for (int k = MARK_WAIT; k < MARKS; k++)
		if (!strcmp(kind, mark_text[k]))
			return (Mark)k;
	return MARK_OP;
}

/* The part of this name in a trace; -1: it is none of the step, as an evaluation. */
static int part_named(const StepParts *p, const json_t *program)
{
	for (int i = 0; i < p->n; i++) {
		const char *name = p->at[i].of == VARIANT_ONLY ? "step" : variant_text[p->at[i].of];
		if (program ? is_text(program, name) : p->at[i].of == VARIANT_ONLY)
			return i;
	}
	return -1;
}

/* Slices of evaluations, and of steps of other numbers of micro-batches, are of programs with other names; ops of
 * another size have other numbers. */
static TraceSlice slice_of(const json_t *event, const Step *s)
{
	const json_t *args = json_object_get(event, "args"), *program = json_object_get(args, "program");
	const json_t *size = json_object_get(args, "size");
	TraceSlice t = {.mark = MARK_NONE, .op = -1, .kind = json_string_value(json_object_get(event, "cat")),
		.name = json_string_value(json_object_get(event, "name")),
		.stream = whole(number_of(event, "tid", -1), 64), .step = whole(number_of(args, "step", 0), INT32_MAX),
		.begin = number_of(event, "ts", -1), .duration = number_of(event, "dur", -1)};
	bool host = t.kind && mark_of(t.kind) == MARK_HOST;
	int at = host && !program ? 0 : part_named(s->parts, program);
	bool other = size && s->size && !is_text(size, s->size);
	if (!is_text(json_object_get(event, "ph"), "X") || at < 0 || !t.kind || other)
		return t;
	t.mark = mark_of(t.kind);
	if (host)
		return t;
	const StepPart *part = &s->parts->at[at];
	int seq = whole(number_of(args, "seq", -1), part->n_ops + 1);
	int number = whole(number_of(args, "op", -1), part->n_ops);
	bool moved = seq >= 0 && (t.mark != MARK_OP || t.stream > 0);
	t.op = moved ? s->of_seq[at][seq] : number < 0 ? -1 : part->first + number;
	t.op = t.op < 0 ? s->n : t.op;
	return t;
}

static bool is_measured(const TraceSlice *t)
{
	return t->stream >= 0 && t->step >= 0 && t->begin >= 0 && t->begin < TRACE_LONGEST && t->duration >= 0
		&& t->duration < TRACE_LONGEST;
}

static bool is_of_program(const TraceSlice *t, const Step *s)
{
	return t->op < s->n && (t->mark != MARK_OP || !strcmp(t->kind, op_info[s->op[t->op]->kind].text));
}

/* Whether each slice is of an op that the program has at its number; false after a message. */
static bool check_slices(const Report *r, const Sizes *program, const StepParts *parts, const char *path, Arena *a,
	Diag *d)
{
	const json_t *events = json_object_get(r->trace, "traceEvents"), *event;
	Step s = step_of(program, parts, a);
	size_t i, slices = 0;
	json_array_foreach(events, i, event) {
		TraceSlice t = slice_of(event, &s);
		if (t.mark == MARK_NONE)
			continue;
		slices += t.mark != MARK_HOST;
		const char *at = member(path, arena_printf(a, "traceEvents[%zu]", i), a);
		if (!is_measured(&t)) {
			diag_error(d, at, "expected \"tid\", \"ts\", \"dur\" and \"step\" of at least 0, "
				"and times below %g microseconds", TRACE_LONGEST);
			return false;
		}
		if (t.mark == MARK_HOST || is_of_program(&t, &s))
			continue;
		const char *is = t.op < s.n ? arena_printf(a, "which is %s in this program", op_info[s.op[t.op]->kind].text)
			: "which this program does not have";
		diag_error(d, at, "is a slice of %s at op %.0f, %s: it is a trace of another program, or of the same "
			"model with other options", str_escape(a, ESCAPE_TERMINAL, t.kind),
			number_of(json_object_get(event, "args"), "op", -1), is);
		return false;
	}
	if (!slices)
		diag_error(d, member(path, "traceEvents", a), "has no slice of a step of %s%s%s",
			parts->n == 1 ? "one micro-batch" : "several micro-batches", s.size ? " and of the largest size, " : "",
			s.size ? str_escape(a, ESCAPE_TERMINAL, s.size) : "");
	return slices;
}

/* As programs name themselves in what they write. */
static const char *program_number(const Sizes *program, Arena *a)
{
	return arena_printf(a, "%016" PRIx64, ir_program_hash(program));
}

static bool accepts_log(const Report *r, const Sizes *program, const char *path, Diag *d)
{
	const char *model = program->of[program->n - 1].of[VARIANT_ONLY]->name;
	Arena *a = arena_new();
	bool ok = !r->log_model || !strcmp(r->log_model, model);
	if (!ok)
		diag_error(d, path, "is a log of \"%s\", and this model is \"%s\"", str_escape(a, ESCAPE_IR, r->log_model),
			str_escape(a, ESCAPE_IR, model));
	else if (r->log_program && strcmp(r->log_program, program_number(program, a)))
		diag_warn(d, path, "is of a program with other ops or shapes, as other flags give: its times and bytes are not "
			"those of this plan");
	arena_free(a);
	return ok;
}

static bool accepts_trace(const Report *r, const Sizes *program, const Options *o, Diag *d)
{
	const Module *m = program->of[program->n - 1].of[VARIANT_ONLY];
	const json_t *about = json_object_get(r->trace, "otherData");
	const char *model = json_string_value(json_object_get(about, "model")), *path = o->what.report_trace;
	if (!r->trace)
		return true;
	Arena *a = arena_new();
	const StepParts parts = report_parts(program, o);
	bool ok = false;
	int64_t world = MAX(o->sharding.world, 1), traced = int_of_double(number_of(about, "world", (double)world));
	if (!model || strcmp(model, m->name))
		diag_error(d, member(path, "otherData.model", a), "is \"%s\", and this model is \"%s\": it is a trace of "
			"another program", model ? str_escape(a, ESCAPE_IR, model) : "", str_escape(a, ESCAPE_IR, m->name));
	else
		ok = check_slices(r, program, &parts, path, a, d);
	if (ok && !is_text(json_object_get(about, "program"), program_number(program, a))) {
		diag_error(d, member(path, "otherData.program", a), "is another program than this plan's, of other shapes or "
			"options: compile and plan with the same ones");
		ok = false;
	}
	if (ok && traced != world)
		diag_warn(d, path, "is of %s, and the plan of %lld (--world)", str_count(a, traced, "rank"), (long long)world);
	arena_free(a);
	return ok;
}

bool report_accepts(const Report *r, const Sizes *program, const Options *o, Diag *d)
{
	bool log = accepts_log(r, program, o->what.report_log, d);
	return accepts_trace(r, program, o, d) && log;
}

void report_put_trace(FILE *f, json_t *trace, const Sizes *program, const StepParts *parts, Arena *a)
{
	const json_t *about = json_object_get(trace, "otherData"), *event;
	const char *kind = json_string_value(json_object_get(about, "kind"));
	const char *machine = json_string_value(json_object_get(about, "machine"));
	Step s = step_of(program, parts, a);
	size_t i;
	int n = 0;
	fprintf(f, "{\"kind\": \"%s\", \"machine\": \"%s\", \"world\": %.0f, \"rank\": %.0f, \"slices\": [",
		str_escape(a, ESCAPE_JSON, kind), str_escape(a, ESCAPE_JSON, machine ? machine : ""),
		number_of(about, "world", 1), number_of(about, "rank", 0));
	json_array_foreach(json_object_get(trace, "traceEvents"), i, event) {
		TraceSlice t = slice_of(event, &s);
		if (t.mark == MARK_NONE)
			continue;
		fprintf(f, "%s\n[%d,%.3f,%.3f,%d,%d,%d", n++ ? "," : "", t.stream, t.begin, t.duration, t.op, (int)t.mark,
			t.step);
		if (t.mark == MARK_HOST)
			fprintf(f, ",\"%s\"", str_escape(a, ESCAPE_JSON, t.name ? t.name : ""));
		fputc(']', f);
	}
	fputs("]}", f);
}
