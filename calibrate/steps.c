/* calibrate/steps.c: reads the traces that measured programs write. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "calibrate/private.h"

/* One slice: an op that computes, what is computed where a collective is issued, a collective on its stream, or what
 * computing waits for.  busy: the part of its seconds in which it has a core. */
typedef enum SliceKind { SLICE_NONE, SLICE_OP, SLICE_ISSUE, SLICE_TRANSFER, SLICE_REST } SliceKind;
typedef struct Slice { int step, number, seq; RtCollectiveKind kind; double begin, seconds, busy, bytes; } Slice;
typedef VEC(Slice) Slices;

/* A step of the first rank: from when it begins to when it ends. */
typedef struct StepTime { int step; double begin, end; } StepTime;
typedef VEC(StepTime) StepTimes;

static int whole(const json_t *args, const char *key, int unsaid)
{
	const json_t *v = json_object_get(args, key);
	return json_is_integer(v) ? (int)json_integer_value(v) : unsaid;
}

static RtCollectiveKind kind_of(const char *text)
{
	int k = 0;
	while (k < RT_COLLECTIVE_KINDS && strcmp(collective_info[k].text, text))
		k++;
	return (RtCollectiveKind)k;
}

/* What the event is in a training step; ops lie on the row of computing, collectives on others. */
static SliceKind slice_of(const json_t *event, Slice *out)
{
	const json_t *args = json_object_get(event, "args");
	const char *phase = json_string_value(json_object_get(event, "ph")), *cat = json_string_value(
		json_object_get(event, "cat")), *program = json_string_value(json_object_get(args, "program"));
	if (!phase || !cat || !program || strcmp(phase, "X") || strcmp(program, "step"))
		return SLICE_NONE;
	bool computes = whole(event, "tid", -1) == 0;
	const json_t *dur = json_object_get(event, "dur"), *busy = json_object_get(event, "tdur");
	*out = (Slice){.step = whole(args, "step", -1), .number = whole(args, "op", -1), .seq = whole(args, "seq", 0),
		.kind = kind_of(cat), .begin = json_number_value(json_object_get(event, "ts")) * 1e-6,
		.seconds = json_number_value(dur) * 1e-6, .busy = json_number_value(busy ? busy : dur) * 1e-6,
		.bytes = json_number_value(json_object_get(args, "bytes"))};
	if (computes && out->number >= 0 && !strcmp(cat, "issue"))
		return SLICE_ISSUE;
	if (computes)
		return out->number >= 0 && !out->seq && strcmp(cat, "wait") ? SLICE_OP : SLICE_REST;
	return out->kind < RT_COLLECTIVE_KINDS && out->seq > 0 ? SLICE_TRANSFER : SLICE_NONE;
}

static void add_time(StepTimes *t, const Slice *s, Arena *a)
{
	int k = 0;
	while (k < t->n && t->at[k].step != s->step)
		k++;
	if (k == t->n)
		vec_push(a, t, ((StepTime){.step = s->step, .begin = INFINITY}));
	StepTime *x = &t->at[k];
	x->begin = MIN(x->begin, s->begin);
	x->end = MAX(x->end, s->begin + s->seconds);
}

/* ops, issues and times: of the first rank; NULL for others. */
static bool read_rank(const char *path, Slices *ops, Slices *issues, StepTimes *times, Slices *transfers, Arena *a,
	Diag *d)
{
	json_t *root = json_read(path, a, d), *events = json_object_get(root, "traceEvents");
	size_t i;
	json_t *event;
	Slice s;
	json_array_foreach(events, i, event) {
		SliceKind kind = slice_of(event, &s);
		if (kind == SLICE_TRANSFER)
			vec_push(a, transfers, s);
		if (kind == SLICE_OP && ops)
			vec_push(a, ops, s);
		if (kind == SLICE_ISSUE && issues)
			vec_push(a, issues, s);
		if (kind != SLICE_TRANSFER && kind != SLICE_NONE && times)
			add_time(times, &s, a);
	}
	if (root && !events)
		diag_error(d, path, "is no trace");
	json_decref(root);
	return events;
}

/* ---- steps that are like most ---- */

static int by_length(const void *x, const void *y)
{
	const StepTime *a = x, *b = y;
	double l = a->end - a->begin, r = b->end - b->begin;
	return (l > r) - (l < r);
}

static double length(const StepTime *t) { return t->end - t->begin; }

/* Of n things in order: how many are in front of the middle half, and behind it. */
static int outside(int n) { return n / 4; }

