/* passes/epilogue.c: lets products compute what follows them: GELU, its gradient, and bias gradients.
 *
 * Requires SHARD; behind all that makes, joins or splits products and behind fp8, whose products have no epilogue, and
 * before schedule, which orders ops by what is live.  Ensures that of 16-bit products by weights
 *   one that makes the operand x of a gelu (tanh form) makes gelu(x), too, if x is kept for backward;
 *   one that makes the gradient of a gelu multiplies it with gelu'(x), if nothing else reads it;
 *   one that gives the gradient of a weight gives the sums of the columns of dy, too: the gradient of the bias;
 * each where that is the cheapest place for it (epilogue_cost.h).  What a product is to compute is no loop, and gelu(x)
 * is kept for its gradient in a product, where a loop would make it again: so pass fuse asks here.
 *
 * cublasLt computes these for rows of a multiple of 8 elements, GELU in the tanh form alone. */
#include "ir/epilogue.h"
#include "passes/epilogue_cost.h"
#include "passes/passes.h"

enum { MULTIPLE = 8 };

/* ---- what a product can compute ---- */

static bool is_aligned(Value *v)
{
	return value_pitch(v) % MULTIPLE == 0;
}

/* Whether op is a product of 16 bits whose operands and result have aligned rows. */
static bool is_served(const Op *op)
{
	return op->kind == OP_MATMUL && !op->parent && dtype_is_half(op_in(op, 0)->type.dtype) && is_aligned(op_in(op, 0))
		&& is_aligned(op_in(op, 1)) && type_numel(&op->out[0]->type) && is_aligned(op->out[0]);
}

/* The product of rows with a weight that makes v, in 16 bits and in rows of its own; NULL: something else does. */
static Op *product_of(Value *v)
{
	Op *op = v->op;
	bool may = is_served(op) && op_in(op, 1)->type.rank == 2 && !attr_get_int(op->attrs, "ta", 0) && !op_sum(op);
	return may && dtype_is_half(v->type.dtype) && value_whole(v) == v ? op : NULL;
}

/* --check-nan checks what each op makes. */
static bool has_epilogues(Module *m, const Options *o)
{
	return options_cuda(o) && !ir_train(m)->check_nan;
}

/* Whether a loop reads v, which could make it as well. */
static bool is_in_loop(const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->kind == OP_FUSED || u->op->kind == OP_BROADCAST || op_info[u->op->kind].flags & EW)
			return true;
	return false;
}

static bool is_tanh(const Op *op, OpKind kind)
{
	return op->kind == kind && !op->parent && attr_get_int(op->attrs, "tanh", 0)
		&& type_equal(&op_in(op, 0)->type, &op->out[0]->type);
}

/* Whether the product that makes x can make gelu(x), too. */
static bool takes_gelu(const Op *op)
{
	Value *x = is_tanh(op, OP_GELU) ? op_in(op, 0) : NULL;
	return x && product_of(x) && x->op->section == op->section && x->n_uses > 1
		&& value_whole(op->out[0]) == op->out[0];
}

/* Whether the product that makes dy can make dy * gelu'(x) instead. */
static bool takes_gelu_grad(const Op *op)
{
	Value *dy = is_tanh(op, OP_GELU_GRAD) ? op_in(op, 1) : NULL;
	return dy && type_equal(&dy->type, &op->out[0]->type) && product_of(dy) && !op_in(dy->op, 2) && dy->n_uses == 1
		&& dy->op->section == op->section && value_whole(op->out[0]) == op->out[0]
		&& value_whole(op_in(op, 0)) == op_in(op, 0);
}

/* ---- where it is computed ---- */

static Where cheapest(Module *m, Follower what, bool in_product, const Type *t, const Options *o)
{
	unsigned may = 1u << (what == OF_SUMS ? IN_APART : IN_LOOP);
	if (in_product && has_epilogues(m, o))
		may |= 1u << IN_PRODUCT;
	return epilogue_where(&epilogue_rates[epilogue_target(o)], what, may, t);
}

