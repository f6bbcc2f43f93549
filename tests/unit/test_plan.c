/* tests/unit/test_plan.c: the output of `shardc plan --format=json` equals each strategy's closed form: bytes per
 * category, and number and bytes of collectives, gaps, padding, rings and owners included.
 *
 * The closed forms are computed here from the flats of the planned module and the slots in its text, without
 * base/layout.c: sizes of shards, pieces and rings are written out again. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/codegen.h"
#include "passes/passes.h"
#include "tests/unit/unit.h"

enum { BLOCKS = 4, WIDTH = 37, CLASSES = 5, STATES = 2 };

/* x * scale, four blocks, a head: gaps in every flat, one frozen parameter. */
static Module *model(Diag *d)
{
	Buf b = {0};
	buf_printf(&b, "module \"m\" level=MODEL batch=4 {\n  input \"x\" : f32[4,%d] {batched=1}\n", WIDTH);
	buf_printf(&b, "  param \"scale\" : f32[%d] {trainable=1}\n", WIDTH);
	for (int i = 0; i < BLOCKS; i++)
		buf_printf(&b, "  param \"h.%d.fc.weight\" : f32[%d,%d] {trainable=1}\n  param \"h.%d.fc.bias\" : f32[%d] "
			"{trainable=1}\n", i, WIDTH, WIDTH, i, WIDTH);
	buf_printf(&b, "  param \"head.weight\" : f32[%d,%d] {trainable=1}\n  param \"head.bias\" : f32[%d] {trainable=1}\n"
		"  output \"y\" : f32[4,%d]\n  forward {\n    %%x : f32[4,%d] = input \"x\"\n    %%s : f32[%d] = param "
		"\"scale\"\n    %%x0 : f32[4,%d] = mul %%x, %%s\n", WIDTH, CLASSES, CLASSES, CLASSES, WIDTH, WIDTH, WIDTH);
	for (int i = 0; i < BLOCKS; i++) {
		buf_printf(&b, "    %%w%d : f32[%d,%d] = param \"h.%d.fc.weight\"\n", i, WIDTH, WIDTH, i);
		buf_printf(&b, "    %%b%d : f32[%d] = param \"h.%d.fc.bias\"\n", i, WIDTH, i);
		buf_printf(&b, "    %%m%d : f32[4,%d] = matmul %%x%d, %%w%d, %%b%d {ta=0, tb=0} "
			"loc(\"n%d.fc\":\"Gemm\"@\"h.%d.fc\")\n", i, WIDTH, i, i, i, i, i);
		buf_printf(&b, "    %%x%d : f32[4,%d] = gelu %%m%d {tanh=0} loc(\"n%d.act\":\"Gelu\"@\"h.%d.act\")\n",
			i + 1, WIDTH, i, i, i);
	}
	buf_printf(&b, "    %%hw : f32[%d,%d] = param \"head.weight\"\n    %%hb : f32[%d] = param \"head.bias\"\n"
		"    %%y : f32[4,%d] = matmul %%x%d, %%hw, %%hb {ta=0, tb=0} loc(\"head\":\"Gemm\"@\"head\")\n"
		"    output \"y\" %%y\n  }\n}\n", WIDTH, CLASSES, CLASSES, CLASSES, BLOCKS);
	Module *m = ir_parse("m.ir", b.at, d);
	buf_free(&b);
	return m;
}

/* ---- one plan ---- */

typedef struct Case {
	Strategy strategy;
	int64_t world, size; /* size: ranks of a group of hybrid_shard */
	Module *m;
	json_t *plan;
	Diag d;
} Case;

static json_t *plan_as_json(Module *m, const Options *o)
{
	Arena *a = arena_new();
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);
	LayoutModel layout = memory_layout(m, a);
	LayoutRank who = memory_rank(o);
	who.rank = layout_rank_most(&layout, &who);
	codegen_plan_json(f, m, &(CodegenPlan){.layout = &layout, .who = who});
	codegen_hints_json(f, NULL, 0);
	fclose(f);
	json_error_t error;
	json_t *j = json_loads(text, 0, &error);
	UNIT_CHECK(j != NULL, error.text);
	free(text);
	arena_free(a);
	return j;
}

static bool plan_case(Case *c)
{
	Options o = {.graph = {.loss = "mse", .freeze = {{"head\\.bias"}, 1}},
		.sharding = {.strategy = c->strategy, .world = c->world, .shard_size = c->size}};
	PipelineView none = {.out = stdout};
	c->d = (Diag){.out = stderr};
	c->m = model(&c->d);
	bool ok = c->m && pipeline_run(c->m, &o, &none, NULL, &c->d);
	c->plan = ok ? plan_as_json(c->m, &o) : NULL;
	return c->plan != NULL;
}

