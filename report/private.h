/* report/private.h: what the files of report/ share with each other. */
#ifndef SHARDC_REPORT_PRIVATE_H
#define SHARDC_REPORT_PRIVATE_H

#include "report/report.h"

/* ---- parts.c: the programs of the step that is shown ---- */

/* A program of the step: that of its only micro-batch, or of some of several.  first: the number of its first op among
 * those of all parts. */
typedef struct StepPart {
	Variant of;
	Module *m;
	int64_t times;           /* micro-batches that run it, one after the other */
	int first, n_ops;
} StepPart;
typedef struct StepParts { StepPart at[VARIANT_COUNT]; int n; int64_t micro_batches; } StepParts;
/* Of a program that may have several micro-batches a step has those of --global-batch, or else one of each kind: first,
 * middle and last.  Of several sizes the largest is shown. */
StepParts report_parts(const Sizes *program, const Options *o);
/* Puts the member "parts" of the page's data, [name, times, first op, ops] of each, ended by ",\n". */
void report_put_parts(FILE *f, const StepParts *p);

/* ---- inputs.c: what a run wrote ---- */

/* Reads the lines of a run's --log into rows of r, [step, loss, ..] by report_columns, null where a line lacks the
 * number, and what they name.  False after messages. */
bool report_read_log(Report *r, const char *path, Arena *a, Diag *d);
enum { REPORT_EVAL = 9, REPORT_COLUMNS = 11 }; /* REPORT_EVAL: the column of evaluations' loss */
extern const char *const report_columns[REPORT_COLUMNS]; /* "step", "loss" */
/* Reads a trace (docs/prediction.md); NULL after messages. */
json_t *report_read_trace(const char *path, Arena *a, Diag *d);
/* Puts {"kind", "machine", "world", "rank", "slices": [[stream, begin, duration, op, mark, step], ..]}.  Times are in
 * microseconds.  op: its number among those of all parts.  mark: 0 the op, 1 a wait for it, 2 its issue; 3 what the
 * host does, with op -1 and its name behind the step.  The trace must be one of the program; of several sizes the
 * largest is shown. */
void report_put_trace(FILE *f, json_t *trace, const Sizes *program, const StepParts *parts, Arena *a);

/* ---- rows.c: the program as rows ---- */

/* Puts the members "ops", "collectives", "params", "memory" and "peak" of the page's data, each ended by ",\n". */
void report_put_program(FILE *f, const ReportOf *of, const StepParts *parts, const Options *o, Arena *a);

#endif
