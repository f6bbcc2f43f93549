/* codegen/lower.c: the table of lowering rules, and the rules of constants, copies, units and losses.
 *
 * A rule writes the calls of one op and nothing else; places come from pass memory, and the order of calls is the
 * order of ops.  Refuses collectives that the runtime does not have.
 * lower_kernel serves every kernel whose arguments are in kernels.def.
 * Other rules: lower_move.c (data movement), lower_nn.c (kernels with shapes), fused.c (elementwise). */
#include "codegen/lower.h"

#include <inttypes.h>
#include <string.h>

static LowerFn *const rule[OP_COUNT] = {
#define OP(id, text, imin, imax, out, flags, first, last, attrs, shape, grad, eval, lower, cost, doc) \
	[OP_##id] = lower_##lower,
#include "ir/ops.def"
};

/* What tells kernels the node of an op that checks what it reads.  A loss that the model does not have itself has no
 * node: its location is that of the logits. */
static const char *node_of(Emit *e, const Op *op)
{
	const char *node = op->loc->node;
	bool loss = op->kind == OP_CROSS_ENTROPY || op->kind == OP_CROSS_ENTROPY_GRAD || op->kind == OP_LINEAR_CROSS_ENTROPY
		|| op->kind == OP_LINEAR_CROSS_ENTROPY_GRAD;
	if (!(op_info[op->kind].flags & CHECKED))
		return NULL;
	if (!*node || (loss && !strstr(op->loc->onnx, "Loss")))
		return map_count(e->nodes) ? "k_at(NULL)" : NULL;
	intptr_t n = (intptr_t)map_get(e->nodes, node);
	if (!n)
		map_put(e->nodes, node, (void *)(n = map_count(e->nodes) + 1));
	/* Functions of loops are shared by their whole text, so they have no parts. */
	return e->loop ? arena_printf(e->a, "k_at(nodes[%d])", (int)n - 1)
		: arena_printf(e->a, "k_at(nodes[%s])", emit_part(e, PART_NODE, n - 1, "node"));
}

void lower_op(Emit *e, const Op *op)
{
	bool empty = op->n_out && !op_has_effect(op);
	for (int i = 0; i < op->n_out; i++)
		empty = empty && op->out[i]->type.kind == TYPE_TENSOR && !type_numel(&op->out[i]->type);
	if (empty) /* an empty result needs no computation */
		return;
	e->at = node_of(e, op);
	rule[op->kind](e, op);
	e->at = NULL;
}

/* ---- no code ---- */

void lower_none(Emit *e, const Op *op)
{
	(void)e, (void)op;
}

/* Outputs need no code: the driver finds them by model.outputs. */
void lower_output(Emit *e, const Op *op)
{
	(void)e, (void)op;
}

/* ---- constants and copies ---- */

static const char *literal_at(Emit *e, const Attr *value, int i, DType t)
{
	if (value->kind == ATTR_FLOATS)
		return emit_c_literal(e, t, value->floats[i], int_of_double(value->floats[i]));
	return emit_c_literal(e, t, (double)value->ints[i], value->ints[i]);
}

void lower_const(Emit *e, const Op *op)
{
	const Attr *value = attr_find(op->attrs, "value");
	const Type *t = &op->out[0]->type;
	const char *ctype = dtype_info[t->dtype].ctype;
	const char *to = emit_value(e, op->out[0]);
	if (value->n == 1) {
		emit_line(e, "k_fill(%s, LIST(%s, %s), %" PRId64 ", %d);", to, ctype,
			literal_at(e, value, 0, t->dtype), type_numel(t), dtype_info[t->dtype].bytes);
		return;
	}
	Buf b = {0};
	for (int i = 0; i < value->n; i++)
		buf_printf(&b, i ? ", %s" : "{%s", literal_at(e, value, i, t->dtype));
	buf_printf(&b, "}");
	const char *name = emit_shared(e, arena_printf(e->a, "%s[]", ctype), "constant", b.at);
	buf_free(&b);
	emit_line(e, "k_set(%s, %s, %" PRId64 ");", to, name, type_bytes(t));
}

void lower_iota(Emit *e, const Op *op)
{
	const Type *t = &op->out[0]->type;
	emit_kernel(e, op, "o0", "%d, %s, %d, %s, %s", t->rank, emit_c_ints(e, t->rank, t->dim),
		emit_axis(op, "axis", t->rank), emit_c_float(e, attr_get_float(op->attrs, "start", 0)),
		emit_c_float(e, attr_get_float(op->attrs, "step", 1)));
}

void lower_copy(Emit *e, const Op *op)
{
	emit_kernel(e, op, "o0 i0", "%" PRId64, type_bytes(&op->out[0]->type));
}

static void copy_unless_there(Emit *e, const Place *to, const char *name, const Value *v)
{
	if (!emit_same_place(to, &v->place))
		emit_line(e, "k_copy(%s, %s, %" PRId64 ");", emit_place(e, to, name), emit_value(e, v), type_bytes(&v->type));
}

void lower_in_place(Emit *e, const Op *op, int result, const Value *x)
{
	copy_unless_there(e, &op->out[result]->place, op->out[result]->name, x);
}

bool lower_sum(Emit *e, const Op *op)
{
	const Value *sum = op_sum(op);
	if (sum)
		lower_in_place(e, op, op_sum_result(op), sum);
	return sum;
}

void lower_write(Emit *e, const Op *op)
{
	Place to = {.region = REGION_STATE, .offset = op->sym->offset};
	copy_unless_there(e, &to, op->sym->name, op_in(op, 0));
}

/* ---- kernels whose arguments are in kernels.def ---- */

static const struct { const char *op, *arguments; } calls[] = {
#define CALL(op, types, work, cuda, tensors, ...) {#op, #__VA_ARGS__},
#include "kernels/kernels.def"
};

static const char *arguments_of(const char *op)
{
	for (int i = 0; i < COUNT_OF(calls); i++)
		if (!strcmp(calls[i].op, op))
			return calls[i].arguments;
	ice("kernels.def has no CALL of %s", op);
}

static unsigned axes_mask(const Op *op, int rank)
{
	const Attr *axes = emit_list(op, "axes");
	unsigned mask = 0;
	for (int i = 0; i < axes->n; i++)
		mask |= 1u << (axes->ints[i] < 0 ? axes->ints[i] + rank : axes->ints[i]);
	return mask;
}

/* word: "ALONG", "FLAG(reverse)", .. */
static const char *argument(Emit *e, const Op *op, const char *word)
{
	const Type *x = &op_in(op, 0)->type;
	size_t kind = strcspn(word, "("), n = strlen(word);
	int64_t number = kind < n ? attr_get_int(op->attrs, arena_strndup(e->a, word + kind + 1, n - kind - 2), 0) : 0;
	if (!strcmp(word, "ALONG")) {
		Cut c = emit_cut(x, attr_get_int(op->attrs, "axis", 0));
		return arena_printf(e->a, "%" PRId64 ", %" PRId64 ", %" PRId64, c.outer, c.n, c.inner);
	}
	if (!strcmp(word, "SHAPE"))
		return arena_printf(e->a, "%d, %s", x->rank, emit_c_ints(e, x->rank, x->dim));
	if (!strcmp(word, "AXES"))
		return arena_printf(e->a, "0x%x", axes_mask(op, x->rank));
	if (!strncmp(word, "FLAG(", 5))
		return number ? "true" : "false";
	if (!strncmp(word, "COUNT(", 6))
		return arena_printf(e->a, "%" PRId64, number);
	if (!strcmp(word, "WORK"))
		return word;
	ice("kernels.def: %s has the argument %s", op_info[op->kind].text, word);
}

/* Calls the op's kernel with all results, all operands and the arguments of its row. */
void lower_kernel(Emit *e, const Op *op)
{
	const char *tensors = "", *rest = "";
	for (int i = 0; i < op->n_out; i++)
		tensors = arena_printf(e->a, "%s o%d", tensors, i);
	for (int i = 0; i < op->n_in; i++)
		tensors = arena_printf(e->a, "%s i%d", tensors, i);
	for (const char *s = arguments_of(op_info[op->kind].text); *s; s += strspn(s, ", ")) {
		size_t n = strcspn(s, ", ");
		const char *next = argument(e, op, arena_strndup(e->a, s, n));
		rest = arena_printf(e->a, "%s%s%s", rest, *rest ? ", " : "", next);
		s += n;
	}
	emit_kernel(e, op, tensors + 1, "%s", rest);
}

/* ---- units ---- */

static const Unit *unit_of_value(const Value *v)
{
	return v->type.unit;
}

static const char *number_of(Emit *e, const Op *op, const char *name)
{
	return emit_part(e, PART_COLLECTIVE, attr_get_int(op->attrs, "seq", 0), name);
}

static const char *call_of(const Op *op)
{
	return collective_info[op_collective(op)].call;
}

void lower_collective(Emit *e, const Op *op)
{
	emit_line(e, "rt_%s(rt, %s);", call_of(op), number_of(e, op, op_info[op->kind].text));
}

static const char *unit_number(Emit *e, const Unit *u)
{
	return emit_part(e, PART_UNIT, u->index, "unit");
}

void lower_wait(Emit *e, const Op *op)
{
	const Op *waited = op_in(op, 0)->op;
	emit_line(e, "rt_wait(rt, %s);", number_of(e, waited, waited->kind == OP_ALL_GATHER ? "gathered" : "reduced"));
}

void lower_reshard(Emit *e, const Op *op)
{
	emit_line(e, "rt_reshard(rt, %s);", unit_number(e, op->unit));
}

/* On the CPU the calling thread is the compute stream, so everything before a call is finished and no event is
 * needed. */
void lower_record(Emit *e, const Op *op)
{
	if (codegen_cuda(e->target))
		emit_line(e, "rt_record(rt, %s);", emit_part(e, PART_EVENT, emit_event(e, op), "record"));
}

/* Needs no code: the runtime's pointers to a resident unit are always valid. */
void lower_resident(Emit *e, const Op *op)
{
	(void)e, (void)op;
}

void lower_zero_gaps(Emit *e, const Op *op)
{
	emit_line(e, "rt_zero_gaps(rt, %s);", unit_number(e, op->unit));
}

/* A gradient that was written in its place needs no code; others are copied there, and absent ones become zeros. */
void lower_collect(Emit *e, const Op *op)
{
	const Unit *u = op->unit;
	for (int i = 0, k = 0; i < u->n_params && k < op->n_in; i++) {
		const Symbol *s = u->params[i];
		if (!s->trainable)
			continue;
		const Value *v = op_in(op, k++);
		int bytes = dtype_info[s->unit->flat[s->flat].grad].bytes;
		Place at = {REGION_GRAD, s->flat, (Unit *)u, s->offset * bytes};
		if (v)
			copy_unless_there(e, &at, s->name, v);
		else
			emit_line(e, "k_fill(%s, LIST(int64_t, 0), %" PRId64 ", %d);", emit_place(e, &at, s->name),
				type_numel(&s->type), bytes);
	}
}

void lower_accumulate(Emit *e, const Op *op)
{
	if (!op->n_in) /* the sum as it lies there, for an op that adds to it */
		return;
	DType from = op_in(op, 0)->type.dtype, to = op->out[0]->type.dtype;
	if (to != DT_F32 || (from != DT_F32 && from != DT_F16 && from != DT_BF16))
		emit_refuse(e, op, "gradients of %s are summed over micro-batches in %s: only f32, f16 and bf16 in f32",
			dtype_info[from].text, dtype_info[to].text);
	else if (op->n_in > 1)
		lower_matmul(e, op);
	else
		emit_line(e, "k_accumulate_%s(%s, %" PRId64 ");", dtype_info[from].text, emit_tensors(e, op, "o0 i0"),
			type_numel(&op->out[0]->type));
}

/* ---- memory of the host ---- */

static const char *copy_number(Emit *e, const Op *copy)
{
	return emit_part(e, PART_COPY, emit_event(e, copy), op_info[copy->kind].text);
}

void lower_offload(Emit *e, const Op *op)
{
	emit_line(e, "rt_%s(rt, %s, %" PRId64 ", %s);", op_info[op->kind].text, emit_tensors(e, op, "o0 i0"),
		type_bytes(&op->out[0]->type), copy_number(e, op));
}

void lower_copied(Emit *e, const Op *op)
{
	emit_line(e, "rt_copied(rt, %s);", copy_number(e, op_in(op, 0)->op));
}

/* ---- the end of a step ---- */

void lower_report_loss(Emit *e, const Op *op)
{
	emit_line(e, "rt_report_loss(rt, %s, %s, %s);", emit_value(e, op_in(op, 0)), emit_value(e, op_in(op, 1)),
		attr_get_int(op->attrs, "mean", 0) ? "true" : "false");
}

void lower_report_accuracy(Emit *e, const Op *op)
{
	const Type *t = &op_in(op, 0)->type;
	bool known = t->dtype == DT_I64; /* the classes themselves */
	int64_t c = t->rank && !known ? t->dim[t->rank - 1] : 1;
	if (!known && t->dtype != DT_F32 && !dtype_is_half(t->dtype)) {
		emit_refuse(e, op, "accuracy of %s logits: its kernel computes f32, bf16 and f16 only",
			dtype_info[t->dtype].text);
		return;
	}
	emit_line(e, "rt_report_accuracy(rt, %s, %s, %s, %" PRId64 ", %" PRId64 ", %s);", emit_value(e, op_in(op, 0)),
		kdtype_constant(t->dtype), emit_value(e, op_in(op, 1)), c ? type_numel(t) / c : 0, c,
		emit_int(e, attr_get_int(op->attrs, "ignore_index", -100)));
}

/* The driver sets the loss scale between steps; this makes it a value like any other. */
void lower_loss_scale(Emit *e, const Op *op)
{
	emit_line(e, "k_copy(%s, &rt->scalars->loss_scale, %d);", emit_value(e, op->out[0]), dtype_info[DT_F32].bytes);
}

void lower_sumsq(Emit *e, const Op *op)
{
	Buf b = {0};
	for (int i = 0; i < op->n_in; i++)
		buf_printf(&b, i ? ", %d" : "%d", unit_of_value(op_in(op, i))->index);
	emit_line(e, "rt_sumsq(rt, LIST(int, %s), %d);", b.at ? b.at : "0", op->n_in);
	buf_free(&b);
}

/* A blocking collective on vectors of f32 or f64: results, operands and, where it has one, n. */
void lower_vectors(Emit *e, const Op *op)
{
	const Type *t = &op_in(op, 0)->type;
	const char *tensors = "", *n = "";
	for (int i = 0; i < op->n_out; i++)
		tensors = arena_printf(e->a, "%so%d ", tensors, i);
	for (int i = 0; i < op->n_in; i++)
		tensors = arena_printf(e->a, "%s%si%d", tensors, i ? " " : "", i);
	if (attr_find(op->attrs, "n"))
		n = arena_printf(e->a, ", %s", emit_int(e, attr_get_int(op->attrs, "n", 0)));
	emit_line(e, "rt_%s(rt, %s, %s, %" PRId64 ", %s%s);", call_of(op), number_of(e, op, "sums"),
		dtype_constant(t->dtype), t->dim[0], emit_tensors(e, op, tensors), n);
}

void lower_step_scalars(Emit *e, const Op *op)
{
	(void)op;
	emit_line(e, "rt_step_scalars(rt);");
}

void lower_update_shard(Emit *e, const Op *op)
{
	emit_line(e, "rt_update_shard(rt, %s);", unit_number(e, op->unit));
}
