/* codegen/lower_recurrence.c: lowers recurrent layers to calls of their kernels, whose descriptors repeat the op. */
#include "codegen/lower.h"
#include "ir/recurrence.h"

#include <inttypes.h>
#include <math.h>

#define I64 "%" PRId64

static const char *flag(Emit *e, const char *field, bool v)
{
	return v ? arena_printf(e->a, ", .%s = true", field) : "";
}

/* "{K_ACT_SIGMOID, K_ACT_TANH}" and the numbers of those that take some. */
static const char *acts_text(Emit *e, const Op *op, const Recurrence *r)
{
	const char *act = "", *alpha = "", *beta = "";
	for (int i = 0; i < r->n_acts; i++) {
		const char *comma = i ? ", " : "";
		act = arena_printf(e->a, "%s%sK_ACT_%s", act, comma, activation_info[r->act[i]].id);
		alpha = arena_printf(e->a, "%s%s%s", alpha, comma, emit_c_float(e, r->alpha[i]));
		beta = arena_printf(e->a, "%s%s%s", beta, comma, emit_c_float(e, r->beta[i]));
	}
	return arena_printf(e->a, ".act = {%s}%s%s%s%s%s%s", act, attr_find(op->attrs, "alpha") ? ", .alpha = {" : "",
		attr_find(op->attrs, "alpha") ? alpha : "", attr_find(op->attrs, "alpha") ? "}" : "",
		attr_find(op->attrs, "beta") ? ", .beta = {" : "", attr_find(op->attrs, "beta") ? beta : "",
		attr_find(op->attrs, "beta") ? "}" : "");
}

static void call(Emit *e, const Op *op, const char *kernel, const Value *lengths, DType dtype, const char *tensors)
{
	static const char *const cell[CELL_COUNT] = {"RNN", "GRU", "LSTM"};
	Recurrence r;
	if (!recurrence_read(op, &r, NULL))
		ice("a recurrence that cannot be read");
	const char *sizes = arena_printf(e->a, ".t = " I64 ", .b = " I64 ", .h = " I64, r.t, r.b, r.h);
	const char *clip = isfinite(r.clip) ? arena_printf(e->a, ", .clip = %s", emit_c_float(e, r.clip)) : "";
	const char *work = e->m->work_bytes ? arena_printf(e->a, ", .work_bytes = " I64, e->m->work_bytes) : "";
	const char *desc = arena_printf(e->a, "{.dtype = %s, .cell = K_CELL_%s, %s%s%s%s%s%s, %s%s}",
		kdtype_constant(dtype), cell[r.cell], sizes, flag(e, "reverse", r.reverse), flag(e, "after", r.after),
		flag(e, "couple", r.couple), flag(e, "ids32", lengths && lengths->type.dtype == DT_I32), clip,
		acts_text(e, op, &r), work);
	const char *create = arena_printf(e->a, "%s_create", kernel);
	emit_line(e, "%s_run(%s, %s, WORK);", kernel, emit_prim(e, create, "KRecurrenceDesc", desc), tensors);
}

void lower_recurrence(Emit *e, const Op *op)
{
	bool lstm = op->n_out > REC_C;
	const char *results = lstm ? emit_tensors(e, op, "o0 n1 n2 n3 n4")
		: arena_printf(e->a, "%s, NULL, NULL", emit_tensors(e, op, "o0 n1 n2"));
	call(e, op, "k_recurrence", op_in(op, REC_LENGTHS), op->out[REC_Y]->type.dtype,
		arena_printf(e->a, "%s, %s", results, emit_tensors(e, op, "i0 i1 i2 i3 i4 i5 i6")));
}

void lower_recurrence_grad(Emit *e, const Op *op)
{
	const char *common = emit_tensors(e, op, "o0 n1 n2"), *more = "NULL, NULL, NULL";
	if (op->n_out == RECG_DP + 1)
		more = arena_printf(e->a, "%s, NULL", emit_tensors(e, op, "n3 n4"));
	else if (op->n_out == RECG_PRODUCT + 1)
		more = arena_printf(e->a, "NULL, NULL, %s", emit_tensors(e, op, "n3"));
	call(e, op, "k_recurrence_grad", op_in(op, RECG_LENGTHS), op_in(op, RECG_Y)->type.dtype,
		arena_printf(e->a, "%s, %s, %s", common, more, emit_tensors(e, op, "i0 i1 i2 i3 i4 i5 i6 i7 i8 i9 i10")));
}
