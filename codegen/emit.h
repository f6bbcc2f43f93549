/* codegen/emit.h: what lowering rules use to write code.  Private to codegen/.
 *
 * A rule writes the calls of one op: emit_kernel for the op's own kernel, emit_line for anything else.  Text that
 * is needed once (descriptors, constants, primitives, fused kernels) is shared by content. */
#ifndef SHARDC_EMIT_H
#define SHARDC_EMIT_H

#include "base/plan.h"
#include "codegen/codegen.h"

/* A part of a call that may differ in another module that does the same: a place, or the number of something.
 * Rules write a mark for it (emit_part); the call's text then has a PART_HOLE at this position. */
typedef enum PartKind {
	PART_ACT, PART_HOST, PART_IN, PART_STATE, PART_PARAM, PART_GRAD, /* a byte offset in its region */
	PART_UNIT, PART_COLLECTIVE, PART_COPY, PART_CHECK, PART_NODE, PART_EVENT, PART_ID, /* a number */
} PartKind;
enum { PART_HOLE = '\1' };
typedef struct Part {
	PartKind kind;
	int64_t n;
	const char *name; /* of the value that lies there, or, in a table of rows, of the number */
} Part;

typedef struct Call {
	const Op *op;
	const char *text;    /* a statement with holes */
	const Part *part;    /* one for each hole, in order */
	int n_parts;
	const char *comment; /* NULL: the call belongs to the one before it */
	bool marked;         /* OP stands before it: an op begins here (ops.c) */
} Call;
typedef VEC(Call) Calls;

/* Places get the same name where stem and definition are equal. */
typedef struct PlaceNames {
	Map *defined;  /* names -> definitions */
	Map *of_place; /* "stem = definition" -> the name; stem -> the last number behind it */
} PlaceNames;

