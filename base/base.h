/* base/base.h: what every folder may lean on: memory, strings, maps, diagnostics, dtypes.
 *
 * Knows no IR, no ONNX, no kernels.  Functions that cannot fail abort when memory runs out;
 * nothing here calls exit().  Everything is owned by the arena it was allocated from. */
#ifndef SHARDC_BASE_H
#define SHARDC_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define COUNT_OF(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))

static inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); } /* b > 0; never overflows */
static inline int64_t round_up(int64_t a, int64_t to) { return ceil_div(a, to) * to; }
/* Truncates; what int64 cannot hold becomes its most negative number, as on x86. */
static inline int64_t int_of_double(double x) { return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN; }

/* ---- dtypes.def ---- */

typedef enum DType {
#define DTYPE(id, ...) DT_##id,
#include "base/dtypes.def"
	DT_COUNT
} DType;

typedef enum { CLASS_FLOAT, CLASS_INT, CLASS_UINT, CLASS_BOOL } DTypeClass;

typedef struct {
	const char *text;        /* IR spelling: "f32" */
	int bytes;               /* of one element */
	DTypeClass kind;
	const char *ctype;       /* C type in emitted code */
	int onnx;                /* TensorProto.DataType */
	const char *safetensors; /* "F32" */
	const char *npy;         /* "<f4", NULL when NumPy has none */
} DTypeInfo;

extern const DTypeInfo dtype_info[DT_COUNT];
/* Each returns false and leaves *out alone when the name or number is unknown. */
bool dtype_from_text(const char *text, DType *out);
bool dtype_from_onnx(int onnx, DType *out);
bool dtype_from_npy(const char *descr, DType *out);
bool dtype_from_safetensors(const char *name, DType *out);
static inline bool dtype_is_float(DType t) { return dtype_info[t].kind == CLASS_FLOAT; }
static inline bool dtype_is_half(DType t) { return dtype_is_float(t) && dtype_info[t].bytes == 2; } /* bf16, f16 */
/* Rounds a value to what one element of dtype t can hold (f32, f16, bf16; ints wrap). */
double dtype_round(DType t, double x);
uint16_t f16_from_float(float x);
float f16_to_float(uint16_t h);
uint16_t bf16_from_float(float x); /* round to nearest even, NaN kept */
static inline float bf16_to_float(uint16_t h)
{
	union { uint32_t u; float f; } v = {.u = (uint32_t)h << 16};
	return v.f;
}

/* ---- arena.c ---- */

typedef struct Arena Arena;
typedef struct ArenaMark { void *chunk; size_t used; } ArenaMark;

