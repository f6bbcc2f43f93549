/* report/private.h: what the files of report/ share with each other. */
#ifndef SHARDC_REPORT_PRIVATE_H
#define SHARDC_REPORT_PRIVATE_H

#include "report/report.h"

/* ---- inputs.c: what a run wrote ---- */

/* Reads the lines of a run's --log into an array of rows, [step, loss, ..] by report_columns; null where a line lacks
 * the number.  NULL after messages. */
json_t *report_read_log(const char *path, Arena *a, Diag *d);
enum { REPORT_EVAL = 9, REPORT_COLUMNS = 11 }; /* REPORT_EVAL: the column of evaluations' loss */
extern const char *const report_columns[REPORT_COLUMNS]; /* "step", "loss" */
/* Reads a trace (docs/prediction.md); NULL after messages. */
json_t *report_read_trace(const char *path, Arena *a, Diag *d);
/* Puts {"kind", "machine", "world", "rank", "slices": [[stream, begin, duration, op, mark, step], ..]}.  Times are in
 * microseconds.  op: a number as in Slice.  mark: 0 the op, 1 a wait for it, 2 its issue; 3 what the host does, with
 * op -1 and its name behind the step.  The trace must be one of the program; of several sizes the
 * largest is shown. */
void report_put_trace(FILE *f, json_t *trace, const Sizes *program, Arena *a);

/* ---- rows.c: the program as rows ---- */

/* Puts the members "ops", "params" and "memory" of the page's data, each ended by ",\n". */
void report_put_program(FILE *f, const ReportOf *of, const Options *o, Arena *a);

#endif
