/* frontend/onnx_ops_control.c: If, Loop and Scan.
 *
 * The branch that a known condition takes is imported in place of the If.  The body of a Loop or Scan is imported once
 * for each step, with the number of the step and the condition as literals, so that what follows from them folds.  How
 * often a body runs must be known at compile time.  Parameters that it reads are read by every step, so their gradients
 * add up.  Steps that do not depend on each other become one batch of steps where onnx_batch.c can show it.  A loop
 * that is long stays one (onnx_loop.c), if that is possible. */
#include "frontend/onnx_import.h"

#include <inttypes.h>
#include <string.h>

/* A Loop or Scan may be unrolled to this many nodes.  Above the second number it is kept as a loop, if it can be: a
 * program of so many nodes takes half a minute to compile, most of it in the C compiler; as a loop it took three
 * seconds, and trained a third slower.  Without states it is unrolled while it may be, since its steps are one batch
 * then.  No loop has more than so many steps. */
enum { UNROLLED_MAX = 65536, KEPT_ABOVE = 4096, KEPT_STEPS_MAX = 1 << 24 };

/* ---- messages ---- */

static bool refuse_count(Node *n)
{
	return node_refuse(n, "its trip count is not static: it depends on data, and programs have a fixed length. Bind "
		"the dimensions that it follows from (--bind NAME=N), or export with a fixed length");
}

static bool refuse_condition(Node *n)
{
	return node_refuse(n, "whether it goes on depends on data, and programs have a fixed length: run a fixed number of "
		"steps, and choose with Where (torch.where) what they change");
}

/* ---- known operands ---- */

/* Makes a literal that the nodes of a body can fold. */
static Value *literal(Node *n, DType t, int64_t v)
{
	const Op *last = n->im->m->last[SEC_FORWARD];
	Value *x = ir_const_int(n->b, t, v);
	import_mark(n->im, last);
	return x;
}

/* Whether the value is a known number that is no float; *out is set to it. */
static bool known_number(Node *n, Value *v, int64_t *out)
{
	const EvalTensor *t = v && !pseudo_is(n->im, v) ? import_known(n->im, v) : NULL;
	if (!t || type_numel(&t->type) != 1 || dtype_is_float(t->type.dtype))
		return false;
	*out = t->i[0];
	return true;
}

/* ---- If ---- */

/* Imports a subgraph; its outputs, at least as many as the node has results, are written to a new list. */
static bool import_branch(Node *n, const char *attribute)
{
	const OnnxGraph *g = import_subgraph(n, attribute);
	if (!g)
		return false;
	if (g->outputs.n < n->n_out)
		return node_error(n, "its %s has %d output(s), the node has %d result(s)", attribute, g->outputs.n, n->n_out);
	Value **out = NEW_N(n->im->arena, Value *, g->outputs.n + 1);
	if (!import_body(n, g, n->name, 0, NULL, out))
		return false;
	memcpy(n->out, out, sizeof(*out) * (size_t)n->n_out);
	return true;
}

bool import_if(Node *n)
{
	int64_t cond;
	if (!node_want(n, 1, 1))
		return false;
	if (!known_number(n, n->in[0], &cond))
		return node_refuse(n, "its condition depends on data, and only one branch is compiled: compute both and choose "
			"with Where (torch.where), or export with a condition that is constant");
	return import_branch(n, cond ? "then_branch" : "else_branch");
}

/* ---- steps ---- */

typedef VEC(Value *) ValueVec;

/* A body that runs step by step.  Its inputs are `first` numbers of the loop, the states and the elements that are
 * scanned; its outputs are `first_out` numbers, the states and what each step adds to the n_scan results. */
typedef struct Steps {
	Node *n;
	const OnnxGraph *body;
	int first, first_out, n_state, n_in, n_scan;
	Value **args, **out;   /* of one step */
	ValueVec *scans;       /* of each result that is scanned: a value for each step */
	int at_once;           /* how many of these are computed as one batch */
	const char *unkept;    /* why it is not kept as a loop; NULL: that was not tried */
	VEC(Op *) ends;        /* the last op before the first step, and that of each step */
} Steps;

