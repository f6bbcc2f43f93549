/* runtime/train/main.c: the training binary: its process, the ranks it starts, data, the step loop, the log.
 *
 * With several ranks the first prints and logs.  A signal that ends a run travels with the step's sums, so all ranks
 * leave the loop after the same step.
 *
 * session.c, which the library shares, runs steps; this file adds what belongs to the process: signals, files, and when
 * to evaluate, save and stop. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "runtime/train/train.h"

typedef struct Run {
	Session s;
	Log log;
	int64_t last_eval;
	double since;       /* ms: time of the last result, or when steps began again */
	double save_ms;     /* ms spent on saves since the last line of the log */
	bool has_eval;
	bool reload;        /* some rank was asked to read --hyper again */
	bool save;          /* some rank was asked to save */
	bool has_parent;    /* started by --ranks: the parent handles a second stop signal */
} Run;

/* Handles SIGBUS, which the system sends when a mapped file has become shorter. */
static void on_lost_file(int number)
{
	static const char text[] = "\nerror: a file was cut short while the program was reading it\n";
	(void)number;
	ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
	(void)written;
	_exit(EXIT_RUN);
}

static void catch_faults(void)
{
	struct sigaction lost = {.sa_handler = on_lost_file};
	sigaction(SIGBUS, &lost, NULL);
	signal(SIGXFSZ, SIG_IGN); /* then a file size limit is an error of write, as a full disk is */
}

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static const Session *running; /* of this process, which kernel_failed has no other way to know */

PRINTF_LIKE(1, 2) static void kernel_failed(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fprintf(stderr, "%s%s: error: ", running->d->prefix ? running->d->prefix : "", running->o.program);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(EXIT_RUN);
}

/* The signal for which all ranks stop; 0 = none. */
static int stop_signal(const Run *run)
{
	return session_world(&run->s) > 1 ? (int)MAX(run->s.p.sums.asked.stop, 0) : report_stop_signal;
}

/* ---- one step ---- */

static void load_batch(void *context, char *input, int64_t sample0)
{
	Session *s = context;
	data_load(&s->train, input, sample0);
	data_prefetch(&s->train, sample0 + session_world(s) * s->train.batch);
}

/* Each rank that met bad data reports it. */
static void blame_data(Run *run)
{
	Session *s = &run->s;
	BadInput bad;
	char when[64];
	if (!report_take_bad_input(&bad))
		return;
	snprintf(when, sizeof(when), "step %" PRId64, s->p.progress.step + 1);
	log_clear_line(&run->log);
	data_blame(&s->train, s->p.bad_sample0, when, &bad, s->o.program, s->d);
}

/* Returns 0 or an exit code. */
static int check_step(Run *run)
{
	int code = session_outcome(&run->s);
	if (run->s.p.check.found)
		log_clear_line(&run->log);
	check_say(&run->s.rt, run->s.d);
	if (code == EXIT_INPUT)
		blame_data(run);
	if (code != EXIT_RUN)
		return code;
	log_clear_line(&run->log);
	if (session_is_first(&run->s))
		session_say_not_finite(&run->s);
	return code;
}

static void log_record(Run *run, double ms)
{
	Session *s = &run->s;
	const struct RtPrivate *p = &s->p;
	double samples_per_s = (double)session_samples(s) / MAX(ms, 1e-6) * 1e3;
	StepRecord r = {.step = p->progress.step, .lr = p->scalars.lr, .ms = ms, .samples_per_s = samples_per_s,
		.epoch = (double)p->progress.samples / (double)s->train.n_samples,
		.tokens_per_s = samples_per_s * (double)data_tokens(&s->train, s->size), .peak_bytes = p->memory.total,
		.save_ms = run->save_ms, .loss_scale = (double)p->scalars.loss_scale, .result = p->result, .comm = s->comm,
		.size = s->rt.model->n_sizes ? s->rt.model->sizes[s->size].name : NULL};
	run->save_ms = 0;
	trace_host(&s->rt, TRACE_LOG);
	if (session_is_first(s))
		log_step(&run->log, &r);
	trace_host(&s->rt, TRACE_LOOP);
}

