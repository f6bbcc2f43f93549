/* tests/unit/test_parent.c: launch_ranks, the parent of ranks on one host, ends with their status, and they end when it
 * does.
 *
 * The ranks are this program, started again: suite_parent detects that it is a rank and acts as one. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/play.h"
#include "tests/unit/unit.h"

static const char *const comms[] = {"self", "shm", "mpi", NULL};

/* A file of this name: the parent sees that a child has ended before what it said last. */
static const char *hides(void)
{
	const char *path = getenv("CONTROL_HIDES");
	return path && !access(path, F_OK) ? path : NULL;
}

int poll(struct pollfd *fds, nfds_t n, int wait_ms)
{
	struct timespec t = {wait_ms / 1000, wait_ms % 1000 * 1000000L}, *wait = wait_ms < 0 ? NULL : &t;
	bool last_alone = n > 1 && wait_ms > 0 && !getenv("SHARDRT_RANK") && hides();
	for (nfds_t i = 0; last_alone && i + 1 < n; i++)
		fds[i].revents = 0;
	return last_alone ? ppoll(fds + n - 1, 1, wait, NULL) : ppoll(fds, n, wait, NULL);
}

int kill(pid_t pid, int number)
{
	siginfo_t info;
	if (hides() && waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT))
		fprintf(stderr, "signal %d for %d, which is no child\n", number, (int)pid);
	return (int)syscall(SYS_kill, pid, number);
}

_Noreturn static void say_wrong_and_exit(Control *c)
{
	close(creat(getenv("CONTROL_HIDES"), 0600));
	usleep(300000);
	pthread_mutex_lock(&c->lock);
	link_send(&c->link, MSG_WELCOME, NULL, 0);
	_exit(0);
}

/* What a rank that launch_ranks started does; CONTROL_PART names it. */
static int started_part(Control *c, const World *w, Diag *d)
{
	const char *part = getenv("CONTROL_PART");
	RankProgress *p = control_progress(c);
	char mine = (char)w->rank, all[MOST_RANKS];
	if (!control_all_gather(c, &mine, 1, all) || all[w->size - 1] != w->size - 1)
		return 20;
	if (!strcmp(part, "signal")) {
		p->step = 1; /* rank 0 alone learns of it; the others end when it does */
		if (w->rank == 0)
			kill(getppid(), SIGTERM);
		for (int i = 0; w->rank == 0 && i < 100 && !control_stop_signal(c); i++)
			usleep(10000);
		return control_all_gather(c, &mine, 1, all) && (w->rank || control_stop_signal(c) == SIGTERM) ?
			0 : 21;
	}
	if (!strcmp(part, "threads"))
		return atoi(getenv("OMP_NUM_THREADS")) >= 1 ? 0 : 22;
	play_reach_second(c);
	if (w->rank == 1 && !strcmp(part, "wrong"))
		say_wrong_and_exit(c);
	if (w->rank == 1 && !strcmp(part, "kill"))
		raise(SIGKILL);
	if (w->rank == 1 && !strcmp(part, "exit"))
		_exit(1);
	if (w->rank == 1 && !strcmp(part, "stop"))
		raise(SIGSTOP);
	if (w->rank == 1 && !strcmp(part, "fail")) {
		diag_error(d, "train", "fails");
		return 2;
	}
	if (w->rank == 0 && !strcmp(part, "stop parent"))
		kill(getppid(), SIGSTOP);
	pause();
	return 0;
}

static int be_started_rank(void)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	char flag[] = "--timeout=1";
	RtOptions o = play_options(a, &d, flag);
	Launch l;
	if (!launch_find(&l, &o, comms, a, &d))
		return 30;
	Control *c = control_join(&l, &o, a, &d);
	if (!c)
		return 3;
	int status = started_part(c, &l.world, &d);
	control_leave(c, status);
	return status;
}