static void end_case(Case *c)
{
	json_decref(c->plan);
	ir_module_free(c->m);
}

/* ---- closed forms ---- */

static bool is_split(const Case *c)
{
	return c->strategy == STRATEGY_FULL_SHARD || c->strategy == STRATEGY_SHARD_GRAD_OP
		|| c->strategy == STRATEGY_HYBRID_SHARD;
}

/* Ranks that share one copy of the parameters. */
static int64_t ranks_of(const Case *c)
{
	return c->strategy == STRATEGY_HYBRID_SHARD ? c->size : is_split(c) ? c->world : 1;
}

static int64_t in_64s(int64_t n, int64_t ranks) /* elements of a shard */
{
	int64_t each = (n + ranks - 1) / ranks;
	return (each + 63) / 64 * 64;
}

static int64_t shards(const Unit *u, int64_t ranks, bool trained) /* bytes */
{
	int64_t n = 0;
	for (int f = 0; f < u->n_flats; f++)
		n += u->flat[f].trainable || !trained ? in_64s(u->flat[f].numel, ranks) : 0;
	return n * 4;
}

static int64_t whole(const Unit *u, int64_t ranks, bool trained)
{
	return shards(u, ranks, trained) * ranks;
}

static bool updates(const Case *c, const Unit *u, int64_t rank)
{
	bool owned = c->strategy == STRATEGY_OSS || c->strategy == STRATEGY_SHARDED_DDP;
	return !owned || u->owner == rank;
}

/* Of units of these sizes in slots: the largest of each slot, and all of those without (slot -1). */
typedef struct Slots { int64_t most[16], own; } Slots;

static void slots_add(Slots *s, int slot, int64_t bytes)
{
	if (slot < 0)
		s->own += bytes;
	else
		s->most[slot] = MAX(s->most[slot], bytes);
}

static int64_t slots_sum(const Slots *s)
{
	int64_t sum = s->own;
	for (int i = 0; i < COUNT_OF(s->most); i++)
		sum += s->most[i];
	return sum;
}

static int64_t gathered_bytes(const Case *c)
{
	Slots s = {0};
	int64_t ranks = ranks_of(c);
	bool own[64] = {false};
	for (int section = 0; ranks > 1 && section < SEC_COUNT; section++) {
		IR_FOR_OPS(c->m, (SectionKind)section, op) {
			int slot = (int)attr_get_int(op->attrs, "slot", -1);
			if (op->kind != OP_ALL_GATHER || (slot < 0 && own[op->unit->index]))
				continue;
			own[op->unit->index] = own[op->unit->index] || slot < 0;
			slots_add(&s, slot, whole(op->unit, ranks, false));
		}
	}
	return slots_sum(&s);
}

/* The end of what the op reads or writes of the activations. */
static int64_t used_by(const Op *op)
{
	int64_t end = 0;
	for (int i = 0; i < op->n_in + op->n_out; i++) {
		Value *v = i < op->n_in ? op_in(op, i) : op->out[i - op->n_in];
		if (v && v->place.region == REGION_ACT)
			end = MAX(end, value_whole(v)->place.offset + round_up(type_bytes(&value_whole(v)->type), 64));
	}
	return end;
}

/* Of a single rank: each flat gradient lies above what is used after its beginning, all that were begun fit above that,
 * and what is above the activations is memory of its own. */
static int64_t gradients_behind(const Case *c)
{
	int64_t begun = 0, end = 0;
	for (int section = 0; section < SEC_EVAL; section++) {
		IR_FOR_OPS(c->m, (SectionKind)section, op) {
			int64_t used = 0;
			if (op->kind != OP_ZERO_GAPS)
				continue;
			begun += whole(op->unit, 1, true);
			for (int later = section; later < SEC_EVAL; later++)
				for (const Op *o = later == section ? op->next : c->m->first[later]; o; o = o->next)
					used = MAX(used, used_by(o));
			end = MAX(end, used + begun);
		}
	}
	return MAX(end - c->m->act_bytes, 0);
}

/* Reduced in place: nothing else is needed; else flat gradients in slots and what becomes of them. */
static int64_t gradient_bytes(const Case *c, int64_t rank)
{
	Slots s = {0};
	if (c->world == 1)
		return gradients_behind(c);
	int64_t ranks = ranks_of(c), reduced = 0;
	bool in_place = is_split(c) ? ranks == 1 : c->strategy != STRATEGY_SHARDED_DDP;
	for (int section = 0; section < SEC_EVAL; section++) {
		IR_FOR_OPS(c->m, (SectionKind)section, op) {
			if (op->kind != OP_ZERO_GAPS)
				continue;
			slots_add(&s, in_place ? -1 : (int)attr_get_int(op->attrs, "slot", -1), whole(op->unit, ranks, true));
			if (!in_place && updates(c, op->unit, rank))
				reduced += shards(op->unit, ranks, true);
		}
	}
	return slots_sum(&s) + reduced;
}

