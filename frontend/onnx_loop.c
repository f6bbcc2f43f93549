/* frontend/onnx_loop.c: keeps a Loop or Scan as a loop of the IR, where it is too long to be unrolled.
 *
 * The body is imported once, with arguments in place of the states and slices, as ops of the module.  What depends on
 * an argument then moves into the loop's body; everything else is the same in all steps, so it stays in front of the
 * loop and is an operand of it.  So do rows that are chosen by the number of the step, which are slices, and products
 * of slices with a matrix, which one product computes for all steps.  An attempt leaves no message: where a body cannot
 * be kept, the caller is told why. */
#include "frontend/onnx_import.h"

#include <stdlib.h>
#include <string.h>

typedef struct Keep {
	Node *n;
	const LoopParts *p;
	Value **arg;       /* of the body's graph */
	Value **out;       /* what the body's graph gives out */
	PtrMap *inside;    /* values that depend on an argument -> themselves; in the body: -> the body's */
	Module *body;
	Builder b;         /* in it */
	PtrMap *whole;     /* of values inside that are slices: what is sliced */
	VEC(Value *) slices; /* those of them that steps read */
	VEC(Value *) in;   /* operands of the loop */
	PtrMap *moved;     /* values of the module -> values of the body */
	const char *why;
} Keep;

static bool fails(Keep *k, const char *why)
{
	k->why = k->why ? k->why : why;
	return false;
}

/* ---- what may stand in a body ---- */

/* Ops that need no layout, no random numbers and no symbols, and whose gradients are such ops. */
static bool may_loop(const Op *op)
{
	if (op_info[op->kind].flags & THROUGH)
		return false;
	if (op_info[op->kind].flags & EW)
		return true;
	switch (op->kind) {
	case OP_ARGUMENT: case OP_CONST: case OP_IOTA: case OP_STOP_GRADIENT: case OP_RESHAPE: case OP_TRANSPOSE:
	case OP_BROADCAST: case OP_SLICE: case OP_SPLIT: case OP_CONCAT: case OP_PAD: case OP_GATHER: case OP_MATMUL:
	case OP_REDUCE_SUM: case OP_REDUCE_MEAN: case OP_REDUCE_MAX: case OP_REDUCE_MIN: case OP_SOFTMAX:
	case OP_LOG_SOFTMAX: return true;
	default: return false;
	}
}

static bool is_half(const Op *op)
{
	for (int i = 0; i < op->n_out; i++)
		if (dtype_is_half(op->out[i]->type.dtype))
			return true;
	return false;
}

static bool check_op(Keep *k, const Op *op)
{
	const char *name = *op->loc->onnx ? op->loc->onnx : op_info[op->kind].text;
	bool inside = op->n_out && ptrmap_get(k->inside, op->out[0]);
	if (op_draws(op) || op_info[op->kind].flags & EFFECT)
		return fails(k, arena_printf(k->n->im->arena, "node \"%s\" (%s) in it draws random numbers or writes a buffer",
			op->loc->node, name));
	if (inside && (!may_loop(op) || is_half(op)))
		return fails(k, arena_printf(k->n->im->arena, "node \"%s\" (%s) in it becomes %s%s, which cannot stand in one",
			op->loc->node, name, op_info[op->kind].text, may_loop(op) ? " of 16-bit floats" : ""));
	return true;
}

static void mark_inside(Keep *k, const Op *op)
{
	bool inside = op->kind == OP_ARGUMENT;
	for (int i = 0; i < op->n_in; i++)
		inside = inside || (op_in(op, i) && ptrmap_get(k->inside, op_in(op, i)));
	for (int i = 0; inside && i < op->n_out; i++)
		ptrmap_put(k->inside, op->out[i], op->out[i]);
}

/* ---- the attempt ---- */

