/* calibrate/run.c: runs measured programs with --trace. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "calibrate/private.h"

enum { FIRST_STEP = 3 }; /* of those that are traced; the steps before warm caches up */
enum { MPI_SECONDS = 300 }; /* that mpirun may take: a probe takes a few; what it waits for may never come */

/* ---- signals ---- */

static volatile sig_atomic_t stopped; /* the signal that came */

static void stop(int signal_number)
{
	stopped = signal_number;
}

int run_stopped(void)
{
	return (int)stopped;
}

void run_catch_signals(void)
{
	static const int of[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction action = {.sa_handler = stop};
	for (int i = 0; i < COUNT_OF(of); i++) {
		struct sigaction before;
		if (!sigaction(of[i], NULL, &before) && before.sa_handler != SIG_IGN)
			sigaction(of[i], &action, NULL);
	}
}

/* ---- what a program says ---- */

/* The first line of the file that tells an error, else its last one: mpirun speaks behind its ranks. */
static const char *complaint(const char *path, Arena *a)
{
	FileView v;
	const char *why, *last = "", *error = NULL;
	char *save = NULL;
	if (!file_view(&v, path, &why))
		return "it says nothing";
	char *text = arena_strndup(a, v.at ? v.at : "", (size_t)v.bytes);
	file_view_close(&v);
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (!error && strstr(line, "error: "))
			error = line;
		last = line;
	}
	return error ? error : *last ? last : "it says nothing";
}

/* ---- processes ---- */

/* What lets mpirun start any number of ranks for any user, as --ranks does, and leave its files in dir: variables,
 * since its flags differ between versions.  Open MPI 4 and 5 read them; other libraries ask for none. */
static void set_mpi(const char *dir)
{
	static const char *const on[] = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
		"PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"};
	for (int i = 0; i < COUNT_OF(on); i++)
		setenv(on[i], "1", true);
	setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", true);
	setenv("TMPDIR", dir, true);
}

/* log: takes what the program says.  Returns its exit status; -1: it has none, or there is no process; of mpirun, which
 * an alarm ends, OUT_OF_TIME. */
enum { OUT_OF_TIME = -2 };
static int spawn(char *const *argv, const char *log, const char *mpi_dir)
{
	int status = 0;
	pid_t child = fork();
	if (child == 0) {
		int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
		if (mpi_dir) {
			set_mpi(mpi_dir);
			alarm(MPI_SECONDS);
		}
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
	bool late = child > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
	return late ? OUT_OF_TIME : child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool run_has_mpirun(Arena *a)
{
	char *path = arena_strdup(a, getenv("PATH") ? getenv("PATH") : ""), *save = NULL;
	for (char *dir = strtok_r(path, ":", &save); dir; dir = strtok_r(NULL, ":", &save))
		if (!access(arena_printf(a, "%s/%s", dir, comm_info[COMM_MPI].starter), X_OK))
			return true;
	return false;
}

/* ---- programs ---- */

const char *run_trace(const char *dir, Arena *a)
{
	return arena_printf(a, "%s/trace.json", dir);
}

static void push(Words *argv, Arena *a, const char *flag, const char *value)
{
	vec_push(a, argv, arena_strdup(a, flag));
	vec_push(a, argv, arena_strdup(a, value));
}

static void push_number(Words *argv, Arena *a, const char *flag, int value)
{
	push(argv, a, flag, arena_printf(a, "%d", value));
}

/* The program and its flags, behind mpirun where that starts the ranks. */
static Words command(const char *program, const char *dir, const Host *h, const RunAs *as, int64_t steps, Arena *a)
{
	Words argv = {0};
	bool mpi = as->comm == COMM_MPI;
	int last = FIRST_STEP + (int)steps - 1;
	if (mpi) {
		vec_push(a, &argv, arena_strdup(a, comm_info[COMM_MPI].starter));
		push_number(&argv, a, "-n", as->layout.ranks);
	}
	vec_push(a, &argv, arena_strdup(a, program));
	if (!mpi)
		push_number(&argv, a, "--ranks", as->layout.ranks);
	if (as->layout.ranks > 1)
		push(&argv, a, "--comm", comm_info[as->comm].text);
	if (!h->cuda)
		push_number(&argv, a, "--threads", as->layout.threads);
	if (as->group == RUNS_BESIDE)
		push_number(&argv, a, "--comm-threads", as->threads);
	push(&argv, a, "--lr", "1e-6");
	push(&argv, a, "--on-nan", "skip");
	push_number(&argv, a, "--steps", last + 1);
	push(&argv, a, "--trace", run_trace(dir, a));
	push(&argv, a, "--trace-steps", arena_printf(a, "%d:%d", FIRST_STEP, last));
	return argv;
}

const char *run_program(const char *program, const char *dir, const Module *m, const Host *h, const RunAs *as,
	int64_t steps, Arena *a, Diag *d)
{
	const char *log = arena_printf(a, "%s/log", dir);
	Words argv = command(program, dir, h, as, steps, a);
	if (!samples_write(m, dir, as->layout.ranks, &argv, a, d))
		return "";
	vec_push(a, &argv, NULL);
	int status = stopped ? -1 : spawn(argv.at, log, as->comm == COMM_MPI ? dir : NULL);
	if (status == OUT_OF_TIME)
		return arena_printf(a, "it had not ended after %d s", MPI_SECONDS);
	return status || stopped ? complaint(log, a) : NULL;
}
