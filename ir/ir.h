/* ir/ir.h: the one IR of shardc.  Grammar and op index: docs/ir.md.
 *
 * A Module holds symbols (what outlives a step: parameters, buffers, constant data, states, inputs),
 * units (groups of parameters) and four sections of SSA ops.  Ops and values live in m->ops, which ir_compact
 * replaces, all else in m->arena; nothing is freed alone.  Printing is the exact inverse of parsing. */
#ifndef SHARDC_IR_H
#define SHARDC_IR_H

#include "base/base.h"
#include "base/groups.h"
#include "base/layout.h"
#include "base/variant.h"

enum { IR_MAX_RANK = 8 };

/* What is legal grows with the level; op_info[].level is the first level an op may stand at. */
typedef enum Level { LEVEL_MODEL, LEVEL_TRAIN, LEVEL_SHARD, LEVEL_PLAN, LEVEL_COUNT } Level;
typedef enum SectionKind { SEC_FORWARD, SEC_BACKWARD, SEC_UPDATE, SEC_EVAL, SEC_COUNT } SectionKind;
typedef enum Stream { STREAM_COMPUTE, STREAM_GATHER, STREAM_REDUCE, STREAM_SYNC, STREAM_COUNT } Stream;
extern const char *const level_text[LEVEL_COUNT]; /* "MODEL" */
extern const char *const section_text[SEC_COUNT]; /* "forward" */
extern const char *const stream_text[STREAM_COUNT]; /* "gather" */

extern const char *const variant_text[VARIANT_COUNT];
extern const char *const sync_text[SYNC_COUNT];

typedef struct Module Module;
typedef struct Symbol Symbol;
typedef struct Unit Unit;
typedef struct Op Op;
typedef struct Value Value;

/* ---- type.c ---- */

typedef enum TypeKind {
	TYPE_NONE,        /* of values that could not be typed; any use is accepted silently */
	TYPE_TENSOR,      /* f32[2,3] */
	TYPE_FLAT,        /* flat @unit    : all parameters of a unit, gathered */
	TYPE_SHARD,       /* shard @unit   : this rank's part of it */
	TYPE_ASYNC_FLAT,  /* async flat @unit : result of a collective before its wait */
	TYPE_ASYNC_SHARD, /* async shard @unit */
	TYPE_EVENT,       /* event : a point of the compute stream */
} TypeKind;

/* Layouts other than row-major exist for packed convolution weights only; names and sizes in
 * kernels/layouts.def terms.  Channels-last activations are plain tensors whose shape says so. */
typedef struct Type {
	TypeKind kind;
	DType dtype;
	int rank;
	int64_t dim[IR_MAX_RANK];
	const char *layout; /* NULL = row-major; else a packed layout's interned name: f32[64,3,7,7]:Ohwi16o */
	Unit *unit;         /* of flat and shard kinds */
	int flat;           /* which flat of the unit (0 = trainable f32, ...) */
} Type;

Type type_tensor(DType dtype, int rank, const int64_t *dim);
static inline Type type_scalar(DType dtype) { return type_tensor(dtype, 0, NULL); }
bool type_equal(const Type *a, const Type *b);
bool type_same_shape(const Type *a, const Type *b);
int64_t type_numel(const Type *t);           /* of a tensor; 1 for rank 0 */
int64_t type_bytes(const Type *t);           /* of a row-major tensor */
void type_strides(const Type *t, int64_t *stride); /* row-major, in elements */
const char *type_str(Arena *a, const Type *t); /* the IR spelling, for messages and the printer */
const char *ir_unit_str(Arena *a, const Unit *u);  /* "@h.0", quoted when the name needs it */
bool ir_is_name_char(char c);                      /* of what may stand in %value and bare @unit names */
/* NumPy broadcasting of two shapes; false when they do not agree. */
bool type_broadcast(const Type *a, const Type *b, Type *out);

/* ---- locations ---- */

