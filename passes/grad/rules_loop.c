/* passes/grad/rules_loop.c: the gradient of a loop is a loop that goes the other way.
 *
 * Each of its steps computes the forward step again, from the states that the forward loop had before that step, and
 * differentiates it by the rules of its ops.  Its states are the gradients of the forward's states and, for each other
 * operand that wants one, the sum of the gradients of all steps; the gradients of stacked operands are stacked. */
#include "passes/grad/rules.h"

typedef struct LoopGrad {
	GradCtx *c;
	const Op *op;
	Arena *a;
	int n_states, n_stacked, n_out;
	Value **arg;       /* of the forward's body, by operand; NULL: it does not read it */
	Value *const *dout;
	Module *body;      /* of the gradient */
	Builder b;         /* in it */
	VEC(Value *) in;   /* operands of the gradient's loop */
	VEC(Value *) now;  /* its arguments, by operand */
	PtrMap *map;       /* values of the forward's body -> those of the gradient's */
	VEC(Value *) of, seed;
	VEC(Value *) yield;
	int *sum_of;       /* by operand of the forward: the state that sums its gradient; -1 = none */
	bool *live;        /* by result of the forward: a gradient comes to it, from outside or in a later step */
	bool *reached;     /* by Value.id in the forward's body: a gradient comes to it in a step */
} LoopGrad;

static bool is_float(const Value *v)
{
	return dtype_is_float(v->type.dtype);
}

static void reach(LoopGrad *g)
{
	for (int i = 0; i < g->n_out; i++)
		if (g->live[i])
			g->reached[op_in(loop_yield(g->op), i)->id] = true;
	for (const Op *op = g->op->body->last[SEC_FORWARD]; op; op = op->prev) {
		bool any = false;
		for (int i = 0; i < op->n_out; i++)
			any = any || (is_float(op->out[i]) && g->reached[op->out[i]->id]);
		for (int i = 0; any && op->kind != OP_STOP_GRADIENT && i < op->n_in; i++)
			if (op_in(op, i))
				g->reached[op_in(op, i)->id] = true;
	}
}

/* Follows gradients back through the steps, until no more states have one.  What is not reached has no gradient, as
 * if the loop were unrolled: a parameter of which the loss does not depend is not trained. */
static void find_live(LoopGrad *g)
{
	g->live = NEW_N(g->a, bool, g->n_out);
	g->reached = NEW_N(g->a, bool, g->op->body->n_values);
	for (int i = 0; i < g->n_out; i++)
		g->live[i] = g->dout[i] && is_float(g->op->out[i]);
	for (bool more = true; more;) {
		reach(g);
		more = false;
		for (int i = 0; i < g->n_states; i++)
			if (!g->live[i] && g->arg[i] && is_float(g->arg[i]) && g->reached[g->arg[i]->id])
				g->live[i] = more = true;
	}
}

/* Whether operand i wants a gradient of the step; states do, since each step's gradient goes through them. */
static bool wants(const LoopGrad *g, int i)
{
	const Value *v = op_in(g->op, i);
	return is_float(v) && g->arg[i] && g->reached[g->arg[i]->id] && (i < g->n_states || grad_wanted(g->c, v));
}

static Value *add_operand(LoopGrad *g, Value *v, bool stacked)
{
	vec_push(g->a, &g->in, v);
	Value *arg = loop_argument(&g->b, g->in.n - 1, stacked ? loop_slice(&v->type) : v->type);
	vec_push(g->a, &g->now, arg);
	return arg;
}

static Value *zeros(LoopGrad *g, const Type *t)
{
	return ir_const_full(grad_builder(g->c), *t, 0);
}

/* The states of the gradient: gradients of the forward's states, from those of its last states on, and sums.  Returns
 * how many there are. */