static bool steps_begin(Steps *s, Node *n, int first, int first_out, int n_state, int n_in)
{
	Arena *a = n->im->arena;
	n->im->n_loops++;
	*s = (Steps){.n = n, .body = import_subgraph(n, "body"), .first = first, .first_out = first_out,
		.n_state = n_state, .n_in = n_in};
	if (!s->body)
		return false;
	int inputs = first + n_state + n_in;
	if (s->body->inputs.n != inputs)
		return node_error(n, "its body has %d input(s), and %d are given: %d state(s), %d scanned operand(s)%s",
			s->body->inputs.n, inputs, n_state, n_in, first ? ", the step and the condition" : "");
	s->n_scan = s->body->outputs.n - first_out - n_state;
	if (s->n_scan < 0 || n_state + s->n_scan < n->n_out)
		return node_error(n, "its body has %d output(s): %d state(s), and the node has %d result(s)",
			s->body->outputs.n, n_state, n->n_out);
	s->args = NEW_N(a, Value *, inputs + 1);
	s->out = NEW_N(a, Value *, s->body->outputs.n + 1);
	s->scans = NEW_N(a, ValueVec, s->n_scan + 1);
	vec_push(a, &s->ends, n->im->m->last[SEC_FORWARD]);
	return true;
}

/* Whether `steps` steps may be unrolled. */
static bool may_unroll(Steps *s, int64_t steps)
{
	int64_t nodes = MAX(s->body->nodes.n, 1);
	if (steps <= UNROLLED_MAX / nodes)
		return true;
	return node_refuse(s->n, "its steps are unrolled, to at most %d nodes, and it has %" PRId64 " steps or more, of %"
		PRId64 " node(s) each%s%s: make it shorter (--bind NAME=N of its length), or write it with operators on the "
		"whole sequence, such as CumSum, GRU and LSTM", UNROLLED_MAX, steps, nodes, s->unkept
		? "; it cannot be kept as a loop, since " : "", s->unkept ? s->unkept : "");
}

/* Imports the body once more; s->args are set.  The states become the arguments of the next step. */
static bool step(Steps *s, int64_t t)
{
	Node *n = s->n;
	int inputs = s->first + s->n_state + s->n_in, given = 0;
	const char *prefix = arena_printf(n->im->arena, "%s/%" PRId64, n->name, t);
	for (; given < inputs && s->args[given]; given++)
		;
	if (given < inputs)
		return node_error(n, "input %d of its body is given by no operand", given);
	if (!may_unroll(s, t + 1) || !import_charge(n, s->body->nodes.n)
			|| !import_body(n, s->body, prefix, inputs, s->args, s->out))
		return false;
	for (int i = 0; i < s->n_state; i++)
		s->args[s->first + i] = s->out[s->first_out + i];
	return true;
}

/* Ends a step that counts. */
static void end_step(Steps *s)
{
	vec_push(s->n->im->arena, &s->ends, s->n->im->m->last[SEC_FORWARD]);
	for (int i = 0; i < s->n_scan; i++)
		vec_push(s->n->im->arena, &s->scans[i], s->out[s->first_out + s->n_state + i]);
}

/* Puts products that need no state before the first step, when all steps are done. */
static void share_products(Steps *s)
{
	const PtrMap *now = batch_products(s->n->im, s->ends.n - 1, s->ends.at);
	for (int i = 0; i < s->n_state; i++) {
		Value *v = ptrmap_get(now, s->args[s->first + i]);
		s->args[s->first + i] = v ? v : s->args[s->first + i];
	}
	for (int i = 0; i < s->n_scan; i++) {
		for (int t = 0; t < s->scans[i].n; t++) {
			Value *v = ptrmap_get(now, s->scans[i].at[t]);
			s->scans[i].at[t] = v ? v : s->scans[i].at[t];
		}
	}
}

