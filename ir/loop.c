/* ir/loop.c: the bodies of loops.
 *
 * A body lives as long as the module around it.  Each loop has a body of its own, so a pass that changes one changes no
 * other loop. */
#include "ir/ir.h"

Module *ir_body_new(Module *outer)
{
	Arena *a = outer->arena;
	Module *m = NEW(a, Module);
	m->arena = m->ops = a;
	m->outer = outer;
	m->name = outer->name;
	m->level = outer->level;
	m->batch = outer->batch;
	m->interned = outer->interned;
	m->symbol_by_name = map_new(a);
	m->unit_by_name = map_new(a);
	m->symbol_names = map_new(a);
	m->value_names = map_new(a);
	m->poison.name = "poison";
	return m;
}

const Module *ir_outermost(const Module *m)
{
	while (m->outer)
		m = m->outer;
	return m;
}

int64_t loop_steps(const Op *loop)
{
	return attr_get_int(loop->attrs, "steps", 0);
}

int loop_states(const Op *loop)
{
	return (int)attr_get_int(loop->attrs, "states", 0);
}

int loop_stacked(const Op *loop)
{
	return (int)attr_get_int(loop->attrs, "stacked", 0);
}

Op *loop_yield(const Op *loop)
{
	Op *last = loop->body->last[SEC_FORWARD];
	return last && last->kind == OP_YIELD ? last : NULL;
}

Value **loop_arguments(const Op *loop, Arena *a)
{
	Value **arg = NEW_N(a, Value *, loop->n_in + 1);
	IR_FOR_OPS(loop->body, SEC_FORWARD, op) {
		int64_t k = op->kind == OP_ARGUMENT ? attr_get_int(op->attrs, "index", -1) : -1;
		if (k >= 0 && k < loop->n_in)
			arg[k] = op->out[0];
	}
	return arg;
}

Value *loop_argument(Builder *b, int index, Type type)
{
	return ir_emit_typed(b, OP_ARGUMENT, 0, NULL, attr_int(b->m, NULL, "index", index), type);
}

Type loop_slice(const Type *stacked)
{
	return type_tensor(stacked->dtype, stacked->rank - 1, stacked->dim + 1);
}

Type loop_stack(const Type *slice, int64_t steps)
{
	int64_t dim[IR_MAX_RANK] = {steps};
	for (int i = 0; i < slice->rank && i + 1 < IR_MAX_RANK; i++)
		dim[i + 1] = slice->dim[i];
	return type_tensor(slice->dtype, slice->rank + 1, dim);
}

static void set_yield(const Op *loop, int n, Value *const *of)
{
	ir_set_n_in(loop->body, loop_yield(loop), n, of);
}

Value *loop_add_stacked(Module *m, Op *loop, Value *v, const char *name)
{
	const Op *yield = loop_yield(loop);
	Value **of = NEW_N(m->arena, Value *, yield->n_in + 1);
	for (int i = 0; i < yield->n_in; i++)
		of[i] = op_in(yield, i);
	of[yield->n_in] = v;
	set_yield(loop, yield->n_in + 1, of);
	return ir_add_result(m, loop, loop_stack(&v->type, loop_steps(loop)), name);
}

/* Drops stacked results that nothing reads. */
static void trim_results(Module *m, Op *loop)
{
	const Op *yield = loop_yield(loop);
	Value **of = NEW_N(m->arena, Value *, yield->n_in);
	int n = 0;
	for (int i = 0, k = 0; k < yield->n_in; k++) {
		if (k < loop_states(loop) || loop->out[i]->n_uses) {
			of[n++] = op_in(yield, k);
			i++;
		} else {
			ir_drop_result(loop, i);
		}
	}
	if (n < yield->n_in)
		set_yield(loop, n, of);
}

static void trim_operands(Module *m, Op *loop)
{
	Value **arg = loop_arguments(loop, m->arena), **in = NEW_N(m->arena, Value *, loop->n_in + 1);
	int n = 0, states = loop_states(loop), stacked = loop_stacked(loop);
	for (int i = 0; i < loop->n_in; i++) {
		bool read = i < states || arg[i];
		if (arg[i])
			arg[i]->op->attrs = attr_int(m, arg[i]->op->attrs, "index", n);
		if (read)
			in[n++] = op_in(loop, i);
		else if (i < states + loop_stacked(loop))
			stacked--;
	}
	if (n == loop->n_in)
		return;
	loop->attrs = attr_int(m, loop->attrs, "stacked", stacked);
	ir_set_n_in(m, loop, n, in);
}

void loop_trim(Module *m, Op *loop)
{
	trim_results(m, loop);
	ir_sweep(loop->body, SEC_FORWARD);
	trim_operands(m, loop);
}

Module *loop_clone_body(Module *m, const Op *loop)
{
	Module *body = ir_body_new(m);
	PtrMap *map = ptrmap_new(m->arena);
	Builder b = {.m = body, .section = SEC_FORWARD};
	IR_FOR_OPS(loop->body, SEC_FORWARD, op) {
		b.loc = op->loc;
		ir_clone(&b, op, map);
	}
	return body;
}
