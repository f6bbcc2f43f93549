/* frontend/onnx_import.h: what the importers of ONNX ops share; inside frontend/ only. */
#ifndef SHARDC_ONNX_IMPORT_H
#define SHARDC_ONNX_IMPORT_H

#include "frontend/onnx_metadata.h"
#include "ir/samples.h"

typedef struct Weight Weight;
typedef struct Modes Modes;

/* What a name stands for in a graph.  Initializers become IR values at their first use. */
typedef struct OnnxValue {
	Value *v;
	Weight *w;          /* an initializer, until then */
	const char *alias;  /* other name of w: an exporter wrote Identity where it merged equal tensors */
} OnnxValue;

/* A graph or function body that is being imported. */
typedef struct Frame {
	const struct Frame *outer;           /* its values are visible too: of a subgraph */
	const struct Frame *caller;          /* of a function body: resolves attribute references */
	const Onnx__NodeProto *call;
	const Onnx__FunctionProto *function;
	Map *values;                         /* name -> OnnxValue */
	const char *prefix, *scope;          /* of the names and scopes of nodes */
	int depth;
} Frame;

/* Where an operand was read that is a parameter or buffer: what writing it back needs (onnx_write.c). */
typedef struct OnnxPlace {
	const OnnxTensor *tensor;       /* NULL: the file lacks it, as an exporter left it out */
	const Symbol *symbol;
	bool transposed;                /* the file holds the symbol's transpose */
	const char *module_name;        /* what the node's module calls it, if it is known to be that */
	const char *alias;              /* the node reads it under this name; NULL: under the tensor's */
	const Onnx__NodeProto *node;    /* NULL: it is a graph output */
	int operand;
	bool inner;                     /* the node stands in a function or subgraph */
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
	Map *functions, *rows; /* "domain::name::overload" -> FunctionProto; op type -> OnnxOp */
	Map *weights;          /* initializer name -> Weight */
	const ExportMetadata *meta; /* NULL: the model has none */
	Map *trainable;        /* names of --trainable, with their lines; NULL: not given */
	Map *signature;        /* names of parameters and buffers, as PyTorch's exporter lists them; NULL: it does not */
	bool said_init;        /* that weights may come from elsewhere */
	Map *refusals;         /* op type and reason -> Refusal */
	SampleScan *samples;   /* where the sample axis of a value is */
	PtrMap *pseudo;        /* Value -> Pseudo (onnx_pseudo.c) */
	PtrMap *given;         /* Value -> what it is for the given inputs (onnx_given.c) */
	PtrMap *written;       /* Symbol of a buffer -> Value that was written last (onnx_ops_norm.c) */
	uint8_t *known;        /* by value id: Known */
	int cap_known;
	OnnxPlaceVec places;
	int n_nodes, n_dropouts;
	int64_t n_inlined;     /* nodes of functions imported so far, once for each call */
	int64_t max_inlined;
	NameVec folded_norms;  /* scopes of batch norms that the exporter folded away */
	Modes *modes;          /* of batch norms and dropouts (onnx_modes.c) */
	int n_dropout_nodes, n_batch_norms;
	bool pytorch;
} Import;

/* What is known of a value at compile time: it follows from literals, or from them and given inputs. */
typedef enum { KNOWN_NOT, KNOWN_LITERALLY, KNOWN_GIVEN } Known;

/* One node, seen by its importer: operands in, results out. */
typedef struct Node {
	Import *im;
	Builder *b;
	const Frame *frame;
	const Onnx__NodeProto *proto;
	const char *op, *name, *scope;
	int64_t opset;
	OpKind kind;          /* of an elementwise op: what it becomes */
	int n_in, n_out;      /* as written, absent ones at the end left out */
	Value **in, **out;    /* in: NULL = absent */
} Node;

/* Fills n->out; false after node_error or node_refuse: the results are then poison. */
typedef bool OnnxImporter(Node *n);
typedef struct OnnxOp {
	const char *op;
	int since, until;     /* opsets with this meaning */
	OnnxImporter *import;
	OpKind kind;          /* of an elementwise op; OP_COUNT: of none */
} OnnxOp;
#define ONNX_OP(op, since, until, importer) OnnxImporter import_##importer;
#include "frontend/onnx_ops.def"

