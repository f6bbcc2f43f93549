/* tests/unit/test_verify_plan.c: correct schedules, and edits that break each rule of ir/verify_plan.c.
 *
 * A case replaces text in a correct module, as an edit or a buggy pass would, and names the rule that must report it.
 * If the text does not occur exactly once, the test fails, so that no case stops testing without notice. */
#include "ir/ir.h"
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

/* ---- right modules ---- */

/* A weight that is gathered in 8 bits. */
static const char scaled[] =
	"module \"m\" level=PLAN {\n"
	"unit @a {strategy=\"full_shard\", flats=[f32 frozen 512 param=e4m3], params=[\"w\" @0, \"v\" @256]}\n"
	"param \"w\" : f32[16,16]\n param \"v\" : f32[16,16]\n scale \"w.scale\" : f32[] {param=\"w\", params=2}\n"
	"eval {\n"
	"f8_scales {seq=1, stream=\"sync\"}\n"
	"%start : event = record\n"
	"%aa : async flat @a:e4m3 = all_gather @a %start {seq=2, stream=\"gather\", cast=\"f32 -> e4m3\"}\n"
	"%fa : flat @a:e4m3 = wait %aa\n"
	"%w : e4m3[16,16] = view \"w\" %fa\n"
	"%s : f32[] = read \"w.scale\"\n"
	"%t : e4m3[16,16] = to_f8 %w, %s {to=e4m3, rows=0, columns=1}\n"
	"reshard @a %fa\n"
	"}\n"
	"}\n";

static const char full[] =
	"module \"m\" level=PLAN {\n"
	"unit @a {strategy=\"full_shard\", flats=[f32 trainable 64], params=[\"wa\" @0]}\n"
	"unit @b {strategy=\"full_shard\", flats=[f32 trainable 64], params=[\"wb\" @0]}\n"
	"param \"wa\" : f32[64] {trainable=1}\n param \"wb\" : f32[64] {trainable=1}\n"
	"forward {\n"
	"%start : event = record\n"
	"%aa : async flat @a = all_gather @a %start {seq=1, slot=0, stream=\"gather\"}\n"
	"%fa : flat @a = wait %aa\n"
	"%va : f32[64] = view \"wa\" %fa\n"
	"%y : f32[64] = neg %va\n"
	"reshard @a %fa\n"
	"%free : event = record\n"
	"%ab : async flat @b = all_gather @b %free {seq=2, slot=0, stream=\"gather\"}\n"
	"%fb : flat @b = wait %ab\n"
	"%vb : f32[64] = view \"wb\" %fb\n"
	"%z : f32[64] = add %y, %vb\n"
	"%loss : f32[] = reduce_sum %z {axes=[0], keepdims=0}\n"
	"%one : f32[] = const {value=[1.0]}\n"
	"report_loss %loss, %one {mean=1}\n"
	"reshard @b %fb\n"
	"}\n"
	"backward {\n"
	"zero_gaps @b {slot=0}\n"
	"%gb : f32[64] @grad @b+0 = exp %z\n"
	"%cb : flat @b = collect @b %gb\n"
	"%eb : event = record\n"
	"%rb : async shard @b = reduce_scatter @b %cb, %eb {op=\"mean\", seq=3, stream=\"reduce\"}\n"
	"zero_gaps @a {slot=1}\n"
	"%ga : f32[64] @grad @a+0 = exp %y\n"
	"%ca : flat @a = collect @a %ga\n"
	"%ea : event = record\n"
	"%ra : async shard @a = reduce_scatter @a %ca, %ea {op=\"mean\", seq=4, stream=\"reduce\"}\n"
	"%sb : shard @b = wait %rb\n"
	"%sa : shard @a = wait %ra\n"
	"}\n"
	"update {\n"
	"%n : f64[] = sumsq %sb, %sa\n"
	"%t : f64[] = all_reduce_scalars %n {seq=5, stream=\"sync\"}\n"
	"step_scalars %t\n"
	"update_shard @a %sa {optimizer=\"sgd\"}\n"
	"update_shard @b %sb {optimizer=\"sgd\"}\n"
	"}\n"
	"eval {\n"
	"%estart : event = record\n"
	"%xa : async flat @a = all_gather @a %estart {seq=1, slot=0, stream=\"gather\"}\n"
	"%xf : flat @a = wait %xa\n"
	"%xv : f32[64] = view \"wa\" %xf\n"
	"%xy : f32[64] = neg %xv\n"
	"reshard @a %xf\n"
	"}\n}\n";

