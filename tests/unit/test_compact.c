/* Suite compact: compacting moves a module's ops without changing the module, and leaves no pointer into the old
 * memory; a copy is the same module, and what is done to it is not done to the original. */
#include "ir/ir.h"
#include "tests/unit/parsed.h"
#include "tests/unit/unit.h"

#include <string.h>

static const char text[] =
	"module \"t\" level=TRAIN {\n"
	"input \"x\" : f32[2,3]\n output \"o\" : f32[2,3]\n param \"w\" : f32[3] {trainable=1}\n"
	"forward {\n"
	"%x : f32[2,3] = input \"x\"\n %w : f32[3] = param \"w\"\n"
	"%gone : f32[2,3] = neg %x\n"
	"%y : f32[2,3] = mul %x, %w\n"
	"%c : f32[2,3], %m : f32[2,1], %r : f32[2,1] = layer_norm %y, _, %w {axis=1, eps=1e-05}\n"
	"%z : f32[2,3] = fused %x, %c do {\n $2 : f32 = add $0, $1\n $3 : f32 = mul $2, $2\n yield $3\n}\n"
	"output \"o\" %z\n}\n"
	"backward {\n %g : f32[3] = reduce_sum %y {axes=[0], keepdims=0}\n}\n"
	"update {\n update \"w\" %g\n}\n"
	"eval {\n %ex : f32[2,3] = input \"x\"\n %ey : f32[2,3] = neg %ex\n output \"o\" %ey\n}\n}\n";

/* The kinds of ops that read v, in the order of its list. */
static void list_users(const Value *v, Buf *b)
{
	for (const Use *u = v->uses; u; u = u->next)
		buf_printf(b, "%s ", op_info[u->op->kind].text);
}

/* Of all results and bodies' arguments, in the order of the module. */
static bool ids_ascend(const Module *m)
{
	int n = 0;
	bool ok = true;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op) {
			for (int i = 0; i < op->n_out; i++)
				ok = ok && op->out[i]->id == n++;
			for (int i = 0; op->kind == OP_FUSED && i < op->n_in; i++)
				ok = ok && op->args[i]->id == n++;
			for (const Op *inner = op->body_first; inner; inner = inner->next)
				for (int i = 0; i < inner->n_out; i++)
					ok = ok && inner->out[i]->id == n++;
		}
	return ok && n == m->n_values;
}

static void same_module(void)
{
	Diag d = {.out = stderr};
	Module *m = parsed(text);
	Buf before = {0}, after = {0};
	ir_remove(m, value_named(m, "gone")->op);
	ir_move_before(m, value_named(m, "w")->op, value_named(m, "x")->op);
	CU_ASSERT(!ids_ascend(m));
	const char *was = ir_text(m, m->arena);
	list_users(value_named(m, "x"), &before);
	list_users(value_named(m, "y"), &before);
	for (int twice = 0; twice < 2; twice++) {
		ir_compact(m);
		after.n = 0;
		list_users(value_named(m, "x"), &after);
		list_users(value_named(m, "y"), &after);
		CU_ASSERT_STRING_EQUAL(ir_text(m, m->arena), was);
		CU_ASSERT_STRING_EQUAL(after.at, before.at);
		CU_ASSERT(ids_ascend(m) && ir_verify(m, NULL, &d));
	}
	/* it goes on as a module does */
	Builder b = {.m = m, .section = SEC_EVAL, .name = "y"};
	CU_ASSERT_STRING_EQUAL(ir_emit1(&b, OP_NEG, value_named(m, "ey"))->name, "y.1");
	CU_ASSERT(ir_verify(m, NULL, &d));
	buf_free(&before);
	buf_free(&after);
	ir_module_free(m);
}

/* ---- copies ---- */

static const char looped[] = "module \"l\" level=MODEL {\n  input \"x\" : f32[2]\n  output \"o\" : f32[2]\n"
	"  forward {\n"
	"    %x : f32[2] = input \"x\"\n    %y : f32[2] = loop %x {states=1, stacked=0, steps=3} do {\n"
	"      %a : f32[2] = argument {index=0}\n      %n : f32[2] = neg %a\n      yield %n\n    }\n"
	"    output \"o\" %y\n  }\n}\n";

static void same_copy(const char *of)
{
	Diag d = {.out = stderr};
	Arena *a = arena_new();
	Module *m = parsed(of), *copy = ir_copy(m);
	const char *was = ir_text(m, a);
	Buf before = {0}, after = {0};
	CU_ASSERT(ir_verify(copy, NULL, &d));
	CU_ASSERT_STRING_EQUAL(ir_text(copy, a), was);
	CU_ASSERT_EQUAL(copy->n_values, m->n_values);
	CU_ASSERT_EQUAL(value_named(copy, "x")->id, value_named(m, "x")->id);
	CU_ASSERT_PTR_NOT_EQUAL(value_named(copy, "x")->op->sym, value_named(m, "x")->op->sym);
	list_users(value_named(m, "x"), &before);
	list_users(value_named(copy, "x"), &after);
	CU_ASSERT_STRING_EQUAL(after.at, before.at);
	Builder b = {.m = copy, .section = SEC_FORWARD, .before = copy->last[SEC_FORWARD],
		.loc = value_named(copy, "x")->op->loc};
	Value *now = ir_emit1(&b, OP_EXP, value_named(copy, "x"));
	ir_replace_uses(value_named(copy, "y"), now);
	CU_ASSERT(ir_verify(m, NULL, &d));
	CU_ASSERT_STRING_EQUAL(ir_text(m, a), was);
	CU_ASSERT_STRING_NOT_EQUAL(ir_text(copy, a), was);
	ir_module_free(copy);
	CU_ASSERT_STRING_EQUAL(ir_text(m, a), was);
	ir_module_free(m);
	buf_free(&before);
	buf_free(&after);
	arena_free(a);
}

static void copies(void)
{
	same_copy(text);
	same_copy(looped);
}

void suite_compact(void)
{
	CU_pSuite s = CU_add_suite("compact", NULL, NULL);
	CU_add_test(s, "the same text, lists of uses and rules", same_module);
	CU_add_test(s, "a copy", copies);
}
