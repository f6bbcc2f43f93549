/* codegen/emit.h: what the lowering rules write with.  Not for other folders.
 *
 * A rule writes the calls of one op: emit_kernel for the op's own kernel, emit_line for anything else.
 * Text that is wanted once (descriptors, constants, primitives, fused kernels) is shared by content. */
#ifndef SHARDC_EMIT_H
#define SHARDC_EMIT_H

#include "base/plan.h"
#include "codegen/codegen.h"

/* A part of a call that may differ in another module that does the same: a place, or the number of something.  Rules
 * write a mark for it (emit_part); the text of the call has a PART_HOLE there. */
typedef enum PartKind {
	PART_ACT, PART_IN, PART_STATE, PART_PARAM, PART_GRAD,        /* bytes from there */
	PART_UNIT, PART_COLLECTIVE, PART_CHECK, PART_EVENT, PART_ID, /* numbers */
} PartKind;
enum { PART_HOLE = '\1' };
typedef struct Part {
	PartKind kind;
	int64_t n;
	const char *name; /* of the value that lies there; in a table of modules that do the same, of the number */
} Part;

typedef struct Call {
	const Op *op;
	const char *text;    /* a statement with holes */
	const Part *part;    /* of its holes, in their order */
	int n_parts;
	const char *comment; /* NULL: it belongs to the call before it */
} Call;
typedef VEC(Call) Calls;

typedef struct Emit {
	const Module *m;
	const CodegenTarget *target;
	const Train *train;
	const Variants *several; /* the modules of a step of several micro-batches; NULL: there is one */
	Diag *d;
	Arena *a;
	Calls calls;     /* of the section at work */
	VEC(Part) parts; /* of the op at work */
	Buf step;        /* functions of step.c */
	Buf statics;     /* objects that step.c's functions refer to */
	Buf setup;       /* lines of setup() */
	Map *bodies;     /* text of a function -> its name: micro-batches that do the same share it */
	Map *constants;  /* names of places that step.c declares -> their definitions */
	Map *places;     /* where parameters lie -> their names */
	const char *prefix; /* of functions: "first_" */
	Buf fused;       /* functions of fused.c */
	Buf protos;      /* their prototypes */
	Map *prims;      /* creation text -> slot + 1 */
	Map *shared;     /* definition of a static object -> its name */
	Map *kernels;    /* text of a fused kernel -> its name */
	Map *functions;  /* names of functions and macros taken */
	Map *paths;      /* file as the module names it -> the macro of its path */
	PtrMap *checks;  /* value -> number of its check + 1 */
	PtrMap *events;  /* record -> its number in its program, from 1 */
	Buf check_rows;
	int n_checks;
	const Op *op;    /* at work */
	const char *pending; /* comment for the next call */
} Emit;

/* ---- text (each returns arena text) ---- */

const char *emit_int(Emit *e, int64_t v);
const char *emit_c_string(Emit *e, const char *s); /* NULL: "NULL" */
const char *dtype_constant(DType t);  /* "DT_F32"; tables.c */
const char *kdtype_constant(DType t); /* "K_F32", for kernels; tables.c */
const char *emit_c_float(Emit *e, double v);              /* a double literal */
const char *emit_c_ints(Emit *e, int n, const int64_t *v); /* LIST(int64_t, 1, 2) */
const char *emit_int_list(Emit *e, int n, const int64_t *v); /* {1, 2} */
const char *emit_c_literal(Emit *e, DType t, double f, int64_t i); /* of C type dtype_info[t].ctype */
const char *emit_value(Emit *e, const Value *v);        /* pointer to v's bytes; "NULL" when it has none */
const char *emit_place(Emit *e, const Place *at, const char *name); /* name: of what lies there */
bool emit_same_place(const Place *a, const Place *b);
/* The mark of a part. */
const char *emit_part(Emit *e, PartKind kind, int64_t n, const char *name);
const char *emit_suffix(DType t);                       /* of kernels: "f32", bool as "u8" */
/* Name of the static object `type NAME = text`. */
const char *emit_shared(Emit *e, const char *type, const char *stem, const char *text);
/* Slot expression of the primitive that `create(LIST(desc, text))` makes. */
const char *emit_prim(Emit *e, const char *create, const char *desc, const char *text);

/* ---- statements ---- */

void emit_line(Emit *e, const char *fmt, ...) PRINTF_LIKE(2, 3); /* one statement with its ; */
/* Pointers of results and operands: "o0 n1 i0" (n: NULL where the result is unused). */
const char *emit_tensors(Emit *e, const Op *op, const char *spec);
/* Calls the op's kernel of kernels.def: k_<op>[_<dtype of operand 0>](tensors, rest); rest is printf-like. */
void emit_kernel(Emit *e, const Op *op, const char *tensors, const char *rest, ...) PRINTF_LIKE(4, 5);
/* The same where another operand than the first one names the dtype. */
void emit_kernel_of(Emit *e, const Op *op, DType t, const char *tensors, const char *rest, ...) PRINTF_LIKE(5, 6);
void emit_refuse(Emit *e, const Op *op, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* ---- shapes ---- */

typedef struct Cut { int64_t outer, n, inner; } Cut; /* dims before, at and after an axis */
Cut emit_cut(const Type *t, int64_t axis);
int64_t emit_product(const Type *t, int from, int to);
int emit_axis(const Op *op, const char *name, int rank); /* negative ones resolved */
const Attr *emit_list(const Op *op, const char *name);   /* ice when absent */

/* ---- plan.c ---- */

/* By unit index: names, sizes, first and last use in a step. */
PlanUnit *plan_units(const Module *m, Arena *a);

/* ---- checks.c: --check-nan ---- */

void checks_after(Emit *e, const Op *op, const char *comment); /* comment: what op is */
int checks_write(Emit *e, Buf *out); /* returns how many there are */

/* ---- fused.c, tables.c, build.c ---- */

void fused_call(Emit *e, const Op *op); /* op: fused, elementwise or broadcast */
int emit_event(Emit *e, const Op *record);
void tables_write(Emit *e, Buf *out);   /* everything of step.c behind the functions */
int tensors_files(Emit *e, Buf *out);   /* each returns how many there are */
int tensors_write(Emit *e, Buf *out);
bool tensors_has(const Symbol *s);
const char *emit_unused(Emit *e, const char *stem); /* a new name of a function or macro */
void emit_macro(Buf *out, const char *head, const char *text); /* text begins with a tab */
/* Names of processor features that code for --arch may use; false after a message. */
bool build_need_cpu(Emit *e, Buf *out);
bool build_makefile(const CodegenTarget *t, const Hook *hook, Buf *out, Diag *d);
/* Whether the C compiler takes `text`, NULL: the file itself, as it takes a hook.  complaint: what it means if not. */
bool build_try(const CodegenTarget *t, const char *text, const char *file, const char *complaint, Diag *d);
/* Of a library: model.h, the runtime's with the model's inputs above it, and model.pc. */
bool build_header(Emit *e, Buf *out);
void build_pkg_config(Buf *out);

#endif
