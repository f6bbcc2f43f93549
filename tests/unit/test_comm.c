/* tests/unit/test_comm.c: several ranks on the program of toy.h: compares W ranks with a batch of B with one loop in
 * f64 over W B samples, for every strategy.  Also tests that every way to run the same sums gives the same bits,
 * evaluations, ends on which ranks agree, and starts at which they differ. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/port.h"
#include "tests/unit/toy_reference.h"
#include "tests/unit/unit.h"

enum { N = TOY_SAMPLES, MOST_RANKS = 4, MOST_TEXT = 1 << 16 };

static char folder[] = "/tmp/test_comm_" "XX" "XX" "XX";
static char old_folder[4096];
static char text[MOST_TEXT]; /* what the ranks of the last run printed, rank by rank */
static ToyData data;

#define DATA "--data x=x.npy --data labels=labels.npy "

/* ---- the program, by strategy ---- */

static LayoutUnit units[2];
static RtCollective step_rows[6];

/* Numbers 5 and 6 are issued where the strategy has them. */
static void update(Rt *rt)
{
	if (units[0].strategy == STRATEGY_HYBRID_SHARD) {
		rt_all_reduce(rt, 5);
		rt_wait(rt, 5);
	}
	toy_update(rt);
	if (strategy_info[units[0].strategy].owned) {
		rt_broadcast(rt, 6);
		rt_wait(rt, 6);
	}
}

static RtModel model_of(Strategy s, const char *optimizer)
{
	static const RtCollectiveKind kinds[] = {RT_REDUCE_SCATTER, RT_ALL_REDUCE, RT_REDUCE};
	RtModel m = toy_model(optimizer);
	memcpy(units, toy_units, sizeof(units));
	memcpy(step_rows, toy_step, sizeof(toy_step));
	units[0].strategy = units[1].strategy = s;
	units[0].owner = units[1].owner = strategy_info[s].owned ? 1 : -1;
	step_rows[2].kind = kinds[strategy_info[s].reduce];
	step_rows[4] = (RtCollective){RT_ALL_REDUCE_SHARDS, RT_STREAM_REDUCE, 0, -1, 0, false, 0, false};
	step_rows[5] = (RtCollective){RT_BROADCAST, RT_STREAM_GATHER, 0, -1, 0, false, 0, false};
	m.layout.unit = units;
	m.step = step_rows;
	m.n_step = COUNT_OF(step_rows);
	m.update = update;
	return m;
}

/* ---- ranks, as a launcher starts them ---- */

static void set_number(const char *name, int n)
{
	char number[16];
	snprintf(number, sizeof(number), "%d", n);
	setenv(name, number, 1);
}

/* In the child; what stands behind '|' in flags is the last rank's alone. */
static void child(const RtModel *m, const char *flags, int rank, int world, int port)
{
	char copy[2048], output[32];
	snprintf(copy, sizeof(copy), "%s", flags);
	char *bar = strchr(copy, '|');
	if (bar)
		*bar = rank == world - 1 ? ' ' : 0;
	setenv("MASTER_ADDR", "127.0.0.1", 1);
	set_number("MASTER_PORT", port);
	set_number("RANK", rank);
	set_number("WORLD_SIZE", world);
	set_number("LOCAL_RANK", rank);
	set_number("LOCAL_WORLD_SIZE", world);
	if (world == 1)
		unsetenv("RANK"), unsetenv("WORLD_SIZE"), unsetenv("LOCAL_RANK"), unsetenv("LOCAL_WORLD_SIZE");
	snprintf(output, sizeof(output), "output.%d", rank);
	toy_main(m, copy, output);
}

static void start(pid_t *pids, const RtModel *m, int world, const char *flags)
{
	int port = free_port();
	fflush(NULL);
	for (int r = 0; r < world; r++) {
		pids[r] = fork();
		if (pids[r] == 0)
			child(m, flags, r, world, port);
	}
}

