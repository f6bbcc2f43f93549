/* frontend/onnx_import.h: what the importers of ONNX ops share; for use inside frontend/ only. */
#ifndef SHARDC_ONNX_IMPORT_H
#define SHARDC_ONNX_IMPORT_H

#include "frontend/onnx_metadata.h"
#include "base/narrow.h"
#include "ir/samples.h"

typedef struct Weight Weight;
typedef struct Modes Modes;

/* What a name stands for in a graph: an IR value, or an initializer that no node has read yet. */
typedef struct OnnxValue {
	Value *v;
	Weight *w;          /* an initializer that has no IR value yet */
	const char *alias;  /* another name of w, from an Identity that an exporter wrote where it merged equal tensors */
	const Narrow *narrow; /* the type that ONNX has for it, where the IR has a wider one; else NULL */
} OnnxValue;

/* A graph or function body that is being imported. */
typedef struct Frame {
	const struct Frame *outer;           /* the frame around a subgraph, whose values are visible too; else NULL */
	const struct Frame *caller;          /* the frame of the call, for a function body; attribute references are
	                                        resolved there */
	const Onnx__NodeProto *call;
	const Onnx__FunctionProto *function;
	Map *values;                         /* name -> OnnxValue */
	const char *prefix, *scope;          /* prefix of the names of nodes, and the scope around them */
	int depth;
} Frame;

/* One read of a parameter or buffer by a node or graph output; onnx_write.c needs these to write values back. */
typedef struct OnnxPlace {
	const OnnxTensor *tensor;       /* NULL: the file lacks it because the exporter left it out */
	const Symbol *symbol;
	bool transposed;                /* the file holds the transpose of the symbol */
	const char *module_name;        /* the name that the node's module gives it, if known */
	const char *alias;              /* the name under which the node reads it; NULL: the tensor's name */
	const Onnx__NodeProto *node;    /* NULL: a graph output reads it */
	int operand;
	bool inner;                     /* the node stands inside a function or subgraph */
} OnnxPlace;
typedef VEC(OnnxPlace) OnnxPlaceVec;
typedef VEC(const char *) NameVec;

typedef struct Import {
	Module *m;
	OnnxModel *onnx;
	const FrontendOptions *o;
	Diag *d;
	Arena *arena;          /* freed after the import */
	Builder b;
	EvalEnv *eval;
	Map *functions, *rows; /* "domain::name::overload" -> FunctionProto; "domain::op" -> OnnxOp */
	Map *weights;          /* initializer name -> Weight */
	PtrMap *inner;         /* OnnxTensor of a subgraph of the top graph -> Weight */
	Sorted weight_names;   /* of weights, as many as there were when they were last asked for */
	const ExportMetadata *meta; /* NULL: the model has none */
	Map *trainable;        /* names of --trainable, with their lines; NULL: not given */
	Map *signature;        /* names of parameters and buffers, as PyTorch's exporter lists them; NULL: it does not */
	Map *arguments;        /* the other way: what nodes call a parameter or buffer -> its name in the signature */
	Map *held;             /* names of what the first n_held weights were folded from */
	int n_held;
	bool said_init;        /* a note that weights may come from elsewhere was printed */
	Map *refusals;         /* op type and reason -> Refusal */
	SampleScan *samples;   /* finds the sample axis of a value */
	PtrMap *pseudo;        /* Value -> Pseudo (onnx_pseudo.c) */
	PtrMap *given;         /* Value -> its value for the given inputs (onnx_given.c) */
	PtrMap *written;       /* Symbol of a buffer -> Value that was written last (onnx_ops_norm.c) */
	uint8_t *known;        /* value id -> Known */
	int cap_known;
	OnnxPlaceVec places;
	int n_nodes, n_dropouts, n_loops;
	VEC(Op *) draws;       /* whose axis of samples is a guess (onnx_draws.c) */
	int64_t n_inlined;     /* nodes of functions imported so far, once for each call */
	int64_t max_inlined;
	NameVec folded_norms;  /* scopes of batch norms that the exporter folded away */
	NameVec computed_convs; /* scopes of convolutions whose weights the exporter computed from others */
	Modes *modes;          /* of batch norms and dropouts (onnx_modes.c) */
	int n_dropout_nodes, n_batch_norms;
	bool in_loop;          /* the body of a loop that is kept is imported; loops in it are unrolled */
	bool pytorch;
	bool runtime_folded;   /* onnxruntime saved the model after optimising it */
} Import;

