/* frontend/onnx_pseudo.h: values of ONNX that are none in the IR: sequences and optionals; for use inside frontend/
 * only. */
#ifndef SHARDC_ONNX_PSEUDO_H
#define SHARDC_ONNX_PSEUDO_H

#include "frontend/onnx_import.h"

typedef enum { PSEUDO_SEQUENCE, PSEUDO_OPTIONAL } PseudoKind;

typedef struct Pseudo {
	PseudoKind kind;
	Value **at;     /* the elements of a sequence; of an optional, what it holds */
	int n;
	int room, *used; /* of at: its length, and how many elements those that share it have; NULL: it is not shared */
} Pseudo;

Pseudo *pseudo_of(const Import *im, const Value *v); /* NULL: v is a tensor, or NULL */
/* A value that stands for p among the operands of nodes; it never enters the module. */
Value *pseudo_new(Import *im, Pseudo p);

/* ---- onnx_ops_sequence.c ---- */

Value *sequence_new(Import *im, PseudoKind kind, int count, Value *const *at);

#endif
