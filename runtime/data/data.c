/* runtime/data/data.c: brings samples from .npy files into the input arena.
 *
 * Files are mapped and copied a row at a time.  Refuses what does not fit the graph's inputs: another element type
 * (nothing is converted), another shape, columns of different length, an input without data or with two sources.
 *
 * Position i of the run is sample perm(seed, i div N, i mod N); this position is all that is kept about the data
 * between steps. */
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/data/private.h"

/* Files up to this size are read in at once when the run starts. */
static const int64_t small_file = INT64_C(64) << 20;

const RtTensor *data_find_input(const RtModel *model, const char *name)
{
	for (int i = 0; i < model->n_tensors; i++)
		if (model->tensors[i].kind == RT_INPUT && !strcmp(model->tensors[i].name, name))
			return &model->tensors[i];
	return NULL;
}

static void note_inputs(const RtModel *model, const char *where, Diag *d)
{
	for (int i = 0; i < model->n_tensors; i++) {
		const RtTensor *t = &model->tensors[i];
		char shape[160];
		if (t->kind == RT_INPUT)
			diag_note(d, where, "input \"%s\" %s%s", t->name,
				npy_shape_text(shape, sizeof(shape), t->dtype, t->rank, t->dim),
				t->batched ? "" : " (--const)");
	}
}

/* A name may contain '=': the first split whose left side is an input counts. */
const RtTensor *data_split_name(
	const RtModel *model, const char *text, const char **file, const char *flag, Diag *d)
{
	char name[512], where[64];
	for (const char *equals = strchr(text, '='); equals; equals = strchr(equals + 1, '=')) {
		snprintf(name, sizeof(name), "%.*s", (int)MIN(equals - text, 511), text);
		const RtTensor *t = data_find_input(model, name);
		if (t && equals[1]) {
			*file = equals + 1;
			return t;
		}
	}
	snprintf(where, sizeof(where), "--%s", flag);
	diag_error(d, where, "\"%s\" is not NAME=FILE with an input's name", text);
	note_inputs(model, where, d);
	return NULL;
}

/* The type and shape that an input's file must have, as "[*,1,8,8] f32". */
static const char *wanted_text(char *out, size_t n, const RtTensor *t)
{
	char dims[160];
	npy_shape_text(dims, sizeof(dims), t->dtype, t->rank, t->dim);
	const char *rest = strpbrk(dims, ",]");
	if (t->batched && t->rank > 0)
		snprintf(out, n, "[*%s", rest);
	else
		snprintf(out, n, "%s", dims);
	return out;
}

static bool check_shape(const RtModel *model, const RtTensor *t, const Npy *npy, Diag *d)
{
	const NpyHeader *h = &npy->header;
	bool ok = h->rank == t->rank && h->dtype == t->dtype;
	for (int i = t->batched ? 1 : 0; ok && i < t->rank; i++)
		ok = h->dim[i] == t->dim[i] || sizes_may_have(model, t, i, h->dim[i]);
	if (ok)
		return true;
	char has[160], wants[160];
	diag_error(d, npy->path, "shape %s, input \"%s\" wants %s",
		npy_shape_text(has, sizeof(has), h->dtype, h->rank, h->dim), t->name,
		wanted_text(wants, sizeof(wants), t));
	if (h->dtype != t->dtype && dtype_info[t->dtype].npy)
		diag_note(d, npy->path, "nothing is converted: save it with .astype('%s')", dtype_info[t->dtype].npy);
	return false;
}

static DataColumn *find_column(const DataSet *set, const RtTensor *t)
{
	for (int i = 0; i < set->n_columns; i++)
		if (set->columns[i].input == t)
			return &set->columns[i];
	return NULL;
}

static bool open_column(DataSet *set, const RtModel *model, const char *text, const char *flag, Diag *d)
{
	const char *file;
	const RtTensor *t = data_split_name(model, text, &file, flag, d);
	if (!t)
		return false;
	if (find_column(set, t)) {
		diag_error(d, file, "input \"%s\" has two sources: --%s was given twice, or beside a token stream",
			t->name, flag);
		return false;
	}
	if (!t->batched) {
		diag_error(d, file,
			"input \"%s\" has no sample axis: give it by --const %s=%s", t->name, t->name, file);
		return false;
	}
	DataColumn *c = &set->columns[set->n_columns];
	*c = (DataColumn){.input = t, .path = file, .token = DT_COUNT, .index = data_index(model, t)};
	if (!npy_open(&c->npy, file, d))
		return false;
	set->n_columns++;
	if (!check_shape(model, t, &c->npy, d))
		return false;
	c->first = c->npy.data;
	c->n_samples = c->npy.header.dim[0];
	c->row_bytes = c->stride = dtype_info[t->dtype].bytes;
	for (int i = 1; i < t->rank; i++)
		c->row_bytes = c->stride *= c->dim[i] = c->npy.header.dim[i];
	if (c->npy.view.bytes <= small_file)
		madvise((void *)(uintptr_t)c->npy.view.at, (size_t)c->npy.view.bytes, MADV_WILLNEED);
	return true;
}