/* Where an op came from, in the user's words.  role tells what the compiler made of it. */
typedef struct Loc {
	const char *node;  /* ONNX node name, or "#17" when it has none */
	const char *onnx;  /* ONNX op type, "" when none */
	const char *scope; /* dotted module scope of the framework ("h.0.attn"), "" when unknown */
	const char *role;  /* "" | "grad" | "remat" | "update" | "eval" | a pass name */
} Loc;
/* Text form: loc("node":"MatMul"@"h.0.attn" grad); parts that are empty are left out. */
const Loc *loc_new(Module *m, const char *node, const char *onnx, const char *scope, const char *role);
const Loc *loc_with_role(Module *m, const Loc *loc, const char *role);
/* "gpt2.onnx: node \"/h.0/MatMul\" (MatMul)" or with role "gradient of node ...". */
const char *loc_where(Module *m, const Loc *loc);

/* ---- attributes ---- */

typedef enum AttrKind { ATTR_INT, ATTR_FLOAT, ATTR_STR, ATTR_INTS, ATTR_FLOATS, ATTR_DTYPE } AttrKind;
/* A list sorted by name.  Floats print so that they read back to the same bits. */
typedef struct Attr {
	const char *name;
	AttrKind kind;
	int n; /* of ints or floats */
	union { int64_t i; double f; const char *s; const int64_t *ints; const double *floats; DType dtype; };
	struct Attr *next;
} Attr;

Attr *attr_int(Module *m, Attr *list, const char *name, int64_t v); /* each returns the new list head */
Attr *attr_float(Module *m, Attr *list, const char *name, double v);
Attr *attr_str(Module *m, Attr *list, const char *name, const char *v);
Attr *attr_ints(Module *m, Attr *list, const char *name, int n, const int64_t *v);
Attr *attr_floats(Module *m, Attr *list, const char *name, int n, const double *v);
Attr *attr_dtype(Module *m, Attr *list, const char *name, DType v);
const Attr *attr_find(const Attr *list, const char *name);
int64_t attr_get_int(const Attr *list, const char *name, int64_t otherwise);
double attr_get_float(const Attr *list, const char *name, double otherwise);
const char *attr_get_str(const Attr *list, const char *name, const char *otherwise);
bool attr_equal(const Attr *a, const Attr *b); /* whole lists */

/* ---- symbols and units ---- */

typedef enum SymbolKind {
	SYM_INPUT,  /* fed each micro-batch: samples, labels; const inputs */
	SYM_OUTPUT, /* a graph output of the model */
	SYM_PARAM,  /* trained, or frozen by the user (trainable = 0) */
	SYM_BUFFER, /* persists, is not trained: BatchNorm statistics; is saved */
	SYM_DATA,   /* constant tensor of the model too big to print; read-only */
	SYM_STATE,  /* made by the compiler: moments, counters */
} SymbolKind;
enum { SYM_COUNT = SYM_STATE + 1 };
extern const char *const symbol_kind_text[SYM_COUNT]; /* "input" */

/* Where initial contents come from: bytes in a file, random numbers, or a fill value. */
typedef struct Source {
	const char *file;   /* as the user named it or relative to the model; NULL = filled */
	int64_t offset, bytes;
	DType dtype;        /* of the bytes in the file */
	int rank;           /* of the tensor in the file */
	int64_t dim[IR_MAX_RANK];
	int perm[IR_MAX_RANK]; /* our dim[i] = file dim[perm[i]]; identity when plain */
	double fill;
	const char *init;   /* "uniform" in (-scale, scale), "normal" with deviation scale; NULL = not random */
	double scale;
	int64_t seed;       /* elements follow from it, the symbol's name and their index */
} Source;

