/* tests/unit/test_ckpt.c: how shardc ckpt cuts tensors: every element is written once, by a rank that holds it, and
 * impossible layouts are refused.  Also tests names of states, that files which could not be read back are not written,
 * and that a written model appears with its data or not at all. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/cut.h"
#include "ckpt/output.h"
#include "ckpt/states.h"
#include "frontend/onnx_write.h"
#include "tests/unit/onnx_model.h"
#include "tests/unit/unit.h"

enum { MAX_WORLD = 5, FLAT = 1300 };

/* Of a flat of FLAT elements, with gaps between; the last one ends it. */
static const struct { const char *name; int64_t at, numel; } params[] = {
	{"a", 0, 1}, {"b", 64, 63}, {"none", 128, 0}, {"c", 128, 700}, {"d", 832, 64}, {"e", 896, FLAT - 896},
};

static Cut *read_cut(Arena *a, Strategy s, int owner, int64_t ranks, int64_t shard_size)
{
	Diag d = {.out = stderr};
	char *text = arena_printf(a, "{\"ranks\": %d, \"shard_size\": %d, \"units\": [{\"name\": \"u\", \"strategy\": "
		"\"%s\", \"owner\": %d, \"flats\": [{\"dtype\": \"f32\", \"numel\": %d, \"trainable\": true, \"params\": [",
		(int)ranks, (int)shard_size, strategy_info[s].text, owner, (int)FLAT);
	for (int i = 0; i < COUNT_OF(params); i++)
		text = arena_printf(a, "%s%s[\"%s\", %d]", text, i ? ", " : "", params[i].name, (int)params[i].at);
	json_t *layout = json_loads(arena_printf(a, "%s]}]}]}", text), 0, NULL);
	Cut *c = cut_read(layout, a, "test", &d);
	json_decref(layout);
	CU_ASSERT_PTR_NOT_NULL_FATAL(c);
	return c;
}

/* How often each element of a tensor is written; all of them by ranks that hold it, as base/layout.h says. */
static bool once(const Cut *c, const LayoutUnit *held, const CutPlace *place, int64_t numel, int64_t world,
	int64_t shard_size)
{
	int count[FLAT] = {0};
	bool ok = true;
	for (int64_t r = 0; r < world; r++) {
		LayoutRank who = {r, world, shard_size};
		LayoutRange part = cut_tensor(c, place, numel, &who);
		ok = ok && part.begin >= 0 && part.n >= 0 && part.begin + part.n <= numel;
		for (int64_t i = part.begin; ok && i < part.begin + part.n; i++) {
			LayoutRange has = held ? layout_range(held, place->flat, &who) : (LayoutRange){0, FLAT};
			int64_t at = held ? place->at + i : 0;
			ok = at >= has.begin && at < has.begin + has.n && (!held || layout_counts(held, &who));
			count[i]++;
		}
	}
	for (int64_t i = 0; i < numel; i++)
		ok = ok && count[i] == 1;
	return ok;
}

static void test_every_element_once(void)
{
	for (int s = 0; s < STRATEGY_COUNT; s++)
		for (int64_t world = 1; world <= MAX_WORLD; world++)
			for (int64_t groups = 1; groups <= world; groups++)
				for (int owner = 0; owner < world && world % groups == 0; owner++) {
					Arena *a = arena_new();
					Cut *c = read_cut(a, (Strategy)s, owner, world, world / groups);
					for (int i = 0; i < COUNT_OF(params); i++) {
						const CutPlace *p = map_get(c->by_param, params[i].name);
						CU_ASSERT_PTR_NOT_NULL_FATAL(p);
						UNIT_CHECK(once(c, &c->unit->layout, p, params[i].numel, world, world / groups),
							arena_printf(a, "%s, %d ranks, %d groups, owner %d: \"%s\"", strategy_info[s].text,
							(int)world, (int)groups, owner, params[i].name));
					}
					arena_free(a);
				}
}

/* Flats of kind local are cut where the ranks' shards are, without padding. */
static void test_flats(void)
{
	Arena *a = arena_new();
	Cut *c = read_cut(a, STRATEGY_FULL_SHARD, -1, 1, 1);
	for (int64_t world = 1; world <= MAX_WORLD; world++)
		for (int64_t r = 0; r < world; r++) {
			int64_t shard = layout_shard_numel(FLAT, world);
			LayoutRange part = cut_flat(c->unit, 0, &(LayoutRank){r, world, world});
			CU_ASSERT(part.n == MAX(MIN(shard, FLAT - r * shard), 0) && (!part.n || part.begin == r * shard));
		}
	arena_free(a);
}

