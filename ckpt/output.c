/* ckpt/output.c: writes planned files in pieces, with checksums; a folder or file appears by one rename.
 *
 * Each piece is added to the checksum and written from where it lies in the mapped input, then its pages are released.
 * So only one piece is resident at a time. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/file.h"
#include "base/unfinished.h"
#include "ckpt/output.h"

enum { PIECE = 8 << 20, ZEROS = 4096 }; /* bytes */
static const SafeMeta file_meta[] = {{"format", "pt"}};
static const char zeros[ZEROS];

/* ---- the plan ---- */

OutputFile *output_file(Arena *a, const char *name)
{
	OutputFile *f = NEW(a, OutputFile);
	*f = (OutputFile){.name = name, .meta = file_meta, .n_meta = COUNT_OF(file_meta), .names = map_new(a)};
	return f;
}

void output_tensor(Arena *a, OutputFile *f, const char *name, DType dtype, int rank, const int64_t *dim)
{
	SafeTensor t = {.name = name, .dtype = dtype, .rank = rank};
	memcpy(t.dim, dim, (size_t)rank * sizeof(*dim));
	f->twice = map_has(f->names, name) ? name : f->twice;
	map_put(f->names, name, f);
	vec_push(a, &f->tensor, t);
	vec_push(a, &f->runs, (OutputRuns){0});
}

void output_run(Arena *a, OutputFile *f, OutputRun run)
{
	if (run.n > 0)
		vec_push(a, &f->runs.at[f->runs.n - 1], run);
}

void output_copy(Arena *a, OutputFile *f, const char *name, const CheckpointTensor *t)
{
	output_tensor(a, f, name, t->dtype, t->rank, t->dim);
	output_run(a, f, (OutputRun){.from = t, .n = t->numel});
}

/* ---- elements ---- */

/* Where the next bytes of a tensor are written, and the tensor's checksum so far. */
typedef struct Writer { int fd; int64_t at; uint32_t crc; } Writer;

static bool put(Writer *w, const void *data, int64_t bytes)
{
	if (!file_put(w->fd, data, bytes, w->at))
		return false;
	w->crc = crc32_more(w->crc, data, bytes);
	w->at += bytes;
	return true;
}

static bool put_zeros(Writer *w, int64_t bytes)
{
	for (int64_t n; bytes > 0; bytes -= n) {
		n = MIN(bytes, ZEROS);
		if (!put(w, zeros, n))
			return false;
	}
	return true;
}

static bool put_mapped(Writer *w, const CheckpointPiece *p, int64_t at, int64_t bytes)
{
	for (int64_t n; bytes > 0; bytes -= n, at += n) {
		n = MIN(bytes, PIECE);
		if (!put(w, (const char *)p->in->data + at, n))
			return false;
		safetensors_release(p->file, p->in->offset + at, n);
	}
	return true;
}

static bool put_run(Writer *w, const OutputRun *r, int64_t size)
{
	if (!r->from)
		return put(w, (const char *)r->data + r->first * size, r->n * size);
	for (int i = 0; i < r->from->n_pieces; i++) {
		const CheckpointPiece *p = &r->from->piece[i];
		int64_t begin = MAX(r->first, p->first), end = MIN(r->first + r->n, p->first + p->n);
		if (begin < end && !put_mapped(w, p, (p->at + begin - p->first) * size, (end - begin) * size))
			return false;
	}
	return true;
}

static bool put_tensor(int fd, SafeTensor *t, const OutputRuns *runs)
{
	Writer w = {fd, t->offset, 0};
	int64_t size = dtype_info[t->dtype].bytes;
	for (int i = 0; i < runs->n; i++)
		if (!put_zeros(&w, t->offset + runs->at[i].at * size - w.at) || !put_run(&w, &runs->at[i], size))
			return false;
	if (!put_zeros(&w, t->offset + t->bytes - w.at))
		return false;
	t->crc = w.crc;
	return safetensors_put_crc(fd, t);
}

