/* base/npy.c: the .npy format, versions 1 to 3: a magic number, a length, a Python dictionary as header, the elements.
 *
 * The header is scanned with a cursor that never passes its end, so any bytes may be given.  Refuses files whose
 * elements cannot be mapped as a plain row-major little-endian array: Fortran order, big endian, records, objects,
 * text, more than 8 axes, fewer bytes than the shape needs.  What NumPy does not have is written as ml_dtypes does, and
 * read from it: bf16 as the void type of 2 bytes, types of narrow.def as that of 1 byte (float8_e5m2 as <f1), so that
 * the file does not say which. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/npy.h"

typedef struct Cursor { const char *at, *end; char *why; } Cursor;

PRINTF_LIKE(2, 3) static bool fail(char *why, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(why, NPY_WHY, fmt, ap);
	va_end(ap);
	return false;
}

static void skip_space(Cursor *c)
{
	while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
		c->at++;
}

static bool take(Cursor *c, char want)
{
	skip_space(c);
	if (c->at == c->end || *c->at != want)
		return false;
	c->at++;
	return true;
}

static bool take_word(Cursor *c, const char *word)
{
	skip_space(c);
	size_t n = strlen(word);
	if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n))
		return false;
	c->at += n;
	return true;
}

/* Reads a Python string without escapes, of at most n - 1 characters. */
static bool take_string(Cursor *c, char *out, size_t n)
{
	skip_space(c);
	if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
		return fail(c->why, "broken header: a quoted string was expected");
	char quote = *c->at++;
	size_t used = 0;
	while (c->at < c->end && *c->at != quote) {
		if (used + 1 == n || *c->at == '\\')
			return fail(c->why, "broken header: a string that is too long or has escapes");
		out[used++] = *c->at++;
	}
	out[used] = 0;
	return take(c, quote) || fail(c->why, "broken header: a string does not end");
}

static bool take_int(Cursor *c, int64_t *out)
{
	skip_space(c);
	int64_t v = 0;
	const char *start = c->at;
	for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
		if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *c->at - '0', &v))
			return fail(c->why, "broken header: a dimension overflows");
	if (c->at == start)
		return fail(c->why, "broken header: a dimension is not a number");
	if (c->at < c->end && *c->at == 'L')
		c->at++;
	*out = v;
	return true;
}

static bool take_shape(Cursor *c, NpyHeader *h)
{
	if (!take(c, '('))
		return fail(c->why, "broken header: the shape is not a tuple");
	for (h->rank = 0; !take(c, ')'); h->rank++) {
		if (h->rank == NPY_MAX_RANK)
			return fail(c->why, "more than %d axes", NPY_MAX_RANK);
		if (!take_int(c, &h->dim[h->rank]))
			return false;
		if (!take(c, ',') && (c->at == c->end || *c->at != ')'))
			return fail(c->why, "broken header: ',' or ')' expected in the shape");
	}
	return true;
}

static bool take_descr(Cursor *c, NpyHeader *h)
{
	char text[32];
	if (!take_string(c, text, sizeof(text)))
		return c->at < c->end && (*c->at == '[' || *c->at == '(') ?
			fail(c->why, "records are refused: save one plain array a file") : false;
	if (text[0] == '=')
		text[0] = '<';
	if (!strcmp(text, "|V2") || !strcmp(text, "<V2")) {
		h->dtype = DT_BF16;
		return true;
	}
	if (!strcmp(text, "|V1") || !strcmp(text, "<V1") || !strcmp(text, "<f1")) {
		h->dtype = DT_U8;
		h->narrow = true;
		return true;
	}
	if (text[0] == '>')
		return fail(c->why, "big-endian elements (%s) are refused: save with .astype('<%s')", text, text + 1);
	return dtype_from_npy(text, &h->dtype) || fail(c->why, "element type '%s' is refused", text);
}