/* The exit code of rank 0; codes, if not NULL, gets all. */
static int finish(const pid_t *pids, int world, int *codes)
{
	size_t n = 0;
	int first = 0;
	for (int r = 0; r < world; r++) {
		int status;
		char name[32];
		waitpid(pids[r], &status, 0);
		int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
		first = r ? first : code;
		if (codes)
			codes[r] = code;
		snprintf(name, sizeof(name), "output.%d", r);
		FILE *f = fopen(name, "r");
		n += f ? fread(text + n, 1, sizeof(text) - 1 - n, f) : 0;
		if (f)
			fclose(f);
	}
	text[n] = 0;
	return first;
}

static int run(const RtModel *m, int world, const char *flags)
{
	pid_t pids[MOST_RANKS];
	start(pids, m, world, flags);
	return finish(pids, world, NULL);
}

/* The ranks end with this code, and one of them says that. */
#define EXPECT(m, world, flags, code, say) do { \
	int code_ = run(m, world, flags); \
	if (code_ != (code) || !strstr(text, say)) \
		fprintf(stderr, "\n%d ranks [%s]\n  exit %d, wanted %d and \"%s\"; they said:\n%s", world, flags, code_, \
			code, say, text); \
	CU_ASSERT_EQUAL(code_, code); \
	CU_ASSERT_PTR_NOT_NULL(strstr(text, say)); \
} while (0)

static int times_said(const char *what)
{
	int n = 0;
	for (const char *at = text; (at = strstr(at, what)); at++)
		n++;
	return n;
}

static bool same(const char *a, const char *b)
{
	char command[512];
	snprintf(command, sizeof(command), "cmp -s %s/latest/model.safetensors %s/latest/model.safetensors", a, b);
	return system(command) == 0;
}

/* ---- the same in f64, one rank ---- */

static void reference_train(ToyReference *r, int steps, int batch, double lr, double clip)
{
	double g[TOY_P];
	toy_reference(r);
	for (int t = 0; t < steps; t++) {
		toy_gradient(r, &data, (int64_t)t * batch, batch, g);
		for (int k = 0; k < TOY_P; k++)
			r->p[k] -= lr * g[k] * MIN(1, clip / (r->norm + 1e-6));
	}
}

/* ---- sums and strategies ---- */

static const struct { Strategy s; int world, shard_size; } cases[] = {
	{STRATEGY_FULL_SHARD, 1, 0}, {STRATEGY_FULL_SHARD, 2, 0}, {STRATEGY_FULL_SHARD, 3, 0}, {STRATEGY_FULL_SHARD, 4, 0},
	{STRATEGY_SHARD_GRAD_OP, 2, 0},
	{STRATEGY_HYBRID_SHARD, 2, 1}, {STRATEGY_HYBRID_SHARD, 4, 2}, {STRATEGY_HYBRID_SHARD, 4, 4},
	{STRATEGY_HYBRID_SHARD, 3, 1},
	{STRATEGY_NO_SHARD, 2, 0}, {STRATEGY_NO_SHARD, 3, 0},
	{STRATEGY_OSS, 2, 0}, {STRATEGY_OSS, 3, 0},
	{STRATEGY_SHARDED_DDP, 2, 0}, {STRATEGY_SHARDED_DDP, 4, 0},
};

