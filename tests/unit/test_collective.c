/* tests/unit/test_collective.c: every collective in every mixture of dtypes, to the bit and to the byte.
 *
 * Ranks are threads that read each other's memory.  They train one unit with two trainable flats and a frozen one:
 * gather, reduce, update, broadcast, twice.  What each step should leave behind is computed here from the rules (who
 * rounds what, when, in which order sums are made), one element at a time; bytes received from peers must be those that
 * base/plan.c predicts, and all memory must be what base/layout.c predicts. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/plan.h"
#include "runtime/comm/private.h"
#include "runtime/exec/private.h"
#include "runtime/train/train.h"
#include "tests/unit/unit.h"

enum { MOST_RANKS = 4, FLATS = 3, MOST_NUMEL = 400, STEPS = 2 };
static const int64_t numel_of[FLATS] = {MOST_NUMEL, 130, 70};

/* ---- one case ---- */

/* Roles of the first flat; the second has only what is sent and kept, and the third (frozen) what is gathered. */
typedef struct Roles { const char *name; DType dtype, param, grad, reduce, kept, bcast; bool master, owned; } Roles;

static const Roles all_roles[] = {
	{"f32", DT_F32, DT_F32, DT_F32, DT_F32, DT_F32, DT_F32, false, false},
	{"param=bf16", DT_F32, DT_BF16, DT_F32, DT_F32, DT_F32, DT_F32, false, false},
	{"param, reduce=bf16", DT_F32, DT_BF16, DT_BF16, DT_BF16, DT_F32, DT_F32, false, false},
	{"reduce=bf16 of f32 sums", DT_F32, DT_BF16, DT_F32, DT_BF16, DT_F32, DT_F32, false, false},
	{"all f16, gradients kept", DT_F32, DT_F16, DT_F16, DT_F16, DT_F16, DT_F32, false, false},
	{"reduce=f16, kept bf16", DT_F32, DT_BF16, DT_F32, DT_F16, DT_BF16, DT_F32, false, false},
	{"masters", DT_BF16, DT_BF16, DT_BF16, DT_BF16, DT_F32, DT_BF16, true, true},
	{"f16 masters, f32 gradients", DT_F16, DT_F16, DT_F32, DT_F32, DT_F32, DT_F16, true, true},
	{"bcast=bf16", DT_F32, DT_F32, DT_F32, DT_F32, DT_F32, DT_BF16, true, true},
	{"bcast, reduce=bf16", DT_F32, DT_F32, DT_F32, DT_BF16, DT_F32, DT_BF16, true, true},
};

typedef struct Rank Rank;
typedef struct Case {
	const Roles *roles;
	Strategy strategy;
	int world, size, slot;
	LayoutUnit unit;
	RtTensor tensor[FLATS];
	RtModel model;
	RtCollective row[4]; /* gather, reduce, across, broadcast */
	pthread_barrier_t barrier;
	const void *source[MOST_RANKS];
	Rank *rank;
	Arena *a;
	float master[FLATS][MOST_NUMEL]; /* what should be */
	float gradient[MOST_RANKS][FLATS][MOST_NUMEL];
	int wrong;
} Case;

struct Rank {
	Case *c;
	Rt rt;
	struct RtPrivate p;
	RtOptions o;
	Comm comm;
	RankProgress seen;
	Collectives *members;
	StepScalars scalars;
	int64_t received[4];
};

static float rounded(DType t, float x)
{
	return (float)dtype_round(t, (double)x);
}

static int64_t ranks_of(const Case *c)
{
	StrategyGroup group = strategy_info[c->strategy].group;
	return group == GROUP_WORLD ? c->world : group == GROUP_SHARD ? c->size : 1;
}

/* ---- what should be ---- */

/* Of elements x[i * step], i < n: a left fold in f32. */
static float fold(const float *x, int64_t n, int64_t step)
{
	float sum = x[0];
	for (int64_t i = 1; i < n; i++)
		sum += x[i * step];
	return sum;
}

