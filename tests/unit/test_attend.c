/* tests/unit/test_attend.c: which kernels compute an attention of a GPU program, and why, as `shardc plan` says it. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "codegen/emit.h"
#include "passes/passes.h"
#include "tests/unit/parsed.h"
#include "tests/unit/unit.h"

enum { DISTINCT = 12, CAUSAL = 4 };
#define ATTRS "empty=\"zero\", layout=1, scale=0.25"

/* All distinct attentions below: what the library serves, and a case of each thing that it does not.  The causal one is
 * there four times, once with a limit that hides nothing, once with its heads in front of its rows. */
static const char text[] = "module \"m\" level=SHARD batch=2 {\n"
	"  train {optimizer=\"adamw\", norm=1, cuda=1}\n"
	"  input \"q\" : bf16[2,128,4,16] {batched=1}\n"
	"  input \"k\" : bf16[2,128,2,16] {batched=1}\n"
	"  input \"q2\" : bf16[2,4,128,16] {batched=1}\n"
	"  input \"k2\" : bf16[2,2,128,16] {batched=1}\n"
	"  input \"short\" : bf16[2,100,2,16] {batched=1}\n"
	"  input \"x\" : bf16[2,128,60] {batched=1}\n"
	"  input \"odd\" : f16[2,128,2,12] {batched=1}\n"
	"  input \"wide\" : f32[2,128,2,16] {batched=1}\n"
	"  input \"keys\" : bool[2,1,1,128] {batched=1}\n"
	"  input \"half\" : bf16[2,1,128,100] {batched=1}\n"
	"  input \"ids\" : i64[2,128] {batched=1}\n"
	"  forward {\n"
	"    %q : bf16[2,128,4,16] = input \"q\"\n"
	"    %k : bf16[2,128,2,16] = input \"k\"\n"
	"    %q2 : bf16[2,4,128,16] = input \"q2\"\n"
	"    %k2 : bf16[2,2,128,16] = input \"k2\"\n"
	"    %short : bf16[2,100,2,16] = input \"short\"\n"
	"    %x : bf16[2,128,60] = input \"x\"\n"
	"    %odd : f16[2,128,2,12] = input \"odd\"\n"
	"    %wide : f32[2,128,2,16] = input \"wide\"\n"
	"    %keys : bool[2,1,1,128] = input \"keys\"\n"
	"    %half : bf16[2,1,128,100] = input \"half\"\n"
	"    %ids : i64[2,128] = input \"ids\"\n"
	"    %part : bf16[2,128,2,8] = columns %x {heads=2, size=16, start=0}\n"
	"    %o : bf16[2,128,4,16], %l : f32[2,4,128] = attention %q, %k, %k {" ATTRS ", right=0}\n"
	"    %o1 : bf16[2,128,4,16], %l1 : f32[2,4,128] = attention %q, %k, %k {" ATTRS ", right=0}\n"
	"    %o2 : bf16[2,128,4,16], %l2 : f32[2,4,128] = attention %q, %k, %k, %keys {" ATTRS "}\n"
	"    %o3 : bf16[2,128,4,16], %l3 : f32[2,4,128] = attention %q, %short, %short, %half {" ATTRS "}\n"
	"    %o4 : bf16[2,128,4,16], %l4 : f32[2,4,128] = attention %q, %k, %k, %keys {" ATTRS ", left=9, right=0}\n"
	"    %o5 : bf16[2,128,4,16], %l5 : f32[2,4,128] = attention %q, %k, %k, _, %ids {" ATTRS "}\n"
	"    %o6 : bf16[2,128,4,16], %l6 : f32[2,4,128] = attention %q, %k, %k {" ATTRS ", softcap=50.0}\n"
	"    %o7 : bf16[2,128,4,16], %l7 : f32[2,4,128] = attention %q, %k, %k {empty=\"zero\", layout=1, scale=-0.25}\n"
	"    %o8 : bf16[2,128,4,16], %l8 : f32[2,4,128] = attention %q, %k, %k {" ATTRS ", right=-1}\n"
	"    %o9 : bf16[2,128,4,16], %l9 : f32[2,4,128] = attention %q, %k, %k {" ATTRS ", id=1, p=0.1, pre=1, rows=2}\n"
	"    %o10 : f16[2,128,2,12], %l10 : f32[2,2,128] = attention %odd, %odd, %odd {" ATTRS "}\n"
	"    %o11 : f32[2,128,2,16], %l11 : f32[2,2,128] = attention %wide, %wide, %wide {" ATTRS "}\n"
	"    %o12 : bf16[2,128,2,8], %l12 : f32[2,2,128] = attention %part, %part, %part {" ATTRS "}\n"
	"    %o13 : bf16[2,128,4,16], %l13 : f32[2,4,128] = attention %q, %k, %k {" ATTRS ", left=127, right=0}\n"
	"    %o14 : bf16[2,4,128,16], %l14 : f32[2,4,128] = attention %q2, %k2, %k2 {empty=\"zero\", layout=0, scale=0.25, "
	"right=0}\n"
	"  }\n"
	"  backward {\n"
	"    %dq : bf16[2,128,4,16], %dk : bf16[2,128,2,16], %dv : bf16[2,128,2,16] = attention_grad %o, %q, %k, %k, _, _, "
	"%o, %l {" ATTRS ", right=0}\n"
	"    %dq2 : bf16[2,128,4,16], %dk2 : bf16[2,128,2,16], %dv2 : bf16[2,128,2,16] = attention_grad %o2, %q, %k, %k, "
	"%keys, _, %o2, %l2 {" ATTRS "}\n"
	"    %dq3 : bf16[2,128,4,16], %dk3 : bf16[2,100,2,16], %dv3 : bf16[2,100,2,16] = attention_grad %o3, %q, %short, "
	"%short, %half, _, %o3, %l3 {" ATTRS "}\n"
	"  }\n"
	"}\n";