/* Owners at another number of ranks; tensors in no unit; layouts without units. */
static void test_unknown(void)
{
	static const int64_t sizes[] = {0, 1, 63, 64, 65, 700, FLAT};
	Arena *a = arena_new();
	Cut *owned = read_cut(a, STRATEGY_OSS, 3, 4, 4), *bare = NEW(a, Cut);
	CU_ASSERT(!cut_has_unknown_owner(owned));
	cut_forget_owners(owned);
	CU_ASSERT(cut_has_unknown_owner(owned) && !cut_has_groups(owned));
	for (int64_t world = 1; world <= MAX_WORLD; world++) {
		LayoutUnit even = owned->unit->layout;
		even.strategy = STRATEGY_FULL_SHARD;
		for (int i = 0; i < COUNT_OF(params); i++)
			CU_ASSERT(once(owned, &even, map_get(owned->by_param, params[i].name), params[i].numel, world, world));
		for (int i = 0; i < COUNT_OF(sizes); i++) {
			LayoutRange first = cut_tensor(owned, NULL, sizes[i], &(LayoutRank){0, world, world});
			CU_ASSERT(first.n == sizes[i] && once(owned, NULL, NULL, sizes[i], world, world));
			first = cut_tensor(bare, NULL, sizes[i], &(LayoutRank){0, world, world});
			CU_ASSERT(first.n == MIN(layout_shard_numel(sizes[i], world), sizes[i]));
			CU_ASSERT(once(bare, NULL, NULL, sizes[i], world, world));
		}
	}
	arena_free(a);
}

static void test_state_names(void)
{
	static const struct { const char *name; StateForm form; int64_t index; const char *param, *state; } names[] = {
		{"fc.weight.exp_avg", STATE_NAMED, 0, "fc.weight", "exp_avg"},
		{"state.12.step", STATE_NUMBERED, 12, NULL, "step"}, {"state.0.sum", STATE_NUMBERED, 0, NULL, "sum"},
		{"state.00.sum", STATE_NAMED, 0, "state.00", "sum"}, {"state.1.2.sum", STATE_NAMED, 0, "state.1.2", "sum"},
		{"state.x.sum", STATE_NAMED, 0, "state.x", "sum"}, {"sum", STATE_NONE, 0, NULL, NULL},
		{"state.1234567890.sum", STATE_NAMED, 0, "state.1234567890", "sum"}, {".sum", STATE_NONE, 0, NULL, NULL},
		{"w.", STATE_NONE, 0, NULL, NULL},
	};
	Arena *a = arena_new();
	for (int i = 0; i < COUNT_OF(names); i++) {
		StateName k = state_name(names[i].name, a);
		UNIT_CHECK(k.form == names[i].form && k.index == names[i].index && !k.param == !names[i].param &&
			!k.state == !names[i].state && (!k.param || !strcmp(k.param, names[i].param)) &&
			(!k.state || !strcmp(k.state, names[i].state)), names[i].name);
	}
	arena_free(a);
}

/* Whoever plans it: a file of which one tensor could not be read back is not begun. */
static void test_planned_twice(void)
{
	Arena *a = arena_new();
	Diag d = {.out = fopen("/dev/null", "w")};
	OutputFile *f = output_file(a, "never");
	output_tensor(a, f, "w", DT_F32, 1, &(int64_t){3});
	output_tensor(a, f, "v", DT_F32, 1, &(int64_t){3});
	CU_ASSERT(!f->twice);
	output_tensor(a, f, "w", DT_F32, 1, &(int64_t){4});
	CU_ASSERT(!output_write_file(f, "build/never.safetensors", &d) && d.errors == 1);
	CU_ASSERT(!output_write_folder(&f, 1, NULL, 0, "build/never", &d) && d.errors == 2);
	CU_ASSERT(access("build/never.safetensors", F_OK) && access("build/never", F_OK));
	fclose(d.out);
	arena_free(a);
}

static void refuse(const char *unit)
{
	Arena *a = arena_new();
	Diag d = {.out = fopen("/dev/null", "w")};
	json_t *layout = json_loads(arena_printf(a, "{\"ranks\": 2, \"units\": [%s]}", unit), 0, NULL);
	CU_ASSERT_PTR_NOT_NULL_FATAL(layout);
	UNIT_CHECK(!cut_read(layout, a, "test", &d) && d.errors == 1, unit);
	json_decref(layout);
	fclose(d.out);
	arena_free(a);
}

