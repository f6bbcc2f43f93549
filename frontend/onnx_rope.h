/* frontend/onnx_rope.h: a rope, the content of a file to be written, as a list of pieces.
 *
 * A piece is bytes of a mapped file, bytes made here, or elements of a symbol.  Nothing is copied before it is written,
 * so even a large file takes little memory.  For use inside frontend/ only. */
#ifndef SHARDC_ONNX_ROPE_H
#define SHARDC_ONNX_ROPE_H

#include "frontend/onnx_file.h"
#include "frontend/onnx_write.h"

/* Elements of a tensor that come from a symbol's value, in the dtype and order that the file has. */
typedef struct OnnxFill {
	const Symbol *symbol;
	DType dtype;
	bool transposed; /* the file has the transpose of the symbol, whose rank is 2 */
} OnnxFill;
typedef struct RopePiece {
	Span bytes;           /* for a fill only the count n is used */
	const OnnxFill *fill; /* NULL: the piece is bytes */
} RopePiece;
typedef struct Rope {
	VEC(RopePiece) pieces;
	size_t n;             /* bytes in total */
} Rope;

void rope_bytes(Arena *a, Rope *r, Span s);
void rope_fill(Arena *a, Rope *r, const OnnxFill *f, size_t bytes);
/* Append fields of a protobuf message. */
void rope_int(Arena *a, Rope *r, int field, uint64_t v);
void rope_string(Arena *a, Rope *r, int field, const char *s);
void rope_message(Arena *a, Rope *r, int field, const Rope *body);
/* Appends a field with the given body.  If the body equals `was`, the field is copied as it was written. */
void rope_again(Arena *a, Rope *r, int field, Span as_written, Span was, const Rope *body);

/* Writes to fd at an offset.  False: errno says why. */
typedef struct RopeValues { OnnxRead *read; void *context; } RopeValues;
bool rope_write(int fd, const Rope *r, int64_t offset, const RopeValues *values);
bool rope_write_fill(int fd, const OnnxFill *f, int64_t offset, const RopeValues *values);
bool rope_write_bytes(int fd, Span s, int64_t offset);

#endif
