/* tests/unit/test_control.c: ranks find each other, agree, and are missed when they hang or die.
 *
 * Ranks are forked processes that join a hub over the loopback; those of launch_ranks are this program,
 * started again: suite_control sees that it is a rank and plays its part. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <unistd.h>

#include "runtime/plane/plane.h"
#include "tests/unit/unit.h"

enum { MOST_RANKS = 8, LIMIT_MS = 6000 };

/* What a rank does once it has joined; its exit status. */
typedef int Part(Control *c, const World *w, Diag *d);

/* A run of ranks, and what became of it. */
typedef struct Play {
	int size, skip;          /* skip: a rank that is never started, -1 none */
	Part *part;
	char address[64], path[64];
	const char *listened;    /* instead of address: what rank 0's control_listen said */
	int listen_fd, local_fd;
	bool network;            /* the launcher does not say that all ranks are on this host */
	const char *secret;      /* of the ranks that are started next; NULL: none */
	pid_t pid[MOST_RANKS];
	int how[MOST_RANKS];     /* as waitpid says */
	char said[8192];
	int64_t ms;
	bool in_time;
} Play;

static int free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	bool ok = fd >= 0 && !bind(fd, (struct sockaddr *)&a, n) && !getsockname(fd, (struct sockaddr *)&a, &n);
	close(fd);
	return ok ? ntohs(a.sin_port) : 0;
}

static FILE *open_said(const Play *p)
{
	FILE *f = fopen(p->path, "a");
	if (!f)
		_exit(99);
	setvbuf(f, NULL, _IONBF, 0);
	return f;
}

static RtOptions options_of(Arena *a, Diag *d, char *flag)
{
	RtOptions o;
	char *argv[] = {arena_strdup(a, "train"), flag, NULL};
	if (!options_parse(&o, a, flag ? 2 : 1, argv, d))
		_exit(98);
	return o;
}

_Noreturn static void be_rank(const Play *p, int rank, int size)
{
	Arena *a = arena_new();
	Diag d = {.out = open_said(p)};
	char flag[] = "--timeout=1";
	RtOptions o = options_of(a, &d, flag);
	Launch l = {.role = LAUNCH_RANK, .world = {.rank = rank, .size = size}, .hub_fd = -1, .listen_fd = -1,
		.local_fd = -1, .one_host = !p->listened && !p->network, .nccl = p->network,
		.address = p->listened ? p->listened : p->address, .mpi = p->listened};
	if (p->secret)
		setenv("SHARDC_SECRET", p->secret, 1);
	if (!secret_find(&l.secret, "train", &d))
		_exit(97);
	if (p->listened && rank == 0) {
		l.listen_fd = p->listen_fd;
		l.local_fd = p->local_fd;
	} else if (p->listened) {
		close(p->listen_fd);
		close(p->local_fd);
	}
	Control *c = control_join(&l, &o, a, &d);
	if (!c)
		_exit(3);
	int status = p->part(c, &l.world, &d);
	control_leave(c, status);
	_exit(status);
}

static void start(Play *p, int slot, int rank, int size)
{
	p->pid[slot] = fork();
	if (p->pid[slot] == 0)
		be_rank(p, rank, size);
}

static void begin(Play *p, int size, Part *part)
{
	*p = (Play){.size = size, .part = part, .skip = -1};
	snprintf(p->address, sizeof(p->address), "127.0.0.1:%d", free_port());
	snprintf(p->path, sizeof(p->path), "/tmp/control-test-XXXXXX");
	close(mkstemp(p->path));
}

