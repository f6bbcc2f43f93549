/* tests/unit/test_layout.c: shards cover every flat at any number of ranks, and bytes add up. */
#include "base/layout.h"
#include "tests/unit/unit.h"

static void shards_cover_the_flat(void)
{
	static const int64_t sizes[] = {0, 1, 63, 64, 65, 127, 128, 1000, 7087872};
	for (int i = 0; i < COUNT_OF(sizes); i++) {
		for (int64_t ranks = 1; ranks <= 9; ranks++) {
			int64_t shard = layout_shard_numel(sizes[i], ranks), flat = layout_flat_numel(sizes[i], ranks);
			CU_ASSERT_EQUAL(shard % LAYOUT_ALIGN, 0);
			CU_ASSERT_EQUAL(flat, shard * ranks);
			CU_ASSERT(flat >= sizes[i]);
			CU_ASSERT(shard - LAYOUT_ALIGN < ceil_div(sizes[i], ranks));
		}
	}
}

static void a_rank_may_be_all_padding(void)
{
	/* 65 elements on 4 ranks: 64, 1, and two ranks of gaps */
	CU_ASSERT_EQUAL(layout_shard_numel(65, 4), 64);
	CU_ASSERT_EQUAL(layout_flat_numel(65, 4), 256);
}

static void parameters_start_at_multiples(void)
{
	CU_ASSERT_EQUAL(layout_next(0), 0);
	CU_ASSERT_EQUAL(layout_next(1), 64);
	CU_ASSERT_EQUAL(layout_next(64), 64);
	CU_ASSERT_EQUAL(layout_next(65), 128);
}

/* A unit of 100 trainable f32 and 10 frozen f16, one of 1000 trainable f32; one ring slot for both. */
static LayoutMemory memory_at(int64_t ranks, int n_states)
{
	static const LayoutUnit units[] = {
		{STRATEGY_FULL_SHARD, -1, 2, {LAYOUT_FLAT(DT_F32, true, 100), LAYOUT_FLAT(DT_F16, false, 10)}, 0, false, false,
			LAYOUT_OFFLOAD_NONE, 0},
		{STRATEGY_FULL_SHARD, -1, 1, {LAYOUT_FLAT(DT_F32, true, 1000)}, 1, false, false, LAYOUT_OFFLOAD_NONE, 0},
	};
	static const LayoutGather gathers[] = {{0, 0}, {1, 0}, {0, 0}};
	LayoutModel m = {.unit = units, .n_units = 2, .gather = gathers, .n_gathers = 3, .n_slots = 1,
		.n_grad_slots = 2, .n_states = n_states, .act_bytes = 640, .input_bytes = 64, .state_bytes = 128,
		.work_bytes = 192};
	return layout_memory(&m, &(LayoutRank){0, ranks, ranks});
}

static void bytes_at_one_rank(void)
{
	LayoutMemory m = memory_at(1, 2);
	CU_ASSERT_EQUAL(m.params, (128 + 1024) * 4 + 64 * 2);
	CU_ASSERT_EQUAL(m.grads, (128 + 1024) * 4);
	CU_ASSERT_EQUAL(m.states, (128 + 1024) * 4 * 2);
	CU_ASSERT_EQUAL(m.activations, 640);
	CU_ASSERT_EQUAL(m.inputs, 64);
	CU_ASSERT_EQUAL(m.buffers, 128);
	CU_ASSERT_EQUAL(m.workspace, 192);
	CU_ASSERT_EQUAL(m.total, m.params + m.grads + m.states + 640 + 64 + 128 + 192);
}

/* Units that are begun later find more of the activations free, so they lie below the others; what does not fit over
 * the activations lies behind them. */