static void test_bad_layouts(void)
{
	static const char *const flats[] = {
		"{\"dtype\": \"f32\", \"numel\": 9, \"params\": [[\"a\", 10]]}",
		"{\"dtype\": \"f32\", \"numel\": 9, \"params\": [[\"a\", -1]]}",
		"{\"dtype\": \"f32\", \"numel\": 9, \"params\": [[\"a\", 0], [\"a\", 4]]}",
		"{\"dtype\": \"f32\", \"numel\": 9, \"params\": [[0, \"a\"]]}",
		"{\"dtype\": \"f31\", \"numel\": 9, \"params\": []}", "{\"dtype\": \"f32\", \"numel\": -1, \"params\": []}",
		"{\"dtype\": \"f32\", \"params\": []}", "{\"dtype\": \"f32\", \"numel\": 9}", "7",
	};
	Arena *a = arena_new();
	for (int i = 0; i < COUNT_OF(flats); i++)
		refuse(arena_printf(a, "{\"name\": \"u\", \"strategy\": \"full_shard\", \"flats\": [%s]}", flats[i]));
	refuse("{\"name\": \"u\", \"strategy\": \"half_shard\", \"flats\": []}");
	refuse("{\"name\": \"u\", \"strategy\": \"oss\", \"owner\": 2, \"flats\": []}");
	refuse("{\"strategy\": \"oss\", \"flats\": []}");
	refuse("{\"name\": \"u\", \"strategy\": \"oss\"}");
	refuse("{\"name\": \"u\", \"strategy\": \"oss\", \"flats\": []}, {\"name\": \"u\", \"strategy\": \"oss\", "
		"\"flats\": []}");
	refuse("[]");
	arena_free(a);
}

/* ---- models that are written ---- */

static void read_ones(void *context, const Symbol *s, DType dtype, int64_t first, int64_t n, void *out)
{
	(void)context;
	(void)s;
	(void)first;
	for (int64_t i = 0; i < n && dtype == DT_F32; i++)
		((float *)out)[i] = 1;
}

/* The model cannot take its name, so its data, which has taken its own, goes again. */
static void test_model_and_data(void)
{
	static const float x[] = {1, 2, 3};
	OnnxText *text = model_new();
	model_input(text, "x", 1, "4,32");
	model_floats(text, "w", "32,32", COUNT_OF(x), x);
	model_op(text, "n", "MatMul", "x,w", "y");
	model_output(text, "y");
	Loaded l = load_model(text, NULL);
	CU_ASSERT_PTR_NOT_NULL_FATAL(l.m);
	Arena *a = arena_new();
	FrontendOptions none = {0};
	Diag d = {.out = fopen("/dev/null", "w")};
	const char *dir = model_folder(), *model = arena_printf(a, "%s/model.onnx", dir);
	const char *out = arena_printf(a, "%s/out.onnx", dir), *data = arena_printf(a, "%s.data", out);
	OnnxWriter *w = onnx_writer_open(model, &none, &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(w);
	bool input;
	CU_ASSERT(!mkdir(out, 0777));
	CU_ASSERT(!onnx_writer_save(w, out, ONNX_STORE_EXTERNAL, read_ones, NULL, &input, &d) && !input);
	CU_ASSERT(access(data, F_OK) && !rmdir(out)); /* it is as it was, and empty */
	CU_ASSERT(onnx_writer_save(w, out, ONNX_STORE_EXTERNAL, read_ones, NULL, &input, &d));
	CU_ASSERT(!unlink(out) && !unlink(data));
	onnx_writer_close(w);
	fclose(d.out);
	loaded_free(&l);
	arena_free(a);
}

void suite_ckpt(void)
{
	CU_pSuite s = CU_add_suite("ckpt", NULL, NULL);
	CU_add_test(s, "every element is cut once, by a rank that holds it", test_every_element_once);
	CU_add_test(s, "flats are cut where shards are", test_flats);
	CU_add_test(s, "owners and units that nobody knows", test_unknown);
	CU_add_test(s, "layouts that cannot be are refused", test_bad_layouts);
	CU_add_test(s, "names of states", test_state_names);
	CU_add_test(s, "a file with two tensors of one name is not written", test_planned_twice);
	CU_add_test(s, "a model is written with its data or not at all", test_model_and_data);
}