static int64_t member(const json_t *object, const char *key)
{
	const json_t *v = json_object_get(object, key);
	UNIT_CHECK(json_is_integer(v), key);
	return json_integer_value(v);
}

static void same(const Case *c, const char *what, int64_t got, int64_t want)
{
	Arena *a = arena_new();
	UNIT_CHECK(got == want, arena_printf(a, "%s, %lld ranks in groups of %lld: %s is %lld, should be %lld",
		strategy_info[c->strategy].text, (long long)c->world, (long long)ranks_of(c), what, (long long)got,
		(long long)want));
	arena_free(a);
}

static int64_t check_memory_of(const Case *c, int64_t rank, const json_t *memory)
{
	int64_t params = 0, states = 0, world = c->world;
	for (int i = 0; i < c->m->n_units; i++) {
		const Unit *u = c->m->units[i];
		params += shards(u, ranks_of(c), false);
		states += updates(c, u, rank) ? STATES * shards(u, ranks_of(c), true) : 0;
	}
	int64_t gathered = gathered_bytes(c), gradients = gradient_bytes(c, rank), comm = layout_comm_bytes(world, 1);
	int64_t total = params + gathered + gradients + states + comm + c->m->state_bytes + c->m->input_bytes
		+ c->m->act_bytes + c->m->work_bytes;
	if (!memory)
		return total;
	same(c, "parameters", member(memory, "parameters"), params);
	same(c, "gathered", member(memory, "gathered"), gathered);
	same(c, "gradients", member(memory, "gradients"), gradients);
	same(c, "optimizer states", member(memory, "optimizer states"), states);
	same(c, "buffers", member(memory, "buffers"), c->m->state_bytes);
	same(c, "inputs", member(memory, "inputs"), c->m->input_bytes);
	same(c, "activations", member(memory, "activations"), c->m->act_bytes);
	same(c, "workspace", member(memory, "workspace"), c->m->work_bytes);
	same(c, "communication", member(memory, "communication"), comm);
	same(c, "total", member(memory, "total"), total);
	return total;
}

/* The plan is of the rank that needs most. */
static void check_memory(const Case *c)
{
	int64_t rank = member(c->plan, "rank");
	int64_t total = check_memory_of(c, rank, json_object_get(c->plan, "memory"));
	CU_ASSERT(rank >= 0 && rank < c->world);
	for (int64_t r = 0; r < c->world; r++)
		CU_ASSERT(check_memory_of(c, r, NULL) <= total);
}

/* ---- collectives ---- */

static int64_t of_kind(const Case *c, const char *program, const char *kind, const char *key)
{
	const json_t *sums = json_object_get(json_object_get(c->plan, program), "sums");
	const json_t *sum = json_object_get(sums, kind);
	return sum ? member(sum, key) : 0;
}

/* Elements of an all_reduced range that this member sums up. */
static int64_t piece(int64_t n, int64_t members, int64_t me)
{
	int64_t each = in_64s(n, members), left = n - me * each;
	return left < 0 ? 0 : MIN(each, left);
}

/* Bytes that a rank receives for the gradient of a unit, by the strategy's own collective. */
static int64_t reduced_bytes(const Case *c, const Unit *u, int64_t rank)
{
	int64_t n = in_64s(u->flat[0].numel, 1), mine = piece(n, c->world, rank);
	if (is_split(c))
		return (ranks_of(c) - 1) * shards(u, ranks_of(c), true);
	bool keeps = c->strategy != STRATEGY_SHARDED_DDP || u->owner == rank;
	return 4 * ((c->world - 1) * mine + (keeps ? n - mine : 0));
}

static int64_t across_bytes(const Case *c, const Unit *u, int64_t rank)
{
	int64_t groups = c->world / c->size, n = in_64s(u->flat[0].numel, c->size), mine = piece(n, groups, rank / c->size);
	return 4 * ((groups - 1) * mine + n - mine);
}

typedef struct Expected { int64_t gathers, gathered, evals, evaluated, reduces, reduced, across, broadcast; } Expected;

