/* passes/fp8.c: --matmul-dtype=fp8: products of linear layers read 8-bit floats.
 *
 * Requires SHARD, behind all passes that make, join or split products.  Ensures that a product of bf16 by a weight of
 * two dims, the product that gives the gradient of what it reads, and the one that gives that of the weight are
 * matmul_f8, of operands that to_f8 makes by the scale that f8_scale takes from the very tensor: e4m3 of activations
 * and weights, e5m2 of the gradient that comes in (as torchao's tensorwise recipe; Micikevicius et al., "FP8 Formats
 * for Deep Learning", 2022).  A tensor is quantised once a section, rows and columns in one pass, and its scale is
 * taken once a step, so a weight that is gathered again for backward, or an activation that is kept in bf16, is only
 * rounded again.
 *
 * Weights that nothing else reads are gathered so (fp8_gather.c).
 *
 * Stay as they are: products that make logits or another output of the model, behind which no weight is read, and the
 * gradients of those; products in f32, of several matrices, or whose rows, columns or sums are no multiple of 16;
 * operands that are columns of wider rows.  Says how many of them there are. */
#include "passes/passes.h"

enum { MULTIPLE = 16 };
/* In which products a weight stands in forward, by its attribute tb; LEFT: in one that stays as it is, or in both. */
enum { UNSEEN, PLAIN, TRANSPOSED, LEFT };

/* One operand of a product, as it has to lie: summed over its last dim. */
typedef struct Operand { Value *x; DType to; bool columns; } Operand;

/* A tensor in 8 bits, in one section. */
typedef struct Quantised {
	Value *x;
	DType to;
	Op *before;          /* the first product that reads it */
	bool rows, columns;
	Value *scale, *as_rows, *as_columns;
} Quantised;

typedef struct Product { Op *op; Operand of[2]; Quantised *q[2]; } Product;

typedef struct Fp8 {
	Module *m;
	Arena *a;
	PtrMap *weight;      /* symbol -> how it stands in forward */
	PtrMap *read;        /* tensor that a product by a weight reads in forward -> itself */
	PtrMap *grad;        /* tensor that gives a gradient of one of those -> itself */
	PtrMap *left_grad;   /* tensor that a product by a weight that stays as it is reads in backward -> itself */
	PtrMap *weights_behind; /* op of forward or eval that reads a weight, or is read by one that does -> itself */
	PtrMap *shown;       /* value that is, without further computation, logits or an output of the model -> itself */
	PtrMap *collected;   /* value that is, or is added to, the gradient of a parameter -> itself */
	PtrMap *scale[2][SEC_COUNT]; /* by e5m2: tensor, or symbol of a weight, -> its scale */
	VEC(Product) products;
	VEC(Quantised *) tensors; /* of the section */
	PtrMap *known[2];    /* by e5m2: tensor -> its element of tensors */
	int left;            /* products by weights that stay as they are */
} Fp8;

/* ---- which products ---- */

/* The tensor that v shows in other leading dims. */
static Value *tensor_of(Value *v)
{
	while (v->op->kind == OP_RESHAPE) {
		const Type *t = &v->type, *from = &op_in(v->op, 0)->type;
		if (!t->rank || from->rank < 2 || t->dim[t->rank - 1] != from->dim[from->rank - 1])
			break;
		v = op_in(v->op, 0);
	}
	return v;
}

/* The op that shows a parameter: at SHARD a view of its flat, before that the parameter itself. */
static const Op *shown_param(const Value *v)
{
	if (op_is_param_cast(v->op))
		return op_in(v->op, 0)->op;
	return v->op->kind == OP_VIEW_OP || v->op->kind == OP_PARAM ? v->op : NULL;
}

/* The same of the weight that the product reads; NULL: it reads none. */
static const Op *weight_of(const Op *op)
{
	const Value *w = op_in(op, 1);
	return w->type.rank == 2 && !attr_get_int(op->attrs, "ta", 0) ? shown_param(w) : NULL;
}

