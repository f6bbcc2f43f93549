/* passes/merge.c: makes one product of those that read one tensor and weights that lie together (gate and up; q, k, v).
 *
 * Requires SHARD, behind shard: it is known then which parameters follow each other in a flat.  Ensures that products
 * y_i = x w_i^T whose weights [N_i,K] are one matrix [sum of N_i, K] in one gathered flat are one product, if loops
 * alone read the y_i, as columns of it, or attention reads them as heads, turned there by rope; and so are
 *   the products that sum up to the gradient of x (pass sums), one over all columns, dx = (dy_0 dy_1 ..) w, rounded
 *   once,
 *   the products dw_i = dy_i^T x, one that writes (or adds to) the gradients of all w_i where they lie in their flat,
 * if one loop or one attention_grad makes the dy_i, which then writes them as columns.  Forward's are merged only with
 * backward's, where a loop of backward reads the y_i: else it would find no place for its results.  Says why products
 * that could be one stay apart. */
#include "passes/passes.h"

#include <stdlib.h>

enum { MANY = 8 };

/* Products by weights that lie together, in the order of the flat. */
typedef struct Run { Op *product[MANY]; int n; } Run;

typedef struct Merge {
	Module *m;
	Diag *d;
	Arena *a;
	PtrMap *forward;  /* symbol of the first weight -> a run that forward may merge */
	PtrMap *backward; /* the same of those that backward has merged */
	int n;
	bool says;        /* why products stay apart */
} Merge;

/* ---- what lies together ---- */

static Op *weight_of(const Op *product)
{
	Op *view = op_in(product, 1)->op;
	return view->kind == OP_VIEW_OP && op_n_params(view) == 1 && view->out[0]->type.rank == 2 ? view : NULL;
}

static bool is_of_weight(const Op *op, int tb)
{
	return op->kind == OP_MATMUL && !attr_get_int(op->attrs, "ta", 0) && attr_get_int(op->attrs, "tb", 0) == tb
		&& weight_of(op);
}

static bool is_product(const Op *op, int tb)
{
	return is_of_weight(op, tb) && !op_in(op, 2);
}

/* In the order of the flat, section by section. */
static int compare_weights(const void *a, const void *b)
{
	const Op *p = *(Op *const *)a, *q = *(Op *const *)b;
	const Symbol *x = weight_of(p)->sym, *y = weight_of(q)->sym;
	if (p->section != q->section)
		return p->section < q->section ? -1 : 1;
	int by_unit = x->unit->index - y->unit->index, by_flat = x->flat - y->flat;
	return by_unit ? by_unit : by_flat ? by_flat : (x->offset > y->offset) - (x->offset < y->offset);
}

/* Why p's weight and that of the next product are not one matrix; NULL: they are. */
static const char *apart(const Op *p, const Op *next)
{
	const Op *v = weight_of(p), *w = weight_of(next);
	Type type;
	if (op_in(v, 0) != op_in(w, 0) || v->sym->flat != w->sym->flat)
		return "lie in different units or flats";
	if (w->sym->member != v->sym->member + 1 || !params_type(v->sym, 2, &type))
		return "do not follow each other in their unit";
	return p->out[0]->type.dtype == next->out[0]->type.dtype ? NULL : "give different types";
}

static bool together(const Op *p, const Op *next)
{
	return p->section == next->section && !apart(p, next);
}

/* The weights of a run as one. */
static Value *wide_weight(Merge *c, const Run *run, Op *before)
{
	Op *view = weight_of(run->product[0]);
	Builder b = {.m = c->m, .section = before->section, .before = before, .loc = view->loc, .sym = view->sym,
		.name = view->sym->name};
	return ir_emit(&b, OP_VIEW_OP, 1, &(Value *){op_in(view, 0)}, attr_int(c->m, NULL, "params", run->n));
}

/* Removes a product that is part of another one now, and the view of its weight where nothing else reads it. */
static void drop(Merge *c, Op *product)
{
	Op *view = weight_of(product);
	ir_remove(c->m, product);
	if (!view->out[0]->n_uses)
		ir_remove(c->m, view);
}