/* Waits for all ranks; what is left after the limit is killed and said. */
static void finish(Play *p)
{
	int64_t begun = clock_ms();
	p->in_time = true;
	for (bool left = true; left;) {
		left = false;
		bool late = clock_ms() - begun > LIMIT_MS;
		for (int i = 0; i < MOST_RANKS; i++) {
			if (p->pid[i] && late)
				kill(p->pid[i], SIGKILL);
			if (p->pid[i] && waitpid(p->pid[i], &p->how[i], WNOHANG) == p->pid[i])
				p->pid[i] = 0;
			left = left || p->pid[i];
		}
		p->in_time = p->in_time && !late;
		usleep(5000);
	}
	p->ms = clock_ms() - begun;
	FILE *f = fopen(p->path, "r");
	if (f) {
		p->said[fread(p->said, 1, sizeof(p->said) - 1, f)] = 0;
		fclose(f);
	}
	unlink(p->path);
	CU_ASSERT(p->in_time);
}

static void play(Play *p, int size, Part *part)
{
	begin(p, size, part);
	for (int i = 0; i < size; i++)
		start(p, i, i, size);
	finish(p);
}

static int exit_of(const Play *p, int i)
{
	return WIFEXITED(p->how[i]) ? WEXITSTATUS(p->how[i]) : -WTERMSIG(p->how[i]);
}

static void check_said(const Play *p, const char *text)
{
	char message[9000];
	snprintf(message, sizeof(message), "expected: %s\nsaid: %s", text, p->said);
	UNIT_CHECK(strstr(p->said, text) != NULL, message);
}

static void check_said_once(const Play *p, const char *text)
{
	const char *at = strstr(p->said, text);
	check_said(p, text);
	CU_ASSERT(!at || !strstr(at + 1, text));
}

static void check_exits(const Play *p, const int *want)
{
	char message[9000];
	for (int i = 0; i < p->size; i++) {
		snprintf(message, sizeof(message), "rank %d: exit %d, expected %d; said: %s", i, exit_of(p, i),
			want[i], p->said);
		UNIT_CHECK(exit_of(p, i) == want[i], message);
	}
}

/* ---- agreeing ---- */

static int gather_part(Control *c, const World *w, Diag *d)
{
	int64_t mine[2] = {w->rank, 100 * w->rank}, all[2 * MOST_RANKS];
	for (int round = 0; round < 20; round++) {
		mine[1] = 100 * w->rank + round;
		if (!control_all_gather(c, mine, sizeof(mine), all))
			return 10;
		for (int i = 0; i < w->size; i++)
			if (all[2 * i] != i || all[2 * i + 1] != 100 * i + round)
				return 11;
	}
	if (w->n_hosts != 1 || w->local_rank != w->rank || w->local_size != w->size || w->host_of[w->size - 1])
		return 12;
	return control_compare(c, "the same\ntext", d) ? 0 : 13;
}

static void ranks_exchange_blobs(void)
{
	static const int zeros[MOST_RANKS];
	Play p;
	play(&p, 5, gather_part);
	check_exits(&p, zeros);
	CU_ASSERT_STRING_EQUAL(p.said, "");
}

static int compare_part(Control *c, const World *w, Diag *d)
{
	const char *text = w->rank < 2 ? "units 3\n#1 all_gather @h.0\n#2 all_gather @h.1" :
		"units 3\n#1 all_gather @h.0\n#2 reduce_scatter @h.1";
	return control_compare(c, text, d) ? 20 : d->errors ? 2 : 21;
}

static void the_first_differing_line_is_said(void)
{
	static const int two[] = {2, 2, 2, 2};
	Play p;
	play(&p, 4, compare_part);
	check_exits(&p, two);
	check_said_once(&p, "rank 2 was started with another binary or other flags than rank 0; line 3");
	check_said(&p, "\n  rank 0: #2 all_gather @h.1\n  rank 2: #2 reduce_scatter @h.1\n");
}

static int shorter_part(Control *c, const World *w, Diag *d)
{
	return control_compare(c, w->rank ? "a\nb" : "a\nb\nc", d) ? 20 : 2;
}

static void a_text_that_ends_before_differs(void)
{
	static const int two[] = {2, 2};
	Play p;
	play(&p, 2, shorter_part);
	check_exits(&p, two);
	check_said(&p, "\n  rank 0: c\n  rank 1: (nothing: it ends before)\n");
}

