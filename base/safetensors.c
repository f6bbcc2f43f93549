/* base/safetensors.c: the safetensors format: the header's length as u64, a JSON header, the elements.
 *
 * Offsets are trusted only after they were shown to tile the rest of the file exactly, so no tensor can point outside
 * the map or into another tensor.  Refuses what the format forbids (duplicate names, overlaps, holes, a size that does
 * not follow from dtype and shape), and also element types that dtypes.def lacks and more than 8 axes. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/file.h"
#include "base/safetensors.h"

enum { LENGTH_BYTES = 8, MAX_HEADER = 100 << 20, ALIGN = 64, CRC_DIGITS = 8 };
static const char crc_key[] = "crc32:";

typedef struct Reader { Arena *a; SafeFile *f; Diag *d; int64_t data_start; } Reader;

static bool map_file(SafeFile *f, Diag *d)
{
	const char *why;
	if (!file_view(&f->view, f->path, &why)) {
		diag_error(d, f->path, "%s", why);
		return false;
	}
	if (f->view.bytes < LENGTH_BYTES) {
		diag_error(d, f->path, "this is not a safetensors file: it is shorter than %d bytes", LENGTH_BYTES);
		file_view_close(&f->view);
		return false;
	}
	return true;
}

static bool read_shape(const Reader *r, SafeTensor *t, json_t *shape)
{
	if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_MAX_RANK) {
		diag_error(r->d, r->f->path, "tensor \"%s\": shape is not a list of at most %d numbers", t->name,
			SAFETENSORS_MAX_RANK);
		return false;
	}
	t->rank = (int)json_array_size(shape);
	t->bytes = dtype_info[t->dtype].bytes;
	for (int i = 0; i < t->rank; i++) {
		json_t *v = json_array_get(shape, (size_t)i);
		t->dim[i] = json_integer_value(v);
		if (!json_is_integer(v) || t->dim[i] < 0 || __builtin_mul_overflow(t->bytes, t->dim[i], &t->bytes)) {
			diag_error(r->d, r->f->path,
				"tensor \"%s\": dimension %d is not a number, negative, or overflows", t->name, i);
			return false;
		}
	}
	return true;
}

static bool read_tensor(const Reader *r, SafeTensor *t, json_t *entry)
{
	const char *dtype = json_string_value(json_object_get(entry, "dtype"));
	json_t *range = json_object_get(entry, "data_offsets");
	if (!dtype || !json_is_array(range) || json_array_size(range) != 2) {
		diag_error(r->d, r->f->path, "tensor \"%s\": dtype or data_offsets is missing", t->name);
		return false;
	}
	if (!dtype_from_safetensors(dtype, &t->dtype)) {
		diag_error(r->d, r->f->path, "tensor \"%s\": element type %s is refused", t->name, dtype);
		return false;
	}
	if (!read_shape(r, t, json_object_get(entry, "shape")))
		return false;
	int64_t size = r->f->view.bytes - r->data_start;
	int64_t begin = json_integer_value(json_array_get(range, 0));
	int64_t end = json_integer_value(json_array_get(range, 1));
	if (begin < 0 || end < begin || end > size || end - begin != t->bytes) {
		diag_error(r->d, r->f->path,
			"tensor \"%s\": data_offsets [%" PRId64 ",%" PRId64 "]: its shape takes %" PRId64
			" bytes, the file holds %" PRId64,
			t->name, begin, end, t->bytes, size);
		return false;
	}
	t->offset = r->data_start + begin;
	t->data = (const char *)r->f->view.at + t->offset;
	return true;
}

static int by_offset(const void *pa, const void *pb)
{
	const SafeTensor *a = pa, *b = pb;
	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static bool check_tiling(const Reader *r)
{
	SafeFile *f = r->f;
	if (f->n)
		qsort(f->tensors, (size_t)f->n, sizeof(*f->tensors), by_offset);
	int64_t end = r->data_start;
	for (int i = 0; i < f->n; i++) {
		if (f->tensors[i].offset != end) {
			diag_error(r->d, f->path,
				"tensor \"%s\" starts at byte %" PRId64 ", the tensor before it ends at %" PRId64,
				f->tensors[i].name, f->tensors[i].offset, end);
			return false;
		}
		end += f->tensors[i].bytes;
	}
	if (end != f->view.bytes)
		diag_error(r->d, f->path, "the tensors end at byte %" PRId64 ", the file at %" PRId64, end,
			f->view.bytes);
	return end == f->view.bytes;
}

static bool read_meta(const Reader *r, json_t *meta)
{
	const char *key;
	json_t *value;
	json_object_foreach(meta, key, value) {
		if (!json_is_string(value)) {
			diag_error(r->d, r->f->path, "__metadata__ \"%s\" is not a string", key);
			return false;
		}
		map_put(r->f->meta, key, arena_strdup(r->a, json_string_value(value)));
	}
	return true;
}

/* Reads the checksums "crc32:NAME", eight digits each.  The header is damaged if a checksum has another form or names
 * no tensor, or if some tensors have a checksum and others have none. */
