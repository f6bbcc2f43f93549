/* tests/ranks/door.c: a rank that does nothing but talk over the control plane: joins, exchanges blobs with all others
 * fifty times a second, compares them and a text, leaves.  tests/ranks/doors.py starts some of them, and strangers.
 *
 * usage: door RANK SIZE HOST:PORT ROUNDS network|local      prints "joined in N ms"; exit code 0 when all was right */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/plane/private.h"

enum { WORDS = 64, BETWEEN_US = 20000, COMPARED_EVERY = 25 };

static uint64_t word(int rank, int round, int i)
{
	return (uint64_t)rank << 48 | (uint64_t)round << 16 | (uint64_t)i;
}

static bool exchange(Control *c, int rank, int size, int round, uint64_t *all, Diag *d)
{
	uint64_t mine[WORDS];
	for (int i = 0; i < WORDS; i++)
		mine[i] = word(rank, round, i);
	if (!control_all_gather(c, mine, sizeof(mine), all)) {
		diag_error(d, "door", "rank %d: round %d has no end", rank, round);
		return false;
	}
	for (int r = 0; r < size; r++)
		for (int i = 0; i < WORDS; i++)
			if (all[r * WORDS + i] != word(r, round, i)) {
				diag_error(d, "door", "rank %d: rank %d's words of round %d are wrong", rank, r, round);
				return false;
			}
	return round % COMPARED_EVERY || control_compare(c, "one line\nand another\n", d);
}

static const char *name_of(const void *context, int program, int seq)
{
	(void)context;
	return program == 2 && seq == OUTSIDE_AGREE ? "round" : NULL;
}

static int play(Control *c, const World *w, int rounds, Arena *a, Diag *d)
{
	uint64_t *all = NEW_N(a, uint64_t, w->size * WORDS);
	RankProgress *p = control_progress(c);
	p->program = 2;
	control_set_names(c, name_of, NULL);
	for (int round = 0; round < rounds; round++) {
		progress_enter(p, RT_STREAM_SYNC, OUTSIDE_AGREE);
		if (!exchange(c, w->rank, w->size, round, all, d))
			return 3;
		progress_end(p, RT_STREAM_SYNC);
		usleep(BETWEEN_US);
	}
	return 0;
}

int main(int argc, char **argv)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	RtOptions o;
	char program[] = "door", flag[] = "--timeout=5", *flags[] = {program, flag, NULL};
	if (argc != 6 || !options_parse(&o, a, 2, flags, &d))
		return 2;
	bool local = !strcmp(argv[5], "local");
	Launch l = {.role = LAUNCH_RANK, .world = {.rank = atoi(argv[1]), .size = atoi(argv[2])}, .hub_fd = -1,
		.listen_fd = -1, .local_fd = -1, .address = argv[3], .one_host = local, .nccl = !local};
	if (!secret_find(&l.secret, program, &d))
		return 2;
	int64_t begin = clock_ms();
	Control *c = control_join(&l, &o, a, &d);
	if (!c)
		return 3;
	printf("joined in %d ms\n", (int)(clock_ms() - begin));
	fflush(stdout);
	int status = play(c, &l.world, atoi(argv[4]), a, &d);
	control_leave(c, status);
	arena_free(a);
	return status;
}