static bool take_entry(Cursor *c, NpyHeader *h, bool *fortran, unsigned *seen)
{
	static const char *const names[] = {"descr", "fortran_order", "shape"};
	char key[32];
	if (!take_string(c, key, sizeof(key)))
		return false;
	int k = 0;
	while (k < COUNT_OF(names) && strcmp(key, names[k]))
		k++;
	if (k == COUNT_OF(names) || *seen >> k & 1)
		return fail(c->why, "broken header: key '%s' is unknown or repeated", key);
	*seen |= 1u << k;
	if (!take(c, ':'))
		return fail(c->why, "broken header: ':' expected after '%s'", key);
	if (k == 0)
		return take_descr(c, h);
	if (k == 2)
		return take_shape(c, h);
	*fortran = take_word(c, "True");
	return *fortran || take_word(c, "False") ||
		fail(c->why, "broken header: fortran_order is neither True nor False");
}

static bool take_dict(Cursor *c, NpyHeader *h, bool *fortran)
{
	unsigned seen = 0;
	if (!take(c, '{'))
		return fail(c->why, "broken header: it is not a dictionary");
	while (!take(c, '}')) {
		if (!take_entry(c, h, fortran, &seen))
			return false;
		if (!take(c, ',') && (c->at == c->end || *c->at != '}'))
			return fail(c->why, "broken header: ',' or '}' expected");
	}
	return seen == 7 || fail(c->why, "broken header: descr, fortran_order and shape are not all there");
}

/* Sets numel and bytes; false if they overflow or the file is too short. */
static bool measure(NpyHeader *h, int64_t file_bytes, bool fortran, char *why)
{
	char shape[160];
	npy_shape_text(shape, sizeof(shape), h->dtype, h->rank, h->dim);
	int wide = 0;
	h->numel = 1;
	bool zero = false, over = false;
	for (int i = 0; i < h->rank; i++) {
		wide += h->dim[i] > 1;
		zero |= h->dim[i] == 0;
		over |= __builtin_mul_overflow(h->numel, MAX(h->dim[i], 1), &h->numel);
	}
	over |= __builtin_mul_overflow(h->numel, dtype_info[h->dtype].bytes, &h->bytes);
	if (over)
		return fail(why, "shape %s overflows", shape);
	if (zero)
		h->numel = h->bytes = 0;
	if (fortran && wide > 1)
		return fail(why, "shape %s in Fortran order is refused: save with numpy.ascontiguousarray", shape);
	if (h->bytes > file_bytes - h->data_offset)
		return fail(why, "shape %s needs %" PRId64 " bytes of elements, the file has %" PRId64, shape,
			h->bytes, file_bytes - h->data_offset);
	return true;
}

bool npy_parse(const void *file, int64_t bytes, NpyHeader *out, char why[NPY_WHY])
{
	const uint8_t *p = file;
	why[0] = 0;
	memset(out, 0, sizeof(*out));
	if (bytes < 10 || memcmp(p, "\x93NUMPY", 6))
		return fail(why, "this is not a .npy file");
	int version = p[6], prefix = version == 1 ? 10 : 12;
	if (version < 1 || version > 3)
		return fail(why, ".npy format version %d is unknown", version);
	if (bytes < prefix)
		return fail(why, "the file ends inside its header");
	int64_t length = p[8] | p[9] << 8;
	if (version > 1)
		length |= (int64_t)p[10] << 16 | (int64_t)p[11] << 24;
	if (length > bytes - prefix)
		return fail(why, "the file ends inside its header");
	Cursor c = {(const char *)p + prefix, (const char *)p + prefix + length, why};
	bool fortran = false;
	out->data_offset = prefix + length;
	return take_dict(&c, out, &fortran) && measure(out, bytes, fortran, why);
}