struct Symbol {
	SymbolKind kind;
	const char *name;    /* the framework's name where known; unique in the module */
	int index;           /* in m->symbols */
	const char *onnx;    /* name in the ONNX file, for writing back */
	Type type;
	Source src;
	const char **alias;  /* SYM_PARAM: its further names, where modules share it; interned */
	int n_aliases;
	bool trainable;      /* SYM_PARAM */
	int group;           /* SYM_PARAM: which --param-group, from 1; 0 = none */
	bool batched;        /* SYM_INPUT: first axis = samples */
	bool narrowed;       /* SYM_BUFFER: stored in fewer bits than the model has, */
	DType saved;         /*   which are these, in checkpoints */
	Unit *unit;          /* from level SHARD: the unit of a SYM_PARAM, and of a sharded SYM_STATE */
	int flat;
	int64_t offset;      /* elements from the flat's start; a multiple of 64 */
	const char *param;   /* SYM_STATE per parameter: the parameter's name, else NULL */
};

enum { UNIT_MAX_FLATS = 4 };
typedef LayoutFlat Flat;

struct Unit {
	const char *name;    /* "root", "h.0" */
	Strategy strategy;
	int owner;           /* of oss and sharded_ddp: the rank that updates the unit, else -1 */
	Flat flat[UNIT_MAX_FLATS];
	int n_flats;
	Symbol **params;     /* in flat order */
	int n_params;
	int index;           /* in m->units, traversal order; root is last */
};

/* ---- the training program ---- */

/* --comm-hook=FILE.c:FUNCTION: gradients are reduced by a function of the user's. */
typedef struct Hook {
	const char *file, *function; /* absolute path; NULL: there is none */
	int64_t send, keep;          /* memory that it has: bytes per element of a flat gradient */
} Hook;

/* What a program that trains is told besides its ops: all that decides what is emitted for it.  Pass optimizer makes it
 * of the options. */
typedef struct Train {
	const char *optimizer;       /* "adamw", "sgd:momentum,nesterov" */
	bool norm;                   /* of gradients: it is computed and logged */
	double clip;                 /* p of the norm that gradients may be clipped by, infinity too; 0 = they may not */
	bool clip_value;             /* gradients may be clipped one by one */
	bool no_decay_1d;            /* weights of at most one dimension do not decay */
	ParamGroup *group;           /* Symbol.group is a number of these, from 1 */
	int n_groups;
	double loss_scale;           /* 0 = none; of a dynamic one, what it begins with */
	int64_t growth_interval;     /* of a dynamic loss scale: good steps before it doubles; 0 = it stays */
	bool shift;                  /* the loss shifts labels itself */
	bool accum;                  /* several micro-batches a step: Module.sync says when gradients are reduced */
	bool check_nan;              /* each result of a step is checked */
	LayoutOffload offload;
	bool cuda;                   /* what memory the kernels get is planned for a GPU */
	bool tf32;                   /* f32 products of a GPU round their operands */
	Hook hook;
	const char *options;         /* canonical text of the options that made the program, for checkpoints */
	const char *where;           /* "plan.ir:2:3": the block was read there; NULL = a pass made it */
} Train;
extern const char *const offload_text[3]; /* by LayoutOffload: "none" */

/* ---- values and ops ---- */

/* An operand slot; also a node of the value's use list. */
typedef struct Use {
	Value *value; /* NULL: an optional operand that is absent, printed _ */
	Op *op;
	struct Use *prev, *next;
} Use;

typedef enum Region {
	REGION_NONE,  /* not planned, or needs no memory */
	REGION_ACT,   /* @act+N    : byte offset in the activation arena */
	REGION_INPUT, /* @input+N  : fixed input buffers */
	REGION_PARAM, /* @param:unit.flat+N  : inside a gathered unit */
	REGION_GRAD,  /* @grad:unit.flat+N   : inside a unit's flat gradient */
	REGION_STATE, /* @state+N  : buffers, data and unsharded states */
} Region;
enum { REGION_COUNT = REGION_STATE + 1 };
extern const char *const region_text[REGION_COUNT]; /* "act"; of REGION_NONE "" */
typedef struct Place {
	Region region;
	Unit *unit;
	int flat;
	int64_t offset; /* bytes */
} Place;