bool fp8_fits(const Op *op)
{
	const Type *a = &op_in(op, 0)->type, *b = &op_in(op, 1)->type, *y = &op->out[0]->type;
	bool ta = attr_get_int(op->attrs, "ta", 0);
	if (a->dtype != DT_BF16 || b->rank != 2 || (ta && a->rank != 2) || a->rank < 2 || value_is_joined(op->out[0])
			|| (op->kind == OP_ACCUMULATE && (y->rank != 2 || y->dtype != DT_F32)))
		return false;
	for (int i = 0; i < 2; i++)
		if (value_whole(op_in(op, i)) != op_in(op, i))
			return false;
	int64_t n = y->dim[y->rank - 1], k = a->dim[a->rank - (ta ? 2 : 1)];
	return type_numel(y) > 0 && k > 0 && n % MULTIPLE == 0 && k % MULTIPLE == 0 && type_numel(y) / n % MULTIPLE == 0;
}

/* ---- outputs ---- */

static bool shows(const Op *op) { return op_info[op->kind].flags & VIEW || op->kind == OP_CAST || op->kind == OP_JOIN; }

/* Finds the values that get to an op at which `ends` holds, through ops at which `passes_on` does and through sums that
 * products are added to. */
static void find_backwards(Fp8 *f, int section, PtrMap *found, bool ends(const Op *op), bool passes_on(const Op *op))
{
	for (Op *op = f->m->last[section]; op; op = op->prev) {
		bool end = ends(op), on = false;
		for (int i = 0; i < op->n_out && !end; i++)
			on = on || ptrmap_get(found, op->out[i]);
		for (int i = 0; i < op->n_in; i++) {
			Value *v = op_in(op, i);
			if (v && (end || (on && (passes_on(op) || op_sum(op) == v))))
				ptrmap_put(found, v, v);
		}
	}
}

static bool makes_output(const Op *op) { return op->kind == OP_CROSS_ENTROPY || op->kind == OP_OUTPUT; }

static bool takes_gradient(const Op *op)
{
	return op->kind == OP_COLLECT || (op->kind == OP_ACCUMULATE && op->n_in < 2);
}

static bool adds(const Op *op) { return op->kind == OP_ADD || op->kind == OP_FUSED || shows(op); }

static bool reads_weight(const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		while (v && v->op->n_in == 1 && shows(v->op) && !shown_param(v))
			v = op_in(v->op, 0);
		if (v && shown_param(v) && v->type.rank > 1)
			return true;
	}
	return false;
}

/* Whether what is made of v in its section takes a further weight. */
static bool has_weight_behind(const Fp8 *f, const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next) {
		const Op *op = u->op->parent ? u->op->parent : u->op;
		if (op->section == v->op->section && ptrmap_get(f->weights_behind, op))
			return true;
	}
	return false;
}

static void find_weights_behind(Fp8 *f, int section)
{
	for (Op *op = f->m->last[section]; op; op = op->prev) {
		bool behind = reads_weight(op);
		for (int i = 0; i < op->n_out; i++)
			behind = behind || has_weight_behind(f, op->out[i]);
		if (behind)
			ptrmap_put(f->weights_behind, op, op);
	}
}

/* Whether v makes an output: whatever the loss computes of it, and whether or not it is scaled or shifted first. */
static bool is_output(const Fp8 *f, const Value *v) { return ptrmap_get(f->shown, v) || !has_weight_behind(f, v); }

/* ---- weights ---- */

static intptr_t standing(const Fp8 *f, const Symbol *s)
{
	return (intptr_t)ptrmap_get(f->weight, s);
}