static Expected expected(const Case *c, int64_t rank)
{
	Expected e = {0};
	for (int i = 0; i < c->m->n_units; i++) {
		const Unit *u = c->m->units[i];
		/* nothing is gathered between the forward of the last two blocks and their backward */
		bool block = strcmp(u->name, "root") && i < c->m->n_units - 3;
		int64_t bytes = (ranks_of(c) - 1) * shards(u, ranks_of(c), false);
		int64_t gathers = !is_split(c) ? 0 : block && c->strategy != STRATEGY_SHARD_GRAD_OP ? 2 : 1;
		e.gathers += gathers;
		e.gathered += gathers * bytes;
		e.evals += is_split(c);
		e.evaluated += is_split(c) ? bytes : 0;
		if (!u->flat[0].trainable)
			continue;
		e.reduces++;
		e.reduced += reduced_bytes(c, u, rank);
		e.across += c->strategy == STRATEGY_HYBRID_SHARD ? across_bytes(c, u, rank) : 0;
		e.broadcast += c->world == 1 || u->owner == rank ? 0 : 4 * in_64s(u->flat[0].numel, 1);
	}
	return e;
}

static void check_collectives(const Case *c)
{
	static const char *const reduce[STRATEGY_COUNT] = {"reduce_scatter", "reduce_scatter", "reduce_scatter",
		"all_reduce", "all_reduce", "reduce"};
	bool owned = strategy_info[c->strategy].owned, hybrid = c->strategy == STRATEGY_HYBRID_SHARD;
	Expected e = expected(c, member(c->plan, "rank"));
	const char *kind = reduce[c->strategy];
	same(c, "gathers", of_kind(c, "step", "all_gather", "count"), e.gathers);
	same(c, "bytes of gathers", of_kind(c, "step", "all_gather", "bytes"), e.gathered);
	same(c, "gathers of an evaluation", of_kind(c, "eval", "all_gather", "count"), e.evals);
	same(c, "bytes of an evaluation", of_kind(c, "eval", "all_gather", "bytes"), e.evaluated);
	same(c, kind, of_kind(c, "step", kind, "count"), e.reduces);
	same(c, "bytes of reduces", of_kind(c, "step", kind, "bytes"), e.reduced);
	same(c, "all_reduce_shards", of_kind(c, "step", "all_reduce_shards", "count"), hybrid ? e.reduces : 0);
	same(c, "bytes across groups", of_kind(c, "step", "all_reduce_shards", "bytes"), e.across);
	same(c, "broadcasts", of_kind(c, "step", "broadcast_flat", "count"), owned ? e.reduces : 0);
	same(c, "bytes of broadcasts", of_kind(c, "step", "broadcast_flat", "bytes"), owned ? e.broadcast : 0);
	same(c, "scalars", of_kind(c, "step", "all_reduce_scalars", "count"), 1);
	int64_t all = e.gathers + e.reduces * (1 + hybrid + owned) + 1;
	same(c, "collectives", (int64_t)json_array_size(json_object_get(json_object_get(c->plan, "step"), "collectives")),
		all);
}

/* Parameters and padding of the table fill the flats. */
static void check_units(const Case *c)
{
	const json_t *units = json_object_get(c->plan, "units");
	int64_t elements = 0;
	same(c, "units", (int64_t)json_array_size(units), c->m->n_units);
	for (int i = 0; i < c->m->n_units; i++) {
		const json_t *u = json_array_get(units, (size_t)i);
		CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(u, "name")), c->m->units[i]->name);
		same(c, "elements and padding", member(u, "elements") + member(u, "padding"),
			whole(c->m->units[i], ranks_of(c), false) / 4);
		same(c, "bytes at rest", member(u, "bytes_per_rank"), shards(c->m->units[i], ranks_of(c), false));
		CU_ASSERT_STRING_NOT_EQUAL(json_string_value(json_object_get(u, "first_use")), "");
		elements += member(u, "elements");
	}
	same(c, "elements", elements, WIDTH + BLOCKS * (WIDTH * WIDTH + WIDTH) + WIDTH * CLASSES + CLASSES);
}

static void check(Strategy strategy, int64_t world, int64_t size)
{
	Case c = {.strategy = strategy, .world = world, .size = size};
	bool ok = plan_case(&c);
	UNIT_CHECK(ok, strategy_info[strategy].text);
	if (ok) {
		check_units(&c);
		check_memory(&c);
		check_collectives(&c);
	}
	end_case(&c);
}

static void closed_forms(void)
{
	static const int64_t worlds[] = {1, 2, 3, 4, 5, 8};
	for (int s = 0; s < STRATEGY_COUNT; s++) {
		for (int i = 0; i < COUNT_OF(worlds); i++) {
			if (s != STRATEGY_HYBRID_SHARD)
				check((Strategy)s, worlds[i], 0);
			for (int64_t size = 1; s == STRATEGY_HYBRID_SHARD && size <= worlds[i]; size++)
				if (worlds[i] % size == 0)
					check((Strategy)s, worlds[i], size);
		}
	}
}

void suite_plan(void)
{
	CU_pSuite s = CU_add_suite("plan", NULL, NULL);
	CU_add_test(s, "closed forms of every strategy", closed_forms);
}