/* Checks that every batched input has a column and that all columns are equally long. */
static bool check_columns(DataSet *set, const RtModel *model, const char *flag, Diag *d)
{
	char where[64];
	bool ok = true;
	snprintf(where, sizeof(where), "--%s", flag);
	for (int i = 0; i < model->n_tensors; i++) {
		const RtTensor *t = &model->tensors[i];
		char shape[160];
		if (t->kind != RT_INPUT || !t->batched || find_column(set, t))
			continue;
		diag_error(d, where, "input \"%s\" %s has no data: give --%s %s=FILE.npy", t->name,
			wanted_text(shape, sizeof(shape), t), flag, t->name);
		ok = false;
	}
	if (!ok || set->n_columns == 0)
		return ok;
	const DataColumn *first = &set->columns[0];
	set->n_samples = first->n_samples;
	for (int i = 0; i < set->n_columns; i++) {
		const DataColumn *c = &set->columns[i];
		if (c->n_samples != first->n_samples) {
			diag_error(d, c->path, "%" PRId64 " sample%s of input \"%s\", but %s has %" PRId64 " of \"%s\"",
				c->n_samples, c->n_samples == 1 ? "" : "s", c->input->name, first->path, first->n_samples,
				first->input->name);
			ok = false;
		} else if (c->n_samples == 0) {
			diag_error(d, c->path, "there are no samples in it");
			ok = false;
		}
	}
	return ok;
}

static int64_t tokens_in_sample(const RtModel *model)
{
	for (int i = 0; i < model->n_tensors; i++) {
		const RtTensor *t = &model->tensors[i];
		if (t->kind == RT_INPUT && t->batched && t->rank == 2 && dtype_info[t->dtype].kind == CLASS_INT &&
			strcmp(t->name, "labels"))
			return t->dim[1];
	}
	return 0;
}

int data_index(const RtModel *model, const RtTensor *t)
{
	int n = 0;
	for (const RtTensor *x = model->tensors; x < t; x++)
		n += x->kind == RT_INPUT;
	return n;
}

int64_t data_tokens(const DataSet *set, int size)
{
	const RtModel *m = set->sizes.model;
	for (int i = 0; m && set->tokens_per_sample && i < set->n_columns; i++)
		if (set->columns[i].input->rank == 2 && set->columns[i].input->dim[1] == set->tokens_per_sample)
			return m->sizes[size].dims[set->columns[i].index][1];
	return set->tokens_per_sample;
}

/* Columns stand in the order of the inputs, so that the order of flags changes nothing. */
static void sort_columns(DataSet *set)
{
	for (int i = 1; i < set->n_columns; i++)
		for (int k = i; k > 0 && set->columns[k].index < set->columns[k - 1].index; k--) {
			DataColumn c = set->columns[k];
			set->columns[k] = set->columns[k - 1];
			set->columns[k - 1] = c;
		}
}

bool data_open(DataSet *set, const RtModel *model, Arena *a, const DataFiles *files, Diag *d)
{
	*set = (DataSet){.batch = model->batch, .tokens_per_sample = tokens_in_sample(model)};
	set->columns = NEW_N(a, DataColumn, model->n_tensors + 1);
	bool ok = true;
	if (files->tokens)
		ok = tokens_open(set, model, files->tokens, files->flag, d);
	for (int i = 0; i < files->data->n && ok; i++)
		ok = open_column(set, model, files->data->at[i], files->flag, d);
	ok = ok && check_columns(set, model, files->flag, d);
	sort_columns(set);
	ok = ok && sizes_open(set, model, a, files->lengths, files->bucket, files->lengths_flag, d);
	if (!ok)
		data_close(set);
	return ok;
}

void data_close(DataSet *set)
{
	for (int i = 0; i < set->n_columns; i++)
		npy_close(&set->columns[i].npy);
	set->n_columns = 0;
	sizes_close(set);
}

int64_t data_shuffled(const DataSet *set, int64_t epoch, int64_t i)
{
	return set->shuffle ? schedule_permute(set->seed, epoch, i, set->n_samples) : i;
}

int64_t data_sample_at(DataSet *set, int64_t position)
{
	int64_t epoch = position / set->n_samples, i = position % set->n_samples;
	return set->sizes.of_sample ? sizes_sample_at(set, epoch, i) : data_shuffled(set, epoch, i);
}

