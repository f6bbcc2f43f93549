/* tests/unit/test_check.c: --check-passes finds wrong passes and names them.
 *
 * Each case is a pass of the pipeline with one thing broken: a rule that holds only for some values, a gradient, a
 * merge of ops that are not equal, something left out.  The checker must name the pass, and the rule or the value. */
#include "passes/canon/canon.h"
#include "passes/check/check.h"
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

static const char *const text =
	"module \"m\" level=MODEL {\n"
	"  input \"x\" : f32[4,4]\n"
	"  param \"w\" : f32[4,4] {trainable=1}\n"
	"  output \"y\" : f32[]\n"
	"  output \"z\" : f32[4,4]\n"
	"  forward {\n"
	"    %x : f32[4,4] = input \"x\"\n"
	"    %w : f32[4,4] = param \"w\"\n"
	"    %t : f32[4,4] = transpose %x {perm=[1,0]}\n"
	"    %h : f32[4,4] = sub %w, %t\n"
	"    %p : f32[4,4] = mul %h, %w\n"
	"    %s : f32[4,4] = slice %p {sizes=[4,4], starts=[3,0], steps=[-1,1]}\n"
	"    %e : f32[4,4] = tanh %s\n"
	"    %f : f32[4,4] = sin %s\n"
	"    %a : f32[4,4] = add %e, %f\n"
	"    %b : f32[4,4] = softmax %a {axis=1}\n"
	"    %q : f32[4,4] = mul %b, %p\n"
	"    %y : f32[] = reduce_sum %q {axes=[0,1], keepdims=0}\n"
	"    output \"z\" %b\n"
	"    output \"y\" %y\n"
	"  }\n"
	"}\n";

/* ---- wrong rules, before those of canon ---- */

static Value *take_first(Rewriter *r, Op *op)
{
	(void)r;
	return op->in[0].value;
}

static Value *take_second(Rewriter *r, Op *op)
{
	(void)r;
	return op->in[1].value;
}

static Value *forget(Rewriter *r, Op *op)
{
	(void)r;
	return type_equal(&op->out[0]->type, &op->in[0].value->type) ? op->in[0].value : NULL;
}

static bool rewrite_wrongly(Module *m, Diag *d, const Rule *rule)
{
	const RuleSet sets[] = {{rule, 1}, canon_rules};
	rewrite_module(m, d, 2, sets, NULL, NULL);
	return true;
}

#define WRONG_RULE(name, kind, pattern, fn) \
	static bool name(Module *m, const Options *o, Diag *d) \
	{ \
		static const Rule rule = {kind, pattern, fn}; \
		(void)o; \
		return rewrite_wrongly(m, d, &rule); \
	}
WRONG_RULE(canon_subtracts, OP_SUB, "x - y -> x", take_first)
WRONG_RULE(canon_forgets, OP_TRANSPOSE, "transpose to the same shape -> x", forget)
WRONG_RULE(canon_slices, OP_SLICE, "slice to the same shape -> x", forget)
WRONG_RULE(canon_adds, OP_ADD, "x + y -> y", take_second)

/* ---- other passes, broken ---- */

static Op *first_of(Module *m, SectionKind s, OpKind kind)
{
	Op *op = m->first[s];
	while (op && op->kind != kind)
		op = op->next;
	if (!op)
		ice("no %s", op_info[kind].text);
	return op;
}

static bool wrong_gradient(Module *m, const Options *o, Diag *d)
{
	bool ok = pass_autodiff(m, o, d);
	Op *op = first_of(m, SEC_BACKWARD, OP_COS); /* of sin, as if it were that of -cos */
	Builder b = {.m = m, .section = SEC_BACKWARD, .before = op, .loc = op->loc};
	ir_replace_uses(op->out[0], ir_emit1(&b, OP_SIN, op_in(op, 0)));
	ir_remove(m, op);
	return ok;
}

static bool merge_unequal(Module *m, const Options *o, Diag *d)
{
	ir_replace_uses(first_of(m, SEC_FORWARD, OP_SIN)->out[0], first_of(m, SEC_FORWARD, OP_TANH)->out[0]);
	return pass_cse(m, o, d);
}