enum { OPSET_MAX = 28, LITERAL_MAX = 4096, LITERAL_FLOATS_MAX = 16, EVAL_MAX = 1 << 20 };

/* ---- onnx_import.c ---- */

/* What a caller wants beside the module; each may be NULL. */
typedef struct ImportExtra {
	OnnxPlaceVec *places;     /* what was read where, in the caller's arena */
	const ParamsPrint *print; /* what initializers are taken for goes there */
	NameVec *absent;          /* what the framework's state_dict has and the graph does not use, likewise */
} ImportExtra;

/* The module of an open model; lives on when the model is closed.  NULL after errors. */
Module *import_model(OnnxModel *onnx, const FrontendOptions *o, Arena *a, const ImportExtra *extra, Diag *d);

bool import_nodes(Import *im, const Frame *frame, int n, Onnx__NodeProto *const *nodes);
bool import_graph(Node *n, Span graph); /* a subgraph of n, in its frame; its outputs become n->out */
/* Fills Import.known for the ops after `last`, the section's last op before they were made. */
void import_mark(Import *im, const Op *last);

/* ---- onnx_ops_norm.c ---- */

/* Behind all nodes: of several writes of a buffer the last one stays. */
void norms_end(Import *im);

/* ---- onnx_shadow.c ---- */

/* Results that are called as an initializer get a name of their own; false after an error. */
bool shadows_rename(Import *im);

/* ---- onnx_given.c ---- */

/* v computed from literals in place of inputs; NULL when an input is not given. */
Value *given_value(Import *im, Value *v);

/* ---- onnx_node.c ---- */

bool node_error(Node *n, const char *fmt, ...) PRINTF_LIKE(2, 3);  /* false */
bool node_refuse(Node *n, const char *fmt, ...) PRINTF_LIKE(2, 3); /* false; summed over nodes */
void refusals_report(Import *im);

const Onnx__AttributeProto *node_attr(const Node *n, const char *name);
bool node_has(const Node *n, const char *name);
int64_t node_int(const Node *n, const char *name, int64_t otherwise);
double node_float(const Node *n, const char *name, double otherwise);
const char *node_str(const Node *n, const char *name, const char *otherwise);
int node_ints(const Node *n, const char *name, const int64_t **out); /* their count, -1 when absent */
/* axis in 0..rank-1 (rank included for slots between dims); -1 after an error */
int node_axis(Node *n, int64_t axis, int rank);
/* An attribute that is a TensorProto.DataType; false after a refusal. */
bool node_dtype(Node *n, const char *name, DType *out);

static inline Value *node_in(const Node *n, int i) { return i < n->n_in ? n->in[i] : NULL; }
bool node_want(Node *n, int n_min, int n_max);             /* operand count */
EvalTensor *node_known(Node *n, int i);                    /* NULL: not known at compile time */
/* An integer operand that must be known.  A scalar is a list of one. */
bool node_known_ints(Node *n, int i, const char *what, const int64_t **out, int *count);
/* A list given as attribute (older opsets) or operand; absent = false without an error, count -1. */
bool node_list(Node *n, const char *attr, int i, const int64_t **out, int *count);
/* Sorted distinct axes in 0..rank-1; absent or empty = all when all_if_empty. */
bool node_axes(Node *n, int i, int rank, int64_t *axes, int *count, bool *given);

/* ---- building blocks ---- */