_Noreturn static void be_parent(const Play *p)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	char program[] = "train", suite[] = "parent", timeout[] = "--timeout=1", ranks[] = "--ranks=3";
	char *flags[] = {program, timeout, ranks, NULL}, *argv[] = {program, suite, NULL};
	RtOptions o;
	Launch l;
	dup2(fileno(play_open_said(p)), STDERR_FILENO);
	if (!options_parse(&o, a, 3, flags, &d) || !launch_find(&l, &o, comms, a, &d) || l.role != LAUNCH_PARENT)
		_exit(97);
	int status = launch_ranks(&l, &o, 2, argv, &d);
	_exit(waitpid(-1, NULL, WNOHANG) == -1 ? status : 96); /* no child is left */
}

static void play_parent(Play *p, const char *part)
{
	play_begin(p, 1, NULL);
	unsetenv("RANK");
	unsetenv("WORLD_SIZE");
	setenv("CONTROL_PART", part, 1);
	fflush(NULL);
	p->pid[0] = fork();
	if (p->pid[0] == 0)
		be_parent(p);
	play_finish(p);
	unsetenv("CONTROL_PART");
}

/* The note of a machine with fewer processors than ranks, and nothing else. */
static bool is_crowd(const char *said)
{
	const char *end = strchr(said, '\n');
	return strstr(said, " take turns on ") && end && !end[1];
}

typedef struct ParentCase { const char *part; int status; const char *said; } ParentCase;

static void check_parent(const ParentCase *cases, int n)
{
	for (int i = 0; i < n; i++) {
		Play p;
		play_parent(&p, cases[i].part);
		play_exits(&p, &cases[i].status);
		if (*cases[i].said)
			play_said_once(&p, cases[i].said);
		else
			CU_ASSERT(!*p.said || is_crowd(p.said));
		CU_ASSERT(p.ms < 3000);
	}
}

static void the_parent_ends_as_its_ranks_do(void)
{
	static const ParentCase cases[] = {
		{"threads", 0, ""},
		{"signal", 0, ""},
		{"fail", 2, "[rank 1/3] train: error: fails\n"},
		{"exit", 1, "rank 1 ended with status 1 in the middle of the run; last seen: at #2 all_gather @h.1 "
			"of step 7\n"},
		{"kill", 3, "train: error: rank 1 was killed by signal 9 (Killed), as the system does when memory "
			"runs out; "
			"last seen: at #2 all_gather @h.1 of step 7\n"},
	};
	check_parent(cases, COUNT_OF(cases));
}

static void the_parent_kills_no_number_that_may_be_anothers(void)
{
	Play p;
	char path[] = "/tmp/control-hides-XXXXXX";
	close(mkstemp(path));
	unlink(path);
	setenv("CONTROL_HIDES", path, 1);
	play_parent(&p, "wrong");
	unlink(path);
	unsetenv("CONTROL_HIDES");
	CU_ASSERT_EQUAL(play_exit(&p, 0), 3);
	play_said_once(&p, "rank 1 sent what no rank of this version of shardc sends");
	UNIT_CHECK(!strstr(p.said, "no child"), p.said);
}

static void the_parent_kills_what_is_stopped(void)
{
	static const ParentCase stopped = {"stop", 3, "rank 1 gives no sign of life"};
	check_parent(&stopped, 1);
}

static void ranks_end_a_stopped_parent(void)
{
	static const ParentCase stopped = {"stop parent", -SIGKILL, "the parent process of the ranks gives no "
		"sign of life"};
	check_parent(&stopped, 1);
}

void suite_parent(void)
{
	if (getenv("SHARDRT_RANK"))
		_exit(be_started_rank());
	CU_pSuite s = CU_add_suite("parent", NULL, NULL);
	CU_ADD_TEST(s, the_parent_ends_as_its_ranks_do);
	CU_ADD_TEST(s, the_parent_kills_no_number_that_may_be_anothers);
	CU_ADD_TEST(s, the_parent_kills_what_is_stopped);
	CU_ADD_TEST(s, ranks_end_a_stopped_parent);
}
