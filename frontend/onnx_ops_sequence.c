/* frontend/onnx_ops_sequence.c: sequences and optionals, which are lists of values that are known at compile time: how
 * many there are, and which.  They are no values of the IR: what reads their elements reads the values themselves. */
#include "frontend/onnx_pseudo.h"

#include <inttypes.h>
#include <string.h>

/* A list that is copied counts as a node for so many of its elements, since loops may copy long ones often. */
enum { COPIED_PER_NODE = 16 };

bool sequence_takes(const char *op)
{
	static const char *const ops[] = {"ConcatFromSequence", "If", "Loop", "Optional", "OptionalGetElement",
		"OptionalHasElement", "Scan", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert",
		"SequenceLength", "SequenceMap"};
	for (int i = 0; i < COUNT_OF(ops); i++)
		if (!strcmp(ops[i], op))
			return true;
	return false;
}

Value *sequence_new(Import *im, PseudoKind kind, int count, Value *const *at)
{
	Pseudo p = {.kind = kind, .n = count, .at = NEW_N(im->arena, Value *, count + 1)};
	for (int i = 0; i < count; i++)
		p.at[i] = at[i];
	return pseudo_new(im, p);
}

/* The sequence with one more element at its end.  A list has room for as many again, which the first to append to it
 * takes, so that a loop that appends in each step takes time and memory in proportion to its steps. */
static Value *sequence_append(Import *im, const Pseudo *s, Value *x)
{
	Pseudo p = *s;
	if (!s->used || *s->used != s->n || s->n == s->room) {
		p.room = 2 * (s->n + 1);
		p.at = NEW_N(im->arena, Value *, p.room);
		p.used = NEW(im->arena, int);
		for (int i = 0; i < s->n; i++)
			p.at[i] = s->at[i];
	}
	p.at[p.n++] = x;
	*p.used = p.n;
	return pseudo_new(im, p);
}

static const Pseudo *sequence(Node *n)
{
	const Pseudo *p = pseudo_of(n->im, node_in(n, 0));
	if (p && p->kind == PSEUDO_SEQUENCE)
		return p;
	node_error(n, "operand 0 is not a sequence");
	return NULL;
}

/* Reads operand i as an index into a sequence of `count` elements; negative numbers count from its end.  The highest
 * index allowed is `last`; an absent operand gives `otherwise`. */
static bool position(Node *n, int i, int count, int last, int otherwise, int *at)
{
	const int64_t *list;
	int k;
	*at = otherwise;
	if (!node_in(n, i))
		return true;
	if (!node_known_ints(n, i, "position", &list, &k))
		return false;
	if (k != 1 || list[0] < -count || list[0] > MAX(last, 0))
		return node_error(n, "position is outside a sequence of %d", count);
	*at = (int)(list[0] < 0 ? list[0] + count : list[0]);
	return true;
}

bool import_sequence_construct(Node *n)
{
	for (int i = 0; i < n->n_in; i++)
		if (!n->in[i] || pseudo_is(n->im, n->in[i]))
			return node_error(n, "operand %d is no tensor", i);
	n->out[0] = sequence_new(n->im, PSEUDO_SEQUENCE, n->n_in, n->in);
	return true;
}

bool import_sequence_at(Node *n)
{
	const Pseudo *s = sequence(n);
	int at;
	if (!s || !position(n, 1, s->n, s->n - 1, 0, &at) || !s->n)
		return false;
	n->out[0] = s->at[at];
	return true;
}

bool import_sequence_length(Node *n)
{
	const Pseudo *s = sequence(n);
	if (s)
		n->out[0] = ir_const_int(n->b, DT_I64, s->n);
	return s;
}