static void gradients_lie_over_activations(void)
{
	enum { ACTS = 64 * 1000 };
	static const int64_t numel[] = {1000, 64, 6400, 128}, acts_free[] = {ACTS, 0, ACTS - 6400, 25600};
	LayoutUnit unit[4];
	for (int i = 0; i < 4; i++)
		unit[i] = (LayoutUnit){STRATEGY_FULL_SHARD, -1, 1, {LAYOUT_FLAT(DT_F32, true, numel[i])}, i, false, false,
			LAYOUT_OFFLOAD_NONE, acts_free[i]};
	LayoutModel m = {.unit = unit, .n_units = 4, .n_grad_slots = 4, .act_bytes = ACTS};
	Arena *a = arena_new();
	LayoutRank one = {0, 1, 1}, two = {1, 2, 2};
	LayoutPlaces p = layout_places(&m, &one, a);
	LayoutMemory alone = layout_memory(&m, &one);
	CU_ASSERT_EQUAL(p.grad[0][0], 0);
	CU_ASSERT_EQUAL(p.grad[2][0], 6400);
	CU_ASSERT_EQUAL(p.grad[3][0], ACTS - 25600);
	CU_ASSERT_EQUAL(p.grad[1][0], 0); /* the only one in the arena of gradients */
	CU_ASSERT_EQUAL(p.grad_shard[2][0], 6400);
	CU_ASSERT(layout_grad_over_acts(&m, &unit[0], &one) && !layout_grad_over_acts(&m, &unit[1], &one));
	CU_ASSERT(alone.grads == 256 && alone.grads_behind == 0 && alone.activations == ACTS);
	unit[3].acts_free = 256;
	alone = layout_memory(&m, &one);
	CU_ASSERT(alone.grads == 256 + 256 && alone.grads_behind == 256);
	CU_ASSERT(layout_grad_may_lie_over_acts(&m, &unit[1], &one));
	for (int i = 0; i < 4; i++)
		CU_ASSERT_FALSE(layout_grad_over_acts(&m, &unit[i], &two) || layout_grad_may_lie_over_acts(&m, &unit[i], &two));
	int64_t grads = layout_memory(&m, &two).grads;
	for (int i = 0; i < 4; i++)
		unit[i].acts_free = 0;
	CU_ASSERT_EQUAL(layout_memory(&m, &two).grads, grads);
	unit[0].acts_free = ACTS;
	unit[0].offload = LAYOUT_OFFLOAD_PARAMS; /* of a CPU: in the file */
	CU_ASSERT_FALSE(layout_grad_over_acts(&m, &unit[0], &one));
	unit[0].offload = LAYOUT_OFFLOAD_NONE;
	m.brief = true; /* in its slot until its update */
	CU_ASSERT_FALSE(layout_grad_over_acts(&m, &unit[0], &one));
	arena_free(a);
}

static void bytes_at_four_ranks(void)
{
	LayoutMemory m = memory_at(4, 1);
	CU_ASSERT_EQUAL(m.params, (64 + 256) * 4 + 64 * 2);
	CU_ASSERT_EQUAL(m.gathered, 1024 * 4); /* the larger unit: 256 * 4 + 256 * 2 fit too */
	CU_ASSERT_EQUAL(m.grads, (256 + 64 + 1024 + 256) * 4);
	CU_ASSERT_EQUAL(m.states, (64 + 256) * 4);
	CU_ASSERT_EQUAL(memory_at(4, 0).states, 0);
}

/* Of 1000 trainable elements: roles {at rest, gathered, gradient, sent, kept, broadcast}, and a frozen flat of 100. */
static LayoutMemory mixed_at(Strategy s, DType rest, DType param, DType grad, DType reduce, DType kept, DType bcast,
	LayoutRank who)
{
	bool master = bcast != DT_F32;
	const LayoutUnit unit = {s, strategy_info[s].owned ? 1 : -1, 2, {
		{rest, true, 1000, param, grad, reduce, kept, bcast, master, false},
		{DT_F32, false, 100, param, DT_F32, DT_F32, DT_F32, DT_F32, false, false}}, -1, true, false,
		LAYOUT_OFFLOAD_NONE, 0};
	return layout_memory(&(LayoutModel){.unit = &unit, .n_units = 1, .n_states = 2}, &who);
}

