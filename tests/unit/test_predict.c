/* tests/unit/test_predict.c: machine files, the work of ops, and steps that are played on streams, whose times are
 * known in closed form. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "passes/passes.h"
#include "predict/timeline.h"
#include "tests/unit/parsed.h"
#include "tests/unit/unit.h"

enum { BLOCKS = 4, WIDTH = 256 };

/* ---- machine files ---- */

static char path[] = "/tmp/test_machine_" "XX" "XX" "XX";

#define CPU "{\"name\": \"x\", \"device\": \"cpu\", "
#define NUMBERS "\"ranks_per_host\": [2, \"s\"], \"memory\": [1e9, \"s\"], \"memory_bandwidth\": [1e10, \"s\"], " \
	"\"flops.f32\": [1e11, \"s\"], \"flops.bf16\": [1e11, \"s\"], \"flops.f16\": [1e11, \"s\"], " \
	"\"special\": [1e9, \"s\"], \"efficiency.matmul\": [0.5, \"s\"], \"efficiency.conv\": [0.5, \"s\"], " \
	"\"efficiency.attention\": [0.5, \"s\"], \"efficiency.attention_grad\": [0.5, \"s\"], " \
	"\"latency.kernel\": [0, \"s\"], \"link.bandwidth\": [1e9, \"s\"], \"link.latency\": [0, \"s\"]"

#define ROW(layout, seconds) "{\"op\": \"relu\", \"layout\": \"" layout "\", \"seconds\": " seconds ", " \
	"\"flops\": 0, \"bytes\": 8, \"special\": 0}"
#define STEP(layout, collectives, ops) "{\"program\": \"a\", \"layout\": \"" layout "\", \"collectives\": " \
	collectives ", \"ops\": " ops ", \"rest\": 1.5}"
#define GATHER(ranks, bytes) "{\"kind\": \"all_gather\", \"ranks\": " ranks ", \"bytes\": " bytes ", \"seconds\": 1}"

static void write_file(const char *text)
{
	FILE *f = fopen(path, "w");
	fputs(text, f);
	fclose(f);
}

/* Reads it; what was said is in *said, to be freed. */
static Machine *read_text(const char *text, Arena *a, char **said)
{
	size_t n;
	Diag d = {.out = open_memstream(said, &n)};
	write_file(text);
	Machine *m = machine_read(path, a, &d);
	fclose(d.out);
	CU_ASSERT((m == NULL) == (d.errors > 0));
	return m;
}

/* What is wrong, and words of the message for it. */
static const struct { const char *text, *said; } wrong[] = {
	{"[]", "expected a JSON object"},
	{"{\"name\": \"x\", \"device\": \"tpu\", " NUMBERS "}", "$.device: error: expected \"cpu\" or \"cuda\""},
	{"{\"device\": \"cpu\", " NUMBERS "}", "$.name: error: expected the machine's name"},
	{"{\"name\": \"x\", \"device\": \"cpu\"}", "$.flops.bf16: error: is missing"},
	{CPU "\"hosts\": [0, \"s\"], " NUMBERS "}", "$.hosts: error: 0 is not between"},
	{CPU "\"hosts\": [-1, \"s\"], " NUMBERS "}", "-1 is not between"},
	{CPU "\"hosts\": [1.5, \"s\"], " NUMBERS "}", "1.5 is no whole number"},
	{CPU "\"hosts\": 1, " NUMBERS "}", "$.hosts: error: expected [number, \"source\"]"},
	{CPU "\"hosts\": [1, \"\"], " NUMBERS "}", "the source is empty"},
	{CPU "\"hosts\": [2, \"s\"], " NUMBERS "}", "$.network.bandwidth: error: is missing"},
	{CPU "\"flops.f23\": [1, \"s\"], " NUMBERS "}", "did you mean \"flops.f32\"?"},
	{CPU "\"processors\": [1, \"s\"], " NUMBERS "}", "have no such number"},
	{CPU "\"kernels\": [{\"op\": \"relu\"}], " NUMBERS "}",
		"$.kernels[0].seconds: error: is missing"},
	{CPU "\"kernels\": [1], " NUMBERS "}", "$.kernels[0]: error: expected an object"},
	{CPU "\"collectives\": [{\"kind\": \"all_sum\", \"ranks\": 2, \"bytes\": 1, "
		"\"seconds\": 1}], " NUMBERS "}", "$.collectives[0].kind: error: expected the name of a collective"},
	{CPU "\"kernels\": [" ROW("1x1", "1e300") "], " NUMBERS "}", "$.kernels[0].seconds: error: expected a number from"},
	{CPU "\"kernels\": [" ROW("99999999999x1", "1") "], " NUMBERS "}", "$.kernels[0].layout: error: expected \"RxT\""},
	{CPU "\"kernels\": [" ROW(" 1x1", "1") "], " NUMBERS "}", "$.kernels[0].layout: error: expected \"RxT\""},
	{CPU "\"kernels\": [" ROW("1x1", "1") ", " ROW("01x1", "2") "], " NUMBERS "}",
		"$.kernels[1]: error: this op is in an earlier row"},
	{CPU "\"collectives\": [" GATHER("2.5", "8") "], " NUMBERS "}", "$.collectives[0].ranks: error: 2.5 is no whole"},
	{CPU "\"collectives\": [" GATHER("2", "1e300") "], " NUMBERS "}", "$.collectives[0].bytes: error: expected a"},
	{CPU "\"collectives\": [" GATHER("2", "8") ", " GATHER("2", "8.0") "], " NUMBERS "}",
		"$.collectives[1]: error: this collective is in an earlier row"},
	{CPU "\"collectives\": [{\"kind\": \"all_gather\", \"comm\": \"nccl\", \"ranks\": 2, \"bytes\": 1, "
		"\"seconds\": 1}], " NUMBERS "}", "$.collectives[0].comm: error: expected how ranks talked: \"shm\" or"},
	{CPU "\"kernels\": [{\"op\": \"relu\", \"tf32\": true}], " NUMBERS "}",
		"$.kernels[0].tf32: error: products of CPUs do not round"},
	{CPU "\"steps\": [" STEP("2x1", "1", "0") "], " NUMBERS "}", "$.steps[0].ops: error: expected a"},
	{CPU "\"steps\": [" STEP("2x1", "1.5", "1") "], " NUMBERS "}",
		"$.steps[0].collectives: error: 1.5 is no whole number"},
	{CPU "\"steps\": [" STEP("2", "1", "1") "], " NUMBERS "}", "$.steps[0].layout: error: expected \"RxT\""},
	{CPU "\"steps\": [" STEP("2x1", "1", "1") ", " STEP("2x1", "2", "1") "], " NUMBERS "}",
		"$.steps[1]: error: this program is in an earlier row"},
	{CPU "\"steps\": 1.1, " NUMBERS "}", "$.steps: error: expected an array"},
	{"{\"name\": \"x\", \"device\": \"cuda\", \"steps\": [], " NUMBERS "}", "$.steps: error: is of CPUs"},
	{CPU "\"kernels\": {}, \"collectives\": null, " NUMBERS "}", "$.collectives: error: expected an array"},
};

