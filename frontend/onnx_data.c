/* frontend/onnx_data.c: plans and writes the file of external data of a model that is written.
 *
 * The new file holds the old data files one behind the other.  Within each of them tensors keep their offsets, so that
 * other references into that file stay valid.  A tensor that shared its bytes with another and now has other elements
 * cannot stay there: it goes to the end of the new file. */
#include "frontend/onnx_data.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum { DATA_ALIGN = 4096, DATA_PIECE = 1 << 20 };

void data_init(DataFile *f, Arena *a)
{
	*f = (DataFile){.arena = a, .taken = map_new(a)};
}

static const DataSource *find_source(DataFile *f, const char *path)
{
	struct stat st;
	for (int i = 0; i < f->sources.n; i++)
		if (!strcmp(f->sources.at[i].path, path))
			return &f->sources.at[i];
	int64_t bytes = !stat(path, &st) && S_ISREG(st.st_mode) ? st.st_size : -1;
	vec_push(f->arena, &f->sources, ((DataSource){path, round_up(f->end, DATA_ALIGN), bytes}));
	if (bytes > 0)
		f->end = f->sources.at[f->sources.n - 1].base + bytes;
	return &f->sources.at[f->sources.n - 1];
}

static int64_t append(DataFile *f, DataPart p)
{
	p.offset = round_up(f->end, DATA_ALIGN);
	vec_push(f->arena, &f->parts, p);
	f->end = p.offset + p.n;
	return p.offset;
}

int64_t data_add(DataFile *f, Span bytes, const OnnxFill *fill, int64_t n)
{
	return append(f, (DataPart){.n = n, .bytes = bytes, .fill = fill});
}

static bool same_fill(const OnnxFill *a, const OnnxFill *b)
{
	return a == b || (a && b && a->symbol == b->symbol && a->transposed == b->transposed);
}

int64_t data_keep(DataFile *f, const char *source, int64_t offset, int64_t n, const OnnxFill *fill)
{
	const DataSource *s = find_source(f, source);
	const char *key = arena_printf(f->arena, "%s:%" PRId64 ":%" PRId64, source, offset, n);
	intptr_t index = (intptr_t)map_get(f->taken, key);
	bool there = offset <= s->bytes && n <= s->bytes - offset;
	DataPart p = {.offset = s->base + offset, .n = n, .fill = fill, .source = source, .from = offset};
	if (!there)
		return fill ? append(f, p) : -1;
	if (!index) {
		vec_push(f->arena, &f->parts, p);
		map_put(f->taken, key, (void *)(intptr_t)f->parts.n);
		return p.offset;
	}
	return same_fill(f->parts.at[index - 1].fill, fill) ? p.offset : append(f, p);
}

static int by_offset(const void *pa, const void *pb)
{
	const DataPart *a = pa, *b = pb;
	return a->offset != b->offset ? (a->offset < b->offset ? -1 : 1) : (a->n > b->n) - (a->n < b->n);
}

bool data_sort(DataFile *f)
{
	int64_t end = 0;
	if (f->parts.n)
		qsort(f->parts.at, (size_t)f->parts.n, sizeof(*f->parts.at), by_offset);
	for (int i = 0; i < f->parts.n; i++) {
		if (f->parts.at[i].offset < end)
			return false;
		end = f->parts.at[i].offset + f->parts.at[i].n;
	}
	return true;
}

/* ---- writing ---- */

/* Copies n bytes of the file at path, starting at offset `from`, to offset `to` of fd. */
static bool copy(int fd, const char *path, int64_t from, int64_t n, int64_t to)
{
	if (n <= 0)
		return true;
	struct stat st;
	const char *why;
	int in = file_open(path, &st, &why);
	uint8_t *piece = in >= 0 ? malloc(DATA_PIECE) : NULL;
	bool ok = piece;
	while (ok && n > 0) {
		ssize_t got = pread(in, piece, (size_t)MIN(n, DATA_PIECE), (off_t)from);
		if (got < 0 && errno == EINTR)
			continue;
		errno = got ? errno : EIO; /* the file is shorter than when it was planned */
		ok = got > 0 && rope_write_bytes(fd, (Span){piece, (size_t)got}, to);
		from += got;
		to += got;
		n -= got;
	}
	int error = errno;
	free(piece);
	if (in >= 0)
		close(in);
	errno = error;
	return ok;
}

/* Copies those bytes of a source that no part with new elements replaces. */
static bool write_source(const DataFile *f, const DataSource *s, int fd)
{
	int64_t at = 0;
	for (int i = 0; i < f->parts.n; i++) {
		const DataPart *p = &f->parts.at[i];
		int64_t begin = p->offset - s->base;
		if (!p->fill || begin < 0 || begin >= s->bytes)
			continue;
		if (!copy(fd, s->path, at, begin - at, s->base + at))
			return false;
		at = begin + p->n;
	}
	return copy(fd, s->path, at, s->bytes - at, s->base + at);
}

/* Whether the part lies where write_source has already copied its bytes unchanged. */
static bool stays(const DataFile *f, const DataPart *p)
{
	for (int i = 0; i < f->sources.n; i++)
		if (p->source == f->sources.at[i].path || (p->source && !strcmp(p->source, f->sources.at[i].path)))
			return p->offset == f->sources.at[i].base + p->from;
	return false;
}

static bool write_part(const DataFile *f, const DataPart *p, int fd, const RopeValues *values)
{
	if (p->fill)
		return rope_write_fill(fd, p->fill, p->offset, values);
	if (p->bytes.at)
		return rope_write_bytes(fd, p->bytes, p->offset);
	return stays(f, p) || copy(fd, p->source, p->from, p->n, p->offset);
}

bool data_write(const DataFile *f, int fd, const RopeValues *values)
{
	for (int i = 0; i < f->sources.n; i++)
		if (!write_source(f, &f->sources.at[i], fd))
			return false;
	for (int i = 0; i < f->parts.n; i++)
		if (!write_part(f, &f->parts.at[i], fd, values))
			return false;
	return !ftruncate(fd, (off_t)f->end) && !fsync(fd);
}