static int uneven_part(Control *c, const World *w, Diag *d)
{
	char mine[8] = {0}, all[64];
	(void)d;
	return control_all_gather(c, mine, w->rank == 1 ? 4 : 8, all) ? 20 : 4;
}

static void blobs_of_other_sizes_are_an_error(void)
{
	Play p;
	play(&p, 3, uneven_part);
	check_said_once(&p, "the ranks run different programs");
	for (int i = 0; i < 3; i++)
		CU_ASSERT(exit_of(&p, i) != 20 && exit_of(&p, i) != 0);
}

/* ---- dying and hanging ---- */

static const char *name_of(const void *context, int program, int seq)
{
	static const char *const names[] = {"all_gather @h.0", "all_gather @h.1", "reduce_scatter @h.1"};
	return program == 0 && seq <= 3 ? names[seq - 1] : seq > 1 ? NULL : program == 1 ? (const char *)context :
		program == 2 ? "agreement" : NULL;
}

/* Step 7: rank 1 has ended #1 and waits in #2; the others are in #2, too. */
static void reach_second(Control *c)
{
	RankProgress *p = control_progress(c);
	control_set_names(c, name_of, "all_gather @eval");
	p->step = 7;
	progress_enter(p, COMM_GATHER, 1);
	progress_end(p, COMM_GATHER);
	progress_enter(p, COMM_GATHER, 2);
	usleep(3 * TICK_MS * 1000);
}

static int stop_one(Control *c, const World *w, Diag *d)
{
	(void)d;
	reach_second(c);
	if (w->rank == 1)
		raise(SIGSTOP);
	pause();
	return 0;
}

static void a_stopped_rank_is_named_and_killed(void)
{
	static const int want[] = {3, -SIGKILL, 3};
	Play p;
	play(&p, 3, stop_one);
	check_exits(&p, want);
	check_said_once(&p, "rank 1 gives no sign of life");
	check_said(&p, "\n  rank 0: at #2 all_gather @h.1 of step 7\n");
	check_said(&p, "\n  rank 1: no sign of life for ");
	check_said(&p, "is stopped); then at #2 all_gather @h.1 of step 7\n");
	CU_ASSERT(p.ms < 3000);
}

/* Nobody waits for the stopped rank yet. */
static int stop_while_computing(Control *c, const World *w, Diag *d)
{
	(void)d;
	reach_second(c);
	progress_end(control_progress(c), COMM_GATHER);
	usleep(3 * TICK_MS * 1000);
	if (w->rank == 1)
		raise(SIGSTOP);
	pause();
	return 0;
}

static void a_stopped_rank_is_missed_before_it_is_waited_for(void)
{
	static const int want[] = {3, -SIGKILL, 3};
	Play p;
	play(&p, 3, stop_while_computing);
	check_exits(&p, want);
	check_said_once(&p, "rank 1 gives no sign of life");
	check_said(&p, "\n  rank 2: computing in step 7, last ended: #2 all_gather @h.1\n");
	CU_ASSERT(p.ms < 3000);
}

static int kill_one(Control *c, const World *w, Diag *d)
{
	(void)d;
	reach_second(c);
	if (w->rank == 2)
		raise(SIGKILL);
	pause();
	return 0;
}

static void a_killed_rank_is_named_at_once(void)
{
	static const int want[] = {3, 3, -SIGKILL};
	Play p;
	play(&p, 3, kill_one);
	check_exits(&p, want);
	check_said_once(&p, "rank 2 is gone: its process ");
	check_said(&p, "last seen: at #2 all_gather @h.1 of step 7\n");
	CU_ASSERT(p.ms < 1500);
}

static int stop_hub(Control *c, const World *w, Diag *d)
{
	(void)d;
	reach_second(c);
	if (w->rank == 0)
		raise(SIGSTOP);
	pause();
	return 0;
}

