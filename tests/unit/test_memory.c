/* tests/unit/test_memory.c: packing, plans of random programs, and that memory_check, which proves plans, refuses
 * broken ones. memory_check is the oracle of the planner, and mutated plans test memory_check. */
#include "passes/passes.h"
#include "tests/unit/parsed.h"
#include "tests/unit/unit.h"

#include <string.h>
#include <time.h>

typedef struct Random { uint64_t state; } Random;

static int below(Random *r, int n)
{
	r->state = r->state * 6364136223846793005u + 1442695040888963407u;
	return (int)((r->state >> 33) % (uint64_t)n);
}

/* ---- packing ---- */

static int64_t most_live(const MemoryBlock *b, int n, int positions)
{
	int64_t most = 0;
	for (int p = 0; p < positions; p++) {
		int64_t live = 0;
		for (int i = 0; i < n; i++)
			live += b[i].first <= p && p <= b[i].last ? b[i].bytes : 0;
		most = MAX(most, live);
	}
	return most;
}

static bool any_overlap(const MemoryBlock *b, int n)
{
	for (int i = 0; i < n; i++)
		for (int k = 0; k < i; k++)
			if (b[i].first <= b[k].last && b[k].first <= b[i].last && b[i].offset < b[k].offset + b[k].bytes
				&& b[k].offset < b[i].offset + b[i].bytes)
				return true;
	return false;
}

static void random_blocks(Random *r, MemoryBlock *b, int n, int positions)
{
	for (int i = 0; i < n; i++) {
		int x = below(r, positions), y = below(r, positions);
		b[i] = (MemoryBlock){64 * (1 + below(r, 50)), 0, MIN(x, y), MAX(x, y)};
	}
}

static void blocks_do_not_overlap(void)
{
	enum { N = 200, POSITIONS = 120 };
	Random r = {1};
	MemoryBlock b[N];
	for (int round = 0; round < 30; round++) {
		Arena *a = arena_new();
		int n = 1 + below(&r, N);
		random_blocks(&r, b, n, POSITIONS);
		int64_t bound = most_live(b, n, POSITIONS), end;
		CU_ASSERT(memory_pack(b, n, POSITIONS, NULL, 2 * bound, a) <= 2 * bound);
		CU_ASSERT_FALSE(any_overlap(b, n));
		end = memory_pack(b, n, POSITIONS, NULL, 0, a);
		CU_ASSERT_FALSE(any_overlap(b, n));
		CU_ASSERT(end >= bound);
		CU_ASSERT(end <= bound + bound / 4);
		for (int i = 0; i < n; i++)
			CU_ASSERT(b[i].offset >= 0 && b[i].offset % 64 == 0 && b[i].offset + b[i].bytes <= end);
		arena_free(a);
	}
}

static void nested_lives_meet_the_bound(void)
{
	enum { N = 500 };
	MemoryBlock b[N];
	Arena *a = arena_new();
	int64_t sum = 0;
	for (int i = 0; i < N; i++) {
		b[i] = (MemoryBlock){64 * (1 + i % 7), 0, i, 2 * N - 1 - i};
		sum += b[i].bytes;
	}
	CU_ASSERT_EQUAL(memory_pack(b, N, 2 * N, NULL, 0, a), sum);
	CU_ASSERT_EQUAL(memory_pack(b, 0, 1, NULL, 0, a), 0);
	arena_free(a);
}

static int64_t end_with(const MemoryBlock *b, int n, const int64_t *above)
{
	int64_t end = 0;
	for (int i = 0; i < n; i++)
		end = MAX(end, b[i].offset + b[i].bytes + above[b[i].last]);
	return end;
}

