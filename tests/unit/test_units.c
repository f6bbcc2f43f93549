/* tests/unit/test_units.c: units partition the parameters, owners follow the greedy rule, buckets their limit.
 *
 * Random models of nested modules, tied parameters and frozen ones go through every policy; owners are compared with
 * the rule, written down as plainly as possible. */
#include "passes/shard/wrap.h"
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

enum { MODELS = 150, MAX_PARAMS = 40 };

static uint64_t next_random(uint64_t *seed)
{
	*seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return *seed >> 33;
}

static int roll(uint64_t *seed, int n)
{
	return (int)(next_random(seed) % (uint64_t)n);
}

/* ---- owners ---- */

static Module *module_of(const int64_t *numel, const bool *trainable, int n, Groups *groups, Arena *a)
{
	Module *m = ir_module_new("m");
	Group g = {.name = "root", .strategy = STRATEGY_OSS, .owner = -1};
	for (int i = 0; i < n; i++) {
		Type t = type_tensor(DT_F32, 1, &numel[i]);
		Symbol *s = ir_add_symbol(m, SYM_PARAM, arena_printf(a, "p%d", i), t);
		s->trainable = trainable ? trainable[i] : true;
		vec_push(a, &g.params, s);
	}
	vec_push(a, groups, g);
	return m;
}

static int owner_of(const Groups *groups, const Symbol *s)
{
	for (int g = 0; g < groups->n; g++)
		for (int i = 0; i < groups->at[g].params.n; i++)
			if (groups->at[g].params.at[i] == s)
				return groups->at[g].owner;
	return -1;
}

static void owners_are_greedy(void)
{
	uint64_t seed = 5;
	for (int round = 0; round < MODELS; round++) {
		Arena *a = arena_new();
		Groups groups = {0};
		int64_t numel[MAX_PARAMS], load[8] = {0};
		bool trainable[MAX_PARAMS];
		int n = 1 + roll(&seed, MAX_PARAMS), world = 1 + roll(&seed, 8);
		for (int i = 0; i < n; i++) {
			numel[i] = 1 + roll(&seed, 6); /* few values: many ties */
			trainable[i] = roll(&seed, 4);
		}
		Module *m = module_of(numel, trainable, n, &groups, a);
		owners_split(m, &groups, STRATEGY_OSS, world, a);
		for (int i = 0; i < n; i++) {
			int to = 0;
			for (int r = 0; r < world; r++)
				to = load[r] < load[to] ? r : to;
			load[to] += trainable[i] ? numel[i] : 1;
			CU_ASSERT_EQUAL(owner_of(&groups, m->symbols[i]), to);
		}
		for (int g = 0; g < groups.n; g++)
			for (int i = 1; i < groups.at[g].params.n; i++)
				CU_ASSERT(type_numel(&groups.at[g].params.at[i - 1]->type)
					<= type_numel(&groups.at[g].params.at[i]->type));
		ir_module_free(m);
		arena_free(a);
	}
}

/* Splits parameters of these sizes for one rank; the result as "p0+p2 p1": units, and what is in them. */
static const char *buckets_of(const int64_t *numel, const bool *trainable, int n, Arena *a)
{
	Groups groups = {0};
	Module *m = module_of(numel, trainable, n, &groups, a);
	char *text = arena_strdup(a, "");
	owners_split(m, &groups, STRATEGY_SHARDED_DDP, 1, a);
	for (int g = 0; g < groups.n; g++)
		for (int i = 0; i < groups.at[g].params.n; i++)
			text = arena_printf(a, "%s%s%s", text, i ? "+" : g ? " " : "", groups.at[g].params.at[i]->name);
	ir_module_free(m);
	return text;
}