#define HEAD "\nattention: by cuDNN, where it takes it when the program starts (--print-plan), or by our own kernels\n"
#define USUAL "  bf16, 2 x 4 heads of 16, 2 of keys, 128 x 128"
/* What no --attention changes. */
#define OURS \
	USUAL ", left=9, right=0, mask bool[2,1,1,128]: forward 1 x own (its mask stands beside a window)\n" \
	USUAL ": forward 1 x own (it has documents)\n" \
	USUAL ": forward 1 x own (it has a soft cap)\n" \
	USUAL ": forward 1 x own (its scale is not above 0)\n" \
	USUAL ", right=-1: forward 1 x own (it is of one row or one key, or there are rows that see none)\n" \
	USUAL ": forward 1 x own (it has dropout)\n" \
	"  f16, 2 x 2 heads of 12, 128 x 128: forward 1 x own (heads are longer than 128 elements, or no multiple of 8)\n" \
	"  f32, 2 x 2 heads of 16, 128 x 128: forward 1 x own (it is not of 16 bits)\n" \
	"  bf16, 2 x 2 heads of 8, 128 x 128: forward 1 x own (its rows do not begin at multiples of 16 bytes)\n"
#define BY_CHOICE "--attention=own, or pass attend was not run"
#define BY_MASK "cuDNN takes masks with --attention=cudnn alone"
#define BY_GRADIENT "cuDNN computes gradients with --attention=cudnn alone, and not from sm_100 on"
#define TILES "own (a gradient behind a mask wants rows and keys in multiples of 128)"
static const char *const expected[] = {
	[ATTENTION_AUTO] = HEAD
		USUAL ", causal: forward 4 x cuDNN; backward 1 x own (" BY_GRADIENT ")\n"
		USUAL ", mask bool[2,1,1,128]: forward 1 x own (" BY_MASK "); backward 1 x own (" BY_MASK ")\n"
		"  bf16, 2 x 4 heads of 16, 2 of keys, 128 x 100, mask bf16[2,1,128,100]: forward 1 x own (" BY_MASK
		"); backward 1 x " TILES "\n" OURS,
	[ATTENTION_OWN] = HEAD
		USUAL ", causal: forward 4 x own (" BY_CHOICE "); backward 1 x own (" BY_GRADIENT ")\n"
		USUAL ", mask bool[2,1,1,128]: forward 1 x own (" BY_MASK "); backward 1 x own (" BY_MASK ")\n"
		"  bf16, 2 x 4 heads of 16, 2 of keys, 128 x 100, mask bf16[2,1,128,100]: forward 1 x own (" BY_MASK
		"); backward 1 x " TILES "\n" OURS,
	[ATTENTION_CUDNN] = HEAD
		USUAL ", causal: forward 4 x cuDNN; backward 1 x cuDNN\n"
		USUAL ", mask bool[2,1,1,128]: forward 1 x cuDNN; backward 1 x cuDNN\n"
		"  bf16, 2 x 4 heads of 16, 2 of keys, 128 x 100, mask bf16[2,1,128,100]: forward 1 x cuDNN; backward 1 x "
		TILES "\n" OURS,
};