Arena *arena_new(void);
void arena_free(Arena *a);
void *arena_alloc(Arena *a, size_t bytes); /* zeroed, 16-byte aligned */
char *arena_strdup(Arena *a, const char *s);
char *arena_strndup(Arena *a, const char *s, size_t n);
char *arena_printf(Arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
char *arena_vprintf(Arena *a, const char *fmt, va_list ap);
ArenaMark arena_mark(const Arena *a);
void arena_rewind(Arena *a, ArenaMark m); /* frees all that was allocated since the mark */

#define NEW(arena, T) ((T *)arena_alloc((arena), sizeof(T)))
#define NEW_N(arena, T, n) ((T *)arena_alloc((arena), sizeof(T) * (size_t)(n)))

/* A growable array in an arena: VEC(int) v = {0}; vec_push(a, &v, 3); v.at[0], v.n */
#define VEC(T) struct { T *at; int n, cap; }
#define vec_push(arena, v, x) \
	((v)->n == (v)->cap ? ((v)->at = arena_grow((arena), (v)->at, sizeof(*(v)->at), &(v)->cap)) : (v)->at, \
	 (v)->at[(v)->n++] = (x))
void *arena_grow(Arena *a, void *old, size_t elem, int *cap); /* doubles, copies; at least 8 */

/* ---- str.c ---- */

/* A growable heap string; buf_free gives it back.  at is always NUL-terminated after a write. */
typedef struct Buf { char *at; size_t n, cap; } Buf;
void buf_printf(Buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_put(Buf *b, const char *s, size_t n);
void buf_free(Buf *b);

/* String -> pointer map with insertion order kept; keys are copied into the arena. */
typedef struct Map Map;
Map *map_new(Arena *a);
void map_put(Map *m, const char *key, void *value); /* replaces */
bool map_add(Map *m, const char *key);              /* with NULL; false, and nothing done, when it is there */
/* Adds the name, or where it is there the first of name.1, name.2, ... that is not: the map's copy of it.  The value
 * of a name counts the numbers given to it. */
const char *map_add_numbered(Map *m, const char *name);
void *map_get(const Map *m, const char *key);       /* NULL when absent */
bool map_has(const Map *m, const char *key);
int map_count(const Map *m);
const char *map_key(const Map *m, int i); /* i-th inserted key */
/* Pointer-keyed map. */
typedef struct PtrMap PtrMap;
PtrMap *ptrmap_new(Arena *a);
void ptrmap_put(PtrMap *m, const void *key, void *value);
void *ptrmap_get(const PtrMap *m, const void *key);
/* One pointer per distinct string, so that == compares. */
const char *map_intern(Map *m, const char *s);

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed); /* not cryptographic; stable across runs */

/* The one escaper: every user's name that reaches C, make, JSON, DOT, HTML or a terminal passes through it. */
typedef enum { ESCAPE_C_COMMENT, ESCAPE_C_STRING, ESCAPE_C_IDENT, ESCAPE_JSON, ESCAPE_DOT, ESCAPE_HTML,
	ESCAPE_MAKE, ESCAPE_SHELL, ESCAPE_IR, ESCAPE_TERMINAL } EscapeKind; /* make, sh: one word, quoted */
char *str_escape(Arena *a, EscapeKind kind, const char *s);
/* Of the character at s, which is not the end: 0 if it may be shown as it is, else its bytes: it moves a cursor, turns
 * the direction of text, or is not seen; -1: the byte is no UTF-8.  code: which character or byte it is. */
int str_hidden(const char *s, uint32_t *code);
bool str_is_utf8(const char *s);
/* Whether value is one of "one|two|three". */
bool str_is_choice(const char *choices, const char *value);

/* ---- size.c ---- */

/* 4096, 60K, 1e8, 1.5G, of bytes 200MiB too: a whole number that is not negative and fits, else false. */
bool str_to_size(const char *text, bool bytes, int64_t *out);
/* The same above 0; false leaves *out. */
bool str_to_count(const char *text, bool bytes, int64_t *out);

/* ---- diag.c ---- */

/* Messages to the user.  `where` is what stands before the first colon, in the user's words:
 * "gpt2.onnx: node \"/h.0/MatMul\" (MatMul)", "train.json: $.wrap", "dump.ir:17". */
typedef struct Diag {
	FILE *out;     /* usually stderr */
	int errors, warnings;
	int max_errors; /* printed; the rest are counted.  0 = 50 */
	bool full;     /* an output could not be written since its device is full, or broken (diag_unwritten) */
	bool verbose;  /* diag_info prints */
	bool quiet;    /* nothing but errors and their notes: the rest was said before */
	const char *prefix; /* before `where`: "[rank 3/8] "; NULL: nothing */
} Diag;

void diag_error(Diag *d, const char *where, const char *fmt, ...) PRINTF_LIKE(3, 4);
void diag_warn(Diag *d, const char *where, const char *fmt, ...) PRINTF_LIKE(3, 4);
void diag_note(Diag *d, const char *where, const char *fmt, ...) PRINTF_LIKE(3, 4);
void diag_info(Diag *d, const char *where, const char *fmt, ...) PRINTF_LIKE(3, 4); /* only under -v */
/* An output could not be written, errno tells why: an error, and d->full where not its path is at fault. */
void diag_unwritten(Diag *d, const char *path);
/* A whole file as text, in the arena; NULL and an error when it cannot be read or holds a NUL byte. */
char *diag_read_file(Diag *d, const char *path, Arena *a);

/* The folder of the running program; "." where the system does not say. */
const char *program_dir(Arena *a);

/* An internal error: prints file:line and the message, then aborts.  Never for bad input. */
#define ice(...) ice_at(__FILE__, __LINE__, __VA_ARGS__)
void ice_at(const char *file, int line, const char *fmt, ...) PRINTF_LIKE(3, 4) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif

#endif
