/* bench/collectives.c: times reduce_scatter and all_gather of 32 MB of f32 between the ranks of one host, by the
 * runtime's own exchanges, by MPI's collectives, and a plain memcpy, in one run of mpirun.
 *
 * usage: mpirun -n P collectives FILE.jsonl [ROUNDS]
 *
 * All ranks begin together, and the time of the slowest one counts.  Ours and MPI's alternate; the time of a round is
 * the least of REPEATS runs, the time of a case the least of all.  The bytes that a rank reads and writes for its
 * result, per second, are compared with those of a memcpy of 32 MB that all ranks do at once.  Results are checked:
 * they are sums of small whole numbers, which have the same bits in every order of summation.
 *
 * The runtime is given a program of one unit, which is mapped and called as in a training step. */
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/exec/private.h"
#include "runtime/train/train.h"

enum { NUMEL = 8 << 20, REPEATS = 5, ROUNDS = 10 };

typedef struct Bench {
	Rt rt;
	struct RtPrivate p;
	RtModel model;
	LayoutUnit unit;
	RtOptions options;
	Diag diag;
	Collectives *collectives;
	const char **from;
	float *in, *out;       /* MPI's, NUMEL each */
	int64_t shard;         /* elements */
	int rank, size;
} Bench;

static const RtCollective gather = {.kind = RT_ALL_GATHER, .stream = RT_STREAM_GATHER, .unit = 0, .slot = -1};
static const RtCollective reduce = {.kind = RT_REDUCE_SCATTER, .stream = RT_STREAM_REDUCE, .unit = 0, .slot = -1};

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "collectives: %s\n", what);
	MPI_Abort(MPI_COMM_WORLD, 1);
	abort();
}

static float value(int rank, int64_t i)
{
	return (float)((i * 7 + rank * 3) % 64);
}