/* An empty result: of no step, each of which would have made an element like v. */
static Value *stack_none(Node *n, const Value *v, int axis)
{
	int64_t dim[IR_MAX_RANK];
	for (int i = 0; i <= v->type.rank; i++)
		dim[i] = i == axis ? 0 : v->type.dim[i - (i > axis)];
	return ir_const_full(n->b, type_tensor(v->type.dtype, v->type.rank + 1, dim), 0);
}

/* Stacks what the steps made along a new axis.  like: what a step would make, if there is none. */
static Value *stack(Steps *s, int i, int64_t axis, bool backward, const Value *like)
{
	Node *n = s->n;
	ValueVec *v = &s->scans[i];
	const Value *first = v->n ? v->at[0] : like;
	for (int k = 0; k < v->n; k++)
		if (pseudo_is(n->im, v->at[k]) || !type_equal(&v->at[k]->type, &first->type)) {
			node_error(n, "result %d cannot be stacked: step 0 makes %s, step %d %s", s->n_state + i,
				type_str(n->im->arena, &first->type), k, pseudo_is(n->im, v->at[k]) ? "a sequence"
				: type_str(n->im->arena, &v->at[k]->type));
			return NULL;
		}
	int at = first->type.rank < IR_MAX_RANK ? node_axis(n, axis, first->type.rank + 1) : -1;
	if (at < 0)
		return NULL;
	for (int k = 0; backward && k < v->n / 2; k++) {
		Value *other = v->at[v->n - 1 - k];
		v->at[v->n - 1 - k] = v->at[k];
		v->at[k] = other;
	}
	return v->n ? emit_stack(n->im, v->n, v->at, at, &s->at_once) : stack_none(n, first, at);
}

/* Imports the body for the types of its results alone, where no step runs; nothing reads what it makes. */
static bool dry_step(Steps *s)
{
	int norms = s->n->im->n_batch_norms;
	Value **args = s->args;
	s->args = NEW_N(s->n->im->arena, Value *, s->body->inputs.n + 1);
	memcpy(s->args, args, sizeof(*args) * (size_t)s->body->inputs.n);
	bool good = step(s, 0);
	s->args = args;
	return good && (s->n->im->n_batch_norms == norms
		|| node_refuse(s->n, "it runs no step, and has a batch norm in it"));
}

/* ---- kept loops ---- */

/* Whether a loop of so many steps is kept, if it can be. */
static bool is_kept(const Steps *s, int64_t steps)
{
	LoopsMode asked = s->n->im->o->graph.loops;
	int64_t unrolled = (s->n_state ? KEPT_ABOVE : UNROLLED_MAX) / MAX(s->body->nodes.n, 1);
	return asked != LOOPS_UNROLL && !s->n->im->in_loop && steps > (asked == LOOPS_KEEP ? 0 : unrolled);
}

/* Whether a loop that was not kept may be unrolled instead. */
static bool must_be_kept(const Steps *s)
{
	if (s->unkept && s->n->im->o->graph.loops == LOOPS_KEEP)
		return !node_refuse(s->n, "it cannot be kept as a loop, as --loops=keep asks: %s", s->unkept);
	return false;
}

/* Says why a loop is of no form that can be kept, where it would be if it could. */
static void never_kept(Steps *s, const char *why)
{
	if (is_kept(s, INT64_MAX))
		s->unkept = why;
}

/* The inputs of the body as parts of a loop; those that are not set by the caller are the states. */
static LoopParts parts_of(const Steps *s, int64_t steps, LoopPart *part, Value **given)
{
	for (int i = 0; i < s->n_state; i++) {
		part[s->first + i] = LOOP_STATE;
		given[s->first + i] = s->args[s->first + i];
	}
	return (LoopParts){.steps = steps, .n_args = s->body->inputs.n, .part = part, .given = given,
		.n_out = s->body->outputs.n, .first_out = s->first_out};
}