static void bytes_of_halves(void)
{
	const LayoutRank one = {0, 1, 1}, four = {0, 4, 4}, groups = {2, 4, 2};
	/* f32 at rest, all else bf16: a cast of one's own shard, gradients written as they are sent */
	LayoutMemory m = mixed_at(STRATEGY_FULL_SHARD, DT_F32, DT_BF16, DT_BF16, DT_BF16, DT_F32, DT_F32, four);
	CU_ASSERT_EQUAL(m.params, (256 + 64) * 4);
	CU_ASSERT_EQUAL(m.gathered, (1024 + 256) * 2);
	CU_ASSERT_EQUAL(m.grads, 1024 * 2 + 256 * 4);
	CU_ASSERT_EQUAL(m.send, 0);
	CU_ASSERT_EQUAL(m.states, 2 * 256 * 4);
	/* one rank casts the whole unit, and sends nothing */
	m = mixed_at(STRATEGY_FULL_SHARD, DT_F32, DT_BF16, DT_F32, DT_BF16, DT_F32, DT_F32, one);
	CU_ASSERT_EQUAL(m.gathered, (1024 + 128) * 2);
	CU_ASSERT_EQUAL(m.grads, 1024 * 4);
	CU_ASSERT_EQUAL(m.send, 0);
	/* gradients summed in f32 are sent from a copy; across groups from a copy of the shard */
	m = mixed_at(STRATEGY_FULL_SHARD, DT_F32, DT_BF16, DT_F32, DT_BF16, DT_F16, DT_F32, four);
	CU_ASSERT_EQUAL(m.grads, 1024 * 4 + 256 * 2);
	CU_ASSERT_EQUAL(m.send, 1024 * 2);
	m = mixed_at(STRATEGY_HYBRID_SHARD, DT_F32, DT_BF16, DT_BF16, DT_BF16, DT_F32, DT_F32, groups);
	CU_ASSERT_EQUAL(m.grads, 1024 * 2 + 512 * 4);
	CU_ASSERT_EQUAL(m.send, 512 * 2);
	m = mixed_at(STRATEGY_NO_SHARD, DT_F32, DT_BF16, DT_F32, DT_BF16, DT_F32, DT_F32, four);
	CU_ASSERT_EQUAL(m.gathered, (1024 + 128) * 2);
	CU_ASSERT_EQUAL(m.grads, 1024 * 4);
	CU_ASSERT_EQUAL(m.send, 1024 * 2);
	/* owners: 16 bits on all, the master beside the states of one; or f32 with broadcasts of 16 bits */
	for (int64_t rank = 0; rank < 2; rank++) {
		m = mixed_at(STRATEGY_OSS, DT_BF16, DT_BF16, DT_BF16, DT_BF16, DT_F32, DT_BF16, (LayoutRank){rank, 4, 4});
		CU_ASSERT_EQUAL(m.params, 1024 * 2 + 128 * 4);
		CU_ASSERT_EQUAL(m.gathered, 128 * 2);
		CU_ASSERT_EQUAL(m.states, rank == 1 ? 3 * 1024 * 4 : 0);
		CU_ASSERT_EQUAL(m.send, 0);
		m = mixed_at(STRATEGY_SHARDED_DDP, DT_F32, DT_F32, DT_F32, DT_BF16, DT_F32, DT_BF16,
			(LayoutRank){rank, 4, 4});
		CU_ASSERT_EQUAL(m.params, (1024 + 128) * 4);
		CU_ASSERT_EQUAL(m.gathered, 0);
		CU_ASSERT_EQUAL(m.grads, 1024 * 4 + (rank == 1 ? 1024 * 4 : 0));
		CU_ASSERT_EQUAL(m.states, rank == 1 ? 3 * 1024 * 4 : 0);
		CU_ASSERT_EQUAL(m.send, 1024 * 2 + 1024 * 2);
	}
}

