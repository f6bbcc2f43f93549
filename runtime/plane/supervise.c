/* runtime/plane/supervise.c: the parent of --ranks: it starts this program once per rank, serves as the hub, and ends
 * when all ranks have ended.
 *
 * Every child has a socket to the parent and its share of the cores, and dies with the parent.  The parent reads
 * signals from a descriptor, so that no code runs in signal handlers.
 *
 * The parent does not train and calls no library such as MPI or CUDA, so it can fork safely and never gets stuck. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/plane/private.h"

enum { SECOND_SIGNAL_MS = 500 }; /* `timeout` and terminals may send a signal twice */

typedef struct Core { int id, package, core; } Core;
typedef struct Parent {
	int size, started, running;
	pid_t *child, self;
	Core *cores;
	int n_cores;
	bool threads_given, reloads, saves; /* pass SIGHUP (read --hyper again) and SIGUSR1 (save) on to rank 0 */
	Hub *hub;
	int signal_fd;
	sigset_t old_mask;
	int stop;                /* the first stop signal; stop_ms: when it came */
	int64_t stop_ms;
	const char *program;
	Diag *d;
} Parent;

/* ---- cores ---- */

static int read_topology(int cpu, const char *what)
{
	char path[128];
	int n = 0;
	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what);
	FILE *f = fopen(path, "r");
	if (f && fscanf(f, "%d", &n) != 1)
		n = 0;
	if (f)
		fclose(f);
	return n;
}

static int by_place(const void *a, const void *b)
{
	const Core *x = a, *y = b;
	if (x->package != y->package)
		return x->package - y->package;
	return x->core != y->core ? x->core - y->core : x->id - y->id;
}

/* The cores that this process may use, neighbours next to each other: a rank gets consecutive ones. */
static void find_cores(Parent *p, Arena *a)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	p->cores = NEW_N(a, Core, CPU_SETSIZE);
	if (sched_getaffinity(0, sizeof(set), &set))
		return;
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &set))
			p->cores[p->n_cores++] =
				(Core){i, read_topology(i, "physical_package_id"), read_topology(i, "core_id")};
	qsort(p->cores, (size_t)p->n_cores, sizeof(*p->cores), by_place);
}

/* Notes that there are more threads than processors, which is correct but slow. */
static void note_crowd(const Parent *p, const RtOptions *o)
{
	const char *env = getenv("OMP_NUM_THREADS");
	int64_t given = o->threads ? o->threads : env ? MAX(atoi(env), 1) : 0;
	int64_t each = given ? given : MAX(p->n_cores / p->size, 1);
	if (p->n_cores && p->size * each > p->n_cores)
		diag_note(p->d, p->program, "%d ranks of %lld thread%s take turns on %d processor%s: they compute the same as "
			"on more, later", p->size, (long long)each, each > 1 ? "s" : "", p->n_cores, p->n_cores > 1 ? "s" : "");
}

static void pin(const Parent *p, int rank)
{
	cpu_set_t set;
	int each = p->n_cores / p->size;
	CPU_ZERO(&set);
	for (int i = 0; i < each; i++)
		CPU_SET(p->cores[rank * each + i].id, &set);
	if (each)
		sched_setaffinity(0, sizeof(set), &set);
}

/* ---- starting ---- */

static void set_number(const char *name, int n)
{
	char text[16];
	snprintf(text, sizeof(text), "%d", n);
	setenv(name, text, 1);
}

_Noreturn static void be_rank(const Parent *p, int rank, int fd, char **argv)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != p->self)
		_exit(EXIT_RUN); /* the parent died before prctl took effect */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	if (p->reloads)
		signal(SIGHUP, SIG_IGN);
	if (p->saves)
		signal(SIGUSR1, SIG_IGN);
	sigprocmask(SIG_SETMASK, &p->old_mask, NULL);
	pin(p, rank);
	set_number("SHARDRT_RANK", rank);
	set_number("SHARDRT_WORLD", p->size);
	set_number("SHARDRT_HUB_FD", fd);
	if (!p->threads_given)
		set_number("OMP_NUM_THREADS", MAX(1, p->n_cores / p->size));
	fcntl(fd, F_SETFD, 0);
	execv("/proc/self/exe", argv);
	diag_error(p->d, p->program, "rank %d: cannot start /proc/self/exe: %s", rank, strerror(errno));
	_exit(EXIT_RUN);
}

static bool start_rank(Parent *p, int rank, char **argv)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
		diag_error(p->d, p->program, "rank %d: no socket: %s", rank, strerror(errno));
		return false;
	}
	pid_t pid = fork();
	if (pid == 0)
		be_rank(p, rank, ends[1], argv);
	close(ends[1]);
	if (pid < 0) {
		diag_error(p->d, p->program, "rank %d cannot be started: %s", rank, strerror(errno));
		close(ends[0]);
		return false;
	}
	p->child[rank] = pid;
	p->started++;
	p->running++;
	hub_attach(p->hub, ends[0], rank);
	hub_child(p->hub, rank, pid);
	return true;
}

