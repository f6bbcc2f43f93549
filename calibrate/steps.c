/* calibrate/steps.c: reads the traces that measured programs write. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "calibrate/private.h"

/* One slice: an op that computes (seq 0), or a collective on its stream. */
typedef struct Slice { int step, number, seq; RtCollectiveKind kind; double seconds, bytes; } Slice;
typedef VEC(Slice) Slices;

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

/* Whether the event is a slice of a training step: an op on the row of computing, or a collective on another. */
static bool slice_of(const json_t *event, Slice *out)
{
	const json_t *args = json_object_get(event, "args");
	const char *phase = json_string_value(json_object_get(event, "ph")), *cat = json_string_value(
		json_object_get(event, "cat")), *program = json_string_value(json_object_get(args, "program"));
	if (!phase || !cat || !program || strcmp(phase, "X") || strcmp(program, "step"))
		return false;
	bool computes = whole(event, "tid", -1) == 0;
	*out = (Slice){.step = whole(args, "step", -1), .number = whole(args, "op", -1), .seq = whole(args, "seq", 0),
		.kind = kind_of(cat), .seconds = json_number_value(json_object_get(event, "dur")) * 1e-6,
		.bytes = json_number_value(json_object_get(args, "bytes"))};
	if (computes)
		return out->number >= 0 && !out->seq && strcmp(cat, "wait") && strcmp(cat, "issue");
	return out->kind < RT_COLLECTIVE_KINDS && out->seq > 0;
}

static bool read_rank(const char *path, Slices *ops, Slices *transfers, Arena *a, Diag *d)
{
	json_t *root = json_read(path, a, d), *events = json_object_get(root, "traceEvents");
	size_t i;
	json_t *event;
	Slice s;
	json_array_foreach(events, i, event)
		if (slice_of(event, &s)) {
			if (s.seq)
				vec_push(a, transfers, s);
			else
				vec_push(a, ops, s);
		}
	if (root && !events)
		diag_error(d, path, "is no trace");
	json_decref(root);
	return events;
}

/* ---- noise ---- */

typedef struct StepTime { int step; double seconds; } StepTime;
typedef VEC(StepTime) StepTimes;

static int by_time(const void *x, const void *y)
{
	double a = ((const StepTime *)x)->seconds, b = ((const StepTime *)y)->seconds;
	return (a > b) - (a < b);
}

static StepTimes step_times(const Slices *ops, Arena *a)
{
	StepTimes t = {0};
	for (int i = 0; i < ops->n; i++) {
		int k = 0;
		while (k < t.n && t.at[k].step != ops->at[i].step)
			k++;
		if (k == t.n)
			vec_push(a, &t, ((StepTime){.step = ops->at[i].step}));
		t.at[k].seconds += ops->at[i].seconds;
	}
	if (t.n)
		qsort(t.at, (size_t)t.n, sizeof(*t.at), by_time);
	return t;
}

/* ---- quartiles ---- */

static int by_number(const void *x, const void *y)
{
	const Slice *a = x, *b = y;
	return a->number != b->number ? (a->number > b->number) - (a->number < b->number)
		: (a->step > b->step) - (a->step < b->step);
}

static int by_seconds(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;
	return (a > b) - (a < b);
}

/* How many slices from i on have the number of the i-th (and its step). */
static int same_from(const Slices *s, int i, bool step)
{
	int n = 1;
	while (i + n < s->n && s->at[i + n].number == s->at[i].number && (!step || s->at[i + n].step == s->at[i].step))
		n++;
	return n;
}

static double quartile(double *of, int n)
{
	qsort(of, (size_t)n, sizeof(*of), by_seconds);
	return of[n / 4];
}

/* Whether the step is among the faster half. */
static bool is_fast(const StepTimes *t, int step)
{
	for (int k = 0; k < (t->n + 1) / 2; k++)
		if (t->at[k].step == step)
			return true;
	return false;
}

/* The mean of n slices of one op, over the faster half of the steps. */
static double mean(const Slice *of, int n, const StepTimes *times)
{
	double sum = 0;
	int count = 0;
	for (int i = 0; i < n; i++)
		if (is_fast(times, of[i].step)) {
			sum += of[i].seconds;
			count++;
		}
	return count ? sum / count : 0;
}

static void find_ops(Slices *ops, const StepTimes *times, bool shared, Steps *out, Arena *a)
{
	double *of = NEW_N(a, double, ops->n);
	qsort(ops->at, (size_t)ops->n, sizeof(*ops->at), by_number);
	for (int i = 0, n; i < ops->n; i += n) {
		n = same_from(ops, i, false);
		for (int k = 0; k < n; k++)
			of[k] = ops->at[i + k].seconds;
		double seconds = shared ? mean(&ops->at[i], n, times) : quartile(of, n);
		vec_push(a, &out->ops, ((StepOp){ops->at[i].number, seconds}));
		out->seconds += seconds;
	}
}

/* Of one collective of one step, all ranks have slices; the shortest is of the rank for which no other had to wait. */
static void find_transfers(Slices *all, Steps *out, Arena *a)
{
	double *of = NEW_N(a, double, all->n + 1);
	if (all->n)
		qsort(all->at, (size_t)all->n, sizeof(*all->at), by_number);
	for (int i = 0, n; i < all->n; i += n) {
		int steps = 0;
		n = same_from(all, i, false);
		for (int k = 0, ranks; k < n; k += ranks) {
			ranks = same_from(all, i + k, true);
			of[steps] = all->at[i + k].seconds;
			for (int r = 1; r < ranks; r++)
				of[steps] = MIN(of[steps], all->at[i + k + r].seconds);
			steps++;
		}
		vec_push(a, &out->transfers, ((StepTransfer){all->at[i].kind, all->at[i].bytes, quartile(of, steps)}));
	}
}

static const char *path_of(const char *path, int rank, Arena *a)
{
	const char *end = strrchr(path, '.');
	return rank ? arena_printf(a, "%.*s.rank%d%s", (int)(end - path), path, rank, end) : path;
}

bool steps_read(const char *path, int ranks, bool shared, Steps *out, Arena *a, Diag *d)
{
	Slices ops = {0}, others = {0}, transfers = {0};
	*out = (Steps){.noise = 0};
	for (int r = 0; r < ranks; r++)
		if (!read_rank(path_of(path, r, a), r ? &others : &ops, &transfers, a, d))
			return false;
	StepTimes times = step_times(&ops, a);
	if (!times.n) {
		diag_error(d, path, "the trace has no op of a step");
		return false;
	}
	out->noise = times.at[times.n / 2].seconds / times.at[0].seconds - 1;
	find_ops(&ops, &times, shared, out, a);
	find_transfers(&transfers, out, a);
	return true;
}