/* What is known of a value at compile time: nothing; it follows from literals; or it follows from literals and inputs
 * whose contents are given. */
typedef enum { KNOWN_NOT, KNOWN_LITERALLY, KNOWN_GIVEN } Known;

/* One node as its importer sees it: operands in, results out. */
typedef struct Node {
	Import *im;
	Builder *b;
	const Frame *frame;
	const Onnx__NodeProto *proto;
	const char *op, *name, *scope;
	int64_t opset;
	OpKind kind;          /* for an elementwise op, the IR op that it becomes */
	int n_in, n_out;      /* as the node says, without absent ones at the end */
	Value **in, **out;    /* in[i] is NULL for an absent operand */
	const Narrow **in_narrow, **out_narrow; /* their types in ONNX where the IR has wider ones; else NULL */
} Node;

/* Imports a node: fills n->out.  False after node_error or node_refuse; the results are then poison. */
typedef bool OnnxImporter(Node *n);
typedef struct OnnxOp {
	const char *domain;   /* "" for ONNX's own */
	const char *op;
	int since, until;     /* opsets with this meaning */
	OnnxImporter *import;
	OpKind kind;          /* the IR op of an elementwise op, else OP_COUNT */
} OnnxOp;
#define ONNX_OP(op, since, until, importer) OnnxImporter import_##importer;
#define ONNX_IN(domain, op, since, until, importer) OnnxImporter import_##importer;
#include "frontend/onnx_ops.def"

enum { SUBGRAPHS_MAX = 64 }; /* how deep calls of functions and subgraphs may nest */
enum { OPSET_MAX = 28, LITERAL_MAX = 4096, LITERAL_FLOATS_MAX = 16, EVAL_MAX = 1 << 20 };

/* ---- onnx_import.c ---- */

/* Results that a caller may want besides the module; each may be NULL. */
typedef struct ImportExtra {
	OnnxPlaceVec *places;     /* every read of a parameter or buffer; in the caller's arena */
	const ParamsPrint *print; /* where to print what initializers are taken for */
	NameVec *absent;          /* names in the framework's state_dict that the graph does not use; in the caller's
	                             arena */
} ImportExtra;

/* Imports an open model.  The module stays valid after the model is closed.  NULL after errors. */
Module *import_model(OnnxModel *onnx, const FrontendOptions *o, Arena *a, const ImportExtra *extra, Diag *d);

OnnxValue *frame_find(const Frame *f, const char *name); /* what a name stands for; NULL: nothing yet */
bool import_nodes(Import *im, const Frame *frame, int n, Onnx__NodeProto *const *nodes);
/* The subgraph in an attribute of n; NULL after an error. */
const OnnxGraph *import_subgraph(Node *n, const char *attribute);
/* Imports a subgraph of n within n's frame, its nodes behind this prefix.  args: the values of its inputs.  All its
 * outputs are written to out. */
bool import_body(Node *n, const OnnxGraph *g, const char *prefix, int n_args, Value *const *args, Value **out);
/* Charges nodes that are imported beyond those of the file; false after an error when they are too many. */
bool import_charge(Node *n, int64_t nodes);
/* Fills Import.known for all ops behind `last`, which was the section's last op before they were made. */
void import_mark(Import *im, const Op *last);

/* ---- onnx_ops_norm.c ---- */

/* Called when all nodes are imported: keeps only the last of several writes of a buffer. */
void norms_end(Import *im);

/* ---- onnx_shadow.c ---- */

/* Gives a new name to each result that has the name of an initializer; false after an error. */
bool shadows_rename(Import *im);

/* ---- onnx_given.c ---- */

/* Computes v with literals in place of the inputs; NULL when the contents of an input are not given. */
Value *given_value(Import *im, Value *v);

/* ---- onnx_node.c ---- */

