/* calibrate/calibrate.c: compiles programs, runs them with --trace, and collects what the traces say. */
#include "calibrate/calibrate.h"

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "calibrate/private.h"
#include "options.h"
#include "passes/passes.h"

enum { EXIT_INPUT = 1, EXIT_RUN = 3 };
/* How often a program runs in each way: at least, and at most until what was traced in all ways takes so many seconds.
 * Runs behind the first one have as many steps as fill `run` seconds, and as many as the first one has at least: where
 * steps are short enough, many short runs, each way in turn, meet fast and slow times of the machine alike.  A probe's
 * rows are corrected by others, a model's stand alone. */
typedef struct Rounds { int least, most; double seconds, run; } Rounds;
enum { ROUNDS_MAX = 12 };
static const Rounds probe_rounds = {2, 2, 0, 0}, model_rounds = {2, ROUNDS_MAX, 8, 0.4};
enum { HALVINGS_MOST = 16 };
/* Steps that are traced: at least, at most, and as many as have so many ops. */
enum { CPU_STEPS = 10, GPU_STEPS = 8, MOST_STEPS = 256, MOST_OPS = 100000 };
static const double noisy = 0.25;

typedef struct Calibration {
	const CodegenTarget *target;
	const char *dir;         /* temporary */
	Host host;
	int64_t repeat;          /* steps of each program that are traced, if the user says so; 0: calibrate chooses */
	RunAs run[RUNS_MAX];
	int n_runs;
	const char *without_mpi; /* why no program runs over mpi; NULL: they do */
	int halvings;            /* of the sizes of probes, so that they fit a GPU */
	bool probes;             /* probe programs are being measured, no model */
	const Machine *old;      /* the file to which a model is added; NULL: the machine is measured */
	Measured all;
	Arena *a;
	Diag *d;
} Calibration;

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st, (void)kind, (void)at;
	remove(path);
	return 0;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- programs ---- */

/* Why the run has failed becomes a message or, of a run over mpi, the reason to go on without. */
static bool fail(Calibration *c, const Module *m, const RunAs *as, const char *why)
{
	bool mpi = as->group == RUNS_MPI && *why && !run_stopped();
	if (run_stopped())
		diag_error(c->d, "shardc calibrate", "stopped by signal %d", run_stopped());
	else if (mpi)
		c->without_mpi = why;
	else if (*why && c->host.cuda)
		diag_error(c->d, m->name, "its program did not run on %d %s: %s", as->layout.ranks,
			as->layout.ranks == 1 ? "GPU" : "GPUs", why);
	else if (*why)
		diag_error(c->d, m->name, "its program did not run on %d ranks of %d threads: %s", as->layout.ranks,
			as->layout.threads, why);
	return mpi;
}

/* What a program has recorded in one way to run it. */
typedef struct Recorded { Steps run[ROUNDS_MAX]; int n; } Recorded;

/* How many steps the next run of a program traces. */
static int64_t choose_steps(const Calibration *c, Rounds rounds, const Recorded *of)
{
	int64_t least = c->host.cuda ? GPU_STEPS : CPU_STEPS;
	if (c->repeat || !of->n)
		return c->repeat ? c->repeat : least;
	const Steps *last = &of->run[of->n - 1];
	double filling = last->whole > 0 ? MIN(rounds.run / last->whole, MOST_STEPS) : 0;
	return MAX((int64_t)MIN(filling, MOST_OPS / last->ops.n), least);
}

/* Runs the program once more, whose traced steps take *seconds.  False after a message. */
static bool run_again(Calibration *c, const char *program, const Module *m, const RunAs *as, Rounds rounds,
	Recorded *of, double *seconds)
{
	Steps steps;
	int64_t count = choose_steps(c, rounds, of);
	const char *why = run_program(program, c->dir, m, &c->host, as, count, c->a, c->d);
	*seconds = 0;
	if (why) {
		of->n = 0; /* of ranks over mpi, that some runs failed and others did not is no measurement */
		return fail(c, m, as, why);
	}
	Arena *texts = arena_new(); /* of traces: megabytes that nothing needs behind this */
	bool ok = steps_read(run_trace(c->dir, c->a), as->layout.ranks, &steps, texts, c->d);
	if (ok) {
		of->run[of->n++] = steps_copy(&steps, c->a);
		*seconds = (double)count * steps.whole;
	}
	arena_free(texts);
	return ok;
}

