/* frontend/onnx_params.h: initializers; of the files that decide what they are and make symbols of them. */
#ifndef SHARDC_ONNX_PARAMS_H
#define SHARDC_ONNX_PARAMS_H

#include "frontend/onnx_import.h"

typedef enum { WEIGHT_CONST, WEIGHT_BUFFER, WEIGHT_PARAM } WeightClass;
/* alias: the name that an Identity gave it for this use, or NULL; fx: the node that dynamo decomposed, in its words, or
 * NULL. */
typedef struct WeightUse { const char *op; int operand; const char *scope, *alias, *fx; } WeightUse;
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
	bool split;              /* one parameter per user */
	bool named;              /* of a split: the file names the others; what has no name of its own stays this one */
	const char *split_why;   /* why it is guessed to be split, or to be one; else NULL */
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

/* Decides class, frozen and evidence. */
void weight_decide(Import *im, Weight *w);
/* The only name in "['fc.weight']", NULL when there are more. */
const char *weight_folded_from(Import *im, const Weight *w);
/* TorchScript folds the unsqueezed scale and shift of a norm into onnx::Mul_7 of [C,1,1]. */
bool weight_is_folded_vector(const Weight *w);
/* A name whose ending says that it is a buffer's. */
bool name_is_buffer(const char *name);

/* ---- onnx_ties.c ---- */

/* Names, ties and merged tensors of all weights whose class is decided. */
void ties_find(Import *im);
/* What the user of operand `input` calls w. */
const char *weight_name(Import *im, const Weight *w, const char *op, int operand, const char *scope, const char *alias);

/* ---- onnx_trainable.c: --trainable=FILE ---- */

bool trainable_read(Import *im, const char *path); /* into im->trainable; false after an error */
void trainable_apply(Import *im);                  /* to all weights, whose names are known */
/* Whether the list has this name, or one that w has beside it (w NULL: none). */
bool trainable_has(const Import *im, const Weight *w, const char *name);
void trainable_check(Import *im);                  /* behind the import: every name was found */

/* ---- onnx_report.c ---- */

void report_roles(Import *im);                     /* a line for each kind, and every guess */
void report_print(Import *im, const ParamsPrint *to);

/* ---- onnx_mask.c ---- */

/* A constant whose last two dims hold a triangle of two values, as ops that compute it; else NULL. */
Value *onnx_mask_value(Import *im, const Weight *w);

#endif