static bool read_crcs(const Reader *r)
{
	int n = 0;
	for (int i = 0; i < map_count(r->f->meta); i++) {
		const char *key = map_key(r->f->meta, i), *text = map_get(r->f->meta, key);
		if (strncmp(key, crc_key, sizeof(crc_key) - 1))
			continue;
		SafeTensor *t = map_get(r->f->by_name, key + sizeof(crc_key) - 1);
		if (!t || strlen(text) != CRC_DIGITS || strspn(text, "0123456789abcdef") != CRC_DIGITS) {
			diag_error(r->d, r->f->path, "__metadata__ \"%s\": eight hexadecimal digits, of a tensor of the file, were "
				"expected", key);
			return false;
		}
		n += !t->has_crc;
		t->has_crc = true;
		t->crc = (uint32_t)strtoul(text, NULL, 16);
	}
	for (int i = 0; n && i < r->f->n; i++)
		if (!r->f->tensors[i].has_crc) {
			diag_error(r->d, r->f->path, "__metadata__: tensor \"%s\" has no checksum, and others have: the header is "
				"damaged", r->f->tensors[i].name);
			return false;
		}
	return true;
}

static bool read_entries(const Reader *r, json_t *root)
{
	SafeFile *f = r->f;
	const char *key;
	json_t *entry;
	f->tensors = NEW_N(r->a, SafeTensor, json_object_size(root) + 1);
	json_object_foreach(root, key, entry) {
		if (!strcmp(key, "__metadata__")) {
			if (!read_meta(r, entry))
				return false;
			continue;
		}
		SafeTensor *t = &f->tensors[f->n];
		t->name = arena_strdup(r->a, key);
		if (!read_tensor(r, t, entry))
			return false;
		t->listed = f->n++;
	}
	if (!check_tiling(r))
		return false;
	for (int i = 0; i < f->n; i++)
		map_put(f->by_name, f->tensors[i].name, &f->tensors[i]);
	return read_crcs(r);
}

static bool read_header(Reader *r)
{
	const uint8_t *p = r->f->view.at;
	uint64_t length = 0;
	for (int i = 0; i < LENGTH_BYTES; i++)
		length |= (uint64_t)p[i] << 8 * i;
	if (length > MAX_HEADER || (int64_t)length > r->f->view.bytes - LENGTH_BYTES) {
		diag_error(r->d, r->f->path, "this is not a safetensors file: a header of %" PRIu64
			" bytes in a file of %" PRId64, length, r->f->view.bytes);
		return false;
	}
	r->data_start = LENGTH_BYTES + (int64_t)length;
	json_error_t error;
	json_t *root = json_loadb((const char *)p + LENGTH_BYTES, (size_t)length, JSON_REJECT_DUPLICATES, &error);
	if (!json_is_object(root)) {
		diag_error(r->d, r->f->path, "this is not a safetensors file: its header: %s",
			root ? "not a JSON object" : error.text);
		json_decref(root);
		return false;
	}
	bool ok = read_entries(r, root);
	json_decref(root);
	return ok;
}

SafeFile *safetensors_open(Arena *a, const char *path, Diag *d)
{
	SafeFile *f = NEW(a, SafeFile);
	f->path = arena_strdup(a, path);
	f->by_name = map_new(a);
	f->meta = map_new(a);
	Reader r = {.a = a, .f = f, .d = d};
	if (map_file(f, d) && read_header(&r))
		return f;
	safetensors_close(f);
	return NULL;
}

const SafeTensor *safetensors_find(const SafeFile *f, const char *name)
{
	return map_get(f->by_name, name);
}

void safetensors_close(SafeFile *f)
{
	file_view_close(&f->view);
}

