/* frontend/onnx_params.h: initializers; of the files that decide what they are and make symbols of them. */
#ifndef SHARDC_ONNX_PARAMS_H
#define SHARDC_ONNX_PARAMS_H

#include "frontend/onnx_import.h"

typedef enum { WEIGHT_CONST, WEIGHT_BUFFER, WEIGHT_PARAM } WeightClass;
/* alias: the name that an Identity gave it for this use, or NULL; fx: the node that dynamo decomposed, in its words, or
 * NULL; reduced: the result is reduced at once, as what a loss weighs is; call: the op is a function of the model. */
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
	bool typed;              /* the IR has its dtype */
	const MetaTensor *meta;  /* what shardc.export says of it, or NULL */
	const char *kind, *folded_from;
	bool transient;          /* a buffer that the framework does not save */
	VEC(WeightUse) uses;     /* by nodes of the top graph */
	WeightClass class;
	bool frozen;             /* a parameter that is not trained */
	Evidence evidence;       /* for class and frozen, */
	const char *why;         /*   and in words: "only a weight of Conv stands there" */
	const char *as;          /* the framework's name */
	VEC(const char *) alias; /* its further names, as it is tied */
	bool transposed;         /* the file holds the framework's tensor transposed */
	bool flat;               /* the file holds the framework's vector with dims of 1 around it */
	Weight *tie;             /* this is the transpose of that one */
	VEC(Weight *) parts;     /* the tensors that it is untied into, each decided by its own name and uses; else empty */
	Map *part_of;            /* name -> part; NULL: no user was looked at */
	const Weight *whole;     /* that this is a part of, or NULL */
	bool named;              /* the file names the others merged into it; what has no name of its own stays this one */
	const char *split_why;   /* why it is guessed to be several, or to be one; else NULL */
	bool listed;             /* by --trainable, under any of its names */
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

const Role *role_of(const char *op, int operand); /* NULL: the table has none */
bool role_has_suffix(const char *suffix);         /* of some role */
void uses_collect(Import *im);                    /* fills uses, kind, transient and folded_from of every weight */
bool weight_has_use(const Weight *w, const char *op, int operand);
const WeightUse *weight_strong_use(const Weight *w); /* the first where only a weight stands; NULL: none */
bool weight_only_statistics(const Weight *w);     /* used as running mean or variance, and as nothing else */
bool is_statistic(const char *op, int operand);
/* Every element has the same bits; *value is it. */
bool weight_is_splat(Import *im, const Weight *w, double *value);
/* Whether w holds other's transpose; equal ones that are all one number do not count. */
bool weight_is_transpose(Import *im, const Weight *w, const Weight *other);
/* The elements, in the file's order; false where they cannot be read in place. */
bool weight_values(Import *im, const Weight *w, HostTensor *out);

/* ---- onnx_sinusoid.c ---- */

/* Whether w is a table of sines and cosines of positions, as of a sinusoidal embedding. */
bool weight_is_sinusoidal(Import *im, const Weight *w);

/* ---- onnx_roles.c ---- */

/* Decides class, frozen and evidence; of a part, when it has its name and uses. */
void weight_decide(Import *im, Weight *w);
void weight_decide_part(Import *im, Weight *part);
/* The parameter whose transpose the exporter's optimizer folded w into, as values, nodes or its name tell; NULL: it is
 * another function of parameters, or of none. */
const char *weight_transposed_from(Import *im, const Weight *w);
/* The k-th name, from 0, that the optimizer folded w from; NULL: there are fewer. */
const char *weight_folded_from(const Import *im, const Weight *w, int k);
/* TorchScript folds the unsqueezed scale and shift of a norm into onnx::Mul_7 of [C,1,1]. */
bool weight_is_folded_vector(const Weight *w);
/* A name whose ending says that it is a buffer's. */
bool name_is_buffer(const char *name);

/* ---- onnx_ties.c ---- */

/* Names, ties and merged tensors of all weights whose class is decided. */
void ties_find(Import *im);
/* What a user of w calls it. */
const char *weight_name(Import *im, const Weight *w, const WeightUse *u);
/* What w is to a user: itself, or the part that the user calls so. */
Weight *weight_part(Import *im, Weight *w, const WeightUse *u);
/* The tensor that is trained in place of w: the one whose transpose it is, or w itself. */
Weight *weight_held(const Weight *w);

/* ---- onnx_trainable.c: --trainable=FILE ---- */

bool trainable_read(Import *im, const char *path); /* into im->trainable; false after an error */
void trainable_apply(Import *im);                  /* to all weights, whose names are known */
void trainable_apply_one(Import *im, Weight *w);   /* to a part that was found later */
bool trainable_has(const Import *im, const char *name);
void trainable_check(Import *im);                  /* behind the import: every name was found */

/* ---- onnx_report.c ---- */

void report_roles(Import *im);                     /* a line for each kind, and every guess */
void report_print(Import *im, const ParamsPrint *to);

/* ---- onnx_mask.c ---- */

/* A constant whose last two dims hold a triangle of two values, as ops that compute it; else NULL. */
Value *onnx_mask_value(Import *im, const Weight *w);

#endif