/* hybrid_shard, no_shard, oss and sharded_ddp side by side. */
static const char mixed[] =
	"module \"m\" level=PLAN world=2 {\n"
	"unit @h {strategy=\"hybrid_shard\", flats=[f32 trainable 64], params=[\"wh\" @0]}\n"
	"unit @n {strategy=\"no_shard\", flats=[f32 trainable 64], params=[\"wn\" @0]}\n"
	"unit @o {strategy=\"oss\", owner=1, flats=[f32 trainable 64], params=[\"wo\" @0]}\n"
	"unit @d {strategy=\"sharded_ddp\", owner=0, flats=[f32 trainable 64], params=[\"wd\" @0]}\n"
	"param \"wh\" : f32[64] {trainable=1}\n param \"wn\" : f32[64] {trainable=1}\n"
	"param \"wo\" : f32[64] {trainable=1}\n param \"wd\" : f32[64] {trainable=1}\n"
	"forward {\n"
	"%start : event = record\n"
	"%ah : async flat @h = all_gather @h %start {seq=1, stream=\"gather\"}\n"
	"%fh : flat @h = wait %ah\n"
	"%vh : f32[64] = view \"wh\" %fh\n"
	"%pn : flat @n = resident @n\n"
	"%vn : f32[64] = view \"wn\" %pn\n"
	"%po : flat @o = resident @o\n"
	"%vo : f32[64] = view \"wo\" %po\n"
	"%pd : flat @d = resident @d\n"
	"%vd : f32[64] = view \"wd\" %pd\n"
	"%y : f32[64] = add %vh, %vn\n"
	"%z : f32[64] = add %vo, %vd\n"
	"}\n"
	"backward {\n"
	"zero_gaps @h {slot=0}\n"
	"%gh : f32[64] @grad @h+0 = exp %y\n"
	"%ch : flat @h = collect @h %gh\n"
	"reshard @h %fh\n"
	"%eh : event = record\n"
	"%rh : async shard @h = reduce_scatter @h %ch, %eh {op=\"sum\", seq=2, stream=\"reduce\"}\n"
	"zero_gaps @n\n"
	"%gn : f32[64] @grad @n+0 = exp %y\n"
	"%cn : flat @n = collect @n %gn\n"
	"%en : event = record\n"
	"%rn : async flat @n = all_reduce @n %cn, %en {op=\"mean\", seq=3, stream=\"reduce\"}\n"
	"%hs : shard @h = wait %rh\n"
	"%rr : async shard @h = all_reduce @h %hs {op=\"mean\", seq=4, stream=\"reduce\"}\n"
	"zero_gaps @d {slot=0}\n"
	"%gd : f32[64] @grad @d+0 = exp %z\n"
	"%cd : flat @d = collect @d %gd\n"
	"%ed : event = record\n"
	"%rd : async shard @d = reduce @d %cd, %ed {op=\"mean\", root=0, seq=5, stream=\"reduce\"}\n"
	"%sn : flat @n = wait %rn\n"
	"%sh : shard @h = wait %rr\n"
	"zero_gaps @o\n"
	"%go : f32[64] @grad @o+0 = exp %z\n"
	"%co : flat @o = collect @o %go\n"
	"%eo : event = record\n"
	"%ro : async flat @o = all_reduce @o %co, %eo {op=\"mean\", seq=6, stream=\"reduce\"}\n"
	"%sd : shard @d = wait %rd\n"
	"%so : flat @o = wait %ro\n"
	"}\n"
	"update {\n"
	"%n : f64[] = sumsq %sh, %sn, %sd, %so\n"
	"%t : f64[] = all_reduce_scalars %n {seq=7, stream=\"sync\"}\n"
	"step_scalars %t\n"
	"update_shard @h %sh {optimizer=\"sgd\"}\n"
	"update_shard @n %sn {optimizer=\"sgd\"}\n"
	"update_shard @o %so {optimizer=\"sgd\"}\n"
	"%uo : event = record\n"
	"%bo : async flat @o = broadcast_flat @o %uo {root=1, seq=8, stream=\"gather\"}\n"
	"update_shard @d %sd {optimizer=\"sgd\"}\n"
	"%ud : event = record\n"
	"%bd : async flat @d = broadcast_flat @d %ud {root=0, seq=9, stream=\"gather\"}\n"
	"%wo : flat @o = wait %bo\n"
	"%wd : flat @d = wait %bd\n"
	"}\n}\n";