static void a_silent_hub_is_reported_by_the_lowest_rank(void)
{
	static const int want[] = {-SIGKILL, 3, 3, 3};
	Play p;
	play(&p, 4, stop_hub);
	check_exits(&p, want);
	check_said_once(&p, "rank 0 gives no sign of life for 1.");
	check_said(&p, "then at #2 all_gather @h.1 of step 7\n");
	check_said(&p, "\n  rank 3: at #2 all_gather @h.1 of step 7\n");
	CU_ASSERT(p.ms < 3000);
}

static int kill_hub_part(Control *c, const World *w, Diag *d)
{
	(void)d;
	reach_second(c);
	if (w->rank == 0)
		raise(SIGKILL);
	pause();
	return 0;
}

static void a_lost_hub_is_reported_by_the_lowest_rank(void)
{
	static const int want[] = {-SIGKILL, 3, 3};
	Play p;
	play(&p, 3, kill_hub_part);
	check_exits(&p, want);
	check_said_once(&p, "rank 0 is gone: its process ended without saying so");
	check_said_once(&p, "\n  rank 0: at #2 all_gather @h.1 of step 7\n");
	CU_ASSERT(p.ms < 1500);
}

/* Rank 1 never comes to the collective that the others wait in. */
static int compute_for_ever(Control *c, const World *w, Diag *d)
{
	RankProgress *p = control_progress(c);
	(void)d;
	if (w->rank == 1)
		progress_enter(p, COMM_REDUCE, 3), progress_end(p, COMM_REDUCE);
	reach_second(c);
	if (w->rank == 1)
		progress_end(p, COMM_GATHER);
	if (w->rank == 2) {
		p->program = 1;
		atomic_store(&p->inside[COMM_GATHER], 1);
	}
	if (w->rank == 3) {
		p->program = 2;
		atomic_store(&p->inside[COMM_GATHER], 1);
	}
	pause();
	return 0;
}

static void a_collective_that_does_not_end_is_reported(void)
{
	static const int want[] = {3, 3, 3, 3};
	Play p;
	play(&p, 4, compute_for_ever);
	check_exits(&p, want);
	check_said_once(&p, "no collective has ended for 1.");
	check_said(&p, "\n  rank 0: at #2 all_gather @h.1 of step 7\n"
		"  rank 1: computing in step 7, last ended: #2 all_gather @h.1, #3 reduce_scatter @h.1\n"
		"  rank 2: at #1 all_gather @eval of the evaluation after step 7\n"
		"  rank 3: at #1 agreement of loading or saving, after step 7\n");
	CU_ASSERT(p.ms < 3000);
}

/* Longer than the timeout, but something moves, or nobody waits. */
static int slow_part(Control *c, const World *w, Diag *d)
{
	RankProgress *p = control_progress(c);
	(void)w, (void)d;
	for (int i = 1; i <= 4; i++) {
		progress_enter(p, COMM_GATHER, i);
		usleep(400000);
		progress_end(p, COMM_GATHER);
	}
	return 0;
}

static void slow_collectives_are_no_hang(void)
{
	static const int zeros[2];
	Play p;
	play(&p, 2, slow_part);
	check_exits(&p, zeros);
	CU_ASSERT_STRING_EQUAL(p.said, "");
}

static int fail_one(Control *c, const World *w, Diag *d)
{
	reach_second(c);
	if (w->rank == 1) {
		diag_error(d, "data.npy", "is bad");
		return 1;
	}
	pause();
	return 0;
}

static void an_error_of_one_rank_ends_all(void)
{
	static const int want[] = {3, 1, 3};
	Play p;
	play(&p, 3, fail_one);
	check_exits(&p, want);
	CU_ASSERT_STRING_EQUAL(p.said, "data.npy: error: is bad\n");
	CU_ASSERT(p.ms < 2500);
}

