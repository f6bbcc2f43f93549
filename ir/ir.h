/* ir/ir.h: the IR of shardc, the same at all levels.  Grammar and index of ops: docs/ir.md.
 *
 * A Module holds symbols (what outlives a step: parameters, buffers, constant data, states; and inputs), units (groups
 * of parameters) and four sections of SSA ops.  Ops and values live in m->ops, which ir_compact replaces; everything
 * else lives in m->arena.  Nothing is freed alone.  Printing is the exact inverse of parsing. */
#ifndef SHARDC_IR_H
#define SHARDC_IR_H

#include "base/base.h"
#include "base/collectives.h"
#include "base/groups.h"
#include "base/layout.h"
#include "base/sizes.h"
#include "base/variant.h"

enum { IR_MAX_RANK = 8 };

/* Later levels allow more ops; op_info[].level is the first level at which an op is legal. */
typedef enum Level { LEVEL_MODEL, LEVEL_TRAIN, LEVEL_SHARD, LEVEL_PLAN, LEVEL_COUNT } Level;
typedef enum SectionKind { SEC_FORWARD, SEC_BACKWARD, SEC_UPDATE, SEC_EVAL, SEC_COUNT } SectionKind;
extern const char *const level_text[LEVEL_COUNT]; /* "MODEL" */
extern const char *const section_text[SEC_COUNT]; /* "forward" */

extern const char *const variant_text[VARIANT_COUNT];
extern const char *const sync_text[SYNC_COUNT];

typedef struct Module Module;
typedef struct Symbol Symbol;
typedef struct Unit Unit;
typedef struct Op Op;
typedef struct Value Value;

/* A position in the text that a module was read from; lines and columns count from 1, columns in bytes.  line 0: it was
 * not read.  Nothing that is printed or emitted depends on it. */
typedef struct TextPlace { int line, column; } TextPlace;

/* ---- type.c ---- */

typedef enum TypeKind {
	TYPE_NONE,        /* the type of a value that could not be typed; any use of it is accepted silently */
	TYPE_TENSOR,      /* f32[2,3] */
	TYPE_FLAT,        /* flat @unit    : all parameters of a unit, gathered */
	TYPE_SHARD,       /* shard @unit   : this rank's part of a flat */
	TYPE_ASYNC_FLAT,  /* async flat @unit : a flat that a collective gives, before its wait */
	TYPE_ASYNC_SHARD, /* async shard @unit */
	TYPE_EVENT,       /* event : a point of the compute stream */
} TypeKind;

/* Only packed convolution weights have a layout other than row-major; kernels/layouts.def has its name and size.
 * Activations with channels last are plain tensors whose shape says so. */
typedef struct Type {
	TypeKind kind : 8;
	DType dtype : 8;
	int rank : 8;
	int flat : 8;       /* which flat of the unit (0 = trainable f32, ...) */
	int64_t dim[IR_MAX_RANK];
	const char *layout; /* NULL = row-major; else a packed layout's interned name: f32[64,3,7,7]:Ohwi16o */
	Unit *unit;         /* for kinds of flats and shards */
} Type;

Type type_tensor(DType dtype, int rank, const int64_t *dim);
static inline Type type_scalar(DType dtype) { return type_tensor(dtype, 0, NULL); }
bool type_equal(const Type *a, const Type *b);
bool type_same_shape(const Type *a, const Type *b);
bool type_same_matrix(const Type *a, const Type *b); /* one matrix of equal dims, leading dims of 1 apart */
int64_t type_numel(const Type *t);           /* number of elements of a tensor; 1 for rank 0 */
int64_t type_columns(const Type *t, int axis); /* of the dims from axis on */
int64_t type_bytes(const Type *t);           /* of a row-major tensor */
void type_strides(const Type *t, int64_t *stride); /* row-major, in elements */
const char *type_str(Arena *a, const Type *t); /* the IR spelling, for messages and the printer */
const char *ir_unit_str(Arena *a, const Unit *u);  /* "@h.0", quoted when the name needs it */
bool ir_is_name_char(char c);                      /* may stand in a %value name or a bare @unit name */
/* The shape that two shapes broadcast to by NumPy's rules; false if they do not broadcast. */
bool type_broadcast(const Type *a, const Type *b, Type *out);

/* ---- locations ---- */

/* Where an op came from, in words that the user knows.  role says what the compiler made from that node. */
typedef struct Loc {
	const char *node;  /* ONNX node name, or "#17" when the node has none */
	const char *onnx;  /* ONNX op type, "" when none */
	const char *scope; /* dotted module scope of the framework ("h.0.attn"), "" when unknown */
	const char *role;  /* "" | "grad" | "remat" | "update" | "eval" | a pass name */
	int number;        /* of the names above in the module's text, whatever the role; passes keep it, so that dumps can
	                      be compared.  0 = there are no names */
} Loc;
/* Text form: loc(7 grad), and 7 = "node":"MatMul"@"h.0.attn" at the module's end; empty parts are left out. */
const Loc *loc_new(Module *m, const char *node, const char *onnx, const char *scope, const char *role);
const Loc *loc_with_role(Module *m, const Loc *loc, const char *role);
/* The location as messages begin: "gpt2.onnx: node \"/h.0/MatMul\" (MatMul)", or "gradient of node .." if role is
 * grad. */