static const Symbol *first_weight(const Run *run)
{
	return weight_of(run->product[0])->sym;
}

/* ---- forward ---- */

/* The results, or the first operands, of the products of a run. */
static Parts parts_of(Merge *c, const Run *run, bool results)
{
	Value **part = NEW_N(c->a, Value *, run->n);
	for (int i = 0; i < run->n; i++)
		part[i] = results ? run->product[i]->out[0] : op_in(run->product[i], 0);
	return (Parts){part, run->n, part[0]->type.rank - 1};
}

static bool can_read(Merge *c, const Run *run)
{
	Parts parts = parts_of(c, run, true);
	const char *why = parts_unreadable(c->m, &parts);
	if (why && c->says)
		diag_info(c->d, loc_where(c->m, run->product[0]->loc), "merge: the product stays apart from the %d whose "
			"weights follow: %s", run->n - 1, why);
	return !why;
}

static void say_apart(Merge *c, const Op *p, const Op *next, const char *why)
{
	if (why && c->says)
		diag_info(c->d, loc_where(c->m, p->loc), "merge: the product stays apart from that of \"%s\": their weights %s",
			weight_of(next)->sym->name, why);
}

/* Calls `found` for the runs of products of one section that read x: where backward recomputes what reads a value that
 * forward keeps, each section has its own. */
static void runs_of(Merge *c, const Value *x, void (*found)(Merge *c, const Run *run))
{
	VEC(Op *) products = {0};
	const Op *biased = NULL;
	for (const Use *u = x->uses; u; u = u->next) {
		if (!is_of_weight(u->op, 1) || op_in(u->op, 0) != x || op_sum(u->op))
			continue;
		if (!op_in(u->op, 2)) {
			vec_push(c->a, &products, u->op);
			continue;
		}
		say_apart(c, u->op, biased, biased ? "have biases, which lie between" : NULL);
		biased = u->op;
	}
	if (products.n > 1)
		qsort(products.at, (size_t)products.n, sizeof(*products.at), compare_weights);
	for (int i = 0; i < products.n;) {
		Run run = {.n = 0};
		do {
			run.product[run.n++] = products.at[i++];
		} while (i < products.n && run.n < MANY && together(products.at[i - 1], products.at[i]));
		if (i < products.n && products.at[i - 1]->section == products.at[i]->section)
			say_apart(c, products.at[i - 1], products.at[i], apart(products.at[i - 1], products.at[i]));
		if (run.n > 1)
			found(c, &run);
	}
}

static void note_run(Merge *c, const Run *run)
{
	if (!can_read(c, run))
		return;
	Run *kept = NEW(c->a, Run);
	*kept = *run;
	ptrmap_put(c->forward, first_weight(run), kept);
}

static bool backward_reads(const Run *run)
{
	for (int i = 0; i < run->n; i++)
		for (const Use *u = run->product[i]->out[0]->uses; u; u = u->next)
			if (u->op->section == SEC_BACKWARD && run->product[i]->section != SEC_EVAL)
				return true;
	return false;
}

static void merge_forward(Merge *c, const Run *run)
{
	Op *first = run->product[0];
	if (!ptrmap_get(c->forward, first_weight(run)) || !can_read(c, run)
		|| (backward_reads(run) && !ptrmap_get(c->backward, first_weight(run))))
		return;
	for (int i = 1; i < run->n; i++)
		first = run->product[i]->order < first->order ? run->product[i] : first;
	Builder b = {.m = c->m, .section = first->section, .before = first, .loc = first->loc, .name = first->out[0]->name};
	Value *in[] = {op_in(first, 0), wide_weight(c, run, first)};
	Value *wide = ir_emit(&b, OP_MATMUL, 2, in, first->attrs);
	wide->op->order = first->order;
	Parts parts = parts_of(c, run, true);
	parts_show(c->m, wide, &parts, first);
	for (int i = 0; i < run->n; i++)
		drop(c, run->product[i]);
	c->n++;
}

/* ---- backward ---- */

/* Of one dy: the op that makes a matrix of it (NULL: it is one), the product that is the weight's gradient, and the
 * operand of collect that this is. */