/* The reduced gradient of one element, as the update of a rank of `group` reads it. */
static float reduced(const Case *c, int f, int64_t k, int64_t rank)
{
	const LayoutFlat *flat = &c->unit.flat[f];
	float sent[MOST_RANKS] = {0}, sum[MOST_RANKS] = {0};
	int64_t s = ranks_of(c), groups = c->world / s;
	bool halves = dtype_info[flat->reduce].bytes < 4, hybrid = strategy_info[c->strategy].group == GROUP_SHARD;
	for (int r = 0; r < c->world; r++)
		sent[r] = rounded(flat->reduce, rounded(flat->grad, c->gradient[r][f][k]));
	if (c->world == 1)
		return rounded(flat->grad, c->gradient[0][f][k]);
	if (strategy_info[c->strategy].reduce == REDUCE_TO_ALL)
		return rounded(flat->grad, rounded(flat->reduce, fold(sent, c->world, 1) * (1 / (float)c->world)));
	if (strategy_info[c->strategy].reduce == REDUCE_TO_OWNER)
		return rounded(flat->kept, rounded(flat->reduce, fold(sent, c->world, 1) * (1 / (float)c->world)));
	if (!hybrid || groups == 1)
		return rounded(flat->kept, fold(sent, s, 1) * (1 / (float)c->world));
	for (int64_t g = 0; g < groups; g++) {
		float inside = fold(sent + g * s, s, 1) * (halves ? 1 / (float)s : 1);
		sum[g] = rounded(flat->reduce, s == 1 ? sent[g] : rounded(flat->kept, inside));
	}
	float all = rounded(flat->reduce, fold(sum, groups, 1) * (1 / (float)(halves ? groups : c->world)));
	(void)rank;
	return rounded(s == 1 ? flat->grad : flat->kept, all);
}

static void check(Case *c, const char *what, int f, int64_t k, float got, float want)
{
	if (got == want || c->wrong++ > 3)
		return;
	fprintf(stderr, "\n%s, %s, %d ranks in groups of %lld: %s of flat %d [%lld] is %.9g, should be %.9g\n",
		c->roles->name, strategy_info[c->strategy].text, c->world, (long long)ranks_of(c), what, f, (long long)k,
		(double)got, (double)want);
}

/* ---- ranks ---- */

static void thread_begin(Comm *comm, const Exchange *x)
{
	Case *c = ((Rank *)((char *)comm - offsetof(Rank, comm)))->c;
	c->source[x->ranks[x->me]] = x->source;
	pthread_barrier_wait(&c->barrier);
}

static int64_t thread_take(Comm *comm, const Exchange *x, int64_t at, int64_t most, const char **from)
{
	const Case *c = ((Rank *)((char *)comm - offsetof(Rank, comm)))->c;
	int64_t offset[MOST_RANKS], n = comm_piece(x, at, MIN(most, 448), offset); /* as if staging were small */
	for (int i = 0; i < x->n; i++)
		from[i] = n && offset[i] >= 0 ? (const char *)c->source[x->ranks[i]] + offset[i] : NULL;
	return n;
}

static void thread_end(Comm *comm, const Exchange *x)
{
	(void)x;
	pthread_barrier_wait(&((Rank *)((char *)comm - offsetof(Rank, comm)))->c->barrier);
}

static const CommOps thread_ops = {thread_begin, thread_take, thread_end, NULL};

typedef void *Pointers[LAYOUT_MAX_FLATS];

static Pointers *point(Arena *a, char *base, LayoutOffsets *offset)
{
	Pointers *p = arena_alloc(a, sizeof(*p));
	for (int f = 0; f < LAYOUT_MAX_FLATS; f++)
		(*p)[f] = offset[0][f] < 0 ? NULL : base + offset[0][f];
	return p;
}