static void make_arguments(Keep *k)
{
	const LoopParts *p = k->p;
	int states = 0, slices = 0;
	for (int i = 0; i < p->n_args; i++)
		states += p->part[i] == LOOP_STATE;
	for (int i = 0, s = 0; i < p->n_args; i++) {
		k->arg[i] = p->given[i];
		if (p->part[i] == LOOP_STATE)
			k->arg[i] = loop_argument(k->n->b, s++, p->given[i]->type);
		else if (p->part[i] == LOOP_SLICE || p->part[i] == LOOP_STEP)
			k->arg[i] = loop_argument(k->n->b, states + slices++, loop_slice(&p->given[i]->type));
	}
}

/* Whether a value is a tensor that a step can give out. */
static bool check_outputs(Keep *k)
{
	const LoopParts *p = k->p;
	int s = p->first_out;
	for (int i = 0; i < p->first_out; i++) {
		const EvalTensor *t = import_known(k->n->im, k->out[i]);
		if (!t || !t->i[0])
			return fails(k, "whether it goes on depends on what its steps compute");
	}
	for (int i = 0; i < p->n_out; i++)
		if (!k->out[i] || pseudo_is(k->n->im, k->out[i]) || k->out[i]->type.kind != TYPE_TENSOR
				|| k->out[i]->type.rank >= IR_MAX_RANK)
			return fails(k, "its steps give out what is no tensor, or one of too many dims");
	for (int i = 0; i < p->n_args; i++)
		if (p->part[i] == LOOP_STATE && !type_equal(&k->out[s++]->type, &p->given[i]->type))
			return fails(k, arena_printf(k->n->im->arena, "a state begins as %s and is %s after the first step",
				type_str(k->n->im->arena, &p->given[i]->type), type_str(k->n->im->arena, &k->out[s - 1]->type)));
	return true;
}

/* Imports the body once.  What that says is printed if it succeeds. */
static bool import_once(Keep *k, const OnnxGraph *g)
{
	Import *im = k->n->im, was = *im;
	char *said = NULL;
	size_t n = 0;
	Diag mine = *im->d;
	mine.errors = mine.warnings = 0;
	mine.out = open_memstream(&said, &n);
	if (!mine.out)
		ice("out of memory");
	im->d = im->b.diag = &mine;
	im->refusals = map_new(im->arena);
	im->in_loop = true;
	const Op *last = im->m->last[SEC_FORWARD];
	make_arguments(k);
	import_mark(im, last);
	bool good = import_body(k->n, g, arena_printf(im->arena, "%s/step", k->n->name), k->p->n_args, k->arg, k->out);
	refusals_report(im);
	good = good && !mine.errors;
	fclose(mine.out);
	if (good) {
		fwrite(said, 1, n, was.d->out ? was.d->out : stderr);
		was.d->warnings += mine.warnings;
	} else {
		const char *at = strstr(said, "error: ");
		at = at ? at + 7 : said;
		im->said_init = was.said_init;
		fails(k, arena_printf(im->arena, "its body cannot be imported for all steps at once: %.*s",
			(int)strcspn(at, "\n"), at));
	}
	free(said);
	im->d = was.d;
	im->b.diag = was.b.diag;
	im->refusals = was.refusals;
	im->in_loop = was.in_loop;
	return good;
}

/* ---- the loop ---- */

static bool is_small(const Value *v)
{
	const Attr *value = v->op->kind == OP_CONST ? attr_find(v->op->attrs, "value") : NULL;
	return value && value->n == 1;
}

/* v in the body: as it was moved there, a literal, or one more operand of the loop. */
static Value *in_body(Keep *k, Value *v)
{
	Value *now = v ? ptrmap_get(k->moved, v) : NULL;
	if (!v || now)
		return now;
	if (is_small(v)) {
		k->b.loc = v->op->loc;
		return ir_clone(&k->b, v->op, k->moved)->out[0];
	}
	vec_push(k->n->im->arena, &k->in, v);
	now = loop_argument(&k->b, k->in.n - 1, v->type);
	ptrmap_put(k->moved, v, now);
	return now;
}

