/* runtime/train/train.h: a session trains one model in this process, step by step.  The binary's main (main.c) and the
 * library (lib.c) share it.
 *
 *   session_new -> session_launch -> session_join -> session_meet -> session_load -> session_start
 *     -> (session_step -> session_result -> session_outcome -> session_advance | session_save)* -> session_leave
 *     -> session_free
 *
 * A session does not exit, catch signals or start processes, and prints to its Diag only. */
#ifndef SHARDC_RUNTIME_TRAIN_H
#define SHARDC_RUNTIME_TRAIN_H

#include "runtime/data/data.h"
#include "runtime/store/store.h"

/* ---- session.c, idle.c ---- */

typedef struct Session {
	Rt rt;
	RtModel model;              /* a copy of the program's, with the memory plan for the number of micro-batches in a
	                             * step */
	struct RtPrivate p;
	SavePlaces places;          /* p.places */
	RtOptions o;
	Diag *d;
	Launch launch;
	DataSet train, eval;        /* in the library they stay empty except for train.batch */
	SaveSet checkpoint;
	const char *resume;         /* folder of the checkpoint, or NULL */
	RunFolder folder;           /* of rank 0, after session_folder */
	int64_t first_step, last_saved; /* last_saved: the last step whose checkpoint exists or has been begun */
	bool saved;                 /* this run saved it or has begun to */
	int ahead;                  /* steps under way: issued, but their results not taken */
	int sizes[2], size;         /* the sizes of the steps under way; of the step whose result was taken last */
	CommCost costs[2], comm;    /* costs: of the steps under way; comm: of the step whose result was taken last */
} Session;

/* Messages go to d, which the caller keeps. */
void session_new(Session *s, const RtModel *model, Diag *d);
void session_free(Session *s);

static inline int64_t session_world(const Session *s) { return MAX(s->p.world.size, 1); }
static inline bool session_is_first(const Session *s) { return s->p.world.rank == 0; }

/* Finds out which rank this process is, from s->o and the launcher's variables; 0, or EXIT_USAGE after messages. */
int session_launch(Session *s);
/* For LAUNCH_RANK: finds the other ranks.  False after a message: the run has failed (EXIT_RUN). */
bool session_join(Session *s);
/* Goes from options to memory that peers can read: `prepare` does what this rank can check by itself; then all ranks
 * agree on its outcome, compare what must be equal, and map memory.  Returns an exit code, equal on all ranks. */
typedef int SessionPrepare(void *context);
int session_meet(Session *s, SessionPrepare *prepare, void *context);
/* Parts of `prepare` for training.  session_prepare reads the checkpoint's counters and flags and sets up the
 * optimizer; session_configure, once s->o.steps is known, sets its hyper-parameters.  Both return an exit code. */
int session_prepare(Session *s);
int session_configure(Session *s);
/* Sets the number of micro-batches of a step from --accum or from the checkpoint, and the memory plan for it.  Returns
 * an exit code. */
int session_accum(Session *s);
/* Samples of a step, of all ranks. */
static inline int64_t session_samples(const Session *s)
{
	return session_world(s) * s->train.batch * s->p.accum;
}
/* Loads weights or the checkpoint, and the files of --const: given[tensor] becomes true for these; given NULL: none may
 * be missing.  The result is equal on all ranks. */
bool session_load(Session *s, bool *given);
/* Starts streams and makes primitives, after which the first step can run.  False after a message (EXIT_RUN). */
bool session_start(Session *s);
/* The last communication with other ranks.  code: this rank's exit code; after an error the others end, too. */
void session_leave(Session *s, int code);

/* The size at which the next step, or evaluations, run; all ranks say the same. */
void session_size(Session *s, int size);
/* Issues a step; up to step_depth steps may be under way.  `load` puts this rank's samples of a micro-batch, from
 * sample0 on, into `input` (step_input). */
typedef void SessionLoad(void *context, char *input, int64_t sample0);
void session_step(Session *s, SessionLoad *load, void *context);
void session_result(Session *s); /* waits for the oldest step under way and sets s->p.result */
/* Returns 0, or the exit code with which the step's outcome ends the run; equal on all ranks.  EXIT_INPUT: a rank met
 * bad data (report_take_bad_input); EXIT_RUN: a number is not finite and --on-nan=stop. */