struct Value {
	Op *op;        /* that defines it */
	int index;     /* among op's results */
	const char *name; /* without %, unique in the module; inside a fused body NULL and printed $k */
	int id;        /* dense, unique in the module: index into side tables of m->n_values */
	Type type;
	Place place;   /* PLAN */
	Use *uses;
	int n_uses;
};

typedef enum OpKind {
#define OP(id, ...) OP_##id,
#include "ir/ops.def"
	OP_COUNT
} OpKind;

struct Op {
	OpKind kind;
	SectionKind section;
	Op *prev, *next;     /* in its section or body */
	Use *in;
	int n_in;
	Value **out;         /* always op_info[kind].n_out of them unless variadic (split) */
	int n_out;
	Attr *attrs;
	Symbol *sym;         /* ops flagged SYM */
	Unit *unit;          /* ops flagged UNIT */
	const Loc *loc;      /* never NULL */
	/* fused: args[i] stands for in[i] inside body; the body ends with a yield */
	Value **args;
	Op *body_first, *body_last;
	Op *parent;          /* of ops in a body */
	int64_t order;       /* position in its section after ir_number(); scratch for passes */
};

typedef enum OpFlags {
	EW = 1 << 0,       /* elementwise with NumPy broadcasting; may stand in a fused body */
	COM = 1 << 1,      /* commutative */
	VIEW = 1 << 2,     /* result 0 is operand 0's bytes, no code */
	EFFECT = 1 << 3,   /* kept even when unused, never merged or reordered against each other */
	COMM = 1 << 4,     /* a collective */
	SYM = 1 << 5,      /* names a symbol */
	UNIT = 1 << 6,     /* names a unit */
	VARIN = 1 << 7,    /* any number of operands from n_in_min on */
	VAROUT = 1 << 8,   /* the number of results follows from attributes, unit or operands */
	INPLACE = 1 << 9,  /* result 0 may overwrite operand 0 when that dies here and sizes agree */
	RNG = 1 << 10,     /* reads the step's random counter; equal ops are equal values */
	SRC = 1 << 11,     /* no operands: input, param, const */
	CHEAP = 1 << 12,   /* recomputing it costs less than keeping it: remat and fuse may clone it */
} OpFlags;

typedef struct OpInfo {
	const char *text;
	int n_in_min, n_in_max; /* n_in_max operands may be absent from n_in_min on */
	int n_out;
	unsigned flags;
	Level level;         /* first level where it is legal */
	Level last;          /* last level where it is legal */
	const char *attrs;   /* "axis:i eps:f shape:I approx:s to:d"; upper case = list; ? after = optional */
	const char *doc;     /* one line: meaning */
} OpInfo;
extern const OpInfo op_info[OP_COUNT];
bool op_from_text(const char *text, OpKind *out);
Stream op_stream(OpKind kind); /* of collectives */
bool op_blocks(OpKind kind);     /* a collective that ends before the next op begins: it is not waited for */

struct Module {
	Arena *arena;
	Arena *ops;          /* of ops, their operands and values: a new one after ir_compact */
	const char *name;    /* "gpt-tiny" */
	const char *file;    /* as the user named it, for messages */
	Level level;
	Variant variant;
	Sync sync;
	Symbol **symbols; int n_symbols, cap_symbols;
	Unit **units; int n_units, cap_units;
	Op *first[SEC_COUNT], *last[SEC_COUNT];
	int n_values;        /* ids handed out so far */
	Map *symbol_by_name, *interned, *value_names;
	int64_t act_bytes, input_bytes, state_bytes, work_bytes; /* PLAN: sizes of the arenas */
	int64_t world;       /* the only number of ranks that the program runs at (oss, sharded_ddp); 0 = any */
	Train *train;        /* from pass optimizer on; NULL: before it, and of programs that only evaluate */
	struct RewriteTrace *trace; /* of --check-passes: what rewrite.c applies; NULL = nobody asks; not printed */
	int64_t batch;       /* B: samples per micro-batch and rank; 0 when no input has a sample axis */
	Value poison;        /* type TYPE_NONE: result of an op that could not be typed */
};

