/* tests/unit/test_control.c: ranks find each other and agree, and the control plane notices ranks that hang or die. */
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/unit/play.h"
#include "tests/unit/unit.h"

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
	play_all(&p, 5, gather_part);
	play_exits(&p, zeros);
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
	play_all(&p, 4, compare_part);
	play_exits(&p, two);
	play_said_once(&p, "rank 2 was started with another binary or other flags than rank 0; line 3");
	play_said(&p, "\n  rank 0: #2 all_gather @h.1\n  rank 2: #2 reduce_scatter @h.1\n");
}

static int shorter_part(Control *c, const World *w, Diag *d)
{
	return control_compare(c, w->rank ? "a\nb" : "a\nb\nc", d) ? 20 : 2;
}

static void a_text_that_ends_before_differs(void)
{
	static const int two[] = {2, 2};
	Play p;
	play_all(&p, 2, shorter_part);
	play_exits(&p, two);
	play_said(&p, "\n  rank 0: c\n  rank 1: (nothing: it ends before)\n");
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
	play_all(&p, 3, uneven_part);
	play_said_once(&p, "the ranks run different programs");
	for (int i = 0; i < 3; i++)
		CU_ASSERT(play_exit(&p, i) != 20 && play_exit(&p, i) != 0);
}

/* ---- dying and hanging ---- */

static int stop_one(Control *c, const World *w, Diag *d)
{
	(void)d;
	play_reach_second(c);
	if (w->rank == 1)
		raise(SIGSTOP);
	pause();
	return 0;
}

static void a_stopped_rank_is_named_and_killed(void)
{
	static const int want[] = {3, -SIGKILL, 3};
	Play p;
	play_all(&p, 3, stop_one);
	play_exits(&p, want);
	play_said_once(&p, "rank 1 gives no sign of life");
	play_said(&p, "\n  rank 0: at #2 all_gather @h.1 of step 7\n");
	play_said(&p, "\n  rank 1: no sign of life for ");
	play_said(&p, "is stopped); then at #2 all_gather @h.1 of step 7\n");
	CU_ASSERT(p.ms < 3000);
}

/* Nobody waits for the stopped rank yet. */
static int stop_while_computing(Control *c, const World *w, Diag *d)
{
	(void)d;
	play_reach_second(c);
	progress_end(control_progress(c), RT_STREAM_GATHER);
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
	play_all(&p, 3, stop_while_computing);
	play_exits(&p, want);
	play_said_once(&p, "rank 1 gives no sign of life");
	play_said(&p, "\n  rank 2: computing in step 7, last ended: #2 all_gather @h.1\n");
	CU_ASSERT(p.ms < 3000);
}

static int kill_one(Control *c, const World *w, Diag *d)
{
	(void)d;
	play_reach_second(c);
	if (w->rank == 2)
		raise(SIGKILL);
	pause();
	return 0;
}

static void a_killed_rank_is_named_at_once(void)
{
	static const int want[] = {3, 3, -SIGKILL};
	Play p;
	play_all(&p, 3, kill_one);
	play_exits(&p, want);
	play_said_once(&p, "rank 2 is gone: its process ");
	play_said(&p, "last seen: at #2 all_gather @h.1 of step 7\n");
	CU_ASSERT(p.ms < 1500);
}

static int stop_hub(Control *c, const World *w, Diag *d)
{
	(void)d;
	play_reach_second(c);
	if (w->rank == 0)
		raise(SIGSTOP);
	pause();
	return 0;
}

static void a_silent_hub_is_reported_by_the_lowest_rank(void)
{
	static const int want[] = {-SIGKILL, 3, 3, 3};
	Play p;
	play_all(&p, 4, stop_hub);
	play_exits(&p, want);
	play_said_once(&p, "rank 0 gives no sign of life for 1.");
	play_said(&p, "then at #2 all_gather @h.1 of step 7\n");
	play_said(&p, "\n  rank 3: at #2 all_gather @h.1 of step 7\n");
	CU_ASSERT(p.ms < 3000);
}

static int kill_hub_part(Control *c, const World *w, Diag *d)
{
	(void)d;
	play_reach_second(c);
	if (w->rank == 0)
		raise(SIGKILL);
	pause();
	return 0;
}

static void a_lost_hub_is_reported_by_the_lowest_rank(void)
{
	static const int want[] = {-SIGKILL, 3, 3};
	Play p;
	play_all(&p, 3, kill_hub_part);
	play_exits(&p, want);
	play_said_once(&p, "rank 0 is gone: its process ended without saying so");
	play_said_once(&p, "\n  rank 0: at #2 all_gather @h.1 of step 7\n");
	CU_ASSERT(p.ms < 1500);
}