static void buckets_are_strict(void)
{
	enum { LIMIT = 1 << 23 };
	Arena *a = arena_new();
	static const bool frozen_first[] = {false, true, true};
	/* the limit is never above the model: the last of a small model does not fit */
	CU_ASSERT_STRING_EQUAL(buckets_of((int64_t[]){3, 1, 2}, NULL, 3, a), "p1+p2 p0");
	CU_ASSERT_STRING_EQUAL(buckets_of((int64_t[]){7}, NULL, 1, a), "p0");
	/* 1 + (2^23 - 2) is below 2^23; 1 + (2^23 - 1) is not */
	CU_ASSERT_STRING_EQUAL(buckets_of((int64_t[]){LIMIT - 2, 1, LIMIT}, NULL, 3, a), "p1+p0 p2");
	CU_ASSERT_STRING_EQUAL(buckets_of((int64_t[]){LIMIT - 1, 1, LIMIT}, NULL, 3, a), "p1 p0 p2");
	/* nothing fits: no bucket, rather than an empty one */
	CU_ASSERT_STRING_EQUAL(buckets_of((int64_t[]){LIMIT + 1, LIMIT}, NULL, 2, a), "p1 p0");
	/* equal sizes keep their order; there is no second bucket */
	CU_ASSERT_STRING_EQUAL(buckets_of((int64_t[]){LIMIT / 2, LIMIT / 2, LIMIT / 2, 1}, NULL, 4, a), "p3+p0 p1 p2");
	/* what is frozen takes no room */
	CU_ASSERT_STRING_EQUAL(buckets_of((int64_t[]){100, 2, 3}, frozen_first, 3, a), "p1+p0 p2");
	arena_free(a);
}

/* ---- whole models ---- */

typedef struct Toy { Buf text; uint64_t seed; int n; } Toy;

/* A module path of up to 3 levels with few names, so that paths share prefixes. */
static const char *random_path(Toy *t, Arena *a)
{
	char *path = arena_strdup(a, "");
	int depth = roll(&t->seed, 4);
	for (int i = 0; i < depth; i++)
		path = arena_printf(a, "%s%s%c", path, i ? "." : "", 'a' + roll(&t->seed, 3));
	return path;
}

/* A chain of products with parameters; now and then a second module reads one of them too. */
static Module *random_model(Toy *t, Arena *a, Diag *d)
{
	Buf *b = &t->text, ops = {0}, updates = {0};
	t->n = 2 + roll(&t->seed, MAX_PARAMS - 2);
	buf_printf(b, "module \"m\" level=TRAIN batch=4 {\n  input \"x\" : f32[4,8] {batched=1}\n");
	buf_printf(&ops, "  forward {\n    %%x0 : f32[4,8] = input \"x\"\n");
	for (int i = 0; i < t->n; i++) {
		const char *path = random_path(t, a), *other = roll(&t->seed, 4) ? path : random_path(t, a);
		const char *name = arena_printf(a, "%s%sp%d", path, *path ? "." : "", i);
		bool trained = roll(&t->seed, 5);
		buf_printf(b, "  param \"%s\" : f32[8] {trainable=1}\n", name);
		buf_printf(&ops, "    %%p%d : f32[8] = param \"%s\"\n", i, name);
		buf_printf(&ops, "    %%y%d : f32[4,8] = mul %%x%d, %%p%d loc(\"m%d\":\"Mul\"@\"%s\")\n", i, i, i, i, path);
		buf_printf(&ops, "    %%x%d : f32[4,8] = add %%y%d, %%p%d loc(\"a%d\":\"Add\"@\"%s\")\n",
			i + 1, i, i, i, other);
		if (trained)
			buf_printf(&updates, "    update \"%s\" %%db\n", name);
	}
	buf_printf(b, "%s    %%loss : f32[] = reduce_sum %%x%d {axes=[0,1], keepdims=0}\n", ops.at, t->n);
	buf_printf(b, "    %%one : f32[] = const {value=[1.0]}\n    report_loss %%loss, %%one {mean=1}\n  }\n");
	buf_printf(b, "  backward {\n    %%db : f32[8] = reduce_sum %%x1 {axes=[0], keepdims=0}\n  }\n");
	buf_printf(b, "  update {\n    step_scalars\n%s  }\n}\n", updates.n ? updates.at : "");
	Module *m = ir_parse("random", b->at, d);
	buf_free(&ops);
	buf_free(&updates);
	buf_free(b);
	return m;
}