bool import_sequence_insert(Node *n)
{
	const Pseudo *s = sequence(n);
	int at;
	if (!s || !node_in(n, 1) || pseudo_is(n->im, n->in[1]) || !position(n, 2, s->n, s->n, s->n, &at))
		return s && (!node_in(n, 1) || pseudo_is(n->im, n->in[1])) ? node_error(n, "operand 1 is no tensor") : false;
	if (at == s->n) {
		n->out[0] = sequence_append(n->im, s, n->in[1]);
		return true;
	}
	if (!import_charge(n, s->n / COPIED_PER_NODE))
		return false;
	Value **list = NEW_N(n->im->arena, Value *, s->n + 1);
	for (int i = 0; i <= s->n; i++)
		list[i] = i == at ? n->in[1] : s->at[i - (i > at)];
	n->out[0] = sequence_new(n->im, PSEUDO_SEQUENCE, s->n + 1, list);
	return true;
}

bool import_sequence_erase(Node *n)
{
	const Pseudo *s = sequence(n);
	int at;
	if (!s || !position(n, 1, s->n, s->n - 1, s->n - 1, &at) || !s->n || !import_charge(n, s->n / COPIED_PER_NODE))
		return false;
	Value **list = NEW_N(n->im->arena, Value *, s->n);
	for (int i = 0; i < s->n - 1; i++)
		list[i] = s->at[i + (i >= at)];
	n->out[0] = sequence_new(n->im, PSEUDO_SEQUENCE, s->n - 1, list);
	return true;
}

static bool all_of_type(const Pseudo *s)
{
	for (int i = 1; i < s->n; i++)
		if (!type_equal(&s->at[i]->type, &s->at[0]->type))
			return false;
	return true;
}

/* Tensors of one type one behind the other along an axis that they have. */
static Value *joined(Node *n, const Pseudo *s, int axis)
{
	Value *all = all_of_type(s) ? batch_steps(n->im, s->n, s->at) : NULL;
	if (!all)
		return emit_concat(n->b, s->n, s->at, axis);
	int64_t dim[IR_MAX_RANK];
	for (int i = 0; i < all->type.rank - 1; i++)
		dim[i] = s->at[0]->type.dim[i] * (i == axis ? s->n : 1);
	return ir_reshape(n->b, emit_move_axis(n->b, all, 0, axis), all->type.rank - 1, dim);
}

bool import_concat_from_sequence(Node *n)
{
	const Pseudo *s = sequence(n);
	bool fresh = node_int(n, "new_axis", 0);
	if (!s || !s->n)
		return s ? node_error(n, "the sequence is empty") : false;
	int rank = s->at[0]->type.rank + fresh;
	int axis = rank > IR_MAX_RANK ? -1 : node_axis(n, node_int(n, "axis", 0), rank);
	if (axis < 0 || (fresh && !all_of_type(s)))
		return axis < 0 ? rank > IR_MAX_RANK && node_error(n, "its result has a rank above %d", IR_MAX_RANK)
			: node_error(n, "the sequence has tensors of several types, which cannot be stacked");
	n->out[0] = fresh ? emit_stack(n->im, s->n, s->at, axis, &(int){0}) : joined(n, s, axis);
	return true;
}

/* SplitToSequence: pieces of equal size or of the given sizes.  Without sizes the slices have size 1, and keepdims=0
 * drops that axis. */