static const Op *keep(Steps *s, LoopParts *p)
{
	const Op *loop = NULL;
	p->why = p->steps > KEPT_STEPS_MAX ? "it has more than 16,777,216 steps"
		: "a state or a scanned operand is no tensor";
	for (int i = 0; i < p->n_args && p->steps <= KEPT_STEPS_MAX; i++)
		if (!p->given[i] || pseudo_is(s->n->im, p->given[i]) || p->given[i]->type.kind != TYPE_TENSOR)
			break;
		else if (i == p->n_args - 1)
			loop = loop_keep(s->n, s->body, p);
	s->unkept = loop ? NULL : p->why;
	return loop;
}

/* ---- Loop ---- */

/* Reads how often a Loop runs at most, and whether it begins. */
static bool loop_bounds(Node *n, int64_t *most, int64_t *cond)
{
	*most = INT64_MAX;
	*cond = 1;
	if (node_in(n, 0) && !known_number(n, n->in[0], most))
		return refuse_count(n);
	if (*most < 0)
		return node_error(n, "its trip count is %" PRId64 ", a number of 0 or more is wanted", *most);
	if (node_in(n, 1) && !known_number(n, n->in[1], cond))
		return refuse_condition(n);
	if (!node_in(n, 0) && !node_in(n, 1))
		return node_error(n, "it has neither a trip count nor a condition, so it never ends");
	return true;
}

static bool loop_results(Steps *s, bool ran)
{
	Node *n = s->n;
	for (int i = 0; i < s->n_state && i < n->n_out; i++)
		n->out[i] = s->args[s->first + i];
	bool wants = n->n_out > s->n_state;
	if (!ran && wants && !dry_step(s))
		return false;
	for (int i = s->n_state; i < n->n_out; i++) {
		const Value *like = s->out[s->first_out + i];
		if (*n->proto->output[i] && !(n->out[i] = stack(s, i - s->n_state, 0, false, like)))
			return false;
	}
	return true;
}

/* Keeps a Loop of a known number of steps, whose first operand of the body is the number of the step. */
static bool keep_loop(Steps *s, int64_t steps)
{
	Node *n = s->n;
	Arena *a = n->im->arena;
	LoopPart *part = NEW_N(a, LoopPart, s->body->inputs.n + 1);
	Value **given = NEW_N(a, Value *, s->body->inputs.n + 1);
	LoopParts p = parts_of(s, steps, part, given);
	const Op *last = n->im->m->last[SEC_FORWARD];
	part[0] = LOOP_STEP;
	given[0] = emit_iota(n->b, DT_I64, 1, &steps, 0, 0, 1);
	import_mark(n->im, last);
	given[1] = literal(n, DT_BOOL, 1);
	const Op *loop = keep(s, &p);
	for (int i = 0; loop && i < n->n_out; i++)
		n->out[i] = loop->out[i];
	return loop;
}

bool import_loop(Node *n)
{
	Steps s;
	int64_t most, cond, t;
	int n_state = MAX(n->n_in - 2, 0);
	if (!steps_begin(&s, n, 2, 1, n_state, 0) || !loop_bounds(n, &most, &cond))
		return false;
	for (int i = 0; i < n_state; i++)
		s.args[2 + i] = n->in[2 + i];
	if (cond && node_in(n, 0) && is_kept(&s, most) && keep_loop(&s, most))
		return true;
	if (cond && !node_in(n, 0))
		never_kept(&s, "it has a condition and no trip count");
	if (must_be_kept(&s))
		return false;
	int64_t charged = n->im->n_inlined;
	for (t = 0; t < most && cond; t++) {
		s.args[0] = literal(n, DT_I64, t);
		s.args[1] = literal(n, DT_BOOL, cond);
		if (!step(&s, t))
			return false;
		end_step(&s);
		if (!known_number(n, s.out[0], &cond))
			return refuse_condition(n);
		if (!cond && !node_in(n, 1) && t + 1 < most)
			return node_error(n, "its body ends it at step %" PRId64 " of %" PRId64 ", but it has no condition: ONNX "
				"then goes on, some runtimes do not; give it the condition true", t, most);
	}
	share_products(&s);
	s.args[0] = literal(n, DT_I64, 0);
	s.args[1] = literal(n, DT_BOOL, 1);
	if (!loop_results(&s, t > 0))
		return false;
	if (!n_state && s.at_once == s.n_scan) /* nothing reads the nodes of the steps */
		n->im->n_inlined -= (n->im->n_inlined - charged) / 4 * 3;
	return true;
}