/* Whether the product of its operand is to compute op.  Pass fp8 comes after fuse, which asks as well, so products that
 * it may take have none. */
static bool is_for_product(Module *m, const Op *op, const Options *o)
{
	bool grad = op->kind == OP_GELU_GRAD, served = grad ? takes_gelu_grad(op) : takes_gelu(op);
	return served && (o->precision.matmul_dtype != MATMUL_FP8 || !fp8_fits(op_in(op, grad)->op))
		&& cheapest(m, grad ? OF_GELU_GRAD : OF_GELU, true, &op->out[0]->type, o) == IN_PRODUCT;
}

bool epilogue_takes(Module *m, const Op *op, const Options *o)
{
	return is_for_product(m, op, o) && !is_in_loop(op->out[0]); /* which would compute it by the way */
}

bool epilogue_keeps(Module *m, const Op *op, const Options *o)
{
	for (const Use *u = op->kind == OP_GELU ? op_in(op, 0)->uses : NULL; u; u = u->next)
		if (u->op->kind == OP_GELU_GRAD && u == &u->op->in[0] && epilogue_takes(m, u->op, o))
			return true;
	return false;
}

/* ---- what was chosen ---- */

/* By what is computed: how many there are, how many products compute; and what this saves. */
typedef struct Tally { const EpilogueRates *rates; int all[FOLLOWERS], n[FOLLOWERS]; EpilogueCost saved; } Tally;

static void count(Tally *t, Follower what, const Type *type)
{
	EpilogueCost was = epilogue_cost(t->rates, what, what == OF_SUMS ? IN_APART : IN_LOOP, type);
	EpilogueCost now = epilogue_cost(t->rates, what, IN_PRODUCT, type);
	t->n[what]++;
	t->saved.moved += was.moved - now.moved;
	t->saved.kept += was.kept - now.kept;
	t->saved.more += was.more - now.more;
	t->saved.launches += was.launches - now.launches;
}

/* ---- GELU ---- */

static Attr *with_epilogue(Module *m, const Op *product, Epilogue e)
{
	return attr_str(m, attr_without(m, product->attrs, 0, NULL), "epilogue", epilogue_info[e].text);
}

static bool fuse_gelu(Module *m, Op *gelu)
{
	Value *x = op_in(gelu, 0), *y = gelu->out[0];
	Op *product = x->op;
	Value *in[] = {op_in(product, 0), op_in(product, 1), op_in(product, 2)};
	Builder b = {.m = m, .section = product->section, .before = product, .loc = product->loc, .name = y->name};
	Op *both = ir_emit_op(&b, OP_MATMUL_EPILOGUE, 3, in, with_epilogue(m, product, EPILOGUE_GELU), NULL);
	both->order = product->order;
	ir_replace_uses(y, both->out[0]);
	ir_replace_uses(x, both->out[1]);
	both->out[0]->name = y->name;
	both->out[1]->name = x->name;
	ir_remove(m, gelu);
	ir_remove(m, product);
	return true;
}

/* Whether a unit is given back between the two: the weight of the product may be gone then. */
static bool reshards_between(const Op *from, const Op *to)
{
	for (const Op *op = from; op != to; op = op->next)
		if (op->kind == OP_RESHARD)
			return true;
	return false;
}

static bool fuse_gelu_grad(Module *m, Op *grad)
{
	Value *x = op_in(grad, 0), *dx = grad->out[0];
	Op *product = op_in(grad, 1)->op;
	bool later = x->op->section == product->section && x->op->order > product->order;
	if (later && reshards_between(product, grad))
		return false;
	Value *in[] = {op_in(product, 0), op_in(product, 1), x};
	Builder b = {.m = m, .section = product->section, .before = later ? grad : product, .loc = grad->loc,
		.name = dx->name};
	Value *now = ir_emit(&b, OP_MATMUL_EPILOGUE, 3, in, with_epilogue(m, product, EPILOGUE_GELU_GRAD));
	now->op->order = later ? grad->order : product->order;
	ir_replace_uses(dx, now);
	now->name = dx->name;
	ir_remove(m, grad);
	ir_remove(m, product);
	return true;
}

