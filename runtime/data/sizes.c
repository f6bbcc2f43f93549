/* runtime/data/sizes.c: samples of several lengths, in programs with a plan for each of several sizes.
 *
 * A step takes all its samples, on all ranks and in all micro-batches, at the smallest size that each of them fits in;
 * what a sample lacks is filled up with its input's `pad`.  So that samples of one size meet, those of an epoch are
 * taken in pools of --bucket samples, in each of which they stand by size: rising in one pool, falling in the next.
 * The order follows from seed, lengths and position alone, so it is the same at any number of ranks, and a resumed run
 * goes on in it.
 *
 * Refuses samples that are longer than the largest size or than their row in the file, and lengths that do not say of
 * which input they are where inputs differ. */
#include <inttypes.h>
#include <string.h>

#include "runtime/data/private.h"

enum { BUCKET = 4096 };

static bool varies(const RtModel *m, const DataColumn *c, int axis)
{
	return m->sizes[0].dims[c->index][axis] != c->input->dim[axis];
}

/* The first axis whose length depends on the size; 0: none does. */
static int first_axis(const RtModel *m, const DataColumn *c)
{
	for (int i = 1; i < c->input->rank; i++)
		if (varies(m, c, i))
			return i;
	return 0;
}

bool sizes_may_have(const RtModel *m, const RtTensor *t, int axis, int64_t n)
{
	return m->n_sizes && n > 0 && m->sizes[0].dims[data_index(m, t)][axis] != t->dim[axis];
}

/* ---- lengths ---- */

static int64_t number_at(const Npy *npy, int64_t i)
{
	const uint8_t *p = npy->data;
	return npy->header.dtype == DT_I64 ? ((const int64_t *)(const void *)p)[i] : ((const int32_t *)(const void *)p)[i];
}

/* Elements of a sample along an axis of its input. */
static int64_t extent(const RtModel *m, const DataColumn *c, int axis, int64_t sample)
{
	return c->lengths && varies(m, c, axis) ? number_at(c->lengths, sample) + c->more : c->dim[axis];
}

static bool open_lengths(DataSet *set, const char *path, Npy *npy, Diag *d)
{
	char shape[160];
	if (!npy_open(npy, path, d))
		return false;
	const NpyHeader *h = &npy->header;
	bool ok = h->rank == 1 && (h->dtype == DT_I64 || h->dtype == DT_I32) && h->dim[0] == set->n_samples;
	if (!ok) {
		diag_error(d, path, "shape %s: lengths are i64 or i32, one for each of the %" PRId64 " samples",
			npy_shape_text(shape, sizeof(shape), h->dtype, h->rank, h->dim), set->n_samples);
		npy_close(npy);
	}
	return ok;
}

/* Lengths without an input's name count along the first input that has the dimension; an input that is shorter or
 * longer than that by the same number at every size, such as labels without the first token, has as many less or more
 * in each sample. */
static bool share_lengths(DataSet *set, const RtModel *m, const Npy *lengths, Diag *d)
{
	const DataColumn *first = NULL;
	if (strchr(m->sizes[0].name, ' ')) {
		diag_error(d, lengths->path, "several dimensions have sizes (%s): say whose lengths these are, NAME=FILE for "
			"each input", m->sizes[0].name);
		return false;
	}
	for (int i = 0; i < set->n_columns; i++) {
		DataColumn *c = &set->columns[i];
		int axis = first_axis(m, c);
		if (!axis)
			continue;
		first = first ? first : c;
		c->more = c->input->dim[axis] - first->input->dim[first_axis(m, first)];
		c->lengths = lengths;
		for (int k = 0; k < m->n_sizes; k++)
			if (m->sizes[k].dims[c->index][axis] - m->sizes[k].dims[first->index][first_axis(m, first)] != c->more) {
				diag_error(d, lengths->path, "input \"%s\" does not grow with \"%s\" by one element each: give it "
					"lengths of its own, %s=FILE", c->input->name, first->input->name, c->input->name);
				return false;
			}
	}
	return true;
}

static bool name_lengths(DataSet *set, const RtModel *m, const char *text, const char *flag, Npy *npy, Diag *d)
{
	const char *path;
	const RtTensor *t = data_split_name(m, text, &path, flag, d);
	if (!t || !open_lengths(set, path, npy, d))
		return false;
	DataColumn *c = set->columns;
	while (c < set->columns + set->n_columns && c->input != t)
		c++;
	bool found = c < set->columns + set->n_columns && first_axis(m, c);
	if (!found)
		diag_error(d, path, "input \"%s\" has no samples of several lengths", t->name);
	else if (c->lengths)
		diag_error(d, path, "input \"%s\" has two files of lengths: %s is the other", t->name, c->lengths->path);
	if (!found || c->lengths) {
		npy_close(npy);
		return false;
	}
	c->lengths = npy;
	return true;
}