static void bad_files(void)
{
	for (int i = 0; i < COUNT_OF(wrong); i++) {
		Arena *a = arena_new();
		char *said;
		Machine *m = read_text(wrong[i].text, a, &said);
		UNIT_CHECK(!m && strstr(said, wrong[i].said), wrong[i].said);
		free(said);
		arena_free(a);
	}
}

static void good_file(void)
{
	Arena *a = arena_new();
	char *said;
	Machine *m = read_text("{\"name\": \"x \\\"y\\\"\", \"device\": \"cpu\", \"kernels\": [{\"op\": \"relu f32[4] -> "
		"f32[4]\", \"layout\": \"2x1\", \"seconds\": 1e-3, \"flops\": 0, \"bytes\": 32, \"special\": 0}], "
		"\"collectives\": [{\"kind\": \"all_gather\", \"ranks\": 2, \"bytes\": 64, \"seconds\": 2e-3}], " NUMBERS
		"}", a, &said);
	free(said);
	CU_ASSERT_PTR_NOT_NULL_FATAL(m);
	CU_ASSERT_STRING_EQUAL(m->name, "x \"y\"");
	CU_ASSERT_EQUAL(m->n_kernels, 1);
	CU_ASSERT_EQUAL(m->n_collectives, 1);
	CU_ASSERT_EQUAL(m->kernel[0].layout.ranks, 2);
	CU_ASSERT_EQUAL(m->kernel[0].seconds, 1e-3);
	CU_ASSERT_EQUAL(m->collective[0].kind, RT_ALL_GATHER);
	CU_ASSERT_EQUAL(m->of[MACHINE_HOSTS], 1);
	CU_ASSERT_EQUAL(m->of[MACHINE_FLOPS_BF16], 1e11);
	CU_ASSERT_STRING_EQUAL(m->source[MACHINE_FLOPS_BF16], "s");
	CU_ASSERT_PTR_EQUAL(map_get(m->by_op, "2x1 relu f32[4] -> f32[4]"), m->kernel);
	arena_free(a);
}

/* A file takes what it leaves out from the one that it is like, but for the name and measured rows. */
static void like_another(void)
{
	Arena *a = arena_new();
	char *said;
	const char *base = arena_printf(a, "%s.base", path), *name = strrchr(base, '/') + 1;
	read_text("{\"name\": \"base\", \"device\": \"cpu\", \"collectives\": [" GATHER("2", "8") "], " NUMBERS "}", a,
		&said);
	free(said);
	CU_ASSERT_EQUAL(rename(path, base), 0);
	const char *text = "{%s\"like\": \"%s\", \"memory\": [2e9, \"t\"]}";
	Machine *m = read_text(arena_printf(a, text, "\"name\": \"y\", ", name), a, &said);
	free(said);
	CU_ASSERT_PTR_NOT_NULL_FATAL(m);
	CU_ASSERT_STRING_EQUAL(m->name, "y");
	CU_ASSERT_EQUAL(m->of[MACHINE_MEMORY], 2e9);
	CU_ASSERT_STRING_EQUAL(m->source[MACHINE_MEMORY], "t");
	CU_ASSERT_EQUAL(m->of[MACHINE_FLOPS_F32], 1e11);
	CU_ASSERT_EQUAL(m->n_collectives, 0);
	const struct { const char *text, *said; } bad[] = {
		{arena_printf(a, text, "", name), "$.name: error: expected the machine's name"},
		{arena_printf(a, text, "", "none.json"), "none.json"},
		{arena_printf(a, text, "", "../none.json"), "$.like: error: expected the name of another machine file"},
		{arena_printf(a, text, "", strrchr(path, '/') + 1), ": one of these must have all numbers itself"},
		{"{\"like\": 3}", "$.like: error: expected the name of another"}};
	for (int i = 0; i < COUNT_OF(bad); i++) {
		UNIT_CHECK(!read_text(bad[i].text, a, &said) && strstr(said, bad[i].said), bad[i].said);
		free(said);
	}
	/* What is wrong is said of the file that has it. */
	write_file("{\"memory\": [-1, \"t\"], \"special\": [-1, \"t\"]}");
	CU_ASSERT_EQUAL(rename(path, base), 0);
	CU_ASSERT_PTR_NULL(read_text(arena_printf(a, "{\"like\": \"%s\", \"special\": [-2, \"t\"]}", name), a, &said));
	CU_ASSERT_PTR_NOT_NULL(strstr(said, ".base: $.memory: error: -1 is not"));
	CU_ASSERT_PTR_NULL(strstr(said, ".base: $.special"));
	CU_ASSERT_PTR_NOT_NULL(strstr(said, ": $.special: error: -2 is not"));
	free(said);
	unlink(base);
	arena_free(a);
}