Value *emit_float(Builder *b, const Value *like, double v); /* scalar of like's dtype */
Value *emit_ints(Builder *b, int rank, const int64_t *dim, DType t, const int64_t *v);
Value *emit_add(Builder *b, Value *x, Value *y);
Value *emit_sub(Builder *b, Value *x, Value *y);
Value *emit_mul(Builder *b, Value *x, Value *y);
Value *emit_div(Builder *b, Value *x, Value *y);
Value *emit_scale(Builder *b, Value *x, double v);          /* x itself for 1 */
Value *emit_shift(Builder *b, Value *x, double v);          /* x + v */
Value *emit_slice(Builder *b, Value *x, int axis, int64_t start, int64_t size, int64_t step);
Value *emit_matmul(Builder *b, Value *x, Value *y, Value *bias, bool ta, bool tb);
Value *emit_softmax(Builder *b, OpKind kind, Value *x, int axis);
Value *emit_iota(Builder *b, DType t, int rank, const int64_t *dim, int axis, double start, double step);
Value *emit_literal(Builder *b, const EvalTensor *t);
Value *emit_move_axis(Builder *b, Value *x, int from, int to);
Value *emit_concat(Builder *b, int n, Value *const *x, int axis);

typedef enum { DROPOUT_SAYS_NOTHING, DROPOUT_SAYS_EVAL, DROPOUT_SAYS_TRAIN } DropoutSays;
/* x with a share p dropped when dropout acts; says: what the node says of its mode. */
bool emit_dropout(Node *n, Value *x, double p, DropoutSays says);

/* ---- onnx_modes.c ---- */

bool modes_survey(Import *im);                /* before the import; false after an error */
bool modes_norm_trains(Node *n, bool says);   /* whether a batch norm uses the batch's statistics; says: of ONNX */
bool modes_dropout_acts(Node *n, double p, DropoutSays says);
void modes_report(Import *im);                /* behind the import */

/* ---- onnx_pseudo.c ---- */

bool pseudo_is(const Import *im, const Value *v);
bool pseudo_takes(const char *op); /* an op on sequences */
bool pseudo_import(Node *n); /* a node with a pseudo-value among its operands */

/* ---- onnx_params.c ---- */

/* Makes an initializer known, before classification. */
Weight *params_add(Import *im, const OnnxTensor *t);
/* Finds the role of every initializer from its uses, before any node is imported. */
void params_classify(Import *im);
/* The value of initializer w as operand `input` of a node. */
Value *params_value(Import *im, Weight *w, const char *alias, const Node *n, int input);
/* A tensor that a Constant node holds.  in_file: its bytes lie in the model's file. */
Value *params_constant(Import *im, const OnnxTensor *t, bool in_file);
/* Adds the names of parameters and saved buffers that the exporter knew and the module does not have. */
void params_absent(Import *im, NameVec *names);
/* A parameter that the exporter dropped because all its elements were `fill`: operand `input` of the node. */
Value *params_restore(Node *n, int input, const char *suffix, Type type, double fill);
bool node_rewritten_by(const Node *n, const char *rule); /* an exporter's rewrite rule made this node */

/* ---- onnx_names.c ---- */

const char *names_scope(Import *im, const Frame *frame, const Onnx__NodeProto *node);
const char *names_node(Import *im, const Frame *frame, const Onnx__NodeProto *node, int index);
const char *names_metadata(const Onnx__NodeProto *node, const char *key); /* NULL: the node has none of this key */
/* Whether n bytes of a scope's part are the module's part, or what TorchScript calls its further calls: "fc_1". */
bool names_same_part(const char *scope, size_t n, const char *module, size_t k);
bool names_same_module(const char *scope, const char *module); /* all parts */
/* Whether gradients end at this node: shardc.export put it there, or dynamo wrote what aten.detach was. */
bool node_stops(const Onnx__NodeProto *node);
/* Names in the signature that dynamo left with the graph -> what its nodes call them; NULL: there is none. */
Map *names_of_signature(const OnnxGraph *g, Arena *a);
/* What a value of that map is: "PARAMETER", "BUFFER" or else "CONSTANT". */
const char *signature_kind(const char *argument);
/* Whether state_dict has it. */
bool signature_is_saved(const char *argument);
/* Whether the node that fx describes in dynamo's words (NULL: it left none) has this argument. */
bool names_fx_reads(const char *fx, const char *argument);
bool names_is_made_up(const char *name); /* by an exporter, not the framework's */
bool names_all_digits(const char *s);    /* or empty */

/* ---- onnx_inputs.c ---- */

bool inputs_import(Import *im, Frame *frame);

#endif