static bool is_inside(const Keep *k, const Op *op)
{
	return op->n_out && ptrmap_get(k->inside, op->out[0]);
}

/* Whether v is the number of the step. */
static bool is_step(const Keep *k, const Value *v)
{
	for (int i = 0; i < k->p->n_args; i++)
		if (k->p->part[i] == LOOP_STEP && k->arg[i] == v)
			return true;
	return false;
}

/* Rows of a table that is the same in all steps, chosen by the number of the step; NULL: op is something else. */
static Value *rows_of_steps(Keep *k, const Op *op)
{
	int axis = (int)attr_get_int(op->attrs, "axis", 0);
	if (op->kind != OP_GATHER || !is_step(k, op_in(op, 1)) || ptrmap_get(k->inside, op_in(op, 0))
			|| op_in(op, 0)->type.dim[axis] < k->p->steps)
		return NULL;
	Value *x = emit_move_axis(k->n->b, op_in(op, 0), axis, 0);
	return emit_slice(k->n->b, x, 0, 0, k->p->steps, 1);
}

/* The product of all slices with a matrix that is the same in all steps; NULL: op is something else. */
static Value *product_of_steps(Keep *k, const Op *op)
{
	Value *x = op->kind == OP_MATMUL ? ptrmap_get(k->whole, op_in(op, 0)) : NULL;
	bool same = x && op->n_in == 2 && !ptrmap_get(k->inside, op_in(op, 1)) && op_in(op, 1)->type.rank == 2
		&& op_in(op, 0)->type.rank >= 2 && !attr_get_int(op->attrs, "ta", 0);
	return same ? ir_emit(k->n->b, OP_MATMUL, 2, (Value *[]){x, op_in(op, 1)}, op->attrs) : NULL;
}

/* Finds what is sliced. */
static void find_slices(Keep *k, const Op *last, const Op *end)
{
	for (int i = 0; i < k->p->n_args; i++)
		if (k->p->part[i] == LOOP_SLICE || k->p->part[i] == LOOP_STEP)
			ptrmap_put(k->whole, k->arg[i], k->p->given[i]);
	for (const Op *op = last ? last->next : k->n->im->m->first[SEC_FORWARD]; op; op = op == end ? NULL : op->next) {
		if (!is_inside(k, op) || op->kind == OP_ARGUMENT)
			continue;
		k->n->b->loc = op->loc;
		Value *whole = rows_of_steps(k, op);
		whole = whole ? whole : product_of_steps(k, op);
		if (whole)
			ptrmap_put(k->whole, op->out[0], whole);
	}
}

static void want_slice(Keep *k, Value *v)
{
	if (!v || !ptrmap_get(k->whole, v) || ptrmap_get(k->moved, v))
		return;
	ptrmap_put(k->moved, v, v); /* until it has an argument */
	vec_push(k->n->im->arena, &k->slices, v);
}

/* Makes operands of the slices that steps read.  Returns how many. */
static int add_slices(Keep *k, const Op *last, const Op *end)
{
	for (const Op *op = last ? last->next : k->n->im->m->first[SEC_FORWARD]; op; op = op == end ? NULL : op->next)
		for (int i = 0; is_inside(k, op) && !ptrmap_get(k->whole, op->out[0]) && i < op->n_in; i++)
			want_slice(k, op_in(op, i));
	for (int i = k->p->first_out; i < k->p->n_out; i++)
		want_slice(k, k->out[i]);
	for (int i = 0; i < k->slices.n; i++) {
		Value *v = k->slices.at[i];
		vec_push(k->n->im->arena, &k->in, ptrmap_get(k->whole, v));
		ptrmap_put(k->moved, v, loop_argument(&k->b, k->in.n - 1, v->type));
	}
	return k->slices.n;
}

static void move_ops(Keep *k, const Op *last, const Op *end)
{
	for (const Op *op = last ? last->next : k->n->im->m->first[SEC_FORWARD]; op; op = op == end ? NULL : op->next) {
		if (op->kind == OP_ARGUMENT || !is_inside(k, op) || ptrmap_get(k->whole, op->out[0]))
			continue;
		for (int i = 0; i < op->n_in; i++)
			in_body(k, op_in(op, i));
		k->b.loc = op->loc;
		ir_clone(&k->b, op, k->moved);
	}
}

