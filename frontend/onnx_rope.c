/* frontend/onnx_rope.c: builds a file as a list of pieces and writes it piece by piece. */
#include "frontend/onnx_rope.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WIRE_INT = 0, WIRE_BYTES = 2, PIECE_BYTES = 1 << 20 };

/* ---- building ---- */

void rope_bytes(Arena *a, Rope *r, Span s)
{
	RopePiece *last = r->pieces.n ? &r->pieces.at[r->pieces.n - 1] : NULL;
	if (!s.n)
		return;
	r->n += s.n;
	if (last && !last->fill && last->bytes.at + last->bytes.n == s.at)
		last->bytes.n += s.n;
	else
		vec_push(a, &r->pieces, ((RopePiece){.bytes = s}));
}

void rope_fill(Arena *a, Rope *r, const OnnxFill *f, size_t bytes)
{
	r->n += bytes;
	vec_push(a, &r->pieces, ((RopePiece){{NULL, bytes}, f}));
}

static void put_varint(Arena *a, Rope *r, uint64_t v)
{
	uint8_t bytes[10];
	size_t n = 0;
	do {
		bytes[n++] = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
	} while (v >>= 7);
	rope_bytes(a, r, (Span){(const uint8_t *)arena_strndup(a, (const char *)bytes, n), n});
}

void rope_int(Arena *a, Rope *r, int field, uint64_t v)
{
	put_varint(a, r, (uint64_t)field << 3 | WIRE_INT);
	put_varint(a, r, v);
}

void rope_string(Arena *a, Rope *r, int field, const char *s)
{
	put_varint(a, r, (uint64_t)field << 3 | WIRE_BYTES);
	put_varint(a, r, strlen(s));
	rope_bytes(a, r, (Span){(const uint8_t *)arena_strdup(a, s), strlen(s)});
}

void rope_message(Arena *a, Rope *r, int field, const Rope *body)
{
	put_varint(a, r, (uint64_t)field << 3 | WIRE_BYTES);
	put_varint(a, r, body->n);
	for (int i = 0; i < body->pieces.n; i++) {
		const RopePiece *p = &body->pieces.at[i];
		if (p->fill)
			rope_fill(a, r, p->fill, p->bytes.n);
		else
			rope_bytes(a, r, p->bytes);
	}
}

void rope_again(Arena *a, Rope *r, int field, Span as_written, Span was, const Rope *body)
{
	const RopePiece *p = body->pieces.at;
	bool same = body->n == was.n && (!was.n || (body->pieces.n == 1 && !p->fill && p->bytes.at == was.at));
	if (same)
		rope_bytes(a, r, as_written);
	else
		rope_message(a, r, field, body);
}

/* ---- writing ---- */

bool rope_write_bytes(int fd, Span s, int64_t offset)
{
	while (s.n) {
		ssize_t n = pwrite(fd, s.at, MIN(s.n, (size_t)1 << 30), (off_t)offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		s = (Span){s.at + n, s.n - (size_t)n};
		offset += n;
	}
	return true;
}

static bool write_plain(int fd, const OnnxFill *f, uint8_t *piece, int64_t offset, const RopeValues *v)
{
	int64_t size = dtype_info[f->dtype].bytes, all = type_numel(&f->symbol->type), most = PIECE_BYTES / size;
	for (int64_t i = 0, n; i < all; i += n) {
		n = MIN(most, all - i);
		v->read(v->context, f->symbol, f->dtype, i, n, piece);
		if (!rope_write_bytes(fd, (Span){piece, (size_t)(n * size)}, offset + i * size))
			return false;
	}
	return true;
}

/* Reads the whole symbol and writes its transpose in pieces. */
static bool write_transposed(int fd, const OnnxFill *f, uint8_t *piece, int64_t offset, const RopeValues *v)
{
	int64_t size = dtype_info[f->dtype].bytes, rows = f->symbol->type.dim[0], cols = f->symbol->type.dim[1];
	int64_t all = rows * cols, most = PIECE_BYTES / size;
	uint8_t *whole = malloc((size_t)MAX(all * size, 1));
	bool ok = whole;
	for (int64_t i = 0; i < all && ok; i += most)
		v->read(v->context, f->symbol, f->dtype, i, MIN(most, all - i), whole + i * size);
	for (int64_t i = 0, n; i < all && ok; i += n) {
		n = MIN(most, all - i);
		for (int64_t k = 0; k < n; k++)
			memcpy(piece + k * size, whole + ((i + k) % rows * cols + (i + k) / rows) * size, (size_t)size);
		ok = rope_write_bytes(fd, (Span){piece, (size_t)(n * size)}, offset + i * size);
	}
	free(whole);
	return ok;
}

bool rope_write_fill(int fd, const OnnxFill *f, int64_t offset, const RopeValues *values)
{
	uint8_t *piece = malloc(PIECE_BYTES);
	bool ok = piece && (f->transposed ? write_transposed : write_plain)(fd, f, piece, offset, values);
	free(piece);
	return ok;
}

bool rope_write(int fd, const Rope *r, int64_t offset, const RopeValues *values)
{
	for (int i = 0; i < r->pieces.n; i++) {
		const RopePiece *p = &r->pieces.at[i];
		if (!(p->fill ? rope_write_fill(fd, p->fill, offset, values) : rope_write_bytes(fd, p->bytes, offset)))
			return false;
		offset += (int64_t)p->bytes.n;
	}
	return true;
}