const char *loc_where(Module *m, const Loc *loc);
/* Where the text of the module says something, as messages begin: "plan.ir:17:5", "plan.ir" if that was not read.  The
 * model's file, if there is no text. */
const char *ir_where(const Module *m, TextPlace at);

/* ---- attributes ---- */

typedef enum AttrKind { ATTR_INT, ATTR_FLOAT, ATTR_STR, ATTR_INTS, ATTR_FLOATS, ATTR_DTYPE } AttrKind;
/* A list of attributes, sorted by name.  Floats are printed so that reading them gives the same bits. */
typedef struct Attr {
	const char *name;
	AttrKind kind;
	int n; /* number of ints or floats */
	union { int64_t i; double f; const char *s; const int64_t *ints; const double *floats; DType dtype; };
	struct Attr *next;
} Attr;

Attr *attr_int(Module *m, Attr *list, const char *name, int64_t v); /* these functions return the new head of the
                                                                       list */
Attr *attr_float(Module *m, Attr *list, const char *name, double v);
Attr *attr_str(Module *m, Attr *list, const char *name, const char *v);
Attr *attr_ints(Module *m, Attr *list, const char *name, int n, const int64_t *v);
Attr *attr_floats(Module *m, Attr *list, const char *name, int n, const double *v);
Attr *attr_dtype(Module *m, Attr *list, const char *name, DType v);
const Attr *attr_find(const Attr *list, const char *name);
int64_t attr_get_int(const Attr *list, const char *name, int64_t otherwise);
double attr_get_float(const Attr *list, const char *name, double otherwise);
const char *attr_get_str(const Attr *list, const char *name, const char *otherwise);
Attr *attr_without(Module *m, const Attr *list, int n, const char *const *names); /* a copy without these */
bool attr_equal(const Attr *a, const Attr *b); /* compares whole lists */

/* ---- symbols and units ---- */

typedef enum SymbolKind {
	SYM_INPUT,  /* fed each micro-batch: samples, labels; const inputs */
	SYM_OUTPUT, /* an output of the ONNX graph */
	SYM_PARAM,  /* trained, or frozen by the user (trainable = 0) */
	SYM_BUFFER, /* not trained, kept from step to step and saved: statistics of batch norm */
	SYM_DATA,   /* a constant tensor of the model that is too big to print; read-only */
	SYM_STATE,  /* made by the compiler: moments and counters of the optimizer */
	SYM_SCALE,  /* made by the compiler: of weights that are gathered in 8 bits; f8_scales sets it in each step */
} SymbolKind;
enum { SYM_COUNT = SYM_SCALE + 1 };
extern const char *const symbol_kind_text[SYM_COUNT]; /* "input" */

/* Where a symbol's initial contents come from: bytes in a file, random numbers, or a fill value. */
typedef struct Source {
	const char *file;   /* as the user named it, or relative to the model; NULL = not from a file */
	int64_t offset, bytes;
	DType dtype;        /* of the bytes in the file */
	int rank;           /* rank of the tensor in the file */
	int64_t dim[IR_MAX_RANK];
	int perm[IR_MAX_RANK]; /* our dim[i] = the file's dim[perm[i]]; the identity if the file has our order */
	double fill;
	const char *init;   /* "uniform" in (-scale, scale), or "normal" with standard deviation scale; NULL = not random */
	double scale;
	int64_t seed;       /* the elements follow from it, the symbol's name and their index */
} Source;

struct Symbol {
	SymbolKind kind;
	const char *name;    /* the framework's name where it is known; unique in the module */
	int index;           /* in m->symbols */
	const char *onnx;    /* the name in the ONNX file, for writing back */
	const char *narrow;  /* SYM_INPUT, SYM_OUTPUT: the type of base/narrow.def that the model has, or NULL */
	Type type;
	Source src;
	const char **alias;  /* SYM_PARAM: further names, when modules share it; interned */
	int n_aliases;
	bool trainable;      /* SYM_PARAM */
	int group;           /* SYM_PARAM: number of its --param-group, from 1; 0 = none */
	bool batched;        /* SYM_INPUT: its first axis is the samples */
	bool pads;           /* SYM_INPUT, where a program has several sizes: short samples are filled up with */
	double pad;          /* this number, */
	bool pad_free;       /* any number up to pad + 1 would do; */
	const char *pad_why; /* pad is taken for this reason; or, if not pads, why there is none (NULL: none is known) */
	bool narrowed;       /* SYM_BUFFER: stored in fewer bits than the model has; */
	DType saved;         /* checkpoints have this dtype */
	Unit *unit;          /* from level SHARD on: the unit of a SYM_PARAM or of a sharded SYM_STATE */
	int flat;
	int member;          /* SYM_PARAM with a unit: its index in unit->params */
	int64_t offset;      /* elements from the start of the flat; a multiple of 64 */
	const char *param;   /* SYM_STATE of one parameter: its name; SYM_SCALE: the name of the first; else NULL */
	int64_t n_params;    /* SYM_SCALE: of so many parameters that follow each other in their flat */
	TextPlace at;
};