/* ---- the work of ops ---- */

static const char work_text[] =
	"module \"m\" level=MODEL batch=2 {\n"
	"  input \"a\" : f32[2,3,5] {batched=1}\n  input \"b\" : f32[5,7]\n  input \"x\" : f32[2,4,6,6] {batched=1}\n"
	"  input \"w\" : f32[8,2,3,3]\n  input \"q\" : f32[2,4,16,8] {batched=1}\n"
	"  input \"h\" : bf16[2,4,16,8] {batched=1}\n  input \"keys\" : bool[2,1,1,16] {batched=1}\n"
	"  forward {\n"
	"    %a : f32[2,3,5] = input \"a\"\n    %b : f32[5,7] = input \"b\"\n    %x : f32[2,4,6,6] = input \"x\"\n"
	"    %w : f32[8,2,3,3] = input \"w\"\n    %q : f32[2,4,16,8] = input \"q\"\n"
	"    %h : bf16[2,4,16,8] = input \"h\"\n    %keys : bool[2,1,1,16] = input \"keys\"\n"
	"    %product : f32[2,3,7] = matmul %a, %b {ta=0, tb=0}\n"
	"    %conv : f32[2,8,4,4] = conv %x, %w {dilations=[1, 1], group=2, layout=0, pads=[0, 0, 0, 0], strides=[1, 1]}\n"
	"    %all : f32[2,4,16,8], %l : f32[2,4,16] = attention %q, %q, %q {empty=\"nan\", layout=0, scale=1.0}\n"
	"    %causal : f32[2,4,16,8], %lc : f32[2,4,16] = attention %q, %q, %q {empty=\"nan\", layout=0, right=0, "
	"scale=1.0}\n"
	"    %library : bf16[2,4,16,8], %ll : f32[2,4,16] = attention %h, %h, %h {empty=\"nan\", layout=0, library=1, "
	"right=0, scale=1.0}\n"
	"    %masked : bf16[2,4,16,8], %lm : f32[2,4,16] = attention %h, %h, %h, %keys {empty=\"nan\", layout=0, "
	"library=1, scale=1.0}\n"
	"    %near : f32[2,4,16,8], %ln : f32[2,4,16] = attention %q, %q, %q {empty=\"nan\", layout=0, left=1, right=1, "
	"scale=1.0}\n"
	"    %e : f32[5,7] = exp %b\n    %r : f32[5,7] = relu %b\n    %t : f32[5,3,2] = transpose %a {perm=[2, 1, 0]}\n"
	"  }\n}\n";

static Work work_named(const Module *m, const char *name)
{
	return cost_of(value_named(m, name)->op, &(LayoutRank){.world = 1, .shard_size = 1});
}

static void work_of_ops(void)
{
	Module *m = parsed(work_text);
	double pairs = 2 * 4 * 16 * 16, width = 8;
	CU_ASSERT_EQUAL(work_named(m, "product").flops, 2.0 * 2 * 3 * 5 * 7);
	CU_ASSERT_EQUAL(work_named(m, "product").bytes, 4.0 * (2 * 3 * 5 + 5 * 7 + 2 * 3 * 7));
	CU_ASSERT_EQUAL(work_named(m, "conv").flops, 2.0 * (2 * 8 * 4 * 4) * (2 * 3 * 3));
	CU_ASSERT_EQUAL(work_named(m, "all").flops, 2 * 2 * pairs * width);
	CU_ASSERT_DOUBLE_EQUAL(work_named(m, "causal").flops, 2 * 2 * pairs * width * 17 / 32, 1e-6);
	CU_ASSERT_DOUBLE_EQUAL(work_named(m, "near").flops, 2 * 2 * pairs * width * (3 * 16 - 2) / 256, 1e-6);
	CU_ASSERT_EQUAL(work_named(m, "all").keys, 16);
	CU_ASSERT_DOUBLE_EQUAL(work_named(m, "causal").keys, 8.5, 1e-9);
	double bias = 2 * 16 * 4, mask = 2 * 16; /* written and read; the mask is read, too */
	CU_ASSERT_EQUAL(work_named(m, "masked").bytes, work_named(m, "library").bytes + mask + 2 * bias);
	CU_ASSERT_EQUAL(work_named(m, "masked").calls, 4);
	CU_ASSERT_EQUAL(work_named(m, "e").special, 35);
	CU_ASSERT_EQUAL(work_named(m, "r").special, 0);
	CU_ASSERT_EQUAL(work_named(m, "t").bytes, 4.0 * 2 * 30);
	CU_ASSERT_EQUAL(work_named(m, "b").class, COST_NONE);
	ir_module_free(m);
}

/* ---- steps ---- */

