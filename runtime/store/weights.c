/* runtime/store/weights.c: the initial contents of parameters, buffers, constant data and states.
 *
 * They are copied from the original files (the model, its external data, a safetensors file), which are mapped
 * meanwhile: each rank copies, and therefore reads, only the elements it holds.  With --sync-init only rank 0 opens
 * files, and the others get their elements from it, in pieces.  Refuses a file that is gone, or whose size or sampled
 * hash is not that of the file the program was compiled from.
 *
 * A copy covers a range of a tensor's elements: it copies bytes where the dtypes agree, else converts through double;
 * an axis permutation walks over the destination with the source's strides. */
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "base/file.h"
#include "base/filehash.h"
#include "runtime/store/private.h"

typedef struct MappedFile { const char *map; int64_t bytes; } MappedFile;

static bool check_file(const RtFile *f, const MappedFile *m, Diag *d)
{
	if (m->bytes != f->bytes)
		diag_error(d, f->path,
			"the file has changed since this program was compiled: %" PRId64 " bytes now, %" PRId64
			" then; compile again",
			m->bytes, f->bytes);
	else if (filehash_sampled(m->map, m->bytes) != f->hash)
		diag_error(d, f->path,
			"the file's contents have changed since this program was compiled; compile again");
	else
		return true;
	return false;
}

static bool open_file(const RtFile *f, MappedFile *m, Diag *d)
{
	FileView file;
	const char *why;
	if (!file_view(&file, f->path, &why)) {
		diag_error(d, f->path, "%s: the program's initial weights are in this file", why);
		return false;
	}
	*m = (MappedFile){file.at, file.bytes};
	return check_file(f, m, d);
}

static void fill(const RtTensor *t, const Slice *s)
{
	slice_write(s, s->first, s->n, (const char *)&t->fill, 0, DT_F64);
}

static bool is_plain(const RtTensor *t, const Slice *to)
{
	for (int i = 0; i < t->rank; i++)
		if (t->perm[i] != i)
			return false;
	return t->file_dtype == to->dtype && to->rounded == to->dtype;
}

/* Copies a part of a row, whole rows, and a part of a row. */
static void copy_permuted(const RtTensor *t, const Slice *to, const char *in)
{
	int64_t file_stride[8], stride[8], index[8] = {0}, step = 1, n = to->n;
	for (int i = t->file_rank - 1; i >= 0; i--) {
		file_stride[i] = step;
		step *= t->file_dim[i];
	}
	for (int i = 0; i < t->rank; i++)
		stride[i] = file_stride[t->perm[i]];
	for (int64_t i = t->rank - 1, rest = to->first; i >= 0 && n > 0; rest /= t->dim[i], i--)
		index[i] = rest % t->dim[i];
	int last = t->rank - 1;
	int64_t element = to->first;
	for (int64_t row; n > 0; n -= row, element += row) {
		int64_t at = 0;
		for (int i = 0; i <= last; i++)
			at += index[i] * stride[i];
		row = MIN(n, t->dim[last] - index[last]);
		slice_write(to, element, row, in + at * dtype_info[t->file_dtype].bytes, stride[last], t->file_dtype);
		index[last] = 0;
		for (int i = last - 1; i >= 0 && ++index[i] == t->dim[i]; i--)
			index[i] = 0;
	}
}

/* Copies the elements of a slice; in: the tensor's first byte in the file. */
static void copy_elements(const RtTensor *t, const Slice *to, const char *in)
{
	const char *first = in + to->first * dtype_info[t->file_dtype].bytes;
	if (to->n == 0)
		return;
	if (is_plain(t, to))
		memcpy(to->at, first, (size_t)(to->n * dtype_info[to->dtype].bytes));
	else if (t->rank == 0 || t->rank != t->file_rank)
		slice_write(to, to->first, to->n, first, 1, t->file_dtype);
	else
		copy_permuted(t, to, in);
}

static int file_index(const RtModel *m, const char *path)
{
	for (int i = 0; i < m->n_files; i++)
		if (!strcmp(m->files[i].path, path))
			return i;
	ice("\"%s\" is not in the program's table of files", path);
}

/* Whether a tensor gets contents here.  States sharded with a unit belong to the optimizer and start as zeros. */
static bool wants_contents(const RtTensor *t, bool from_checkpoint)
{
	if (t->kind == RT_INPUT || (t->kind == RT_STATE && t->unit >= 0))
		return false;
	return t->kind == RT_DATA || !from_checkpoint;
}

