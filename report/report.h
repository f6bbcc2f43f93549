/* report/report.h: `--report=FILE.html`: one page that shows the plan, its prediction, and a run of it.
 *
 * The page needs no network and no other file: style, program and data are inside.  docs/report.md describes it.  Its
 * data are one JSON object, in which the plan is that of `shardc plan --format=json`; report/page/ has what draws
 * it. */
#ifndef SHARDC_REPORT_H
#define SHARDC_REPORT_H

#include "base/json.h"
#include "base/options.h"
#include "codegen/codegen.h"
#include "passes/passes.h"
#include "predict/predict.h"

/* What a report shows of a run. */
typedef struct Report {
	json_t *log;   /* rows of --report-log, NULL: not given */
	const char *log_model, *log_program; /* as its last line names them; NULL: none does */
	json_t *trace; /* that of --report-trace, as it was read; NULL: not given */
} Report;

/* Reads the files that the options of a report name.  False after messages.  The caller must report_end(). */
bool report_begin(Report *r, const Options *o, Arena *a, Diag *d);
void report_end(Report *r);

/* What the page is about: a step, of several micro-batches where the program may have them. */
typedef struct ReportOf {
	const Sizes *program;
	const Variants *v;         /* its modules at PLAN; of several sizes those of the largest */
	const CodegenPlan *plan;   /* of VARIANT_ONLY */
	const Machine *machine;    /* NULL: nothing is predicted */
	const Answers *answers;    /* of --ask; NULL: nothing is asked */
} ReportOf;
/* Whether the log is one of this model, and the trace one of this program, with a step of its largest size; false after
 * a message.  Warns of a log of a program with other ops or shapes. */
bool report_accepts(const Report *r, const Sizes *program, const Options *o, Diag *d);
/* Writes the page.  False after messages; then there is no page, or the old one. */
bool report_write(const Report *r, const ReportOf *of, const Options *o, Diag *d);

#endif