/* Labels that are left out make the ranks' shares of the loss unequal. */
static void test_strategies(void)
{
	for (int i = 0; i < COUNT_OF(cases); i++) {
		RtModel m = model_of(cases[i].s, "sgd");
		int world = cases[i].world;
		char flags[512], group[64] = "";
		ToyReference r;
		double p[TOY_P];
		m.world = strategy_info[cases[i].s].owned ? world : 0;
		if (cases[i].shard_size)
			snprintf(group, sizeof(group), "--shard-size %d", cases[i].shard_size);
		for (int threads = 0; threads < 2; threads++) {
			snprintf(flags, sizeof(flags), DATA "--steps 5 --lr 0.1 --clip-norm 0.9 %s --comm-threads %d --save ck%d",
				group, threads, threads);
			EXPECT(&m, world, flags, 0, "trained to step 5");
		}
		reference_train(&r, 5, world * TOY_B, 0.1, 0.9);
		toy_read_trained("ck0", p);
		for (int k = 0; k < TOY_P; k++)
			CU_ASSERT_DOUBLE_EQUAL(p[k], r.p[k], 3e-6);
		CU_ASSERT(same("ck0", "ck1"));
		CU_ASSERT_EQUAL(system("rm -rf ck0 ck1"), 0);
	}
}

static double norm_of(const double *g, double p)
{
	double s = 0;
	for (int k = 0; k < TOY_P; k++)
		s = isinf(p) ? fmax(s, fabs(g[k])) : s + pow(fabs(g[k]), p);
	return isinf(p) ? s : pow(s, 1 / p);
}

/* As reference_train, of any norm, with clipping by value behind it. */
static void reference_clip(ToyReference *r, int steps, int batch, double p, double clip, double value)
{
	double g[TOY_P];
	toy_reference(r);
	for (int t = 0; t < steps; t++) {
		toy_gradient(r, &data, (int64_t)t * batch, batch, g);
		r->norm = norm_of(g, p);
		for (int k = 0; k < TOY_P; k++)
			r->p[k] -= 0.1 * fmin(fmax(g[k] * MIN(1, clip / (r->norm + 1e-6)), -value), value);
	}
}

/* The norm that the last line of a log has. */
static double logged_norm(const char *path)
{
	char line[512];
	double norm = NAN;
	FILE *f = fopen(path, "r");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	while (fgets(line, sizeof(line), f))
		if (strstr(line, "\"grad_norm\": "))
			norm = strtod(strstr(line, "\"grad_norm\": ") + 13, NULL);
	fclose(f);
	return norm;
}

/* Every strategy, whatever parts of gradients its ranks hold, has the norm of the whole. */
static void test_norms(void)
{
	static const double norms[] = {1, 2, 2.5, INFINITY};
	for (int i = 0; i < COUNT_OF(cases); i++)
		for (int k = 0; k < COUNT_OF(norms); k++) {
			RtModel m = model_of(cases[i].s, "sgd");
			int world = cases[i].world;
			char flags[512], group[64] = "";
			ToyReference r;
			double p[TOY_P], clip = norms[k] == 1 ? 2 : 0.4;
			m.world = strategy_info[cases[i].s].owned ? world : 0;
			m.norm_p = norms[k];
			m.clip_value = true;
			if (cases[i].shard_size)
				snprintf(group, sizeof(group), "--shard-size %d", cases[i].shard_size);
			snprintf(flags, sizeof(flags), DATA "--steps 4 --lr 0.1 --clip-norm %g --clip-value 0.15 %s --save ck "
				"--log norm.jsonl", clip, group);
			EXPECT(&m, world, flags, 0, "trained to step 4");
			reference_clip(&r, 4, world * TOY_B, norms[k], clip, 0.15);
			CU_ASSERT_DOUBLE_EQUAL(logged_norm("norm.jsonl"), r.norm, 3e-6);
			toy_read_trained("ck", p);
			for (int j = 0; j < TOY_P; j++)
				CU_ASSERT_DOUBLE_EQUAL(p[j], r.p[j], 3e-6);
			CU_ASSERT_EQUAL(system("rm -rf ck norm.jsonl"), 0);
		}
}

/* ---- 16 bits ---- */

/* What --param-dtype, --reduce-dtype and --bcast-dtype make of the toy: {at rest, gathered, gradient, sent, kept,
 * broadcast}, master; ordinary strategies, then those with owners. */