/* m->train; where there is none, one of zeros. */
const Train *ir_train(const Module *m);
/* Whether the step ends in this module: gradients are complete, parameters are updated. */
static inline bool ir_ends_step(const Module *m)
{
	return m->variant == VARIANT_ONLY || m->variant == VARIANT_LAST;
}
/* Whether flat gradients are summed over micro-batches. */
static inline bool ir_sums_flats(const Module *m)
{
	return m->sync == SYNC_LAST && m->variant != VARIANT_ONLY;
}
/* Whether reduced gradients are: they are kept apart from the flat gradients, whose memory is used again. */
static inline bool ir_sums_reduced(const Module *m)
{
	return m->sync == SYNC_EVERY && m->variant != VARIANT_ONLY;
}
/* Whether an earlier micro-batch of the step left something. */
static inline bool ir_goes_on(const Module *m)
{
	return m->variant == VARIANT_MIDDLE || m->variant == VARIANT_LAST;
}
/* Whether the unit stays gathered from the first micro-batch to the last. */
static inline bool ir_is_carried(const Module *m, const Unit *u)
{
	return ir_sums_flats(m) && strategy_info[u->strategy].kept;
}

/* The modules of a step of several micro-batches, by Variant; those that were not made are NULL. */
typedef struct Variants { Module *of[VARIANT_COUNT]; } Variants;

/* ---- graph.c ---- */

Module *ir_module_new(const char *name);
void ir_module_free(Module *m);
const char *ir_intern(Module *m, const char *s);
/* Adds a symbol; a name already taken gets a suffix ".1", ".2" (the returned name tells). */
Symbol *ir_add_symbol(Module *m, SymbolKind kind, const char *name, Type type);
Symbol *ir_find_symbol(const Module *m, const char *name);
Unit *ir_add_unit(Module *m, const char *name, Strategy strategy); /* owner -1 */
Unit *ir_find_unit(const Module *m, const char *name);

/* Where new ops go and what they are said to come from. */
typedef struct Builder {
	Module *m;
	SectionKind section;
	Op *before;          /* NULL: at the end of the section */
	const Loc *loc;
	Diag *diag;          /* not NULL: a shape error is reported here as the user's and the result is
	                        m->poison; NULL: a shape error is a compiler bug (ice) */
	Symbol *sym; Unit *unit; /* given to the next op that wants one, then cleared */
	const char *name;    /* of the next op's first result, then cleared; else made from the op's text */
} Builder;

/* Appends an op, infers its result types by its shape rule.  Any poison operand gives poison.
 * ir_emit returns result 0 (NULL for ops without results); ir_emit_typed states the type of result 0
 * for ops whose shape rule is "given". */
Value *ir_emit(Builder *b, OpKind kind, int n_in, Value *const *in, Attr *attrs);
Value *ir_emit_typed(Builder *b, OpKind kind, int n_in, Value *const *in, Attr *attrs, Type type);
/* given: the declared types of all results, or NULL.  VAROUT ops get as many results as their attribute
 * sizes, their unit's flats or their operands say.  Returns the op, NULL on a shape error (results poisoned). */
Op *ir_emit_op(Builder *b, OpKind kind, int n_in, Value *const *in, Attr *attrs, const Type *given);
Value *ir_emit1(Builder *b, OpKind kind, Value *x);
Value *ir_emit2(Builder *b, OpKind kind, Value *x, Value *y);
Value *ir_emit3(Builder *b, OpKind kind, Value *x, Value *y, Value *z);
Value *ir_const_float(Builder *b, DType dtype, double v);               /* rank 0 */
Value *ir_const_int(Builder *b, DType dtype, int64_t v);                /* rank 0 */
Value *ir_const_full(Builder *b, Type type, double v);                  /* splat */
Value *ir_reshape(Builder *b, Value *x, int rank, const int64_t *dim);  /* x itself when equal */
Value *ir_transpose(Builder *b, Value *x, const int *perm);             /* x itself when identity */
Value *ir_broadcast(Builder *b, Value *x, const Type *to);              /* x itself when equal */
Value *ir_cast(Builder *b, Value *x, DType to);                         /* x itself when equal */
Value *ir_reduce(Builder *b, OpKind kind, Value *x, int n, const int64_t *axes, bool keepdims);
/* Sums x down to the shape `to` that had been broadcast to x's: the gradient of broadcasting. */
Value *ir_unbroadcast(Builder *b, Value *x, const Type *to);
Value *ir_read(Builder *b, Symbol *sym);                                /* param or read, by sym->kind */

