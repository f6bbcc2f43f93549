/* passes/pitch.c: gives the rows of wide results an aligned pitch on GPUs.
 *
 * Requires SHARD; behind all passes that make and join ops, and before schedule, since it changes where values live.
 * Ensures that logits, their gradient and other results of products whose rows are no multiple of ALIGNED bytes are
 * columns of rows that are a multiple of PITCH elements (join with a width), if products and losses alone read them.
 * The tensor memory accelerator of GPUs and accesses of 16 bytes want rows that begin at a multiple of 16 bytes: logits
 * of 50257 classes in bf16 do not.  What is behind the columns is neither written nor read; weights stay as they are
 * stored.  Of a program with --check-nan nothing changes, since it checks whole rows.
 *
 * Rows that are short by comparison stay as they are: they would grow by more than a sixteenth.  CPUs load any row at
 * almost the same speed; there nothing changes, either. */
#include "passes/passes.h"

#include <string.h>

enum { ALIGNED = 16, PITCH = 64, SHORTEST = 16 * PITCH };

static int64_t row_of(const Type *t)
{
	return t->rank ? t->dim[t->rank - 1] : 0;
}

static bool wants_pitch(const Type *t)
{
	int64_t row = row_of(t);
	return t->rank >= 2 && row >= SHORTEST && row * dtype_info[t->dtype].bytes % ALIGNED && type_numel(t) > row;
}

/* Whether a product or a loss reads the operand, by rows.  Loops could as well, but gain nothing. */
static bool is_product_or_loss(const Use *u)
{
	bool loop = u->op->kind == OP_FUSED || op_info[u->op->kind].flags & EW;
	return !loop && op_reads_columns(u->op, (int)(u - u->op->in));
}

/* Whether products and losses alone read v, and views of the same rows. */
static bool readers_agree(const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next) {
		bool view = u->op->kind == OP_RESHAPE && row_of(&u->op->out[0]->type) == row_of(&v->type);
		if (view ? !readers_agree(u->op->out[0]) : !is_product_or_loss(u))
			return false;
	}
	return v->n_uses;
}

/* The results of cross_entropy_grad that read v; they have its pitch.  False: one of them cannot. */
static bool add_gradients(Value *v, Op **grad)
{
	for (const Use *u = v->uses; u; u = u->next) {
		if (u->op->kind == OP_RESHAPE && !add_gradients(u->op->out[0], grad))
			return false;
		if (u->op->kind != OP_CROSS_ENTROPY_GRAD || u != &u->op->in[1])
			continue;
		if (*grad || !readers_agree(u->op->out[0]))
			return false;
		*grad = u->op;
	}
	return true;
}

/* Replaces v, in what reads it, by columns of rows: `rows`, or a reshape of it. */
static void show(Builder *b, Value *v, Value *rows)
{
	Value *columns = NULL;
	Attr *attrs = attr_int(b->m, attr_int(b->m, NULL, "start", 0), "size", row_of(&v->type));
	for (Use *u = v->uses, *next; u; u = next) {
		Op *op = u->op;
		next = u->next;
		if (op->kind == OP_JOIN)
			continue;
		if (op->kind != OP_RESHAPE) {
			b->name = v->name;
			columns = columns ? columns : ir_emit(b, OP_COLUMNS, 1, &rows, attrs);
			ir_set_in(op, (int)(u - op->in), columns);
			continue;
		}
		int64_t dim[IR_MAX_RANK];
		const Type *t = &op->out[0]->type;
		memcpy(dim, t->dim, sizeof(dim));
		dim[t->rank - 1] = row_of(&rows->type);
		show(b, op->out[0], ir_reshape(b, rows, t->rank, dim));
		ir_remove(b->m, op);
	}
}

static void widen(Module *m, Value *v)
{
	int64_t width = round_up(row_of(&v->type), PITCH);
	Builder b = {.m = m, .section = v->op->section, .before = v->op->next, .loc = v->op->loc, .name = v->name};
	Attr *attrs = attr_int(m, attr_int(m, NULL, "axis", v->type.rank - 1), "width", width);
	show(&b, v, ir_emit_op(&b, OP_JOIN, 1, &v, attrs, NULL)->out[0]);
}

static bool widen_product(Module *m, Op *op)
{
	Value *v = op->out[0];
	Op *grad = NULL;
	if (op_sum(op) || !wants_pitch(&v->type) || !readers_agree(v) || !add_gradients(v, &grad))
		return false;
	widen(m, v);
	if (grad)
		widen(m, grad->out[0]);
	return true;
}

bool pass_pitch(Module *m, const Options *o, Diag *d)
{
	int n = 0;
	(void)o;
	if (!ir_train(m)->cuda || ir_train(m)->check_nan)
		return true;
	for (int s = SEC_FORWARD; s < SEC_COUNT; s++)
		IR_FOR_OPS_SAFE(m, s, op)
			n += op->kind == OP_MATMUL && widen_product(m, op);
	if (n)
		diag_info(d, "pitch", "rows of the results of %d products begin at multiples of %d elements", n, PITCH);
	return true;
}