static int leave_early(Control *c, const World *w, Diag *d)
{
	char mine = 0, all[MOST_RANKS];
	(void)d;
	return w->rank == 1 ? 0 : control_all_gather(c, &mine, 1, all) ? 20 : 0;
}

static void blobs_of_a_rank_that_left_never_come(void)
{
	static const int zeros[3];
	Play p;
	play(&p, 3, leave_early);
	check_exits(&p, zeros);
}

/* ---- joining ---- */

static void missing_ranks_are_named(void)
{
	Play p;
	begin(&p, 4, gather_part);
	start(&p, 0, 0, 4);
	start(&p, 2, 2, 4);
	finish(&p);
	check_said_once(&p, "ranks 1, 3 of 4 have not joined within 1 s");
	CU_ASSERT_EQUAL(exit_of(&p, 0), 3);
	CU_ASSERT_EQUAL(exit_of(&p, 2), 3);
	CU_ASSERT(p.ms < 3000);
}

static void a_missing_rank_0_is_said(void)
{
	Play p;
	begin(&p, 2, gather_part);
	start(&p, 1, 1, 2);
	finish(&p);
	check_said_once(&p, "rank 1 did not find rank 0 at 127.0.0.1:");
	CU_ASSERT_EQUAL(exit_of(&p, 1), 3);
	CU_ASSERT(p.ms < 3000);
}

static void a_port_in_use_is_said(void)
{
	Play p;
	Diag d = {.out = stderr};
	for (int network = 0; network < 2; network++) {
		begin(&p, 2, gather_part);
		p.network = network;
		int fd = network ? listen_at(p.address, "test", &d) : listen_local(p.address, "test", &d);
		CU_ASSERT(fd >= 0);
		start(&p, 0, 0, 2);
		finish(&p);
		close(fd);
		char text[100];
		if (network)
			snprintf(text, sizeof(text), "port %s (MASTER_PORT) of 127.0.0.1 is in use", strchr(p.address, ':') + 1);
		else
			snprintf(text, sizeof(text), "is in use on this host: process %d of user %u listens", (int)getpid(),
				(unsigned)geteuid());
		check_said_once(&p, text);
		CU_ASSERT_EQUAL(exit_of(&p, 0), 3);
	}
}

/* Bound and not listening: the kernel does not say whose it is. */
static void a_name_that_somebody_has_is_said_without_an_owner(void)
{
	Play p;
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	begin(&p, 2, gather_part);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), n = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1,
		"shardc-%u-%s", (unsigned)geteuid(), strchr(p.address, ':') + 1);
	socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
	CU_ASSERT_EQUAL(bind(fd, (struct sockaddr *)&name, bytes), 0);
	start(&p, 0, 0, 2);
	finish(&p);
	close(fd);
	check_said_once(&p, "is in use on this host: its name is taken (ss -xlp shows by whom); end who has it, or give "
		"all ranks another MASTER_PORT");
	CU_ASSERT_PTR_NULL(strstr(p.said, "process 0"));
}

/* Rank 0 of the first run is at the first address; the second run's rank 0 has the local socket of that port. */
static void ranks_join_the_run_at_their_address(void)
{
	static const int zeros[2];
	Play first, second;
	begin(&first, 2, gather_part);
	begin(&second, 2, gather_part);
	snprintf(first.address, sizeof(first.address), "127.0.0.2%s", strchr(second.address, ':'));
	snprintf(second.address, sizeof(second.address), "127.0.0.3%s", strchr(first.address, ':'));
	first.network = second.network = true;
	start(&second, 0, 0, 2);
	usleep(200000);
	start(&first, 0, 0, 2);
	start(&first, 1, 1, 2);
	usleep(200000);
	start(&second, 1, 1, 2);
	finish(&first);
	finish(&second);
	check_exits(&first, zeros);
	check_exits(&second, zeros);
}

