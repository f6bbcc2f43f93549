/* ir/samples.h: how a value depends on the samples of a micro-batch.
 *
 * The one analysis answers three questions: where the sample axis is (dropout), whether a loss is a sum or a mean over
 * samples, and whether samples are mixed on the way (evaluations, losses that compare samples). */
#ifndef SHARDC_IR_SAMPLES_H
#define SHARDC_IR_SAMPLES_H

#include "ir/ir.h"

typedef enum SamplesKind {
	SAMPLES_NONE,  /* depends on no input that has a sample axis */
	SAMPLES_AXIS,  /* has a part for each sample, along an axis */
	SAMPLES_SUM,   /* a sum over samples of one number for each */
	SAMPLES_MEAN,  /* a mean over samples of one number for each */
	SAMPLES_LOST,  /* depends on samples in a way that the analysis does not follow */
} SamplesKind;

typedef struct Samples {
	SamplesKind kind;
	int axis;          /* of AXIS; merged dims may share it with the samples: the dim is k * batch */
	int64_t batches;   /* of AXIS: how many whole batches are one behind the other.  In each of them samples are in
	                      order, and the rows of a sample are together: 1 for [B,T] merged to [B*T], T for [T,B] merged
	                      to [T*B].  0: samples are in another order */
	bool trained;      /* a gradient flows back from it to a parameter */
	double scale;      /* product of constant factors that were applied to a SUM or a MEAN */
	unsigned same;     /* of NONE: a bit for each axis along which the value is known to be constant */
	bool unsure;       /* with batches of one sample: a dim of 1 was dropped that may have been the samples', or a
	                      factor of 1 may have been their number */
	const Op *mixes;   /* the first op in which a sample's part depends on other samples; NULL = none that is known */
	const Op *placed;  /* the first op in which it depends on the sample's position in the batch; NULL = none */
	const Op *lost;    /* of LOST: the op that the analysis does not follow */
	bool whole;        /* of LOST: a sum over samples and other numbers; all samples are in it, so a part meets them */
} Samples;

typedef struct SampleScan SampleScan;

/* Begins an analysis of m; m->batch must be known when samples_of is called.  statistics: batch norms that use the
 * statistics of the batch mix samples; otherwise they are taken to keep samples apart, as training understands them. */
SampleScan *samples_new(const Module *m, Arena *a, bool statistics);
/* The time is linear in the ops that v depends on; answers are kept.  New ops may be appended between calls. */
Samples samples_of(SampleScan *s, const Value *v);
/* Whether the factor makes a sum over samples look like a mean, or a mean like a sum: it divides (or multiplies) by a
 * multiple of the batch size. */
bool samples_is_scaled_by_batch(const SampleScan *s, const Samples *x);
/* Whether x is certainly a sum or a mean over samples: neither a factor nor a batch of one sample makes that
 * doubtful. */
bool samples_is_plain(const SampleScan *s, const Samples *x);

#endif