static void check_partition(const Module *m, const char *policy, bool owned)
{
	int held = 0, params = 0;
	for (int i = 0; i < m->n_symbols; i++)
		params += m->symbols[i]->kind == SYM_PARAM;
	for (int u = 0; u < m->n_units; u++) {
		const Unit *unit = m->units[u];
		held += unit->n_params;
		UNIT_CHECK(unit->n_params > 0, "an empty unit");
		UNIT_CHECK(unit->owner >= 0 ? owned : !owned, "owners where there should be none, or none");
		if (!owned && !strcmp(unit->name, "root"))
			UNIT_CHECK(u == m->n_units - 1, "root is not last");
		for (int i = 0; i < unit->n_params; i++)
			UNIT_CHECK(unit->params[i]->unit == unit, "a parameter in two units");
		for (int v = 0; v < u; v++)
			UNIT_CHECK(strcmp(m->units[v]->name, unit->name) != 0, "two units of a name");
	}
	UNIT_CHECK(held == params, policy);
}

/* A unit but the root holds at least n elements of the parameters that it could not leave to inner units. */
static void check_size(const Module *m, int64_t n)
{
	for (int u = 0; u < m->n_units; u++) {
		int64_t numel = 0;
		for (int i = 0; i < m->units[u]->n_params; i++)
			numel += type_numel(&m->units[u]->params[i]->type);
		UNIT_CHECK(numel >= n || !strcmp(m->units[u]->name, "root"), "a unit below its size");
	}
}

static void policies_partition(void)
{
	static const char *const policies[] = {"none", "each", "size:8", "size:24", "size:25", "scope:^a", "scope:b$",
		"block", "blocks:2", "blocks:1/3", "exec-order:1", "exec-order:100", "exec-order:1G"};
	static const Strategy strategies[] = {STRATEGY_FULL_SHARD, STRATEGY_OSS, STRATEGY_SHARDED_DDP, STRATEGY_NO_SHARD};
	Diag d = {.out = fopen("/dev/null", "w")};
	uint64_t seed = 11;
	for (int round = 0; round < MODELS; round++) {
		const char *wrap = policies[roll(&seed, COUNT_OF(policies))];
		Strategy s = strategies[roll(&seed, 4)];
		Arena *a = arena_new();
		Toy t = {.seed = seed + (uint64_t)round};
		Module *m = random_model(&t, a, &d);
		Options o = {.sharding = {.wrap = {{wrap}, 1}, .strategy = s, .world = 1 + roll(&seed, 5)}};
		bool owned = strategy_info[s].owned;
		CU_ASSERT_PTR_NOT_NULL_FATAL(m);
		bool ok = pass_units(m, &o, &d);
		UNIT_CHECK(ok || !strncmp(wrap, "scope", 5), wrap); /* may match nothing */
		if (ok)
			check_partition(m, wrap, owned);
		if (ok && !strncmp(wrap, "size:", 5) && !owned)
			check_size(m, atoi(wrap + 5));
		ir_module_free(m);
		arena_free(a);
	}
	fclose(d.out);
}

/* ---- particular models ---- */

static const char one_more[] = "  backward {\n    %db : f32[8] = reduce_sum %y {axes=[0], keepdims=0}\n  }\n"
	"  update {\n    step_scalars\n    update \"%N\" %db\n  }\n}\n";

