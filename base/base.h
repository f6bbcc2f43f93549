/* base/base.h: what every folder may use: memory, strings, maps, diagnostics, dtypes.
 *
 * It knows nothing of the IR, ONNX or kernels.  Functions without an error result abort when memory runs out; nothing
 * here calls exit().  An allocation belongs to the arena that it was made from. */
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
/* Truncates towards zero.  Numbers beyond the range of int64 become INT64_MIN, as on x86. */
static inline int64_t int_of_double(double x) { return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN; }

/* ---- dtypes.def ---- */

typedef enum DType {
#define DTYPE(id, ...) DT_##id,
#include "base/dtypes.def"
	DT_COUNT
} DType;

typedef enum { CLASS_FLOAT, CLASS_INT, CLASS_UINT, CLASS_BOOL, CLASS_SCALED } DTypeClass;

typedef struct {
	const char *text;        /* IR spelling: "f32" */
	int bytes;               /* of one element */
	DTypeClass kind;
	const char *ctype;       /* C type in emitted code */
	int onnx;                /* TensorProto.DataType */
	const char *safetensors; /* "F32" */
	const char *npy;         /* "<f4"; NULL: NumPy has no such type */
} DTypeInfo;

extern const DTypeInfo dtype_info[DT_COUNT];
/* Each returns false and leaves *out alone when the name or number is unknown. */
bool dtype_from_text(const char *text, DType *out);
bool dtype_from_onnx(int onnx, DType *out);
bool dtype_from_npy(const char *descr, DType *out);
bool dtype_from_safetensors(const char *name, DType *out);
static inline bool dtype_is_float(DType t) { return dtype_info[t].kind == CLASS_FLOAT; }
static inline bool dtype_is_half(DType t) { return dtype_is_float(t) && dtype_info[t].bytes == 2; } /* bf16, f16 */
static inline bool dtype_is_scaled(DType t) { return dtype_info[t].kind == CLASS_SCALED; } /* e4m3, e5m2 */
/* Rounds a value to what one element of dtype t can hold (f32, f16, bf16; ints wrap). */
double dtype_round(DType t, double x);
uint16_t f16_from_float(float x);
float f16_to_float(uint16_t h);
uint16_t bf16_from_float(float x); /* rounds to nearest even; a NaN stays a NaN */
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
void arena_rewind(Arena *a, ArenaMark m); /* frees all allocations made since the mark */

#define NEW(arena, T) ((T *)arena_alloc((arena), sizeof(T)))
#define NEW_N(arena, T, n) ((T *)arena_alloc((arena), sizeof(T) * (size_t)(n)))

/* A growable array in an arena: VEC(int) v = {0}; vec_push(a, &v, 3); v.at[0], v.n */
#define VEC(T) struct { T *at; int n, cap; }
#define vec_push(arena, v, x) \
	((v)->n == (v)->cap ? ((v)->at = arena_grow((arena), (v)->at, sizeof(*(v)->at), &(v)->cap)) : (v)->at, \
	 (v)->at[(v)->n++] = (x))
void *arena_grow(Arena *a, void *old, size_t elem, int *cap); /* doubles the capacity, at least to 8, and copies the
                                                                 elements */

/* ---- str.c ---- */

/* A growable string on the heap, which buf_free frees.  After a write, `at` ends in a NUL. */
typedef struct Buf { char *at; size_t n, cap; } Buf;
void buf_printf(Buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_put(Buf *b, const char *s, size_t n);
void buf_free(Buf *b);

/* A map from strings to pointers that keeps the order of insertion.  Keys are copied into the arena. */
typedef struct Map Map;
Map *map_new(Arena *a);
void map_put(Map *m, const char *key, void *value); /* replaces an existing value */
bool map_add(Map *m, const char *key);              /* adds the key with value NULL; false if the key exists, which is
                                                       then left alone */
/* Adds the name or, if the map has it, the first of name.1, name.2, .. that it lacks; returns the map's copy of the
 * key.  The value stored for a name counts the numbers given to it. */
const char *map_add_numbered(Map *m, const char *name);
void *map_get(const Map *m, const char *key);       /* NULL when absent */
bool map_has(const Map *m, const char *key);
Map *map_copy(const Map *m, Arena *a);              /* with the same keys, which must live as long */
int map_count(const Map *m);
const char *map_key(const Map *m, int i); /* the key that was inserted i-th */
/* The keys of a map, sorted by their bytes. */
typedef struct Sorted { const char **at; int n; } Sorted;
Sorted map_sorted(const Map *m, Arena *a);
/* Whether some key begins with the first n bytes of `name` and a dot: is the name of something in that module. */
bool sorted_has_inside(const Sorted *s, const char *name, size_t n);
/* A map from pointers to pointers. */
typedef struct PtrMap PtrMap;
PtrMap *ptrmap_new(Arena *a);
void ptrmap_put(PtrMap *m, const void *key, void *value);
void *ptrmap_get(const PtrMap *m, const void *key);
/* Returns the same pointer for equal strings, so that they can be compared with ==. */
const char *map_intern(Map *m, const char *s);

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed); /* not cryptographic; stable across runs */