/* What peers read begins at the same place on all ranks, owners or not. */
static void places_of_halves(void)
{
	static const LayoutUnit units[] = {
		{STRATEGY_OSS, 1, 1, {{DT_F32, true, 100, DT_F32, DT_F32, DT_BF16, DT_F32, DT_BF16, true, false}}, -1, false,
			false, LAYOUT_OFFLOAD_NONE, 0},
		{STRATEGY_HYBRID_SHARD, -1, 1, {{DT_F32, true, 1000, DT_BF16, DT_F32, DT_BF16, DT_F32, DT_F32, false, false}},
			0, true, false, LAYOUT_OFFLOAD_NONE, 0},
	};
	const LayoutModel l = {.unit = units, .n_units = 2, .n_grad_slots = 1};
	Arena *a = arena_new();
	for (int r = 0; r < 4; r++) {
		LayoutPlaces p = layout_places(&l, &(LayoutRank){r, 4, 2}, a);
		CU_ASSERT_EQUAL(p.send[0][0], 0);
		CU_ASSERT_EQUAL(p.send[1][0], 0);
		CU_ASSERT_EQUAL(p.bcast[0][0], 1024 * 2);
		CU_ASSERT_EQUAL(p.bcast[1][0], -1);
		CU_ASSERT_EQUAL(p.own[1][0], 0);
		CU_ASSERT_EQUAL(p.master[0][0] >= 0, r == 1);
	}
	arena_free(a);
}

/* All members together fold a range once, and each piece but the last begins at a multiple of 64. */
static void pieces_cover_the_range(void)
{
	for (int64_t n = 0; n <= 640; n += 64) {
		for (int64_t members = 1; members <= 9; members++) {
			int64_t at = 0;
			for (int64_t me = 0; me < members; me++) {
				LayoutRange r = layout_piece(n, members, me);
				CU_ASSERT_EQUAL(r.begin, at);
				CU_ASSERT(r.n >= 0);
				at += r.n;
			}
			CU_ASSERT_EQUAL(at, n);
		}
	}
}

/* The memory of a model whose units are all offloaded alike. */
static LayoutMemory offloaded(const LayoutModel *m, LayoutUnit *units, LayoutOffload offload, const LayoutRank *who)
{
	for (int i = 0; i < m->n_units; i++)
		units[i].offload = offload;
	return layout_memory(m, who);
}

/* What is offloaded leaves its category and joins the file, byte for byte, for every strategy. */
static void offload_moves_bytes(void)
{
	for (int s = 0; s < STRATEGY_COUNT; s++) {
		LayoutUnit units[] = {
			{(Strategy)s, strategy_info[s].owned ? 0 : -1, 2,
				{LAYOUT_FLAT(DT_F32, true, 100), LAYOUT_FLAT(DT_F16, false, 10)}, 0, false, false,
				LAYOUT_OFFLOAD_NONE, 0},
			{(Strategy)s, strategy_info[s].owned ? 1 : -1, 1, {LAYOUT_FLAT(DT_F32, true, 1000)}, 1, false, false,
				LAYOUT_OFFLOAD_NONE, 0},
		};
		for (int64_t world = 1; world <= 4; world *= 2) {
			LayoutRank who = {world - 1, world, MAX(world / 2, 1)};
			LayoutModel m = {.unit = units, .n_units = 2, .n_grad_slots = 2, .n_states = 2, .act_bytes = 4096};
			LayoutMemory none = offloaded(&m, units, LAYOUT_OFFLOAD_NONE, &who);
			LayoutMemory optim = offloaded(&m, units, LAYOUT_OFFLOAD_OPTIM, &who);
			LayoutMemory params = offloaded(&m, units, LAYOUT_OFFLOAD_PARAMS, &who);
			CU_ASSERT_EQUAL(none.file.total, 0);
			CU_ASSERT_EQUAL(optim.file.total, none.states);
			CU_ASSERT_EQUAL(optim.total, none.total - none.states);
			CU_ASSERT_EQUAL(params.file.params, none.params);
			CU_ASSERT_EQUAL(params.file.grads, none.grads - params.grads);
			CU_ASSERT_EQUAL(params.total + params.file.total, none.total);
			bool all_stay = layout_grad_stays(&units[0], &who);
			CU_ASSERT_EQUAL(params.grads == 0, all_stay);
		}
	}
}