/* A value that lies in memory of the host between forward and backward. */
static const char copies[] =
	"module \"m\" level=PLAN {\n"
	"input \"x\" : f32[64]\n"
	"forward {\n"
	"%x : f32[64] = input \"x\"\n"
	"%y : f32[64] = exp %x\n"
	"%out : f32[64] = offload %y\n"
	"%z : f32[64] = neg %y\n"
	"%host : f32[64] = copied %out, %y\n"
	"%loss : f32[] = reduce_sum %z {axes=[0], keepdims=0}\n"
	"%one : f32[] = const {value=[1.0]}\n"
	"report_loss %loss, %one {mean=1}\n"
	"}\n"
	"backward {\n"
	"%in : f32[64] = reload %host\n"
	"%w : f32[64] = exp %z\n"
	"%back : f32[64] = copied %in, %host\n"
	"%d : f32[64] = mul %back, %w\n"
	"}\n}\n";

/* ---- cases ---- */

typedef struct Edit { const char *find, *put; } Edit;
typedef struct Case {
	const char *base;
	const char *rule;   /* NULL = right */
	Edit edit[4];
} Case;

static const Case cases[] = {
	{full, NULL, {{NULL, NULL}}},
	{mixed, NULL, {{NULL, NULL}}},

	/* gathers and the update before them */
	{full, "gather-after-update", {{" %start {", " {"}}},
	{full, "slot-reuse", {{" %estart {", " {"}}},
	{full, "slot-reuse", {{" %free {", " {"}}},
	{full, "slot-reuse", {{" %free {", " %start {"}}},
	/* the first event is enough for a slot or a region of its own */
	{full, NULL, {{" %free {seq=2, slot=0", " {seq=2, slot=1"}}},
	{full, NULL, {{" %free {seq=2, slot=0", " {seq=2"}}},
	{full, "slot-number", {{"seq=2, slot=0", "seq=2, slot=3"}}},
	{full, "slot-number", {{"seq=2, slot=0", "seq=2, slot=-1"}}},
	{full, "slot-reuse", {{"reshard @a %fa\n%free", "%free"}, {"%z : f32[64] = add %y, %vb\n", "%z : "
		"f32[64] = add %y, %vb\nreshard @a %fa\n"}}},
	{mixed, NULL, {{" %start {", " {"}}}, /* the events of the broadcasts stand behind the update */
	{mixed, "gather-after-update", {{" %start {", " {"}, {"update_shard @h %sh {optimizer=\"sgd\"}\n", ""},
		{"%ud : event = record\n", "%ud : event = record\nupdate_shard @h %sh {optimizer=\"sgd\"}\n"}}},
	{full, "update-after-gather", {{"%fb : flat @b = wait %ab\n%vb : f32[64] = view \"wb\" %fb\n%z : "
		"f32[64] = add %y, %vb\n", "%z : f32[64] = neg %y\n"}, {"reshard @b %fb\n}", "}"}, {"update_shard "
		"@b %sb {optimizer=\"sgd\"}\n", "update_shard @b %sb {optimizer=\"sgd\"}\n%fb : flat @b = wait "
		"%ab\nreshard @b %fb\n"}}},

	/* waits and reshards */
	{full, "wait-missing", {{"%sa : shard @a = wait %ra\n", ""}, {"%sb, %sa", "%sb"}, {"update_shard @a "
		"%sa {optimizer=\"sgd\"}\n", ""}}},
	{full, "wait-once", {{"reshard @a %xf\n", "reshard @a %xf\n%xg : flat @a = wait %xa\nreshard @a "
		"%xg\n"}}},
	{full, "reshard-missing", {{"reshard @a %xf\n", ""}}},
	{full, "reshard-once", {{"reshard @a %xf\n", "reshard @a %xf\nreshard @a %xf\n"}}},
	{full, "reshard-whole", {{"reshard @a %fa\n", "reshard @a %fa\n"}, {"%eb : event", "reshard @b "
		"%cb\n%eb : event"}}},
	{full, "read-after-reshard", {{"%one : f32[]", "%late : f32[64] = exp %va\n%one : f32[]"}}},
	{full, "read-after-reshard", {{"%one : f32[]", "%r : f32[8,8] = reshape %va {shape=[8,8]}\n%one : "
		"f32[]"}}},
	{full, "two-copies", {{"%xf : flat @a = wait %xa\n", "%xf : flat @a = wait %xa\n%xb : async flat @a = "
		"all_gather @a {seq=2, slot=1, stream=\"gather\"}\n%xh : flat @a = wait %xb\nreshard @a %xh\n"}}},
	{full, "reader", {{"%eb : event", "%bad : f32[64] = view \"wb\" %cb\n%eb : event"}}},

	/* numbers, streams, strategies */
	{full, "number", {{"seq=2,", "seq=3,"}}},
	{full, "stream", {{"seq=3, stream=\"reduce\"", "seq=3, stream=\"gather\""}}},
	{full, "stream", {{"seq=5, stream=\"sync\"", "seq=5"}}},
	{mixed, "strategy", {{"%pn : flat @n = resident @n\n", "%an : async flat @n = all_gather @n {seq=2, "
		"stream=\"gather\"}\n%pn : flat @n = wait %an\n"}}},
	{full, "strategy", {{"%xa : async flat @a = all_gather @a %estart {seq=1, slot=0, "
		"stream=\"gather\"}\n%xf : flat @a = wait %xa\n", "%xf : flat @a = resident @a\n"}, {"reshard @a "
		"%xf\n", ""}}},
	{full, "eval", {{"reshard @a %xf\n", "reshard @a %xf\nzero_gaps @a\n"}}},

	/* gradients */
	{full, "reduce-waits", {{"%cb, %eb {", "%cb {"}}},
	{full, "reduce-waits", {{"%ca, %ea {", "%ca {"}}},
	{full, "reduce-waits", {{"%ca, %ea {", "%ca, %eb {"}}},
	{full, "zero-gaps", {{"zero_gaps @b {slot=0}\n%gb : f32[64] @grad @b+0", "%gb : f32[64]"}}},
	{full, "zero-gaps", {{"zero_gaps @b {slot=0}\n", "zero_gaps @b {slot=0}\nzero_gaps @b {slot=1}\n"}}},
	{full, "contribution", {{"zero_gaps @b {slot=0}\n%gb : f32[64] @grad @b+0 = exp %z\n", "%gb : f32[64] "
		"@grad @b+0 = exp %z\nzero_gaps @b {slot=0}\n"}}},
	{full, "contribution", {{"%eb : event", "%more : f32[64] @grad @b+0 = neg %z\n%eb : event"}}},
	/* both only read */
	{full, NULL, {{"zero_gaps @a {slot=1}", "%ok : f32[64] = neg %gb\nzero_gaps @a {slot=1}"}}},
	{full, "gradient-in-flight", {{"%sa : shard", "%late : f32[64] = neg %gb\n%sa : shard"}}},
	{mixed, "gradient-in-flight", {{"%hs : shard", "%late : f32[64] = neg %gn\n%hs : shard"}}},
	{full, "gradient-slot", {{"zero_gaps @a {slot=1}", "zero_gaps @a {slot=0}"}}},
	{full, NULL, {{"%sb : shard @b = wait %rb\n", ""}, {"zero_gaps @a {slot=1}", "%sb : shard @b = wait "
		"%rb\nzero_gaps @a {slot=0}"}}},
	{full, NULL, {{"zero_gaps @a {slot=1}", "zero_gaps @a"}}},
	{full, "slot-number", {{"zero_gaps @a {slot=1}", "zero_gaps @a {slot=2}"}}},
	{mixed, "gradient-slot", {{"zero_gaps @n\n", "zero_gaps @n {slot=1}\n"}, {"zero_gaps @o\n", "zero_gaps "
		"@o {slot=1}\n"}}},
	{full, "reduce-op", {{"op=\"mean\", seq=3", "op=\"sum\", seq=3"}}},
	{mixed, "reduce-op", {{"op=\"sum\", seq=2", "op=\"mean\", seq=2"}}},
	{mixed, "reduce-op", {{"op=\"mean\", seq=4", "op=\"sum\", seq=4"}}},
	{full, "reduce-once", {{"%sb : shard @b = wait %rb\n", "%sb : shard @b = wait %rb\n%r2 : async shard "
		"@b = reduce_scatter @b %cb, %ea {op=\"mean\", seq=5, stream=\"reduce\"}\n%s2 : shard @b = wait "
		"%r2\n"}, {"seq=5, stream=\"sync\"", "seq=6, stream=\"sync\""}}},
	{full, "reduce-once", {{"%rb : async shard @b = reduce_scatter @b %cb, %eb {op=\"mean\", seq=3, "
		"stream=\"reduce\"}\n", ""}, {"%sb : shard @b = wait %rb\n", ""}, {"%sb, %sa", "%sa"},
		{"update_shard @b %sb {optimizer=\"sgd\"}\n", ""}}},
	{mixed, "owner", {{"root=0, seq=5", "root=1, seq=5"}}},
	{mixed, "reduced-read", {{"sumsq %sh,", "sumsq %hs,"}}},

	/* scales */
	{scaled, NULL, {{"params=2", "params=2"}}},
	{scaled, "scales-first", {{"f8_scales {seq=1, stream=\"sync\"}\n", ""}, {"seq=2", "seq=1"}}},
	{scaled, "scales-once", {{"%w : e4m3", "f8_scales {seq=3, stream=\"sync\"}\n%w : e4m3"}}},

	/* update */
	{full, "update-once", {{"update_shard @b %sb {optimizer=\"sgd\"}\n", ""}}},
	{full, "update-scalars", {{"step_scalars %t\nupdate_shard @a %sa {optimizer=\"sgd\"}\n", "update_shard "
		"@a %sa {optimizer=\"sgd\"}\nstep_scalars %t\n"}}},
	{full, "scalars-once", {{"%t : f64[] = all_reduce_scalars %n {seq=5, stream=\"sync\"}\nstep_scalars %t",
		"step_scalars %n"}}},
	{full, "scalars-first", {{"%t : f64[] = all_reduce_scalars %n {seq=5, stream=\"sync\"}\nstep_scalars "
		"%t\n", "step_scalars %n\n%t : f64[] = all_reduce_scalars %n {seq=5, stream=\"sync\"}\n"}}},
	{mixed, "broadcast-after-update", {{"@o %uo {", "@o {"}}},
	{mixed, "broadcast-after-update", {{"@d %ud {", "@d %uo {"}}},
	{mixed, "broadcast-once", {{"%bd : async flat @d = broadcast_flat @d %ud {root=0, seq=9, "
		"stream=\"gather\"}\n", ""}, {"%wd : flat @d = wait %bd\n", ""}}},
	{mixed, "owner", {{"root=1, seq=8", "root=0, seq=8"}}},
	{mixed, "wait-missing", {{"%wd : flat @d = wait %bd\n", ""}}},
	{mixed, "read-after-update", {{"%wd : flat @d", "%late : f32[64] = neg %vo\n%wd : flat @d"}}},
	{mixed, NULL, {{"update_shard @d %sd", "%late : f32[64] = neg %vd\nupdate_shard @d %sd"}}},

	/* copies to and from memory of the host */
	{copies, NULL, {{NULL, NULL}}},
	{copies, NULL, {{"%d : f32", "%v : f32[8,8] = reshape %back {shape=[8,8]}\n%u : f32[8,8] = neg %v\n%d : f32"}}},
	{copies, "copy-ended", {{"mul %back, %w", "mul %in, %w"}}},
	{copies, "copy-ended", {{"neg %y", "neg %out"}}},
	{copies, "copy-ended", {{"%d : f32", "%v : f32[8,8] = reshape %in {shape=[8,8]}\n%d : f32"}}},
	{copies, "copy-ended", {{"reload %host", "reload %out"}, {"copied %in, %host", "copied %in, %out"}}},
	{copies, "copy-host", {{"mul %back, %w", "mul %host, %w"}}},
	{copies, "copy-host", {{"%d : f32", "%v : f32[8,8] = reshape %host {shape=[8,8]}\n%d : f32"}}},
	{copies, "copy-host", {{"%d : f32", "%twice : f32[64] = offload %host\n%end : f32[64] = copied %twice, %host\n"
		"%d : f32"}}},
	{copies, "copy-host", {{"reload %host", "reload %z"}, {"copied %in, %host", "copied %in, %z"}}},
	{copies, "copy-whole", {{"copied %out, %y", "copied %out, %x"}}},
	{copies, "copy-whole", {{"copied %in, %host", "copied %w, %host"}}},
	{copies, "copy-once", {{"%w : f32", "%again : f32[64] = copied %out, %y\n%w : f32"}}},
	{copies, "copy-missing", {{"%back : f32[64] = copied %in, %host\n", ""}, {"mul %back, %w", "mul %z, %w"}}},
	{copies, "eval", {{"mul %back, %w\n}\n", "mul %back, %w\n}\neval {\n%e : f32[64] = input \"x\"\n"
		"%eo : f32[64] = offload %e\n%eh : f32[64] = copied %eo, %e\n}\n"}}},
};