/* Takes note of how the weights of a product of forward, or of eval, stand in it. */
static void note_weights(Fp8 *f, const Op *op)
{
	const Op *view = weight_of(op);
	intptr_t how = !fp8_fits(op) || is_output(f, op->out[0]) ? LEFT
		: attr_get_int(op->attrs, "tb", 0) ? TRANSPOSED : PLAIN;
	for (int64_t i = 0; i < op_n_params(view); i++) {
		const Symbol *s = i ? view->sym->unit->params[view->sym->member + i] : view->sym;
		intptr_t was = standing(f, s);
		ptrmap_put(f->weight, s, (void *)(was && was != how ? LEFT : how));
	}
}

/* How the weights of a product stand in forward; LEFT where they do not agree. */
static intptr_t standing_of(const Fp8 *f, const Op *view)
{
	intptr_t how = standing(f, view->sym);
	for (int64_t i = 1; i < op_n_params(view); i++)
		if (standing(f, view->sym->unit->params[view->sym->member + i]) != how)
			return LEFT;
	return how;
}

/* Sets the operands of a product that gives the gradient of a weight: one of them was read in forward, or the other
 * gives the gradient of what was, and is not that of the result of a product that stays as it is. */
static bool find_gradient(const Fp8 *f, const Op *op, DType to[2])
{
	for (int i = 0; i < 2; i++) {
		Value *x = tensor_of(op_in(op, i)), *dy = tensor_of(op_in(op, !i));
		if (ptrmap_get(f->grad, dy) || (ptrmap_get(f->read, x) && !ptrmap_get(f->left_grad, dy))) {
			to[i] = DT_E4M3;
			to[!i] = DT_E5M2;
			return true;
		}
	}
	return false;
}

/* An accumulate of two operands adds their product. */
static bool is_product(const Op *op)
{
	return op->kind == OP_MATMUL || (op->kind == OP_ACCUMULATE && op->n_in == 2);
}

/* Whether a product that gives the gradient of a weight reads 8-bit floats, and of which types. */
static bool chooses_gradient(Fp8 *f, const Op *op, DType to[2])
{
	return is_product(op) && op->section == SEC_BACKWARD && !weight_of(op) && attr_get_int(op->attrs, "ta", 0)
		&& fp8_fits(op) && (op->kind == OP_ACCUMULATE || ptrmap_get(f->collected, op->out[0]))
		&& find_gradient(f, op, to);
}

/* The same of a product by a weight; where weights are multiplied with each other it is a gradient, too, and later
 * micro-batches add it. */
static bool chooses_weight(Fp8 *f, const Op *op, DType to[2])
{
	const Op *view = is_product(op) ? weight_of(op) : NULL;
	if (!view)
		return false;
	intptr_t how = standing_of(f, view);
	Value *x = tensor_of(op_in(op, 0));
	if (how == UNSEEN || how == LEFT || !fp8_fits(op)) {
		f->left++;
		if (op->section == SEC_BACKWARD)
			ptrmap_put(f->left_grad, x, x);
		return false;
	}
	bool forward = how == (attr_get_int(op->attrs, "tb", 0) ? TRANSPOSED : PLAIN);
	to[0] = forward ? DT_E4M3 : DT_E5M2;
	to[1] = DT_E4M3;
	ptrmap_put(forward ? f->read : f->grad, x, x);
	return true;
}

/* ---- operands ---- */

static Quantised *quantised(Fp8 *f, const Operand *want, Op *before)
{
	Value *x = tensor_of(want->x);
	PtrMap *known = f->known[want->to == DT_E5M2];
	Quantised *q = ptrmap_get(known, x);
	if (!q) {
		q = NEW(f->a, Quantised);
		*q = (Quantised){.x = x, .to = want->to, .before = before};
		vec_push(f->a, &f->tensors, q);
		ptrmap_put(known, x, q);
	}
	q->before = before->order < q->before->order ? before : q->before;
	q->rows = q->rows || !want->columns;
	q->columns = q->columns || want->columns;
	return q;
}

static Builder builder_before(Fp8 *f, Op *op, const char *name)
{
	return (Builder){.m = f->m, .section = op->section, .before = op, .loc = loc_with_role(f->m, op->loc, "fp8"),
		.name = name};
}