static int add_states(LoopGrad *g)
{
	for (int i = 0; i < g->n_states; i++)
		if (g->live[i]) {
			Value *last = g->dout[i] ? g->dout[i] : zeros(g, &g->op->out[i]->type);
			vec_push(g->a, &g->of, op_in(loop_yield(g->op), i));
			vec_push(g->a, &g->seed, add_operand(g, last, false));
		}
	for (int i = g->n_states + g->n_stacked; i < g->op->n_in; i++) {
		g->sum_of[i] = wants(g, i) ? g->in.n : -1;
		if (wants(g, i))
			add_operand(g, zeros(g, &op_in(g->op, i)->type), false);
	}
	return g->in.n;
}

/* All states before each step, stacked: the forward loop gives them out from now on. */
static Value *history(LoopGrad *g, int i)
{
	Op *op = (Op *)g->op;
	return loop_add_stacked(grad_builder(g->c)->m, op, g->arg[i], arena_printf(g->a, "%s.before", op->out[i]->name));
}

/* What the forward step read, and the gradients of what it gave out.  Returns how many are stacked. */
static int add_others(LoopGrad *g)
{
	int states = g->in.n;
	for (int i = 0; i < g->n_states + g->n_stacked; i++)
		if (g->arg[i])
			ptrmap_put(g->map, g->arg[i], add_operand(g, i < g->n_states ? history(g, i) : op_in(g->op, i), true));
	for (int i = g->n_states; i < g->n_out; i++)
		if (g->dout[i]) {
			vec_push(g->a, &g->of, op_in(loop_yield(g->op), i));
			vec_push(g->a, &g->seed, add_operand(g, g->dout[i], true));
		}
	int stacked = g->in.n - states;
	for (int i = g->n_states + g->n_stacked; i < g->op->n_in; i++)
		if (g->arg[i])
			ptrmap_put(g->map, g->arg[i], add_operand(g, op_in(g->op, i), false));
	return stacked;
}

static void clone_step(LoopGrad *g)
{
	IR_FOR_OPS(g->op->body, SEC_FORWARD, op) {
		if (op->kind == OP_ARGUMENT || op->kind == OP_YIELD)
			continue;
		g->b.loc = loc_with_role(g->body, op->loc, "grad");
		ir_clone(&g->b, op, g->map);
	}
	for (int i = 0; i < g->of.n; i++)
		g->of.at[i] = ptrmap_get(g->map, g->of.at[i]);
}

/* Differentiates the step, and puts what came of it behind the step itself.  Returns the gradients by Value.id. */
static Value **differentiate(LoopGrad *g)
{
	bool *wanted = NEW_N(g->a, bool, g->body->n_values);
	for (int i = 0; i < g->op->n_in; i++)
		if (wants(g, i))
			wanted[((Value *)ptrmap_get(g->map, g->arg[i]))->id] = true;
	Value **grad = autodiff_from(g->body, g->of.n, g->of.at, g->seed.at, wanted, grad_diag(g->c));
	while (g->body->first[SEC_BACKWARD])
		ir_move_to_end(g->body, g->body->first[SEC_BACKWARD], SEC_FORWARD);
	return grad;
}

/* The gradient of operand i in a step: zeros if nothing that was given out depends on it. */
static Value *of_operand(LoopGrad *g, Value *const *grad, int i)
{
	const Value *now = g->arg[i] ? ptrmap_get(g->map, g->arg[i]) : NULL;
	if (now && grad[now->id])
		return grad[now->id];
	return ir_const_full(&g->b, now ? now->type : op_in(g->op, i)->type, 0);
}

/* Whether v is the gradient of one operand alone; those of both operands of an add are one value. */
static bool is_of_one(const LoopGrad *g, Value *const *grad, const Value *v)
{
	int n = 0;
	for (int i = 0; i < g->op->n_in; i++)
		n += g->arg[i] && grad[((const Value *)ptrmap_get(g->map, g->arg[i]))->id] == v;
	return n == 1;
}

/* sum + term, in place where the term is a product of this step that nothing else reads (as pass sums does it), the
 * yield of this step neither. */