/* ---- running them ---- */

static char *edited(const Case *c)
{
	char *text = strdup(c->base);
	for (int i = 0; i < COUNT_OF(c->edit) && c->edit[i].find; i++) {
		const Edit *e = &c->edit[i];
		char *at = strstr(text, e->find);
		if (!at || strstr(at + 1, e->find)) {
			printf("case %d: \"%s\" does not occur once\n", (int)(c - cases), e->find);
			UNIT_CHECK(false, "a case whose text does not occur once");
			break;
		}
		Buf b = {0};
		buf_printf(&b, "%.*s%s%s", (int)(at - text), text, e->put, at + strlen(e->find));
		free(text);
		text = strdup(b.at);
		buf_free(&b);
	}
	return text;
}

static bool finds(const Module *m, const Case *c, Arena *a)
{
	PlanViolation found[16];
	int n = ir_verify_plan(m, a, found, COUNT_OF(found));
	bool right = !c->rule && !n;
	for (int i = 0; i < n; i++)
		right = right || (c->rule && !strcmp(found[i].rule, c->rule) && found[i].op && *found[i].text);
	for (int i = 0; i < n && !right; i++)
		printf("case %d: %s: %s\n", (int)(c - cases), found[i].rule, found[i].text);
	if (!right)
		printf("case %d: wanted %s\n", (int)(c - cases), c->rule ? c->rule : "nothing");
	return right;
}