enum { UNIT_MAX_FLATS = 4 };
typedef LayoutFlat Flat;

struct Unit {
	const char *name;    /* "root", "h.0" */
	Strategy strategy;
	int owner;           /* for oss and sharded_ddp: the rank that updates the unit; else -1 */
	int reshard_after_forward; /* 0: stays gathered into backward, 1: does not; -1: as its strategy does */
	int forward_prefetch, backward_prefetch; /* units ahead of its use that it is gathered; -1: as the others */
	int param_dtype, reduce_dtype; /* a DType that was asked for it; -1: as the others */
	int offload;         /* a LayoutOffload that was asked for it; -1: that of the train block (ir_offload) */
	int f8;              /* until pass fp8: a bit for each flat that only products read which may read 8-bit floats */
	Flat flat[UNIT_MAX_FLATS];
	int n_flats;
	Symbol **params;     /* in rising order of offset within each flat */
	int n_params;
	int index;           /* in m->units, which is in the order of traversal; root is last */
	TextPlace at;
};

/* ---- the training program ---- */

/* --comm-hook=FILE.c:FUNCTION: a function of the user's reduces gradients. */
typedef struct Hook {
	const char *file, *function; /* file: absolute path; NULL: there is no hook */
	int64_t send, keep;          /* memory that the hook gets: bytes per element of a flat gradient */
} Hook;

/* What a training program consists of besides its ops: everything that decides what is emitted for it.  Pass optimizer
 * fills it from the options. */
typedef struct Train {
	const char *optimizer;       /* "adamw", "sgd:momentum,nesterov" */
	bool norm;                   /* the norm of gradients is computed and logged */
	double clip;                 /* gradients may be clipped by their p-norm, p = clip, which may be infinity; 0 = they
	                                may not */
	bool clip_value;             /* single gradients may be clipped by value */
	bool no_decay_1d;            /* weights of at most one dimension do not decay */
	ParamGroup *group;           /* Symbol.group is an index into these, counted from 1 */
	int n_groups;
	double loss_scale;           /* 0 = none; for a dynamic one, its first value */
	int64_t growth_interval;     /* for a dynamic loss scale: good steps before it doubles; 0 = it never changes */
	bool shift;                  /* the loss shifts labels by itself */
	bool accum;                  /* a step may have several micro-batches; Module.sync says when gradients are
	                                reduced */
	bool check_nan;              /* every result in a step is checked for NaN and infinity */
	LayoutOffload offload;       /* of units that say none of their own */
	bool cuda;                   /* the memory that kernels get is planned for a GPU */
	bool tf32;                   /* f32 products on GPUs round their operands to TF32 */
	Hook hook;
	const char *options;         /* canonical text of the options that the program was made with, for checkpoints */
	TextPlace at;
} Train;

/* ---- values and ops ---- */

/* An operand slot of an op, which is also a node in the value's list of uses. */
typedef struct Use {
	Value *value; /* NULL: an optional operand that is absent, printed as _ */
	Op *op;
	struct Use *prev, *next;
} Use;

typedef enum Region {
	REGION_NONE,  /* not planned, or needs no memory */
	REGION_ACT,   /* @act+N    : byte offset in the activation arena */
	REGION_INPUT, /* @input+N  : byte offset in the input buffers, which are fixed */
	REGION_PARAM, /* @param:unit.flat+N  : inside a gathered unit */
	REGION_GRAD,  /* @grad:unit.flat+N   : inside a unit's flat gradient */
	REGION_STATE, /* @state+N  : buffers, data and unsharded states */
	REGION_HOST,  /* @host+N   : of GPUs, byte offset in memory of the host for values that offload copies there */
} Region;
enum { REGION_COUNT = REGION_HOST + 1 };
extern const char *const region_text[REGION_COUNT]; /* "act"; "" for REGION_NONE */
typedef struct Place {
	Region region : 8;
	int flat : 8;
	Unit *unit;
	int64_t offset; /* bytes */
} Place;