bool node_error(Node *n, const char *fmt, ...) PRINTF_LIKE(2, 3);  /* always false */
bool node_refuse(Node *n, const char *fmt, ...) PRINTF_LIKE(2, 3); /* always false; equal refusals are counted and
                                                                      printed once */

const Onnx__AttributeProto *node_attr(const Node *n, const char *name);
bool node_has(const Node *n, const char *name);
int64_t node_int(const Node *n, const char *name, int64_t otherwise);
double node_float(const Node *n, const char *name, double otherwise);
const char *node_str(const Node *n, const char *name, const char *otherwise);
int node_ints(const Node *n, const char *name, const int64_t **out); /* the count of integers, -1 when the attribute is
                                                                        absent */
/* Checks an axis and returns it counted from 0; -1 after an error.  For an axis between dims pass the rank plus 1. */
int node_axis(Node *n, int64_t axis, int rank);
/* Reads an attribute that is a TensorProto.DataType; false after a refusal.  node_dtype refuses narrow types. */
bool node_dtype(Node *n, const char *name, DType *out);
bool node_element(Node *n, const char *name, DType *out, const Narrow **narrow);

EvalTensor *import_known(Import *im, Value *v);            /* the value's elements; NULL: not known at compile time */
static inline Value *node_in(const Node *n, int i) { return i < n->n_in ? n->in[i] : NULL; }
bool node_want(Node *n, int n_min, int n_max);             /* checks the number of operands */
EvalTensor *node_known(Node *n, int i);                    /* the operand's elements; NULL: not known at compile time */
/* Reads an integer operand that must be known at compile time; a scalar is read as a list of one. */
bool node_known_ints(Node *n, int i, const char *what, const int64_t **out, int *count);
/* Reads a list that older opsets give as an attribute and newer ones as operand i.  When it is absent the result is
 * false without an error, and *count is -1. */
bool node_list(Node *n, const char *attr, int i, const int64_t **out, int *count);
/* Reads operand i as distinct axes in 0..rank-1, sorted.  An absent or empty list means all axes when all_if_empty. */
bool node_axes(Node *n, int i, int rank, int64_t *axes, int *count, bool *given);

/* ---- onnx_narrow.c ---- */

/* The dtype that holds elements of a TensorProto.DataType, and the narrow type that they have, or NULL.  False: there
 * is no such dtype. */
bool element_from_onnx(int onnx, DType *dtype, const Narrow **narrow);
/* Refuses a node that cannot take its narrow operands, and gives its results the narrow type that it passes on. */
bool narrow_take(Node *n);
/* The packed bytes of a tensor, as a tensor of u8. */
OnnxTensor narrow_packed_tensor(const OnnxTensor *t, const Narrow *type);
/* Reads the elements, in type->wide. */
bool narrow_tensor(Import *im, const OnnxTensor *t, const Narrow *type, EvalTensor *out);
/* The elements of packed bytes u8[n], in t->wide and the shape of `as`. */
Value *narrow_spread(Builder *b, Value *bytes, const Narrow *t, const Type *as);
/* x rounded to a float type; saturate: numbers beyond its largest become the largest. */
Value *emit_round_to(Builder *b, Value *x, const Narrow *t, bool saturate);
/* x as Cast and CastLike convert it, with their attributes saturate and round_mode. */
Value *emit_cast(Node *n, Value *x, DType to, const Narrow *narrow);

/* ---- onnx_ops_training.c ---- */

bool training_domain(const char *domain); /* whether it is ai.onnx.preview.training */
/* Whether only a graph that onnxruntime-training has written has the op. */
bool training_artifact(const char *domain, const char *op);

/* ---- onnx_refusals.c ---- */

/* Why no row of onnx_ops.def has the node's op, and the way out; domain: "" for ONNX's own. */
const char *refusal_of_op(const Node *n, const char *domain);
/* Why none of the op's rows, which begin at `first`, is of the node's opset. */
const char *refusal_of_opset(const Node *n, const OnnxOp *first, int rows);
/* The line of the user's code that a node was made from, "model.py:12: y = self.f(x)", or that of the call of the
 * function around it; NULL when the exporter does not say. */