/* Blocks that live while much lies above them move down, though the arena itself may be longer. */
static void what_lies_above_counts(void)
{
	enum { N = 100, POSITIONS = 60 };
	Random r = {3};
	MemoryBlock b[N];
	int64_t above[POSITIONS], with = 0, without = 0;
	for (int round = 0; round < 30; round++) {
		Arena *a = arena_new();
		int n = 1 + below(&r, N);
		random_blocks(&r, b, n, POSITIONS);
		for (int i = 0; i < POSITIONS; i++)
			above[i] = (i ? above[i - 1] : 0) + 64 * (i > POSITIONS / 2 ? below(&r, 100) : 0);
		memory_pack(b, n, POSITIONS, NULL, 0, a);
		without += end_with(b, n, above);
		int64_t end = memory_pack(b, n, POSITIONS, above, 0, a);
		with += end_with(b, n, above);
		CU_ASSERT_FALSE(any_overlap(b, n));
		for (int i = 0; i < n; i++)
			CU_ASSERT(b[i].offset >= 0 && b[i].offset + b[i].bytes <= end);
		arena_free(a);
	}
	CU_ASSERT(with < without);
}

static void many_blocks_take_a_moment(void)
{
	enum { N = 100000, POSITIONS = 100000 };
	Random r = {2};
	Arena *a = arena_new();
	MemoryBlock *b = NEW_N(a, MemoryBlock, N);
	for (int i = 0; i < N; i++) {
		int first = below(&r, POSITIONS), life = below(&r, i % 3 ? 20 : POSITIONS / 4);
		b[i] = (MemoryBlock){64 * (1 + below(&r, 500)), 0, first, MIN(first + life, POSITIONS - 1)};
	}
	clock_t begin = clock();
	memory_pack(b, N, POSITIONS, NULL, 0, a);
	CU_ASSERT((double)(clock() - begin) / CLOCKS_PER_SEC < 20); /* seconds; sanitizers included */
	CU_ASSERT_FALSE(any_overlap(b, 2000));
	arena_free(a);
}

/* ---- random programs ---- */

enum { OPS = 60, POOL = 8 };

static const int64_t shapes[][2] = {{8, 16}, {16, 8}, {16, 16}, {8, 8}};

static Value *random_op(Builder *b, Random *r, Value *x, Value *y)
{
	static const int swap[] = {1, 0};
	int64_t flat = type_numel(&x->type);
	switch (below(r, 6)) {
	case 0: return ir_emit1(b, OP_EXP, x);
	case 1: return type_same_shape(&x->type, &y->type) ? ir_emit2(b, OP_MUL, x, y) : ir_emit1(b, OP_NEG, x);
	case 2: return x->type.rank == 2 ? ir_transpose(b, x, swap) : ir_emit1(b, OP_SOFTPLUS, x);
	case 3: return ir_reshape(b, x, 1, &flat);
	case 4: return ir_emit2(b, OP_ADD, x, ir_reduce(b, OP_REDUCE_MAX, x, 1, (int64_t[]){0}, true));
	default: return ir_emit2(b, OP_ADD, ir_emit1(b, OP_EXP, x), ir_emit1(b, OP_NEG, x));
	}
}

static void end_section(Builder *b, Value *const *pool)
{
	for (int i = 0; i < POOL; i++) {
		int64_t axes[] = {0, 1};
		Value *s = ir_reduce(b, OP_REDUCE_SUM, pool[i], pool[i]->type.rank, axes, false);
		ir_emit(b, OP_REPORT_LOSS, 2, (Value *[]){s, s}, attr_int(b->m, NULL, "mean", 1));
	}
}

/* Forward and backward over values that any later op may read again. */
static Module *random_program(uint64_t seed)
{
	Random r = {seed};
	Module *m = ir_module_new("random");
	const Loc *loc = loc_new(m, "n", "", "", "");
	Builder b = {.m = m, .section = SEC_FORWARD, .loc = loc};
	Value *pool[POOL];
	for (int i = 0; i < POOL; i++) {
		Type t = type_tensor(DT_F32, 2, shapes[i % COUNT_OF(shapes)]);
		pool[i] = ir_read(&b, ir_add_symbol(m, SYM_INPUT, arena_printf(m->arena, "x%d", i), t));
	}
	for (int i = 0; i < OPS; i++) {
		if (i == OPS / 2) {
			end_section(&b, pool);
			b.section = SEC_BACKWARD;
		}
		int at = below(&r, POOL);
		pool[at] = random_op(&b, &r, pool[at], pool[below(&r, POOL)]);
	}
	end_section(&b, pool);
	m->level = LEVEL_SHARD;
	return m;
}