/* str_escape is the only escaper: every name of the user's that reaches C, make, JSON, DOT, HTML or a terminal passes
 * through it. */
typedef enum { ESCAPE_C_COMMENT, ESCAPE_C_STRING, ESCAPE_C_IDENT, ESCAPE_JSON, ESCAPE_DOT, ESCAPE_HTML,
	ESCAPE_MAKE, ESCAPE_SHELL, ESCAPE_IR, ESCAPE_TERMINAL } EscapeKind; /* make, sh: one quoted word */
char *str_escape(Arena *a, EscapeKind kind, const char *s);
/* Classifies the character at s, which is not the end of the string.  0: it may be shown as it is.  Positive: its
 * number of bytes; it moves the cursor, changes the direction of text, or is invisible.  -1: the byte is not UTF-8.
 * *code is set to the character's code, or to the byte. */
int str_hidden(const char *s, uint32_t *code);
bool str_is_utf8(const char *s);
/* Whether value is one of "one|two|three". */
bool str_is_choice(const char *choices, const char *value);
/* Whether s can be the name of a function in C: ASCII letters, digits and _, and no digit first. */
bool str_is_c_name(const char *s);
/* "1 sample", "8 samples". */
const char *str_count(Arena *a, int64_t n, const char *what);

/* ---- size.c ---- */

/* Reads 4096, 60K, 1e8, 1.5G or, where `bytes` is set, 200MiB.  False unless it is a whole number, not negative, that
 * fits. */
bool str_to_size(const char *text, bool bytes, int64_t *out);
/* The same for numbers above 0; *out is left alone when the result is false. */
bool str_to_count(const char *text, bool bytes, int64_t *out);

/* ---- diag.c ---- */

/* Messages to the user.  `where` is the part before the first colon, in words that the user knows: "gpt2.onnx: node
 * \"/h.0/MatMul\" (MatMul)", "train.json: $.wrap", "dump.ir:17". */
typedef struct Diag {
	FILE *out;     /* usually stderr */
	int errors, warnings;
	int max_errors; /* so many are printed, the rest only counted; 0 = 50 */
	bool full;     /* an output could not be written because its device is full or broken (diag_unwritten) */
	bool verbose;  /* diag_info prints */
	bool quiet;    /* prints only errors and their notes; the rest was said before */
	bool silent;   /* prints nothing; errors are counted */
	const char *prefix; /* printed before `where`: "[rank 3/8] "; NULL: nothing */
} Diag;

void diag_error(Diag *d, const char *where, const char *fmt, ...) PRINTF_LIKE(3, 4);
void diag_warn(Diag *d, const char *where, const char *fmt, ...) PRINTF_LIKE(3, 4);
void diag_note(Diag *d, const char *where, const char *fmt, ...) PRINTF_LIKE(3, 4);
void diag_info(Diag *d, const char *where, const char *fmt, ...) PRINTF_LIKE(3, 4); /* only under -v */
/* Reports that an output could not be written; errno says why.  Sets d->full unless the path itself is the cause. */
void diag_unwritten(Diag *d, const char *path);
/* Reads a whole file as text into the arena.  NULL after an error: the file cannot be read, or holds a NUL byte. */
char *diag_read_file(Diag *d, const char *path, Arena *a);

/* The folder of the running program; "." if the system does not tell. */
const char *program_dir(Arena *a);

/* Internal error: prints file:line and the message, then aborts.  Never used for wrong input. */
#define ice(...) ice_at(__FILE__, __LINE__, __VA_ARGS__)
void ice_at(const char *file, int line, const char *fmt, ...) PRINTF_LIKE(3, 4) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif

#endif
