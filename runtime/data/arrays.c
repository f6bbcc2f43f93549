/* runtime/data/arrays.c: a caller's arrays as a data set, so that steps and evaluations of the library read samples by
 * the same code as those of the binary.
 *
 * Refuses names of no input, other types and shapes (nothing is converted), and inputs given twice or not at all.
 * After the call only the values of inputs without a sample axis are kept.
 *
 * An array is a column whose rows lie in memory instead of a mapped file. */
#include <inttypes.h>
#include <string.h>

#include "runtime/data/private.h"

static const char *shape_text(Arena *a, const char *dtype, int rank, const int64_t *dim)
{
	Buf b = {0};
	buf_printf(&b, "%s[", dtype);
	for (int i = 0; i < rank; i++)
		buf_printf(&b, i ? ",%" PRId64 : "%" PRId64, dim[i]);
	buf_printf(&b, "]");
	const char *s = arena_strndup(a, b.at, b.n);
	buf_free(&b);
	return s;
}

/* The type and shape that an array must have, for messages.  rows: length of the sample axis; -1 = any. */
static const char *wanted_text(Arena *a, const RtTensor *t, int64_t rows)
{
	const char *dtype = dtype_info[t->dtype].text;
	if (!t->batched)
		return shape_text(a, dtype, t->rank, t->dim);
	const char *rest = shape_text(a, dtype, t->rank - 1, t->dim + 1), *open = strchr(rest, '[');
	const char *first = rows < 0 ? "*" : arena_printf(a, "%" PRId64, rows);
	return arena_printf(a, "%.*s[%s%s%s", (int)(open - rest), rest, first, t->rank > 1 ? "," : "", open + 1);
}

static bool fits(const RtModel *m, const RtTensor *t, const ModelArray *x, int64_t rows)
{
	bool ok = x->dtype && !strcmp(x->dtype, dtype_info[t->dtype].text) && x->rank == t->rank &&
		(x->shape || !x->rank);
	for (int i = 0; ok && i < t->rank; i++)
		ok = t->batched && i == 0 ? x->shape[0] >= 0 && (rows < 0 || x->shape[0] == rows)
			: x->shape[i] == t->dim[i] || sizes_may_have(m, t, i, x->shape[i]);
	return ok;
}

static void note_inputs(const RtModel *model, int64_t rows, const char *where, Arena *a, Diag *d)
{
	for (int i = 0; i < model->n_tensors; i++)
		if (model->tensors[i].kind == RT_INPUT)
			diag_note(d, where, "input \"%s\" %s", model->tensors[i].name,
				wanted_text(a, &model->tensors[i], rows));
}

/* The index of the input that an array is for; -1 after a message. */
static int find(const RtModel *m, const ModelArray *x, int64_t rows, const bool *seen, Arena *a, Diag *d)
{
	const RtTensor *t = x->name ? data_find_input(m, x->name) : NULL;
	const char *name = x->name ? x->name : "(no name)";
	if (!t) {
		diag_error(d, name, "there is no input of this name");
		note_inputs(m, rows, name, a, d);
		return -1;
	}
	if (seen[t - m->tensors]) {
		diag_error(d, name, "this input is given twice");
		return -1;
	}
	if (x->rank < 0 || x->rank > 64 || !fits(m, t, x, rows)) {
		bool shown = x->rank >= 0 && x->rank <= 64 && (x->shape || !x->rank);
		diag_error(d, name, "the array is %s, the input wants %s%s", shown ?
			shape_text(a, x->dtype ? x->dtype : "(no type)", x->rank, x->shape) : "of no rank that there is",
			wanted_text(a, t, rows), rows < 0 ? "" : ": rows are the samples of this rank");
		return -1;
	}
	if (!x->data && (x->rank == 0 || tensor_numel(t) > 0)) {
		diag_error(d, name, "the array's data is NULL");
		return -1;
	}
	return (int)(t - m->tensors);
}

static bool check_missing(const RtModel *m, const bool *seen, const bool *given, int64_t rows, Arena *a, Diag *d)
{
	bool ok = true;
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		if (t->kind != RT_INPUT || seen[i] || (!t->batched && given[i]))
			continue;
		diag_error(d, t->name, "this input has no array; it wants %s", wanted_text(a, t, rows));
		ok = false;
	}
	return ok;
}

/* Checks that all columns are equally long. */
static bool check_rows(const DataSet *set, Diag *d)
{
	bool ok = true;
	for (int i = 0; i < set->n_columns; i++) {
		const DataColumn *c = &set->columns[i], *first = &set->columns[0];
		if (c->n_samples != first->n_samples) {
			diag_error(d, c->path, "%" PRId64 " sample%s, but \"%s\" has %" PRId64, c->n_samples,
				c->n_samples == 1 ? "" : "s", first->path, first->n_samples);
			ok = false;
		} else if (c->n_samples == 0) {
			diag_error(d, c->path, "there are no samples in it");
			ok = false;
		}
	}
	return ok;
}

bool arrays_open(DataSet *set, const RtModel *m, const ModelArray *x, int n, int64_t rows, const bool *given, Diag *d)
{
	Arena *a = arena_new();
	bool *seen = NEW_N(a, bool, m->n_tensors + 1), ok = true;
	set->n_columns = 0;
	set->n_samples = 0;
	for (int k = 0; k < n; k++) {
		int i = find(m, &x[k], rows, seen, a, d);
		ok = ok && i >= 0;
		if (i < 0)
			continue;
		const RtTensor *t = &m->tensors[i];
		seen[i] = true;
		if (!t->batched)
			continue;
		DataColumn *c = &set->columns[set->n_columns++];
		*c = (DataColumn){.input = t, .path = t->name, .first = x[k].data, .n_samples = x[k].shape[0],
			.stride = dtype_info[t->dtype].bytes, .token = DT_COUNT, .index = data_index(m, t)};
		for (int axis = 1; axis < t->rank; axis++)
			c->stride *= c->dim[axis] = x[k].shape[axis];
		c->row_bytes = c->stride;
	}
	ok = ok && check_missing(m, seen, given, rows, a, d) && check_rows(set, d);
	set->n_samples = set->n_columns ? set->columns[0].n_samples : rows < 0 ? set->batch : rows;
	ok = ok && sizes_open(set, m, a, NULL, 0, NULL, d);
	arena_free(a);
	return ok;
}

void arrays_put_consts(const RtModel *m, char *input, const ModelArray *x, int n, bool *given)
{
	for (int k = 0; k < n; k++) {
		const RtTensor *t = data_find_input(m, x[k].name);
		if (t->batched)
			continue;
		memcpy(input + t->offset, x[k].data, (size_t)tensor_bytes(t));
		given[t - m->tensors] = true;
	}
}