static bool evaluate(Run *run)
{
	Session *s = &run->s;
	StepResult r;
	int64_t n, step = s->p.progress.step;
	if (!run->has_eval || run->last_eval == step)
		return true;
	run->last_eval = step;
	trace_host(&s->rt, TRACE_EVAL);
	streams_program(&s->rt, PROGRAM_OUTSIDE);
	average_begin(&s->rt);
	bool ok = eval_run(&s->rt, &s->eval, &r, &n, s->d);
	average_end(&s->rt);
	trace_host(&s->rt, TRACE_LOOP);
	if (!ok || !session_is_first(s))
		return ok;
	log_eval(&run->log, step, &r, n);
	if (n < s->eval.n_samples)
		printf("  (%" PRId64 " sample%s left out, only whole batches of %" PRId64 " are evaluated: %s)\n",
			s->eval.n_samples - n, s->eval.n_samples - n == 1 ? "" : "s", s->eval.batch, s->rt.model->loss.whole);
	return true;
}

static bool save(Run *run)
{
	log_clear_line(&run->log);
	if (run->save && session_is_first(&run->s))
		diag_note(run->s.d, run->s.o.save, "asked by a signal: saves after step %" PRId64, run->s.p.progress.step);
	double begin = now_ms();
	trace_host(&run->s.rt, TRACE_SAVE);
	bool ok = session_save(&run->s);
	trace_host(&run->s.rt, TRACE_LOOP);
	run->save_ms += now_ms() - begin;
	return ok;
}

/* Writes to the log and to stderr which hyper-parameters are in force from the next step on. */
static void log_hyper_now(Run *run, bool ok)
{
	Session *s = &run->s;
	Buf b = {0};
	if (ok)
		hyper_put(&b, s->p.arena, s->rt.model, s->p.hyper);
	log_hyper(&run->log, s->p.progress.step, ok ? b.at : NULL);
	log_clear_line(&run->log);
	diag_note(s->d, s->o.hyper ? s->o.hyper : s->resume, "after step %" PRId64 ": %s%s", s->p.progress.step,
		ok ? "in force: " : "refused; what was in force stays", ok ? b.at : "");
	buf_free(&b);
}

/* All ranks know that one was asked to reload. */
static void reload(Run *run)
{
	Session *s = &run->s;
	if (!run->reload || !s->o.hyper)
		return;
	run->reload = false;
	log_clear_line(&run->log);
	bool ok = session_reload(s);
	if (session_is_first(s))
		log_hyper_now(run, ok);
}

/* Whether a step may begin.  While others are under way it may not if an evaluation, a save or new hyper-parameters
 * have to come before it, because these must see all earlier steps and no later one. */
static bool may_begin(const Run *run)
{
	const Session *s = &run->s;
	const RtOptions *o = &s->o;
	int64_t begun = s->p.progress.step + s->ahead;
	bool eval = o->eval_every && begun % o->eval_every == 0, save = o->save_every && begun % o->save_every == 0;
	if (begun >= o->steps || stop_signal(run))
		return false;
	return s->ahead == 0 || (s->ahead < step_depth(&s->rt) && !eval && !save && !run->reload && !run->save);
}

static void begin_steps(Run *run)
{
	Session *s = &run->s;
	while (may_begin(run)) {
		if (s->ahead == 0)
			run->since = now_ms();
		int64_t n = session_samples(s);
		session_size(s, data_size(&s->train, s->p.progress.samples + s->ahead * n, n));
		session_step(s, load_batch, s);
	}
}

/* Waits for the steps under way after one that ends the run. */
static void drain(Session *s)
{
	while (s->ahead)
		session_result(s);
}

/* Ends the oldest step under way.  Returns 0 or an exit code; in the latter case it also waits for the later steps.
 * These changed nothing, except after a good step at which a save failed, and then nothing of them is kept. */
static int end_step(Run *run)
{
	Session *s = &run->s;
	session_result(s);
	int code = check_step(run);
	if (code) {
		drain(s);
		return code;
	}
	session_advance(s);
	double now = now_ms();
	log_record(run, now - run->since);
	run->since = now;
	run->reload |= s->p.sums.asked.reload > 0;
	run->save |= s->p.sums.asked.save > 0;
	if (session_save_goes_on(s))
		return EXIT_DONE;
	drain(s);
	return EXIT_RUN;
}