/* The scale of a tensor; of a weight that is gathered twice it is one. */
static Value *scale_of(Fp8 *f, const Quantised *q)
{
	int section = q->before->section == SEC_BACKWARD ? SEC_FORWARD : q->before->section;
	PtrMap *known = f->scale[q->to == DT_E5M2][section];
	const Op *op = q->x->op;
	const void *key = op->kind == OP_VIEW_OP && op_n_params(op) == 1 ? (const void *)op->sym : q->x;
	Value *scale = ptrmap_get(known, key);
	if (scale && (scale->op->section != q->before->section || scale->op->order <= q->before->order))
		return scale;
	Builder b = builder_before(f, q->before, arena_printf(f->m->arena, "%s.scale", q->x->name));
	scale = ir_emit(&b, OP_F8_SCALE, 1, &(Value *){q->x}, attr_dtype(f->m, NULL, "to", q->to));
	scale->op->order = q->before->order;
	ptrmap_put(known, key, scale);
	return scale;
}

static void quantise(Fp8 *f, Quantised *q)
{
	q->scale = scale_of(f, q);
	Builder b = builder_before(f, q->before, arena_printf(f->m->arena, "%s.%s", q->x->name, dtype_info[q->to].text));
	Attr *attrs = attr_dtype(f->m, NULL, "to", q->to);
	attrs = attr_int(f->m, attr_int(f->m, attrs, "rows", q->rows), "columns", q->columns);
	Op *op = ir_emit_op(&b, OP_TO_F8, 2, (Value *[]){q->x, q->scale}, attrs, NULL);
	q->as_rows = q->rows ? op->out[0] : NULL;
	q->as_columns = q->columns ? op->out[q->rows] : NULL;
}

/* ---- products ---- */

/* What is known of a tensor is known of what takes its place. */
static void inherit(Fp8 *f, const Value *from, Value *to)
{
	for (int e5m2 = 0; e5m2 < 2; e5m2++)
		for (int s = 0; s < SEC_COUNT; s++) {
			Value *scale = ptrmap_get(f->scale[e5m2][s], from);
			if (scale)
				ptrmap_put(f->scale[e5m2][s], to, scale);
		}
	if (ptrmap_get(f->read, from))
		ptrmap_put(f->read, to, to);
}

static void replace(Fp8 *f, Product *p)
{
	Op *op = p->op;
	Value *y = op->out[0], *in[6] = {0};
	Builder b = builder_before(f, op, y->name);
	b.loc = op->loc;
	for (int i = 0; i < 2; i++) {
		const Type *t = &p->of[i].x->type;
		in[i] = p->of[i].columns ? p->q[i]->as_columns : p->q[i]->as_rows;
		if (!p->of[i].columns && !type_same_shape(&in[i]->type, t))
			in[i] = ir_reshape(&b, in[i], t->rank, t->dim);
		in[2 + i] = p->q[i]->scale;
	}
	in[4] = op_in(op, 2);
	in[5] = op->kind == OP_ACCUMULATE ? ir_sum_so_far(&b, op) : op_sum(op);
	Value *now = ir_emit(&b, OP_MATMUL_F8, in[5] ? 6 : in[4] ? 5 : 4, in,
		attr_dtype(f->m, NULL, "to", y->type.dtype));
	ir_replace_uses(y, now);
	inherit(f, y, now);
	now->name = y->name;
	ir_remove(f->m, op);
}

static void choose(Fp8 *f, int section, bool chooses(Fp8 *f, const Op *op, DType to[2]))
{
	IR_FOR_OPS(f->m, section, op) {
		DType to[2];
		if (!chooses(f, op, to))
			continue;
		Product p = {.op = op};
		for (int i = 0; i < 2; i++) {
			bool transposed = attr_get_int(op->attrs, i ? "tb" : "ta", 0);
			p.of[i] = (Operand){op_in(op, i), to[i], i ? !transposed : transposed};
			p.q[i] = quantised(f, &p.of[i], op);
		}
		vec_push(f->a, &f->products, p);
	}
}