bool import_split_to_sequence(Node *n)
{
	const int64_t *sizes = NULL;
	int64_t dim[IR_MAX_RANK];
	int count = 0;
	if (!node_want(n, 1, 2) || (node_in(n, 1) && !node_known_ints(n, 1, "split", &sizes, &count)))
		return false;
	Value *x = n->in[0];
	int axis = node_axis(n, node_int(n, "axis", 0), x->type.rank), pieces = 0;
	if (axis < 0)
		return false;
	bool scalar = !sizes || n->in[1]->type.rank == 0, drop = !sizes && !node_int(n, "keepdims", 1);
	int64_t each = !sizes ? 1 : count ? sizes[0] : 0, total = x->type.dim[axis];
	if (scalar && (each < 1 || ceil_div(total, each) > LITERAL_MAX))
		return node_error(n, "pieces of %" PRId64 " of a dimension of %" PRId64, each, total);
	Value **list = NEW_N(n->im->arena, Value *, scalar ? ceil_div(total, each) : count);
	for (int64_t at = 0; scalar ? at < total : pieces < count; pieces++) {
		int64_t size = scalar ? MIN(each, total - at) : sizes[pieces];
		if (size < 0 || size > total - at)
			return node_error(n, "piece %d of %" PRId64 " does not fit", pieces, size);
		list[pieces] = emit_slice(n->b, x, axis, at, size, 1);
		at += size;
		for (int i = 0, k = 0; i < x->type.rank && drop; i++)
			if (i != axis)
				dim[k++] = x->type.dim[i];
		if (drop)
			list[pieces] = ir_reshape(n->b, list[pieces], x->type.rank - 1, dim);
	}
	n->out[0] = sequence_new(n->im, PSEUDO_SEQUENCE, pieces, list);
	return true;
}

/* ---- SequenceMap ---- */

/* Whether operand i has `count` elements, if it is a sequence; a tensor is the same for all of them. */
static bool map_operand(Node *n, int i, int count)
{
	const Pseudo *p = pseudo_of(n->im, n->in[i]);
	if (!n->in[i] || (p && p->kind != PSEUDO_SEQUENCE))
		return node_error(n, "operand %d is neither a sequence nor a tensor", i);
	return !p || p->n == count || node_error(n, "operand %d has %d elements, operand 0 has %d", i, p->n, count);
}

bool import_sequence_map(Node *n)
{
	Arena *a = n->im->arena;
	const Pseudo *s = sequence(n);
	const OnnxGraph *g = s ? import_subgraph(n, "body") : NULL;
	if (!g || g->outputs.n < n->n_out)
		return g ? node_error(n, "its body has %d output(s), the node %d result(s)", g->outputs.n, n->n_out) : false;
	Value **args = NEW_N(a, Value *, n->n_in + 1), **out = NEW_N(a, Value *, g->outputs.n + 1);
	for (int i = 0; i < n->n_in; i++)
		if (!map_operand(n, i, s->n))
			return false;
	for (int i = 0; i < n->n_out; i++)
		n->out[i] = sequence_new(n->im, PSEUDO_SEQUENCE, 0, NULL);
	for (int k = 0; k < s->n; k++) {
		for (int i = 0; i < n->n_in; i++) {
			const Pseudo *p = pseudo_of(n->im, n->in[i]);
			args[i] = p ? p->at[k] : n->in[i];
		}
		if (!import_charge(n, g->nodes.n)
				|| !import_body(n, g, arena_printf(a, "%s/%d", n->name, k), n->n_in, args, out))
			return false;
		for (int i = 0; i < n->n_out; i++)
			n->out[i] = sequence_append(n->im, pseudo_of(n->im, n->out[i]), out[i]);
	}
	return true;
}

/* ---- optionals ---- */

bool import_optional(Node *n)
{
	if (!node_want(n, 0, 1))
		return false;
	n->out[0] = sequence_new(n->im, PSEUDO_OPTIONAL, n->n_in, n->in);
	return true;
}

bool import_optional_has_element(Node *n)
{
	const Pseudo *p = pseudo_of(n->im, node_in(n, 0));
	if (!node_want(n, 0, 1))
		return false;
	n->out[0] = ir_const_int(n->b, DT_BOOL, p && p->kind == PSEUDO_OPTIONAL ? p->n : n->n_in);
	return true;
}

bool import_optional_get_element(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	const Pseudo *p = pseudo_of(n->im, n->in[0]);
	bool optional = p && p->kind == PSEUDO_OPTIONAL;
	if (optional && !p->n)
		return node_error(n, "the optional is empty");
	n->out[0] = optional ? p->at[0] : n->in[0];
	return true;
}