typedef struct Halves { DType rest, param, grad, reduce, kept, bcast; bool master; } Halves;
static const Halves all_f32 = {DT_F32, DT_F32, DT_F32, DT_F32, DT_F32, DT_F32, false};
static const Halves shared_halves[] = {{DT_F32, DT_BF16, DT_BF16, DT_BF16, DT_F32, DT_F32, false},
	{DT_F32, DT_F16, DT_F32, DT_F16, DT_F16, DT_F32, false}};
static const Halves owned_halves[] = {{DT_BF16, DT_BF16, DT_BF16, DT_BF16, DT_F32, DT_BF16, true},
	{DT_F32, DT_F32, DT_F32, DT_F16, DT_F32, DT_F16, true}};

static RtModel model_in(Strategy s, const Halves *h, const char *optimizer)
{
	RtModel m = model_of(s, optimizer);
	LayoutFlat *f = &units[0].flat[0];
	*f = (LayoutFlat){h->rest, true, f->numel, h->param, h->grad, h->reduce, h->kept, h->bcast, h->master, false};
	units[1].flat[0].param = h->param;
	return m;
}

static double log_sum(const char *key)
{
	char line[1024], quoted[64];
	double sum = 0;
	FILE *f = fopen("log.jsonl", "r");
	snprintf(quoted, sizeof(quoted), "\"%s\": ", key);
	while (f && fgets(line, sizeof(line), f)) {
		const char *at = strstr(line, quoted);
		CU_ASSERT_PTR_NOT_NULL_FATAL(at);
		sum += atof(at + strlen(quoted));
	}
	fclose(f);
	return sum;
}

/* Gathers, reductions and broadcasts of a run of 3 steps on rank 0. */
static void run_counting(const RtModel *m, int world, const char *group, double bytes[3])
{
	static const char *const keys[] = {"gather_bytes", "reduce_bytes", "broadcast_bytes"};
	char flags[512];
	snprintf(flags, sizeof(flags), DATA "--steps 3 --log log.jsonl --check-replicas %s", group);
	EXPECT(m, world, flags, 0, "copies of parameters are equal");
	for (int k = 0; k < 3; k++)
		bytes[k] = log_sum(keys[k]);
	CU_ASSERT_EQUAL(log_sum("comm_bytes"), bytes[0] + bytes[1] + bytes[2] +
		(world > 1 ? 3 * (world - 1) * LAYOUT_SCALARS * 8 : 0));
}

/* Half as many bytes, near enough to f32, the same bits with threads and after a resume, copies equal on all ranks. */
static void check_halves(int i, const Halves *h)
{
	Strategy s = cases[i].s;
	int world = cases[i].world;
	char flags[512], group[64] = "";
	double p[TOY_P], full[3], half[3];
	ToyReference r;
	if (cases[i].shard_size)
		snprintf(group, sizeof(group), "--shard-size %d", cases[i].shard_size);
	RtModel m = model_in(s, &all_f32, "adamw");
	run_counting(&m, world, group, full);
	m = model_in(s, h, "adamw");
	run_counting(&m, world, group, half);
	for (int k = 0; k < 3; k++)
		CU_ASSERT_EQUAL(2 * half[k], full[k]);
	snprintf(flags, sizeof(flags), DATA "--steps 4 --lr 0.1 --save ck0 --comm-threads 0 --check-replicas %s", group);
	EXPECT(&m, world, flags, 0, "trained to step 4");
	snprintf(flags, sizeof(flags), DATA "--steps 2 --lr 0.1 --save ck1 --comm-threads 1 %s", group);
	EXPECT(&m, world, flags, 0, "trained to step 2");
	snprintf(flags, sizeof(flags), DATA "--steps 4 --resume ck1 --save ck1 --comm-threads 1 %s", group);
	EXPECT(&m, world, flags, 0, "trained to step 4");
	CU_ASSERT(same("ck0", "ck1"));
	m = model_in(s, h, "sgd");
	snprintf(flags, sizeof(flags), DATA "--steps 5 --lr 0.1 --clip-norm 0.9 --save ck2 --sync-init %s", group);
	EXPECT(&m, world, flags, 0, "trained to step 5");
	reference_train(&r, 5, world * TOY_B, 0.1, 0.9);
	toy_read_trained("ck2", p);
	for (int k = 0; k < TOY_P; k++)
		CU_ASSERT_DOUBLE_EQUAL(p[k], r.p[k], 1e-2);
	CU_ASSERT_EQUAL(system("rm -rf ck0 ck1 ck2"), 0);
}