/* A model with parameters `name`, read in module `at` and again in `again`, and "z.w". */
static Module *two_params(const char *name, const char *at, const char *again, Arena *a, Diag *d)
{
	char *update = arena_strdup(a, one_more), *hole = strstr(update, "%N");
	*hole = 0;
	const char *text = arena_printf(a, "module \"m\" level=TRAIN batch=4 {\n  input \"x\" : f32[4,8] {batched=1}\n"
		"  param \"%s\" : f32[8] {trainable=1}\n  param \"z.w\" : f32[8] {trainable=1}\n  forward {\n"
		"    %%x : f32[4,8] = input \"x\"\n    %%p : f32[8] = param \"%s\"\n    %%q : f32[8] = param \"z.w\"\n"
		"    %%s : f32[4,8] = mul %%x, %%p loc(\"m\":\"Mul\"@\"%s\")\n"
		"    %%t : f32[4,8] = mul %%s, %%q loc(\"n\":\"Mul\"@\"z\")\n"
		"    %%y : f32[4,8] = mul %%t, %%p loc(\"o\":\"Mul\"@\"%s\")\n"
		"    %%loss : f32[] = reduce_sum %%y {axes=[0,1], keepdims=0}\n    %%one : f32[] = const {value=[1.0]}\n"
		"    report_loss %%loss, %%one {mean=1}\n  }\n%s%s%s", name, name, at, again, update, name, hole + 2);
	return ir_parse("two", text, d);
}

static Unit *unit_of(const Module *m, const char *param)
{
	return ir_find_symbol(m, param)->unit;
}

static void hoisting_is_said(void)
{
	char *said = NULL;
	size_t n = 0;
	Arena *a = arena_new();
	Diag d = {.out = open_memstream(&said, &n), .verbose = true};
	Module *m = two_params("a.b.w", "a.b", "a.c.d", a, &d);
	Options o = {.sharding.wrap = {{"each", "scope:^a$"}, 2}};
	CU_ASSERT_PTR_NOT_NULL_FATAL(m);
	CU_ASSERT(pass_units(m, &o, &d));
	fclose(d.out);
	CU_ASSERT_STRING_EQUAL(unit_of(m, "a.b.w")->name, "a");
	CU_ASSERT_STRING_EQUAL(unit_of(m, "z.w")->name, "z");
	CU_ASSERT_PTR_NOT_NULL(strstr(said, "a.b.w: info: is used by modules \"a.b\" and \"a.c.d\"; it belongs to their "
		"lowest common unit, a"));
	free(said);
	ir_module_free(m);
	arena_free(a);
}

static void modules_named_like_ours(void)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	Module *m = two_params("root.w", "root", "root", a, &d);
	Options o = {.sharding.wrap = {{"scope:^root$"}, 1}};
	CU_ASSERT_PTR_NOT_NULL_FATAL(m);
	CU_ASSERT(pass_units(m, &o, &d));
	CU_ASSERT_STRING_EQUAL(unit_of(m, "root.w")->name, "root.1");
	CU_ASSERT_STRING_EQUAL(unit_of(m, "z.w")->name, "root");
	ir_module_free(m);
	arena_free(a);
}

static void names_may_be_deep(void)
{
	enum { DEPTH = 20000 };
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	char *name = arena_alloc(a, 2 * DEPTH + 2);
	for (int i = 0; i < DEPTH; i++)
		memcpy(name + (ptrdiff_t)2 * i, "a.", 2);
	name[2 * DEPTH] = 'w';
	Module *m = two_params(name, "", "", a, &d);
	Options o = {.sharding.wrap = {{"each"}, 1}};
	CU_ASSERT_PTR_NOT_NULL_FATAL(m);
	CU_ASSERT(pass_units(m, &o, &d));
	CU_ASSERT_EQUAL(m->n_units, 2);
	ir_module_free(m);
	arena_free(a);
}

void suite_units(void)
{
	CU_pSuite s = CU_add_suite("units", NULL, NULL);
	CU_add_test(s, "owners are greedy, ties to the lowest rank", owners_are_greedy);
	CU_add_test(s, "a bucket's fill stays strictly below its limit", buckets_are_strict);
	CU_add_test(s, "every policy partitions the parameters", policies_partition);
	CU_add_test(s, "a tied parameter is hoisted, and it is said", hoisting_is_said);
	CU_add_test(s, "modules may be named root", modules_named_like_ours);
	CU_add_test(s, "names may be deep", names_may_be_deep);
}
