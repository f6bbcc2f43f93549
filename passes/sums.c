/* passes/sums.c: lets products that are summed add to each other, in f32.
 *
 * Requires TRAIN; before fuse, which would make loops of the sums, and after legalize, by which products give f32
 * results.  Ensures that where backward adds up results of products and gradients of gathers that nothing else reads,
 * each of them after the first one takes the sum so far as its operand and adds to it in place.  So a gradient with
 * several contributions is one buffer: of a tied weight the flat gradient itself, of q's, k's and v's input one tensor.
 * A sum in 16 bits is kept in f32 and rounded once, at its end.  Other terms are added to that sum as before. */
#include "passes/passes.h"

#include <stdlib.h>

typedef struct Sum {
	VEC(Op *) adds;       /* readers first */
	VEC(Value *) products; /* in the order in which they are computed */
	VEC(Value *) others;  /* from right to left */
} Sum;

static bool is_add(const Op *op)
{
	const Type *t = &op->out[0]->type;
	return op->kind == OP_ADD && (t->dtype == DT_F32 || dtype_is_half(t->dtype))
		&& type_equal(&op_in(op, 0)->type, t) && type_equal(&op_in(op, 1)->type, t);
}

static bool is_lone(const Value *v)
{
	return v->n_uses == 1 && v->op->section == v->uses->op->section;
}

/* Whether op adds to what only another addition reads. */
static bool is_inner(const Op *op)
{
	return is_add(op) && is_lone(op->out[0]) && op->out[0]->uses->op->kind == OP_ADD && is_add(op->out[0]->uses->op);
}

static bool can_add(const Value *v)
{
	const Op *op = v->op;
	bool product = op->kind == OP_MATMUL && !op_in(op, 2);
	return is_lone(v) && !op_sum(op) && (product || (op->kind == OP_GATHER_GRAD && v->type.dtype == DT_F32));
}

static int compare_orders(const void *a, const void *b)
{
	int64_t x = (*(Value *const *)a)->op->order, y = (*(Value *const *)b)->op->order;
	return x < y ? -1 : x > y;
}

static Sum terms_of(Op *root, Arena *a)
{
	Sum s = {0};
	VEC(Op *) left = {0};
	vec_push(a, &left, root);
	while (left.n) {
		Op *add = left.at[--left.n];
		vec_push(a, &s.adds, add);
		for (int i = 0; i < 2; i++) {
			Value *v = op_in(add, i);
			if (is_inner(v->op))
				vec_push(a, &left, v->op);
			else if (can_add(v))
				vec_push(a, &s.products, v);
			else
				vec_push(a, &s.others, v);
		}
	}
	if (s.products.n)
		qsort(s.products.at, (size_t)s.products.n, sizeof(*s.products.at), compare_orders);
	return s;
}

/* Makes each product add to the one before.  Returns the last, which is the sum of all. */
static Value *chain(Module *m, const Sum *s)
{
	Value *sum = NULL;
	for (int i = 0; i < s->products.n; i++) {
		Op *op = s->products.at[i]->op;
		Value *in[] = {op_in(op, 0), op_in(op, 1), op->kind == OP_MATMUL ? NULL : sum, sum};
		if (dtype_is_half(op->out[0]->type.dtype))
			op->attrs = attr_dtype(m, op->attrs, "to", DT_F32);
		op->out[0]->type.dtype = DT_F32;
		if (sum)
			ir_set_n_in(m, op, op_info[op->kind].n_in_max, in);
		sum = op->out[0];
	}
	return sum;
}

static int sum_products(Module *m, Op *root, Arena *a)
{
	Sum s = terms_of(root, a);
	Builder b = {.m = m, .section = root->section, .before = root, .loc = root->loc};
	if (s.products.n < 2)
		return 0;
	const char *name = root->out[0]->name;
	Value *sum = ir_cast(&b, chain(m, &s), root->out[0]->type.dtype);
	for (int i = s.others.n - 1; i >= 0; i--)
		sum = ir_emit2(&b, OP_ADD, s.others.at[i], sum);
	ir_replace_uses(root->out[0], sum);
	for (int i = 0; i < s.adds.n; i++)
		ir_remove(m, s.adds.at[i]);
	sum->name = name; /* that of a value that is removed */
	return s.products.n - 1;
}

bool pass_sums(Module *m, const Options *o, Diag *d)
{
	Arena *a = arena_new();
	int n = 0;
	(void)o;
	ir_number(m);
	IR_FOR_OPS_SAFE(m, SEC_BACKWARD, op)
		if (is_add(op) && !is_inner(op))
			n += sum_products(m, op, a);
	arena_free(a);
	if (n)
		diag_info(d, "sums", "%d products are added to the sums of those before them", n);
	return true;
}