static bool drop_output(Module *m, const Options *o, Diag *d)
{
	ir_remove(m, first_of(m, SEC_FORWARD, OP_OUTPUT));
	return pass_dce(m, o, d);
}

static bool wrong_eval(Module *m, const Options *o, Diag *d)
{
	bool ok = pass_loss(m, o, d);
	Op *op = first_of(m, SEC_EVAL, OP_SIN);
	ir_replace_uses(op->out[0], op_in(op, 0));
	return ok;
}

/* ---- checking ---- */

typedef struct Case { const char *pass, *before; PassFn *run; const char *rule, *op, *what; } Case;
static const Case cases[] = {
	{"canon", "", canon_subtracts, "x - y -> x", "%h", "output \"z\""},
	{"canon", "", canon_forgets, "transpose to the same shape -> x", "%t", "output \"z\""},
	{"canon", "", canon_slices, "slice to the same shape -> x", "%s", "output \"z\""},
	{"canon", "", canon_adds, "x + y -> y", "%a", "output \"z\""},
	{"autodiff", "loss", wrong_gradient, NULL, "%s", "gradient of \"w\""},
	{"cse", "", merge_unequal, NULL, "%a", "output \"z\""},
	{"dce", "", drop_output, NULL, NULL, "output \"z\""},
	{"loss", "", wrong_eval, NULL, "%y.1", "eval: loss"},
};

static bool is_text(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

static CheckReport run_case(const PassInfo *p, const char *before, bool *ok, Module **m, char **log)
{
	size_t n = 0;
	Diag d = {.out = open_memstream(log, &n)};
	Options o = {.graph.loss = "output:y", .sharding.world = 1};
	CheckReport report;
	PipelineView view = {0};
	*m = ir_parse("m.ir", text, &d);
	if (*before)
		CU_ASSERT(pipeline_run(*m, &o, &view, before, &d));
	Check *c = check_new(&report);
	*ok = check_run(c, *m, p, &o, &d);
	check_free(c);
	fclose(d.out);
	return report;
}

static void check_names_what_is_wrong(void)
{
	for (int i = 0; i < COUNT_OF(cases); i++) {
		const Case *k = &cases[i];
		Module *m;
		char *log = NULL;
		bool ok;
		PassInfo p = {k->pass, k->run, LEVEL_MODEL, LEVEL_MODEL, ""};
		CheckReport r = run_case(&p, k->before, &ok, &m, &log);
		bool named = !ok && r.differs && is_text(r.pass, k->pass) && is_text(r.rule, k->rule) && is_text(r.op, k->op)
			&& is_text(r.what, k->what);
		char message[1000];
		snprintf(message, sizeof(message), "case %d: pass %s rule %s op %s what %s\n%s", i, r.pass, r.rule ? r.rule
			: "", r.op ? r.op : "", r.what ? r.what : "", log);
		UNIT_CHECK(named, message);
		ir_module_free(m);
		free(log);
	}
}

static void check_accepts_what_is_right(void)
{
	static const PassInfo right[] = {{"canon", pass_canon, LEVEL_MODEL, LEVEL_MODEL, ""},
		{"loss", pass_loss, LEVEL_MODEL, LEVEL_MODEL, ""}, {"autodiff", pass_autodiff, LEVEL_MODEL, LEVEL_TRAIN, ""}};
	for (int i = 0; i < COUNT_OF(right); i++) {
		Module *m;
		char *log = NULL;
		bool ok;
		CheckReport r = run_case(&right[i], i == 2 ? "loss" : "", &ok, &m, &log);
		UNIT_CHECK(ok && !r.differs && r.checked == 1, log);
		ir_module_free(m);
		free(log);
	}
}

void suite_check(void)
{
	CU_pSuite s = CU_add_suite("check", NULL, NULL);
	CU_add_test(s, "a broken pass is named, with its rule or where it begins", check_names_what_is_wrong);
	CU_add_test(s, "what is right passes", check_accepts_what_is_right);
}
