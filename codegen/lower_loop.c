/* codegen/lower_loop.c: lowers a loop to a function of its own with a `for` around the calls of its body.
 *
 * The function takes the addresses of the loop's operands and results.  Its values lie at the end of the workspace
 * (passes/memory/loop.c), and places of the body become expressions of its variables: from<k> and to<k> are where
 * state k is read and written in this step (to<k> alone, if it is overwritten in place), x<i> and y<i> the slices of
 * operand i and result i. */
#include "codegen/lower.h"
#include "codegen/pieces.h"
#include "passes/passes.h"

#include <inttypes.h>
#include <string.h>

#define I64 "%" PRId64

struct LoopText {
	const Op *op;
	LoopPlan plan;
	bool reverse;
};

static bool is_state(const Op *op, int64_t i)
{
	return i < loop_states(op);
}

static bool is_slice(const Op *op, int64_t i)
{
	return i >= loop_states(op) && i < loop_states(op) + loop_stacked(op);
}

const char *loop_place(Emit *e, const Place *at)
{
	const Op *op = e->loop->op;
	switch (at->region) {
	case REGION_ACT: return arena_printf(e->a, "AT(own + " I64 ")", at->offset);
	case REGION_INPUT:
		return arena_printf(e->a, is_state(op, at->offset) ? "AT(from" I64 ")" : is_slice(op, at->offset)
			? "AT(x" I64 ")" : "AT((char *)x[" I64 "])", at->offset);
	case REGION_STATE:
		return arena_printf(e->a, is_state(op, at->offset) ? "AT(to" I64 ")" : "AT(y" I64 ")", at->offset);
	default: ice("a value of a loop's body lies outside of it");
	}
}

/* ---- before the steps ---- */

static int64_t slice_bytes(const Value *stacked)
{
	Type slice = loop_slice(&stacked->type);
	return type_bytes(&slice);
}

/* Declares the two copies of each state, so that the last step writes the result, and copies its first contents. */
static void put_states(Emit *e, const Op *op, Buf *b)
{
	for (int i = 0; i < loop_states(op); i++) {
		const char *own = arena_printf(e->a, "own + " I64, e->loop->plan.other[i]);
		const char *out = arena_printf(e->a, "(char *)y[%d]", i);
		bool odd = loop_steps(op) % 2;
		if (e->loop->plan.only[i]) {
			buf_printf(b, "\tchar *to%d = %s;\n", i, out);
			buf_printf(b, "\tk_copy(AT(to%d), AT((char *)x[%d]), " I64 ");\n", i, i, type_bytes(&op->out[i]->type));
			continue;
		}
		buf_printf(b, "\tchar *from%d = %s, *to%d = %s;\n", i, odd ? own : out, i, odd ? out : own);
		buf_printf(b, "\tk_copy(AT(from%d), AT((char *)x[%d]), " I64 ");\n", i, i, type_bytes(&op->out[i]->type));
	}
}

/* Declares the slices of this step; those that do not begin at multiples of 64 bytes are copied. */
static void put_slices(Emit *e, const Op *op, Buf *b)
{
	int states = loop_states(op);
	Value **arg = loop_arguments(op, e->a);
	bool any = op->n_out > states;
	for (int i = states; i < states + loop_stacked(op); i++) {
		arg[i] = arg[i] && arg[i]->n_uses ? arg[i] : NULL;
		any = any || arg[i];
	}
	if (any && e->loop->reverse)
		buf_printf(b, "\t\tconst int64_t i = " I64 " - t;\n", loop_steps(op) - 1);
	const char *at = e->loop->reverse ? "i" : "t";
	for (int i = states; i < states + loop_stacked(op); i++)
		if (arg[i])
			buf_printf(b, "\t\tchar *x%d = (char *)x[%d] + %s * " I64 ";\n", i, i, at, slice_bytes(op_in(op, i)));
	for (int i = states; i < op->n_out; i++)
		if (type_numel(&op->out[i]->type))
			buf_printf(b, "\t\tchar *y%d = (char *)y[%d] + %s * " I64 ";\n", i, i, at, slice_bytes(op->out[i]));
	for (int i = states; i < states + loop_stacked(op); i++)
		if (arg[i] && !loop_is_direct(op, true, i))
			buf_printf(b, "\t\tk_copy(AT(own + " I64 "), AT(x%d), " I64 ");\n", e->loop->plan.slice[i], i,
				slice_bytes(op_in(op, i)));
}

