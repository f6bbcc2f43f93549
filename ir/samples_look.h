/* ir/samples_look.h: what all rules need that say how an op treats the samples of its operands; for samples.c and
 * samples_layers.c only. */
#ifndef SHARDC_IR_SAMPLES_LOOK_H
#define SHARDC_IR_SAMPLES_LOOK_H

#include "ir/samples_same.h"

struct SampleScan {
	const Module *m;
	Arena *a;
	PtrMap *known;     /* Value -> Samples */
	bool statistics;
};

/* The op that is being analysed, with what is known of its operands. */
typedef struct Look {
	const SampleScan *s;
	const Op *op;
	const Samples *in;
	Samples out;       /* what all results of the op start from: kind NONE, and the operands' mixes, placed, trained and
	                      unsure */
} Look;

/* out, with the samples lost in this op, or where an operand lost them. */
Samples look_lost(const Look *l);
/* x, in which this op combines several samples, unless an earlier one does. */
Samples look_mixed(const Look *l, Samples x);
/* Whether operand i depends on no sample, but has different numbers for different positions along the axis of
 * samples. */
bool look_is_placed(const Look *l, int i, int axis);
/* x, of which this op makes that it depends on the positions of samples, unless an earlier one does. */
Samples look_placed(const Look *l, Samples x);
/* Marks x, whose samples are along an axis, as placed if an operand is.  Operands are aligned at the right with a shape
 * of this rank. */
Samples look_with_places(const Look *l, Samples x, int rank);
/* The samples of an operand, along this axis of the result. */
Samples look_along(const Look *l, const Samples *from, int axis);

static inline bool is_total(const Samples *x)
{
	return x->kind == SAMPLES_SUM || x->kind == SAMPLES_MEAN;
}

/* Whether samples are at the same positions along the axis in both. */
static inline bool same_order(const Samples *a, const Samples *b)
{
	return a->batches && a->batches == b->batches;
}

/* samples_layers.c: the rules of layers; v: the result that is asked about. */
Samples samples_of_layer(const Look *l, const Value *v);

#endif