static void offload_of_gpus_moves_bytes(void)
{
	for (int s = 0; s < STRATEGY_COUNT; s++) {
		LayoutUnit units[] = {
			{(Strategy)s, strategy_info[s].owned ? 0 : -1, 1, {LAYOUT_FLAT(DT_F32, true, 1000)}, -1, false, false,
				LAYOUT_OFFLOAD_NONE, 0},
		};
		for (int64_t world = 1; world <= 4; world *= 2) {
			LayoutRank who = {world - 1, world, MAX(world / 2, 1)};
			LayoutModel m = {.unit = units, .n_units = 1, .n_states = 2, .cuda = {.on = true, .n_segments = 3}};
			LayoutMemory none = offloaded(&m, units, LAYOUT_OFFLOAD_NONE, &who);
			LayoutMemory optim = offloaded(&m, units, LAYOUT_OFFLOAD_OPTIM, &who);
			LayoutMemory params = offloaded(&m, units, LAYOUT_OFFLOAD_PARAMS, &who);
			CU_ASSERT_EQUAL(optim.file.total + params.file.total, 0);
			CU_ASSERT_EQUAL(optim.host.states, none.states);
			CU_ASSERT_EQUAL(optim.total, none.total - none.states);
			CU_ASSERT_EQUAL(optim.host.total, none.host.total + none.states);
			CU_ASSERT_EQUAL(params.host.params, none.params);
			CU_ASSERT_EQUAL(params.grads, none.grads);
			CU_ASSERT_EQUAL(params.total, none.total - none.states - none.params);
			CU_ASSERT_EQUAL(params.host.total, none.host.total + none.states + none.params);
		}
	}
}

static bool memory_equal(const LayoutMemory *a, const LayoutMemory *b)
{
	return a->params == b->params && a->grads == b->grads && a->states == b->states && a->file.params == b->file.params
		&& a->file.grads == b->file.grads && a->file.states == b->file.states && a->host.params == b->host.params
		&& a->host.states == b->host.states;
}

/* The places of one unit of each kind: what peers read lies at the same offset of memory, or of the file, on all ranks;
 * in both, units follow each other. */
static void check_kinds(const LayoutModel *m, const LayoutRank *who, const LayoutPlaces *first, Arena *a)
{
	LayoutPlaces p = layout_places(m, who, a);
	int64_t n = layout_shard_numel(1000, layout_split(m->unit[0].strategy, who).ranks) * 4;
	CU_ASSERT(p.param[0][0] == 0 && p.param[1][0] == n && p.param[2][0] == 0);
	for (int u = 0; u < 3; u++)
		CU_ASSERT(p.param[u][0] == first->param[u][0] && p.grad[u][0] == first->grad[u][0]);
	bool mine = layout_range(&m->unit[0], 0, who).n;
	CU_ASSERT_EQUAL(p.state[0][0][0], mine ? 0 : -1);
	CU_ASSERT_EQUAL(p.state[0][1][0], mine ? 0 : -1);
	CU_ASSERT_EQUAL(p.state[0][2][0], mine ? n : -1);
	CU_ASSERT_EQUAL(p.state[1][0][0], mine ? n : -1);
	CU_ASSERT_EQUAL(p.state[1][1][0], mine ? 2 * n : -1);
	CU_ASSERT_EQUAL(p.state[1][2][0], mine ? 3 * n : -1);
}

