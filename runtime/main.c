/* runtime/main.c: the training run: options, ranks, memory, data, the step loop, checkpoints at its edges.
 *
 * Of several ranks the first prints and logs; what ends a run (a signal, bad data, numbers that are not finite) is
 * agreed in the step's scalars, so all ranks leave the loop after the same step.
 *
 * The one idea: all state of a run is in the mapped arenas and in three counters (Progress), so a step
 * can be repeated, left out or resumed by setting them. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "runtime/internal.h"
#include "runtime/mpi.h"

typedef struct Run {
	Rt *rt;
	RtOptions *o;
	Diag *d;
	DataSet train, eval;
	Log log;
	Checkpoint checkpoint;
	int64_t first_step, last_saved, last_eval;
	bool has_eval;
	bool has_parent;    /* of --ranks: a second stop signal is the parent's to act on */
	const char *resume; /* folder of the checkpoint, or NULL */
} Run;

static void on_signal(int number)
{
	report_stop_signal = number;
}

/* The system's way to say that a mapped file no longer reaches as far as it did. */
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
	signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of write, as a full disk is */
}

/* `once`: the second signal of a kind ends the program at once. */
static void catch_stops(bool once)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)((once ? SA_RESETHAND : 0) | SA_RESTART)};
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

PRINTF_LIKE(1, 2) static void kernel_failed(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fputs("error: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(EXIT_RUN);
}

static int64_t world(const Run *run)
{
	return MAX(run->rt->p->world.size, 1);
}

static bool is_first(const Run *run)
{
	return run->rt->p->world.rank == 0;
}

/* The signal that all ranks stop for, 0 = none. */
static int stop_signal(const Run *run)
{
	return world(run) > 1 ? (int)MAX(run->rt->p->sums.stop, 0) : report_stop_signal;
}

/* ---- one step ---- */

static void run_step(Run *run)
{
	Rt *rt = run->rt;
	const Progress *p = &rt->p->progress;
	int64_t batch = run->train.batch, first = p->samples + rt->p->world.rank * batch;
	rt->p->scalars = (StepScalars){.lr = (float)schedule_lr(&rt->p->optim.lr, p->step),
		.step = p->updates + 1, .clip_coef = 1, .seed = (uint64_t)run->o->seed,
		.rng_step = (uint64_t)p->step, .sample0 = first};
	streams_cost(rt); /* of an evaluation or a save: not this step's */
	report_begin(rt);
	streams_program(rt, PROGRAM_STEP);
	data_load(&run->train, rt, first);
	data_prefetch(&run->train, first + world(run) * batch);
	rt->model->forward(rt);
	rt->model->backward(rt);
	rt->model->update(rt);
}

/* Of the ranks that met bad data each says what. */
static void blame_data(Run *run, int64_t step)
{
	const struct RtPrivate *p = run->rt->p;
	char bad[512], when[64];
	if (!report_take_bad_input(bad, sizeof(bad)))
		return;
	snprintf(when, sizeof(when), "step %" PRId64, step);
	log_clear_line(&run->log);
	data_blame(&run->train, p->progress.samples + p->world.rank * run->train.batch, when, bad, run->o->program, run->d);
}

/* 0, or the exit code that the step's outcome asks for: equal on all ranks. */
static int check_step(Run *run)
{
	const Rt *rt = run->rt;
	const StepResult *r = &rt->p->result;
	int64_t step = rt->p->progress.step + 1;
	if (rt->p->sums.bad_input > 0) {
		blame_data(run, step);
		return EXIT_INPUT;
	}
	if (r->finite || run->o->on_nan == ON_NAN_SKIP)
		return 0;
	log_clear_line(&run->log);
	if (is_first(run))
		diag_error(run->d, run->o->program,
			"step %" PRId64 ": %s is not finite (loss %g, gradient norm %g); that update was "
			"left out%s; --on-nan=skip goes on after such a step",
			step, isfinite(r->loss) ? "the gradient norm" : "the loss", r->loss, r->grad_norm,
			run->o->save ? ", nothing was saved since" : "");
	return EXIT_RUN;
}

static void advance(Run *run, double ms)
{
	struct RtPrivate *p = run->rt->p;
	p->progress.step++;
	p->progress.updates += !p->scalars.skip;
	p->progress.samples += world(run) * run->train.batch;
	double samples_per_s = (double)(world(run) * run->train.batch) / MAX(ms, 1e-6) * 1e3;
	StepRecord r = {.step = p->progress.step, .lr = p->scalars.lr, .ms = ms, .samples_per_s = samples_per_s,
		.epoch = (double)p->progress.samples / (double)run->train.n_samples,
		.tokens_per_s = samples_per_s * (double)run->train.tokens_per_sample, .peak_bytes = p->memory.total,
		.result = p->result, .comm = streams_cost(run->rt)};
	if (is_first(run))
		log_step(&run->log, &r);
}

static bool evaluate(Run *run)
{
	StepResult r;
	int64_t n, step = run->rt->p->progress.step;
	if (!run->has_eval || run->last_eval == step)
		return true;
	run->last_eval = step;
	streams_program(run->rt, PROGRAM_OUTSIDE);
	average_begin(run->rt);
	bool ok = eval_run(run->rt, &run->eval, &r, &n, run->d);
	average_end(run->rt);
	if (!ok || !is_first(run))
		return ok;
	log_eval(&run->log, step, &r, n);
	if (n < run->eval.n_samples)
		printf("  (%" PRId64 " samples left out: the loss is a mean over whole batches of %" PRId64 ")\n",
			run->eval.n_samples - n, world(run) * run->eval.batch);
	return true;
}

static bool save(Run *run)
{
	int64_t step = run->rt->p->progress.step;
	if (!run->o->save || run->last_saved == step)
		return true;
	log_clear_line(&run->log);
	streams_program(run->rt, PROGRAM_OUTSIDE);
	if (!checkpoint_save(&run->checkpoint, run->rt, &run->rt->p->progress, run->d))
		return false;
	run->last_saved = step;
	return true;
}

static int step_loop(Run *run)
{
	const Progress *p = &run->rt->p->progress;
	const RtOptions *o = run->o;
	while (p->step < o->steps && !stop_signal(run)) {
		double begin = now_ms();
		run_step(run);
		int code = check_step(run);
		if (code)
			return code;
		advance(run, now_ms() - begin);
		if (o->eval_every && p->step % o->eval_every == 0 && !evaluate(run))
			return EXIT_INPUT;
		if (o->save_every && p->step % o->save_every == 0 && !save(run))
			return EXIT_RUN;
	}
	if (!stop_signal(run) && !evaluate(run))
		return EXIT_INPUT;
	return save(run) ? EXIT_DONE : EXIT_RUN;
}

static void print_end(const Run *run, double seconds)
{
	const RtOptions *o = run->o;
	int64_t step = run->rt->p->progress.step;
	if (stop_signal(run))
		printf("stopped by %s after step %" PRId64 "%s%s\n", strsignal(stop_signal(run)), step,
			o->save ? "; saved in " : "", o->save ? o->save : "");
	else if (step == run->first_step)
		printf("nothing to train: step %" PRId64 " of %" PRId64 " is done\n", step, o->steps);
	else
		printf("trained to step %" PRId64 ": loss %.4f, %.1f s\n", step, run->rt->p->result.loss, seconds);
}

/* Only the first rank has a log; all learn whether it is whole. */
static int train(Run *run)
{
	Rt *rt = run->rt;
	double begin = now_ms();
	int code = step_loop(run);
	log_clear_line(&run->log);
	if (code == EXIT_DONE && is_first(run))
		print_end(run, (now_ms() - begin) / 1e3);
	streams_program(rt, PROGRAM_OUTSIDE);
	Held held;
	bool ok = log_close(&run->log, agree_begin(&held, run->d));
	if (!agree_end(rt, &held, ok, run->d) && code == EXIT_DONE)
		code = EXIT_RUN;
	return code;
}

/* ---- before the first step ---- */

static bool open_eval_data(Run *run)
{
	const RtOptions *o = run->o;
	const RtModel *m = run->rt->model;
	if (!o->eval_data.n && !o->eval_tokens)
		return true;
	if (!m->eval) {
		diag_error(run->d, o->program, "this program was compiled without an evaluation");
		return false;
	}
	if (!data_open(&run->eval, m, run->rt->p->arena, &o->eval_data, o->eval_tokens, "eval-data", run->d))
		return false;
	if (m->loss.mean && run->eval.n_samples < world(run) * run->eval.batch) {
		diag_error(run->d, run->eval.columns[0].path,
			"%" PRId64 " samples are less than one batch of %" PRId64 "%s, over which the loss is a mean",
			run->eval.n_samples, world(run) * run->eval.batch, world(run) > 1 ? " on all ranks" : "");
		return false;
	}
	run->has_eval = true;
	return true;
}

static bool open_data(Run *run)
{
	RtOptions *o = run->o;
	if (!data_open(&run->train, run->rt->model, run->rt->p->arena, &o->data, o->tokens, "data", run->d))
		return false;
	run->train.n_samples = MAX(run->train.n_samples, 1);
	run->train.shuffle = o->text[OPT_shuffle];
	run->train.seed = (uint64_t)o->shuffle;
	if (!o->text[OPT_steps])
		o->steps = ceil_div(run->train.n_samples, world(run) * run->train.batch);
	return open_eval_data(run);
}

static void print_files(const DataSet *set)
{
	for (int i = 0; i < set->n_columns; i++)
		if (set->columns[i].npy.map)
			printf("file %s: %" PRId64 " bytes mapped\n", set->columns[i].path,
				set->columns[i].npy.map_bytes);
}

static bool map_memory(Run *run)
{
	if (!device_map(run->rt, run->d))
		return false;
	if (run->o->print_plan && is_first(run)) {
		device_print_plan(run->rt, stdout);
		print_files(&run->train);
		print_files(&run->eval);
	}
	return true;
}

/* All ranks load, each its part; those that cannot stop all. */
static bool load_contents(Run *run)
{
	Rt *rt = run->rt;
	Held held;
	checkpoint_init(&run->checkpoint, rt, rt->p->arena);
	if (!weights_load(rt, run->resume, run->d) ||
		(run->resume && !resume_load(&run->checkpoint, run->resume, rt->p->arena, run->d)))
		return false;
	Diag *d = agree_begin(&held, run->d);
	bool ok = data_load_consts(rt, &run->o->consts, d);
	if (ok && is_first(run))
		ok = log_open(&run->log, run->o->log, run->resume, run->o->steps, d);
	return agree_end(rt, &held, ok, run->d);
}

static bool check_flags(const Run *run)
{
	const RtOptions *o = run->o;
	const struct { bool wrong; const char *text; } rules[] = {
		{o->save_every && !o->save, "--save-every needs --save DIR"},
		{o->eval_every && !o->eval_data.n && !o->eval_tokens,
			"--eval-every needs --eval-data NAME=FILE.npy or --eval-tokens FILE"},
		{o->text[OPT_keep] && !o->save, "--keep needs --save DIR"},
		{o->text[OPT_keep] && o->keep < 1, "--keep needs at least 1"},
		{o->resume && !strcmp(o->resume, "auto") && !o->save,
			"--resume=auto needs --save DIR, where it looks"},
		{o->text[OPT_threads] && o->threads < 1, "--threads needs at least 1"},
	};
	bool ok = true;
	for (int i = 0; i < COUNT_OF(rules); i++)
		if (rules[i].wrong) {
			diag_error(run->d, o->program, "%s", rules[i].text);
			ok = false;
		}
	return ok;
}

/* What a rank finds out by itself.  An exit code. */
static int prepare(Run *run)
{
	struct RtPrivate *p = run->rt->p;
	const RtModel *m = run->rt->model;
	LayoutRank who = device_rank(run->rt);
	if (!m->optimizer) {
		diag_error(run->d, run->o->program,
			"this program was compiled for inference: --infer INDIR OUTDIR runs it");
		return EXIT_USAGE;
	}
	if (!resume_find(run->o, p->arena, &run->resume, run->d) ||
		(run->resume && !resume_read_state(run->resume, run->rt, run->o, &p->progress, run->d)))
		return EXIT_INPUT;
	run->first_step = run->last_saved = run->resume ? p->progress.step : 0;
	run->last_eval = -1;
	if (!optim_init(&p->optim, m, &who, p->arena, run->o->program, run->d) || !open_data(run))
		return EXIT_INPUT;
	return optim_configure(&p->optim, m, run->o, run->d) ? EXIT_DONE : EXIT_USAGE;
}

/* Without data: memory alone, for --infer and --print-plan. */
static int prepare_memory(Run *run)
{
	const Rt *rt = run->rt;
	LayoutRank who = device_rank(rt);
	return optim_init(&rt->p->optim, rt->model, &who, rt->p->arena, run->o->program, run->d) ? EXIT_DONE : EXIT_INPUT;
}

/* From options to memory that peers can read.  An exit code, equal on all ranks. */
static int meet(Run *run, int (*stage)(Run *))
{
	Rt *rt = run->rt;
	start_hold_messages(rt, run->d);
	int code = cpu_check(rt->model->need_cpu, run->o->program, run->d) ? stage(run) : EXIT_INPUT;
	code = start_agree(rt, code, run->d);
	if (!code)
		code = start_compare(rt, &run->train, &run->eval, run->d);
	if (!code && !map_memory(run))
		code = EXIT_RUN;
	start_print_messages(rt, run->d);
	return code;
}

static int train_all(Run *run)
{
	Rt *rt = run->rt;
	int code = meet(run, prepare);
	if (code)
		return code;
	if (!load_contents(run))
		return EXIT_INPUT;
	Held held;
	bool ok = streams_start(rt, start_comm_threads(rt), agree_begin(&held, run->d));
	if (!agree_end(rt, &held, ok, run->d))
		return EXIT_RUN;
	streams_program(rt, PROGRAM_OUTSIDE);
	if (!run->has_parent)
		catch_stops(true);
	rt->model->setup(rt);
	return train(run);
}

static bool has_data(const RtOptions *o)
{
	return o->data.n || o->tokens;
}

static int run_program(Run *run)
{
	Rt *rt = run->rt;
	k_bad_input = rt_bad_input;
	k_fail = kernel_failed;
	device_set_threads(run->o->threads);
	catch_faults();
	if (!run->o->infer.in && (!run->o->print_plan || has_data(run->o)))
		return train_all(run);
	int code = meet(run, prepare_memory);
	return code ? code : run->o->infer.in ? infer_run(rt, run->d) : EXIT_DONE;
}

/* One rank, from its first message to others to its last. */
static int run_rank(Run *run, Launch *launch)
{
	struct RtPrivate *p = run->rt->p;
	run->has_parent = launch->hub_fd >= 0;
	if (run->has_parent)
		catch_stops(false);
	if (launch->role == LAUNCH_RANK) {
		p->control = control_join(launch, run->o, p->arena, run->d);
		if (!p->control)
			return EXIT_RUN;
		if (launch->mpi && !hosts_find(p->control, &launch->world, p->arena)) {
			control_leave(p->control, EXIT_RUN);
			return EXIT_RUN;
		}
		p->world = launch->world;
		atomic_store(&control_progress(p->control)->program, PROGRAM_OUTSIDE);
		control_set_names(p->control, streams_name, run->rt);
	}
	int code = run_program(run);
	/* Messages are out on all ranks before the first one leaves, which ends the others. */
	if (p->comm)
		comm_barrier(p->comm);
	streams_stop(run->rt);
	device_unmap(run->rt);
	if (p->control)
		control_leave(p->control, code);
	return code;
}

static int run_ranks(Run *run, int argc, char **argv)
{
	Launch launch;
	struct RtPrivate *p = run->rt->p;
	if (!launch_find(&launch, run->o, p->arena, run->d))
		return EXIT_USAGE;
	p->world = launch.world;
	bool flags = check_flags(run);
	if (!start_check_world(run->rt, run->d) || !flags)
		return EXIT_USAGE;
	if (launch.role == LAUNCH_PARENT)
		return launch_ranks(&launch, run->o, argc, argv, run->d);
	if (launch.mpi && launch.role == LAUNCH_RANK && !mpi_start(&launch, run->o, p->arena, run->d))
		return EXIT_RUN;
	int code = run_rank(run, &launch);
	mpi_stop(&launch.world, code);
	return code;
}

/* OpenMP's threads spin long at barriers by default: 14 times slower steps of a small model when other work
 * wants the cores.  A short spin before sleeping costs an idle machine nothing.  libgomp reads its environment
 * when it is loaded, so the program starts itself once more; where that cannot be, it runs as it is. */
static void spin_briefly(char **argv)
{
	if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
		return;
	setenv("GOMP_SPINCOUNT", "2000", 1);
	execv("/proc/self/exe", argv);
}

/* What is opened next must not become the standard output that was closed: a socket, a checkpoint. */
static void open_standard_files(void)
{
	int fd;
	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

int rt_main(int argc, char **argv, const RtModel *model)
{
	open_standard_files();
	spin_briefly(argv);
	const char *slash = strrchr(argv[0], '/');
	prctl(PR_SET_NAME, slash ? slash + 1 : argv[0]); /* not "exe", as what /proc/self/exe starts is called */
	Diag d = {.out = stderr};
	RtOptions o;
	struct RtPrivate p = {.diag = &d, .arena = arena_new(), .options = &o};
	Rt rt = {.model = model, .p = &p, .scalars = &p.scalars};
	Run run = {.rt = &rt, .o = &o, .d = &d};
	int code = EXIT_DONE;
	if (!options_parse(&o, p.arena, argc, argv, &d))
		code = EXIT_USAGE;
	else if (o.help)
		options_print_help(&o, stdout);
	else if (o.version)
		printf("%s: %s\n%s\n%s", model->name, model->versions, model->options,
			model->world ? arena_printf(p.arena, "for %" PRId64 " ranks only\n", model->world) : "");
	else
		code = run_ranks(&run, argc, argv);
	data_close(&run.train);
	data_close(&run.eval);
	arena_free(p.arena);
	return code;
}