/* Memory for MPI and memcpy, in pages as large as those of the runtime. */
static float *large_pages(void)
{
	enum { LARGE_PAGE = 2 << 20 };
	size_t bytes = sizeof(float) * NUMEL;
	float *p = aligned_alloc(LARGE_PAGE, bytes);
	if (!p)
		fail("out of memory");
	madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

/* ---- a program of one unit ---- */

static void start(Bench *b)
{
	char address[1024] = "", *argv[] = {"collectives", NULL};
	Arena *a = arena_new();
	Launch l = {.role = LAUNCH_RANK, .carrier = COMM_MPI, .hub_fd = -1, .listen_fd = -1,
		.world = {.rank = b->rank, .size = b->size}};
	b->diag = (Diag){.out = stderr};
	b->unit = (LayoutUnit){.strategy = STRATEGY_FULL_SHARD, .owner = -1, .n_flats = 1,
		.flat = {LAYOUT_FLAT(DT_F32, true, NUMEL)}, .grad_slot = -1, .own_region = true};
	b->model = (RtModel){.name = "collectives", .layout = {.unit = &b->unit, .n_units = 1}};
	b->p = (struct RtPrivate){.arena = a, .options = &b->options, .diag = &b->diag};
	b->rt = (Rt){.model = &b->model, .p = &b->p};
	if (!options_parse(&b->options, a, 1, argv, &b->diag))
		fail("no options");
	if (b->rank == 0 && control_listen(&l, a, &b->diag))
		snprintf(address, sizeof(address), "%s", l.address);
	MPI_Bcast(address, sizeof(address), MPI_BYTE, 0, MPI_COMM_WORLD);
	l.address = address;
	b->p.control = control_join(&l, &b->options, a, &b->diag);
	b->p.world = l.world;
	device_set_threads(1);
	if (!b->p.control || !device_map(&b->rt, &b->diag))
		fail("ranks do not find each other");
	b->collectives = collectives_new(&b->rt, a);
	b->from = NEW_N(a, const char *, b->size);
	b->shard = layout_shard_numel(NUMEL, b->size);
	b->in = large_pages();
	b->out = large_pages();
	float *grad = b->rt.grad[0][0], *shard = b->rt.shard[0][0];
	for (int64_t i = 0; i < NUMEL; i++) {
		grad[i] = b->in[i] = value(b->rank, i);
		b->out[i] = 0;
	}
	for (int64_t i = 0; i < b->shard; i++)
		shard[i] = value(b->rank, i);
}

/* ---- what is measured ---- */

static void run_row(Bench *b, const RtCollective *row)
{
	Part part;
	collective_begin(&b->rt, b->collectives, row, 0, &part);
	collective_finish(&b->rt, &part, b->from);
}

static void our_reduce(Bench *b) { run_row(b, &reduce); }
static void our_gather(Bench *b) { run_row(b, &gather); }
static void mpi_reduce(Bench *b)
{
	MPI_Reduce_scatter_block(b->in, b->out, (int)b->shard, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void mpi_gather(Bench *b)
{
	MPI_Allgather(b->in, (int)b->shard, MPI_FLOAT, b->out, (int)b->shard, MPI_FLOAT, MPI_COMM_WORLD);
}
static void plain_copy(Bench *b) { memcpy(b->out, b->in, sizeof(float) * NUMEL); }

/* Milliseconds of the slowest rank. */
static double measure(Bench *b, void (*run)(Bench *b))
{
	MPI_Barrier(MPI_COMM_WORLD);
	double begin = MPI_Wtime();
	run(b);
	double mine = (MPI_Wtime() - begin) * 1e3, most;
	MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return most;
}

static void check(Bench *b)
{
	const float *sum = b->rt.grad_shard[0][0];
	const float *all = (const float *)(const void *)collective_gathered(&b->rt, &gather, 0);
	our_reduce(b);
	mpi_reduce(b);
	for (int64_t i = 0; i < b->shard; i++) {
		float want = 0;
		for (int r = 0; r < b->size; r++)
			want += value(r, b->rank * b->shard + i);
		/* our result is a mean */
		if (b->out[i] != want || fabsf(sum[i] * (float)b->size - want) > 1e-3F)
			fail("a sum is wrong");
	}
	our_gather(b);
	mpi_gather(b);
	for (int64_t i = 0; i < b->shard * b->size; i++)
		if (all[i] != value((int)(i / b->shard), i % b->shard) || b->out[i] != all[i])
			fail("a gathered value is wrong");
}

/* ---- results ---- */

typedef struct Case {
	const char *name, *peer_name;
	void (*ours)(Bench *b), (*peer)(Bench *b);
	double bar;            /* the ratio that is required */
	double us, them, copy, least, most;
} Case;

static void run_round(Bench *b, Case *c)
{
	double us = INFINITY, them = INFINITY;
	for (int i = 0; i < REPEATS; i++) {
		us = fmin(us, measure(b, c->ours));
		them = fmin(them, measure(b, c->peer));
		c->copy = fmin(c->copy, measure(b, plain_copy));
	}
	c->us = fmin(c->us, us);
	c->them = fmin(c->them, them);
	c->least = fmin(c->least, them / us);
	c->most = fmax(c->most, them / us);
}

static void say(const Bench *b, const Case *c, FILE *json, double load)
{
	double bytes = 4.0 * NUMEL, moved = c->ours == our_gather ? 2 * bytes : bytes + bytes / b->size;
	double fraction = moved / c->us / (2 * bytes / c->copy), ratio = c->them / c->us;
	printf("%s, 32 MB, %d ranks | %.2f ms | %.2f ms %s | %.2f | %.2f..%.2f | %.2f of memcpy's %.1f GB/s%s\n", c->name,
		b->size, c->us, c->them, c->peer_name, ratio, c->least, c->most, fraction, 2 * bytes / c->copy / 1e6,
		ratio < c->bar ? "  <- below the bar" : "");
	fprintf(json, "{\"case\": \"%s 32 MB, %d ranks\", \"metric\": \"ms\", \"ours\": %.4f, \"peer\": %.4f, "
		"\"peer_name\": \"%s\", \"ratio\": %.4f, \"ratio_min\": %.4f, \"ratio_max\": %.4f, \"bar\": %g, "
		"\"of_memcpy\": %.4f, \"load\": %.2f}\n", c->name, b->size, c->us, c->them, c->peer_name, ratio, c->least,
		c->most, c->bar, fraction, load);
}

int main(int argc, char **argv)
{
	Bench b = {0};
	int provided, rounds = argc > 2 ? atoi(argv[2]) : ROUNDS, missed = 0;
	MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &b.size);
	if (argc < 2 || b.size < 2 || NUMEL % (b.size * LAYOUT_ALIGN))
		fail("usage: mpirun -n P collectives FILE.jsonl [ROUNDS]; P is 2, 4, 8, ...");
	start(&b);
	check(&b);
	Case cases[] = {
		{"reduce_scatter", "MPI_Reduce_scatter_block", our_reduce, mpi_reduce, 5, 0, 0, 0, 0, 0},
		{"all_gather", "MPI_Allgather", our_gather, mpi_gather, 1, 0, 0, 0, 0, 0},
	};
	for (int k = 0; k < COUNT_OF(cases); k++)
		cases[k].us = cases[k].them = cases[k].copy = cases[k].least = INFINITY;
	for (int i = 0; i < rounds; i++)
		for (int k = 0; k < COUNT_OF(cases); k++)
			run_round(&b, &cases[k]);
	double load[1] = {0};
	FILE *json = b.rank == 0 ? fopen(argv[1], "a") : NULL;
	if (b.rank == 0 && (!json || getloadavg(load, 1) != 1))
		fail("the file of results cannot be written");
	for (int k = 0; k < COUNT_OF(cases); k++) {
		missed += cases[k].them / cases[k].us < cases[k].bar;
		if (json)
			say(&b, &cases[k], json, *load);
	}
	if (json)
		fclose(json);
	comm_barrier(b.p.comm);
	device_unmap(&b.rt);
	control_leave(b.p.control, 0);
	MPI_Finalize();
	return missed > 0;
}