void safetensors_release(const SafeFile *f, int64_t begin, int64_t n)
{
	int64_t page = sysconf(_SC_PAGESIZE), first = begin / page * page;
	if (n > 0)
		madvise((char *)(uintptr_t)f->view.at + first, (size_t)(begin + n - first), MADV_DONTNEED);
}

/* Asks the system to start reading the bytes, in far larger pieces than page faults would. */
static void want(const SafeFile *f, int64_t begin, int64_t n)
{
	int64_t page = sysconf(_SC_PAGESIZE), first = begin / page * page;
	madvise((char *)(uintptr_t)f->view.at + first, (size_t)(begin + n - first), MADV_WILLNEED);
}

bool safetensors_verify(const SafeFile *f, const SafeTensor *t, bool release, Diag *d)
{
	enum { PIECE = 64 << 20 };
	uint32_t crc = 0;
	if (!t->has_crc)
		return true;
	for (int64_t at = 0, n; at < t->bytes; at += n) {
		n = MIN(PIECE, t->bytes - at);
		want(f, t->offset + at, MIN(2 * n, t->bytes - at));
		crc = crc32_more(crc, (const char *)t->data + at, n);
		if (release)
			safetensors_release(f, t->offset + at, n);
	}
	if (crc != t->crc)
		diag_error(d, f->path, "tensor \"%s\" is damaged: its checksum is %08" PRIx32 ", %08" PRIx32
			" was written; take an older checkpoint", t->name, crc, t->crc);
	return crc == t->crc;
}

/* ---- writing ---- */

static int64_t tensor_bytes(const SafeTensor *t)
{
	int64_t bytes = dtype_info[t->dtype].bytes;
	for (int i = 0; i < t->rank; i++)
		bytes *= t->dim[i];
	return bytes;
}

/* Places the tensors of one class of alignment, one after the other, beginning at *at.  size 0: the tensors whose size
 * is a multiple of ALIGN; else the others whose elements have this size. */
static void place_class(SafeTensor *tensors, int n, int size, int64_t *at)
{
	for (int i = 0; i < n; i++) {
		SafeTensor *t = &tensors[i];
		int64_t bytes = tensor_bytes(t);
		bool lines = bytes % ALIGN == 0;
		if (size ? lines || dtype_info[t->dtype].bytes != size : !lines)
			continue;
		t->bytes = bytes;
		t->offset = *at;
		*at += bytes;
	}
}

/* Places the elements of all tensors, with offsets from the first element; returns their total size. */
static int64_t place_elements(SafeTensor *tensors, int n)
{
	static const int sizes[] = {0, 8, 4, 2, 1};
	int64_t at = 0;
	for (int i = 0; i < COUNT_OF(sizes); i++)
		place_class(tensors, n, sizes[i], &at);
	return at;
}

static void put_meta(Buf *b, Arena *a, SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta)
{
	const char *comma = "";
	buf_printf(b, "\"__metadata__\":{");
	for (int i = 0; i < n_meta; i++, comma = ",")
		buf_printf(b, "%s\"%s\":\"%s\"", comma, str_escape(a, ESCAPE_JSON, meta[i].key),
			str_escape(a, ESCAPE_JSON, meta[i].value));
	for (int i = 0; i < n; i++, comma = ",") {
		buf_printf(b, "%s\"%s%s\":\"", comma, crc_key, str_escape(a, ESCAPE_JSON, tensors[i].name));
		tensors[i].crc_at = (int64_t)b->n;
		buf_printf(b, "%08" PRIx32 "\"", tensors[i].crc);
	}
	buf_printf(b, "}");
}

/* Puts the length and the JSON header; origin: where the elements of placed tensors begin.  Sets crc_at of each
 * tensor. */
static void put_header(Buf *b, Arena *a, SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta, int64_t origin)
{
	buf_put(b, "\0\0\0\0\0\0\0\0{", LENGTH_BYTES + 1);
	put_meta(b, a, tensors, n, meta, n_meta);
	for (int i = 0; i < n; i++) {
		const SafeTensor *t = &tensors[i];
		buf_printf(b, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", str_escape(a, ESCAPE_JSON, t->name),
			dtype_info[t->dtype].safetensors);
		for (int k = 0; k < t->rank; k++)
			buf_printf(b, "%s%" PRId64, k ? "," : "", t->dim[k]);
		buf_printf(b, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", t->offset - origin,
			t->offset + t->bytes - origin);
	}
	buf_put(b, "}", 1);
	while (b->n % ALIGN)
		buf_put(b, " ", 1);
	for (int i = 0; i < LENGTH_BYTES; i++)
		b->at[i] = (char)((uint64_t)(b->n - LENGTH_BYTES) >> 8 * i & 0xff);
}