static bool is_earlier(const Op *a, const Op *b)
{
	return a->section != b->section ? a->section < b->section : a->order < b->order;
}

static bool is_ordered(Module *m)
{
	ir_number(m);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, (SectionKind)s, op)
			for (int i = 0; i < op->n_in; i++)
				if (op_in(op, i) && !is_earlier(op_in(op, i)->op, op))
					return false;
	return true;
}

static Module *planned(uint64_t seed)
{
	Options o = {.sharding.world = 1};
	Diag d = {.out = stderr};
	Module *m = random_program(seed);
	CU_ASSERT_FATAL(pass_schedule(m, &o, &d));
	CU_ASSERT(is_ordered(m));
	m->level = LEVEL_PLAN;
	CU_ASSERT_FATAL(pass_memory(m, &o, &d));
	return m;
}

static void random_programs_are_planned(void)
{
	int64_t planned_bytes = 0, bound = 0;
	for (uint64_t seed = 1; seed <= 200; seed++) {
		Module *m = planned(seed);
		Arena *a = arena_new();
		MemoryPeak peak = memory_peak(m, a);
		CU_ASSERT_PTR_NULL(memory_check(m, a, NULL));
		CU_ASSERT(m->act_bytes >= peak.bytes);
		CU_ASSERT(peak.n > 0 && peak.op != NULL);
		planned_bytes += m->act_bytes;
		bound += peak.bytes;
		arena_free(a);
		ir_module_free(m);
	}
	CU_ASSERT(planned_bytes <= bound + bound / 100); /* 1 % above what no plan can beat */
}

/* ---- mutants ---- */

static bool is_mutable(const Value *v)
{
	return v->place.region == REGION_ACT && !(op_info[v->op->kind].flags & VIEW);
}

/* v is defined while w still has a reader behind it, so it must not lie on w. */
static bool must_be_apart(const Value *v, Value *w)
{
	if (!is_mutable(v) || !is_mutable(w) || v == w || !is_earlier(w->op, v->op))
		return false;
	for (const Use *u = w->uses; u; u = u->next)
		if (is_earlier(v->op, u->op) && !(op_info[u->op->kind].flags & VIEW))
			return true;
	return false;
}

typedef VEC(Value *) Values;

static void list_values(Module *m, Arena *a, Values *all)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, (SectionKind)s, op)
			for (int i = 0; i < op->n_out; i++)
				vec_push(a, all, op->out[i]);
}

static void overlaps_are_refuted(void)
{
	int mutants = 0, missed = 0;
	for (uint64_t seed = 300; seed < 310; seed++) {
		Module *m = planned(seed);
		Arena *a = arena_new();
		Values all = {0};
		list_values(m, a, &all);
		ir_number(m);
		for (int i = 0; i < all.n; i++) {
			for (int k = 0; k < all.n; k++) {
				Value *v = all.at[i], *w = all.at[k];
				if (!must_be_apart(v, w))
					continue;
				Place was = v->place;
				v->place = w->place;
				missed += !memory_check(m, a, NULL);
				mutants++;
				v->place = was;
			}
		}
		CU_ASSERT_PTR_NULL(memory_check(m, a, NULL));
		arena_free(a);
		ir_module_free(m);
	}
	CU_ASSERT(mutants > 1000);
	CU_ASSERT_EQUAL(missed, 0);
}

static void expect_violation(const char *text, const char *says)
{
	Module *m = parsed(text);
	Arena *a = arena_new();
	const char *violation = memory_check(m, a, NULL);
	UNIT_CHECK(violation && strstr(violation, says), violation ? violation : says);
	arena_free(a);
	ir_module_free(m);
}