/* Blocks, each a unit, equal but for the width of the last one's result. */
static Module *model(int last, Diag *d)
{
	Buf b = {0};
	buf_printf(&b, "module \"m\" level=MODEL batch=4 {\n  input \"x\" : f32[4,%d] {batched=1}\n", WIDTH);
	for (int i = 0; i < BLOCKS; i++)
		buf_printf(&b, "  param \"h.%d.fc.weight\" : f32[%d,%d] {trainable=1}\n", i, WIDTH,
			i + 1 < BLOCKS ? WIDTH : last);
	buf_printf(&b, "  output \"y\" : f32[4,%d]\n  forward {\n    %%x0 : f32[4,%d] = input \"x\"\n", last, WIDTH);
	for (int i = 0; i < BLOCKS; i++) {
		int width = i + 1 < BLOCKS ? WIDTH : last;
		buf_printf(&b, "    %%w%d : f32[%d,%d] = param \"h.%d.fc.weight\"\n", i, WIDTH, width, i);
		buf_printf(&b, "    %%x%d : f32[4,%d] = matmul %%x%d, %%w%d {ta=0, tb=0} loc(\"n%d\":\"Gemm\"@\"h.%d.fc\")\n",
			i + 1, width, i, i, i, i);
	}
	buf_printf(&b, "    output \"y\" %%x%d\n  }\n}\n", BLOCKS);
	Module *m = ir_parse("m.ir", b.at, d);
	buf_free(&b);
	return m;
}

/* A machine on which only collectives take time, but for what a test sets. */
static Machine ideal(bool cuda, Arena *a)
{
	Machine m = {.name = "ideal", .file = "ideal.json", .cuda = cuda, .by_op = map_new(a)};
	for (int i = 0; i < MACHINE_NUMBERS; i++)
		m.of[i] = 1e18;
	m.of[MACHINE_HOSTS] = 1;
	m.of[MACHINE_RANKS] = 2;
	m.of[MACHINE_PROCESSORS] = 1;
	for (int i = MACHINE_EFF_MATMUL; i <= MACHINE_EFF_ATTENTION_GRAD; i++)
		m.of[i] = 1;
	m.of[MACHINE_EFF_ATTENTION_LIBRARY] = 0;
	m.of[MACHINE_KERNEL] = m.of[MACHINE_TILE] = 0;
	m.of[MACHINE_LINK_LATENCY] = m.of[MACHINE_NETWORK_LATENCY] = 0;
	m.of[MACHINE_CONTENTION] = m.of[MACHINE_CONTENTION_COPY] = 1;
	return m;
}

typedef struct Step { Module *m; LayoutModel layout; Plan plan; Arena *a; } Step;

/* last: the width of the last block's result. */
static Step step_with(const ShardingOptions *sharding, int last, int64_t hosts)
{
	Diag d = {.out = stderr};
	Options o = {.graph = {.loss = "mse", .optimizer = "sgd"}, .sharding = *sharding};
	PipelineView none = {.out = stdout};
	Step s = {.m = model(last, &d), .a = arena_new()};
	o.sharding.wrap = (OptionList){{"each"}, 1};
	if (!s.m || !pipeline_run(s.m, &o, &none, NULL, &d))
		UNIT_END("the model does not compile");
	s.layout = memory_layout(s.m, s.a);
	s.layout.hosts = (int)hosts;
	s.plan = (Plan){.layout = &s.layout, .who = memory_rank(&o)};
	return s;
}

/* group: ranks that share parameters; 0: all. */
static Step step_in_groups(int64_t world, int64_t group, const char *prefetch, const char *backward, int64_t hosts)
{
	ShardingOptions o = {.world = world, .forward_prefetch = prefetch, .backward_prefetch = backward,
		.shard_size = group, .strategy = group ? STRATEGY_HYBRID_SHARD : STRATEGY_FULL_SHARD};
	return step_with(&o, WIDTH, hosts);
}

static Step step_of(int64_t world, const char *prefetch, const char *backward, int64_t hosts)
{
	return step_in_groups(world, 0, prefetch, backward, hosts);
}

static void step_end(Step *s)
{
	ir_module_free(s->m);
	arena_free(s->a);
}

static Timeline *played(Step *s, const Machine *m, bool threads)
{
	SimulateOptions o = {.machine = m, .plan = &s->plan, .threads = 1, .comm_threads = threads};
	return simulate(s->m, &o, s->a);
}

static bool equal(double x, double y)
{
	return fabs(x - y) <= 1e-9 * MAX(fabs(x), fabs(y)) + 1e-15;
}

/* Without computing there is nothing but collectives: a rank receives no byte sooner than its link lets through. */
static void only_collectives(void)
{
	Step s = step_of(2, NULL, NULL, 1);
	Machine m = ideal(true, s.a);
	m.of[MACHINE_LINK] = 1e6;
	Timeline *t = played(&s, &m, false);
	double all = 0;
	for (int i = 0; i < t->n_transfers; i++) {
		double took = (double)t->transfer[i]->bytes / 1e6;
		CU_ASSERT(equal(t->transfer[i]->latency + t->transfer[i]->moving, took));
		CU_ASSERT(t->transfer[i]->end - t->transfer[i]->begin >= took * (1 - 1e-9));
		all += took;
	}
	CU_ASSERT(equal(t->seconds, t->exposed + t->computing));
	CU_ASSERT(t->computing < 1e-9);
	CU_ASSERT(t->seconds >= all - 1e-9 && t->seconds <= all + 1e-9);
	/* Inside waits, one after the other. */
	m.cuda = false;
	t = played(&s, &m, false);
	CU_ASSERT(equal(t->exposed, all));
	for (int i = 0; i < t->n_transfers; i++)
		CU_ASSERT(t->transfer[i]->reason == EXPOSED_INLINE || t->transfer[i]->reason == EXPOSED_BLOCKS);
	step_end(&s);
}