static void map_rank(Rank *r)
{
	Case *c = r->c;
	LayoutRank who = device_rank(&r->rt);
	LayoutModel layout = c->model.layout;
	DeviceMemory *mem = &r->p.memory;
	layout.n_states = r->p.optim.n_states;
	LayoutMemory m = layout_memory(&layout, &who);
	const struct { ArenaKind kind; int64_t bytes; } arenas[] = {{ARENA_PARAMS, m.params},
		{ARENA_GATHERED, m.gathered}, {ARENA_GRADS, m.grads}, {ARENA_SEND, m.send}, {ARENA_STATES, m.states}};
	mem->places = layout_places(&layout, &who, c->a);
	for (int i = 0; i < COUNT_OF(arenas); i++) /* exactly as large as planned: for sanitizers */
		mem->base[arenas[i].kind] = malloc((size_t)arenas[i].bytes);
	for (int i = 0; i < COUNT_OF(arenas); i++)
		memset(mem->base[arenas[i].kind], arenas[i].kind == ARENA_PARAMS || arenas[i].kind == ARENA_STATES ? 0 : 0x7f,
			(size_t)arenas[i].bytes);
	r->rt.shard = point(c->a, mem->base[ARENA_PARAMS], mem->places.param);
	r->rt.param = point(c->a, mem->base[ARENA_PARAMS], mem->places.param);
	r->rt.grad = point(c->a, mem->base[ARENA_GRADS], mem->places.grad);
	r->rt.grad_shard = point(c->a, mem->base[ARENA_GRADS], mem->places.grad_shard);
	r->p.optim.master = point(c->a, mem->base[ARENA_STATES], mem->places.master);
}

static void unmap_rank(Rank *r)
{
	for (int i = 0; i < ARENA_COUNT; i++)
		free(r->p.memory.base[i]);
}

static void make_rank(Case *c, int i)
{
	static Diag d;
	Rank *r = &c->rank[i];
	d.out = stderr;
	r->c = c;
	r->o = (RtOptions){.arena = c->a, .program = "train", .shard_size = c->size};
	r->scalars = (StepScalars){.lr = 0.5f, .grad_scale = 1, .clip_coef = 1, .step = 1};
	r->rt = (Rt){.model = &c->model, .p = &r->p, .scalars = &r->scalars};
	r->p.arena = c->a;
	r->p.options = &r->o;
	r->p.world = (World){.rank = i, .size = c->world, .local_rank = i, .local_size = c->world, .n_hosts = 1};
	r->comm = (Comm){.ops = &thread_ops, .world = &r->p.world, .progress = &r->seen};
	r->p.comm = c->world > 1 ? &r->comm : NULL;
	LayoutRank who = device_rank(&r->rt);
	CU_ASSERT(optim_init(&r->p.optim, &c->model, &who, c->a, "train", &d));
	r->p.optim.group[0] = (Group){.lr_scale = 1};
	r->members = collectives_new(&r->rt, c->a);
	map_rank(r);
}

static void run(Rank *r, int row)
{
	const char *from[MOST_RANKS];
	const RtCollective *what = &r->c->row[row];
	for (int k = 0, n = collective_parts(&r->rt, what); k < n; k++) {
		Part part;
		collective_begin(&r->rt, r->members, what, k, &part);
		r->received[row] += collective_finish(&r->rt, &part, from);
	}
}

/* Gathered parameters, or those at rest where there is nothing to gather. */
static const char *readable(const Rank *r, int f)
{
	const Case *c = r->c;
	return layout_is_gathered(&c->unit.flat[f], ranks_of(c)) ? collective_gathered(&r->rt, &c->row[0], f) :
		(const char *)(*r->rt.shard)[f];
}

static void check_gathered(Rank *r)
{
	Case *c = r->c;
	for (int f = 0; f < FLATS; f++) {
		const LayoutFlat *flat = &c->unit.flat[f];
		DType working = flat->master ? flat->bcast : flat->param;
		for (int64_t k = 0; k < flat->numel; k++)
			check(c, "parameter", f, k, (float)number_get(readable(r, f) + k * dtype_info[flat->param].bytes,
				flat->param), rounded(working, c->master[f][k]));
	}
}

static void write_gradient(Rank *r)
{
	const Case *c = r->c;
	rt_zero_gaps(&r->rt, 0);
	for (int f = 0; f < FLATS; f++) {
		const LayoutFlat *flat = &c->unit.flat[f];
		for (int64_t k = 0; flat->trainable && k < flat->numel; k++)
			number_put((char *)(*r->rt.grad)[f] + k * dtype_info[flat->grad].bytes, flat->grad,
				(double)c->gradient[r->p.world.rank][f][k]);
	}
}

