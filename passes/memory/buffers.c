/* passes/memory/buffers.c: finds which values share memory, and for how long.
 *
 * Values that show or overwrite the same bytes form one buffer, whose life is the union of their lives, so that
 * placing memory is about intervals only.  Views join their operand's buffer.  A result joins an operand's buffer
 * when the op may overwrite it, the operand dies there and their types agree.  The gradient of a parameter lives in
 * its unit's flat gradient, from the first product of the sum that it is.
 *
 * Does not change the module, but op->order becomes the position. */
#include "passes/passes.h"

#include <limits.h>

Value *value_root(Value *v)
{
	while (op_info[v->op->kind].flags & VIEW && v->op->kind != OP_VIEW_OP)
		v = op_in(v->op, 0);
	return v;
}

int inplace_operand(const Op *op, int result, int from)
{
	unsigned flags = op_info[op->kind].flags;
	if (flags & EW || op->kind == OP_FUSED)
		return from < op->n_in ? from : -1;
	if (flags & VAROUT && op_residual(op)) { /* a norm's y and sum overwrite x and r */
		int next = from == 0 ? 0 : from < op->n_in ? op->n_in - 1 : -1;
		return result == 0 || result == op->n_out - 1 ? next : -1;
	}
	int only = flags & INPLACE ? 0 : op->kind == OP_CROSS_ENTROPY_GRAD ? 1 : -1;
	if (op_sum(op))
		only = op->n_in - 1;
	return result == op_sum_result(op) && from <= only ? only : -1;
}

/* ---- which values need a buffer ---- */

/* Whether the runtime holds v, outside of the activation arena. */
static bool is_runtime_value(const Value *v)
{
	return v->type.kind != TYPE_TENSOR || v->op->kind == OP_ALL_REDUCE_SCALARS || v->op->kind == OP_SUMSQ;
}

static bool has_own_place(const Op *op)
{
	return op->kind == OP_INPUT || op->kind == OP_READ || op->kind == OP_PARAM || op->kind == OP_VIEW_OP
		|| op->kind == OP_ARGUMENT;
}

/* ---- lifetimes ---- */

/* Outputs of a forward-only program are read after the last op. */
static bool is_kept(const Module *m, const Op *user)
{
	return user->kind == OP_OUTPUT && !m->first[SEC_FORWARD];
}

/* Notes where the op reads and makes values.  Walking ops is faster than walking users, which may lie far apart in
 * memory. */
static void note_positions(const Module *m, Op *op, int at, int *last)
{
	op->order = at;
	for (int i = 0; i < op->n_in; i++)
		if (op_in(op, i))
			last[op_in(op, i)->id] = MAX(last[op_in(op, i)->id], is_kept(m, op) ? INT_MAX : at);
	for (int i = 0; i < op->n_out; i++)
		last[op->out[i]->id] = at;
}

/* last: by Value.id, the position of the last op that reads the value, or of the op that makes it if none does. */
static Buffers *list_ops(Module *m, bool eval, int *last, Arena *a)
{
	int from = eval ? SEC_EVAL : SEC_FORWARD, to = eval ? SEC_EVAL : SEC_UPDATE, n_out = 0;
	VEC(Op *) ops = {0};
	for (int s = from; s <= to; s++) {
		IR_FOR_OPS(m, s, op) {
			note_positions(m, op, ops.n, last);
			n_out += op->n_out;
			vec_push(a, &ops, op);
		}
	}
	Buffers *b = NEW(a, Buffers);
	*b = (Buffers){.op = ops.at, .n_ops = ops.n, .at = NEW_N(a, Buffer, n_out), .of_value = NEW_N(a, int, m->n_values)};
	for (int i = 0; i < m->n_values; i++)
		b->of_value[i] = -1;
	return b;
}

static bool same_type(const Type *a, const Type *b)
{
	return a->dtype == b->dtype && type_same_shape(a, b);
}

static bool shows_rows(const Value *v)
{
	for (; op_info[v->op->kind].flags & VIEW && v->op->kind != OP_VIEW_OP; v = op_in(v->op, 0))
		if (v->op->kind == OP_ROWS)
			return true;
	return false;
}

bool inplace_agrees(Value *x, Value *y)
{
	if (shows_rows(x) || value_stack(y) != y)
		return false;
	bool columns = x->op->kind == OP_COLUMNS;
	int64_t n = y->type.rank ? y->type.dim[y->type.rank - 1] : 1;
	if (columns != value_is_joined(y) || !same_type(&value_whole(x)->type, &value_whole(y)->type))
		return false;
	return !columns || (x->type.dim[x->type.rank - 1] == n && value_start(x) % n == 0);
}

/* Only operands of which a loop reads the elements that it writes may show the buffer; others would be read after they
 * were overwritten. */
static bool others_agree(const Buffers *b, const Op *op, int buffer, int at, Value *y)
{
	bool elementwise = op_info[op->kind].flags & EW || op->kind == OP_FUSED;
	for (int i = 0; i < op->n_in; i++) {
		Value *v = op_in(op, i);
		if (i == at || !v || b->of_value[v->id] != buffer)
			continue;
		if (!elementwise || !inplace_agrees(v, y))
			return false;
	}
	return true;
}

static bool taken_by_sibling(const Buffers *b, const Op *op, int result, int buffer)
{
	for (int i = 0; i < result; i++)
		if (b->of_value[op->out[i]->id] == buffer)
			return true;
	return false;
}