static void other_violations_are_refuted(void)
{
	/* a transpose cannot run in place */
	expect_violation("module \"m\" level=PLAN act_bytes=64 input_bytes=64 {\n  input \"x\" : f32[2,2]\n  forward {\n"
		"    %x : f32[2,2] @input+0 = input \"x\"\n    %a : f32[2,2] @act+0 = exp %x\n"
		"    %b : f32[2,2] @act+0 = transpose %a {perm=[1,0]}\n  }\n}\n", "%a is overwritten by a result");
	/* nor an elementwise op on an operand that it broadcasts */
	expect_violation("module \"m\" level=PLAN act_bytes=64 input_bytes=64 {\n  input \"x\" : f32[2,2]\n  forward {\n"
		"    %x : f32[2,2] @input+0 = input \"x\"\n    %r : f32[1,2] @act+0 = reduce_sum %x {axes=[0], keepdims=1}\n"
		"    %b : f32[2,2] @act+0 = add %x, %r\n  }\n}\n", "%r is overwritten by a result");
	/* two results of one op */
	expect_violation("module \"m\" level=PLAN act_bytes=64 input_bytes=64 {\n  input \"x\" : f32[4]\n  forward {\n"
		"    %x : f32[4] @input+0 = input \"x\"\n"
		"    %a : f32[2] @act+0, %b : f32[2] @act+4 = split %x {axis=0, sizes=[2,2]}\n  }\n}\n", "overlaps another");
	/* a place that was forgotten */
	expect_violation("module \"m\" level=PLAN act_bytes=64 input_bytes=64 {\n  input \"x\" : f32[2]\n  forward {\n"
		"    %x : f32[2] @input+0 = input \"x\"\n    %a : f32[2] = exp %x\n    %b : f32[2] @act+0 = exp %a\n  }\n}\n",
		"has no place");
	/* a buffer read after it was written */
	expect_violation("module \"m\" level=PLAN act_bytes=64 state_bytes=64 {\n  buffer \"s\" : f32[2]\n  forward {\n"
		"    %s : f32[2] @state+0 = read \"s\"\n    %a : f32[2] @act+0 = exp %s\n    write \"s\" %a\n"
		"    %b : f32[2] @act+0 = exp %s\n  }\n}\n", "hold something else");
}

/* A copy reads and writes until its `copied`. */
static void copies_are_followed(void)
{
#define COPIES(at_z, at_in, at_q, at_second) \
	"module \"m\" level=PLAN act_bytes=320 input_bytes=64 host_bytes=128 {\n  input \"x\" : f32[4]\n  forward {\n" \
	"    %x : f32[4] @input+0 = input \"x\"\n    %y : f32[4] @act+0 = exp %x\n" \
	"    %out : f32[4] @host+0 = offload %y\n    %z : f32[4] @act+" at_z " = neg %x\n" \
	"    %host : f32[4] @host+0 = copied %out, %y\n    %second : f32[4] @host+" at_second " = offload %z\n" \
	"    %there : f32[4] @host+" at_second " = copied %second, %z\n  }\n" \
	"  backward {\n    %p : f32[4] @act+128 = exp %x\n    %in : f32[4] @act+" at_in " = reload %host\n" \
	"    %q : f32[4] @act+" at_q " = neg %p\n    %back : f32[4] @act+" at_in " = copied %in, %host\n" \
	"    %d : f32[4] @act+256 = mul %back, %q\n  }\n}\n"
	Module *m = parsed(COPIES("64", "64", "192", "64"));
	Arena *a = arena_new();
	CU_ASSERT_PTR_NULL(memory_check(m, a, NULL));
	arena_free(a);
	ir_module_free(m);
	expect_violation(COPIES("0", "64", "192", "64"), "%y is read but its bytes hold something else");
	expect_violation(COPIES("64", "64", "64", "64"), "%in is read but its bytes hold something else");
	expect_violation(COPIES("64", "128", "192", "64"), "%p is read but its bytes hold something else");
	expect_violation(COPIES("64", "64", "192", "0"), "%host is read but its bytes hold something else");
#undef COPIES
}

/* ---- slots ---- */