/* ---- watching ---- */

static void child_ended(Parent *p, int rank, int how)
{
	Hub *h = p->hub;
	char why[200];
	int code = WIFEXITED(how) ? WEXITSTATUS(how) : EXIT_RUN, number = WTERMSIG(how);
	bool as_said = hub_left(h, rank) || (!hub_joined(h, rank) && code == 0);
	bool quiet = hub_ending(h) || (WIFEXITED(how) && as_said);
	if (quiet) {
		hub_gone(h, rank, code);
		return;
	}
	if (WIFSIGNALED(how))
		snprintf(why, sizeof(why), "was killed by signal %d (%s)%s", number, strsignal(number),
			number == SIGKILL ? ", as the system does when memory runs out" : "");
	else
		snprintf(why, sizeof(why), "ended with status %d %s", code,
			hub_joined(h, rank) ? "in the middle of the run" : "before it had joined the others");
	hub_lost(h, rank, code >= 1 && code <= EXIT_RUN ? code : EXIT_RUN, why);
}

/* The rank of a child; p->size: it is a child from before this process became this program. */
static int rank_of(const Parent *p, pid_t pid)
{
	int rank = 0;
	while (rank < p->size && p->child[rank] != pid)
		rank++;
	return rank;
}

/* Messages that a rank sent before it ended are handled before waitpid frees its process number, because the hub may
 * still kill that number. */
static void reap(Parent *p)
{
	siginfo_t ended = {0};
	while (!waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) && ended.si_pid) {
		int how, rank = rank_of(p, ended.si_pid);
		if (rank < p->size)
			hub_drain(p->hub);
		waitpid(ended.si_pid, &how, 0);
		if (rank < p->size) {
			p->child[rank] = 0;
			p->running--;
			child_ended(p, rank, how);
		}
		ended.si_pid = 0;
	}
}

static void kill_ranks(Parent *p)
{
	for (int i = 0; i < p->size; i++) {
		if (!p->child[i])
			continue;
		kill(p->child[i], SIGKILL);
		waitpid(p->child[i], NULL, 0);
		p->child[i] = 0;
		p->running--;
	}
}

/* The parent ends like a single process that the signal kills. */
_Noreturn static void die_of(Parent *p, int number)
{
	sigset_t set;
	kill_ranks(p);
	sigemptyset(&set);
	sigaddset(&set, number);
	signal(number, SIG_DFL);
	raise(number);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	_exit(128 + number);
}

static void take_signals(Parent *p)
{
	struct signalfd_siginfo info;
	while (read(p->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		int number = (int)info.ssi_signo;
		if (number == SIGCHLD)
			continue;
		if (number == SIGHUP || number == SIGUSR1) {
			if (p->child[0])
				kill(p->child[0], number);
			continue;
		}
		if (p->stop && clock_ms() - p->stop_ms >= SECOND_SIGNAL_MS)
			die_of(p, number);
		if (p->stop)
			continue;
		p->stop = number;
		p->stop_ms = clock_ms();
		hub_stop(p->hub, number);
	}
}

static bool catch_signals(Parent *p)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGCHLD);
	if (p->reloads)
		sigaddset(&set, SIGHUP);
	if (p->saves)
		sigaddset(&set, SIGUSR1);
	signal(SIGCHLD, SIG_DFL); /* if it stayed ignored from before, there would be no children to wait for */
	sigprocmask(SIG_BLOCK, &set, &p->old_mask);
	p->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (p->signal_fd < 0)
		diag_error(p->d, p->program, "cannot take signals: %s", strerror(errno));
	return p->signal_fd >= 0;
}

int launch_ranks(const Launch *l, const RtOptions *o, int argc, char **argv, Diag *d)
{
	Arena *a = arena_new();
	Parent p = {.size = l->world.size, .self = getpid(), .program = o->program, .d = d,
		.reloads = o->hyper, .saves = o->save, .threads_given = o->text[OPT_threads] || getenv("OMP_NUM_THREADS")};
	HubConfig config = {.size = p.size, .self = -1, .timeout = control_timeout(o) * TICKS_PER_SECOND,
		.tcp_fd = -1, .local_fd = -1, .program = o->program, .d = d};
	(void)argc;
	p.child = NEW_N(a, pid_t, p.size);
	find_cores(&p, a);
	note_crowd(&p, o);
	if (!catch_signals(&p)) {
		arena_free(a);
		return EXIT_RUN;
	}
	p.hub = hub_new(&config);
	fflush(NULL);
	bool ok = true;
	for (int i = 0; ok && i < p.size; i++)
		ok = start_rank(&p, i, argv);
	if (!ok)
		kill_ranks(&p);
	while (p.running > 0) {
		if (hub_turn(p.hub, p.signal_fd))
			take_signals(&p);
		reap(&p);
	}
	int status = ok ? hub_status(p.hub) : EXIT_RUN;
	hub_free(p.hub);
	close(p.signal_fd);
	sigprocmask(SIG_SETMASK, &p.old_mask, NULL);
	arena_free(a);
	return status;
}