static void fuse_one(Module *m, Op *op, Tally *t)
{
	Follower what = op->kind == OP_GELU ? OF_GELU : OF_GELU_GRAD;
	Type type = op->out[0]->type;
	if (what == OF_GELU ? fuse_gelu(m, op) : fuse_gelu_grad(m, op))
		count(t, what, &type);
}

/* ---- sums ---- */

/* Whether op sums v over all axes but the last, to f32. */
static bool sums_rows(const Op *op, const Value *v)
{
	const Attr *axes = op->kind == OP_REDUCE_SUM ? attr_find(op->attrs, "axes") : NULL;
	bool summed[IR_MAX_RANK] = {false};
	int rank = v->type.rank;
	for (int i = 0; axes && i < axes->n; i++)
		summed[axes->ints[i] < 0 ? axes->ints[i] + rank : axes->ints[i]] = true;
	for (int i = 0; i < rank - 1; i++)
		if (!summed[i] && v->type.dim[i] != 1)
			return false;
	return axes && op->out[0]->type.dtype == DT_F32 && rank && !summed[rank - 1];
}

/* Whether all that reads v stands behind the product. */
static bool is_read_behind(const Value *v, const Op *product)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->section < product->section || (u->op->section == product->section
			&& u->op->order <= product->order))
			return false;
	return true;
}

/* What sums the columns of v, rows of `cols`, or of a reshape of it; NULL = nothing. */
static Op *find_sums(const Value *v, int64_t cols, const Op *product)
{
	for (const Use *u = v->uses; u; u = u->next) {
		bool same = v->type.rank && v->type.dim[v->type.rank - 1] == cols && u->op->section == product->section;
		Op *found = u->op->kind == OP_RESHAPE ? find_sums(u->op->out[0], cols, product)
			: same && sums_rows(u->op, v) && is_read_behind(u->op->out[0], product) ? u->op : NULL;
		if (found)
			return found;
	}
	return NULL;
}

/* The op that sums the columns of operand i of the product, a matrix by itself; NULL = none. */
static Op *sums_of(const Op *product, int i)
{
	Value *v = op_in(product, i);
	int64_t cols = v->type.dim[v->type.rank - 1];
	if (v->type.rank != 2 || value_pitch(v) != cols)
		return NULL;
	while (v->op->kind == OP_RESHAPE)
		v = op_in(v->op, 0);
	return v->op->kind == OP_COLUMNS ? NULL : find_sums(v, cols, product);
}

static bool gives_weight_gradient(const Op *op)
{
	bool adds = op->kind == OP_ACCUMULATE && op->n_in == 2 && dtype_is_half(op_in(op, 0)->type.dtype)
		&& is_aligned(op_in(op, 0)) && is_aligned(op_in(op, 1));
	return (adds || (is_served(op) && !op_in(op, 2))) && attr_get_int(op->attrs, "ta", 0)
		&& !attr_get_int(op->attrs, "tb", 0) && op->out[0]->type.dtype == DT_F32 && op->out[0]->type.rank == 2;
}