static int step_loop(Run *run)
{
	Session *s = &run->s;
	const Progress *p = &s->p.progress;
	const RtOptions *o = &s->o;
	for (begin_steps(run); s->ahead; begin_steps(run)) {
		int code = end_step(run);
		if (code)
			return code;
		if (s->ahead)
			continue;
		reload(run);
		if (o->eval_every && p->step % o->eval_every == 0 && !evaluate(run))
			return EXIT_INPUT;
		if (((o->save_every && p->step % o->save_every == 0) || run->save) && !save(run))
			return EXIT_RUN;
		run->save = false;
	}
	if (!stop_signal(run) && !evaluate(run))
		return EXIT_INPUT;
	return save(run) ? EXIT_DONE : EXIT_RUN;
}

/* Called when all saves have ended without an error. */
static void print_end(const Run *run, double seconds)
{
	const RtOptions *o = &run->s.o;
	int64_t step = run->s.p.progress.step;
	bool saved = run->s.saved && run->s.last_saved == step;
	if (stop_signal(run))
		printf("stopped by %s after step %" PRId64 "%s%s\n", strsignal(stop_signal(run)), step,
			saved ? "; saved in " : o->save ? "; no step was done, so nothing was to be saved" : "",
			saved ? o->save : "");
	else if (step == run->s.first_step)
		printf("nothing to train: step %" PRId64 " of %" PRId64 " is done\n", step, o->steps);
	else
		printf("trained to step %" PRId64 ": loss %.4f, %.1f s\n", step, run->s.p.result.loss, seconds);
}

/* Only the first rank has a log; all ranks learn whether it was written completely. */
static int train(Run *run)
{
	Session *s = &run->s;
	double begin = now_ms();
	if (s->p.hyper && session_is_first(s))
		log_hyper_now(run, true);
	sizes_check(s);
	int code = step_loop(run);
	log_clear_line(&run->log);
	if (!session_save_end(s) && code == EXIT_DONE)
		code = EXIT_RUN;
	if (code == EXIT_DONE && session_is_first(s))
		print_end(run, (now_ms() - begin) / 1e3);
	streams_program(&s->rt, PROGRAM_OUTSIDE);
	if (code == EXIT_DONE && s->o.check_replicas && !replicas_check(&s->rt, s->d))
		code = EXIT_RUN;
	Held held;
	Diag *d = agree_begin(&held, s->d);
	bool traced = trace_close(&s->rt, d), ok = log_close(&run->log, d) && traced;
	if (!agree_end(&s->rt, &held, ok, s->d) && code == EXIT_DONE)
		code = EXIT_RUN;
	return code;
}

/* ---- --time-ops ---- */

static int timed_step(void *context)
{
	Run *run = context;
	session_step(&run->s, load_batch, &run->s);
	session_result(&run->s);
	return check_step(run);
}

/* At rate 0 updates compute what they always do, and weights stay as they are. */
static int time_ops(Run *run)
{
	Session *s = &run->s;
	s->p.optim.lr = (LrSchedule){.kind = SCHEDULE_CONSTANT};
	session_size(s, data_size(&s->train, s->p.progress.samples, session_samples(s)));
	return device_time_ops(&s->rt, timed_step, run, s->d);
}

/* ---- before the first step ---- */

/* Says which size samples take whose lengths are not given. */
static void note_lengths(const Session *s, const DataSet *set, const char *flag)
{
	if (set->sizes.model && !set->sizes.of_sample && session_is_first(s))
		diag_note(s->d, s->o.program, "no --%s: samples are as long as rows of their files and take size %s", flag,
			s->rt.model->sizes[set->sizes.of_all].name);
}