static const char slots[] =
	"module \"m\" level=PLAN act_bytes=192 input_bytes=64 {\n"
	"  unit @a {strategy=\"full_shard\", flats=[f32 trainable 4], params=[\"a.w\" @0]}\n"
	"  unit @b {strategy=\"full_shard\", flats=[f32 trainable 4], params=[\"b.w\" @0]}\n"
	"  input \"x\" : f32[4]\n  param \"a.w\" : f32[4] {trainable=1}\n  param \"b.w\" : f32[4] {trainable=1}\n"
	"  forward {\n    %x : f32[4] @input+0 = input \"x\"\n"
	"    %ga : async flat @a = all_gather @a {slot=0}\n    %fa : flat @a = wait %ga\n"
	"    %gb : async flat @b = all_gather @b {slot=1}\n"
	"    %wa : f32[4] @param @a+0 = view \"a.w\" %fa\n    %p : f32[4] @act+0 = mul %x, %wa\n    reshard @a %fa\n"
	"    %fb : flat @b = wait %gb\n    %wb : f32[4] @param @b+0 = view \"b.w\" %fb\n"
	"    %q : f32[4] @act+64 = mul %p, %wb\n    reshard @b %fb\n  }\n"
	"  backward {\n    zero_gaps @a {slot=0}\n    %da : f32[4] @grad @a+0 = exp %p\n"
	"    %ca : flat @a = collect @a %da\n    %ra : async shard @a = reduce_scatter @a %ca {op=\"mean\"}\n"
	"    zero_gaps @b {slot=1}\n    %db : f32[4] @grad @b+0 = exp %q\n"
	"    %sa : shard @a = wait %ra\n    %n : f32[4] @act+128 = neg %db\n    %cb : flat @b = collect @b %db\n"
	"    %rb : async shard @b = reduce_scatter @b %cb {op=\"mean\"}\n    %sb : shard @b = wait %rb\n  }\n}\n";

/* The gradient of @a is begun when %p and %q are still read, that of @b when %q alone is: 64 bytes are free, then none,
 * since %n lies there later. */
static void gradients_of_one_rank_lie_over_what_is_dead(void)
{
	Module *m = parsed(slots);
	Arena *a = arena_new();
	CU_ASSERT_PTR_NULL(memory_check(m, a, NULL));
	LayoutModel l = memory_layout(m, a);
	LayoutUnit unit[2] = {l.unit[0], l.unit[1]};
	CU_ASSERT(unit[0].acts_free == 0 && unit[1].acts_free == 0);
	value_named(m, "n")->place.offset = 0;
	l = memory_layout(m, a);
	memcpy(unit, l.unit, sizeof(unit));
	CU_ASSERT(unit[0].acts_free == 64 && unit[1].acts_free == 64);
	CU_ASSERT_PTR_NULL(memory_check(m, a, NULL));
	l.unit = unit;
	CU_ASSERT_PTR_NULL(memory_check_alone(m, &l, a, NULL));
	unit[1].acts_free = 128; /* over %q, which is read later: @b begins there, and @a above it */
	const Op *op = NULL;
	const char *violation = memory_check_alone(m, &l, a, &op);
	UNIT_CHECK(violation && strstr(violation, "%q"), violation ? violation : "none");
	arena_free(a);
	ir_module_free(m);
}

/* The plan above with other slots for unit b. */
static Module *with_slots(int64_t gathered, int64_t gradient)
{
	Module *m = parsed(slots);
	Op *gather = value_named(m, "gb")->op, *zero = value_named(m, "db")->op->prev;
	gather->attrs = attr_int(m, gather->attrs, "slot", gathered);
	zero->attrs = attr_int(m, zero->attrs, "slot", gradient);
	return m;
}

/* says NULL: nothing is wrong. */
static void expect_check(Module *m, const char *says)
{
	Arena *a = arena_new();
	const char *violation = memory_check(m, a, NULL);
	UNIT_CHECK(says ? violation && strstr(violation, says) : !violation, violation ? violation : "no violation");
	arena_free(a);
	ir_module_free(m);
}

static void slots_are_followed(void)
{
	expect_check(with_slots(1, 1), NULL);
	expect_check(with_slots(0, 1), "%wa");  /* gathered where the other unit is still read */
	expect_check(with_slots(1, 0), "%da");  /* written where peers still read */
	Module *m = with_slots(1, 1);           /* read when the collective has had it */
	ir_move_to_end(m, value_named(m, "n")->op, SEC_BACKWARD);
	expect_check(m, "%db");
	m = with_slots(1, 1);                   /* read behind its reshard */
	ir_move_to_end(m, value_named(m, "p")->op, SEC_FORWARD);
	ir_move_to_end(m, value_named(m, "q")->op, SEC_FORWARD);
	expect_check(m, "%wa");
}