static inline Value *op_in(const Op *op, int i) { return i < op->n_in ? op->in[i].value : NULL; }
Value *op_residual(const Op *op);                 /* r of a norm, ds of its gradient; NULL = none, or another op */
void ir_set_in(Op *op, int i, Value *v);          /* keeps use lists */
void ir_set_n_in(Module *m, Op *op, int n, Value *const *in); /* replaces all operands */
Op *ir_user(const Value *v, OpKind kind);          /* some op of the kind that reads v, NULL = none */
void ir_replace_uses(Value *old, Value *now);     /* every use of old becomes now */
void ir_remove(Module *m, Op *op);                /* results must be unused; drops its operand uses */
void ir_move_before(Module *m, Op *op, Op *before); /* within or across sections; before NULL = cannot */
void ir_move_to_end(Module *m, Op *op, SectionKind s);
Op *ir_clone(Builder *b, const Op *op, PtrMap *map); /* operands mapped through map when present there;
                                                        results entered into map; bodies cloned too */
void ir_number(Module *m);                        /* sets op->order, 0.. per section */
bool op_has_effect(const Op *op);
bool op_is_read(const Op *op);                    /* some result has a use */
void ir_sweep(Module *m, SectionKind s);          /* removes, last first, what has no effect and is not read */
/* An f32 parameter in 16 bits: at SHARD no code but the dtype of its view, where all that read the
 * parameter read it so (Flat.param). */
bool op_is_param_cast(const Op *op);
/* Every rank holds the unit whole, as it is read: there is nothing to gather. */
bool unit_is_resident(const Unit *u);
bool unit_gathers_rounded(const Unit *u); /* some flat from f32 to 16 bits */
bool unit_has_master(const Unit *u);
void ir_rename(Module *m, Value *v, const char *name);