static bool has_name(const RtModel *m, const char *text)
{
	for (const char *equals = strchr(text, '='); equals; equals = strchr(equals + 1, '=')) {
		char name[512];
		snprintf(name, sizeof(name), "%.*s", (int)MIN(equals - text, 511), text);
		if (data_find_input(m, name))
			return true;
	}
	return false;
}

static bool read_lengths(DataSet *set, const RtModel *m, const TextList *lengths, const char *flag, Diag *d)
{
	DataSizes *s = &set->sizes;
	for (int i = 0; i < lengths->n; i++) {
		Npy *npy = &s->lengths[s->n_lengths];
		bool named = has_name(m, lengths->at[i]);
		if (!named && lengths->n > 1) {
			diag_error(d, lengths->at[i], "--%s is given %d times: each names its input, NAME=FILE", flag, lengths->n);
			return false;
		}
		if (named ? !name_lengths(set, m, lengths->at[i], flag, npy, d) : !open_lengths(set, lengths->at[i], npy, d))
			return false;
		s->n_lengths++;
		if (!named && !share_lengths(set, m, npy, d))
			return false;
	}
	for (int i = 0; i < set->n_columns; i++)
		if (first_axis(m, &set->columns[i]) && !set->columns[i].lengths) {
			diag_error(d, set->columns[i].path, "input \"%s\" has no lengths: give --%s %s=FILE.npy, too",
				set->columns[i].input->name, flag, set->columns[i].input->name);
			return false;
		}
	return true;
}

/* ---- sizes of samples ---- */

/* The smallest size that a sample of this input fits in; n_sizes: none. */
static int size_of(const RtModel *m, const DataColumn *c, int64_t sample)
{
	int k = 0;
	for (int axis = 1; axis < c->input->rank; axis++)
		while (k < m->n_sizes && extent(m, c, axis, sample) > m->sizes[k].dims[c->index][axis])
			k++;
	return k;
}

static bool refuse_sample(const RtModel *m, const DataColumn *c, int64_t sample, Diag *d)
{
	int axis = MAX(first_axis(m, c), 1);
	int64_t n = extent(m, c, axis, sample), most = c->input->dim[axis];
	const char *path = c->lengths ? c->lengths->path : c->path;
	if (n < 1)
		diag_error(d, path, "sample %" PRId64 " has %" PRId64 " elements of input \"%s\": a length is at least 1",
			sample, n, c->input->name);
	else if (n > c->dim[axis])
		diag_error(d, path, "sample %" PRId64 " has %" PRId64 " elements of input \"%s\", but rows of %s have %" PRId64,
			sample, n, c->input->name, c->path, c->dim[axis]);
	else
		diag_error(d, path, "sample %" PRId64 " has %" PRId64 " elements of input \"%s\", more than the largest size, "
			"%s, takes (%" PRId64 "): cut it, or compile with a larger size", sample, n, c->input->name,
			m->sizes[m->n_sizes - 1].name, most);
	return false;
}

static bool find_sizes(DataSet *set, const RtModel *m, Arena *a, Diag *d)
{
	DataSizes *s = &set->sizes;
	s->of_sample = NEW_N(a, uint8_t, set->n_samples);
	for (int64_t i = 0; i < set->n_samples; i++)
		for (int k = 0; k < set->n_columns; k++) {
			const DataColumn *c = &set->columns[k];
			int axis = first_axis(m, c), size = size_of(m, c, i);
			if (size == m->n_sizes || (axis && (extent(m, c, axis, i) < 1 || extent(m, c, axis, i) > c->dim[axis])))
				return refuse_sample(m, c, i, d);
			s->of_sample[i] = (uint8_t)MAX(s->of_sample[i], size);
		}
	s->hash = hash_bytes(s->of_sample, (size_t)set->n_samples, 1);
	return true;
}

static bool find_one_size(DataSet *set, const RtModel *m, Diag *d)
{
	set->sizes.of_all = 0;
	for (int k = 0; k < set->n_columns; k++) {
		const DataColumn *c = &set->columns[k];
		int size = size_of(m, c, 0);
		if (size == m->n_sizes)
			return refuse_sample(m, c, 0, d);
		set->sizes.of_all = MAX(set->sizes.of_all, size);
	}
	return true;
}

bool sizes_open(DataSet *set, const RtModel *m, Arena *a, const TextList *lengths, int64_t bucket, const char *flag,
	Diag *d)
{
	DataSizes *s = &set->sizes;
	if (!m->n_sizes) {
		if (lengths && lengths->n)
			diag_error(d, lengths->at[0], "--%s: this program has one size (compile it with --bind DIM=N,N,..)", flag);
		return !lengths || !lengths->n;
	}
	s->model = m;
	s->now = m->n_sizes - 1;
	s->bucket = bucket ? bucket : BUCKET;
	if (!lengths || !lengths->n)
		return find_one_size(set, m, d);
	s->lengths = NEW_N(a, Npy, lengths->n);
	for (int i = 0; i < 2; i++)
		s->pool[i] = (DataPool){-1, NEW_N(a, int64_t, MIN(s->bucket, set->n_samples))};
	return read_lengths(set, m, lengths, flag, d) && find_sizes(set, m, a, d);
}