/* ---- what the plan says ---- */

static const char chain[] =
	"module \"m\" level=PLAN {\n  input \"x\" : f32[1024]\n  output \"y\" : f32[1024]\n  eval {\n"
	"    %x : f32[1024] = input \"x\"\n    %a : f32[1024] = exp %x\n    %b : f32[1024] = neg %a\n"
	"    %c : f32[512] = slice %b {sizes=[512], starts=[0], steps=[1]}\n    %d : f32[512] = exp %c\n"
	"    %y : f32[1024] = mul %b, %b\n    output \"y\" %y\n"
	"    %l : f32[] = reduce_sum %d {axes=[0], keepdims=0}\n    report_loss %l, %l {mean=1}\n  }\n}\n";

/* %y overwrites %b, which overwrites %a; %d overwrites %c; %l. */
enum { CHAIN_BYTES = 4096 + 2048 + 64 };

static void peak_names_the_largest(void)
{
	Options o = {.sharding.world = 1};
	Diag d = {.out = stderr};
	Module *m = parsed(chain);
	Arena *a = arena_new();
	CU_ASSERT_FATAL(pass_memory(m, &o, &d));
	MemoryPeak peak = memory_peak(m, a);
	CU_ASSERT_EQUAL(peak.bytes, CHAIN_BYTES);
	CU_ASSERT_EQUAL(m->act_bytes, peak.bytes);
	CU_ASSERT_PTR_EQUAL(peak.op, value_named(m, "l")->op);
	CU_ASSERT_EQUAL(peak.n, 3);
	CU_ASSERT_EQUAL(peak.largest_bytes[0], 4096);
	CU_ASSERT_EQUAL(peak.largest_bytes[1], 2048);
	CU_ASSERT_EQUAL(peak.largest_bytes[2], 64);
	CU_ASSERT_STRING_EQUAL(peak.largest[0]->name, "a");
	CU_ASSERT_EQUAL(value_named(m, "b")->place.offset, value_named(m, "a")->place.offset);
	CU_ASSERT_EQUAL(value_named(m, "y")->place.offset, value_named(m, "a")->place.offset);
	arena_free(a);
	ir_module_free(m);
}

static void limit_is_exact(void)
{
	FILE *sink = fopen("/dev/null", "w");
	for (int over = 0; over <= 1; over++) {
		Diag d = {.out = sink};
		Module *m = parsed(chain);
		Arena *a = arena_new();
		Options o = {.sharding.world = 1, .memory.memory_limit = CHAIN_BYTES + 4096 - over};
		CU_ASSERT_EQUAL(pass_memory(m, &o, &d), !over);
		CU_ASSERT_EQUAL(d.errors, over);
		arena_free(a);
		ir_module_free(m);
	}
	fclose(sink);
}

void suite_memory(void)
{
	CU_pSuite s = CU_add_suite("memory", NULL, NULL);
	CU_add_test(s, "packed blocks do not overlap", blocks_do_not_overlap);
	CU_add_test(s, "nested lives meet the bound", nested_lives_meet_the_bound);
	CU_add_test(s, "what lies above counts", what_lies_above_counts);
	CU_add_test(s, "100,000 blocks take a moment", many_blocks_take_a_moment);
	CU_add_test(s, "random programs are planned", random_programs_are_planned);
	CU_add_test(s, "overlaps are refuted", overlaps_are_refuted);
	CU_add_test(s, "other violations are refuted", other_violations_are_refuted);
	CU_add_test(s, "gradients of one rank lie over what is dead", gradients_of_one_rank_lie_over_what_is_dead);
	CU_add_test(s, "memory_check follows copies to the host", copies_are_followed);
	CU_add_test(s, "memory_check follows units through slots", slots_are_followed);
	CU_add_test(s, "the peak names the largest values", peak_names_the_largest);
	CU_add_test(s, "the limit is exact", limit_is_exact);
}