/* Leaves the middle half of the steps by their length, but for those so long that the program was stopped in them;
 * returns their mean length. */
static double keep_middle(StepTimes *t)
{
	const double stopped = 3; /* times the median */
	double sum = 0;
	qsort(t->at, (size_t)t->n, sizeof(*t->at), by_length);
	double longest = stopped * length(&t->at[t->n / 2]);
	while (length(&t->at[t->n - 1]) > longest)
		t->n--;
	int first = outside(t->n);
	t->n -= 2 * first;
	memmove(t->at, &t->at[first], (size_t)t->n * sizeof(*t->at));
	for (int i = 0; i < t->n; i++)
		sum += length(&t->at[i]);
	return sum / t->n;
}

/* Leaves the slices of these steps. */
static void keep_steps(Slices *s, const StepTimes *t)
{
	int n = 0;
	for (int i = 0; i < s->n; i++) {
		int k = 0;
		while (k < t->n && t->at[k].step != s->at[i].step)
			k++;
		if (k < t->n)
			s->at[n++] = s->at[i];
	}
	s->n = n;
}

/* ---- means ---- */

static int by_number(const void *x, const void *y)
{
	const Slice *a = x, *b = y;
	return a->number != b->number ? (a->number > b->number) - (a->number < b->number)
		: (a->step > b->step) - (a->step < b->step);
}

/* How many slices from i on have the number of the i-th (and its step). */
static int same_from(const Slices *s, int i, bool step)
{
	int n = 1;
	while (i + n < s->n && s->at[i + n].number == s->at[i].number && (!step || s->at[i + n].step == s->at[i].step))
		n++;
	return n;
}

/* ---- collectives beside ops ---- */

/* Time in which a collective moves bytes: from when the last of its ranks has come, to when the first has all. */
typedef struct Span { int step; double begin, end; } Span;
typedef VEC(Span) Spans;

static int by_begin(const void *x, const void *y)
{
	const Span *a = x, *b = y;
	return a->step != b->step ? (a->step > b->step) - (a->step < b->step)
		: (a->begin > b->begin) - (a->begin < b->begin);
}

/* all: of all ranks, by number and step. */
static Spans find_spans(const Slices *all, Arena *a)
{
	Spans spans = {0};
	for (int i = 0, n; i < all->n; i += n) {
		const Slice *first = &all->at[i];
		Span s = {first->step, first->begin, INFINITY};
		n = same_from(all, i, true);
		for (int k = 0; k < n; k++) {
			s.begin = MAX(s.begin, first[k].begin);
			s.end = MIN(s.end, first[k].begin + first[k].seconds);
		}
		if (s.end > s.begin)
			vec_push(a, &spans, s);
	}
	if (spans.n)
		qsort(spans.at, (size_t)spans.n, sizeof(*spans.at), by_begin);
	return spans;
}

/* How much of an op's time the spans cover; what two of them cover counts once. */
static double covered(const Slice *op, const Spans *spans)
{
	double sum = 0, until = op->begin, end = op->begin + op->seconds;
	for (int i = 0; i < spans->n; i++) {
		const Span *s = &spans->at[i];
		if (s->step != op->step || s->end <= until || s->begin >= end)
			continue;
		sum += MIN(s->end, end) - MAX(s->begin, until);
		until = MIN(s->end, end);
	}
	return sum;
}

/* The share of n slices of one op that spans cover. */
static double share_beside(const Slice *of, int n, const Spans *spans)
{
	double sum = 0, all = 0;
	for (int i = 0; i < n; i++) {
		sum += covered(&of[i], spans);
		all += of[i].seconds;
	}
	return all > 0 ? sum / all : 0;
}

/* Adds the ops of these slices; returns their seconds together. */
static double find_ops(Slices *ops, const Spans *spans, StepOps *out, Arena *a)
{
	double sum = 0;
	if (ops->n)
		qsort(ops->at, (size_t)ops->n, sizeof(*ops->at), by_number);
	for (int i = 0, n; i < ops->n; i += n) {
		double busy = 0;
		n = same_from(ops, i, false);
		for (int k = 0; k < n; k++)
			busy += ops->at[i + k].busy;
		vec_push(a, out, ((StepOp){ops->at[i].number, busy / n, share_beside(&ops->at[i], n, spans)}));
		sum += busy / n;
	}
	return sum;
}

static int by_value(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;
	return (a > b) - (a < b);
}

/* Of one collective of one step, all ranks have slices; the shortest is of the rank for which no other had to wait.
 * It may still wait for a core, so of the steps that count the lower quartile does. */