static void load_row(DataSet *set, char *input, int64_t row, int64_t position)
{
	int64_t sample = data_sample_at(set, position);
	for (int i = 0; i < set->n_columns; i++) {
		const DataColumn *c = &set->columns[i];
		int64_t bytes = set->sizes.model ? sizes_row_bytes(set, c) : tensor_bytes(c->input) / c->input->dim[0];
		char *out = input + c->input->offset + row * bytes;
		if (c->token != DT_COUNT)
			tokens_load_row(c, out, sample);
		else if (set->sizes.model)
			sizes_load_row(set, c, out, sample);
		else
			memcpy(out, c->first + sample * c->stride, (size_t)c->row_bytes);
	}
}

void data_load(DataSet *set, char *input, int64_t first)
{
	data_load_part(set, input, first, set->batch, first);
}

void data_load_part(DataSet *set, char *input, int64_t first, int64_t n, int64_t filler)
{
	for (int64_t b = 0; b < set->batch; b++)
		load_row(set, input, b, b < n ? first + b : filler);
}

/* The column to blame for bad data, of which kernels only know the row: for a bad label the column of labels, for
 * another index an integer input, for anything else any input.  NULL: there are several of them, or none. */
static const DataColumn *guilty(const DataSet *set, const char *what)
{
	bool label = !strncmp(what, "label", 5), index = label || !strncmp(what, "index", 5), named = false;
	const DataColumn *found = NULL;
	int n = 0;
	for (int i = 0; i < set->n_columns; i++)
		named = named || !strcmp(set->columns[i].input->name, "labels");
	for (int i = 0; i < set->n_columns; i++) {
		const RtTensor *t = set->columns[i].input;
		if (index && (dtype_is_float(t->dtype) || (named && label != !strcmp(t->name, "labels"))))
			continue;
		found = &set->columns[i];
		n++;
	}
	return n == 1 ? found : NULL;
}

void data_blame(DataSet *set, int64_t first, const char *when, const BadInput *bad, const char *program,
	Diag *d)
{
	enum { SHOWN = 16 };
	Buf rows = {0};
	const DataColumn *c = guilty(set, bad->text + bad->what);
	const char *where = c ? c->path : program;
	diag_error(d, where, "bad input in %s: %s", when, bad->text);
	for (int64_t b = 0; set->n_columns && b < MIN(set->batch, SHOWN); b++)
		buf_printf(&rows, "%s%" PRId64, b ? ", " : "", data_sample_at(set, first + b));
	if (set->n_columns)
		diag_note(d, where, "rows 0, 1, ... of that batch were samples %s%s", rows.at,
			set->batch > SHOWN ? ", ..." : "");
	buf_free(&rows);
}

void data_prefetch(DataSet *set, int64_t first)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	for (int i = 0; i < set->n_columns; i++) {
		const DataColumn *c = &set->columns[i];
		for (int64_t b = 0; c->npy.view.bytes > small_file && b < set->batch; b++) {
			uintptr_t begin = (uintptr_t)(c->first + data_sample_at(set, first + b) * c->stride);
			uintptr_t aligned = begin & ~(page - 1);
			madvise((void *)aligned, begin - aligned + (size_t)c->row_bytes, MADV_WILLNEED);
		}
	}
}

/* Loads one --const: the contents of an input without a sample axis. */
static bool load_const(const Rt *rt, const char *text, bool *given, Diag *d)
{
	const char *file;
	const RtTensor *t = data_split_name(rt->model, text, &file, "const", d);
	Npy npy;
	if (!t)
		return false;
	if (t->batched) {
		diag_error(d, file,
			"input \"%s\" has a sample axis: give it by --data %s=%s", t->name, t->name, file);
		return false;
	}
	given[t - rt->model->tensors] = true;
	if (!npy_open(&npy, file, d))
		return false;
	bool ok = check_shape(rt->model, t, &npy, d);
	if (ok)
		device_put(rt, device_tensor(rt, t), npy.data, npy.header.bytes);
	npy_close(&npy);
	return ok;
}

bool data_load_consts(const Rt *rt, const TextList *consts, bool *given, Diag *d)
{
	bool ok = true;
	for (int i = 0; i < consts->n; i++)
		ok &= load_const(rt, consts->at[i], given, d);
	return ok;
}

bool data_check_consts(const RtModel *model, const bool *given, Diag *d)
{
	bool ok = true;
	for (int i = 0; i < model->n_tensors; i++) {
		const RtTensor *t = &model->tensors[i];
		char shape[160];
		if (t->kind != RT_INPUT || t->batched || given[i])
			continue;
		diag_error(d, "--const", "input \"%s\" %s has no data: give --const %s=FILE.npy", t->name,
			wanted_text(shape, sizeof(shape), t), t->name);
		ok = false;
	}
	return ok;
}
