/* predict/predict.h: `shardc plan --machine=FILE`: how long a step of the planned program takes on a machine. */
#ifndef SHARDC_PREDICT_H
#define SHARDC_PREDICT_H

#include "base/options.h"
#include "passes/passes.h"
#include "predict/machine.h"

/* Reads the machine of --machine, and checks options of predictions against it and each other.  Where --hosts is not
 * given, it becomes the number of hosts that --world takes.  False after messages; without --machine *out is NULL. */
bool predict_begin(Options *o, Machine **out, Arena *a, Diag *d);
/* Whether all that a step of this program does is predicted; false after messages. */
bool predict_accepts(const Module *m, const LayoutModel *layout, Diag *d);
/* Whether what --ask asks can be planned; false after a message. */
bool predict_asks(const Options *o, const Restart *start, Diag *d);
/* Prints the prediction of the program's largest size in the format of o and, with --ask, that of other plans, and
 * writes --trace; false after messages.  start: where planning begins again.  In JSON these are members of the plan's
 * object, each ended by ",\n". */
bool predict_show(FILE *f, const Sizes *program, const Restart *start, const Machine *m, const Options *o, Diag *d);

/* ---- diff.c ---- */

/* `shardc trace diff A.json B.json [--top=N]`; argv[0] is "trace".  Returns the exit code. */
enum { TRACE_OK = 0, TRACE_INPUT = 1, TRACE_USAGE = 2 };
int trace_main(int argc, char **argv, Diag *d);

#endif