/* A unit of its own offload takes what it takes in a program that is offloaded so as a whole. */
static void units_are_offloaded_apart(void)
{
	for (int s = 0; s < STRATEGY_COUNT; s++)
		for (int cuda = 0; cuda < 2; cuda++)
			for (int64_t world = 1; world <= 4; world *= 2) {
				Arena *a = arena_new();
				LayoutUnit units[3];
				LayoutMemory sum = {0};
				for (int u = 0; u < 3; u++)
					units[u] = (LayoutUnit){(Strategy)s, strategy_info[s].owned ? 0 : -1, 1,
						{LAYOUT_FLAT(DT_F32, true, 1000)}, -1, false, false, (LayoutOffload)u, 0};
				LayoutModel m = {.unit = units, .n_units = 3, .n_states = 2, .cuda = {.on = cuda}};
				const LayoutRank zero = {0, world, MAX(world / 2, 1)};
				LayoutPlaces first = layout_places(&m, &zero, a);
				for (int64_t r = 0; r < world; r++)
					check_kinds(&m, &(LayoutRank){r, world, zero.shard_size}, &first, a);
				for (int u = 0; u < 3; u++) {
					LayoutMemory one = layout_memory(&(LayoutModel){.unit = &units[u], .n_units = 1, .n_states = 2,
						.cuda = {.on = cuda}}, &zero);
					sum.params += one.params, sum.grads += one.grads, sum.states += one.states;
					sum.file.params += one.file.params, sum.file.grads += one.file.grads;
					sum.file.states += one.file.states, sum.host.params += one.host.params;
					sum.host.states += one.host.states;
				}
				LayoutMemory all = layout_memory(&m, &zero);
				CU_ASSERT(memory_equal(&all, &sum));
				CU_ASSERT(layout_offloads(&m));
				arena_free(a);
			}
}

/* Of what rests on the host a gather makes a copy, at one rank, too. */
static void what_is_away_is_gathered(void)
{
	LayoutUnit unit = {STRATEGY_NO_SHARD, -1, 1, {LAYOUT_FLAT(DT_F32, true, 1000)}, -1, true, false,
		LAYOUT_OFFLOAD_PARAMS, 0};
	LayoutRank who = {0, 1, 1};
	LayoutModel m = {.unit = &unit, .n_units = 1, .cuda = {.on = true}};
	CU_ASSERT_EQUAL(layout_memory(&m, &who).gathered, 0);
	unit.flat[0].away = true;
	CU_ASSERT_EQUAL(layout_memory(&m, &who).gathered, layout_shard_numel(1000, 1) * 4);
}

void suite_layout(void)
{
	CU_pSuite s = CU_add_suite("layout", NULL, NULL);
	CU_add_test(s, "shards cover the flat", shards_cover_the_flat);
	CU_add_test(s, "a rank may be all padding", a_rank_may_be_all_padding);
	CU_add_test(s, "parameters start at multiples of 64", parameters_start_at_multiples);
	CU_add_test(s, "pieces cover the range", pieces_cover_the_range);
	CU_add_test(s, "bytes at one rank", bytes_at_one_rank);
	CU_add_test(s, "bytes at four ranks", bytes_at_four_ranks);
	CU_add_test(s, "gradients lie over activations", gradients_lie_over_activations);
	CU_add_test(s, "bytes of 16-bit roles", bytes_of_halves);
	CU_add_test(s, "places of 16-bit roles", places_of_halves);
	CU_add_test(s, "offload moves bytes", offload_moves_bytes);
	CU_add_test(s, "offload of GPUs moves bytes", offload_of_gpus_moves_bytes);
	CU_add_test(s, "units are offloaded apart", units_are_offloaded_apart);
	CU_add_test(s, "what is away is gathered", what_is_away_is_gathered);
}
