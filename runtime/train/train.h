/* runtime/train/train.h: one model that trains in this process, step by step: what the binary's main (main.c) and the
 * library (lib.c) have in common.
 *
 *   session_new -> session_launch -> session_join -> session_meet -> session_load -> session_start
 *     -> (session_step -> session_result -> session_outcome -> session_advance | session_save)* -> session_leave
 *     -> session_free
 *
 * Nothing here exits, prints but to its Diag, catches a signal or starts a process. */
#ifndef SHARDC_RUNTIME_TRAIN_H
#define SHARDC_RUNTIME_TRAIN_H

#include "runtime/data/data.h"
#include "runtime/store/store.h"

/* ---- session.c, idle.c ---- */

typedef struct Session {
	Rt rt;
	RtModel model;              /* the program's, with the memory that its micro-batches a step need */
	struct RtPrivate p;
	SavePlaces places;          /* p.places */
	RtOptions o;
	Diag *d;
	Launch launch;
	DataSet train, eval;        /* the library's stay empty but for train.batch */
	SaveSet checkpoint;
	const char *resume;         /* folder of the checkpoint, or NULL */
	RunFolder folder;           /* rank 0's, behind session_folder */
	int64_t first_step, last_saved; /* last_saved: the step that needs no save any more */
	bool saved;                 /* it was this run that saved it, or has begun to */
	int ahead;                  /* steps under way: issued, their results not taken */
	CommCost costs[2], comm;    /* of those; of the step whose result was taken last */
} Session;

/* Messages go to d, which stays the caller's. */
void session_new(Session *s, const RtModel *model, Diag *d);
void session_free(Session *s);

static inline int64_t session_world(const Session *s) { return MAX(s->p.world.size, 1); }
static inline bool session_is_first(const Session *s) { return s->p.world.rank == 0; }

/* Who this process is, by s->o and the launcher's variables; 0, or EXIT_USAGE after messages. */
int session_launch(Session *s);
/* Of LAUNCH_RANK: finds the other ranks.  False after a message: the run has failed (EXIT_RUN). */
bool session_join(Session *s);
/* From options to memory that peers can read: all ranks agree on the outcome of `prepare`, what this one finds
 * out by itself, compare what must be equal, and map.  An exit code, equal on all ranks. */
typedef int SessionPrepare(void *context);
int session_meet(Session *s, SessionPrepare *prepare, void *context);
/* Parts of `prepare` for training: the checkpoint's counters and flags, the optimizer's states; then, when
 * s->o.steps is known, its hyper-parameters.  An exit code. */
int session_prepare(Session *s);
int session_configure(Session *s);
/* Takes --accum, or what the checkpoint says of it: micro-batches a step, and their memory.  An exit code. */
int session_accum(Session *s);
/* Samples of a step, of all ranks. */
static inline int64_t session_samples(const Session *s)
{
	return session_world(s) * s->train.batch * s->p.accum;
}
/* Weights or the checkpoint, and the files of --const: given[tensor] becomes true; given NULL: none may be missing.
 * All ranks know the outcome. */
bool session_load(Session *s, bool *given);
/* Streams and primitives: the first step may come.  False after a message (EXIT_RUN). */
bool session_start(Session *s);
/* The last call to other ranks.  code: this rank's exit code; after an error the others end, too. */
void session_leave(Session *s, int code);

/* Issues a step; step_depth of them may be under way.  load puts this rank's samples of a micro-batch, from sample0 on,
 * into the inputs (step_input). */
typedef void SessionLoad(void *context, char *input, int64_t sample0);
void session_step(Session *s, SessionLoad *load, void *context);
void session_result(Session *s); /* waits for the oldest step under way: s->p.result is its */
/* 0, or the exit code that the step's outcome asks for: equal on all ranks.  EXIT_INPUT: a rank met bad data
 * (report_take_bad_input); EXIT_RUN: a number is not finite and --on-nan=stop. */
int session_outcome(const Session *s);
void session_say_not_finite(const Session *s); /* of session_outcome */
void session_advance(Session *s);              /* the step counts */
/* The file of --hyper again; false, after messages: the hyper-parameters stay.  All ranks call it, between steps. */
bool session_reload(Session *s);
/* Of a process of its own, behind session_load: takes the folder of --save for this run.  An exit code. */
int session_folder(Session *s);
/* A checkpoint in s->o.save, if this step has none yet; begins it, where saves go on beside steps, when the one before
 * has ended.  All ranks know the outcome. */
bool session_save(Session *s);
/* Waits for it.  False: it was dropped. */
bool session_save_end(Session *s);
/* Behind session_result: what ranks said of a save beside the steps.  False: it failed on one, so the run ends. */
bool session_save_goes_on(Session *s);

/* idle.c: says which of the given flags change nothing in this run, and what was compiled in and is not used; the first
 * rank alone.  trains: steps are to be made; session_configure has run. */
void idle_warn(const Session *s, bool trains);

/* ---- start.c: what ranks agree on before they can talk through memory ---- */

/* Checks flags and program against the number of ranks; before any rank is started. */
bool start_check_world(const Rt *rt, Diag *d);
/* Compares with rank 0's what must be equal on all ranks.  An exit code. */
int start_compare(Rt *rt, const DataSet *train, const DataSet *eval, Diag *d);
/* Whether communication gets threads: as asked, else where cores are left. */
bool start_comm_threads(const Rt *rt);

/* ---- signals.c ---- */

extern _Atomic int report_stop_signal; /* that this process was sent; 0 = none */
extern _Atomic int report_save_signal; /* SIGUSR1: 1 = asked to save */
/* Before the process has a second thread: all inherit that the signals of a run are blocked. */
void signals_block(const RtOptions *o);
/* A thread takes them from here on; false after a message: there is none.  SIGINT and SIGTERM end the process until
 * signals_catch_stops: then they ask for a stop; second: one of a kind that has been seen ends it, still. */
bool signals_start(const RtOptions *o, Diag *d);
void signals_catch_stops(bool second);

/* ---- log.c ---- */

typedef struct Log {
	int fd;                     /* -1: there is no file */
	const char *path;
	int error;                  /* errno of the first write that failed, 0: none did */
	bool cut;                   /* the file's last line has no end */
	Buf line;
	bool terminal, dirty;       /* dirty: a progress line stands on the terminal */
	int64_t n_steps, every, seen; /* seen: steps of this run */
	double total_ms, shown_ms;  /* of those steps; when the terminal's line was last written */
} Log;
typedef struct StepRecord {
	int64_t step;
	double epoch, lr, ms, samples_per_s, tokens_per_s;
	double save_ms;             /* that no step ran for a save, since the line before */
	CommCost comm;
	int64_t peak_bytes;
	double loss_scale;
	StepResult result;
} StepRecord;
bool log_open(Log *log, const char *path, bool append, int64_t n_steps, Diag *d);
void log_step(Log *log, const StepRecord *r);
void log_eval(Log *log, int64_t step, const StepResult *r, int64_t n_samples);
/* New hyper-parameters, or (json NULL) a file that was refused. */
void log_hyper(Log *log, int64_t step, const char *json);
void log_clear_line(Log *log);  /* before anything else is printed */
bool log_close(Log *log, Diag *d);

/* ---- eval.c, infer.c, print_plan.c ---- */

/* One pass over the set; false after bad input. */
bool eval_run(Rt *rt, const DataSet *set, StepResult *out, int64_t *n_samples, Diag *d);
int infer_run(Rt *rt, Diag *d);
void plan_print(const Rt *rt, FILE *out);

#endif