static bool open_eval_data(Run *run)
{
	Session *s = &run->s;
	const RtOptions *o = &s->o;
	const RtModel *m = s->rt.model;
	if (!o->eval_data.n && !o->eval_tokens)
		return true;
	if (!m->eval) {
		diag_error(s->d, o->program, "this program was compiled without an evaluation");
		return false;
	}
	DataFiles files = {&o->eval_data, &o->eval_lengths, o->eval_tokens, "eval-data", "eval-lengths", o->bucket};
	if (!data_open(&s->eval, m, s->p.arena, &files, s->d))
		return false;
	note_lengths(s, &s->eval, "eval-lengths");
	if (m->loss.whole && s->eval.n_samples < s->eval.batch) {
		diag_error(s->d, s->eval.columns[0].path, "%" PRId64 " sample%s less than one batch of %" PRId64
			", and only whole batches can be evaluated: %s", s->eval.n_samples,
			s->eval.n_samples == 1 ? " is" : "s are", s->eval.batch, m->loss.whole);
		return false;
	}
	run->has_eval = true;
	return true;
}

static bool open_data(Run *run)
{
	Session *s = &run->s;
	RtOptions *o = &s->o;
	DataFiles files = {&o->data, &o->lengths, o->tokens, "data", "lengths", o->bucket};
	if (!data_open(&s->train, s->rt.model, s->p.arena, &files, s->d))
		return false;
	note_lengths(s, &s->train, "lengths");
	s->train.n_samples = MAX(s->train.n_samples, 1);
	s->train.shuffle = o->text[OPT_shuffle];
	s->train.seed = (uint64_t)o->shuffle;
	if (!o->text[OPT_steps])
		o->steps = ceil_div(s->train.n_samples, session_samples(s));
	if (s->train.n_columns && s->train.n_samples < session_samples(s) && session_is_first(s))
		diag_note(s->d, s->train.columns[0].path, "%" PRId64 " sample%s fewer than the %" PRId64 " of a step: a step "
			"takes some of them more than once", s->train.n_samples, s->train.n_samples == 1 ? " is" : "s are",
			session_samples(s));
	return open_eval_data(run);
}

static void print_files(const DataSet *set, Arena *a)
{
	for (int i = 0; i < set->n_columns; i++)
		if (set->columns[i].npy.view.at)
			printf("file %s: %" PRId64 " bytes mapped\n", str_escape(a, ESCAPE_TERMINAL, set->columns[i].path),
				set->columns[i].npy.view.bytes);
}

/* Does what a rank can check by itself.  Returns an exit code. */
static int prepare(void *context)
{
	Run *run = context;
	Session *s = &run->s;
	run->last_eval = -1;
	if (!s->rt.model->optimizer) {
		diag_error(s->d, s->o.program,
			"this program was compiled for inference: --infer INDIR OUTDIR runs it");
		return EXIT_USAGE;
	}
	int code = session_prepare(s);
	if (!code && !open_data(run))
		code = EXIT_INPUT;
	return code ? code : session_configure(s);
}

/* Without data only memory is prepared, for --infer and --print-plan. */
static int prepare_memory(void *context)
{
	Session *s = &((Run *)context)->s;
	LayoutRank who = device_rank(&s->rt);
	int code = session_accum(s);
	if (code)
		return code;
	if (!optim_init(&s->p.optim, s->rt.model, &who, s->p.arena, s->o.program, s->d))
		return EXIT_INPUT;
	return s->rt.model->optimizer ? session_configure(s) : EXIT_DONE;
}

static int meet(Run *run, SessionPrepare *stage)
{
	Session *s = &run->s;
	int code = session_meet(s, stage, run);
	if (!code && s->o.print_plan && session_is_first(s)) {
		plan_print(&s->rt, stdout);
		if (s->rt.model->optimizer)
			optim_print_groups(&s->p.optim, s->rt.model, stdout);
		print_files(&s->train, s->p.arena);
		print_files(&s->eval, s->p.arena);
		fflush(stdout); /* the progress line of a terminal goes to another stream */
	}
	return code;
}