typedef struct Emit {
	const Module *m;
	const CodegenTarget *target;
	const Train *train;
	const Sizes *sizes;  /* of the program; m is of the largest */
	const Variants *several; /* modules of a step of several micro-batches; NULL: only one */
	Diag *d;
	Arena *a;
	Calls calls;     /* of the current section */
	VEC(Part) parts; /* of the current op */
	Buf step;        /* functions of step.c */
	Buf statics;     /* objects that step.c's functions refer to */
	Buf setup;       /* lines of setup() */
	Map *nodes;      /* names of nodes that check what they read -> their number + 1 */
	const char *at;  /* what tells the kernels of the current op their node, before its first call; NULL: nothing */
	Map *bodies;     /* text of a function -> its name: equal micro-batches share it */
	PlaceNames constants; /* of places that step.c declares */
	Map *places;     /* where parameters lie -> their names */
	const char *prefix; /* of functions: "first_" */
	Buf fused;       /* functions of fused.c */
	Buf protos;      /* their prototypes */
	Map *prims;      /* creation text -> slot + 1 */
	Map *shared;     /* definition of a static object -> its name */
	Map *kernels;    /* text of a fused kernel -> its name */
	Map *functions;  /* names of functions and macros that are taken */
	Map *paths;      /* file as the module names it -> the macro of its path */
	PtrMap *checks;  /* value -> number of its check + 1 */
	PtrMap *events;  /* record, offload or reload -> its number in its program among events, or copies, from 1 */
	int n_copies;    /* the most of a program */
	Buf check_rows;
	Buf ops;         /* tables of ops.h */
	Buf op_rows;     /* of the program whose sections are being written */
	int n_op_rows;
	Map *op_kernels; /* rows of the table of kernels -> their number, from 1 */
	Buf kernel_rows;
	Map *op_lists;   /* "first_step" -> its RtOps */
	int n_checks;
	int n_step, n_evaluation; /* collectives of the largest size */
	const Op *op;    /* the current op */
	const struct LoopText *loop; /* whose body is lowered; NULL = none */
	const struct Scopes *scopes; /* of m */
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
/* The mark that a rule writes for a part. */
const char *emit_part(Emit *e, PartKind kind, int64_t n, const char *name);
const char *emit_suffix(DType t);                       /* suffix of a kernel's name: "f32"; "u8" for bool */
/* Declares the static object `type NAME = text` unless it exists; returns its name. */
const char *emit_shared(Emit *e, const char *type, const char *stem, const char *text);
/* Creates the primitive `create(LIST(desc, text))` in setup() unless it exists; returns the expression of its slot. */
const char *emit_prim(Emit *e, const char *create, const char *desc, const char *text);

/* ---- statements ---- */

void emit_line(Emit *e, const char *fmt, ...) PRINTF_LIKE(2, 3); /* one statement with its ; */
/* The pointers of results and operands: "o0 n1 i0" (n: NULL if the result is unused). */
const char *emit_tensors(Emit *e, const Op *op, const char *spec);
/* Calls the op's kernel of kernels.def: k_<op>[_<dtype of operand 0>](tensors, rest); rest is a printf format. */
void emit_kernel(Emit *e, const Op *op, const char *tensors, const char *rest, ...) PRINTF_LIKE(4, 5);
/* The same for a kernel that is named after dtype t instead. */
void emit_kernel_of(Emit *e, const Op *op, DType t, const char *tensors, const char *rest, ...) PRINTF_LIKE(5, 6);
void emit_refuse(Emit *e, const Op *op, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* ---- shapes ---- */

typedef struct Cut { int64_t outer, n, inner; } Cut; /* dims before, at and after an axis */
Cut emit_cut(const Type *t, int64_t axis);
int64_t emit_product(const Type *t, int from, int to);
int emit_axis(const Op *op, const char *name, int rank); /* a negative axis is resolved */
const Attr *emit_list(const Op *op, const char *name);   /* ice when absent */

/* The op as the IR prints it, without its attributes, which are arguments of the call. */
const char *emit_comment(Emit *e, const Op *op);
/* lower_loop.c: the address of a place in the body of the loop that is lowered. */
const char *loop_place(Emit *e, const Place *at);

/* ---- body.c ---- */

PlaceNames places_new(Arena *a);

/* ---- plan.c ---- */

/* By unit index: names, sizes, first and last use in a step. */
PlanUnit *plan_units(const Module *m, Arena *a);

/* ---- plan_attention.c: of programs for GPUs, what computes each distinct attention of a step, and why ---- */

void plan_text_attention(FILE *f, const Module *m, const CodegenPlan *p, Arena *a);
void plan_json_attention(FILE *f, const Module *m, const CodegenPlan *p, Arena *a);

/* ---- checks.c: --check-nan ---- */

void checks_after(Emit *e, const Op *op, const char *comment); /* comment: describes op */
int checks_write(Emit *e, Buf *out); /* returns how many there are */

/* ---- ops.c: ops.h ---- */

/* Marks the call `first` of the section, if there is one, as the first of the op, which is the number-th of its
 * program. */
void ops_mark(Emit *e, const Op *op, int number, int first);
void ops_end(Emit *e, const char *program);  /* ends the table of a program: "first_step" */
const char *ops_list(const Emit *e, const char *program); /* "{ops_of_first_step, 12}" */
int ops_kernels(const Emit *e); /* how many rows op_kernels of ops.h has */
void ops_write(const Emit *e, Buf *out);

/* ---- fused.c, tables.c, build.c ---- */

void fused_call(Emit *e, const Op *op); /* op: fused, elementwise or broadcast */
int emit_event(Emit *e, const Op *op); /* the number of a record or a copy */
const char *emit_size(Emit *e, int k); /* step.c: with what the names of a size's functions begin: "seq_128_" */
void tables_write(Emit *e, Buf *out);   /* all of step.c that follows the functions */
int tensors_files(Emit *e, Buf *out);   /* each returns how many there are */
int tensors_write(Emit *e, Buf *out);
bool tensors_has(const Symbol *s);
const char *emit_unused(Emit *e, const char *stem); /* a new name of a function or macro */
void emit_macro(Buf *out, const char *head, const char *text); /* text begins with a tab */
/* Writes the names of the processor features that code for --arch may use; false after a message. */
bool build_need_cpu(Emit *e, Buf *out);
bool build_makefile(const CodegenTarget *t, const Hook *hook, Buf *out, Diag *d);
/* Whether the C compiler accepts `text` or, if that is NULL, the file itself, compiled like a hook.  complaint: the
 * message if it does not. */
bool build_try(const CodegenTarget *t, const char *text, const char *file, const char *complaint, Diag *d);
/* For a library: writes model.h, which is the runtime's header with the model's inputs in front, and model.pc. */
bool build_header(Emit *e, Buf *out);
void build_pkg_config(Buf *out);

#endif