static bool takes_part(const Calibration *c, const RunAs *as, int groups)
{
	return as->group == RUNS_ALWAYS || (as->group & groups && !(as->group == RUNS_MPI && c->without_mpi));
}

/* Runs a program in every way that it has, in rounds.  False after a message. */
static bool run_rounds(Calibration *c, const char *program, const Module *m, Rounds rounds, int groups, Recorded *of)
{
	double spent = 0, seconds;
	for (int round = 0; round < rounds.least || (round < rounds.most && spent < rounds.seconds); round++)
		for (int i = 0; i < c->n_runs; i++) {
			if (!takes_part(c, &c->run[i], groups))
				continue;
			if (!run_again(c, program, m, &c->run[i], rounds, &of[i], &seconds))
				return false;
			spent += seconds;
		}
	return true;
}

/* Adds what a program has recorded. */
static void add_recorded(Calibration *c, const char *name, const Module *m, const Options *o, Recorded *of)
{
	Steps mean[RUNS_MAX];
	for (int i = 0; i < c->n_runs; i++) {
		double spread;
		if (!of[i].n)
			continue;
		mean[i] = steps_mean(of[i].run, of[i].n, &spread);
		c->all.spread = mean[i].whole >= MACHINE_TINY ? MAX(c->all.spread, spread) : c->all.spread;
	}
	for (int i = 0; i < c->n_runs; i++) {
		const RunAs *as = &c->run[i];
		MeasuredRun run = {as, &mean[i]}, alone = {&c->run[as->alone], &mean[as->alone]};
		if (!of[i].n)
			continue;
		measured_add(&c->all, m, o, run, c->a);
		if (as->yields & YIELDS_CONTENTION)
			measured_beside(&c->all, m, o, run, alone, c->a);
		if (as->yields & YIELDS_STEP)
			measured_step(&c->all, name, m, o, run, c->a);
	}
}

/* Compiles the planned program, runs it, and adds what it has recorded. */
static bool measure(Calibration *c, const Sizes *program, const Options *o, Rounds rounds, int groups)
{
	const Module *m = program->of[program->n - 1].of[VARIANT_ONLY];
	const char *source = arena_printf(c->a, "%s/c", c->dir), *binary = arena_printf(c->a, "%s/program", c->dir);
	Recorded of[RUNS_MAX] = {{.n = 0}};
	if (!codegen_write(program, c->target, source, c->d) || !codegen_compile(source, m, c->target, binary, c->d)
			|| !run_rounds(c, binary, m, rounds, groups, of))
		return false;
	const char *probe = c->probes ? MACHINE_PROBE : "";
	add_recorded(c, arena_printf(c->a, "%s%016" PRIx64, probe, ir_program_hash(program)), m, o, of);
	return true;
}

/* Plans a probe program. */
static void plan_probe(Calibration *c, const Probe *p, Options *o, Variants *v)
{
	PipelineView silent = {.out = stdout};
	bool quiet = c->d->quiet;
	c->d->quiet = true; /* what the user would be told of a model of his own */
	if (!options_read(p->options, p->name, false, o, c->a, c->d) || !ir_parse_program(p->name, p->text, v, c->d)
			|| !pipeline_run(v->of[VARIANT_ONLY], o, &silent, NULL, c->d))
		ice("the probes \"%s\" do not compile", p->name);
	c->d->quiet = quiet;
}

static bool measure_probe(Calibration *c, const Probe *p)
{
	Options o = {0};
	Variants v = {{NULL}};
	plan_probe(c, p, &o, &v);
	bool ok = measure(c, &(Sizes){1, {v}, {NULL}}, &o, probe_rounds, p->groups);
	pipeline_free(&v);
	return ok;
}