static void test_halves(void)
{
	for (int i = 0; i < COUNT_OF(cases); i++)
		for (int k = 0; k < COUNT_OF(shared_halves); k++)
			check_halves(i, strategy_info[cases[i].s].owned ? &owned_halves[k] : &shared_halves[k]);
}

/* One bit of one rank's copy is found. */
static void damage(Rt *rt)
{
	update(rt);
	if (rt->p->world.rank == 1)
		((char *)rt->shard[0][0])[5] ^= 1;
}

static void test_damage(void)
{
	RtModel m = model_of(STRATEGY_NO_SHARD, "sgd");
	m.update = damage;
	EXPECT(&m, 3, DATA "--steps 1 --check-replicas", 3,
		"unit \"root\", at rest: the copies of rank 0 and rank 1 differ");
	EXPECT(&m, 3, DATA "--steps 1", 0, "trained to step 1");
}

/* ---- loss scale ---- */

static int overflow_step, overflow_rank;

static void backward_with_overflow(Rt *rt)
{
	toy_gradients(rt);
	if ((int)rt->scalars->rng_step == overflow_step && rt->p->world.rank == overflow_rank)
		((float *)rt->grad[0][0])[3] = INFINITY;
	toy_reduce(rt);
}

static void read_log(const char *key, double *out, int n)
{
	char line[1024], quoted[64];
	FILE *f = fopen("log.jsonl", "r");
	snprintf(quoted, sizeof(quoted), "\"%s\": ", key);
	for (int i = 0; i < n; i++) {
		const char *at = f && fgets(line, sizeof(line), f) ? strstr(line, quoted) : NULL;
		CU_ASSERT_PTR_NOT_NULL_FATAL(at);
		out[i] = atof(at + strlen(quoted));
	}
	fclose(f);
}

/* An overflow on one rank leaves out one update on all, and nothing else; the scale is torch's, across a resume too. */
static void test_loss_scale(void)
{
	static const double wanted[] = {1024, 1024, 2048, 1024, 1024, 2048};
	RtModel m = model_of(STRATEGY_FULL_SHARD, "sgd");
	double got[6], g[TOY_P], p[TOY_P];
	ToyReference r;
	m.loss_scale = (RtLossScale){1024, true, 2};
	m.backward = backward_with_overflow;
	overflow_step = 2;
	overflow_rank = 1;
	EXPECT(&m, 2, DATA "--steps 6 --lr 0.1 --save ck --log log.jsonl --check-replicas", 0, "trained to step 6");
	read_log("loss_scale", got, 6);
	for (int t = 0; t < 6; t++)
		CU_ASSERT_EQUAL(got[t], wanted[t]);
	toy_reference(&r);
	for (int t = 0; t < 6; t++) {
		toy_gradient(&r, &data, (int64_t)t * 2 * TOY_B, 2 * TOY_B, g);
		for (int k = 0; k < TOY_P && t != overflow_step; k++)
			r.p[k] -= 0.1 * g[k];
	}
	toy_read_trained("ck", p);
	for (int k = 0; k < TOY_P; k++)
		CU_ASSERT_DOUBLE_EQUAL(p[k], r.p[k], 3e-6);
	CU_ASSERT_EQUAL(system("grep -q '\"step\": 6' ck/latest/state.json && grep -q '\"updates\": 5' ck/latest/state.json"
		" && grep -q '\"scale\": 2048, \"good\": 1}' ck/latest/state.json"), 0);
	EXPECT(&m, 2, DATA "--steps 8 --resume ck --log log.jsonl", 0, "trained to step 8");
	CU_ASSERT_EQUAL(system("sed -i 1,6d log.jsonl"), 0);
	read_log("loss_scale", got, 2);
	CU_ASSERT_EQUAL(got[0], 2048);
	CU_ASSERT_EQUAL(got[1], 4096);
	/* what no smaller scale would heal is --on-nan's to decide */
	m.loss_scale = (RtLossScale){1, true, 100};
	EXPECT(&m, 2, DATA "--steps 5", 3, "step 3: the gradient norm is not finite");
	EXPECT(&m, 2, DATA "--steps 5 --on-nan=skip", 0, "trained to step 5");
	m.loss_scale = (RtLossScale){8, false, 0};
	EXPECT(&m, 2, DATA "--steps 5", 3, "step 3: the gradient norm is not finite");
	CU_ASSERT_EQUAL(system("rm -rf ck"), 0);
}