void sizes_close(DataSet *set)
{
	for (int i = 0; i < set->sizes.n_lengths; i++)
		npy_close(&set->sizes.lengths[i]);
	set->sizes.n_lengths = 0;
}

/* ---- order ---- */

/* Fills a pool with the n samples from position `first` of the epoch on, by size. */
static void fill_pool(const DataSet *set, DataPool *pool, int64_t epoch, int64_t first, int64_t n)
{
	const DataSizes *s = &set->sizes;
	int64_t begin[SIZES_MAX + 1] = {0};
	bool falls = pool->number & 1;
	for (int64_t i = first; i < first + n; i++)
		begin[s->of_sample[data_shuffled(set, epoch, i)]]++;
	for (int64_t k = 0, at = 0; k < SIZES_MAX; k++) {
		int64_t size = falls ? SIZES_MAX - 1 - k : k, count = begin[size];
		begin[size] = at;
		at += count;
	}
	for (int64_t i = first; i < first + n; i++) {
		int64_t sample = data_shuffled(set, epoch, i);
		pool->order[begin[s->of_sample[sample]]++] = sample;
	}
}

int64_t sizes_sample_at(DataSet *set, int64_t epoch, int64_t i)
{
	DataSizes *s = &set->sizes;
	int64_t q = i / s->bucket, first = q * s->bucket, number = epoch * ceil_div(set->n_samples, s->bucket) + q;
	DataPool *pool = &s->pool[number & 1];
	if (pool->number != number) {
		pool->number = number;
		fill_pool(set, pool, epoch, first, MIN(s->bucket, set->n_samples - first));
	}
	return pool->order[i - first];
}

int data_size(DataSet *set, int64_t first, int64_t n)
{
	int size = set->sizes.of_all;
	for (int64_t i = first; set->sizes.of_sample && i < first + n; i++)
		size = MAX(size, set->sizes.of_sample[data_sample_at(set, i)]);
	return size;
}

/* ---- rows ---- */

static void fill(char *out, DType dtype, int64_t n, double pad)
{
	int bytes = dtype_info[dtype].bytes;
	for (int64_t i = 0; i < n; i++)
		number_put(out + i * bytes, dtype, pad);
}

static int64_t row_numel(const int64_t *dim, int rank)
{
	int64_t n = 1;
	for (int i = 1; i < rank; i++)
		n *= dim[i];
	return n;
}

int64_t sizes_row_bytes(const DataSet *set, const DataColumn *c)
{
	const DataSizes *s = &set->sizes;
	return row_numel(s->model->sizes[s->now].dims[c->index], c->input->rank) * dtype_info[c->input->dtype].bytes;
}

/* Copies the block of a sample's own extents, a line along the last axis at a time. */
static void copy_block(const DataColumn *c, const uint8_t *from, char *out, const int64_t *to, const int64_t *own)
{
	int rank = c->input->rank;
	int64_t bytes = dtype_info[c->input->dtype].bytes, lines = row_numel(own, rank) / MAX(own[rank - 1], 1);
	for (int64_t line = 0; line < lines; line++) {
		int64_t rest = line, from_at = 0, to_at = 0, from_step = c->dim[rank - 1], to_step = to[rank - 1];
		for (int i = rank - 2; i > 0; i--) {
			from_at += rest % own[i] * from_step;
			to_at += rest % own[i] * to_step;
			rest /= own[i];
			from_step *= c->dim[i];
			to_step *= to[i];
		}
		memcpy(out + to_at * bytes, from + from_at * bytes, (size_t)(own[rank - 1] * bytes));
	}
}

void sizes_load_row(const DataSet *set, const DataColumn *c, char *out, int64_t sample)
{
	const DataSizes *s = &set->sizes;
	const int64_t *to = s->model->sizes[s->now].dims[c->index];
	int64_t own[8] = {0};
	bool whole = true;
	for (int i = 1; i < c->input->rank; i++) {
		own[i] = extent(s->model, c, i, sample);
		whole = whole && own[i] == to[i] && own[i] == c->dim[i];
	}
	const uint8_t *from = c->first + sample * c->stride;
	if (whole) {
		memcpy(out, from, (size_t)c->row_bytes);
		return;
	}
	fill(out, c->input->dtype, row_numel(to, c->input->rank), c->input->pad + (s->other && c->input->pad_free));
	copy_block(c, from, out, to, own);
}