static int wait_a_little(Control *c, const World *w, Diag *d)
{
	(void)c, (void)w, (void)d;
	usleep(500000);
	return 0;
}

static void a_rank_that_is_there_already_is_refused(void)
{
	Play p;
	begin(&p, 2, wait_a_little);
	start(&p, 0, 0, 2);
	start(&p, 1, 1, 2);
	usleep(200000);
	start(&p, 2, 1, 2);
	start(&p, 3, 2, 3);
	finish(&p);
	check_said(&p, "rank 1 is there already");
	check_said(&p, "it was started as one of 3 ranks, rank 0 as one of 2");
	CU_ASSERT_EQUAL(exit_of(&p, 0), 0);
	CU_ASSERT_EQUAL(exit_of(&p, 1), 0);
	CU_ASSERT_EQUAL(exit_of(&p, 2), 3);
	CU_ASSERT_EQUAL(exit_of(&p, 3), 3);
}

/* Rank 0 listens at all addresses; without its key nobody is let in. */
static void a_key_keeps_strangers_out(void)
{
	static const int want[] = {0, 0};
	Play p;
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	Launch l = {.role = LAUNCH_RANK, .mpi = true, .hub_fd = -1, .listen_fd = -1, .local_fd = -1};
	begin(&p, 2, gather_part);
	const char *text = control_listen(&l, a, &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(text);
	CU_ASSERT(strlen(text) < ADDRESS_TEXT);
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "@127.0.0.1:"));
	p.listen_fd = l.listen_fd;
	p.local_fd = l.local_fd;
	p.listened = text;
	start(&p, 0, 0, 2);
	char wrong[ADDRESS_TEXT];
	snprintf(wrong, sizeof(wrong), "%c%s", text[0] == '0' ? '1' : '0', text + 1);
	p.listened = wrong;
	start(&p, 2, 1, 2);
	usleep(300000);
	p.listened = text;
	start(&p, 1, 1, 2);
	close(l.listen_fd);
	close(l.local_fd);
	finish(&p);
	check_exits(&p, want);
	CU_ASSERT_EQUAL(exit_of(&p, 2), 3);
	check_said_once(&p, "rank 1 did not find rank 0 at 127.0.0.1:");
	arena_free(a);
}

/* ---- secrets ---- */

#define SECRET "a secret of some length"

static void ranks_meet_on_a_network_by_a_secret(void)
{
	static const int zeros[4];
	Play p;
	begin(&p, 3, gather_part);
	p.network = true;
	p.secret = "another secret, as long";
	start(&p, 3, 1, 3);
	p.secret = NULL;
	start(&p, 4, 2, 3);
	p.secret = SECRET;
	for (int i = 0; i < 3; i++)
		start(&p, i, i, 3);
	finish(&p);
	check_exits(&p, zeros);
	CU_ASSERT_EQUAL(exit_of(&p, 3), 3);
	CU_ASSERT_EQUAL(exit_of(&p, 4), 3);
	CU_ASSERT_PTR_NULL(strstr(p.said, "warning"));
}

static void a_network_without_a_secret_is_said(void)
{
	static const int zeros[2];
	Play p;
	begin(&p, 2, gather_part);
	p.network = true;
	start(&p, 0, 0, 2);
	start(&p, 1, 1, 2);
	finish(&p);
	check_exits(&p, zeros);
	check_said_once(&p, "several hosts and share no secret: whoever reaches 127.0.0.1:");
}

/* The kernel vouches for ranks of this host, also where others come by the network. */
static void a_stopped_rank_among_several_hosts_is_killed(void)
{
	static const int want[] = {3, -SIGKILL, 3};
	Play p;
	begin(&p, 3, stop_one);
	p.network = true;
	p.secret = SECRET;
	for (int i = 0; i < 3; i++)
		start(&p, i, i, 3);
	finish(&p);
	check_exits(&p, want);
	check_said_once(&p, "rank 1 gives no sign of life");
}

