/* passes/fp8_gather.c: gathers in 8 bits of the weights that products of 8-bit floats read.
 *
 * Requires SHARD, behind the products of pass fp8.  Ensures that a flat which units marked (Unit.f8) is gathered in
 * e4m3 if all that reads its parameters is to_f8 and f8_scale: each rank divides its part by the scale of the weight,
 * rounds it and sends a byte an element, and a product reads what is gathered.  The numbers are those of a gather in
 * bf16 whose result is quantised.  The scale needs the largest magnitude over all ranks, so it is a symbol, which
 * f8_scales sets at the start of a program (pass prefetch puts it there).  Parameters that one product reads as one
 * weight have one scale (as torchao's precompute_float8_dynamic_scale_for_fsdp has for each weight). */
#include "passes/passes.h"

typedef struct Gathers {
	Module *m;
	Unit *u;
	int flat;
	int64_t *together; /* by member of the unit: how many parameters, from this one on, are one weight; 0: none */
} Gathers;

static bool shows_flat(const Gathers *g, const Op *op)
{
	return op->kind == OP_VIEW_OP && op->sym->unit == g->u && op->sym->flat == g->flat;
}

/* ---- whether ---- */

/* What reads the view otherwise than products of 8-bit floats do; NULL: nothing. */
static const Op *other_reader(const Op *view)
{
	for (const Use *u = view->out[0]->uses; u; u = u->next)
		if (u->op->kind != OP_F8_SCALE && u->op->kind != OP_TO_F8)
			return u->op;
	return NULL;
}

/* Why the flat is gathered in bf16; NULL: it need not be. */
static const char *why_not(Gathers *g)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(g->m, s, op) {
			if (!shows_flat(g, op))
				continue;
			const Op *other = other_reader(op);
			if (other)
				return arena_printf(g->m->arena, "%s of %s reads \"%s\"", op_info[other->kind].text,
					loc_where(g->m, other->loc), op->sym->name);
			int64_t *n = &g->together[op->sym->member];
			if (*n && *n != op_n_params(op))
				return arena_printf(g->m->arena, "\"%s\" is read alone and with others", op->sym->name);
			*n = op_n_params(op);
		}
	for (int64_t i = 0, end = 0; i < g->u->n_params; i++) {
		bool inside = i < end;
		if (inside && g->together[i])
			return arena_printf(g->m->arena, "\"%s\" is read alone and with others", g->u->params[i]->name);
		end = g->together[i] ? i + g->together[i] : end;
	}
	return NULL;
}

/* ---- how ---- */

/* One scale for each weight; what nothing reads is a weight by itself. */
static Symbol **declare_scales(const Gathers *g)
{
	Module *m = g->m;
	Symbol **scale = NEW_N(m->arena, Symbol *, g->u->n_params);
	for (int64_t i = 0; i < g->u->n_params;) {
		const Symbol *s = g->u->params[i];
		int64_t n = MAX(g->together[i], 1);
		if (s->flat == g->flat) {
			scale[i] = ir_add_symbol(m, SYM_SCALE, arena_printf(m->arena, "%s.scale", s->name), type_scalar(DT_F32));
			scale[i]->param = s->name;
			scale[i]->n_params = n;
		}
		i += n;
	}
	return scale;
}

static void take_place(Value *was, Value *now)
{
	ir_replace_uses(was, now);
	now->name = was->name;
}

/* The scale is read where it was taken, rows of the weight are what was gathered, and its columns are that turned. */
static void read_gathered(const Gathers *g, const Op *view, Symbol *scale)
{
	Module *m = g->m;
	Value *w = view->out[0];
	w->type.dtype = DT_E4M3;
	for (Use *u = w->uses, *next; u; u = next) {
		Op *op = u->op;
		next = u->next;
		bool takes = op->kind == OP_F8_SCALE, turns = !takes && op->n_out > 1;
		Builder b = {.m = m, .section = op->section, .before = op, .loc = op->loc, .name = op->out[turns]->name};
		if (!takes && !attr_get_int(op->attrs, "rows", 0))
			continue;
		b.sym = takes ? scale : NULL;
		if (turns) {
			Attr *attrs = attr_int(m, attr_int(m, attr_dtype(m, NULL, "to", DT_E4M3), "rows", 0), "columns", 1);
			take_place(op->out[1], ir_emit(&b, OP_TO_F8, 2, (Value *[]){w, op_in(op, 1)}, attrs));
		}
		if (takes)
			take_place(op->out[0], ir_emit(&b, OP_READ, 0, NULL, NULL));
		else
			ir_replace_uses(op->out[0], w);
		ir_remove(m, op);
	}
}

static bool gives_flats(const Op *op)
{
	const Op *from = op->kind == OP_WAIT && op->n_in ? op_in(op, 0)->op : op;
	return from->kind == OP_ALL_GATHER || from->kind == OP_CARRIED || from->kind == OP_RESIDENT;
}

static void gather_in_8_bits(const Gathers *g, Symbol **scale)
{
	Module *m = g->m;
	VEC(Op *) views = {0};
	g->u->flat[g->flat].param = DT_E4M3;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op) {
			for (int i = 0; gives_flats(op) && i < op->n_out; i++)
				if (op->out[i]->type.unit == g->u && op->out[i]->type.flat == g->flat)
					op->out[i]->type.dtype = DT_E4M3;
			if (op->kind == OP_ALL_GATHER && op->unit == g->u)
				op->attrs = attr_str(m, op->attrs, "cast", unit_cast(m, g->u));
			if (shows_flat(g, op))
				vec_push(m->arena, &views, op);
		}
	for (int i = 0; i < views.n; i++)
		read_gathered(g, views.at[i], scale[views.at[i]->sym->member]);
}

void fp8_gather(Module *m, Diag *d)
{
	for (int i = 0; i < m->n_units; i++)
		for (int f = 0; f < m->units[i]->n_flats; f++) {
			Unit *u = m->units[i];
			if (!(u->f8 >> f & 1))
				continue;
			Gathers g = {.m = m, .u = u, .flat = f, .together = NEW_N(m->arena, int64_t, u->n_params)};
			const char *why = why_not(&g);
			u->f8 &= ~(1 << f);
			if (why)
				diag_info(d, u->name, "weights of products of 8-bit floats are gathered in bf16: %s", why);
			else
				gather_in_8_bits(&g, declare_scales(&g));
		}
}