/* The most that one of the probe programs needs. */
static double most_bytes(Calibration *c, const Probe *p, int n)
{
	double most = 0;
	for (int i = 0; i < n; i++) {
		Options o = {0};
		Variants v = {{NULL}};
		plan_probe(c, &p[i], &o, &v);
		most = MAX(most, (double)pipeline_memory(&v, &o).total);
		pipeline_free(&v);
	}
	return most;
}

/* Halves the sizes of probes until each program fits into half of a GPU.  Returns their number; 0 after a message. */
static int write_probes(Calibration *c, Probe *out)
{
	double least = 0;
	for (c->halvings = 0; c->halvings <= HALVINGS_MOST; c->halvings++) {
		int n = probes_write(out, c->host.cuda, c->halvings, c->a);
		if (!c->host.cuda || (least = most_bytes(c, out, n)) <= c->host.memory / 2)
			return n;
	}
	diag_error(c->d, "--target", "cuda: the GPU has %.0f bytes of memory; the smallest programs that are measured need "
		"%.0f", c->host.memory, 2 * least);
	return 0;
}

/* ---- the machine ---- */

static const char *ranks_text(const Host *h)
{
	return h->cuda ? h->ranks == 1 ? "GPU" : "GPUs" : "cores";
}

/* Files have six digits. */
static bool differs(double written, double now) { return fabs(written - now) > 1e-5 * now; }

/* Whether the file has the steps of probes, if it has any: earlier versions did not tell them from models'. */
static bool tells_probes(const Machine *old)
{
	bool told = !old->n_steps;
	for (int i = 0; i < old->n_steps; i++)
		told = told || !strncmp(old->step[i].program, MACHINE_PROBE, strlen(MACHINE_PROBE));
	return told;
}

/* Whether an older file may be of this machine; false after a message. */
static bool is_same(const Calibration *c, const Machine *old, const char *path)
{
	const Host *h = &c->host;
	if (old->of[MACHINE_RANKS] != h->ranks)
		diag_error(c->d, path, "describes %.0f %s, and shardc may use %d here: give another path",
			old->of[MACHINE_RANKS], h->cuda ? "GPUs" : "cores", h->ranks);
	else if (h->cuda && (old->of[MACHINE_PROCESSORS] != h->processors || differs(old->of[MACHINE_MEMORY], h->memory)))
		diag_error(c->d, path, "describes GPUs of %.0f processors and %.0f bytes, and those here have %d and %.0f: "
			"give another path", old->of[MACHINE_PROCESSORS], old->of[MACHINE_MEMORY], h->processors, h->memory);
	else if (!tells_probes(old))
		diag_error(c->d, path, "is of an earlier version, which measured otherwise: measure the machine again, without "
			"a model, before models are added");
	return c->d->errors == 0;
}

/* A file that is there is read, if it is such a machine's: a model's rows are added to it.  False after a message. */
static bool read_output(Calibration *c, const char *path, bool adds)
{
	Diag silent = {.out = c->d->out, .quiet = true};
	struct stat st;
	const char *slash = strrchr(path, '/'), *folder = !slash ? "." : slash == path ? "/"
		: arena_strndup(c->a, path, (size_t)(slash - path));
	bool is_there = !stat(path, &st) && (!S_ISREG(st.st_mode) || st.st_size);
	Machine *old = is_there && S_ISREG(st.st_mode) ? machine_read(path, c->a, &silent) : NULL;
	if (is_there && (!old || old->cuda != c->host.cuda))
		diag_error(c->d, path, "is there and is no machine file of %s: it is not replaced; give another path, or "
			"remove it", c->host.cuda ? "GPUs" : "CPUs");
	else if (adds && old && !is_same(c, old, path))
		return false;
	else if (access(folder, W_OK | X_OK))
		diag_error(c->d, path, "%s", strerror(errno));
	else
		c->old = adds ? old : NULL;
	return c->d->errors == 0;
}

