/* frontend/onnx_params.h: initializers; of onnx_params.c and onnx_mask.c only. */
#ifndef SHARDC_ONNX_PARAMS_H
#define SHARDC_ONNX_PARAMS_H

#include "frontend/onnx_import.h"

typedef enum { WEIGHT_CONST, WEIGHT_BUFFER, WEIGHT_PARAM } WeightClass;
typedef struct WeightUse { const char *op; int operand; const char *scope, *alias; } WeightUse;
typedef struct WeightMade { SymbolKind kind; const char *name; Value *v; } WeightMade;

struct Weight {
	const OnnxTensor *t;
	Type type;
	bool typed;              /* the IR has its dtype */
	const char *kind, *folded_from;
	bool transient;          /* a buffer that the framework does not save */
	VEC(WeightUse) uses;     /* by nodes of the top graph */
	WeightClass class;
	const char *as;          /* the framework's name */
	bool transposed;         /* the file holds the framework's tensor transposed */
	bool flat;               /* the file holds the framework's vector with dims of 1 around it */
	Weight *tie;             /* this is the transpose of that one */
	bool split;              /* one parameter per user */
	bool reported;
	VEC(WeightMade) made;
};

/* Every element has the same bits; *value is it. */
bool weight_is_splat(Import *im, const Weight *w, double *value);

/* ---- onnx_mask.c ---- */

/* A constant whose last two dims hold a triangle of two values, as ops that compute it; else NULL. */
Value *onnx_mask_value(Import *im, const Weight *w);

#endif