/* Copies go on beside kernels, both ways at once; what is left of them where they are waited for is exposed. */
static void copies(void)
{
	static const char text[] =
		"module \"m\" level=PLAN {\n  input \"x\" : f32[64]\n  forward {\n    %x : f32[64] = input \"x\"\n"
		"    %y : f32[64] = exp %x\n    %out : f32[64] = offload %y\n    %z : f32[64] = neg %y\n"
		"    %host : f32[64] = copied %out, %y\n    %k : f32[64] = exp %z\n  }\n"
		"  backward {\n    %in : f32[64] = reload %host\n    %w : f32[64] = exp %z\n"
		"    %back : f32[64] = copied %in, %host\n    %d : f32[64] = mul %back, %w\n  }\n}\n";
	Step s = {.m = parsed(text), .a = arena_new()};
	s.layout = memory_layout(s.m, s.a);
	s.plan = (Plan){.layout = &s.layout, .who = {0, 1, 1}};
	Machine m = ideal(true, s.a);
	m.of[MACHINE_KERNEL] = 1;
	for (int slower = 1; slower <= 3; slower++) { /* a copy takes as many seconds */
		m.of[MACHINE_HOST] = 256.0 / slower;
		Timeline *t = played(&s, &m, false);
		CU_ASSERT(equal(t->copying, 2 * slower));
		CU_ASSERT(equal(t->copies_exposed, 2 * (slower - 1)));
		CU_ASSERT(equal(t->exposed, t->copies_exposed) && equal(t->computing, 5));
		CU_ASSERT(equal(t->seconds, 5 + 2 * (slower - 1)));
	}
	step_end(&s);
}

/* With kernels that take a second each and gathers of less, prefetch hides all gathers but the first.  Without it all
 * of forward's are exposed; those of backward are hidden behind the weight gradients of the unit before. */
static void prefetch_hides(void)
{
	for (int ahead = 0; ahead < 2; ahead++) {
		Step s = step_of(2, ahead ? "1" : "0", ahead ? "pre:1" : "none", 1);
		Machine m = ideal(true, s.a);
		m.of[MACHINE_KERNEL] = 1;
		m.of[MACHINE_LINK] = 4e6;
		Timeline *t = played(&s, &m, false);
		int exposed = 0;
		for (int i = 0; i < t->n_transfers; i++) {
			const Transfer *x = t->transfer[i];
			bool gathers = x->row->kind == RT_ALL_GATHER;
			exposed += gathers && x->exposed > 1e-9;
			CU_ASSERT((x->exposed > 1e-9) == (x->reason != EXPOSED_NOT));
			if (gathers && x->seq == 1)
				CU_ASSERT_EQUAL(x->reason, EXPOSED_FIRST);
		}
		CU_ASSERT(exposed == (ahead ? 1 : BLOCKS));
		CU_ASSERT(equal(t->seconds, t->exposed + t->computing));
		step_end(&s);
	}
}

/* Where a gather of a whole unit takes 20 kernels, of each kind of plan the first exposed gather of a section behind
 * the step's first one has this reason, and so have as many. */
static const struct { const char *slots, *backward; bool cuda; int last; SectionKind section; Exposed reason; int n;
	const char *said; } reason_of[] = {
	/* A unit's slot is free when its product has been computed, where the next gather is issued, too. */
	{"1", "none", true, WIDTH, SEC_FORWARD, EXPOSED_SLOT, BLOCKS - 1, "no slot: slot 0 was in use until reshard @h.0"},
	{"1", "none", false, WIDTH, SEC_FORWARD, EXPOSED_SLOT, BLOCKS - 1, "no slot: slot 0 was in use until reshard @h.0"},
	/* Of two slots the other one has been free for long, but a CPU issues the gather no earlier. */
	{"2", "none", false, WIDTH, SEC_FORWARD, EXPOSED_LATE, BLOCKS - 1, "less is computed beside it than it takes"},
	{"0", "none", true, WIDTH, SEC_FORWARD, EXPOSED_STREAM, BLOCKS - 1, "bandwidth: its stream was busy with #1"},
	/* The last unit is gathered at once, so the one before it may be gathered again as soon as forward has read it. */
	{"0", "pre", true, 8, SEC_BACKWARD, EXPOSED_EVENT, 1, "it waited for reshard @h.2"},
};