struct Value {
	Op *op;        /* the op that defines it */
	int index;     /* among the op's results */
	const char *name; /* without %, unique in the module; NULL inside a fused body, printed $k */
	int id;        /* unique in the module, below m->n_values; indexes side tables */
	Type type;
	Place place;   /* set at PLAN */
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
	Op *prev, *next;     /* neighbours in the section or body */
	Use *in;
	Value **out;         /* always op_info[kind].n_out of them, unless the op is VAROUT */
	int n_in, n_out;
	TextPlace at;
	Attr *attrs;
	Symbol *sym;         /* for ops flagged SYM */
	Unit *unit;          /* for ops flagged UNIT */
	const Loc *loc;      /* never NULL */
	/* fused: args[i] stands for in[i] inside the body, which ends with a yield */
	Value **args;
	Op *body_first, *body_last;
	Op *parent;          /* for ops in a body, the fused op */
	Module *body;        /* loop: what each step does (loop.c) */
	int64_t order;       /* position in its section after ir_number(); passes may use it as scratch */
};

typedef enum OpFlags {
	EW = 1 << 0,       /* elementwise with NumPy broadcasting; allowed in a fused body */
	COM = 1 << 1,      /* commutative */
	VIEW = 1 << 2,     /* result 0 is the bytes of operand 0; needs no code */
	EFFECT = 1 << 3,   /* kept even when unused; never merged, never reordered against other effects */
	COMM = 1 << 4,     /* a collective */
	SYM = 1 << 5,      /* names a symbol */
	UNIT = 1 << 6,     /* names a unit */
	VARIN = 1 << 7,    /* n_in_min or more operands, without a limit */
	VAROUT = 1 << 8,   /* the number of results follows from attributes, unit or operands */
	INPLACE = 1 << 9,  /* result 0 may overwrite operand 0 if that dies here and both have the same size */
	RNG = 1 << 10,     /* draw, and others with an attribute p, read the step's random counter; equal ops have
	                      equal values */
	SRC = 1 << 11,     /* no operands: input, param, const */
	CHEAP = 1 << 12,   /* recomputing it costs less than keeping its result: remat and fuse may clone it */
	WITHIN = 1 << 13,  /* of operand 0 it computes each slice along the axes that it does not work on alone, and keeps
	                      all axes; what it works on is its attribute axis, unless ir/samples.c says otherwise */
	CHECKED = 1 << 15, /* reads indices, labels, lengths or numbers whose range is checked in every step: a message
	                      names the op's node */
	THROUGH = 1 << 14, /* rounds, and its gradient is that of its operands within a range, as if it did not */
} OpFlags;

typedef struct OpInfo {
	const char *text;
	int n_in_min, n_in_max; /* operands from n_in_min on may be absent */
	int n_out;
	unsigned flags;
	Level level;         /* first level at which it is legal */
	Level last;          /* last level at which it is legal */
	const char *attrs;   /* "axis:a eps:f shape:I approx:s to:d last:b k:i"; upper case = list; ? at the end = optional;
	                        a: an axis of operand 0; b: 0 or 1 */
	const char *doc;     /* its meaning in a line */
} OpInfo;
extern const OpInfo op_info[OP_COUNT];
bool op_from_text(const char *text, OpKind *out);
RtCollectiveKind op_collective(const Op *op); /* of those whose flags have COMM */
/* Of the collective that ops of this kind are: the stream that it runs on, RT_STREAMS if they are none. */
RtStream op_stream(OpKind kind);
bool op_reduces(OpKind kind);    /* gradients of a unit */
bool op_blocks(OpKind kind);     /* a collective that ends before the next op begins, so it has no wait */

struct Module {
	Arena *arena;
	Arena *ops;          /* ops, their operands and values; ir_compact makes a new one */
	const char *name;    /* "gpt-tiny" */
	const char *file;    /* as the user named it, for messages */
	const char *text;    /* the file with the text that the module was read from; NULL = it was not, or the user has not
	                        seen the text */
	TextPlace at;
	Level level;
	Variant variant;
	Sync sync;
	Symbol **symbols; int n_symbols, cap_symbols;
	Unit **units; int n_units, cap_units;
	Op *first[SEC_COUNT], *last[SEC_COUNT];
	int n_values;        /* ids given out so far */
	int n_locs;          /* the greatest Loc.number */
	Map *symbol_by_name, *unit_by_name, *interned;
	Map *symbol_names, *value_names; /* names that are taken -> the last number behind each */
	int64_t act_bytes, input_bytes, state_bytes, work_bytes, host_bytes; /* PLAN: sizes of the arenas */
	int64_t world;       /* the only number of ranks that the program can run with (oss, sharded_ddp); 0 = any */
	Train *train;        /* set by pass optimizer; NULL before it, and for programs that only evaluate */
	struct RewriteTrace *trace; /* for --check-passes: records what rewrite.c applies; NULL = off; not printed */
	int64_t batch;       /* B: samples per micro-batch and rank; 0 when no input has a sample axis */
	Value poison;        /* of TYPE_NONE: the result of an op that could not be typed */
	Module *outer;       /* of the body of a loop: the module in which the loop stands; else NULL */
};