/* ---- launch_ranks: this program, again ---- */

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
	reach_second(c);
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
	RtOptions o = options_of(a, &d, flag);
	Launch l;
	if (!launch_find(&l, &o, a, &d))
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
	char program[] = "train", suite[] = "control", timeout[] = "--timeout=1", ranks[] = "--ranks=3";
	char *flags[] = {program, timeout, ranks, NULL}, *argv[] = {program, suite, NULL};
	RtOptions o;
	Launch l;
	dup2(fileno(open_said(p)), STDERR_FILENO);
	if (!options_parse(&o, a, 3, flags, &d) || !launch_find(&l, &o, a, &d) || l.role != LAUNCH_PARENT)
		_exit(97);
	int status = launch_ranks(&l, &o, 2, argv, &d);
	_exit(waitpid(-1, NULL, WNOHANG) == -1 ? status : 96); /* no child is left */
}

static void play_parent(Play *p, const char *part)
{
	begin(p, 1, NULL);
	unsetenv("RANK");
	unsetenv("WORLD_SIZE");
	setenv("CONTROL_PART", part, 1);
	fflush(NULL);
	p->pid[0] = fork();
	if (p->pid[0] == 0)
		be_parent(p);
	finish(p);
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
		check_exits(&p, &cases[i].status);
		if (*cases[i].said)
			check_said_once(&p, cases[i].said);
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
	CU_ASSERT_EQUAL(exit_of(&p, 0), 3);
	check_said_once(&p, "rank 1 sent what no rank of this version of shardc sends");
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

void suite_control(void)
{
	if (getenv("SHARDRT_RANK"))
		_exit(be_started_rank());
	CU_pSuite s = CU_add_suite("control", NULL, NULL);
	CU_ADD_TEST(s, ranks_exchange_blobs);
	CU_ADD_TEST(s, the_first_differing_line_is_said);
	CU_ADD_TEST(s, a_text_that_ends_before_differs);
	CU_ADD_TEST(s, blobs_of_other_sizes_are_an_error);
	CU_ADD_TEST(s, a_stopped_rank_is_named_and_killed);
	CU_ADD_TEST(s, a_stopped_rank_is_missed_before_it_is_waited_for);
	CU_ADD_TEST(s, a_killed_rank_is_named_at_once);
	CU_ADD_TEST(s, a_silent_hub_is_reported_by_the_lowest_rank);
	CU_ADD_TEST(s, a_lost_hub_is_reported_by_the_lowest_rank);
	CU_ADD_TEST(s, a_collective_that_does_not_end_is_reported);
	CU_ADD_TEST(s, slow_collectives_are_no_hang);
	CU_ADD_TEST(s, an_error_of_one_rank_ends_all);
	CU_ADD_TEST(s, blobs_of_a_rank_that_left_never_come);
	CU_ADD_TEST(s, missing_ranks_are_named);
	CU_ADD_TEST(s, a_missing_rank_0_is_said);
	CU_ADD_TEST(s, a_port_in_use_is_said);
	CU_ADD_TEST(s, a_name_that_somebody_has_is_said_without_an_owner);
	CU_ADD_TEST(s, ranks_join_the_run_at_their_address);
	CU_ADD_TEST(s, a_rank_that_is_there_already_is_refused);
	CU_ADD_TEST(s, a_key_keeps_strangers_out);
	CU_ADD_TEST(s, ranks_meet_on_a_network_by_a_secret);
	CU_ADD_TEST(s, a_network_without_a_secret_is_said);
	CU_ADD_TEST(s, a_stopped_rank_among_several_hosts_is_killed);
	CU_ADD_TEST(s, the_parent_ends_as_its_ranks_do);
	CU_ADD_TEST(s, the_parent_kills_no_number_that_may_be_anothers);
	CU_ADD_TEST(s, the_parent_kills_what_is_stopped);
	CU_ADD_TEST(s, ranks_end_a_stopped_parent);
}