/* What the file lacks, and why. */
static void say_left_out(const Calibration *c)
{
	const char *at = "shardc calibrate";
	if (c->host.cuda) {
		diag_note(c->d, at, "network.* is left out: how GPUs of several hosts reach each other is not measured on one "
			"of them");
		if (c->host.ranks == 1)
			diag_note(c->d, at, "link.* and collectives are left out: there is one GPU");
	} else if (c->without_mpi) {
		diag_note(c->d, at, "collectives over mpi are left out: %s", c->without_mpi);
	}
	if (c->halvings)
		diag_note(c->d, at, "sizes of what is measured were halved %d times to fit the memory of the GPU", c->halvings);
}

static void say(const Calibration *c, const Options *o, double seconds)
{
	double spread = 100 * c->all.spread;
	printf("%s: %d measured kernels and %d collectives on %d %s in %.0f s; steps of one program differ by at most "
		"%.0f%% between runs that count\n", o->what.output, c->all.kernels.n, c->all.collectives.n, c->host.ranks,
		ranks_text(&c->host), seconds, spread);
	if (!c->old)
		say_left_out(c);
	if (c->all.spread > noisy)
		diag_warn(c->d, "shardc calibrate", "steps of one program were %.0f%% longer in one run than in another: other "
			"programs have the %s, and predictions are of a machine that they go on to share; calibrate again when it "
			"is free", spread, c->host.cuda ? "GPUs" : "processors");
}

static bool measure_machine(Calibration *c)
{
	Probe probe[PROBES_MAX];
	int n = write_probes(c, probe);
	c->probes = true;
	for (int i = 0; i < n; i++)
		if (!measure_probe(c, &probe[i]))
			return false;
	return n > 0;
}

static int measure_all(Calibration *c, const Sizes *model, const Options *o)
{
	if (model && !measure(c, model, o, model_rounds, RUNS_ALWAYS))
		return EXIT_RUN;
	if (!c->old && !measure_machine(c))
		return EXIT_RUN;
	if (c->old)
		measured_join(&c->all, c->old, c->a);
	bool bf16 = c->host.cuda || codegen_multiplies(c->target, DT_BF16, c->d);
	return measured_write(&c->all, c->old, o->what.output, bf16, c->d) ? EXIT_SUCCESS : EXIT_RUN;
}

/* Finds the machine and how programs are run on it; false after a message. */
static bool begin(Calibration *c, bool adds, const char *output, int64_t repeat)
{
	if (!host_find(codegen_cuda(c->target), &c->host, c->a, c->d) || !read_output(c, output, adds)
			|| !codegen_check_target(c->target, c->d))
		return false;
	c->without_mpi = c->host.cuda || run_has_mpirun(c->a) ? NULL : "there is no mpirun here";
	c->n_runs = runs_choose(c->run, &c->host, !c->without_mpi);
	c->all.host = &c->host;
	c->repeat = repeat;
	c->all.by_op = map_new(c->a);
	return true;
}

int calibrate(const Sizes *model, const Options *o, const CodegenTarget *target, Diag *d)
{
	Calibration c = {.target = target, .a = arena_new(), .d = d};
	const char *temp = getenv("TMPDIR");
	char *dir = arena_printf(c.a, "%s/shardc-calibrate-XXXXXX", temp && *temp ? temp : "/tmp");
	double began = now();
	int status = EXIT_INPUT;
	if (!begin(&c, model, o->what.output, o->what.repeat)) {
		arena_free(c.a);
		return EXIT_INPUT;
	}
	if (!mkdtemp(dir)) {
		diag_error(d, dir, "cannot make a folder: %s", strerror(errno));
		status = EXIT_RUN;
	} else {
		c.dir = dir;
		run_catch_signals();
		status = measure_all(&c, model, o);
		nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	}
	if (!status)
		say(&c, o, now() - began);
	arena_free(c.a);
	return status;
}