/* m->train or, if that is NULL, a block of zeros. */
const Train *ir_train(const Module *m);
LayoutOffload ir_offload(const Module *m, const Unit *u); /* what of the unit lies elsewhere */
/* Whether the module ends the step: its gradients are complete and it updates parameters. */
static inline bool ir_ends_step(const Module *m)
{
	return m->variant == VARIANT_ONLY || m->variant == VARIANT_LAST;
}
/* Whether flat gradients are summed over micro-batches. */
static inline bool ir_sums_flats(const Module *m)
{
	return m->sync == SYNC_LAST && m->variant != VARIANT_ONLY;
}
/* Whether reduced gradients are summed over micro-batches.  The sums then have memory apart from the flat gradients,
 * whose memory is used again. */
static inline bool ir_sums_reduced(const Module *m)
{
	return m->sync == SYNC_EVERY && m->variant != VARIANT_ONLY;
}
/* Whether the module continues a step: earlier micro-batches left gradients or gathered units to it. */
static inline bool ir_goes_on(const Module *m)
{
	return m->variant == VARIANT_MIDDLE || m->variant == VARIANT_LAST;
}
/* Whether the unit stays gathered from the first micro-batch to the last. */
bool ir_is_carried(const Module *m, const Unit *u);

/* The modules of a step, one for each micro-batch variant; NULL = not made. */
typedef struct Variants { Module *of[VARIANT_COUNT]; } Variants;
/* A program: its plans for n sizes of the data, from the smallest to the largest; n = 1 where there is one. */
typedef struct Sizes {
	int n;
	Variants of[SIZES_MAX];
	const char *name[SIZES_MAX]; /* "seq=128"; NULL where there is one */
} Sizes;

/* ---- program.c: what traces say of a program ---- */

/* The unit that the op, or the collective that it waits for, is about, or whose parameters or gradients it has; NULL:
 * none.  At PLAN. */
const Unit *op_unit(const Op *op);
/* "matmul %qkv", "all_gather @h.1", also of the wait for it; in the arena. */
const char *op_title(const Op *op, Arena *a);
/* Over kinds, units and results of all ops of all modules in order, with the shapes of tensors: programs that differ in
 * these have other numbers. */
uint64_t ir_program_hash(const Sizes *program);

/* ---- graph.c ---- */

Module *ir_module_new(const char *name);
void ir_module_free(Module *m);
/* copy.c: a copy of a module below level SHARD, which must live longer: the copy shares its strings. */
Module *ir_copy(const Module *m);
const char *ir_intern(Module *m, const char *s);
/* Adds a symbol.  A name that is taken gets a suffix ".1", ".2", ..; see the result's name. */
Symbol *ir_add_symbol(Module *m, SymbolKind kind, const char *name, Type type);
Symbol *ir_find_symbol(const Module *m, const char *name);
Unit *ir_add_unit(Module *m, const char *name, Strategy strategy); /* fields that may be -1 are */
Unit *ir_find_unit(const Module *m, const char *name);

/* Where new ops are put, and the location that they get. */
typedef struct Builder {
	Module *m;
	SectionKind section;
	Op *before;          /* NULL: put ops at the end of the section */
	const Loc *loc;
	Diag *diag;          /* not NULL: shape errors are the user's; they are reported here, and the result is m->poison;
	                        NULL: a shape error is a bug of the compiler (ice) */
	Symbol *sym; Unit *unit; /* taken by the next op that needs one, then cleared */
	Module *body;        /* the same, of a loop */
	const char *name;    /* for the next op's first result, then cleared; NULL: a name is made from the op's text */
} Builder;

/* Appends an op and infers the types of its results by its shape rule.  If an operand is poison, so are the results.
 * ir_emit returns result 0 (NULL for ops without results).  ir_emit_typed states the type of result 0, for ops whose
 * shape rule is "given". */
Value *ir_emit(Builder *b, OpKind kind, int n_in, Value *const *in, Attr *attrs);
Value *ir_emit_typed(Builder *b, OpKind kind, int n_in, Value *const *in, Attr *attrs, Type type);
/* given: the declared types of all results, or NULL.  A VAROUT op gets as many results as its attribute sizes, its
 * unit's flats or its operands imply.  Returns the op; NULL after a shape error (the results are poison). */