/* ---- Scan ---- */

typedef struct ScanAxes { int64_t axis; bool backward; } ScanAxes;

/* Reads the axes and directions of operands or results; NULL after an error. */
static ScanAxes *scan_axes(Node *n, int count, const char *axes, const char *directions)
{
	ScanAxes *list = NEW_N(n->im->arena, ScanAxes, count + 1);
	const int64_t *at = NULL, *way = NULL;
	int n_at = node_ints(n, axes, &at), n_way = node_ints(n, directions, &way);
	if ((n_at > 0 && n_at != count) || (n_way > 0 && n_way != count)) {
		node_error(n, "%s and %s have %d and %d numbers, %d are wanted", axes, directions, MAX(n_at, 0), MAX(n_way, 0),
			count);
		return NULL;
	}
	for (int i = 0; i < count; i++) {
		list[i] = (ScanAxes){n_at > 0 ? at[i] : 0, n_way > 0 && way[i] == 1};
		if (n_way > 0 && way[i] != 0 && way[i] != 1) {
			node_error(n, "%s has %" PRId64 ", 0 or 1 is wanted", directions, way[i]);
			return NULL;
		}
	}
	return list;
}

/* The elements of x along an axis, without it, in the order in which they are scanned. */
static Value **elements(Node *n, Value *x, int axis, bool backward)
{
	int64_t count = x->type.dim[axis], dim[IR_MAX_RANK];
	int64_t *sizes = NEW_N(n->im->arena, int64_t, count + 1);
	Value **list = NEW_N(n->im->arena, Value *, count + 1);
	const Op *last = n->im->m->last[SEC_FORWARD];
	int rank = 0;
	for (int i = 0; i < x->type.rank; i++)
		if (i != axis)
			dim[rank++] = x->type.dim[i];
	for (int64_t t = 0; t < count; t++)
		sizes[t] = 1;
	Attr *a = attr_ints(n->b->m, attr_int(n->b->m, NULL, "axis", axis), "sizes", (int)count, sizes);
	const Op *split = count > 1 ? ir_emit_op(n->b, OP_SPLIT, 1, &x, a, NULL) : NULL;
	for (int64_t t = 0; t < count; t++)
		list[backward ? count - 1 - t : t] = ir_reshape(n->b, split ? split->out[t] : x, rank, dim);
	if (!count) /* for the types of a body that does not run */
		list[0] = ir_const_full(n->b, type_tensor(x->type.dtype, rank, dim), 0);
	import_mark(n->im, last);
	return list;
}

/* Runs the body over x, operands that are scanned along their axes; the states are in s->args already.  steps: fewer
 * than the operands have, or -1.  *like: whether no step ran, so that s->out has only the types. */
static bool scan(Steps *s, Value *const *x, const ScanAxes *axes, int64_t steps, bool *like)
{
	Node *n = s->n;
	Value ***of = NEW_N(n->im->arena, Value **, s->n_in + 1);
	int64_t length = -1;
	for (int i = 0; i < s->n_in; i++) {
		int axis = !x[i] || pseudo_is(n->im, x[i]) || !x[i]->type.rank ? -1 : node_axis(n, axes[i].axis,
			x[i]->type.rank);
		if (axis < 0)
			return node_error(n, "scanned operand %d is no tensor with this axis", i);
		if (length >= 0 && x[i]->type.dim[axis] != length)
			return node_error(n, "scanned operand %d has %" PRId64 " steps, those before it %" PRId64, i,
				x[i]->type.dim[axis], length);
		length = x[i]->type.dim[axis];
		if (!may_unroll(s, length))
			return false;
		of[i] = elements(n, x[i], axis, axes[i].backward);
	}
	length = steps >= 0 ? MIN(steps, length) : length;
	*like = length == 0;
	for (int64_t t = 0; t < MAX(length, 1); t++) {
		for (int i = 0; i < s->n_in; i++)
			s->args[s->first + s->n_state + i] = of[i][t];
		if (!(length ? step(s, t) : dry_step(s)))
			return false;
		if (length)
			end_step(s);
	}
	return true;
}