/* Without a norm, which each strategy sums up in other parts, all strategies of one fold order give equal bits. */
static void test_equal_bits(void)
{
	static const Strategy all[] = {STRATEGY_FULL_SHARD, STRATEGY_NO_SHARD, STRATEGY_OSS, STRATEGY_SHARDED_DDP};
	for (int i = 0; i < COUNT_OF(all); i++) {
		RtModel m = model_of(all[i], "adamw");
		char flags[256];
		snprintf(flags, sizeof(flags), DATA "--steps 6 --lr 0.1 --save ck%d", i);
		EXPECT(&m, 3, flags, 0, "trained to step 6");
		CU_ASSERT(same("ck0", i ? flags + strlen(flags) - 3 : "ck0"));
	}
	RtModel m = model_of(STRATEGY_HYBRID_SHARD, "adamw");
	EXPECT(&m, 3, DATA "--steps 6 --lr 0.1 --save hybrid --shard-size 3", 0, "trained to step 6");
	CU_ASSERT(same("ck0", "hybrid"));
	CU_ASSERT_EQUAL(system("rm -rf ck0 ck1 ck2 ck3 hybrid"), 0);
}

/* ---- memory ---- */

/* In a rank: what the plan says of memory that peers read is what is mapped of it for writing. */
static void check_shared_bytes(Rt *rt)
{
	char line[512];
	int64_t mapped = 0, *planned = rt->p->memory.planned;
	bool casts = layout_casts(&rt->model->layout.unit[0].flat[0]);
	int64_t wanted = planned[ARENA_PARAMS] + planned[ARENA_GRADS] + planned[ARENA_SEND];
	wanted = round_up(wanted + (casts ? planned[ARENA_GATHERED] : 0), sysconf(_SC_PAGESIZE));
	wanted += planned[ARENA_COMM];
	FILE *f = fopen("/proc/self/maps", "r");
	while (f && fgets(line, sizeof(line), f)) {
		unsigned long first, last;
		char rights[8];
		bool ours = strstr(line, "memfd:") || strstr(line, "/shardc (deleted)");
		if (ours && sscanf(line, "%lx-%lx %7s", &first, &last, rights) == 3 && rights[1] == 'w')
			mapped += (int64_t)(last - first);
	}
	if (mapped != wanted) {
		fprintf(stderr, "%lld bytes are shared, %lld are planned\n", (long long)mapped, (long long)wanted);
		_exit(77);
	}
}

static void test_memory(void)
{
	RtModel m = model_of(STRATEGY_FULL_SHARD, "sgd");
	m.setup = check_shared_bytes;
	EXPECT(&m, 3, DATA "--steps 1", 0, "trained");
}

