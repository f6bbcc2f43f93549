/* tests/unit/play.c: runs of a few ranks, each a forked process. */
#include "tests/unit/play.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/port.h"
#include "tests/unit/unit.h"

enum { LIMIT_MS = 6000 };

FILE *play_open_said(const Play *p)
{
	FILE *f = fopen(p->path, "a");
	if (!f)
		_exit(99);
	setvbuf(f, NULL, _IONBF, 0);
	return f;
}

RtOptions play_options(Arena *a, Diag *d, char *flag)
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
	Diag d = {.out = play_open_said(p)};
	char flag[] = "--timeout=1";
	RtOptions o = play_options(a, &d, flag);
	Launch l = {.role = LAUNCH_RANK, .world = {.rank = rank, .size = size}, .hub_fd = -1, .listen_fd = -1,
		.local_fd = -1, .one_host = !p->listened && !p->network, .nccl = p->network,
		.address = p->listened ? p->listened : p->address, .carrier = p->listened ? COMM_MPI : COMM_UNSAID};
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

void play_start(Play *p, int slot, int rank, int size)
{
	p->pid[slot] = fork();
	if (p->pid[slot] == 0)
		be_rank(p, rank, size);
}

void play_begin(Play *p, int size, Part *part)
{
	*p = (Play){.size = size, .part = part, .skip = -1};
	snprintf(p->address, sizeof(p->address), "127.0.0.1:%d", free_port());
	snprintf(p->path, sizeof(p->path), "/tmp/control-test-XXXXXX");
	close(mkstemp(p->path));
}

void play_finish(Play *p)
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

void play_all(Play *p, int size, Part *part)
{
	play_begin(p, size, part);
	for (int i = 0; i < size; i++)
		play_start(p, i, i, size);
	play_finish(p);
}

int play_exit(const Play *p, int i)
{
	return WIFEXITED(p->how[i]) ? WEXITSTATUS(p->how[i]) : -WTERMSIG(p->how[i]);
}

void play_said(const Play *p, const char *text)
{
	char message[9000];
	snprintf(message, sizeof(message), "expected: %s\nsaid: %s", text, p->said);
	UNIT_CHECK(strstr(p->said, text) != NULL, message);
}

void play_said_once(const Play *p, const char *text)
{
	const char *at = strstr(p->said, text);
	play_said(p, text);
	CU_ASSERT(!at || !strstr(at + 1, text));
}

void play_exits(const Play *p, const int *want)
{
	char message[9000];
	for (int i = 0; i < p->size; i++) {
		snprintf(message, sizeof(message), "rank %d: exit %d, expected %d; said: %s", i, play_exit(p, i),
			want[i], p->said);
		UNIT_CHECK(play_exit(p, i) == want[i], message);
	}
}

static const char *name_of(const void *context, int program, int seq)
{
	static const char *const names[] = {"all_gather @h.0", "all_gather @h.1", "reduce_scatter @h.1"};
	return program == 0 && seq <= 3 ? names[seq - 1] : seq > 1 ? NULL : program == 1 ? (const char *)context :
		program == 2 ? "agreement" : NULL;
}

void play_reach_second(Control *c)
{
	RankProgress *p = control_progress(c);
	control_set_names(c, name_of, "all_gather @eval");
	p->step = 7;
	progress_enter(p, RT_STREAM_GATHER, 1);
	progress_end(p, RT_STREAM_GATHER);
	progress_enter(p, RT_STREAM_GATHER, 2);
	usleep(3 * TICK_MS * 1000);
}
