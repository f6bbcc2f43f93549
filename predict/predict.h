/* predict/predict.h: `shardc plan --machine=FILE`: how long a step of the planned program takes on a machine. */
#ifndef SHARDC_PREDICT_H
#define SHARDC_PREDICT_H

#include "base/options.h"
#include "passes/passes.h"
#include "predict/machine.h"

/* Reads the machine of --machine, and checks options of predictions against it and each other.  Where --hosts is not
 * given, it becomes the number of hosts that --world takes.  False after messages; without --machine *out is NULL. */
bool predict_begin(Options *o, Machine **out, Arena *a, Diag *d);
/* Warns of what the machine has not: GPUs of --arch, as much memory as --memory-limit.  predict_begin warns, too. */
void predict_warn(const Options *o, const Machine *m, Diag *d);
/* Whether all that a step of this program does is predicted for the machine; false after messages. */
bool predict_accepts(const Module *m, const LayoutModel *layout, const Machine *machine, Diag *d);
/* How many micro-batches of `batch` samples on each rank are the step of --global-batch, which is 1 if that is not
 * given; 0: no whole number, or more than a program of these options runs. */
int64_t predict_micro_batches(const Options *o, int64_t batch);
/* Whether there is such a number; false after a message.  batch: 0 where the model has no samples. */
bool predict_divides(const Options *o, int64_t batch, Diag *d);
/* How often a step of so many micro-batches runs each variant. */
int64_t predict_runs(int64_t micro_batches, Variant k);
/* Whether what --ask asks can be planned; false after a message. */
bool predict_asks(const Options *o, const Restart *start, Diag *d);

typedef struct PlanNeeds {
	int64_t bytes, pinned;   /* of a rank; and of memory of its host */
	int64_t batch;           /* samples of a micro-batch; 0: the model has none */
} PlanNeeds;

/* What the caller does to plan from the model itself, in silence. */
typedef struct PlanAgain {
	/* Chooses recomputation for a plan with these options, as --remat=auto does within their --memory-limit: a policy
	 * of pass remat in the arena; NULL: there is none. */
	const char *(*recompute)(const Options *o, void *context, Arena *a);
	/* What a rank needs when the model is read and planned with these options; false: they are refused. */
	bool (*memory)(const Options *o, PlanNeeds *out, void *context);
	void *context;
} PlanAgain;

/* A program at PLAN, and how to plan it with other options. */
typedef struct AskOf {
	const Sizes *program;
	const Restart *start;   /* where planning begins again */
	const Machine *machine;
	const PlanAgain *again;
} AskOf;
/* Finds what --ask asks, where predict_accepts and predict_asks say yes.  The result lives in the arena. */
typedef struct Answers Answers;
Answers *answers_find(const AskOf *of, const Options *o, Arena *a);

typedef struct PredictOf {
	const Sizes *program;
	const Machine *machine;
	const Answers *answers; /* NULL: nothing is asked */
} PredictOf;
/* Prints the prediction of the program's largest size in the format of o, and the answers, and writes --trace; false
 * after messages.  --global-batch must divide.  In JSON these are members of the plan's object, each ended by ",\n". */
bool predict_show(FILE *f, const PredictOf *of, const Options *o, Diag *d);
/* Writes the prediction of a step of so many micro-batches, of the largest size, as a trace (docs/trace.md), in which
 * those between the first and the last are there once. */
void predict_trace(FILE *f, const Sizes *program, const Machine *m, int64_t micro_batches, const Options *o);

/* ---- diff.c ---- */

#define TRACE_LONGEST 1e15 /* microseconds that a trace may say, thirty years */
/* `shardc trace diff A.json B.json [--top=N]`; argv[0] is "trace".  Returns the exit code. */
enum { TRACE_OK = 0, TRACE_INPUT = 1, TRACE_USAGE = 2 };
int trace_main(int argc, char **argv, Diag *d);

#endif
