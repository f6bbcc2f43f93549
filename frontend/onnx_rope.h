/* frontend/onnx_rope.h: bytes of a file to be: those of mapped files, those made here, elements of symbols.
 *
 * Inside frontend/ only.  Nothing is copied before it is written, so a rope of any length takes little memory. */
#ifndef SHARDC_ONNX_ROPE_H
#define SHARDC_ONNX_ROPE_H

#include "frontend/onnx_file.h"
#include "frontend/onnx_write.h"

/* A tensor's elements, as the file has them, that come from a symbol's value. */
typedef struct OnnxFill {
	const Symbol *symbol;
	DType dtype;
	bool transposed; /* the file has the transpose of the symbol, which has rank 2 */
} OnnxFill;
typedef struct RopePiece {
	Span bytes;           /* fill: n alone counts */
	const OnnxFill *fill; /* NULL: bytes */
} RopePiece;
typedef struct Rope {
	VEC(RopePiece) pieces;
	size_t n;             /* bytes in all */
} Rope;

void rope_bytes(Arena *a, Rope *r, Span s);
void rope_fill(Arena *a, Rope *r, const OnnxFill *f, size_t bytes);
/* Fields of a protobuf message. */
void rope_int(Arena *a, Rope *r, int field, uint64_t v);
void rope_string(Arena *a, Rope *r, int field, const char *s);
void rope_message(Arena *a, Rope *r, int field, const Rope *body);
/* A field as it was written where its body is unchanged, else with the new body. */
void rope_again(Arena *a, Rope *r, int field, Span as_written, Span was, const Rope *body);

/* Writes at an offset of an open file.  False: errno tells. */
typedef struct RopeValues { OnnxRead *read; void *context; } RopeValues;
bool rope_write(int fd, const Rope *r, int64_t offset, const RopeValues *values);
bool rope_write_fill(int fd, const OnnxFill *f, int64_t offset, const RopeValues *values);
bool rope_write_bytes(int fd, Span s, int64_t offset);

#endif