/* Shards that are reduced across groups lie at one place on all ranks, whoever owns the units before them. */
static void test_places(void)
{
	static const LayoutUnit mixed[] = {
		{STRATEGY_SHARDED_DDP, 1, 1, {LAYOUT_FLAT(DT_F32, true, 100)}, 0, false, false, LAYOUT_OFFLOAD_NONE, 0},
		{STRATEGY_HYBRID_SHARD, -1, 1, {LAYOUT_FLAT(DT_F32, true, 1000)}, 0, true, false, LAYOUT_OFFLOAD_NONE, 0},
	};
	const LayoutModel l = {.unit = mixed, .n_units = 2, .n_grad_slots = 1};
	Arena *a = arena_new();
	for (int r = 0; r < 4; r++) {
		LayoutPlaces p = layout_places(&l, &(LayoutRank){r, 4, 2}, a);
		CU_ASSERT_EQUAL(p.grad_shard[1][0], layout_flat_numel(1000, 2) * 4);
		CU_ASSERT_EQUAL(p.grad_shard[0][0] >= 0, r == 1);
	}
	arena_free(a);
}

/* ---- evaluations ---- */

static double number_after(const char *key)
{
	const char *at = strstr(text, key);
	CU_ASSERT_PTR_NOT_NULL_FATAL(at);
	return atof(at + strlen(key));
}

static void test_evaluation(void)
{
	RtModel m = model_of(STRATEGY_FULL_SHARD, "sgd");
	ToyReference r;
	double g[TOY_P];
	toy_reference(&r);
	toy_gradient(&r, &data, 0, N, g);
	for (int world = 1; world <= MOST_RANKS; world++) {
		EXPECT(&m, world, DATA "--steps 1 --lr 0 --eval-data x=x.npy --eval-data labels=labels.npy --log log.jsonl", 0,
			"(22 samples)");
		FILE *f = fopen("log.jsonl", "r");
		text[fread(text, 1, sizeof(text) - 1, f)] = 0;
		fclose(f);
		CU_ASSERT_DOUBLE_EQUAL(number_after("\"eval_loss\": "), r.loss, 1e-6);
		CU_ASSERT_DOUBLE_EQUAL(number_after("\"eval_accuracy\": "), r.right / r.valid, 1e-8);
	}
	m.loss.whole = "the loss is one number a batch";
	EXPECT(&m, 2, DATA "--steps 1 --eval-data x=x.npy --eval-data labels=labels.npy", 0, "2 samples left out");
	int64_t labels[N] = {0};
	labels[N - 1] = 100; /* of a sample that is left out */
	npy_write("bad.npy", DT_I64, 1, (int64_t[]){N}, labels);
	for (int world = 1; world <= MOST_RANKS; world++)
		EXPECT(&m, world, DATA "--steps 1 --eval-data x=x.npy --eval-data labels=bad.npy", 0, "2 samples left out");
	EXPECT(&m, 2, DATA "--steps 1 --eval-data x=few.npy --eval-data labels=few_labels.npy", 1,
		"3 samples are less than one batch of 4");
}

/* ---- how runs end and do not begin ---- */

static void test_bad_label(void)
{
	RtModel m = model_of(STRATEGY_FULL_SHARD, "sgd");
	int64_t labels[N] = {0};
	int codes[2];
	pid_t pids[2];
	labels[13] = 3; /* step 2, second rank */
	npy_write("bad.npy", DT_I64, 1, (int64_t[]){N}, labels);
	start(pids, &m, 2, "--data x=x.npy --data labels=bad.npy --steps 5 --save bad");
	finish(pids, 2, codes);
	CU_ASSERT_EQUAL(codes[0], 1);
	CU_ASSERT_EQUAL(codes[1], 1);
	CU_ASSERT_EQUAL(times_said("bad input in step 2: label 3 in row 1 is outside [0,3)"), 1);
	CU_ASSERT_EQUAL(times_said("were samples 12, 13, 14, 15"), 1);
	CU_ASSERT_NOT_EQUAL(access("bad", F_OK), 0);
	EXPECT(&m, 3, DATA "--steps 1 --eval-data x=x.npy --eval-data labels=bad.npy", 1,
		"bad input in an evaluation: label 3");
}