/* A byte that is not UTF-8 would be written as another character, which two names may then share. */
const char *safetensors_refuses(const char *name)
{
	return !str_is_utf8(name) ? "is not UTF-8" : !strcmp(name, "__metadata__") ? "is safetensors' own" : NULL;
}

/* Closes the file; if it was not written whole it is removed, unless it is not a regular file. */
static bool end_file(int fd, const char *path, bool ok)
{
	struct stat st;
	int error = errno;
	bool regular = !fstat(fd, &st) && S_ISREG(st.st_mode);
	errno = error;
	ok = file_close(fd, ok);
	error = errno;
	if (!ok && regular)
		unlink(path);
	errno = error;
	return ok;
}

int64_t safetensors_place(SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta)
{
	Arena *scratch = arena_new();
	Buf b = {0};
	int64_t bytes = place_elements(tensors, n);
	put_header(&b, scratch, tensors, n, meta, n_meta, 0);
	int64_t origin = (int64_t)b.n;
	for (int i = 0; i < n; i++)
		tensors[i].offset += origin;
	buf_free(&b);
	arena_free(scratch);
	return origin + bytes;
}

/* Creates or truncates path and writes the header of placed tensors; -1: errno says why.  *end: the length of the
 * file. */
static int begin_file(const char *path, SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta, int64_t *end)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return -1;
	Arena *scratch = arena_new();
	Buf b = {0};
	int64_t origin = n ? INT64_MAX : 0;
	*end = 0;
	for (int i = 0; i < n; i++) {
		origin = MIN(origin, tensors[i].offset);
		*end = MAX(*end, tensors[i].offset + tensors[i].bytes);
	}
	put_header(&b, scratch, tensors, n, meta, n_meta, origin);
	if (!file_put(fd, b.at, (int64_t)b.n, 0)) {
		end_file(fd, path, false);
		fd = -1;
	}
	int error = errno;
	*end = MAX(*end, (int64_t)b.n);
	buf_free(&b);
	arena_free(scratch);
	errno = error;
	return fd;
}

/* Allocates the file's space at once if the file system can, so that a full disk is noticed before elements are
 * written. */
static bool take_room(int fd, int64_t bytes)
{
	if (!fallocate(fd, 0, 0, (off_t)bytes))
		return true;
	return (errno == EOPNOTSUPP || errno == ENOSYS) && !ftruncate(fd, (off_t)bytes);
}

bool safetensors_create(const char *path, const SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta)
{
	Arena *scratch = arena_new();
	int64_t end;
	SafeTensor *zero = NEW_N(scratch, SafeTensor, n + 1);
	for (int i = 0; i < n; i++) {
		zero[i] = tensors[i];
		zero[i].crc = 0;
	}
	int fd = begin_file(path, zero, n, meta, n_meta, &end);
	bool ok = fd >= 0 && end_file(fd, path, take_room(fd, end));
	int error = errno;
	arena_free(scratch);
	errno = error;
	return ok;
}

bool safetensors_put_crc(int fd, const SafeTensor *t)
{
	char digits[CRC_DIGITS + 1];
	snprintf(digits, sizeof(digits), "%08" PRIx32, t->crc);
	return file_put(fd, digits, CRC_DIGITS, t->crc_at);
}

bool safetensors_write(const char *path, const SafeTensor *tensors, int n, const SafeMeta *meta, int n_meta)
{
	Arena *scratch = arena_new();
	int64_t end;
	SafeTensor *placed = NEW_N(scratch, SafeTensor, n + 1);
	for (int i = 0; i < n; i++) {
		placed[i] = tensors[i];
		placed[i].crc = crc32_more(0, tensors[i].data, tensor_bytes(&tensors[i]));
	}
	safetensors_place(placed, n, meta, n_meta);
	int fd = begin_file(path, placed, n, meta, n_meta, &end);
	bool ok = fd >= 0;
	for (int i = 0; i < n && ok; i++)
		ok = file_put(fd, placed[i].data, placed[i].bytes, placed[i].offset);
	ok = fd >= 0 && end_file(fd, path, ok && !fsync(fd));
	int error = errno;
	arena_free(scratch);
	errno = error;
	return ok;
}
