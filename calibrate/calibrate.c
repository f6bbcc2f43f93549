/* calibrate/calibrate.c: compiles programs, runs them with --trace, and collects what the traces say. */
#include "calibrate/calibrate.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/options.h"
#include "calibrate/private.h"
#include "options.h"
#include "passes/passes.h"

enum { EXIT_INPUT = 1, EXIT_RUN = 3 };
enum { PROBE_ROUNDS = 1, MODEL_ROUNDS = 2 }; /* a probe's rows are corrected by others, a model's stand alone */
enum { LAYOUTS = 4, FIRST_STEP = 3 }; /* of those that are traced; the steps before warm caches up */
static const double noisy = 0.25;

typedef struct Calibration {
	const CodegenTarget *target;
	const char *dir;         /* temporary */
	MachineLayout layout[LAYOUTS];
	int n_layouts;
	int64_t repeat;          /* steps of each program that are traced */
	const Machine *old;      /* the file to which a model is added; NULL: the machine is measured */
	Measured all;
	Arena *a;
	Diag *d;
} Calibration;

/* ---- signals: the temporary folder is removed before the process ends ---- */

static volatile sig_atomic_t stopped; /* the signal that came */

static void stop(int signal_number)
{
	stopped = signal_number;
}

static void catch_signals(void)
{
	static const int of[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction action = {.sa_handler = stop};
	for (int i = 0; i < COUNT_OF(of); i++) {
		struct sigaction before;
		if (!sigaction(of[i], NULL, &before) && before.sa_handler != SIG_IGN)
			sigaction(of[i], &action, NULL);
	}
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st, (void)kind, (void)at;
	remove(path);
	return 0;
}

/* ---- running programs ---- */

/* The last line that the program left in the file. */
static const char *last_line(const char *path, Arena *a)
{
	FileView v;
	const char *why;
	if (!file_view(&v, path, &why))
		return "";
	char *text = arena_strndup(a, v.at ? v.at : "", (size_t)v.bytes);
	file_view_close(&v);
	for (size_t n = strlen(text); n && text[n - 1] == '\n'; n--)
		text[n - 1] = 0;
	const char *line = strrchr(text, '\n');
	return line ? line + 1 : text;
}

/* log: takes what the program says. */
static int spawn(char *const *argv, const char *log)
{
	int status = 0;
	pid_t child = fork();
	if (child == 0) {
		int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0 && dup2(fd, STDERR_FILENO) >= 0)
			execvp(argv[0], argv);
		_exit(127);
	}
	while (child > 0 && waitpid(child, &status, 0) < 0) {
		if (errno != EINTR)
			return -1;
		if (stopped)
			kill(child, SIGTERM);
	}
	return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool run_once(Calibration *c, const char *program, const char *trace, const Module *m, MachineLayout layout)
{
	const char *log = arena_printf(c->a, "%s/log", c->dir);
	Words argv = {0};
	char *const fixed[] = {(char *)program, "--lr", "1e-6", "--on-nan", "skip", "--steps", NULL, "--trace",
		(char *)trace, "--trace-steps", NULL, "--ranks", NULL, "--threads", NULL};
	for (int i = 0; i < COUNT_OF(fixed); i++)
		vec_push(c->a, &argv, fixed[i]);
	argv.at[6] = arena_printf(c->a, "%lld", (long long)(FIRST_STEP + c->repeat));
	argv.at[10] = arena_printf(c->a, "%d:%lld", FIRST_STEP, (long long)(FIRST_STEP + c->repeat - 1));
	argv.at[12] = arena_printf(c->a, "%d", layout.ranks);
	argv.at[14] = arena_printf(c->a, "%d", layout.threads);
	if (!samples_write(m, c->dir, layout.ranks, &argv, c->a, c->d))
		return false;
	vec_push(c->a, &argv, NULL);
	if (!stopped && !spawn(argv.at, log) && !stopped)
		return true;
	if (stopped) {
		diag_error(c->d, "shardc calibrate", "stopped by signal %d", (int)stopped);
		return false;
	}
	diag_error(c->d, m->name, "its program did not run on %d ranks of %d threads: %s", layout.ranks, layout.threads,
		last_line(log, c->a));
	return false;
}

/* Runs the program in a layout; *best becomes what this run has recorded if its ops took less time than those of *best,
 * of which `has` says whether it is one. */
static bool run_again(Calibration *c, const char *program, const Module *m, MachineLayout l, bool has, Steps *best)
{
	Steps steps;
	const char *trace = arena_printf(c->a, "%s/trace.json", c->dir);
	if (!run_once(c, program, trace, m, l)
			|| !steps_read(trace, l.ranks, l.ranks * l.threads > c->all.cores, &steps, c->a, c->d))
		return false;
	if (!has || steps.seconds < best->seconds)
		*best = steps;
	return true;
}

/* Compiles the planned program and runs it in every layout, each as many times as there are rounds, so that what
 * another program did at one moment is not taken for the machine. */
static bool measure(Calibration *c, const Sizes *program, const Options *o, int rounds)
{
	const Module *m = program->of[program->n - 1].of[VARIANT_ONLY];
	const char *source = arena_printf(c->a, "%s/c", c->dir), *binary = arena_printf(c->a, "%s/program", c->dir);
	Steps best[LAYOUTS];
	if (!codegen_write(program, c->target, source, c->d) || !codegen_compile(source, m, c->target, binary, c->d))
		return false;
	for (int round = 0; round < rounds; round++)
		for (int i = 0; i < c->n_layouts; i++)
			if (!run_again(c, binary, m, c->layout[i], round, &best[i]))
				return false;
	for (int i = 0; i < c->n_layouts; i++) {
		c->all.noise = MAX(c->all.noise, best[i].noise);
		measured_add(&c->all, m, o, c->layout[i], &best[i], c->a);
	}
	return true;
}

static bool measure_probe(Calibration *c, const Probe *p)
{
	Options o = {0};
	Variants v = {{NULL}};
	PipelineView silent = {.out = stdout};
	bool quiet = c->d->quiet;
	c->d->quiet = true; /* what the user would be told of a model of his own */
	bool ok = options_read(p->options, p->name, false, &o, c->a, c->d) && ir_parse_program(p->name, p->text, &v, c->d)
		&& pipeline_run(v.of[VARIANT_ONLY], &o, &silent, NULL, c->d);
	c->d->quiet = quiet;
	if (!ok)
		ice("the probes \"%s\" do not compile", p->name);
	ok = measure(c, &(Sizes){1, {v}, {NULL}}, &o, PROBE_ROUNDS);
	pipeline_free(&v);
	return ok;
}

/* ---- the machine ---- */

static int count_cores(void)
{
	cpu_set_t set;
	return sched_getaffinity(0, sizeof(set), &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
}

/* As binaries share the cores: one rank with one, one with all, a rank for each, and two for each. */
static void choose_layouts(Calibration *c)
{
	int cores = c->all.cores;
	const MachineLayout all[LAYOUTS] = {{1, 1}, {1, cores}, {cores, 1}, {2 * cores, 1}};
	for (int i = 0; i < LAYOUTS; i++)
		if (cores > 1 || i == 0 || i == 3)
			c->layout[c->n_layouts++] = all[i];
}

/* A file that is there is read, if it is a machine's of this many cores: a model's rows are added to it.  False after a
 * message. */
static bool read_output(Calibration *c, const char *path, bool adds)
{
	Diag silent = {.out = c->d->out, .quiet = true};
	struct stat st;
	const char *slash = strrchr(path, '/'), *folder = !slash ? "." : slash == path ? "/"
		: arena_strndup(c->a, path, (size_t)(slash - path));
	bool is_there = !stat(path, &st) && (!S_ISREG(st.st_mode) || st.st_size);
	Machine *old = is_there && S_ISREG(st.st_mode) ? machine_read(path, c->a, &silent) : NULL;
	if (is_there && (!old || old->cuda))
		diag_error(c->d, path, "is there and is no machine file of CPUs: it is not replaced; give another path, or "
			"remove it");
	else if (adds && old && old->of[MACHINE_RANKS] != c->all.cores)
		diag_error(c->d, path, "describes %.0f cores, and shardc may use %d here: give another path",
			old->of[MACHINE_RANKS], c->all.cores);
	else if (access(folder, W_OK | X_OK))
		diag_error(c->d, path, "%s", strerror(errno));
	else
		c->old = adds ? old : NULL;
	return c->d->errors == 0;
}

static void say(const Calibration *c, const Options *o, double seconds)
{
	printf("%s: %d measured kernels and %d collectives on %d cores in %.0f s; at most %.0f%% between the fastest and "
		"the median step\n", o->what.output, c->all.kernels.n, c->all.collectives.n, c->all.cores, seconds,
		100 * c->all.noise);
	if (c->all.noise > noisy)
		diag_warn(c->d, "shardc calibrate", "other programs had the processors: in one run the median step was %.0f%% "
			"slower than the fastest; calibrate again when the machine is free", 100 * c->all.noise);
}

static int measure_all(Calibration *c, const Sizes *model, const Options *o)
{
	Probe probe[PROBES_MAX];
	int n = probes_write(probe, c->a);
	if (model && !measure(c, model, o, MODEL_ROUNDS))
		return EXIT_RUN;
	for (int i = 0; i < n && !c->old; i++)
		if (!measure_probe(c, &probe[i]))
			return EXIT_RUN;
	if (c->old)
		measured_join(&c->all, c->old, c->a);
	bool bf16 = codegen_multiplies(c->target, DT_BF16, c->d);
	return measured_write(&c->all, c->old, o->what.output, bf16, c->d) ? EXIT_SUCCESS : EXIT_RUN;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int calibrate(const Sizes *model, const Options *o, const CodegenTarget *target, Diag *d)
{
	Calibration c = {.target = target, .repeat = o->what.repeat, .a = arena_new(), .d = d};
	const char *temp = getenv("TMPDIR");
	char *dir = arena_printf(c.a, "%s/shardc-calibrate-XXXXXX", temp && *temp ? temp : "/tmp");
	double began = now();
	int status = EXIT_INPUT;
	c.all.by_op = map_new(c.a);
	c.all.cores = count_cores();
	choose_layouts(&c);
	if (!read_output(&c, o->what.output, model) || !codegen_check_target(target, d)) {
		arena_free(c.a);
		return EXIT_INPUT;
	}
	if (!mkdtemp(dir)) {
		diag_error(d, dir, "cannot make a folder: %s", strerror(errno));
		status = EXIT_RUN;
	} else {
		c.dir = dir;
		catch_signals();
		status = measure_all(&c, model, o);
		nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	}
	if (!status)
		say(&c, o, now() - began);
	arena_free(c.a);
	return status;
}