static void test_not_finite(void)
{
	RtModel m = model_of(STRATEGY_FULL_SHARD, "sgd");
	float x[N][TOY_D];
	memcpy(x, data.x, sizeof(x));
	x[5][0] = NAN;
	npy_write("nan.npy", DT_F32, 2, (int64_t[]){N, TOY_D}, x);
	EXPECT(&m, 2, "--data x=nan.npy --data labels=labels.npy --steps 2", 3, "step 1: the loss is not finite");
	CU_ASSERT_EQUAL(times_said("is not finite"), 1);
}

/* One signal to one rank: all stop after the same step, and save. */
static void test_signal(void)
{
	RtModel m = model_of(STRATEGY_FULL_SHARD, "sgd");
	for (int who = 0; who < 3; who++) {
		pid_t pids[3];
		int codes[3];
		start(pids, &m, 3, DATA "--steps 1000000000 --save stopped --save-every 3 --keep 2");
		while (access("stopped/latest", F_OK))
			usleep(1000);
		kill(pids[who], SIGTERM);
		finish(pids, 3, codes);
		for (int r = 0; r < 3; r++)
			CU_ASSERT_EQUAL(codes[r], 0);
		CU_ASSERT_EQUAL(times_said("stopped by Terminated after step"), 1);
		CU_ASSERT_EQUAL(system("rm -rf stopped"), 0);
	}
}

static void test_start(void)
{
	RtModel m = model_of(STRATEGY_OSS, "sgd");
	m.world = 4;
	EXPECT(&m, 2, DATA, 2, "runs on 4 ranks");
	m = model_of(STRATEGY_FULL_SHARD, "sgd");
	EXPECT(&m, 4, DATA "--shard-size 3", 2, "--shard-size 3 does not divide 4 ranks");
	EXPECT(&m, 2, "--data x=none.npy --data labels=labels.npy", 1, "none.npy: error: No such file");
	CU_ASSERT_EQUAL(times_said("No such file"), 1);
	EXPECT(&m, 2, DATA "--steps 1 | --lr 0.5", 1, "--lr");
	EXPECT(&m, 3, DATA "--steps 1 | --shuffle 3", 1, "--shuffle");
}

/* ---- the suite, in a folder of its own ---- */

static int begin(void)
{
	if (!getcwd(old_folder, sizeof(old_folder)) || !mkdtemp(folder) || chdir(folder))
		return 1;
	toy_draw(&data, N);
	for (int i = 0; i < N; i++)
		if (i % 5 == 2 || i == 1)
			data.labels[i] = TOY_IGNORE;
	toy_write_data(&data);
	npy_write("few.npy", DT_F32, 2, (int64_t[]){3, TOY_D}, data.x);
	npy_write("few_labels.npy", DT_I64, 1, (int64_t[]){3}, data.labels);
	toy_write_weights();
	return 0;
}

static int end(void)
{
	char command[64];
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return chdir(old_folder) || system(command);
}

void suite_comm(void)
{
	CU_pSuite s = CU_add_suite("comm", begin, end);
	CU_ADD_TEST(s, test_strategies);
	CU_ADD_TEST(s, test_norms);
	CU_ADD_TEST(s, test_equal_bits);
	CU_ADD_TEST(s, test_halves);
	CU_ADD_TEST(s, test_damage);
	CU_ADD_TEST(s, test_loss_scale);
	CU_ADD_TEST(s, test_memory);
	CU_ADD_TEST(s, test_places);
	CU_ADD_TEST(s, test_evaluation);
	CU_ADD_TEST(s, test_bad_label);
	CU_ADD_TEST(s, test_not_finite);
	CU_ADD_TEST(s, test_signal);
	CU_ADD_TEST(s, test_start);
}