static void reasons(void)
{
	for (int k = 0; k < COUNT_OF(reason_of); k++) {
		ShardingOptions o = {.world = 2, .forward_prefetch = "0", .backward_prefetch = reason_of[k].backward,
			.limit_all_gathers = reason_of[k].slots};
		Step s = step_with(&o, reason_of[k].last, 1);
		Machine m = ideal(reason_of[k].cuda, s.a);
		m.of[MACHINE_KERNEL] = 1;
		m.of[MACHINE_LINK] = WIDTH * WIDTH * 4.0 / 2 / 20;
		Timeline *t = played(&s, &m, !m.cuda);
		const Transfer *first = NULL, *reduce = NULL;
		int n = 0;
		for (int i = 0; i < t->n_transfers; i++) {
			const Transfer *x = t->transfer[i];
			bool counts = x->row->kind == RT_ALL_GATHER && x->op->section == reason_of[k].section && x->exposed > 1e-9;
			first = counts && !first && x->seq > 1 ? x : first;
			n += counts && x->reason == reason_of[k].reason;
			reduce = x->row->kind == RT_REDUCE_SCATTER ? x : reduce;
			if (op_blocks(x->op->kind) && x->exposed > 1e-9)
				CU_ASSERT_STRING_EQUAL(exposed_text(x, s.a), "its result is needed at once");
		}
		UNIT_CHECK(first && first->reason == reason_of[k].reason && n == reason_of[k].n, reason_of[k].said);
		UNIT_CHECK(first && !strncmp(exposed_text(first, s.a), reason_of[k].said, strlen(reason_of[k].said)),
			first ? exposed_text(first, s.a) : "no gather is exposed");
		CU_ASSERT(reduce && (reduce->reason == EXPOSED_LAST || (m.cuda && reduce->reason == EXPOSED_WIRE
			&& !strcmp(exposed_text(reduce, s.a), "bandwidth: a step's bytes take this long"))));
		step_end(&s);
	}
}

/* Contention slows what runs beside collectives and nothing else: the step grows by no more than its factor. */
static void contention(void)
{
	Step s = step_of(2, NULL, NULL, 1);
	Machine m = ideal(true, s.a);
	m.of[MACHINE_KERNEL] = 1;
	m.of[MACHINE_LINK] = 4e5;
	Timeline *alone = played(&s, &m, false);
	m.of[MACHINE_CONTENTION] = 1.5;
	Timeline *beside = played(&s, &m, false);
	CU_ASSERT(beside->computing > alone->computing + 0.1);
	CU_ASSERT(beside->computing < 1.5 * alone->computing);
	m.of[MACHINE_LINK] = 1e18;
	CU_ASSERT(equal(played(&s, &m, false)->computing, alone->computing));
	step_end(&s);
}

/* Where each op has a measured row, computing is the sum of these. */
static void only_measured(void)
{
	Step s = step_of(1, NULL, NULL, 1);
	Machine m = ideal(false, s.a);
	MachineKernel rows[64];
	double sum = 0;
	for (int section = SEC_FORWARD; section <= SEC_UPDATE; section++)
		IR_FOR_OPS(s.m, section, op) {
			Work w = cost_of(op, &s.plan.who);
			const char *name = cost_signature(op, &w, s.a), *key = arena_printf(s.a, "1x1 %s", name);
			MachineKernel *row = map_get(m.by_op, key);
			if (w.class == COST_NONE || w.class == COST_COLLECTIVE)
				continue;
			if (!row && m.n_kernels == COUNT_OF(rows))
				UNIT_END("too many ops");
			if (!row) {
				row = &rows[m.n_kernels++];
				*row = (MachineKernel){.op = name, .kind = op_info[op->kind].text, .layout = {1, 1},
					.seconds = m.n_kernels};
				map_put(m.by_op, key, row);
			}
			sum += row->seconds;
		}
	m.kernel = rows;
	Timeline *t = played(&s, &m, false);
	CU_ASSERT(sum > 0 && equal(t->computing, sum) && equal(t->seconds, sum));
	CU_ASSERT(equal(t->of_evidence[COST_MEASURED], sum));
	for (int i = 0; i < t->n_transfers; i++)
		CU_ASSERT_EQUAL(t->transfer[i]->end, t->transfer[i]->begin); /* of one rank */
	step_end(&s);
}

/* Whatever the speed of the links: waits are of what runs then, slices of a stream follow each other, a GPU receives no
 * more than its link carries, and a faster link makes no step slower. */
static void any_bandwidth(void)
{
	for (int k = 0; k < 6; k++) {
		bool cuda = k < 2, threads = k < 4, groups = k % 2;
		Step s = step_in_groups(4, groups ? 2 : 0, NULL, NULL, 1);
		Machine m = ideal(cuda, s.a);
		double before = INFINITY;
		m.of[MACHINE_KERNEL] = 1;
		for (m.of[MACHINE_LINK] = 1e3; m.of[MACHINE_LINK] < 1e9; m.of[MACHINE_LINK] *= 3) {
			Timeline *t = played(&s, &m, threads);
			double end[TIMELINE_STREAMS] = {0}, exposed = 0, received = 0;
			for (int i = 0; i < t->n_transfers; i++) {
				const Transfer *x = t->transfer[i];
				received += (double)x->bytes;
				CU_ASSERT(x->exposed <= x->end - x->begin + 1e-9 * t->seconds);
				exposed += x->exposed;
			}
			for (int i = 0; i < t->n_slices; i++) {
				CU_ASSERT(t->slice[i].begin >= end[t->slice[i].stream]);
				end[t->slice[i].stream] = t->slice[i].end;
			}
			CU_ASSERT(equal(exposed, t->exposed) && equal(t->exposed + t->computing, t->seconds));
			CU_ASSERT(t->seconds <= before * (1 + 1e-9));
			CU_ASSERT(!cuda || t->seconds >= received / m.of[MACHINE_LINK] * (1 - 1e-9));
			before = t->seconds;
		}
		step_end(&s);
	}
}