static void test_rules(void)
{
	for (int i = 0; i < COUNT_OF(cases); i++) {
		Arena *a = arena_new();
		Diag d = {.out = stderr};
		char *text = edited(&cases[i]);
		Module *m = ir_parse("case", text, &d);
		UNIT_CHECK(m != NULL, "a case does not parse");
		if (m) {
			Diag quiet = {.out = tmpfile(), .max_errors = 1};
			UNIT_CHECK(finds(m, &cases[i], a), "another rule was found");
			UNIT_CHECK(ir_verify(m, NULL, &quiet) == !cases[i].rule, "the whole verifier says otherwise");
			fclose(quiet.out);
			ir_module_free(m);
		}
		free(text);
		arena_free(a);
	}
}

/* An op in front of what it reads is found before the rest relies on the order. */
static void test_order(void)
{
	Diag d = {.out = stderr};
	Arena *a = arena_new();
	PlanViolation found[4];
	Module *m = ir_parse("case", full, &d);
	Op *neg = m->first[SEC_FORWARD];
	while (neg->kind != OP_NEG)
		neg = neg->next;
	ir_move_before(m, neg, m->first[SEC_FORWARD]);
	CU_ASSERT_EQUAL(ir_verify_plan(m, a, found, 4), 1);
	CU_ASSERT_STRING_EQUAL(found[0].rule, "read-before-wait");
	CU_ASSERT_EQUAL(found[0].op->kind, OP_ALL_GATHER);
	ir_module_free(m);
	arena_free(a);
}

void suite_verify_plan(void)
{
	CU_pSuite s = CU_add_suite("verify_plan", NULL, NULL);
	CU_add_test(s, "each rule", test_rules);
	CU_add_test(s, "order of definition", test_order);
}