/* Rank 1 never comes to the collective that the others wait in. */
static int compute_for_ever(Control *c, const World *w, Diag *d)
{
	RankProgress *p = control_progress(c);
	(void)d;
	if (w->rank == 1)
		progress_enter(p, RT_STREAM_REDUCE, 3), progress_end(p, RT_STREAM_REDUCE);
	play_reach_second(c);
	if (w->rank == 1)
		progress_end(p, RT_STREAM_GATHER);
	if (w->rank == 2) {
		p->program = 1;
		atomic_store(&p->inside[RT_STREAM_GATHER], 1);
	}
	if (w->rank == 3) {
		p->program = 2;
		atomic_store(&p->inside[RT_STREAM_GATHER], 1);
	}
	pause();
	return 0;
}

static void a_collective_that_does_not_end_is_reported(void)
{
	static const int want[] = {3, 3, 3, 3};
	Play p;
	play_all(&p, 4, compute_for_ever);
	play_exits(&p, want);
	play_said_once(&p, "no collective has ended for 1.");
	play_said(&p, "\n  rank 0: at #2 all_gather @h.1 of step 7\n"
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
		progress_enter(p, RT_STREAM_GATHER, i);
		usleep(400000);
		progress_end(p, RT_STREAM_GATHER);
	}
	return 0;
}

static void slow_collectives_are_no_hang(void)
{
	static const int zeros[2];
	Play p;
	play_all(&p, 2, slow_part);
	play_exits(&p, zeros);
	CU_ASSERT_STRING_EQUAL(p.said, "");
}

static int fail_one(Control *c, const World *w, Diag *d)
{
	play_reach_second(c);
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
	play_all(&p, 3, fail_one);
	play_exits(&p, want);
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
	play_all(&p, 3, leave_early);
	play_exits(&p, zeros);
}

/* ---- joining ---- */

static void missing_ranks_are_named(void)
{
	Play p;
	play_begin(&p, 4, gather_part);
	play_start(&p, 0, 0, 4);
	play_start(&p, 2, 2, 4);
	play_finish(&p);
	play_said_once(&p, "ranks 1, 3 of 4 have not joined within 1 s");
	CU_ASSERT_EQUAL(play_exit(&p, 0), 3);
	CU_ASSERT_EQUAL(play_exit(&p, 2), 3);
	CU_ASSERT(p.ms < 3000);
}

static void a_missing_rank_0_is_said(void)
{
	Play p;
	play_begin(&p, 2, gather_part);
	play_start(&p, 1, 1, 2);
	play_finish(&p);
	play_said_once(&p, "rank 1 did not find rank 0 at 127.0.0.1:");
	CU_ASSERT_EQUAL(play_exit(&p, 1), 3);
	CU_ASSERT(p.ms < 3000);
}

static void a_port_in_use_is_said(void)
{
	Play p;
	Diag d = {.out = stderr};
	for (int network = 0; network < 2; network++) {
		play_begin(&p, 2, gather_part);
		p.network = network;
		int fd = network ? listen_at(p.address, "test", &d) : listen_local(p.address, "test", &d);
		CU_ASSERT(fd >= 0);
		play_start(&p, 0, 0, 2);
		play_finish(&p);
		close(fd);
		char text[100];
		if (network)
			snprintf(text, sizeof(text), "port %s (MASTER_PORT) of 127.0.0.1 is in use", strchr(p.address, ':') + 1);
		else
			snprintf(text, sizeof(text), "is in use on this host: process %d of user %u listens", (int)getpid(),
				(unsigned)geteuid());
		play_said_once(&p, text);
		CU_ASSERT_EQUAL(play_exit(&p, 0), 3);
	}
}

/* Bound and not listening: the kernel does not say whose it is. */
static void a_name_that_somebody_has_is_said_without_an_owner(void)
{
	Play p;
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	play_begin(&p, 2, gather_part);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), n = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1,
		"shardc-%u-%s", (unsigned)geteuid(), strchr(p.address, ':') + 1);
	socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
	CU_ASSERT_EQUAL(bind(fd, (struct sockaddr *)&name, bytes), 0);
	play_start(&p, 0, 0, 2);
	play_finish(&p);
	close(fd);
	play_said_once(&p, "is in use on this host: its name is taken (ss -xlp shows by whom); end who has it, or give "
		"all ranks another MASTER_PORT");
	CU_ASSERT_PTR_NULL(strstr(p.said, "process 0"));
}

/* Rank 0 of the first run is at the first address; the second run's rank 0 has the local socket of that port. */
static void ranks_join_the_run_at_their_address(void)
{
	static const int zeros[2];
	Play first, second;
	play_begin(&first, 2, gather_part);
	play_begin(&second, 2, gather_part);
	snprintf(first.address, sizeof(first.address), "127.0.0.2%s", strchr(second.address, ':'));
	snprintf(second.address, sizeof(second.address), "127.0.0.3%s", strchr(first.address, ':'));
	first.network = second.network = true;
	play_start(&second, 0, 0, 2);
	usleep(200000);
	play_start(&first, 0, 0, 2);
	play_start(&first, 1, 1, 2);
	usleep(200000);
	play_start(&second, 1, 1, 2);
	play_finish(&first);
	play_finish(&second);
	play_exits(&first, zeros);
	play_exits(&second, zeros);
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
	play_begin(&p, 2, wait_a_little);
	play_start(&p, 0, 0, 2);
	play_start(&p, 1, 1, 2);
	usleep(200000);
	play_start(&p, 2, 1, 2);
	play_start(&p, 3, 2, 3);
	play_finish(&p);
	play_said(&p, "rank 1 is there already");
	play_said(&p, "it was started as one of 3 ranks, rank 0 as one of 2");
	CU_ASSERT_EQUAL(play_exit(&p, 0), 0);
	CU_ASSERT_EQUAL(play_exit(&p, 1), 0);
	CU_ASSERT_EQUAL(play_exit(&p, 2), 3);
	CU_ASSERT_EQUAL(play_exit(&p, 3), 3);
}