Op *ir_emit_op(Builder *b, OpKind kind, int n_in, Value *const *in, Attr *attrs, const Type *given);
Value *ir_emit1(Builder *b, OpKind kind, Value *x);
Value *ir_emit2(Builder *b, OpKind kind, Value *x, Value *y);
Value *ir_emit3(Builder *b, OpKind kind, Value *x, Value *y, Value *z);
Value *ir_const_float(Builder *b, DType dtype, double v);               /* rank 0 */
Value *ir_const_int(Builder *b, DType dtype, int64_t v);                /* rank 0 */
Value *ir_const_full(Builder *b, Type type, double v);                  /* all elements are v */
Value *ir_reshape(Builder *b, Value *x, int rank, const int64_t *dim);  /* x itself when equal */
Value *ir_sum_so_far(Builder *b, const Op *accumulate);  /* what the accumulate of a product adds it to */
Value *ir_transpose(Builder *b, Value *x, const int *perm);             /* x itself when identity */
Value *ir_broadcast(Builder *b, Value *x, const Type *to);              /* x itself when equal */
Value *ir_cast(Builder *b, Value *x, DType to);                         /* x itself when equal */
Value *ir_reduce(Builder *b, OpKind kind, Value *x, int n, const int64_t *axes, bool keepdims);
/* Sums x, whose shape came from broadcasting `to`, down to the shape `to`: the gradient of a broadcast. */
Value *ir_unbroadcast(Builder *b, Value *x, const Type *to);
Value *ir_read(Builder *b, Symbol *sym);                                /* emits param or read, depending on
                                                                           sym->kind */

static inline Value *op_in(const Op *op, int i) { return i < op->n_in ? op->in[i].value : NULL; }
/* Whether the op reads the step's random counter. */
static inline bool op_draws(const Op *op)
{
	return op_info[op->kind].flags & RNG && (op->kind == OP_DRAW || attr_find(op->attrs, "p"));
}
Value *op_residual(const Op *op);                 /* r of a norm, ds of its gradient; NULL = it has none, or is another
                                                     op */
/* v as columns of a wider value: itself, or the operand of columns or the result of join. */
Value *value_whole(Value *v);
Value *value_stack(Value *v);                     /* the result of the stack that v is written into, or v itself */
int64_t value_start(const Value *v);              /* the elements from one of those, or from the operand of rows, to v;
                                                     else 0 */
int64_t value_offset(const Value *v);             /* the bytes from the first of the buffer that v shows, or is written
                                                     into, to v */
bool op_reads_heads(const Op *op, int i);         /* operand i is q, k or v, [B,T,H,D], of attention or its gradient */
bool op_reads_columns(const Op *op, int i);       /* operand i may be columns, but not as heads, of a wider value */
int64_t value_pitch(Value *v);                    /* elements from row to row, the last dim, of v as it lies */
bool value_is_joined(const Value *v);             /* it is written into rows of the result of the join that reads it */
Value *op_sum(const Op *op);                      /* what a product, or the gradient of a gather, or of the weights of a
                                                     loss head, is added to; NULL = nothing, or it is another op */
int recurrence_results(const Op *op);             /* how many a recurrence or its gradient has, by its cell */
int op_sum_result(const Op *op);                  /* the result of an op with op_sum that is the new sum */
void ir_set_in(Op *op, int i, Value *v);          /* also updates use lists */
void ir_set_n_in(Module *m, Op *op, int n, Value *const *in); /* replaces all operands */
bool ir_updates_early(const Module *m);           /* units are updated in backward (--update=backward) */
Op *ir_find_in_step(const Module *m, OpKind kind); /* the first in forward, backward or update; NULL = none */
Op *ir_user(const Value *v, OpKind kind);          /* an op of this kind that reads v; NULL = none */
void ir_replace_uses(Value *old, Value *now);     /* every use of old becomes now */
void ir_remove(Module *m, Op *op);                /* its results must be unused; removes it from use lists of its
                                                     operands */
void ir_move_before(Module *m, Op *op, Op *before); /* within or across sections; before must not be NULL */
void ir_move_to_end(Module *m, Op *op, SectionKind s);
void ir_move_behind(Module *m, Op *op, Op *at);    /* in at's section */
Op *ir_clone(Builder *b, const Op *op, PtrMap *map); /* map: old -> new value; operands found in it are replaced, and
                                                        the results are entered; a fused body is cloned, too */
/* A fused op with the body of op and other operands and results; map gets the values of the body. */
Op *ir_clone_fused(Builder *b, const Op *op, Value *const *in, const Type *out, PtrMap *map);
void ir_number(Module *m);                        /* sets op->order, counting from 0 in each section */
void ir_sweep(Module *m, SectionKind s);          /* removes ops without effect whose results are not read, the last
                                                     first */
void ir_rename(Module *m, Value *v, const char *name);
/* Gives op one more result, behind the others. */
Value *ir_add_result(Module *m, Op *op, Type type, const char *name);
/* Takes result i, which has no uses, from op. */
void ir_drop_result(Op *op, int i);