static void find_transfers(const Slices *all, Steps *out, Arena *a)
{
	double *of = NEW_N(a, double, all->n + 1);
	for (int i = 0, n; i < all->n; i += n) {
		int steps = 0;
		n = same_from(all, i, false);
		for (int k = 0, ranks; k < n; k += ranks, steps++) {
			ranks = same_from(all, i + k, true);
			of[steps] = INFINITY;
			for (int r = 0; r < ranks; r++)
				of[steps] = MIN(of[steps], all->at[i + k + r].seconds);
		}
		qsort(of, (size_t)steps, sizeof(*of), by_value);
		vec_push(a, &out->transfers, ((StepTransfer){all->at[i].kind, all->at[i].bytes, of[steps / 4]}));
	}
}

static const char *path_of(const char *path, int rank, Arena *a)
{
	const char *end = strrchr(path, '.');
	return rank ? arena_printf(a, "%.*s.rank%d%s", (int)(end - path), path, rank, end) : path;
}

/* ---- runs ---- */

/* Adds the times of x to those of the sum, which is of the same program and layout. */
static void add_run(Steps *sum, const Steps *x)
{
	if (x->ops.n != sum->ops.n || x->issues.n != sum->issues.n || x->transfers.n != sum->transfers.n)
		ice("runs of one program differ in what they trace");
	for (int i = 0; i < sum->ops.n; i++) {
		sum->ops.at[i].seconds += x->ops.at[i].seconds;
		sum->ops.at[i].beside += x->ops.at[i].beside;
	}
	for (int i = 0; i < sum->issues.n; i++)
		sum->issues.at[i].seconds += x->issues.at[i].seconds;
	for (int i = 0; i < sum->transfers.n; i++)
		sum->transfers.at[i].seconds += x->transfers.at[i].seconds;
	sum->seconds += x->seconds;
	sum->whole += x->whole;
}

static void divide(Steps *sum, int n)
{
	for (int i = 0; i < sum->ops.n; i++) {
		sum->ops.at[i].seconds /= n;
		sum->ops.at[i].beside /= n;
	}
	for (int i = 0; i < sum->issues.n; i++)
		sum->issues.at[i].seconds /= n;
	for (int i = 0; i < sum->transfers.n; i++)
		sum->transfers.at[i].seconds /= n;
	sum->seconds /= n;
	sum->whole /= n;
}

static int by_whole(const void *x, const void *y)
{
	const Steps *a = x, *b = y;
	return (a->whole > b->whole) - (a->whole < b->whole);
}

Steps steps_mean(Steps *run, int n, double *spread)
{
	qsort(run, (size_t)n, sizeof(*run), by_whole);
	*spread = run[n - 1 - outside(n)].whole / run[outside(n)].whole - 1;
	Steps *sum = &run[outside(n)];
	for (int i = outside(n) + 1; i < n - outside(n); i++)
		add_run(sum, &run[i]);
	divide(sum, n - 2 * outside(n));
	return *sum;
}

Steps steps_copy(const Steps *s, Arena *a)
{
	Steps copy = {.seconds = s->seconds, .whole = s->whole};
	for (int i = 0; i < s->ops.n; i++)
		vec_push(a, &copy.ops, s->ops.at[i]);
	for (int i = 0; i < s->issues.n; i++)
		vec_push(a, &copy.issues, s->issues.at[i]);
	for (int i = 0; i < s->transfers.n; i++)
		vec_push(a, &copy.transfers, s->transfers.at[i]);
	return copy;
}

bool steps_read(const char *path, int ranks, Steps *out, Arena *a, Diag *d)
{
	Slices ops = {0}, issues = {0}, transfers = {0};
	StepTimes times = {0};
	*out = (Steps){.seconds = 0};
	for (int r = 0; r < ranks; r++)
		if (!read_rank(path_of(path, r, a), r ? NULL : &ops, r ? NULL : &issues, r ? NULL : &times, &transfers, a, d))
			return false;
	if (!ops.n) {
		diag_error(d, path, "the trace has no op of a step");
		return false;
	}
	out->whole = keep_middle(&times);
	keep_steps(&ops, &times);
	keep_steps(&issues, &times);
	keep_steps(&transfers, &times);
	if (transfers.n)
		qsort(transfers.at, (size_t)transfers.n, sizeof(*transfers.at), by_number);
	Spans spans = find_spans(&transfers, a);
	out->seconds = find_ops(&ops, &spans, &out->ops, a);
	find_ops(&issues, &spans, &out->issues, a);
	find_transfers(&transfers, out, a);
	return true;
}