/* x with the steps along its first axis, in the order of the steps. */
static Value *in_order(Node *n, Value *x, int axis, bool backward)
{
	const Op *last = n->im->m->last[SEC_FORWARD];
	x = emit_move_axis(n->b, x, axis, 0);
	if (backward)
		x = emit_slice(n->b, x, 0, x->type.dim[0] - 1, x->type.dim[0], -1);
	import_mark(n->im, last);
	return x;
}

/* The number of steps of a Scan, if its operands agree on it; -1: they do not, which scan() reports. */
static int64_t scan_steps(Node *n, int n_in, Value *const *x, const ScanAxes *axes)
{
	int64_t steps = -1;
	for (int i = 0; i < n_in; i++) {
		bool tensor = x[i] && !pseudo_is(n->im, x[i]) && x[i]->type.kind == TYPE_TENSOR;
		int64_t rank = tensor ? x[i]->type.rank : 0, axis = axes[i].axis + (axes[i].axis < 0 ? rank : 0);
		if (axis < 0 || axis >= rank || (i && x[i]->type.dim[axis] != steps))
			return -1;
		steps = x[i]->type.dim[axis];
	}
	return steps;
}

static bool keep_scan(Steps *s, const ScanAxes *in, const ScanAxes *out, int64_t steps)
{
	Node *n = s->n;
	Arena *a = n->im->arena;
	LoopPart *part = NEW_N(a, LoopPart, s->body->inputs.n + 1);
	Value **given = NEW_N(a, Value *, s->body->inputs.n + 1);
	LoopParts p = parts_of(s, steps, part, given);
	for (int i = 0; i < s->n_in; i++) {
		Value *x = n->in[s->n_state + i];
		part[s->n_state + i] = LOOP_SLICE;
		given[s->n_state + i] = in_order(n, x, node_axis(n, in[i].axis, x->type.rank), in[i].backward);
	}
	const Op *loop = keep(s, &p);
	for (int i = 0; loop && i < n->n_out; i++) {
		int k = i - s->n_state, axis = k < 0 ? 0 : node_axis(n, out[k].axis, loop->out[i]->type.rank);
		if (axis < 0)
			return false;
		n->out[i] = k < 0 ? loop->out[i] : emit_move_axis(n->b, out[k].backward ? in_order(n, loop->out[i], 0, true)
			: loop->out[i], 0, axis);
	}
	return loop;
}

/* The number of scanned operands; -1 after an error. */
static int scanned(Node *n, int operands)
{
	int64_t count = node_int(n, "num_scan_inputs", -1);
	if (count >= 1 && count <= operands)
		return (int)count;
	node_error(n, "num_scan_inputs is %" PRId64 ", and it has %d operand(s)", count, operands);
	return -1;
}

bool import_scan(Node *n)
{
	Steps s;
	bool none;
	int n_in = scanned(n, n->n_in);
	if (n_in < 0 || !steps_begin(&s, n, 0, 0, n->n_in - n_in, n_in))
		return false;
	ScanAxes *in = scan_axes(n, n_in, "scan_input_axes", "scan_input_directions");
	ScanAxes *out = scan_axes(n, s.n_scan, "scan_output_axes", "scan_output_directions");
	memcpy(s.args, n->in, sizeof(Value *) * (size_t)s.n_state);
	int64_t steps = in ? scan_steps(n, n_in, n->in + s.n_state, in) : -1;
	if (in && out && is_kept(&s, steps) && keep_scan(&s, in, out, steps))
		return true;
	if (!in || !out || must_be_kept(&s) || !scan(&s, n->in + s.n_state, in, -1, &none))
		return false;
	share_products(&s);
	for (int i = 0; i < n->n_out; i++) {
		int k = i - s.n_state;
		n->out[i] = k < 0 ? s.args[i] : stack(&s, k, out[k].axis, out[k].backward, s.out[i]);
		if (!n->out[i])
			return false;
	}
	return true;
}