int session_outcome(const Session *s);
void session_say_not_finite(const Session *s); /* prints the message for EXIT_RUN of session_outcome */
void session_advance(Session *s);              /* counts the step */
/* Reads the file of --hyper again; false after messages: the hyper-parameters stay as they were.  All ranks call it,
 * between steps. */
bool session_reload(Session *s);
/* Called by the binary, after session_load: takes the folder of --save for this run.  Returns an exit code. */
int session_folder(Session *s);
/* Writes a checkpoint into s->o.save, if this step has none yet; where saves go on beside steps, waits for the previous
 * one and begins it.  The result is equal on all ranks. */
bool session_save(Session *s);
/* Waits for the save under way.  False: it was dropped. */
bool session_save_end(Session *s);
/* Called after session_result: acts on what ranks reported about a save beside the steps.  False: it failed on some
 * rank, so the run ends. */
bool session_save_goes_on(Session *s);

/* idle.c: notes which of the given flags change nothing in this run, and which compiled-in features are not used; only
 * the first rank prints.  trains: steps will be made and session_configure has run. */
void idle_warn(const Session *s, bool trains);

/* ---- start.c: what ranks agree on before they can talk through memory ---- */

/* Checks flags and program against the number of ranks, before any rank is started. */
bool start_check_world(const Rt *rt, Diag *d);
/* Compares what must be equal on all ranks with rank 0.  Returns an exit code. */
int start_compare(Rt *rt, const DataSet *train, const DataSet *eval, Diag *d);
/* Whether collectives get threads: as --comm-threads says, else if every rank has a core to spare. */
bool start_comm_threads(const Rt *rt);
/* Whether the ranks of this host have more threads than cores.  All ranks call it. */
bool start_takes_turns(const Rt *rt);

/* ---- signals.c ---- */

extern _Atomic int report_stop_signal; /* the signal that asked this process to stop; 0 = none */
extern _Atomic int report_save_signal; /* SIGUSR1: 1 = asked to save */
/* Called before the process has a second thread, so that all threads inherit that the signals of a run are blocked. */
void signals_block(const RtOptions *o);
/* Starts the thread that takes these signals; false after a message.  SIGINT and SIGTERM end the process until
 * signals_catch_stops is called; from then on they ask for a stop.  second: a second signal of the same kind still ends
 * the process. */
bool signals_start(const RtOptions *o, Diag *d);
void signals_catch_stops(bool second);

/* ---- log.c ---- */

typedef struct Log {
	int fd;                     /* -1: there is no file */
	const char *path, *about;   /* about: as of log_open */
	int error;                  /* errno of the first write that failed, 0: none did */
	bool cut;                   /* the file's last line does not end with a newline */
	Buf line;
	bool terminal, dirty;       /* dirty: a progress line stands on the terminal */
	int64_t n_steps, every, seen; /* seen: steps of this run */
	double total_ms, shown_ms;  /* total_ms: of those steps; shown_ms: when the terminal's line was last written */
} Log;
typedef struct StepRecord {
	int64_t step;
	double epoch, lr, ms, samples_per_s, tokens_per_s;
	double save_ms;             /* ms in which no step ran because of a save, since the previous line */
	CommCost comm;
	int64_t peak_bytes;
	double loss_scale;
	const char *size;           /* "seq=128"; NULL: the program has one */
	StepResult result;
} StepRecord;
/* about: members that tell the program from others, ", \"key\": ..", of each line of a step; kept by reference. */
bool log_open(Log *log, const char *path, bool append, int64_t n_steps, const char *about, Diag *d);
void log_step(Log *log, const StepRecord *r);
void log_eval(Log *log, int64_t step, const StepResult *r, int64_t n_samples);
/* Logs new hyper-parameters, or (json NULL) that a file was refused. */
void log_hyper(Log *log, int64_t step, const char *json);
void log_clear_line(Log *log);  /* called before anything else is printed */
bool log_close(Log *log, Diag *d);

/* ---- sizes.c ---- */

/* Warns if padding changes the loss of the run's first samples.  Called between session_start and the first step; all
 * ranks call it. */
void sizes_check(Session *s);

/* ---- eval.c, infer.c, print_plan.c ---- */

/* Evaluates the whole set once; false after bad input. */
bool eval_run(Rt *rt, DataSet *set, StepResult *out, int64_t *n_samples, Diag *d);
int infer_run(Rt *rt, Diag *d);
void plan_print(const Rt *rt, FILE *out);

#endif