static bool wants_file(const RtTensor *t, bool from_checkpoint)
{
	return wants_contents(t, from_checkpoint) && t->file;
}

/* Opens the tensor's file if it is not open yet; false after a message: the tensor is not in it. */
static bool check_tensor(const RtModel *m, const RtTensor *t, MappedFile *files, Diag *d)
{
	int f = file_index(m, t->file);
	if (!files[f].map && !open_file(&m->files[f], &files[f], d))
		return false;
	int64_t need = tensor_numel(t) * dtype_info[t->file_dtype].bytes;
	if (t->file_offset >= 0 && need <= t->file_bytes && t->file_bytes <= files[f].bytes - t->file_offset)
		return true;
	diag_error(d, t->file,
		"tensor \"%s\": bytes [%" PRId64 ",%" PRId64 "] of %" PRId64 ", its shape takes %" PRId64, t->name,
		t->file_offset, t->file_offset + t->file_bytes, files[f].bytes, need);
	return false;
}

static bool open_files(const RtModel *m, bool from_checkpoint, MappedFile *files, Diag *d)
{
	bool ok = true;
	for (int i = 0; i < m->n_tensors && ok; i++)
		if (wants_file(&m->tensors[i], from_checkpoint))
			ok = check_tensor(m, &m->tensors[i], files, d);
	return ok;
}

static const char *in_file(const RtModel *m, const RtTensor *t, const MappedFile *files)
{
	return files[file_index(m, t->file)].map + t->file_offset;
}

/* in: NULL on ranks that get the elements from rank 0. */
static void spread(const Rt *rt, const RtTensor *t, const char *in, const Staging *s)
{
	Spreading what = {.t = t, .only = -1, .dtype = t->dtype, .slice = slice_at_rest(rt, t),
		.master = slice_master(rt, t)};
	int64_t numel = tensor_numel(t), most = staging_elements(s, t->dtype);
	for (int64_t first = 0, n; first < numel; first += n) {
		n = MIN(most, numel - first);
		if (in)
			copy_elements(t, &(Slice){.first = first, .n = n, .at = s->at, .dtype = t->dtype, .rounded = t->dtype}, in);
		staging_spread(rt, s, &what, first, n);
	}
}

/* in: as for copy_elements, or NULL. */
static void make_elements(const RtTensor *t, const Slice *to, const char *in)
{
	if (t->init)
		init_random(t, to);
	else if (!t->file)
		fill(t, to);
	if (in)
		copy_elements(t, to, in);
}

static void load_contents(const Rt *rt, bool from_checkpoint, const MappedFile *files, const Staging *s)
{
	for (int i = 0; i < rt->model->n_tensors; i++) {
		const RtTensor *t = &rt->model->tensors[i];
		if (!wants_contents(t, from_checkpoint))
			continue;
		const Slice mine[] = {slice_at_rest(rt, t), slice_master(rt, t)};
		bool reader = !s || rt->p->world.rank == 0;
		const char *in = t->file && reader ? in_file(rt->model, t, files) : NULL;
		for (int k = 0; k < COUNT_OF(mine) && (t->init || t->fill != 0 || in); k++)
			for (Slice piece = slice_begin(&mine[k]); slice_next(rt, &mine[k], &piece, DEVICE_WRITE);)
				make_elements(t, &piece, in);
		if (t->file && s)
			spread(rt, t, in, s);
		agree_alive(rt->p->control);
	}
}

bool weights_load(const Rt *rt, bool from_checkpoint, Diag *d)
{
	const RtModel *m = rt->model;
	Arena *a = arena_new();
	MappedFile *files = NEW_N(a, MappedFile, m->n_files + 1);
	Held held;
	Diag *later = agree_begin(&held, d);
	bool sync = rt->p->comm && rt->p->options->sync_init;
	bool ok = (sync && rt->p->world.rank != 0) || open_files(m, from_checkpoint, files, later);
	ok = agree_end(rt, &held, ok, d);
	if (ok) {
		Staging s = {0};
		if (sync)
			s = staging_find(rt, a);
		load_contents(rt, from_checkpoint, files, sync ? &s : NULL);
	}
	for (int i = 0; i < m->n_files; i++)
		if (files[i].map)
			munmap((void *)(uintptr_t)files[i].map, (size_t)files[i].bytes);
	arena_free(a);
	return ok;
}
