/* codegen/ops.c: writes ops.h, which says for what the marks OP of step.c stand: the k-th mark that a program passes is
 * row k of its table.
 *
 * Marked is the first call of each op that has calls; events are not, since only a GPU has them.  Programs with equal
 * rows share a table.  On GPUs rows name what --time-ops measures: ops of one kind, shape and dtype have one kernel. */
#include "codegen/emit.h"

#include <inttypes.h>
#include <string.h>

#include "predict/cost.h"

static bool waits(const Op *op)
{
	return op->kind == OP_WAIT || op->kind == OP_COPIED || (op_info[op->kind].flags & COMM && op_blocks(op->kind));
}

static bool issues(const Op *op)
{
	return op_info[op->kind].flags & COMM || op->kind == OP_OFFLOAD || op->kind == OP_RELOAD;
}

static bool overlap(const Value *a, const Value *b)
{
	const Place *p = &a->place, *q = &b->place;
	bool same = p->region == q->region && p->unit == q->unit && p->flat == q->flat && p->region != REGION_NONE;
	return same && a->type.kind == TYPE_TENSOR && b->type.kind == TYPE_TENSOR &&
		p->offset < q->offset + type_bytes(&b->type) && q->offset < p->offset + type_bytes(&a->type);
}

/* Whether calling it again would read what it has written. */
static bool changes_operands(const Op *op, const Work *w)
{
	bool found = w->class == COST_UPDATE || op->kind == OP_ACCUMULATE;
	for (int i = 0; i < op->n_out; i++)
		for (int k = 0; k < op->n_in; k++)
			found = found || (op_in(op, k) && overlap(op->out[i], op_in(op, k)));
	return found;
}

/* The number of the op's kernel; 0: it is not measured.  What it computes and moves is of one rank. */
static int kernel_of(Emit *e, const Op *op, const Work *w)
{
	if (w->class == COST_NONE || w->class == COST_COLLECTIVE)
		return 0;
	const char *row = arena_printf(e->a, "\t{%s, %s, %s, %s},\n",
		emit_c_string(e, str_escape(e->a, ESCAPE_JSON, cost_signature(op, w, e->a))), emit_c_float(e, w->flops),
		emit_c_float(e, w->bytes), dtype_constant(w->dtype));
	intptr_t known = (intptr_t)map_get(e->op_kernels, row);
	if (!known) {
		known = map_count(e->op_kernels) + 1;
		map_put(e->op_kernels, row, (void *)known);
		buf_printf(&e->kernel_rows, "%s", row);
	}
	return (int)known;
}

int ops_kernels(const Emit *e)
{
	return map_count(e->op_kernels);
}

void ops_mark(Emit *e, const Op *op, int number, int first)
{
	static const char *const kinds[] = {"RT_COMPUTES", "RT_ISSUES", "RT_WAITS"};
	if (e->calls.n == first || op->kind == OP_RECORD)
		return;
	e->calls.at[first].marked = true;
	const Unit *unit = op_unit(op);
	int64_t world = MAX(e->m->world, 1);
	bool measured = codegen_cuda(e->target);
	LayoutRank who = {.world = world, .shard_size = world};
	Work work = measured ? cost_of(op, &who) : (Work){.class = COST_NONE};
	buf_printf(&e->op_rows, "\t{%d, RT_%s, %s, %d, %s, %s, %d, %s},\n", number,
		op->section == SEC_FORWARD ? "FORWARD" : op->section == SEC_BACKWARD ? "BACKWARD" :
		op->section == SEC_UPDATE ? "UPDATE" : "EVAL",
		kinds[waits(op) ? 2 : issues(op) ? 1 : 0], unit ? unit->index : -1,
		emit_c_string(e, str_escape(e->a, ESCAPE_JSON, op_title(op, e->a))),
		emit_c_string(e, str_escape(e->a, ESCAPE_JSON, op->loc->node)), kernel_of(e, op, &work),
		measured && changes_operands(op, &work) ? "true" : "false");
	e->n_op_rows++;
}

void ops_end(Emit *e, const char *program)
{
	const char *rows = e->op_rows.at ? e->op_rows.at : "", *name = map_get(e->bodies, rows);
	if (e->n_op_rows && !name) {
		name = arena_printf(e->a, "ops_of_%s", program);
		map_put(e->bodies, rows, (void *)name);
		buf_printf(&e->ops, "static const RtOp %s[] = {\n%s};\n\n", name, rows);
	}
	map_put(e->op_lists, program, arena_printf(e->a, "{%s, %d}", e->n_op_rows ? name : "NULL", e->n_op_rows));
	e->op_rows.n = 0;
	if (e->op_rows.at)
		e->op_rows.at[0] = '\0';
	e->n_op_rows = 0;
}

const char *ops_list(const Emit *e, const char *program)
{
	const char *list = map_get(e->op_lists, program);
	return list ? list : "{NULL, 0}";
}

void ops_write(const Emit *e, Buf *out)
{
	buf_printf(out, "/* The ops of %s, made by shardc: what the marks OP of step.%s stand for, in order.  Not for "
		"editing.\n * A row: position among all ops of the program, section, kind, unit, name, node of the model, "
		"number of its\n * kernel (0: none), whether it changes what it reads. */\n",
		str_escape(e->a, ESCAPE_C_COMMENT, e->m->name), codegen_cuda(e->target) ? "cu" : "c");
	if (e->kernel_rows.n)
		buf_printf(out, "/* Kernels, from number 1: kind, operands and results; operations of products; bytes; dtype "
			"of the products. */\nstatic const RtKernel op_kernels[] = {\n%s};\n\n", e->kernel_rows.at);
	buf_printf(out, "%s", e->ops.at ? e->ops.at : "typedef int nothing_is_traced;\n");
}