typedef struct Weight { Op *view, *product, *collect; int at; } Weight;

static bool is_weight_gradient(const Op *op)
{
	bool product = op->kind == OP_MATMUL || (op->kind == OP_ACCUMULATE && op->n_in > 1);
	return product && !op_in(op, 2) && !op_sum(op) && attr_get_int(op->attrs, "ta", 0)
		&& !attr_get_int(op->attrs, "tb", 0) && op->out[0]->n_uses == 1 && op->out[0]->uses->op->kind == OP_COLLECT;
}

/* Finds what reads dy besides the product that gives dx; false: something that cannot be merged does. */
static bool find_weight(const Value *dy, const Op *dx, Weight *w)
{
	Op *reader = NULL;
	if (dy->n_uses > 2)
		return false;
	for (const Use *u = dy->uses; u; u = u->next)
		reader = u->op == dx ? reader : u->op;
	*w = (Weight){0};
	if (!reader)
		return true; /* its weight is not trained */
	if (reader->kind == OP_RESHAPE && reader->out[0]->n_uses == 1) {
		w->view = reader;
		reader = reader->out[0]->uses->op;
	}
	const Value *rows = w->view ? w->view->out[0] : dy;
	if (!is_weight_gradient(reader) || op_in(reader, 0) != rows || rows->type.rank != 2)
		return false;
	w->product = reader;
	w->collect = reader->out[0]->uses->op;
	while (op_in(w->collect, w->at) != reader->out[0])
		w->at++;
	return true;
}

/* Whether the gradients lie together as the weights do: operands of collect are in the flat's order. */
static bool weights_agree(const Weight *w, int n)
{
	for (int i = 1; i < n; i++) {
		if (!w[i].product != !w[0].product)
			return false;
		if (w[0].product && (w[i].collect != w[0].collect || w[i].at != w[0].at + i
			|| w[i].product->kind != w[0].product->kind || op_in(w[i].product, 1) != op_in(w[0].product, 1)
			|| w[i].product->out[0]->type.dtype != w[0].product->out[0]->type.dtype || !w[i].view != !w[0].view))
			return false;
	}
	return true;
}

/* The run of the products that add to each other up to `last`; n = 0: they do not lie together. */
static Run chain_of(Op *last)
{
	Run run = {.n = 0};
	for (Op *op = last; op; op = op_sum(op) ? op_sum(op)->op : NULL) {
		if (!is_product(op, 0) || run.n == MANY || (op != last && op->out[0]->n_uses != 1))
			return (Run){.n = 0};
		run.product[run.n++] = op;
	}
	qsort(run.product, (size_t)run.n, sizeof(*run.product), compare_weights);
	for (int i = 1; i < run.n; i++)
		if (!together(run.product[i - 1], run.product[i]))
			return (Run){.n = 0};
	return run;
}

/* One product for the gradient of x.  Where it is rounded at once, it gives 16 bits. */
static void merge_dx(Merge *c, const Run *run, Op *last, Value *dy)
{
	Value *dx = last->out[0], *end = dx, *in[] = {dy, wide_weight(c, run, last)};
	Op *cast = dx->n_uses == 1 && dx->uses->op->kind == OP_CAST ? dx->uses->op : NULL;
	Attr *attrs = last->attrs;
	if (cast && cast->out[0]->type.dtype == dy->type.dtype && dx->type.dtype != dy->type.dtype) {
		attrs = attr_int(c->m, attr_int(c->m, NULL, "ta", 0), "tb", 0);
		end = cast->out[0];
	}
	Builder b = {.m = c->m, .section = last->section, .before = last, .loc = last->loc, .name = end->name};
	Value *now = ir_emit(&b, OP_MATMUL, 2, in, attrs);
	ir_replace_uses(end, now);
	if (end != dx)
		ir_remove(c->m, cast);
	for (Op *op = last, *next; op; op = next) {
		next = op_sum(op) ? op_sum(op)->op : NULL;
		drop(c, op);
	}
	now->name = end->name;
}

