/* ir/samples.h: how a value depends on the samples of a micro-batch.  One analysis for whoever asks: where the sample
 * axis is (dropout), whether a loss is a sum or a mean over samples, whether samples meet on the way (evaluations,
 * losses that compare samples). */
#ifndef SHARDC_IR_SAMPLES_H
#define SHARDC_IR_SAMPLES_H

#include "ir/ir.h"

typedef enum SamplesKind {
	SAMPLES_NONE,  /* depends on no input that has a sample axis */
	SAMPLES_AXIS,  /* a part for each sample, along an axis */
	SAMPLES_SUM,   /* a sum over samples of what each gives */
	SAMPLES_MEAN,  /* a mean over samples of what each gives */
	SAMPLES_LOST,  /* depends on samples in a way that is not followed */
} SamplesKind;

typedef struct Samples {
	SamplesKind kind;
	int axis;          /* of AXIS; samples may share it with dims that were merged: dim is k * batch */
	int64_t batches;   /* of AXIS: so many whole batches stand one behind the other, in each of them the samples in
	                    * order and the rows of a sample together: 1 for [B,T] merged to [B*T], T for [T,B] merged to
	                    * [T*B]; 0: in another order */
	bool trained;      /* a gradient flows back from it to a parameter */
	double scale;      /* constant factors on the way to a SUM or a MEAN */
	unsigned same;     /* of NONE: a bit for each axis along which it is known to be the same everywhere */
	bool unsure;       /* of batches of one sample: a dim of 1 went that may have been the samples', or there is a
	                    * factor of 1 that may be their number */
	const Op *mixes;   /* the first op in which a sample's part depends on other samples; NULL = none is known */
	const Op *placed;  /* likewise, on its place in the batch */
	const Op *lost;    /* of LOST: the op that is not followed */
} Samples;

typedef struct SampleScan SampleScan;

/* Of m, whose batch must be known when samples_of is asked.  statistics: batch norms that use the batch's statistics
 * mix samples; else they are taken to keep them apart, which is how training understands them. */
SampleScan *samples_new(const Module *m, Arena *a, bool statistics);
/* Linear in what lies behind v; answers are kept.  New ops may be appended between questions. */
Samples samples_of(SampleScan *s, const Value *v);
/* Whether the factor makes a sum over samples look like a mean, or a mean like a sum: it divides (multiplies) by a
 * multiple of the batch size. */
bool samples_is_scaled_by_batch(const SampleScan *s, const Samples *x);
/* Whether x is a sum over samples, or a mean, and neither a factor nor a batch of one sample leaves a doubt. */
bool samples_is_plain(const SampleScan *s, const Samples *x);

#endif
