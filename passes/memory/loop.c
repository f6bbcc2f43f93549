/* passes/memory/loop.c: where the values of a loop's body lie.
 *
 * All steps use the same memory, which lies in the workspace of the loop, at its end; what is before it is for the
 * kernels of the body.  A state has two copies that change places after each step: its result, and one in the
 * workspace; or its result alone, where one op reads it and writes the next one in place.  A value that is yielded is
 * computed where it is wanted, if that begins at a multiple of 64 bytes in each step; else it is copied there, and so
 * are slices that are read.  The plan follows from the module alone, so the places are not part of its text. */
#include "passes/passes.h"

/* Memory of `bytes` behind what is planned already. */
static int64_t take(LoopPlan *p, int64_t bytes)
{
	int64_t at = p->bytes;
	p->bytes += round_up(MAX(bytes, 1), 64);
	return at;
}

bool loop_is_direct(const Op *loop, bool operand, int i)
{
	int states = loop_states(loop);
	const Value *v = operand ? op_in(loop, i) : loop->out[i];
	bool stacked = operand ? i >= states && i < states + loop_stacked(loop) : i >= states;
	Type slice = stacked ? loop_slice(&v->type) : v->type;
	return !stacked || type_bytes(&slice) % 64 == 0;
}

/* Lets what is yielded live where the step's results are wanted. */
static void place_yields(const Op *loop, Buffers *b)
{
	const Op *yield = loop_yield(loop);
	for (int i = 0; i < yield->n_in; i++) {
		const Value *v = op_in(yield, i);
		int k = b->of_value[v->id];
		Buffer *at = k >= 0 ? &b->at[k] : NULL;
		if (at && at->place.region == REGION_ACT && loop_is_direct(loop, false, i)
				&& type_bytes(&at->value->type) == type_bytes(&v->type))
			at->place = (Place){.region = REGION_STATE, .offset = i};
	}
}

/* Whether the op that makes the next state k is the only one that reads it, and may overwrite it. */
static bool is_overwritten(const Op *loop, const Buffers *b, int k, Value *arg)
{
	Value *next = op_in(loop_yield(loop), k);
	const Buffer *at = b->of_value[next->id] >= 0 ? &b->at[b->of_value[next->id]] : NULL;
	if (!arg || arg->n_uses != 1 || arg->uses->op != next->op || !at || at->value != next
			|| at->place.region != REGION_STATE || at->place.offset != k || !inplace_agrees(arg, next))
		return false;
	for (int i = inplace_operand(next->op, next->index, 0); i >= 0; i = inplace_operand(next->op, next->index, i + 1))
		if (op_in(next->op, i) == arg)
			return true;
	return false;
}

/* Packs the other buffers behind what is planned. */
static void pack(LoopPlan *p, Buffers *b, Arena *a)
{
	MemoryBlock *block = NEW_N(a, MemoryBlock, b->n + 1);
	int n = 0;
	for (int i = 0; i < b->n; i++)
		if (b->at[i].place.region == REGION_ACT)
			block[n++] = (MemoryBlock){b->at[i].bytes, 0, b->at[i].first, b->at[i].last};
	int64_t start = take(p, memory_pack(block, n, b->n_ops + 1, NULL, 0, a));
	n = 0;
	for (int i = 0; i < b->n; i++)
		if (b->at[i].place.region == REGION_ACT)
			b->at[i].place.offset = start + block[n++].offset;
}

static Place argument_place(const Op *loop, const LoopPlan *p, const Op *arg)
{
	int k = (int)attr_get_int(arg->attrs, "index", 0);
	if (k < loop_states(loop) && p->only[k])
		return (Place){.region = REGION_STATE, .offset = k};
	if (loop_is_direct(loop, true, k))
		return (Place){.region = REGION_INPUT, .offset = k};
	return (Place){.region = REGION_ACT, .offset = p->slice[k]};
}

LoopPlan loop_plan(const Op *loop, Arena *a)
{
	int states = loop_states(loop);
	LoopPlan p = {.other = NEW_N(a, int64_t, states + 1), .only = NEW_N(a, bool, states + 1),
		.slice = NEW_N(a, int64_t, loop->n_in + 1)};
	Buffers *b = buffers_find(loop->body, false, a);
	Value **arg = loop_arguments(loop, a);
	place_yields(loop, b);
	for (int i = 0; i < states; i++) {
		p.only[i] = is_overwritten(loop, b, i, arg[i]);
		p.other[i] = p.only[i] ? 0 : take(&p, type_bytes(&loop->out[i]->type));
	}
	for (int i = 0; i < loop->n_in; i++)
		if (!loop_is_direct(loop, true, i)) {
			Type slice = loop_slice(&op_in(loop, i)->type);
			p.slice[i] = take(&p, type_bytes(&slice));
		}
	pack(&p, b, a);
	for (int k = 0; k < b->n_ops; k++)
		for (int i = 0; i < b->op[k]->n_out; i++) {
			Value *v = b->op[k]->out[i], *root = value_root(v);
			v->place = root->op->kind == OP_ARGUMENT ? argument_place(loop, &p, root->op)
				: b->at[b->of_value[v->id]].place;
			v->place.offset += value_offset(v);
		}
	return p;
}

int64_t loop_workspace(const Op *loop, const Options *o)
{
	Arena *a = arena_new();
	int64_t own = loop_plan(loop, a).bytes, kernels = 0;
	Options rest = *o;
	rest.memory.workspace = MAX(o->memory.workspace - own, 0);
	IR_FOR_OPS(loop->body, SEC_FORWARD, op)
		kernels = MAX(kernels, op_workspace(op, &rest));
	arena_free(a);
	return own + round_up(kernels, 64);
}