/* Products by weights first: they tell the operands of those that give gradients of weights. */
static void run_section(Fp8 *f, int section)
{
	f->products.n = f->tensors.n = 0;
	f->known[0] = ptrmap_new(f->a);
	f->known[1] = ptrmap_new(f->a);
	choose(f, section, chooses_weight);
	choose(f, section, chooses_gradient);
	for (int i = 0; i < f->tensors.n; i++)
		quantise(f, f->tensors.at[i]);
	for (int i = 0; i < f->products.n; i++)
		replace(f, &f->products.at[i]);
}

static void find_weights(Fp8 *f)
{
	static const SectionKind sections[] = {SEC_FORWARD, SEC_EVAL};
	for (int k = 0; k < COUNT_OF(sections); k++) {
		find_weights_behind(f, sections[k]);
		find_backwards(f, sections[k], f->shown, makes_output, shows);
		IR_FOR_OPS(f->m, sections[k], op)
			if (op->kind == OP_MATMUL && weight_of(op))
				note_weights(f, op);
	}
}

static int convert(Fp8 *f)
{
	int n = 0;
	ir_number(f->m);
	for (int s = 0; s < SEC_COUNT; s++) {
		f->scale[0][s] = ptrmap_new(f->a);
		f->scale[1][s] = ptrmap_new(f->a);
	}
	find_weights(f);
	find_backwards(f, SEC_BACKWARD, f->collected, takes_gradient, adds);
	for (int s = 0; s < SEC_COUNT; s++) {
		run_section(f, s);
		n += f->products.n;
	}
	return n;
}

static Fp8 fp8_new(Module *m)
{
	Fp8 f = {.m = m, .a = arena_new()};
	PtrMap **const maps[] = {&f.weight, &f.read, &f.grad, &f.left_grad, &f.weights_behind, &f.shown,
		&f.collected};
	for (int i = 0; i < COUNT_OF(maps); i++)
		*maps[i] = ptrmap_new(f.a);
	return f;
}

/* ---- weights whose gather could have 8 bits ---- */

/* Takes out the parameters that op reads otherwise than as the weight of a product that may read 8-bit floats. */
static void leave_others(Fp8 *f, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Op *param = op_in(op, i) ? shown_param(op_in(op, i)) : NULL;
		bool weight = param && i == 1 && op->kind == OP_MATMUL && weight_of(op) == param && fp8_fits(op);
		if (param && !weight && !op_is_param_cast(op))
			ptrmap_put(f->weight, param->sym, (void *)(intptr_t)LEFT);
	}
}

void fp8_weights(Module *m, PtrMap *found)
{
	Fp8 f = fp8_new(m);
	find_weights(&f);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			leave_others(&f, op);
	for (int i = 0; i < m->n_symbols; i++) {
		intptr_t how = standing(&f, m->symbols[i]);
		if (how == PLAIN || how == TRANSPOSED)
			ptrmap_put(found, m->symbols[i], m->symbols[i]);
	}
	arena_free(f.a);
}

/* ---- the pass ---- */

bool pass_fp8(Module *m, const Options *o, Diag *d)
{
	if (o->precision.matmul_dtype != MATMUL_FP8)
		return true;
	Fp8 f = fp8_new(m);
	int n = convert(&f);
	if (n)
		diag_info(d, "fp8", "%d products read 8-bit floats; %d by weights stay as they are", n, f.left);
	else
		diag_warn(d, "--matmul-dtype", "fp8 is not used: no product of a linear layer in bf16 has rows, columns and "
			"sums that are multiples of %d, besides those that make outputs", MULTIPLE);
	arena_free(f.a);
	fp8_gather(m, d);
	return true;
}
