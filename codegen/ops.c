/* codegen/ops.c: writes ops.h, which says for what the marks OP of step.c stand: the k-th mark that a program passes is
 * row k of its table.
 *
 * Marked is the first call of each op that has calls; events are not, since only a GPU has them.  Programs with equal
 * rows share a table. */
#include "codegen/emit.h"

#include <inttypes.h>
#include <string.h>

static bool waits(const Op *op)
{
	return op->kind == OP_WAIT || op->kind == OP_COPIED || (op_info[op->kind].flags & COMM && op_blocks(op->kind));
}

static bool issues(const Op *op)
{
	return op_info[op->kind].flags & COMM || op->kind == OP_OFFLOAD || op->kind == OP_RELOAD;
}

void ops_mark(Emit *e, const Op *op, int number, int first)
{
	static const char *const kinds[] = {"RT_COMPUTES", "RT_ISSUES", "RT_WAITS"};
	if (e->calls.n == first || op->kind == OP_RECORD)
		return;
	e->calls.at[first].marked = true;
	const Unit *unit = op_unit(op);
	buf_printf(&e->op_rows, "\t{%d, RT_%s, %s, %d, %s, %s},\n", number,
		op->section == SEC_FORWARD ? "FORWARD" : op->section == SEC_BACKWARD ? "BACKWARD" :
		op->section == SEC_UPDATE ? "UPDATE" : "EVAL",
		kinds[waits(op) ? 2 : issues(op) ? 1 : 0], unit ? unit->index : -1,
		emit_c_string(e, str_escape(e->a, ESCAPE_JSON, op_title(op, e->a))),
		emit_c_string(e, str_escape(e->a, ESCAPE_JSON, op->loc->node)));
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
		"editing.\n * A row: position among all ops of the program, section, kind, unit, name, node of the model. */\n"
		"%s", str_escape(e->a, ESCAPE_C_COMMENT, e->m->name), codegen_cuda(e->target) ? "cu" : "c",
		e->ops.at ? e->ops.at : "typedef int nothing_is_traced;\n");
}