const char *node_line(const Node *n);
void refusals_report(Import *im);

/* ---- building blocks ---- */

Value *emit_float(Builder *b, const Value *like, double v); /* a scalar of like's dtype */
Value *emit_ints(Builder *b, int rank, const int64_t *dim, DType t, const int64_t *v);
Value *emit_add(Builder *b, Value *x, Value *y);
Value *emit_sub(Builder *b, Value *x, Value *y);
Value *emit_mul(Builder *b, Value *x, Value *y);
Value *emit_div(Builder *b, Value *x, Value *y);
Value *emit_scale(Builder *b, Value *x, double v);          /* x * v; x itself when v is 1 */
Value *emit_shift(Builder *b, Value *x, double v);          /* x + v */
/* The p-th root of a sum of powers, p above 1; its gradient is 0 where the sum is 0, as that of PyTorch's norms. */
Value *emit_norm_root(Builder *b, Value *x, double p);
/* x, whose elements must lie in [low, high]: a step in which another is met fails, and `what` names it. */
Value *emit_in_range(Builder *b, Value *x, double low, double high, const char *what);
Value *emit_slice(Builder *b, Value *x, int axis, int64_t start, int64_t size, int64_t step);
Value *emit_matmul(Builder *b, Value *x, Value *y, Value *bias, bool ta, bool tb);
Value *emit_softmax(Builder *b, OpKind kind, Value *x, int axis);
Value *emit_iota(Builder *b, DType t, int rank, const int64_t *dim, int axis, double start, double step);
Value *emit_literal(Builder *b, const EvalTensor *t);
Value *emit_move_axis(Builder *b, Value *x, int from, int to);
Value *emit_concat(Builder *b, int n, Value *const *x, int axis);
/* Stacks n > 0 tensors of one type, of less than the greatest rank, along a new axis.  *at_once is increased if they
 * are computed as one batch. */
Value *emit_stack(Import *im, int n, Value *const *x, int axis, int *at_once);

/* ---- onnx_loop.c ---- */

/* What an input of a loop's body is: a value that is the same in all steps; a state, whose first contents are given;
 * the slices of the first axis of what is given, one for each step; or the same of the numbers of the steps. */
typedef enum LoopPart { LOOP_SAME, LOOP_STATE, LOOP_SLICE, LOOP_STEP } LoopPart;
typedef struct LoopParts {
	int64_t steps;       /* at least 1 */
	int n_args;          /* inputs of the body; by input: */
	const LoopPart *part;
	Value *const *given;
	int n_out, first_out; /* outputs of the body; before first_out stand conditions to go on, which must be true */
	const char *why;     /* set by loop_keep: why it failed, as a part of a sentence */
} LoopParts;
/* Makes a loop of the graph: its results are the states, then what the other outputs are in each step, stacked.  NULL,
 * without a message: the body cannot stand in a loop. */
const Op *loop_keep(Node *n, const OnnxGraph *g, LoopParts *p);

/* ---- onnx_batch.c ---- */

/* Computes values that the steps of a loop made alike, without depending on each other, as one value with the steps as
 * its first axis.  NULL: they are not known to be alike. */
Value *batch_steps(Import *im, int n, Value *const *x);
/* Computes products that no state of n steps goes into for all of them at once.  ends: the last op before the first
 * step (NULL: none), and that of each step.  The result maps their old values to those that replace them. */
PtrMap *batch_products(Import *im, int n, Op *const *ends);

typedef enum { DROPOUT_SAYS_NOTHING, DROPOUT_SAYS_EVAL, DROPOUT_SAYS_TRAIN } DropoutSays;
/* Emits x with a share p of its elements dropped, or x itself where dropout is off; says: what the node says of its
 * mode. */
bool emit_dropout(Node *n, Value *x, double p, DropoutSays says);

/* ---- onnx_modes.c ---- */

bool modes_survey(Import *im);                /* reads all nodes before the import; false after an error */
bool modes_norm_trains(Node *n, bool says);   /* whether a batch norm uses the statistics of the batch; says: the mode
                                                 that ONNX gives */