/* ---- Scan of opset 8, which has an axis of samples in front of all operands ---- */

/* The number of steps of each sample. */
static bool sample_steps(Node *n, int64_t batch, int64_t length, const int64_t **out)
{
	int64_t *all = NEW_N(n->im->arena, int64_t, batch + 1);
	int count;
	for (int64_t b = 0; b < batch; b++)
		all[b] = length;
	*out = all;
	if (!node_in(n, 0))
		return true;
	if (!node_known_ints(n, 0, "sequence_lens", out, &count))
		return false;
	for (int64_t b = 0; b < batch && b < count; b++)
		if ((*out)[b] < 0 || (*out)[b] > length)
			return node_error(n, "sequence_lens has %" PRId64 ", the sequence has %" PRId64 " steps", (*out)[b],
				length);
	return count == batch || node_error(n, "sequence_lens has %d numbers for %" PRId64 " samples", count, batch);
}

/* Scans one sample, and adds its results to all[i].  Steps that a shorter sample does not have give zeros. */
static bool scan_sample(Steps *s, Value **states, Value **x, const ScanAxes *in, int64_t steps, int64_t length,
	ValueVec *all)
{
	Node *n = s->n;
	bool none;
	memcpy(s->args, states, sizeof(Value *) * (size_t)s->n_state);
	for (int i = 0; i < s->n_scan; i++)
		s->scans[i].n = 0;
	if (!scan(s, x, in, steps, &none))
		return false;
	for (int i = 0; i < n->n_out; i++) {
		int k = i - s->n_state;
		while (k >= 0 && s->scans[k].n < length && !pseudo_is(n->im, s->out[i]))
			vec_push(n->im->arena, &s->scans[k], ir_const_full(n->b, s->out[i]->type, 0));
		Value *v = k < 0 ? s->args[i] : stack(s, k, 0, false, s->out[i]);
		if (!v)
			return false;
		if (all[i].n && !type_equal(&v->type, &all[i].at[0]->type))
			return node_error(n, "result %d differs between samples", i);
		vec_push(n->im->arena, &all[i], v);
	}
	return true;
}

bool import_scan_of_batch(Node *n)
{
	Steps s;
	Arena *a = n->im->arena;
	int operands = n->n_in - 1, n_in = scanned(n, operands);
	if (n_in < 0 || !steps_begin(&s, n, 0, 0, operands - n_in, n_in))
		return false;
	never_kept(&s, "a Scan of opset 8 may have samples of several lengths");
	if (must_be_kept(&s))
		return false;
	const Value *x = n->in[1 + s.n_state];
	ScanAxes *in = scan_axes(n, n_in, "", "directions");
	ValueVec *all = NEW_N(a, ValueVec, n->n_out + 1);
	Value ***of = NEW_N(a, Value **, operands + 1), **one = NEW_N(a, Value *, operands + 1);
	const int64_t *steps;
	int64_t batch = x && !pseudo_is(n->im, x) && x->type.rank > 1 ? x->type.dim[0] : 0;
	if (!in || !batch || !may_unroll(&s, batch) || !sample_steps(n, batch, x->type.dim[1], &steps))
		return in && !batch ? node_error(n, "its operands have no samples") : false;
	for (int i = 0; i < operands; i++) {
		Value *v = n->in[1 + i];
		if (!v || pseudo_is(n->im, v) || !v->type.rank || v->type.dim[0] != batch)
			return node_error(n, "operand %d has not %" PRId64 " samples", 1 + i, batch);
		of[i] = elements(n, v, 0, false);
	}
	for (int64_t b = 0; b < batch; b++) {
		for (int i = 0; i < operands; i++)
			one[i] = of[i][b];
		if (!scan_sample(&s, one, one + s.n_state, in, steps[b], x->type.dim[1], all))
			return false;
	}
	for (int i = 0; i < n->n_out; i++)
		n->out[i] = emit_stack(n->im, all[i].n, all[i].at, 0, &s.at_once);
	return true;
}