static void check_reduced(Rank *r)
{
	Case *c = r->c;
	LayoutRank who = device_rank(&r->rt);
	double sumsq = 0, wanted = 0;
	for (int f = 0; f < FLATS; f++) {
		LayoutRange mine = layout_range(&c->unit, f, &who);
		DType t = layout_update_dtype(&c->unit, f, &who);
		for (int64_t k = mine.begin; c->unit.flat[f].trainable && k < MIN(mine.begin + mine.n, numel_of[f]); k++) {
			float want = reduced(c, f, k, who.rank);
			const char *at = (const char *)(*r->rt.grad_shard)[f] + (k - mine.begin) * dtype_info[t].bytes;
			check(c, "reduced gradient", f, k, (float)number_get(at, t), want);
			wanted += layout_counts(&c->unit, &who) ? (double)want * (double)want : 0;
		}
	}
	r->p.optim.norm = 0;
	rt_sumsq(&r->rt, (const int[]){0}, 1);
	sumsq = r->p.optim.norm;
	CU_ASSERT(fabs(sumsq - wanted) <= 1e-9 * wanted);
}

/* Whoever holds an element holds what the rule makes of the sum that all agree on. */
static void check_updated(Rank *r)
{
	Case *c = r->c;
	LayoutRank who = device_rank(&r->rt);
	for (int f = 0; f < FLATS; f++) {
		const LayoutFlat *flat = &c->unit.flat[f];
		LayoutRange mine = layout_range(&c->unit, f, &who);
		const char *p = (*r->p.optim.master)[f] ? (*r->p.optim.master)[f] : (*r->rt.shard)[f];
		for (int64_t k = mine.begin; flat->trainable && k < MIN(mine.begin + mine.n, numel_of[f]); k++) {
			float got = (float)number_get(p + (k - mine.begin) * 4, DT_F32);
			float want = c->master[f][k] - 0.5f * reduced(c, f, k, who.rank);
			if (fabsf(got - want) > 1e-6f * MAX(1, fabsf(want)))
				check(c, "updated parameter", f, k, got, want);
		}
	}
}

static void *run_step(void *rank)
{
	Rank *r = rank;
	run(r, 0);
	check_gathered(r);
	write_gradient(r);
	run(r, 1);
	run(r, 2);
	check_reduced(r);
	rt_update_shard(&r->rt, 0);
	check_updated(r);
	run(r, 3);
	return NULL;
}

/* ---- cases ---- */

static void random_gradients(Case *c)
{
	for (int r = 0; r < c->world; r++)
		for (int f = 0; f < FLATS; f++)
			for (int64_t k = 0; k < numel_of[f]; k++)
				c->gradient[r][f][k] = (float)(rand() % 20001 - 10000) / (float)(1 << rand() % 12);
}

static void put_parameters(Case *c)
{
	for (int f = 0; f < FLATS; f++) {
		for (int64_t k = 0; k < numel_of[f]; k++)
			c->master[f][k] = (float)(rand() % 20001 - 10000) / 3000;
		for (int i = 0; i < c->world; i++) {
			const Rt *rt = &c->rank[i].rt;
			const Slice at[] = {slice_at_rest(rt, &c->tensor[f]), slice_master(rt, &c->tensor[f])};
			for (int s = 0; s < COUNT_OF(at); s++)
				slice_put(&at[s], 0, numel_of[f], (const char *)c->master[f], DT_F32);
		}
	}
}

/* The updated parameters, from those who hold them, for the next step. */
static void take_parameters(Case *c)
{
	for (int i = 0; i < c->world; i++)
		for (int f = 0; f < FLATS; f++) {
			const Rt *rt = &c->rank[i].rt;
			Slice s = slice_master(rt, &c->tensor[f]);
			if (!c->unit.flat[f].master)
				s = slice_at_rest(rt, &c->tensor[f]);
			if (s.n)
				slice_convert((char *)&c->master[f][s.first], DT_F32, DT_F32, s.at, s.dtype, s.n);
		}
}

static void make_unit(Case *c)
{
	const Roles *o = c->roles;
	bool owned = strategy_info[c->strategy].owned;
	c->unit = (LayoutUnit){.strategy = c->strategy, .owner = owned ? c->world - 1 : -1, .n_flats = FLATS,
		.grad_slot = -1, .own_region = c->slot < 0, .flat = {
			{o->dtype, true, numel_of[0], o->param, o->grad, o->reduce, o->kept, o->bcast, o->master, false},
			{DT_F32, true, numel_of[1], DT_F32, DT_F32, o->reduce, DT_F32, DT_F32, false, false},
			{DT_F32, false, numel_of[2], o->param, DT_F32, DT_F32, DT_F32, DT_F32, false, false}}};
	for (int f = 0; f < FLATS; f++)
		c->tensor[f] = (RtTensor){.kind = RT_PARAM, .name = "p", .rank = 1, .dim = {numel_of[f]}, .flat = f,
			.trainable = f < 2};
}