/* False: errno says why; the unfinished file is left for the caller to remove. */
static bool write_file(OutputFile *f, const char *path)
{
	safetensors_place(f->tensor.at, f->tensor.n, f->meta, f->n_meta);
	if (!safetensors_create(path, f->tensor.at, f->tensor.n, f->meta, f->n_meta))
		return false;
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool ok = fd >= 0;
	for (int i = 0; i < f->tensor.n && ok; i++)
		ok = put_tensor(fd, &f->tensor.at[i], &f->runs.at[i]);
	return file_close(fd, ok && !fsync(fd));
}

/* ---- paths ---- */

static bool is_empty_folder(const char *path)
{
	DIR *dir = opendir(path);
	bool empty = dir;
	for (struct dirent *e; empty && (e = readdir(dir));)
		empty = !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
	if (dir)
		closedir(dir);
	return empty;
}

bool output_is_free(const char *path, bool folder, Diag *d)
{
	struct stat st;
	if (lstat(path, &st)) {
		if (errno != ENOENT)
			diag_error(d, path, "%s", strerror(errno));
		return errno == ENOENT;
	}
	if (S_ISDIR(st.st_mode) ? !is_empty_folder(path) : !S_ISREG(st.st_mode) || st.st_size) {
		diag_error(d, path, "is there already: the output must be new or empty");
		return false;
	}
	if (!S_ISDIR(st.st_mode) == !folder)
		return true;
	diag_error(d, path, folder ? "is a file: the output is a folder, a new or an empty one" :
		"is a folder: the output is a file, a new or an empty one");
	return false;
}

static bool is_readable(const OutputFile *f, const char *path, Diag *d)
{
	if (f->twice)
		diag_error(d, path, "it would hold two tensors \"%s\": nothing was written", f->twice);
	return !f->twice;
}

static bool failed(const char *path, const char *what, Diag *d)
{
	diag_error(d, path, "%s could not be written: %s; nothing was left", what, strerror(errno));
	return false;
}

bool output_write_file(OutputFile *f, const char *path, Diag *d)
{
	if (!is_readable(f, path, d))
		return false;
	int mark = unfinished_begin();
	const char *temp = unfinished_file(path);
	bool ok = (write_file(f, temp) && unfinished_move(temp, path)) || failed(path, "the file", d);
	unfinished_end(mark, ok);
	return ok;
}

bool output_write_text(const Buf *text, const char *path, Diag *d)
{
	int mark = unfinished_begin();
	const char *temp = unfinished_file(path);
	bool ok = (file_write(temp, text->at, (int64_t)text->n) && unfinished_move(temp, path)) ||
		failed(path, "the file", d);
	unfinished_end(mark, ok);
	return ok;
}

/* ---- folders ---- */

typedef struct Folder { OutputFile *const *files; int n; const OutputText *texts; int n_texts; Arena *a; } Folder;

static const char *path_in(const Folder *f, const char *temp, const char *name)
{
	const char *path = arena_printf(f->a, "%s/%s", temp, name);
	unfinished_add(path);
	return path;
}

static bool fill_folder(const Folder *f, const char *temp, const char *path, Diag *d)
{
	for (int i = 0; i < f->n; i++)
		if (!write_file(f->files[i], path_in(f, temp, f->files[i]->name)))
			return failed(path, f->files[i]->name, d);
	for (int i = 0; i < f->n_texts; i++)
		if (!file_write(path_in(f, temp, f->texts[i].name), f->texts[i].text->at, (int64_t)f->texts[i].text->n))
			return failed(path, f->texts[i].name, d);
	return true;
}

bool output_write_folder(OutputFile *const *files, int n, const OutputText *texts, int n_texts, const char *path,
	Diag *d)
{
	for (int i = 0; i < n; i++)
		if (!is_readable(files[i], path, d))
			return false;
	Folder f = {files, n, texts, n_texts, arena_new()};
	int mark = unfinished_begin();
	const char *temp = unfinished_folder(path);
	bool ok = temp ? fill_folder(&f, temp, path, d) : failed(path, "the folder", d);
	ok = ok && ((file_sync(temp) && unfinished_move(temp, path)) || failed(path, "the folder", d));
	unfinished_end(mark, ok);
	arena_free(f.a);
	return ok;
}