#define IR_FOR_OPS(m, s, op) for (Op *op = (m)->first[s]; op; op = op->next)
#define IR_FOR_OPS_SAFE(m, s, op) \
	for (Op *op = (m)->first[s], *op##_next; op && (op##_next = op->next, 1); op = op##_next)

/* Body of a fused op: ops are emitted with b->before ignored into op's body by ir_body_emit. */
Value *ir_body_emit(Module *m, Op *fused, OpKind kind, int n_in, Value *const *in, Attr *attrs);
/* The same for what nobody has checked: false, and a sentence in err, where operands or attributes do not fit.
 * dtype: of a constant.  *out is NULL for a yield. */
bool ir_body_try(Module *m, Op *fused, OpKind kind, int n_in, Value *const *in, Attr *attrs, DType dtype, Value **out,
	Buf *err);
Op *ir_emit_fused(Builder *b, int n_in, Value *const *in, int n_out, const Type *out); /* empty body */

/* compact.c: moves ops and values to memory of their own, in the order of their lists, and renumbers values so: no
 * pointer or id from before is good any longer.  The module is one that the verifier accepts. */
void ir_compact(Module *m);

/* ---- shape.c: the shape column of ops.def ---- */

/* Fills out[0..n_out) from op's operands and attributes.  `given` is the declared type for ops that
 * cannot infer.  On a mismatch writes a sentence with both values into err and returns false. */
typedef bool ShapeFn(Module *m, const Op *op, const Type *given, Type *out, Buf *err);
bool ir_infer(Module *m, const Op *op, const Type *given, Type *out, Buf *err);

/* ---- print.c, parse.c ---- */

void ir_print(FILE *f, const Module *m);
char *ir_text(const Module *m, Arena *a);        /* what ir_print prints */
void ir_print_op(FILE *f, const Module *m, const Op *op);
Module *ir_parse(const char *file, const char *text, Diag *d); /* NULL after reporting errors */
/* A text of one module, which becomes `only` whatever variant it is, or of all four of a step, in any order.  False,
 * and none of them, after reporting errors. */
bool ir_parse_program(const char *file, const char *text, Variants *out, Diag *d);
/* Train block, units and symbols: what all modules of a step have in common. */
char *ir_declarations(const Module *m, Arena *a);
void ir_print_dot(FILE *f, const Module *m);
void ir_print_json(FILE *f, const Module *m);

/* ---- verify.c ---- */

/* Structure, dominance, types, levels, attributes, effects.  after: name of the pass to blame; a
 * violation after a pass is an internal error, in a parsed file (after = NULL) the user's, reported
 * with its op.  Returns false when something was reported. */
bool ir_verify(Module *m, const char *after, Diag *d);

/* verify_plan.c: of a module at PLAN that is right otherwise, what its schedule breaks: the rule's name, the
 * collective to blame and a sentence.  Returns how many were found, at most max; the first is out[0]. */
typedef struct PlanViolation { const char *rule; const Op *op; const char *text; } PlanViolation;
int ir_verify_plan(const Module *m, Arena *a, PlanViolation *out, int max);

/* ---- eval.c: the f64 reference of every op (column eval of ops.def) ----
 *
 * The oracle of the tests and the constant folder.  Floats are computed in f64, integers in int64. */
typedef struct EvalTensor {
	Type type;
	union { double *f; int64_t *i; }; /* by class of type.dtype; bool is int 0/1 */
} EvalTensor;
typedef struct EvalEnv EvalEnv;
EvalEnv *eval_new(Module *m, Arena *a);
/* round: results are rounded to their dtype after each op (constant folding); else only 16-bit ones are, and
 * others are kept in f64. */
void eval_set_round(EvalEnv *e, bool round);
/* Nothing is rounded, not even to 16 bits: what a module means, whatever dtypes it is computed in. */
void eval_set_exact(EvalEnv *e, bool exact);
/* Dropout multiplies all elements by one number of its p and id: what it means wherever its elements lie. */
void eval_set_even_dropout(EvalEnv *e, bool even);
void eval_bind(EvalEnv *e, const Symbol *sym, EvalTensor t);  /* inputs, parameters, buffers, states */
EvalTensor *eval_symbol(EvalEnv *e, const Symbol *sym);       /* what is bound or was written */
/* v counts as the constant t from now on, whatever defines it. */
void eval_assume(EvalEnv *e, const Value *v, EvalTensor t);
/* What dropout's numbers depend on besides the op; all 0 before.  sample0: global number of row 0. */
void eval_set_random(EvalEnv *e, uint64_t seed, uint64_t step, uint64_t sample0);
/* v is t wherever eval_section comes to it, whatever its op computes. */
void eval_pin(EvalEnv *e, const Value *v, EvalTensor t);
/* An op that has no rule, or lacks an operand, leaves its results uncomputed. */
void eval_section(EvalEnv *e, SectionKind s);
EvalTensor *eval_value(EvalEnv *e, const Value *v);           /* NULL before it was computed */
/* Evaluates v from constants alone (recursively, memoised); NULL when it depends on anything else or
 * some op on the way cannot be evaluated, or more than max_numel elements would be held by one value. */
EvalTensor *eval_constant(EvalEnv *e, Value *v, int64_t max_numel);
/* Whether eval_constant has given up: all that it was asked for took too many steps. */
bool eval_exhausted(const EvalEnv *e);
typedef bool EvalFn(EvalEnv *e, const Op *op, EvalTensor *const *in, EvalTensor *const *out);
EvalTensor eval_alloc(EvalEnv *e, Type t);

#endif