bool modes_dropout_acts(Node *n, double p, DropoutSays says);
void modes_report(Import *im);                /* prints notes and warnings after the import */

/* ---- onnx_ops_random.c, onnx_draws.c, onnx_masks.c ---- */

int64_t random_id(Node *n);         /* of a new draw or dropout of this node */
void draws_resolve(Import *im);     /* called when all nodes are imported */
void draws_report(Import *im);      /* when dropout is known */
void masks_resolve(Import *im);     /* after it */

/* ---- onnx_pseudo.c ---- */

bool pseudo_is(const Import *im, const Value *v);
bool pseudo_import(Node *n); /* imports a node that has a pseudo-value among its operands, but does not take lists */

/* ---- onnx_ops_sequence.c ---- */

bool sequence_takes(const char *op); /* whether the op's importer takes sequences and optionals */

/* ---- onnx_params.c ---- */

/* Adds an initializer to im->weights; call it for all of them before params_classify. */
Weight *params_add(Import *im, const OnnxTensor *t);
void params_add_inner(Import *im); /* the same for those of subgraphs, when those of the top graph are added */
/* Decides what every initializer is from its uses, before any node is imported. */
void params_classify(Import *im);
/* The IR value of initializer w where a node reads it as operand `input`. */
Value *params_value(Import *im, Weight *w, const char *alias, const Node *n, int input);
/* The value of a tensor that a Constant node holds.  in_file: its bytes lie in the model's file, so it may stay
 * there. */
Value *params_constant(Import *im, const OnnxTensor *t, bool in_file);
/* Appends the names of parameters and saved buffers that the exporter lists and the imported module does not have. */
void params_absent(Import *im, NameVec *names);
/* Makes the parameter that the exporter dropped as operand `input` of the node because all its elements were `fill`. */
Value *params_restore(Node *n, int input, const char *suffix, Type type, double fill);
bool node_rewritten_by(const Node *n, const char *rule); /* whether this rewrite rule of an exporter made the node */

/* ---- onnx_names.c ---- */

const char *names_scope(Import *im, const Frame *frame, const Onnx__NodeProto *node);
const char *names_node(Import *im, const Frame *frame, const Onnx__NodeProto *node, int index);
const char *names_metadata(const Onnx__NodeProto *node, const char *key); /* NULL: the node has no metadata of this
                                                                             key */
/* Whether the first n bytes of scope are the first k bytes of module, or the name that TorchScript gives further calls
 * of that module: "fc_1" for "fc". */
bool names_same_part(const char *scope, size_t n, const char *module, size_t k);
bool names_same_module(const char *scope, const char *module); /* the same for every part of the two paths */
/* Whether dynamo's optimizer folded a batch norm into this node: place and trace are then the norm's. */
bool names_folds_norm(const Onnx__NodeProto *node);
/* Whether gradients end at this node: shardc.export put it there, or dynamo made it from aten.detach. */
bool node_stops(const Onnx__NodeProto *node);
/* Whether dynamo's metadata say that the node was made of a call of a PyTorch operator whose name begins so:
 * aten.max.dim. */
bool node_is_call(const Node *n, const char *target);
/* The names in the signature that dynamo left in the graph -> what its nodes call them; NULL: there is no signature. */
Map *names_of_signature(const OnnxGraph *g, Arena *a);
/* The other way: what nodes call them -> their names. */
Map *names_of_arguments(const Map *signature, Arena *a);
/* The kind of a value of that map: "PARAMETER", "BUFFER" or "CONSTANT" (everything else). */
const char *signature_kind(const char *argument);
/* Whether the framework's state_dict has the tensor. */
bool signature_is_saved(const char *argument);
/* The arguments of the fx node that dynamo describes in fx. */
NameVec names_of_fx(const char *fx, Arena *a);
/* Whether the fx node that dynamo describes in fx (NULL: it left no description) has this argument. */
bool names_fx_reads(const char *fx, const char *argument);
bool names_is_made_up(const char *name); /* whether an exporter made the name, not the framework */
bool names_all_digits(const char *s);    /* also true of an empty string */

/* ---- onnx_inputs.c ---- */

bool inputs_import(Import *im, Frame *frame);

#endif