/* Measured rows win over the roofline; rows of the same kind scale it. */
static void measured_rows(void)
{
	Step s = step_of(1, NULL, NULL, 1);
	Machine m = ideal(false, s.a);
	m.of[MACHINE_FLOPS_F32] = 1e9;
	const Op *op = value_named(s.m, "x1")->op;
	Work w = cost_of(op, &s.plan.who);
	MachineLayout one = {1, 1};
	MachineLayout two = {2, 1};
	CU_ASSERT_EQUAL(cost_seconds(&m, op, &w, one, false).evidence, COST_ROOFLINE);
	MachineKernel rows[] = {{.op = ir_signature(op, s.a), .kind = "matmul", .layout = one, .seconds = 7,
		.flops = w.flops, .bytes = w.bytes}};
	m.kernel = rows;
	m.n_kernels = 1;
	CU_ASSERT(equal(cost_seconds(&m, op, &w, one, false).seconds, 7));
	CU_ASSERT_EQUAL(cost_seconds(&m, op, &w, one, false).evidence, COST_NEAR);
	map_put(m.by_op, arena_printf(s.a, "1x1 %s", rows[0].op), &rows[0]);
	CU_ASSERT_EQUAL(cost_seconds(&m, op, &w, one, false).evidence, COST_MEASURED);
	m.of[MACHINE_FLOPS_F32] = 2e9;
	CU_ASSERT(equal(cost_seconds(&m, op, &w, one, false).seconds, 7));
	CU_ASSERT_EQUAL(cost_seconds(&m, op, &w, two, false).evidence, COST_ROOFLINE);
	/* What is computed again has rows of its own; where one of both is missing, the other counts. */
	Work again = w;
	again.again = true;
	CU_ASSERT(equal(cost_seconds(&m, op, &again, one, false).seconds, 7));
	CU_ASSERT_EQUAL(cost_seconds(&m, op, &again, one, false).evidence, COST_NEAR);
	CU_ASSERT(isinf(cost_again(&m, op, &w, one, false)));
	MachineKernel in_cache = rows[0];
	in_cache.seconds = 3;
	map_put(m.by_op, arena_printf(s.a, "1x1 %s again", rows[0].op), &in_cache);
	CU_ASSERT(equal(cost_seconds(&m, op, &again, one, false).seconds, 3));
	CU_ASSERT_EQUAL(cost_seconds(&m, op, &again, one, false).evidence, COST_MEASURED);
	CU_ASSERT(equal(cost_seconds(&m, op, &w, one, false).seconds, 7));
	CU_ASSERT(equal(cost_again(&m, op, &w, one, false), 3));
	m.by_op = map_new(s.a);
	map_put(m.by_op, arena_printf(s.a, "1x1 %s again", rows[0].op), &in_cache);
	CU_ASSERT(equal(cost_seconds(&m, op, &w, one, false).seconds, 3));
	/* The time of a row without work is no rate. */
	rows[0].flops = rows[0].bytes = 0;
	m.by_op = map_new(s.a);
	CU_ASSERT_EQUAL(cost_seconds(&m, op, &w, one, false).evidence, COST_ROOFLINE);
	step_end(&s);
}

/* Of updates, rows of the same optimizer scale the roofline, though others have nearer sizes; its states count as bytes
 * that are read and written. */
static void updates(void)
{
	Step s = step_of(1, NULL, NULL, 1);
	Machine m = ideal(false, s.a);
	const Op *op = s.m->last[SEC_UPDATE];
	while (op && op->kind != OP_UPDATE_SHARD)
		op = op->prev;
	CU_ASSERT_PTR_NOT_NULL_FATAL(op);
	Op with = *op, without = *op;
	with.attrs = attr_str(s.m, NULL, "optimizer", "sgd:momentum");
	without.attrs = attr_str(s.m, NULL, "optimizer", "sgd");
	Work w = cost_of(&with, &s.plan.who), less = cost_of(&without, &s.plan.who);
	CU_ASSERT(equal(w.bytes, less.bytes * 20 / 12));
	MachineLayout one = {1, 1};
	MachineKernel rows[] = {{.op = "update_shard f32 of 1 bytes sgd", .kind = "update_shard", .layout = one,
		.seconds = 2 * w.bytes, .bytes = w.bytes}, {.op = "update_shard f32 of 2 bytes sgd:momentum",
		.kind = "update_shard", .layout = one, .seconds = 6 * w.bytes, .bytes = 2 * w.bytes}};
	m.of[MACHINE_BANDWIDTH] = 1;
	m.kernel = rows;
	m.n_kernels = COUNT_OF(rows);
	CU_ASSERT(fabs(cost_seconds(&m, &with, &w, one, false).seconds / w.bytes - 3) < 0.1);
	CU_ASSERT(fabs(cost_seconds(&m, &without, &w, one, false).seconds / w.bytes - 2) < 0.1);
	step_end(&s);
}

static double seconds_named(const Machine *on, const Module *m, const char *name)
{
	Work w = work_named(m, name);
	return cost_seconds(on, value_named(m, name)->op, &w, (MachineLayout){1, 1}, false).seconds;
}

/* On GPUs a wave of tiles takes a time beside its products, and attention adds its exponentials and the ends of its
 * tiles; on CPUs the longest part counts. */