static Value *added(LoopGrad *g, Value *const *grad, Value *sum, Value *term)
{
	Op *op = term->op;
	bool product = (op->kind == OP_MATMUL || op->kind == OP_GATHER_GRAD) && op->n_in == 2;
	if (!product || term->n_uses || !is_of_one(g, grad, term) || term->type.dtype != DT_F32)
		return e_add(&g->b, sum, term);
	Value *in[] = {op_in(op, 0), op_in(op, 1), op->kind == OP_MATMUL ? NULL : sum, sum};
	ir_set_n_in(g->body, op, op_info[op->kind].n_in_max, in);
	return term;
}

/* Yields the new states, then the slices. */
static void yield_all(LoopGrad *g, Value *const *grad)
{
	for (int i = 0; i < g->n_states; i++)
		if (g->live[i])
			vec_push(g->a, &g->yield, of_operand(g, grad, i));
	for (int i = g->n_states + g->n_stacked; i < g->op->n_in; i++)
		if (g->sum_of[i] >= 0) {
			const Value *now = ptrmap_get(g->map, g->arg[i]);
			Value *sum = g->now.at[g->sum_of[i]], *term = grad[now->id];
			vec_push(g->a, &g->yield, term ? added(g, grad, sum, term) : sum);
		}
	for (int i = g->n_states; i < g->n_states + g->n_stacked; i++)
		if (wants(g, i))
			vec_push(g->a, &g->yield, of_operand(g, grad, i));
	ir_emit(&g->b, OP_YIELD, g->yield.n, g->yield.at, NULL);
}

/* Gives the operands of the forward what the loop of the gradient computed. */
static void give_all(LoopGrad *g, const Op *loop)
{
	int k = 0;
	for (int i = 0; i < g->n_states; k += g->live[i++])
		if (g->live[i] && wants(g, i))
			grad_give(g->c, op_in(g->op, i), loop->out[k]);
	for (int i = g->n_states + g->n_stacked; i < g->op->n_in; i++)
		if (g->sum_of[i] >= 0)
			grad_give(g->c, op_in(g->op, i), loop->out[k++]);
	for (int i = g->n_states; i < g->n_states + g->n_stacked; i++)
		if (wants(g, i))
			grad_give(g->c, op_in(g->op, i), loop->out[k++]);
}

static bool gives_any(const LoopGrad *g)
{
	bool any = false;
	for (int i = 0; i < g->op->n_in; i++)
		any = any || wants(g, i);
	return any;
}

void grad_loop(GradCtx *c, Op *op, Value *const *dout)
{
	Builder *b = grad_builder(c);
	Arena *a = b->m->arena;
	LoopGrad g = {.c = c, .op = op, .a = a, .n_states = loop_states(op), .n_stacked = loop_stacked(op),
		.n_out = op->n_out, .arg = loop_arguments(op, a), .dout = dout, .body = ir_body_new(b->m),
		.map = ptrmap_new(a), .sum_of = NEW_N(a, int, op->n_in + 1)};
	g.b = (Builder){.m = g.body, .section = SEC_FORWARD, .loc = b->loc};
	find_live(&g);
	if (!gives_any(&g))
		return;
	int states = add_states(&g), stacked = add_others(&g);
	clone_step(&g);
	Value **grad = differentiate(&g);
	if (!grad) {
		grad_refuse(c, op, "a step of this loop cannot be differentiated");
		return;
	}
	g.b.loc = b->loc;
	yield_all(&g, grad);
	Attr *attrs = attr_int(b->m, attr_int(b->m, NULL, "states", states), "stacked", stacked);
	attrs = attr_int(b->m, attrs, "steps", loop_steps(op));
	b->body = g.body;
	give_all(&g, ir_emit_op(b, OP_LOOP, g.in.n, g.in.at,
		attr_int(b->m, attrs, "reverse", !attr_get_int(op->attrs, "reverse", 0)), NULL));
}