#define IR_FOR_OPS(m, s, op) for (Op *op = (m)->first[s]; op; op = op->next)
#define IR_FOR_OPS_SAFE(m, s, op) \
	for (Op *op = (m)->first[s], *op##_next; op && (op##_next = op->next, 1); op = op##_next)

/* Appends an op to the body of a fused op; shape errors are bugs of the compiler. */
Value *ir_body_emit(Module *m, Op *fused, OpKind kind, int n_in, Value *const *in, Attr *attrs);
/* The same for operands and attributes that were not checked: false, with a sentence in err, if they do not fit. dtype:
 * that of a constant.  *out is NULL for a yield. */
bool ir_body_try(Module *m, Op *fused, OpKind kind, int n_in, Value *const *in, Attr *attrs, DType dtype, Value **out,
	Buf *err);
/* Moves an elementwise op from its section to the end of a fused body; its result becomes a scalar without a name.  The
 * caller sees to operands and uses outside. */
void ir_body_move(Module *m, Op *fused, Op *op);
Op *ir_emit_fused(Builder *b, int n_in, Value *const *in, int n_out, const Type *out); /* with an empty body */

/* ---- loop.c: the bodies of loops ----
 *
 * A body is a module of its own, inside the arena of the one around it, with a forward section alone: arguments, which
 * stand for the loop's operands, pure ops, and a yield.  It is never freed or compacted alone, and has the level of the
 * module around it.  Names of values in it are its own. */

Module *ir_body_new(Module *outer);
const Module *ir_outermost(const Module *m);      /* m itself, unless it is a body */
int64_t loop_steps(const Op *loop);
int loop_states(const Op *loop);                  /* the first operands and results */
int loop_stacked(const Op *loop);                 /* the operands behind them, of which each step reads one slice */
Op *loop_yield(const Op *loop);                   /* the last op of the body; NULL: there is none */
Value **loop_arguments(const Op *loop, Arena *a); /* by operand; NULL: the body does not read it */
/* Adds an argument of this index; type: what the body sees of the operand. */
Value *loop_argument(Builder *b, int index, Type type);
Type loop_slice(const Type *stacked);             /* without its first axis */
Type loop_stack(const Type *slice, int64_t steps);
/* Adds a stacked result: v, of the body, in all steps. */
Value *loop_add_stacked(Module *m, Op *loop, Value *v, const char *name);
/* Drops stacked results that nothing reads, what only they need, and operands that the body does not read. */
void loop_trim(Module *m, Op *loop);
Module *loop_clone_body(Module *m, const Op *loop);

/* ---- op.c: what an op or a unit by itself tells ---- */

bool op_has_effect(const Op *op);
bool op_is_read(const Op *op);                    /* whether some result has a use */
/* Whether the op casts an f32 parameter to 16 bits.  At SHARD such a cast needs no code: if all readers of the
 * parameter read it so, its view has that dtype (Flat.param). */
bool op_is_param_cast(const Op *op);
/* The number of parameters that a view, or an accumulate, is of: its symbol and those that follow in the flat. */
int64_t op_n_params(const Op *op);
/* The type of n parameters from s on as one, which they are if they follow each other in the flat without gaps and
 * differ in their first dim at most; else false. */
bool params_type(const Symbol *s, int64_t n, Type *out);
/* The first of the weights whose scale a SYM_SCALE is, and the scale of a weight that is gathered in 8 bits; NULL:
 * there is none. */
Symbol *scale_param(const Module *m, const Symbol *scale);
Symbol *param_scale(const Module *m, const Symbol *param);
bool unit_is_scaled(const Unit *u); /* layout_is_scaled */
/* Whether every rank holds the whole unit in the dtype that it is read in, so that nothing is gathered. */
bool unit_is_resident(const Unit *u);
/* Whether its gathered copy, if it has one, is to stay from forward into backward. */
bool unit_is_kept(const Unit *u);
bool unit_gathers_rounded(const Unit *u); /* whether a gather rounds some flat from f32 to 16 bits */
bool unit_has_master(const Unit *u);

/* compact.c: moves ops and values to new memory, in the order of their lists, and renumbers values in that order.  All
 * pointers to them and all ids become invalid.  The module must pass the verifier. */
void ir_compact(Module *m);

/* ---- shape.c: the shape column of ops.def ---- */

/* A shape rule fills out[0..n_out) from op's operands and attributes.  `given` is the declared type, for ops that
 * cannot infer it.  On a mismatch it returns false and writes a sentence with both values to err. */
typedef bool ShapeFn(Module *m, const Op *op, const Type *given, Type *out, Buf *err);
bool ir_infer(Module *m, const Op *op, const Type *given, Type *out, Buf *err);

/* ---- print.c, parse.c ---- */

void ir_print(FILE *f, const Module *m);
char *ir_text(const Module *m, Arena *a);        /* what ir_print prints */
void ir_print_op(FILE *f, const Module *m, const Op *op);
/* What the op computes, without names: ops of one signature take equally long.  "matmul f32[32,64] f32[10,64] ->
 * f32[32,10] {tb=1}"; of a fused op or a loop, its body is told by a checksum. */
char *ir_signature(const Op *op, Arena *a);
Module *ir_parse(const char *file, const char *text, Diag *d); /* NULL after reporting errors */
/* Reads a text of one module, which is stored as `only` whatever its variant is, or of all four variants in any order.
 * False after errors; then out has no modules. */
bool ir_parse_program(const char *file, const char *text, Variants *out, Diag *d);
/* The text of the train block, units and symbols, which all modules of a step have in common. */
char *ir_declarations(const Module *m, Arena *a);
/* Whether the file has the tensor in the symbol's dtype and shape, without a permutation: then fields do not say. */
bool is_as_in_file(const Symbol *s);
/* export.c: for other tools; neither can be read back. */
void ir_print_dot(FILE *f, const Module *m);
void ir_print_json(FILE *f, const Module *m);

/* ---- verify.c ---- */

/* Checks structure, dominance, types, levels, attributes and effects.  after: the pass that is to blame.  If it is
 * given, a violation is an internal error; if it is NULL the module was parsed, and the violation is reported as the
 * user's, with its op.  Returns false when something was reported. */
bool ir_verify(Module *m, const char *after, Diag *d);

/* verify_plan.c: finds what is wrong with the schedule of a module at PLAN that is valid otherwise.  Each violation has
 * the rule's name, the collective to blame, and a sentence.  Returns how many were found, at most max; the first is
 * out[0]. */
typedef struct PlanViolation { const char *rule; const Op *op; const char *text; } PlanViolation;
int ir_verify_plan(const Module *m, Arena *a, PlanViolation *out, int max);

/* ---- eval.c: the f64 reference of every op (column eval of ops.def) ----
 *
 * The oracle of the tests and the constant folder.  Floats are computed in f64, integers in int64. */
typedef struct EvalTensor {
	Type type;
	union { double *f; int64_t *i; }; /* f for floats, i for others; a bool is 0 or 1 */
} EvalTensor;
typedef struct EvalEnv EvalEnv;
EvalEnv *eval_new(Module *m, Arena *a);
/* round: results are rounded to their dtype after each op, as constant folding needs.  Otherwise only 16-bit floats are
 * rounded, and others stay f64. */
void eval_set_round(EvalEnv *e, bool round);
/* exact: nothing is rounded, not even to 16 bits.  The result is what the module means, whatever dtypes it computes
 * in. */
void eval_set_exact(EvalEnv *e, bool exact);
/* even: dropout multiplies all elements by one factor that depends on its p and id, so the result does not depend on
 * where elements lie. */
void eval_set_even_dropout(EvalEnv *e, bool even);
/* base: ops whose gradient passes straight through (THROUGH) do not round, but go from their values in base along that
 * gradient.  base must stay. */
void eval_set_through(EvalEnv *e, const EvalEnv *base);
void eval_bind(EvalEnv *e, const Symbol *sym, EvalTensor t);  /* inputs, parameters, buffers, states */
EvalTensor *eval_symbol(EvalEnv *e, const Symbol *sym);       /* as bound, or as last written */
/* From now on v counts as the constant t, whatever op defines it. */
void eval_assume(EvalEnv *e, const Value *v, EvalTensor t);
/* What dropout's random numbers depend on besides the op; all are 0 before this call.  sample0: global number of row
 * 0. */
void eval_set_random(EvalEnv *e, uint64_t seed, uint64_t step, uint64_t sample0);
/* eval_section takes t as the value of v, whatever its op computes. */
void eval_pin(EvalEnv *e, const Value *v, EvalTensor t);
/* Runs the ops of a section.  An op that has no rule, or lacks an operand, leaves its results uncomputed. */
void eval_section(EvalEnv *e, SectionKind s);
EvalTensor *eval_value(EvalEnv *e, const Value *v);           /* NULL: not computed */
/* Evaluates v from constants alone (recursively; results are kept).  NULL if v depends on anything else, if an op on
 * the way cannot be evaluated, or if a value on the way has more than max_numel elements. */
EvalTensor *eval_constant(EvalEnv *e, Value *v, int64_t max_numel);
/* One element of the result of an elementwise op, rounded to its dtype, from one element of each operand.  Integers are
 * numbers of at most 2^53 in size; false where the result is none, or where op is no elementwise one. */
bool eval_element(const Op *op, const double *in, double *out);
/* Whether eval_constant has given up, because all its evaluations together took too many steps. */
bool eval_exhausted(const EvalEnv *e);
typedef bool EvalFn(EvalEnv *e, const Op *op, EvalTensor *const *in, EvalTensor *const *out);
EvalTensor eval_alloc(EvalEnv *e, Type t);

#endif