/* What the plan says of the attentions of a module, as text or as JSON. */
static char *said(const Module *m, bool cuda, bool as_json)
{
	Arena *a = arena_new();
	LayoutModel layout = {.cuda = {.on = cuda}};
	CodegenPlan plan = {.layout = &layout};
	char *out = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&out, &n);
	(as_json ? plan_json_attention : plan_text_attention)(f, m, &plan, a);
	fclose(f);
	arena_free(a);
	return out;
}

static void check_way(const json_t *attention, const char *name, int count, const char *why)
{
	const json_t *way = json_object_get(attention, name);
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(way, "count")), count);
	if (count) {
		CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(way, "by")), *why ? "own" : "cudnn");
		CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(way, "why")), why);
	}
}

static void check_json(const Module *m, AttentionKernels how)
{
	char *members = said(m, true, true);
	size_t n = strlen(members) + sizeof "{\"end\": 0}";
	char *whole = malloc(n);
	snprintf(whole, n, "{%s\"end\": 0}", members);
	json_error_t error;
	json_t *j = json_loads(whole, 0, &error);
	UNIT_CHECK(j != NULL, error.text);
	const json_t *list = json_object_get(j, "attention"), *first = json_array_get(list, 0);
	CU_ASSERT_EQUAL(json_array_size(list), DISTINCT);
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(first, "band")), "causal");
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(first, "kv_heads")), 2);
	check_way(first, "forward", CAUSAL, how == ATTENTION_OWN ? BY_CHOICE : "");
	check_way(first, "backward", 1, how == ATTENTION_CUDNN ? "" : BY_GRADIENT);
	check_way(json_array_get(list, DISTINCT - 1), "backward", 0, "");
	json_decref(j);
	free(whole);
	free(members);
}

static void check(AttentionKernels how)
{
	Diag d = {.out = stderr};
	PipelineView view = {.out = stdout};
	const Options o = {.target = {.target = TARGET_CUDA, .attention = how}};
	Module *m = ir_parse("attend.ir", text, &d);
	CU_ASSERT_FATAL(m && pipeline_run(m, &o, &view, "attend", &d));
	char *got = said(m, true, false), *none = said(m, false, false);
	UNIT_CHECK(!strcmp(got, expected[how]), got);
	CU_ASSERT_STRING_EQUAL(none, ""); /* a CPU has nothing to choose */
	check_json(m, how);
	free(none);
	free(got);
	ir_module_free(m);
}

static void each_choice_says_why(void)
{
	for (int how = 0; how < COUNT_OF(expected); how++)
		check((AttentionKernels)how);
}

/* Nothing is marked then, and no --attention was given. */
static void a_plan_without_the_pass_says_so(void)
{
	Module *m = parsed(text);
	char *got = said(m, true, false);
	UNIT_CHECK(!strcmp(got, expected[ATTENTION_OWN]), got);
	free(got);
	ir_module_free(m);
}

void suite_attend(void)
{
	CU_pSuite s = CU_add_suite("attend", NULL, NULL);
	CU_add_test(s, "each choice says why", each_choice_says_why);
	CU_add_test(s, "a plan without the pass says so", a_plan_without_the_pass_says_so);
}
