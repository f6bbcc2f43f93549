/* frontend/onnx_params.h: initializers; shared by the files that decide what they are and those that make symbols of
 * them. */
#ifndef SHARDC_ONNX_PARAMS_H
#define SHARDC_ONNX_PARAMS_H

#include "frontend/onnx_import.h"

typedef enum { WEIGHT_CONST, WEIGHT_BUFFER, WEIGHT_PARAM } WeightClass;
/* One use of an initializer by a node.  alias: the name that an Identity gave it for this use, or NULL; fx: the fx node
 * in dynamo's metadata that the ONNX node was made from, or NULL; reduced: the node's result is reduced at once, as in
 * a weighted loss; call: the op is a function of the model. */
typedef struct WeightUse { const char *op; int operand; const char *scope, *alias, *fx; bool reduced, call; } WeightUse;
typedef struct WeightMade { SymbolKind kind; const char *name; Value *v; } WeightMade;

typedef enum Evidence {
#define EVIDENCE(id, ...) EVIDENCE_##id,
#include "frontend/evidence.def"
	EVIDENCE_COUNT
} Evidence;
typedef struct EvidenceInfo { const char *text; bool guess; const char *doc; } EvidenceInfo;
extern const EvidenceInfo evidence_info[EVIDENCE_COUNT];

struct Weight {
	const OnnxTensor *t;
	Type type;
	bool typed;              /* the IR has this dtype */
	const Narrow *narrow;    /* the IR has a wider dtype, and this is the file's; else NULL */
	const MetaTensor *meta;  /* what shardc.export says of the tensor, or NULL */
	const char *kind, *folded_from;
	VEC(const char *) folded; /* the names in folded_from */
	bool transient;          /* a buffer that the framework does not save */
	VEC(WeightUse) uses;     /* uses by nodes of the top graph and of its subgraphs */
	WeightClass class;
	bool frozen;             /* a parameter that is not trained */
	Evidence evidence;       /* evidence for class and frozen, */
	const char *why;         /* and the reason in words: "only a weight of Conv stands there" */
	const char *as;          /* the name that the framework has for it */
	VEC(const char *) alias; /* further names of a tied tensor */
	Map *alias_names;        /* of alias; NULL: there are none */
	bool transposed;         /* the file holds the framework's tensor transposed */
	bool flat;               /* the framework has a vector; the file holds it with extra dims of 1 */
	Weight *tie;             /* this tensor is the transpose of the one that tie points to */
	VEC(Weight *) parts;     /* the tensors that it is untied into, each decided by its own name and uses; else empty */
	Map *part_of;            /* name -> part; NULL: the uses were not looked at yet */
	const Weight *whole;     /* for a part: the tensor that it is a part of; else NULL */
	bool named;              /* the file names the other tensors merged into it; uses without a name of their own are
	                            this one's */
	const char *split_why;   /* why it is guessed to be several tensors, or a single one; else NULL */
	bool listed;             /* --trainable lists it under one of its names */
	bool inner;              /* a subgraph holds it */
	bool reported;
	VEC(WeightMade) made;
};

/* ---- onnx_uses.c: who uses an initializer, and what its values are ---- */

typedef struct Role {
	const char *op;
	int operand;
	const char *suffix;
	bool strong;
} Role;

const Role *role_of(const char *op, int operand); /* NULL: the table has no such row */
bool role_has_suffix(const char *suffix);         /* whether some role has this suffix */
void uses_collect(Import *im);                    /* fills uses, kind, transient and folded_from of all weights */
bool weight_has_use(const Weight *w, const char *op, int operand);
const WeightUse *weight_strong_use(const Weight *w); /* the first use where only a weight can stand; NULL: none */
bool weight_only_statistics(const Weight *w);     /* whether all its uses are as running mean or variance */
bool is_statistic(const char *op, int operand);
/* Whether all elements have the same bits; *value is set to the element. */
bool weight_is_splat(Import *im, const Weight *w, double *value);
/* Whether w holds the transpose of other.  Tensors that hold one repeated number do not count. */
bool weight_is_transpose(Import *im, const Weight *w, const Weight *other);
/* Reads the elements, in the file's order; false where they cannot be read in place. */
bool weight_values(Import *im, const Weight *w, HostTensor *out);

/* ---- onnx_sinusoid.c ---- */

/* Whether w is a table of sines and cosines of positions, as sinusoidal embeddings have. */
bool weight_is_sinusoidal(Import *im, const Weight *w);

/* ---- onnx_roles.c ---- */

/* Decide class, frozen and evidence of a weight.  For a part, call this when its name and uses are set. */
void weight_decide(Import *im, Weight *w);
void weight_decide_part(Import *im, Weight *part);
/* The name of the parameter whose transpose the exporter's optimizer folded into w, as the values, the nodes or w's
 * name show.  NULL: w is another function of parameters, or was not folded. */
const char *weight_transposed_from(Import *im, const Weight *w);
/* Whether w is the scale or shift of a norm that TorchScript unsqueezed and folded, such as onnx::Mul_7 of [C,1,1]. */
bool weight_is_folded_vector(const Weight *w);
/* Whether the name's ending is one of buffers. */
bool name_is_buffer(const char *name);

/* ---- onnx_ties.c ---- */

/* Finds names, ties and merged tensors; call it when the class of every weight is decided. */
void ties_find(Import *im);
/* The only parameter or buffer that the fx node reads and the file has no tensor for; NULL if there are none or
 * several. */
const char *weight_absent_from(Import *im, const char *fx);
/* The name that a user of w has for it. */
const char *weight_name(Import *im, const Weight *w, const WeightUse *u);
/* The weight that a user of w reads: w itself, or the part with the name that this user has for it. */
Weight *weight_part(Import *im, Weight *w, const WeightUse *u);
/* The tensor that is trained for w: the one whose transpose w is, or w itself. */
Weight *weight_held(const Weight *w);

/* ---- onnx_trainable.c: --trainable=FILE ---- */

bool trainable_read(Import *im, const char *path); /* fills im->trainable; false after an error */
void trainable_apply(Import *im);                  /* applies the list to all weights; call it when their names are
                                                      known */
void trainable_apply_one(Import *im, Weight *w);   /* applies it to a part that was found later */
bool trainable_has(const Import *im, const char *name);
void trainable_check(Import *im);                  /* called after the import: reports names that were not found */

/* ---- onnx_report.c ---- */

void report_roles(Import *im);                     /* prints a line for each kind of tensor, and every guess */
void report_print(Import *im, const ParamsPrint *to);

#endif
