/* predict/price.c: what it takes at least to keep fewer bytes from forward to backward, by a fractional knapsack.
 *
 * An item is a value inside a block that backward reads: not to keep it frees its bytes, and takes at least the op that
 * makes it, once more.  If that op reads a value u of its block that is not kept either, u has to be computed again,
 * too, or kept.  Let W be the bytes of all items that need u for being computed again.  If u has W bytes or more, then
 * who keeps u may as well keep these items: that takes no more bytes and no more time.  So there is a cheapest choice
 * that computes u again, and the op of u is shared out among its items by their bytes; so is what u needs in turn.  A
 * smaller u, one that is read outside of its block, and one of parameters alone are taken to be there for nothing.
 *
 * Shares of one op add up to that op at most, so a choice takes at least the sum over the items it frees.  The least
 * sum for so many bytes is at least that of fractions of items, which are taken in the order of seconds for a byte.
 *
 * Later passes save some of these ops: sums of two values, which norms compute, and moves count for nothing, and
 * products that pass merge may join for no more than their parts of one. */
#include "predict/price.h"

#include <math.h>
#include <stdlib.h>

#include "passes/remat/remat.h"
#include "predict/cost.h"

typedef struct Item { double bytes, seconds; int id; } Item;

struct Price { Item *item; int n; };

typedef struct Pricing {
	const Remat *r;
	const PriceOf *of;
	const Options *o;
	LayoutRank who;
	bool *kept;              /* by Value.id of roots: backward reads it */
	double *weight;          /* by Value.id of roots: bytes of the items that need it for being computed again */
	double *rate;            /* by Value.id of roots: seconds for each of these bytes */
} Pricing;

/* Whether a choice decides about a value. */
static bool is_open(const Pricing *p, const Value *root)
{
	return root->op->section == SEC_FORWARD && remat_is_open(p->r, root) && !p->r->fixed[root->id]
		&& root->type.kind == TYPE_TENSOR;
}

static void find_kept(const Pricing *p)
{
	IR_FOR_OPS(p->r->m, SEC_BACKWARD, op)
		for (int i = 0; i < op->n_in; i++)
			if (op_in(op, i))
				p->kept[value_root(op_in(op, i))->id] = true;
}

/* The value, not kept, that operand i is part of and that has to be computed again for the results of op; NULL: it is
 * there, or was an operand before. */
static Value *needed(const Pricing *p, const Op *op, int i)
{
	Value *root = op_in(op, i) ? value_root(op_in(op, i)) : NULL;
	if (!root || !is_open(p, root) || p->kept[root->id])
		return NULL;
	for (int k = 0; k < i; k++)
		if (op_in(op, k) && value_root(op_in(op, k)) == root)
			return NULL;
	return root;
}

/* Bytes of the items that need op. */
static double weight_of(const Pricing *p, const Op *op)
{
	double sum = 0;
	for (int i = 0; i < op->n_out; i++) {
		const Value *y = op->out[i];
		if (value_root(op->out[i]) == y && is_open(p, y))
			sum += p->kept[y->id] ? (double)type_bytes(&y->type) : p->weight[y->id];
	}
	return sum;
}

static void find_weights(const Pricing *p)
{
	for (const Op *op = p->r->m->last[SEC_FORWARD]; op; op = op->prev) {
		double weight = weight_of(p, op);
		for (int i = 0; i < op->n_in; i++) {
			const Value *u = weight > 0 ? needed(p, op, i) : NULL;
			if (u)
				p->weight[u->id] += weight;
		}
	}
}

/* Whether another product of forward has the same operand. */
static bool may_be_joined(const Op *op)
{
	bool others = false;
	for (const Use *u = op->kind == OP_MATMUL ? op_in(op, 0)->uses : NULL; u; u = u->next)
		others = others || (u->op != op && u->op->kind == OP_MATMUL && u->op->section == SEC_FORWARD);
	return others;
}

static double seconds_of(const Pricing *p, const Op *op)
{
	Work w = cost_of(op, &p->who);
	if (op->kind == OP_ADD || w.class == COST_MOVE)
		return 0;
	if (may_be_joined(op))
		cost_join(&w, op);
	bool tf32 = p->o->precision.matmul_precision == MATMUL_TF32;
	return p->of->turns * MIN(cost_seconds(p->of->machine, op, &w, p->of->rows, tf32).seconds,
		cost_again(p->of->machine, op, &w, p->of->rows, tf32));
}

/* Seconds for a byte of the items that need op: its own, and those of what it reads. */
static double rate_of(const Pricing *p, const Op *op)
{
	double weight = weight_of(p, op), rate = weight > 0 ? seconds_of(p, op) / weight : 0;
	for (int i = 0; i < op->n_in && weight > 0; i++) {
		const Value *u = needed(p, op, i);
		rate += u && (double)type_bytes(&u->type) >= p->weight[u->id] ? p->rate[u->id] : 0;
	}
	return rate;
}

static int by_rate(const void *x, const void *y)
{
	const Item *a = x, *b = y;
	double difference = a->seconds * b->bytes - b->seconds * a->bytes;
	return difference < 0 ? -1 : difference > 0 ? 1 : a->id - b->id;
}

static void find_items(const Pricing *p, Price *out)
{
	IR_FOR_OPS(p->r->m, SEC_FORWARD, op) {
		double rate = rate_of(p, op);
		for (int i = 0; i < op->n_out; i++) {
			const Value *y = op->out[i];
			if (value_root(op->out[i]) != y || !is_open(p, y))
				continue;
			double bytes = (double)type_bytes(&y->type);
			p->rate[y->id] = rate;
			if (p->kept[y->id] && bytes > 0)
				out->item[out->n++] = (Item){bytes, rate * bytes, y->id};
		}
	}
	qsort(out->item, (size_t)out->n, sizeof(*out->item), by_rate);
}

Price *price_find(const Restart *start, const Options *o, const PriceOf *of, Arena *a)
{
	Diag silent = {.silent = true};
	Options plain = *o;
	PipelineView view = {.stop_after = pass_info[pass_index("remat") - 1].name, .tried = true};
	Module *m = ir_copy(start->at.m);
	Price *out = NEW(a, Price);
	plain.memory.memory_limit = 0;
	if (pipeline_run(m, &plain, &view, start->at.passes, &silent)) {
		Arena *scratch = arena_new();
		Pricing p = {.r = remat_begin(m, scratch), .of = of, .o = &plain, .who = memory_rank(&plain),
			.kept = NEW_N(scratch, bool, m->n_values), .weight = NEW_N(scratch, double, m->n_values),
			.rate = NEW_N(scratch, double, m->n_values)};
		out->item = NEW_N(a, Item, m->n_values);
		find_kept(&p);
		find_weights(&p);
		find_items(&p, out);
		arena_free(scratch);
	}
	ir_module_free(m);
	return out;
}

double price_seconds(const Price *p, double bytes)
{
	double seconds = 0;
	for (int i = 0; i < p->n && bytes > 0; i++) {
		double part = MIN(bytes / p->item[i].bytes, 1);
		seconds += part * p->item[i].seconds;
		bytes -= p->item[i].bytes;
	}
	return bytes > 0 ? INFINITY : seconds;
}

double price_bytes(const Price *p)
{
	double bytes = 0;
	for (int i = 0; i < p->n; i++)
		bytes += p->item[i].bytes;
	return bytes;
}