static int add_states(Keep *k)
{
	for (int i = 0; i < k->p->n_args; i++) {
		if (k->p->part[i] != LOOP_STATE)
			continue;
		vec_push(k->n->im->arena, &k->in, k->p->given[i]);
		ptrmap_put(k->moved, k->arg[i], loop_argument(&k->b, k->in.n - 1, k->arg[i]->type));
	}
	return k->in.n;
}

static Op *make_loop(Keep *k, const Op *last, const Op *end)
{
	Import *im = k->n->im;
	k->body = ir_body_new(im->m);
	k->b = (Builder){.m = k->body, .section = SEC_FORWARD, .loc = im->b.loc};
	k->moved = ptrmap_new(im->arena);
	k->whole = ptrmap_new(im->arena);
	find_slices(k, last, end);
	im->b.loc = loc_new(im->m, k->n->name, k->n->op, k->n->scope, "");
	int states = add_states(k), slices = add_slices(k, last, end);
	move_ops(k, last, end);
	Value **yield = NEW_N(im->arena, Value *, k->p->n_out + 1);
	for (int i = k->p->first_out; i < k->p->n_out; i++)
		yield[i - k->p->first_out] = in_body(k, k->out[i]);
	k->b.loc = im->b.loc;
	ir_emit(&k->b, OP_YIELD, k->p->n_out - k->p->first_out, yield, NULL);
	Attr *a = attr_int(im->m, attr_int(im->m, NULL, "states", states), "stacked", slices);
	im->b.body = k->body;
	return ir_emit_op(&im->b, OP_LOOP, k->in.n, k->in.at, attr_int(im->m, a, "steps", k->p->steps), NULL);
}

/* Removes what stands in the body now, or what a failed attempt did; what is the same in all steps stays. */
static void clear(Keep *k, const Op *last, const Op *end)
{
	for (Op *op = (Op *)end, *prev; op && op != last; op = prev) {
		prev = op->prev;
		if (is_inside(k, op) || op_has_effect(op))
			ir_remove(k->n->im->m, op);
	}
}

const Op *loop_keep(Node *n, const OnnxGraph *g, LoopParts *p)
{
	Import *im = n->im;
	Keep k = {.n = n, .p = p, .arg = NEW_N(im->arena, Value *, p->n_args + 1), .out = NEW_N(im->arena, Value *,
		p->n_out + 1), .inside = ptrmap_new(im->arena)};
	const Op *last = im->m->last[SEC_FORWARD];
	int norms = im->n_batch_norms, dropouts = im->n_dropouts, nodes = im->n_dropout_nodes, places = im->places.n;
	int draws = im->draws.n, folded = im->folded_norms.n, convs = im->computed_convs.n;
	PtrMap *written = im->written;
	im->written = ptrmap_new(im->arena); /* what is written in an attempt is not kept */
	bool good = import_once(&k, g) && check_outputs(&k);
	const Op *end = im->m->last[SEC_FORWARD], *first = last ? last->next : im->m->first[SEC_FORWARD];
	for (const Op *op = first; op; op = op->next)
		mark_inside(&k, op);
	for (const Op *op = first; good && op; op = op->next)
		good = check_op(&k, op);
	const Op *loop = good ? make_loop(&k, last, end) : NULL;
	clear(&k, last, end);
	import_mark(im, last);
	im->written = written;
	if (!loop) {
		im->n_batch_norms = norms;
		im->n_dropouts = dropouts;
		im->n_dropout_nodes = nodes;
		im->places.n = places;
		im->draws.n = draws;
		im->folded_norms.n = folded;
		im->computed_convs.n = convs;
	}
	p->why = k.why ? k.why : "its operands do not fit";
	return loop;
}
