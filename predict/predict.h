/* predict/predict.h: `shardc plan --machine=FILE`: how long a step of the planned program takes on a machine. */
#ifndef SHARDC_PREDICT_H
#define SHARDC_PREDICT_H

#include "base/options.h"
#include "ir/ir.h"
#include "predict/machine.h"

/* Reads the machine of --machine, and checks options of predictions against it and each other.  Where --hosts is not
 * given, it becomes the number of hosts that --world takes.  False after messages; without --machine *out is NULL. */
bool predict_begin(Options *o, Machine **out, Arena *a, Diag *d);
/* Whether all that a step of this program does is predicted; false after messages. */
bool predict_accepts(const Module *m, const LayoutModel *layout, Diag *d);
/* Prints the prediction of v in the format of o, and writes --trace; false after messages.  layout, who: of the plan's
 * rank.  In JSON this is a member of the plan's object, ended by ",\n". */
bool predict_show(FILE *f, const Variants *v, const LayoutModel *layout, const LayoutRank *who, const Machine *m,
	const Options *o, Diag *d);

#endif