/* ---- the steps ---- */

static void put_body(Emit *e, const Op *op, Buf *b)
{
	IR_FOR_OPS(op->body, SEC_FORWARD, inner) {
		e->op = inner;
		e->calls.n = 0;
		e->parts.n = 0;
		e->pending = emit_comment(e, inner);
		lower_op(e, inner);
		for (int i = 0; i < e->calls.n; i++) {
			if (e->calls.at[i].n_parts)
				ice("a call in the body of a loop has parts");
			wrap_statement(b, "\t\t", e->calls.at[i].text, e->calls.at[i].comment);
		}
	}
}

/* Copies what was not computed where it is wanted; then the copies of states change places. */
static void put_results(Emit *e, const Op *op, Buf *b)
{
	const Op *yield = loop_yield(op);
	for (int i = 0; i < yield->n_in; i++) {
		const Value *v = op_in(yield, i);
		Place want = {.region = REGION_STATE, .offset = i};
		if (!emit_same_place(&v->place, &want) && type_numel(&v->type))
			buf_printf(b, "\t\tk_copy(%s, %s, " I64 ");\n", loop_place(e, &want), loop_place(e, &v->place),
				type_bytes(&v->type));
	}
	for (int i = 0; i < loop_states(op); i++)
		if (!e->loop->plan.only[i])
			buf_printf(b, "\t\tchar *was%d = from%d;\n\t\tfrom%d = to%d;\n\t\tto%d = was%d;\n", i, i, i, i, i, i);
}

static void put_function(Emit *e, const Op *op, Buf *b)
{
	Buf text = {0};
	put_states(e, op, &text);
	buf_printf(&text, "\tfor (int64_t t = 0; t < " I64 "; t++) {\n", loop_steps(op));
	put_slices(e, op, &text);
	put_body(e, op, &text);
	put_results(e, op, &text);
	buf_printf(&text, "\t}\n}\n\n");
	if (strstr(text.at, "own + "))
		buf_printf(b, "{\n\tchar *own = (char *)rt->work + " I64 ";\n%s", op->body->work_bytes, text.at);
	else
		buf_printf(b, "{\n%s%s", strstr(text.at, "rt->") ? "" : "\t(void)rt;\n", text.at);
	buf_free(&text);
}

/* The function of the loop; loops that do the same share it. */
static const char *function_of(Emit *e, const Op *op)
{
	struct LoopText loop = {.op = op, .plan = loop_plan(op, e->a), .reverse = attr_get_int(op->attrs, "reverse", 0)};
	Emit was = *e;
	Buf b = {0};
	op->body->work_bytes = e->m->work_bytes - loop.plan.bytes;
	e->calls = (Calls){0};
	e->parts.at = NULL;
	e->parts.n = e->parts.cap = 0;
	e->m = op->body;
	e->loop = &loop;
	put_function(e, op, &b);
	e->m = was.m;
	e->loop = NULL;
	e->calls = was.calls;
	e->parts = was.parts;
	e->op = was.op;
	e->pending = was.pending;
	const char *text = arena_strndup(e->a, b.at, b.n), *key = arena_printf(e->a, "loop %s", text);
	const char *name = map_get(e->bodies, key);
	buf_free(&b);
	if (name)
		return name;
	name = emit_unused(e, "loop");
	map_put(e->bodies, key, (void *)name);
	buf_printf(&e->step, "/* The steps of a loop: x and y are its operands and results. */\n"
		"static void %s(Rt *rt, void *const *x, void *const *y)\n%s", name, text);
	return name;
}

static const char *addresses(Emit *e, int n, Value *const *v)
{
	const char *list = "";
	for (int i = 0; i < n; i++)
		list = arena_printf(e->a, "%s%s%s", list, i ? ", " : "", emit_value(e, v[i]));
	return arena_printf(e->a, "LIST(void *, %s)", list);
}

void lower_loop(Emit *e, const Op *op)
{
	const char *name = function_of(e, op);
	Value **in = NEW_N(e->a, Value *, op->n_in + 1);
	for (int i = 0; i < op->n_in; i++)
		in[i] = op_in(op, i);
	const char *x = op->n_in ? addresses(e, op->n_in, in) : "NULL";
	emit_line(e, "%s(rt, %s, %s);", name, x, addresses(e, op->n_out, op->out));
}
