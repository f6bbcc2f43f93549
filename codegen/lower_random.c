/* codegen/lower_random.c: lowers draw to its kernel. */
#include <inttypes.h>
#include <string.h>

#include "codegen/lower.h"

void lower_draw(Emit *e, const Op *op)
{
	const Type *t = &op->out[0]->type;
	const char *kind = attr_get_str(op->attrs, "kind", "");
	int64_t axis = attr_get_int(op->attrs, "axis", -1);
	Cut c = axis < 0 ? (Cut){.outer = 1, .inner = type_numel(t)} : emit_cut(t, axis);
	emit_kernel_of(e, op, t->dtype, "o0", "%" PRId64 ", %" PRId64 ", %" PRId64 ", %s, %s, %s, %s, %s, rt->scalars",
		c.outer, c.n, c.inner, !strcmp(kind, "normal") ? "K_DRAW_NORMAL" : !strcmp(kind, "uniform")
		? "K_DRAW_UNIFORM" : "K_DRAW_BERNOULLI", emit_c_float(e, attr_get_float(op->attrs, "p", 0)),
		emit_c_float(e, attr_get_float(op->attrs, "lo", 0)), emit_c_float(e, attr_get_float(op->attrs, "hi", 0)),
		emit_part(e, PART_ID, attr_get_int(op->attrs, "id", 0), "id"));
}
