/* runtime/weights.c: first contents of parameters, buffers, constant data and states.
 *
 * They are copied out of the files they always were in (the model, its external data, a safetensors
 * file), mapped for that time.  Refuses a file that is gone, or that is not the one the program was
 * compiled from by size and sampled hash.
 *
 * The one idea: an element is moved by bytes when the dtypes agree, else through double; an axis
 * permutation is a walk over the destination with the source's strides. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filehash.h"
#include "runtime/internal.h"

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
	struct stat st;
	int fd = open(f->path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st)) {
		diag_error(d, f->path, "%s: the program's initial weights are in this file", strerror(errno));
		if (fd >= 0)
			close(fd);
		return false;
	}
	m->bytes = st.st_size;
	void *p = st.st_size > 0 ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0) : NULL;
	close(fd);
	if (p == MAP_FAILED) {
		diag_error(d, f->path, "cannot be mapped: %s", strerror(errno));
		return false;
	}
	m->map = p;
	return check_file(f, m, d);
}

static double get_number(const char *p, DType t)
{
	union { float f; double d; uint16_t h; } v;
	memcpy(&v, p, (size_t)dtype_info[t].bytes);
	switch (t) {
	case DT_F32: return v.f;
	case DT_F64: return v.d;
	case DT_F16: return f16_to_float(v.h);
	case DT_BF16: return bf16_to_float(v.h);
	default: ice("initial weights of type %s cannot be converted", dtype_info[t].text);
	}
}

static void put_number(char *p, DType t, double x)
{
	union { float f; double d; uint16_t h; uint8_t u8; int8_t i8; int16_t i16; uint32_t u32; int32_t i32;
		uint64_t u64; int64_t i64; } v;
	switch (t) {
	case DT_F32: v.f = (float)x; break;
	case DT_F64: v.d = x; break;
	case DT_F16: v.h = f16_from_float((float)x); break;
	case DT_BF16: v.h = bf16_from_float((float)x); break;
	case DT_I64: v.i64 = (int64_t)x; break;
	case DT_I32: v.i32 = (int32_t)x; break;
	case DT_I16: v.i16 = (int16_t)x; break;
	case DT_I8: v.i8 = (int8_t)x; break;
	case DT_U64: v.u64 = (uint64_t)x; break;
	case DT_U32: v.u32 = (uint32_t)x; break;
	case DT_U16: v.h = (uint16_t)x; break;
	case DT_U8: v.u8 = (uint8_t)x; break;
	case DT_BOOL: v.u8 = x != 0; break;
	case DT_COUNT: ice("no dtype");
	}
	memcpy(p, &v, (size_t)dtype_info[t].bytes);
}

static void fill(const RtTensor *t, char *out)
{
	int bytes = dtype_info[t->dtype].bytes;
	int64_t n = tensor_numel(t);
	for (int64_t i = 0; i < n; i++)
		put_number(out + i * bytes, t->dtype, t->fill);
}

static bool is_plain(const RtTensor *t)
{
	for (int i = 0; i < t->rank; i++)
		if (t->perm[i] != i)
			return false;
	return t->file_dtype == t->dtype;
}

/* n elements with distance `stride` in the source; the destination is dense. */
static void copy_row(char *out, const char *in, int64_t n, int64_t stride, const RtTensor *t)
{
	int to = dtype_info[t->dtype].bytes, from = dtype_info[t->file_dtype].bytes;
	for (int64_t i = 0; i < n; i++, out += to, in += stride * from)
		if (t->dtype == t->file_dtype)
			memcpy(out, in, (size_t)to);
		else
			put_number(out, t->dtype, get_number(in, t->file_dtype));
}

static void copy_permuted(const RtTensor *t, char *out, const char *in)
{
	int64_t file_stride[8], stride[8], index[8] = {0}, step = 1;
	for (int i = t->file_rank - 1; i >= 0; i--) {
		file_stride[i] = step;
		step *= t->file_dim[i];
	}
	int last = t->rank - 1;
	for (int i = 0; i < t->rank; i++)
		stride[i] = file_stride[t->perm[i]];
	int64_t row = t->dim[last] * dtype_info[t->dtype].bytes;
	int64_t rows = t->dim[last] ? tensor_numel(t) / t->dim[last] : 0;
	for (int64_t r = 0; r < rows; r++, out += row) {
		int64_t at = 0;
		for (int i = 0; i < last; i++)
			at += index[i] * stride[i];
		copy_row(out, in + at * dtype_info[t->file_dtype].bytes, t->dim[last], stride[last], t);
		for (int i = last - 1; i >= 0 && ++index[i] == t->dim[i]; i--)
			index[i] = 0;
	}
}

static void copy_from_file(const RtTensor *t, char *out, const char *in)
{
	if (is_plain(t))
		memcpy(out, in, (size_t)tensor_bytes(t));
	else if (t->rank == 0 || t->rank != t->file_rank)
		copy_row(out, in, tensor_numel(t), 1, t);
	else
		copy_permuted(t, out, in);
}

static int file_index(const RtModel *m, const char *path)
{
	for (int i = 0; i < m->n_files; i++)
		if (!strcmp(m->files[i].path, path))
			return i;
	ice("\"%s\" is not in the program's table of files", path);
}

/* States sharded with a unit are the optimizer's and start as zeros. */
static bool wants_contents(const RtTensor *t, bool from_checkpoint)
{
	if (t->kind == RT_INPUT || (t->kind == RT_STATE && t->unit >= 0))
		return false;
	return t->kind == RT_DATA || !from_checkpoint;
}

static bool load_tensor(const Rt *rt, const RtTensor *t, MappedFile *files, Diag *d)
{
	if (!t->file) {
		if (t->fill != 0)
			fill(t, device_tensor(rt, t));
		return true;
	}
	int f = file_index(rt->model, t->file);
	const RtFile *file = &rt->model->files[f];
	if (!files[f].map && !open_file(file, &files[f], d))
		return false;
	int64_t need = tensor_numel(t) * dtype_info[t->file_dtype].bytes;
	if (t->file_offset < 0 || need > t->file_bytes || t->file_bytes > files[f].bytes - t->file_offset) {
		diag_error(d, t->file,
			"tensor \"%s\": bytes [%" PRId64 ",%" PRId64 "] of %" PRId64 ", its shape takes %" PRId64,
			t->name, t->file_offset, t->file_offset + t->file_bytes, files[f].bytes, need);
		return false;
	}
	copy_from_file(t, device_tensor(rt, t), files[f].map + t->file_offset);
	return true;
}

bool weights_load(const Rt *rt, bool from_checkpoint, Diag *d)
{
	const RtModel *m = rt->model;
	MappedFile *files = NEW_N(rt->p->arena, MappedFile, m->n_files + 1);
	bool ok = true;
	for (int i = 0; i < m->n_tensors && ok; i++)
		if (wants_contents(&m->tensors[i], from_checkpoint))
			ok = load_tensor(rt, &m->tensors[i], files, d);
	for (int i = 0; i < m->n_files; i++)
		if (files[i].map)
			munmap((void *)(uintptr_t)files[i].map, (size_t)files[i].bytes);
	return ok;
}