/* The buffer of an operand that result i of op may overwrite, -1 = none. */
static int find_inplace(const Buffers *b, const Op *op, int i)
{
	Value *y = op->out[i];
	for (int k = inplace_operand(op, i, 0); k >= 0; k = inplace_operand(op, i, k + 1)) {
		Value *v = op_in(op, k);
		int buffer = v ? b->of_value[v->id] : -1;
		if (buffer < 0 || b->at[buffer].last != op->order || !inplace_agrees(v, y))
			continue;
		if (others_agree(b, op, buffer, k, y) && !taken_by_sibling(b, op, i, buffer))
			return buffer;
	}
	return -1;
}

static Place gradient_place(const Symbol *s)
{
	return (Place){REGION_GRAD, s->flat, s->unit, s->offset * dtype_info[s->unit->flat[s->flat].grad].bytes};
}

/* The buffer of value v, which op begins to write. */
static int new_buffer(Buffers *b, const Op *op, Value *v)
{
	if (v->type.layout)
		ice("%%%s: packed layouts have no planned size", v->name);
	Buffer *n = &b->at[b->n];
	n->value = v;
	n->bytes = round_up(MAX(type_bytes(&v->type), 1), 64);
	n->first = n->last = (int)op->order;
	n->place = v->op->kind == OP_ACCUMULATE ? gradient_place(v->op->sym)
		: (Place){.region = v->op->kind == OP_OFFLOAD ? REGION_HOST : REGION_ACT};
	return b->n++;
}

static void add_results(Buffers *b, const int *last, Op *op)
{
	for (int i = 0; i < op->n_out; i++) {
		Value *v = op->out[i], *stack = value_stack(v), *whole = stack == v ? value_whole(v) : stack;
		bool view = op_info[op->kind].flags & VIEW;
		if (has_own_place(op) || is_runtime_value(v))
			continue;
		int buffer = b->of_value[whole->id]; /* of a join or stack, the first of its operands began it */
		if (buffer < 0)
			buffer = view ? b->of_value[op_in(op, 0)->id] : find_inplace(b, op, i);
		if (buffer < 0 && !view)
			buffer = new_buffer(b, op, whole);
		b->of_value[v->id] = buffer;
		if (!view)
			b->of_value[whole->id] = buffer;
	}
	/* Ends lives after all results are placed: a result that dies at once must not be overwritten by another
	 * result of its op. */
	for (int i = 0; i < op->n_out; i++) {
		int buffer = b->of_value[op->out[i]->id];
		if (buffer >= 0)
			b->at[buffer].last = MAX(b->at[buffer].last, MIN(last[op->out[i]->id], b->n_ops));
	}
}

/* ---- gradients ---- */

/* Whether the value that begins a buffer, or a sum that is added to it, is what collect takes from operand k on: a
 * gradient, or those of several parameters that follow each other, whose rows are collected. */
static bool is_collected(const Op *collect, int k, const Value *first, const Symbol *s)
{
	const Value *v = op_in(collect, k), *whole = v->op->kind == OP_ROWS ? op_in(v->op, 0) : first;
	Type type;
	int64_t n = 1;
	if (v->op->kind != OP_ROWS)
		return type_bytes(&first->type) == type_bytes(&v->type) && first->op->kind != OP_STACK;
	for (int64_t end = 0; end < whole->type.dim[0]; n++, k++) {
		v = op_in(collect, k);
		if (!v || v->op->kind != OP_ROWS || op_in(v->op, 0) != whole || attr_get_int(v->op->attrs, "start", 0) != end)
			return false;
		end += v->type.dim[0];
	}
	return params_type(s, n - 1, &type) && type_same_shape(&type, &whole->type);
}

/* Puts the first gradient that can live in its parameter's place in the flat there; pass memory copies the others.
 * From the collect on the flat belongs to the collective, so a value that is read later cannot live there; nor can one
 * that overwrites what forward left, also where that was copied in again: the flat begins later. */
static void place_gradients(Buffers *b, const Op *collect)
{
	const Unit *u = collect->unit;
	for (int i = 0, k = 0; i < u->n_params && k < collect->n_in; i++) {
		Symbol *s = u->params[i];
		if (!s->trainable)
			continue;
		Value *v = op_in(collect, k++);
		Buffer *at = v && b->of_value[v->id] >= 0 ? &b->at[b->of_value[v->id]] : NULL;
		const Op *begin = at ? at->value->op : NULL;
		if (!at || at->place.region != REGION_ACT || begin->section < SEC_BACKWARD || begin->kind == OP_RELOAD)
			continue;
		if (at->last == collect->order && is_collected(collect, k - 1, at->value, s))
			at->place = gradient_place(s);
	}
}

Buffers *buffers_find(Module *m, bool eval, Arena *a)
{
	int *last = NEW_N(a, int, m->n_values);
	Buffers *b = list_ops(m, eval, last, a);
	for (int p = 0; p < b->n_ops; p++)
		add_results(b, last, b->op[p]);
	for (int p = 0; p < b->n_ops; p++)
		if (b->op[p]->kind == OP_COLLECT)
			place_gradients(b, b->op[p]);
	return b;
}

int64_t buffers_live(const Buffers *b, int64_t *live)
{
	int64_t sum = 0, peak = 0;
	for (int p = 0; p <= b->n_ops; p++)
		live[p] = 0;
	for (int i = 0; i < b->n; i++) {
		if (b->at[i].place.region != REGION_ACT)
			continue;
		live[b->at[i].first] += b->at[i].bytes;
		if (b->at[i].last < b->n_ops)
			live[b->at[i].last + 1] -= b->at[i].bytes;
	}
	for (int p = 0; p <= b->n_ops; p++) {
		live[p] = sum += live[p];
		peak = MAX(peak, sum);
	}
	return peak;
}
