/* runtime/data/tokens.c: samples for language models, cut from one long stream of token numbers.
 *
 * Sample i of an input [B,T] is tokens [iT, iT+T); its labels are the next ones, [iT+1, iT+T+1), or the same ones when
 * the program's loss shifts by itself; N = (length - 1) div T.  Refuses files whose element type neither name nor
 * header tells, streams shorter than one sample, inputs that are not [B,T].
 *
 * A stream is a column with stride T: a row of inputs and its labels, which start one token later, overlap. */
#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "runtime/data/private.h"

typedef struct TokenFile { Npy npy; const uint8_t *at; int64_t n; DType dtype; } TokenFile;

static bool ends_with(const char *s, const char *suffix)
{
	size_t n = strlen(s), k = strlen(suffix);
	return n >= k && !strcmp(s + n - k, suffix);
}

static bool open_raw(TokenFile *f, const char *path, Diag *d)
{
	int bytes = dtype_info[f->dtype].bytes;
	FileView file;
	const char *why;
	if (!file_view(&file, path, &why)) {
		diag_error(d, path, "%s", why);
		return false;
	}
	if (!file.at || file.bytes % bytes) {
		diag_error(d, path, "%" PRId64 " bytes are not a stream of %d-byte tokens", file.bytes, bytes);
		file_view_close(&file);
		return false;
	}
	f->npy = (Npy){.path = path, .view = file, .data = file.at};
	f->at = file.at;
	f->n = file.bytes / bytes;
	return true;
}

static bool open_stream(TokenFile *f, const char *path, Diag *d)
{
	*f = (TokenFile){.dtype = ends_with(path, ".u32") ? DT_U32 : DT_U16};
	if (ends_with(path, ".u16") || ends_with(path, ".bin") || ends_with(path, ".u32"))
		return open_raw(f, path, d);
	if (!ends_with(path, ".npy")) {
		diag_error(d, path, "a token stream is named .u16 or .bin (16-bit tokens), .u32 or .npy");
		return false;
	}
	if (!npy_open(&f->npy, path, d))
		return false;
	const NpyHeader *h = &f->npy.header;
	if (h->rank != 1 ||
		(dtype_info[h->dtype].kind != CLASS_INT && dtype_info[h->dtype].kind != CLASS_UINT)) {
		char shape[160];
		diag_error(d, path, "shape %s: a token stream has one axis and integer elements",
			npy_shape_text(shape, sizeof(shape), h->dtype, h->rank, h->dim));
		npy_close(&f->npy);
		return false;
	}
	f->at = f->npy.data;
	f->n = h->numel;
	f->dtype = h->dtype;
	return true;
}

static bool is_token_input(const RtTensor *t)
{
	return t->kind == RT_INPUT && t->batched && t->rank == 2 && (t->dtype == DT_I64 || t->dtype == DT_I32);
}

/* The input with this name, or without a name the only integer one besides labels. */
static const RtTensor *choose_input(
	const RtModel *model, const char *text, const char **file, const char *flag, Diag *d)
{
	char where[64];
	const RtTensor *only = NULL;
	int n = 0;
	*file = text;
	snprintf(where, sizeof(where), "--%s", flag);
	for (int i = 0; i < model->n_tensors; i++) {
		const RtTensor *t = &model->tensors[i];
		size_t length = strlen(t->name);
		if (!is_token_input(t) || !strcmp(t->name, "labels"))
			continue;
		if (!strncmp(text, t->name, length) && text[length] == '=' && text[length + 1]) {
			*file = text + length + 1;
			return t;
		}
		only = t;
		n++;
	}
	if (n == 1)
		return only;
	if (n)
		diag_error(d, where, "%d inputs are integers [B,T]: say which takes the token stream: --%s NAME=FILE", n, flag);
	else
		diag_error(d, where, "no input is integers [B,T], as a token stream wants it: give --%s NAME=FILE.npy",
			!strcmp(flag, "tokens") ? "data" : "eval-data");
	return NULL;
}

static void add_column(DataSet *set, const RtModel *model, const RtTensor *t, const TokenFile *f, int64_t skip)
{
	int64_t bytes = dtype_info[f->dtype].bytes;
	set->columns[set->n_columns++] = (DataColumn){.input = t, .path = f->npy.path, .token = f->dtype,
		.first = f->at + skip * bytes, .n_samples = (f->n - 1) / t->dim[1], .stride = t->dim[1] * bytes,
		.row_bytes = t->dim[1] * bytes, .index = data_index(model, t), .dim = {0, t->dim[1]}};
}

bool tokens_open(DataSet *set, const RtModel *model, const char *text, const char *flag, Diag *d)
{
	const char *path, *whose = strcmp(flag, "eval-data") ? "tokens" : "eval-tokens";
	TokenFile f;
	const RtTensor *input = choose_input(model, text, &path, whose, d);
	if (!input || !open_stream(&f, path, d))
		return false;
	const RtTensor *labels = data_find_input(model, "labels");
	if (f.n - 1 < input->dim[1]) {
		diag_error(d, path, "%" PRId64 " tokens, input \"%s\" takes %" PRId64 " and one more for the labels",
			f.n, input->name, input->dim[1]);
		npy_close(&f.npy);
		return false;
	}
	add_column(set, model, input, &f, 0);
	set->columns[0].npy = f.npy; /* this column unmaps the file */
	if (labels && is_token_input(labels) && labels->dim[1] == input->dim[1])
		add_column(set, model, labels, &f, model->loss.shift ? 0 : 1);
	return true;
}

/* Integers are little-endian in every file; signed ones are sign-extended.  A number that the input's type does not
 * have becomes the nearest that it has, which no table has a row for: its low bits could be a token that there is. */
static int64_t token_at(const uint8_t *p, DType dtype, int64_t i, int64_t low, int64_t high)
{
	int bytes = dtype_info[dtype].bytes;
	uint64_t v = 0;
	for (int k = 0; k < bytes; k++)
		v |= (uint64_t)p[i * bytes + k] << 8 * k;
	if (dtype_info[dtype].kind == CLASS_UINT)
		return v > (uint64_t)high ? high : (int64_t)v;
	int unused = 64 - 8 * bytes;
	return MAX(low, MIN(high, (int64_t)(v << unused) >> unused));
}

void tokens_load_row(const DataColumn *c, void *out, int64_t sample)
{
	const uint8_t *row = c->first + sample * c->stride;
	int64_t n = c->input->dim[1];
	int64_t *wide = out;
	int32_t *narrow = out;
	for (int64_t i = 0; i < n; i++)
		if (c->input->dtype == DT_I64)
			wide[i] = token_at(row, c->token, i, INT64_MIN, INT64_MAX);
		else
			narrow[i] = (int32_t)token_at(row, c->token, i, INT32_MIN, INT32_MAX);
}
