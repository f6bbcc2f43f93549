/* codegen/checks.c: --check-nan: adds a call behind each op of a step with a float result, and a table that
 * describes them.
 *
 * Literals are not checked: an infinity in a literal is intended by the model, and so are infinities of ops that
 * read it. */
#include "codegen/emit.h"

#include <inttypes.h>
#include <math.h>

static bool is_infinite(const Op *op)
{
	const Attr *a = op->kind == OP_CONST ? attr_find(op->attrs, "value") : NULL;
	return a && a->kind == ATTR_FLOAT && !isfinite(a->f);
}

static bool is_copy(const Op *op)
{
	return op->kind == OP_OFFLOAD || op->kind == OP_RELOAD;
}

/* The value that v shows, or is a copy of by way of the host. */
static const Value *origin(const Value *v)
{
	while ((op_info[v->op->kind].flags & VIEW && v->op->kind != OP_VIEW_OP) || is_copy(v->op))
		v = v->op->in[0].value;
	return v;
}

/* The op that computes v: of a join, that of its parts. */
static const Op *maker_of(const Value *v)
{
	return v->op->kind == OP_JOIN ? op_in(v->op, 0)->op : v->op;
}

/* The numbers of the checks of the values that the op reads; -1: an infinity is intended. */
static const char *list_operands(Emit *e, const Value *v, int *n)
{
	const Op *op = maker_of(v);
	Buf b = {0};
	bool excused = op->kind == OP_ATTENTION && v->index == 1;
	for (const Op *inner = op->body_first; inner; inner = inner->next)
		excused = excused || is_infinite(inner);
	*n = 0;
	for (int i = 0; i < op->n_in; i++) {
		const Value *x = op_in(op, i);
		intptr_t number = x ? (intptr_t)ptrmap_get(e->checks, (void *)origin(x)) : 0;
		excused = excused || (x && is_infinite(origin(x)->op));
		if (number)
			buf_printf(&b, "%s%d", (*n)++ ? ", " : "", (int)number - 1);
	}
	if (excused)
		buf_printf(&b, "%s-1", (*n)++ ? ", " : "");
	const char *text = *n ? emit_shared(e, "int []", "read", arena_printf(e->a, "{%s}", b.at)) : "NULL";
	buf_free(&b);
	return text;
}

/* "f32[2,3] = matmul %a, %b  h.0.attn:node_MatMul (grad)", and for a loop the nodes from which it was made. */
static const char *what_of(Emit *e, const Op *op, const char *comment)
{
	Buf b = {0};
	const char *text = comment;
	for (const Op *inner = op->body_first; inner; inner = inner->next)
		if (*inner->loc->node)
			buf_printf(&b, "%s\"%s\" (%s)", b.n ? ", " : "; nodes ", inner->loc->node, inner->loc->onnx);
	if (b.n)
		text = arena_printf(e->a, "%s%s", comment, b.at);
	buf_free(&b);
	return arena_printf(e->a, "\"%s: %s\"", str_escape(e->a, ESCAPE_C_STRING, loc_where((Module *)e->m, op->loc)),
		str_escape(e->a, ESCAPE_C_STRING, text));
}

static void check_result(Emit *e, const Value *v, const char *comment)
{
	const Type *t = &v->type;
	int n_from;
	if (t->kind != TYPE_TENSOR || !dtype_is_float(t->dtype) || !v->n_uses || v->place.region == REGION_NONE ||
		!type_numel(t))
		return;
	const char *from = list_operands(e, v, &n_from);
	int number = e->n_checks++;
	ptrmap_put(e->checks, (void *)v, (void *)(intptr_t)(number + 1));
	buf_printf(&e->check_rows, "\t{%s, DT_%s, %d, %s, %s, %d},\n", what_of(e, maker_of(v), comment),
		t->dtype == DT_F32 ? "F32" : t->dtype == DT_F64 ? "F64" : t->dtype == DT_F16 ? "F16" : "BF16", t->rank,
		t->rank ? emit_int_list(e, t->rank, t->dim) : "{0}", from, n_from);
	emit_line(e, "rt_check(rt, %s, %s);", emit_part(e, PART_CHECK, number, "check"), emit_value(e, v));
}

static bool ends_reduce(const Op *op)
{
	return op->kind == OP_WAIT && op_reduces(op_in(op, 0)->op->kind);
}

void checks_after(Emit *e, const Op *op, const char *comment)
{
	unsigned flags = op_info[op->kind].flags;
	if (!e->train->check_nan || op->section == SEC_EVAL)
		return;
	if (ends_reduce(op))
		emit_line(e, "rt_check_gradient(rt, %s);",
			emit_part(e, PART_UNIT, op_in(op, 0)->op->unit->index, "unit"));
	if (op->kind == OP_CONST || is_copy(op) || (flags & VIEW && op->kind != OP_VIEW_OP))
		return;
	if (op->kind == OP_JOIN && attr_find(op->attrs, "width")) {
		emit_refuse(e, op, "--check-nan checks whole rows, and part of the rows of a join with a width has no content");
		return;
	}
	for (int i = 0; i < op->n_out; i++)
		if (!value_is_joined(op->out[i])) /* the join's rows are checked as a whole */
			check_result(e, op->out[i], comment);
}

int checks_write(Emit *e, Buf *out)
{
	if (e->n_checks)
		buf_printf(out, "/* What --check-nan checks: op, type, checks of what it reads (-1: an infinity is meant). */\n"
			"static const RtCheck checks[] = {\n%s};\n\n", e->check_rows.at);
	buf_free(&e->check_rows);
	return e->n_checks;
}