static void fuse_sums(Module *m, Op *op, int summed, Op *reduce)
{
	Value *was = op->out[0], *sums = reduce->out[0];
	Builder b = {.m = m, .section = op->section, .before = op, .loc = op->loc};
	Value *in[] = {op_in(op, 0), op_in(op, 1), NULL, op->kind == OP_ACCUMULATE ? ir_sum_so_far(&b, op)
		: op_sum(op)};
	Attr *attrs = attr_int(m, attr_int(m, NULL, "ta", 1), "tb", 0);
	attrs = attr_str(m, attr_dtype(m, attrs, "to", DT_F32), "epilogue",
		epilogue_info[summed ? EPILOGUE_SUMS_B : EPILOGUE_SUMS_A].text);
	b.name = was->name;
	Op *both = ir_emit_op(&b, OP_MATMUL_EPILOGUE, 4, in, attrs, NULL);
	both->order = op->order;
	b.name = sums->name;
	b.loc = reduce->loc;
	Value *shaped = ir_reshape(&b, both->out[1], sums->type.rank, sums->type.dim);
	ir_replace_uses(was, both->out[0]);
	ir_replace_uses(sums, shaped);
	both->out[0]->name = was->name;
	both->out[1]->name = sums->name;
	ir_remove(m, op);
	ir_remove(m, reduce);
}

static bool add_sums(Module *m, Op *op, const Options *o, Tally *t)
{
	for (int i = 0; i < 2; i++) {
		Op *reduce = sums_of(op, i);
		if (!reduce || cheapest(m, OF_SUMS, true, &op_in(reduce, 0)->type, o) != IN_PRODUCT)
			continue;
		count(t, OF_SUMS, &op_in(reduce, 0)->type);
		fuse_sums(m, op, i, reduce);
		return true;
	}
	return false;
}

/* ---- the pass ---- */

/* Whether op, or an op of its body, is of a kind. */
static int count_kind(const Op *op, OpKind kind)
{
	int n = op->kind == kind;
	for (const Op *in = op->body_first; in; in = in->next)
		n += in->kind == kind;
	return n;
}

static void count_all(Module *m, Tally *t)
{
	for (int s = SEC_FORWARD; s <= SEC_BACKWARD; s++)
		IR_FOR_OPS(m, s, op) {
			t->all[OF_GELU] += count_kind(op, OP_GELU);
			t->all[OF_GELU_GRAD] += count_kind(op, OP_GELU_GRAD);
			t->all[OF_SUMS] += op->kind == OP_REDUCE_SUM && s == SEC_BACKWARD && sums_rows(op, op_in(op, 0));
		}
}

static void say(const Tally *t, Diag *d)
{
	if (t->all[OF_GELU] + t->all[OF_GELU_GRAD] + t->all[OF_SUMS])
		diag_info(d, "epilogue", "products compute %d of %d GELUs, %d of %d gradients of them and %d of %d sums of "
			"columns", t->n[OF_GELU], t->all[OF_GELU], t->n[OF_GELU_GRAD], t->all[OF_GELU_GRAD], t->n[OF_SUMS],
			t->all[OF_SUMS]);
	if (t->n[OF_GELU] + t->n[OF_GELU_GRAD] + t->n[OF_SUMS])
		diag_info(d, "epilogue", "this saves %.0f bytes of memory traffic and %d launches, keeps %.0f bytes more for "
			"backward, and takes products the time of %.0f bytes (rates of %s)", t->saved.moved, t->saved.launches,
			0 - t->saved.kept, 0 - t->saved.more, t->rates->id); /* -x of 0 would print "-0" */
}

bool pass_epilogue(Module *m, const Options *o, Diag *d)
{
	Tally t = {.rates = &epilogue_rates[epilogue_target(o)]};
	VEC(Op *) gradients = {0};
	count_all(m, &t);
	ir_number(m);
	for (int s = SEC_FORWARD; s <= SEC_BACKWARD; s++)
		IR_FOR_OPS_SAFE(m, s, op)
			if (is_for_product(m, op, o))
				fuse_one(m, op, &t);
	IR_FOR_OPS(m, SEC_BACKWARD, op)
		if (gives_weight_gradient(op))
			vec_push(m->arena, &gradients, op); /* sums that are removed stand anywhere */
	for (int i = 0; i < gradients.n; i++)
		add_sums(m, gradients.at[i], o, &t);
	say(&t, d);
	return true;
}