bool npy_open(Npy *out, const char *path, Diag *d)
{
	if (!npy_open_any(out, path, d))
		return false;
	if (!out->header.narrow)
		return true;
	diag_error(d, path, "elements of one byte that NumPy has no name for, such as float8 and int4: only `shardc run` "
		"reads them; save them with .astype('float32'), whole numbers with .astype('int8') or .astype('uint8')");
	npy_close(out);
	return false;
}

bool npy_open_any(Npy *out, const char *path, Diag *d)
{
	char why[NPY_WHY];
	const char *refused = "the file is empty";
	*out = (Npy){.path = path};
	if (!file_view(&out->view, path, &refused) || !out->view.at) {
		diag_error(d, path, "%s", refused);
		return false;
	}
	if (!npy_parse(out->view.at, out->view.bytes, &out->header, why)) {
		diag_error(d, path, "%s", why);
		npy_close(out);
		return false;
	}
	out->data = (const uint8_t *)out->view.at + out->header.data_offset;
	return true;
}

void npy_close(Npy *npy)
{
	file_view_close(&npy->view);
	npy->data = NULL;
}

static void format_header(Buf *b, const char *descr, int rank, const int64_t *dim)
{
	buf_printf(b, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
	for (int i = 0; i < rank; i++)
		buf_printf(b, "%" PRId64 "%s", dim[i], rank == 1 ? "," : i + 1 < rank ? ", " : "");
	buf_printf(b, "), }");
	while ((10 + b->n + 1) % 64)
		buf_put(b, " ", 1);
	buf_put(b, "\n", 1);
}

static bool write_file(const char *path, const char *descr, int64_t bytes, int rank, const int64_t *dim,
	const void *data)
{
	for (int i = 0; i < rank; i++)
		bytes *= dim[i];
	struct stat st;
	FILE *f = fopen(path, "wb");
	if (!f)
		return false;
	bool regular = !fstat(fileno(f), &st) && S_ISREG(st.st_mode);
	Buf b = {0};
	format_header(&b, descr, rank, dim);
	const uint8_t start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)b.n, (uint8_t)(b.n >> 8)};
	bool ok = fwrite(start, 1, sizeof(start), f) == sizeof(start) && fwrite(b.at, 1, b.n, f) == b.n &&
		fwrite(data, 1, (size_t)bytes, f) == (size_t)bytes;
	buf_free(&b);
	ok = file_flush_close(f) && ok;
	int error = errno;
	if (!ok && regular)
		unlink(path);
	errno = error;
	return ok;
}

bool npy_write(const char *path, DType dtype, int rank, const int64_t *dim, const void *data)
{
	const DTypeInfo *t = &dtype_info[dtype];
	if (dtype_is_scaled(dtype))
		ice("%s is written to %s", t->text, path);
	return write_file(path, t->npy ? t->npy : "|V2", t->bytes, rank, dim, data);
}

bool npy_write_narrow(const char *path, int rank, const int64_t *dim, const uint8_t *data)
{
	return write_file(path, "|V1", 1, rank, dim, data);
}

const char *npy_shape_text(char *out, size_t n, DType dtype, int rank, const int64_t *dim)
{
	size_t used = 0;
	for (int i = 0; i < rank && used < n; i++)
		used += (size_t)snprintf(out + used, n - used, "%s%" PRId64, i ? "," : "[", dim[i]);
	if (used < n)
		snprintf(out + used, n - used, "%s] %s", rank ? "" : "[", dtype_info[dtype].text);
	return out;
}

const char *npy_path(Arena *a, const char *folder, const char *name)
{
	char *path = arena_printf(a, "%s/%s.npy", folder, name);
	for (char *c = path + strlen(folder) + 1; (c = strchr(c, '/'));)
		*c = '_';
	return path;
}

const char *npy_input(Arena *a, const char *folder, const char *name, int k)
{
	const char *path[] = {npy_path(a, folder, name), arena_printf(a, "%s/input_%d.npy", folder, k)};
	for (int i = 0; i < COUNT_OF(path); i++)
		if (!access(path[i], F_OK))
			return path[i];
	return NULL;
}