static void make_model(Case *c)
{
	static const RtCollectiveKind reduce[] = {RT_REDUCE_SCATTER, RT_ALL_REDUCE, RT_REDUCE};
	static const LayoutGather gathers[] = {{0, 1}};
	const StrategyInfo *info = &strategy_info[c->strategy];
	c->row[0] = (RtCollective){RT_ALL_GATHER, RT_STREAM_GATHER, 0, c->slot, 0, false, 0, false};
	c->row[1] = (RtCollective){reduce[info->reduce], RT_STREAM_REDUCE, 0, -1, 0, false, 0, false};
	c->row[2] = (RtCollective){RT_ALL_REDUCE_SHARDS, RT_STREAM_REDUCE, info->group == GROUP_SHARD ? 0 : -1, -1, 0,
		false, 0, false};
	c->row[3] = (RtCollective){RT_BROADCAST, RT_STREAM_GATHER, info->owned ? 0 : -1, -1, 0, false, 0, false};
	c->model = (RtModel){.name = "m", .tensors = c->tensor, .n_tensors = FLATS, .optimizer = "sgd",
		.layout = {.unit = &c->unit, .n_units = 1, .gather = gathers, .n_gathers = c->slot >= 0, .n_slots = 2}};
}

static void check_bytes(const Case *c)
{
	for (int i = 0; i < c->world; i++) {
		Plan p = {.layout = &c->model.layout, .who = {i, c->world, c->size}};
		for (int k = 0; k < COUNT_OF(c->row); k++)
			if (c->row[k].unit >= 0)
				CU_ASSERT_EQUAL(c->rank[i].received[k],
					STEPS * plan_received(&p, &(PlanCollective){c->row[k].kind, c->row[k].stream, 0, -1, 0}));
	}
}

static void run_case(const Roles *roles, Strategy strategy, int world, int size, int slot)
{
	Case *c = calloc(1, sizeof(*c));
	pthread_t thread[MOST_RANKS];
	c->a = arena_new();
	c->roles = roles;
	c->strategy = strategy;
	c->world = world;
	c->size = size;
	c->slot = slot;
	make_unit(c);
	make_model(c);
	c->rank = NEW_N(c->a, Rank, world);
	pthread_barrier_init(&c->barrier, NULL, (unsigned)world);
	for (int i = 0; i < world; i++)
		make_rank(c, i);
	put_parameters(c);
	for (int step = 0; step < STEPS; step++) {
		random_gradients(c);
		for (int i = 0; i < world; i++)
			pthread_create(&thread[i], NULL, run_step, &c->rank[i]);
		for (int i = 0; i < world; i++)
			pthread_join(thread[i], NULL);
		take_parameters(c);
	}
	CU_ASSERT_EQUAL(c->wrong, 0);
	check_bytes(c);
	for (int i = 0; i < world; i++)
		unmap_rank(&c->rank[i]);
	pthread_barrier_destroy(&c->barrier);
	arena_free(c->a);
	free(c);
}

static void every_mixture(void)
{
	srand(5);
	for (int k = 0; k < COUNT_OF(all_roles); k++)
		for (int s = 0; s < STRATEGY_COUNT; s++) {
			if (all_roles[k].owned && !strategy_info[s].owned)
				continue;
			for (int world = 1; world <= MOST_RANKS; world++)
				for (int size = 1; size <= world; size++)
					if (world % size == 0 && (size == world || s == STRATEGY_HYBRID_SHARD))
						run_case(&all_roles[k], (Strategy)s, world, size, world % 2 ? -1 : 1);
		}
}

void suite_collective(void)
{
	CU_pSuite s = CU_add_suite("collective", NULL, NULL);
	CU_add_test(s, "every mixture of dtypes, strategies and ranks", every_mixture);
}