static int rank_0_leaves_late(Control *c, const World *w, Diag *d)
{
	int status = gather_part(c, w, d);
	if (w->rank == 0)
		usleep(600000);
	return status;
}

/* A process that trains one model after another at one MASTER_PORT. */
static void a_rank_that_is_early_for_the_next_run_waits_for_it(void)
{
	static const int zeros[4];
	Play p;
	play_begin(&p, 4, rank_0_leaves_late);
	play_start(&p, 0, 0, 2);
	play_start(&p, 1, 1, 2);
	usleep(300000);
	play_start(&p, 2, 1, 2);
	usleep(600000);
	play_start(&p, 3, 0, 2);
	play_finish(&p);
	play_exits(&p, zeros);
	CU_ASSERT_STRING_EQUAL(p.said, "");
}

/* Rank 0 listens at all addresses; without its key nobody is let in. */
static void a_key_keeps_strangers_out(void)
{
	static const int want[] = {0, 0};
	Play p;
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	Launch l = {.role = LAUNCH_RANK, .carrier = COMM_MPI, .hub_fd = -1, .listen_fd = -1, .local_fd = -1};
	play_begin(&p, 2, gather_part);
	const char *text = control_listen(&l, a, &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(text);
	CU_ASSERT(strlen(text) < ADDRESS_TEXT);
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "@127.0.0.1:"));
	p.listen_fd = l.listen_fd;
	p.local_fd = l.local_fd;
	p.listened = text;
	play_start(&p, 0, 0, 2);
	char wrong[ADDRESS_TEXT];
	snprintf(wrong, sizeof(wrong), "%c%s", text[0] == '0' ? '1' : '0', text + 1);
	p.listened = wrong;
	play_start(&p, 2, 1, 2);
	usleep(300000);
	p.listened = text;
	play_start(&p, 1, 1, 2);
	close(l.listen_fd);
	close(l.local_fd);
	play_finish(&p);
	play_exits(&p, want);
	CU_ASSERT_EQUAL(play_exit(&p, 2), 3);
	play_said_once(&p, "rank 1 did not find rank 0 at 127.0.0.1:");
	arena_free(a);
}

/* ---- secrets ---- */

#define SECRET "a secret of some length"

static void ranks_meet_on_a_network_by_a_secret(void)
{
	static const int zeros[4];
	Play p;
	play_begin(&p, 3, gather_part);
	p.network = true;
	p.secret = "another secret, as long";
	play_start(&p, 3, 1, 3);
	p.secret = NULL;
	play_start(&p, 4, 2, 3);
	p.secret = SECRET;
	for (int i = 0; i < 3; i++)
		play_start(&p, i, i, 3);
	play_finish(&p);
	play_exits(&p, zeros);
	CU_ASSERT_EQUAL(play_exit(&p, 3), 3);
	CU_ASSERT_EQUAL(play_exit(&p, 4), 3);
	CU_ASSERT_PTR_NULL(strstr(p.said, "warning"));
}

static void a_network_without_a_secret_is_said(void)
{
	static const int zeros[2];
	Play p;
	play_begin(&p, 2, gather_part);
	p.network = true;
	play_start(&p, 0, 0, 2);
	play_start(&p, 1, 1, 2);
	play_finish(&p);
	play_exits(&p, zeros);
	play_said_once(&p, "several hosts and share no secret: whoever reaches 127.0.0.1:");
}

/* The kernel vouches for ranks of this host, also where others come by the network. */
static void a_stopped_rank_among_several_hosts_is_killed(void)
{
	static const int want[] = {3, -SIGKILL, 3};
	Play p;
	play_begin(&p, 3, stop_one);
	p.network = true;
	p.secret = SECRET;
	for (int i = 0; i < 3; i++)
		play_start(&p, i, i, 3);
	play_finish(&p);
	play_exits(&p, want);
	play_said_once(&p, "rank 1 gives no sign of life");
}

void suite_control(void)
{
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
	CU_ADD_TEST(s, a_rank_that_is_early_for_the_next_run_waits_for_it);
	CU_ADD_TEST(s, a_key_keeps_strangers_out);
	CU_ADD_TEST(s, ranks_meet_on_a_network_by_a_secret);
	CU_ADD_TEST(s, a_network_without_a_secret_is_said);
	CU_ADD_TEST(s, a_stopped_rank_among_several_hosts_is_killed);
}