static void rates(void)
{
	Arena *a = arena_new();
	Module *m = parsed(work_text);
	double product = work_named(m, "product").flops, causal = work_named(m, "causal").flops, values = causal / (4 * 8);
	for (int cuda = 0; cuda < 2; cuda++) {
		Machine on = ideal(cuda, a);
		on.of[MACHINE_RANKS] = 1;
		on.of[MACHINE_FLOPS_F32] = on.of[MACHINE_FLOPS_BF16] = 1e6;
		on.of[MACHINE_TILE] = 10;
		CU_ASSERT(equal(seconds_named(&on, m, "product"), product / 1e6 + (cuda ? 2 * 10 : 0))); /* a tile a sample */
		on.of[MACHINE_SPECIAL] = 1e5;
		double products = causal / 1e6, exponentials = values / 1e5;
		double tiles = (products + exponentials) * (1 + 128 / 8.5);
		CU_ASSERT(equal(seconds_named(&on, m, "causal"), cuda ? tiles : products));
		double here = seconds_named(&on, m, "library");
		CU_ASSERT(equal(here, cuda ? tiles : products));
		on.of[MACHINE_EFF_ATTENTION_LIBRARY] = 0.5;
		double half = (2 * products + exponentials) * (1 + 128 / 8.5);
		CU_ASSERT(equal(seconds_named(&on, m, "library"), cuda ? half : 2 * products));
		CU_ASSERT(equal(seconds_named(&on, m, "causal"), cuda ? tiles : products));
	}
	ir_module_free(m);
	arena_free(a);
}

/* A collective takes its latency and its bytes over links or, across hosts, the network, whichever is longer. */
static void transfers(void)
{
	Arena *a = arena_new();
	Machine m = ideal(true, a);
	m.of[MACHINE_LINK] = 100;
	m.of[MACHINE_NETWORK] = 10;
	m.of[MACHINE_LINK_LATENCY] = 3;
	m.of[MACHINE_NETWORK_LATENCY] = 5;
	CU_ASSERT_EQUAL(cost_transfer(&m, &(CostMessage){RT_ALL_GATHER, 700, 8, 1, COMM_UNSAID}), 3 + 7);
	CU_ASSERT_EQUAL(cost_transfer(&m, &(CostMessage){RT_ALL_GATHER, 1600, 16, 2, COMM_UNSAID}), 3 + 5 + 16);
	CU_ASSERT_EQUAL(cost_transfer(&m, &(CostMessage){RT_ALL_REDUCE, 100, 4, 4, COMM_UNSAID}), 3 + 2 * 5 + 10);
	CU_ASSERT_EQUAL(cost_transfer(&m, &(CostMessage){RT_ALL_GATHER, 0, 1, 1, COMM_UNSAID}), 0);
	MachineCollective rows[] = {{RT_ALL_GATHER, 8, 100, 1, COMM_NCCL}, {RT_ALL_GATHER, 8, 300, 2, COMM_NCCL},
		{RT_ALL_GATHER, 4, 200, 50, COMM_NCCL}};
	m.collective = rows;
	m.n_collectives = COUNT_OF(rows);
	CU_ASSERT(equal(cost_transfer(&m, &(CostMessage){RT_ALL_GATHER, 200, 8, 1, COMM_UNSAID}), 1.5));
	CU_ASSERT(equal(cost_transfer(&m, &(CostMessage){RT_ALL_GATHER, 50, 8, 1, COMM_UNSAID}), 1));
	CU_ASSERT(equal(cost_transfer(&m, &(CostMessage){RT_ALL_GATHER, 600, 8, 1, COMM_UNSAID}), 4));
	arena_free(a);
}

/* A collective takes the rows of its communicator and, where it has none, those of ranks that are told none. */
static void communicators(void)
{
	Arena *a = arena_new();
	Machine m = ideal(false, a);
	MachineCollective rows[] = {{RT_ALL_GATHER, 2, 100, 1, COMM_SHM}, {RT_ALL_GATHER, 2, 100, 7, COMM_MPI},
		{RT_REDUCE_SCATTER, 2, 100, 3, COMM_SHM}};
	m.collective = rows;
	m.n_collectives = COUNT_OF(rows);
	CU_ASSERT_EQUAL(cost_transfer(&m, &(CostMessage){RT_ALL_GATHER, 100, 2, 1, COMM_UNSAID}), 1);
	CU_ASSERT_EQUAL(cost_transfer(&m, &(CostMessage){RT_ALL_GATHER, 100, 2, 1, COMM_SHM}), 1);
	CU_ASSERT_EQUAL(cost_transfer(&m, &(CostMessage){RT_ALL_GATHER, 100, 2, 1, COMM_MPI}), 7);
	CU_ASSERT_EQUAL(cost_transfer(&m, &(CostMessage){RT_REDUCE_SCATTER, 100, 2, 1, COMM_MPI}), 3);
	arena_free(a);
}

static int make_file(void)
{
	int file = mkstemp(path);
	return file < 0 || close(file);
}

static int remove_file(void)
{
	return unlink(path);
}

void suite_predict(void)
{
	CU_pSuite s = CU_add_suite("predict", make_file, remove_file);
	CU_add_test(s, "wrong machine files", bad_files);
	CU_add_test(s, "a machine file", good_file);
	CU_add_test(s, "a machine file like another", like_another);
	CU_add_test(s, "work of ops", work_of_ops);
	CU_add_test(s, "rates of products and attention", rates);
	CU_add_test(s, "collectives alone", only_collectives);
	CU_add_test(s, "copies to the host and back", copies);
	CU_add_test(s, "prefetch hides gathers", prefetch_hides);
	CU_add_test(s, "reasons of exposed gathers", reasons);
	CU_add_test(s, "contention", contention);
	CU_add_test(s, "measured rows", measured_rows);
	CU_add_test(s, "updates", updates);
	CU_add_test(s, "measured rows of all ops", only_measured);
	CU_add_test(s, "links of any bandwidth", any_bandwidth);
	CU_add_test(s, "times of collectives", transfers);
	CU_add_test(s, "communicators", communicators);
}