/* One product for the gradients of all weights, in place of the last of them. */
static void merge_dw(Merge *c, Weight *w, int n, Value *dy)
{
	Op *last = w[0].product;
	for (int i = 1; i < n; i++)
		last = w[i].product->order > last->order ? w[i].product : last;
	Builder b = {.m = c->m, .section = last->section, .before = last, .loc = w[0].product->loc};
	const Type *t = &dy->type;
	int64_t cols = t->dim[t->rank - 1], start = 0;
	Value *rows = w[0].view ? ir_reshape(&b, dy, 2, (int64_t[]){type_numel(t) / cols, cols}) : dy;
	Attr *attrs = w[0].product->attrs;
	if (w[0].product->kind == OP_ACCUMULATE)
		attrs = attr_int(c->m, attrs, "params", n);
	b.sym = w[0].product->sym;
	b.name = w[0].product->out[0]->name;
	Value *wide = ir_emit(&b, w[0].product->kind, 2, (Value *[]){rows, op_in(w[0].product, 1)}, attrs);
	for (int i = 0; i < n; i++) {
		Value *dw = w[i].product->out[0];
		b.loc = w[i].product->loc;
		Attr *part = attr_int(c->m, attr_int(c->m, NULL, "start", start), "size", dw->type.dim[0]);
		start += dw->type.dim[0];
		Value *v = ir_emit(&b, OP_ROWS, 1, &wide, part);
		ir_replace_uses(dw, v);
		v->name = dw->name;
	}
	for (int i = 0; i < n; i++) {
		ir_remove(c->m, w[i].product);
		if (w[i].view)
			ir_remove(c->m, w[i].view);
	}
}

static bool merge_backward(Merge *c, Op *last)
{
	Run run = chain_of(last);
	const Run *forward = run.n > 1 ? ptrmap_get(c->forward, first_weight(&run)) : NULL;
	Weight w[MANY];
	if (!forward || forward->n != run.n)
		return false;
	Parts parts = parts_of(c, &run, false);
	bool may = parts_joinable(&parts);
	for (int i = 0; i < run.n && may; i++)
		may = find_weight(parts.at[i], run.product[i], &w[i]);
	if (!may || !weights_agree(w, run.n)) {
		diag_info(c->d, loc_where(c->m, last->loc), "merge: the products stay apart: what they read is not made by one "
			"loop or attention_grad for them and the gradients of their weights");
		return false;
	}
	ptrmap_put(c->backward, first_weight(&run), (void *)forward);
	Value *dy = parts_join(c->m, &parts);
	if (w[0].product)
		merge_dw(c, w, run.n, dy);
	merge_dx(c, &run, last, dy);
	for (int i = 0; i < run.n; i++)
		parts_drop(c->m, parts.at[i]);
	return true;
}

/* ---- the whole ---- */

static bool adds_further(const Op *op)
{
	const Use *u = op->out[0]->uses;
	return op->out[0]->n_uses == 1 && op_sum(u->op) == op->out[0];
}

static void each_run(Merge *c, void (*found)(Merge *c, const Run *run))
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(c->m, s, op)
			for (int i = 0; i < op->n_out; i++)
				if (op->out[i]->n_uses > 1)
					runs_of(c, op->out[i], found);
}

bool pass_merge(Module *m, const Options *o, Diag *d)
{
	Merge c = {.m = m, .d = d, .a = arena_new(), .says = true};
	int n = 0;
	(void)o;
	c.forward = ptrmap_new(c.a);
	c.backward = ptrmap_new(c.a);
	ir_number(m);
	each_run(&c, note_run);
	c.says = false;
	VEC(Op *) sums = {0};
	IR_FOR_OPS(m, SEC_BACKWARD, op)
		if (op->kind == OP_MATMUL && op_sum(op) && !adds_further(op))
			vec_push(c.a, &sums, op);
	for (int i = 0; i < sums.n; i++)
		n += merge_backward(&c, sums.at[i]);
	each_run(&c, merge_forward);
	if (c.n + n)
		diag_info(d, "merge", "%d products are by weights that lie together, %d give gradients to what those read",
			c.n, n);
	arena_free(c.a);
	return true;
}