static bool is_same_file(const char *a, const char *b)
{
	struct stat sa, sb;
	return a && b && !stat(a, &sa) && !stat(b, &sb) && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

static bool log_is_no_input(const Session *s, Diag *d)
{
	const DataSet *sets[] = {&s->train, &s->eval};
	bool same = is_same_file(s->o.log, s->o.hyper);
	for (int k = 0; k < COUNT_OF(sets); k++)
		for (int i = 0; i < sets[k]->n_columns; i++)
			same = same || is_same_file(s->o.log, sets[k]->columns[i].path);
	bool traces = false;
	for (int rank = 0; s->o.trace && rank < MAX(s->p.world.size, 1); rank++)
		traces = traces || is_same_file(s->o.log, trace_path(&s->rt, rank, s->p.arena));
	if (same || traces)
		diag_error(d, s->o.log, "is %s by this run: it is not replaced; give --log another path",
			same ? "read" : "written with --trace");
	return !same && !traces;
}

static bool open_log(Run *run)
{
	Session *s = &run->s;
	Held held;
	Diag *d = agree_begin(&held, s->d);
	Arena *a = s->p.arena;
	const char *about = arena_printf(a, ", \"model\": \"%s\", \"program\": \"%016" PRIx64 "\"",
		str_escape(a, ESCAPE_JSON, s->rt.model->name), s->rt.model->hash);
	bool ok = !session_is_first(s) || (log_is_no_input(s, d) &&
		log_open(&run->log, s->o.log, s->resume, s->o.steps, about, d));
	return agree_end(&s->rt, &held, ok, s->d);
}

/* The steps that --trace records are counted from the first one of this run. */
static bool open_trace(Run *run)
{
	Session *s = &run->s;
	const RtOptions *o = &s->o;
	const OptionRANGE wanted = o->text[OPT_trace_steps] ? o->trace_steps : (OptionRANGE){3, 7};
	int64_t n = o->steps - s->first_step;
	Held held;
	if (o->trace && n < 1 && session_is_first(s))
		diag_warn(s->d, "--trace", "no step is traced: none is left to train");
	if (!o->trace || n < 1)
		return true;
	Diag *d = agree_begin(&held, s->d);
	bool turns = start_takes_turns(&s->rt), ok = !o->text[OPT_trace_steps] || wanted.last <= n;
	if (!ok)
		diag_error(d, o->program, "--trace-steps=%s: this run has %" PRId64 " step%s", o->text[OPT_trace_steps], n,
			n == 1 ? "" : "s");
	OptionRANGE steps = {s->first_step + MIN(wanted.first, n), s->first_step + MIN(wanted.last, n)};
	ok = ok && trace_open(&s->rt, steps.first, steps.last, turns, d);
	if (ok && s->rt.model->need_cuda && session_is_first(s))
		diag_note(s->d, o->trace, "steps up to %" PRId64 " run call by call, not as CUDA graphs, so that events "
			"take the time of each op", steps.last);
	return agree_end(&s->rt, &held, ok, s->d);
}

static int train_all(Run *run)
{
	Session *s = &run->s;
	int code = meet(run, prepare);
	if (code)
		return code;
	idle_warn(s, true);
	if (s->o.time_ops)
		return !session_load(s, NULL) ? EXIT_INPUT : session_start(s) ? time_ops(run) : EXIT_RUN;
	if (!session_load(s, NULL) || session_folder(s) || !open_trace(run) || !open_log(run))
		return EXIT_INPUT;
	if (!run->has_parent)
		signals_catch_stops(true);
	return session_start(s) ? train(run) : EXIT_RUN;
}

static bool has_data(const RtOptions *o)
{
	return o->data.n || o->tokens;
}

static int run_program(Run *run)
{
	const RtOptions *o = &run->s.o;
	running = &run->s;
	k_fail = kernel_failed;
	catch_faults();
	if (!o->infer.in && (!o->print_plan || has_data(o)))
		return train_all(run);
	int code = meet(run, prepare_memory);
	if (!code)
		idle_warn(&run->s, false);
	return code ? code : o->infer.in ? infer_run(&run->s.rt, run->s.d) : EXIT_DONE;
}

/* Runs one rank, from its first message to other ranks to its last. */
static int run_rank(Run *run)
{
	run->has_parent = run->s.launch.hub_fd >= 0;
	if (run->has_parent)
		signals_catch_stops(false);
	if (!signals_start(&run->s.o, run->s.d) || !session_join(&run->s))
		return EXIT_RUN;
	int code = run_program(run);
	session_leave(&run->s, code);
	return code;
}

/* Flags that want steps, or what comes of them. */
static bool check_timed(const Session *s)
{
	static const OptionId wants_steps[] = {OPT_save, OPT_log, OPT_trace, OPT_eval_data, OPT_eval_tokens, OPT_accum,
		OPT_check_replicas, OPT_infer};
	const RtOptions *o = &s->o;
	bool ok = true;
	for (int i = 0; o->time_ops && i < COUNT_OF(wants_steps); i++)
		if (o->given[wants_steps[i]]) {
			diag_error(s->d, o->program, "--%s is refused with --time-ops, which trains nothing and keeps nothing",
				option_info[wants_steps[i]].flag);
			ok = false;
		}
	return ok;
}

/* Refuses combinations of flags that are of no use in the binary, though the library's model_load and model_save may
 * use them. */
static bool check_flags(const Session *s)
{
	const RtOptions *o = &s->o;
	bool strict = o->text[OPT_strict] && !o->resume, kind = o->text[OPT_save_kind] && !o->save;
	if (strict)
		diag_error(s->d, o->program, "--strict needs --resume");
	if (kind)
		diag_error(s->d, o->program, "--save-kind needs --save DIR");
	return check_timed(s) && !strict && !kind;
}

static int run_ranks(Run *run, int argc, char **argv)
{
	Session *s = &run->s;
	Launch *launch = &s->launch;
	signals_block(&s->o);
	int code = session_launch(s);
	if (!check_flags(s))
		code = EXIT_USAGE;
	if (code)
		return code;
	if (launch->role == LAUNCH_PARENT)
		return launch_ranks(launch, &s->o, argc, argv, s->d);
	if (launch->carrier && launch->role == LAUNCH_RANK && !comm_start(launch, &s->o, s->p.arena, s->d))
		return EXIT_RUN;
	code = run_rank(run);
	comm_stop(&launch->world, code);
	return code;
}

/* By default OpenMP's threads spin long at barriers, which makes steps of a small model 14 times slower when other work
 * needs the cores.  A short spin before sleeping costs nothing on an idle machine.  libgomp reads its environment when
 * it is loaded, so the program executes itself once more; if that fails, it continues as it is. */
static void spin_briefly(char **argv)
{
	if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
		return;
	setenv("GOMP_SPINCOUNT", "2000", 1);
	execv("/proc/self/exe", argv);
}

/* If a standard stream was closed, opens /dev/null in its place, so that a socket or a checkpoint does not become the
 * standard output. */
static void open_standard_files(void)
{
	int fd;
	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

/* Prints --help with the defaults of this program and the flags that it refuses. */
static void print_help(Session *s)
{
	const char *note[OPT_COUNT] = {NULL};
	for (int i = 0; i < OPT_COUNT; i++)
		note[i] = optim_help(s->rt.model, (OptionId)i, s->p.arena);
	options_print_help(&s->o, note, stdout);
}

int rt_main(int argc, char **argv, const RtModel *model)
{
	open_standard_files();
	device_unbind();
	spin_briefly(argv);
	const char *slash = strrchr(argv[0], '/');
	prctl(PR_SET_NAME, slash ? slash + 1 : argv[0]); /* because a process started as /proc/self/exe is called "exe" */
	Diag d = {.out = stderr};
	Run run;
	memset(&run, 0, sizeof(run));
	session_new(&run.s, model, &d);
	const RtOptions *o = &run.s.o;
	int code = EXIT_DONE;
	if (!options_parse(&run.s.o, run.s.p.arena, argc, argv, &d))
		code = EXIT_USAGE;
	else if (o->help)
		print_help(&run.s);
	else if (o->version)
		printf("%s: %s\n%s\n%s", model->name, model->versions, model->options, model->world ?
			arena_printf(run.s.p.arena, "for %" PRId64 " ranks only\n", model->world) : "");
	else
		code = run_ranks(&run, argc, argv);
	if (!file_flush_stdout(&d) && code == EXIT_DONE)
		code = EXIT_RUN;
	session_free(&run.s);
	return code;
}
