/* frontend/onnx_pseudo.c: sequences, which are values in ONNX but not in the IR: lists of values, whose length and
 * order are known at compile time. */
#include "frontend/onnx_import.h"

#include <inttypes.h>
#include <string.h>

typedef struct Pseudo {
	Value **at;
	int n;
} Pseudo;

static Pseudo *pseudo_of(const Import *im, const Value *v)
{
	return v ? ptrmap_get(im->pseudo, v) : NULL;
}

/* A value that stands for p among the operands of nodes; it never enters the module. */
static Value *pseudo_new(Import *im, Pseudo p)
{
	Value *v = NEW(im->arena, Value);
	Pseudo *copy = NEW(im->arena, Pseudo);
	*copy = p;
	v->op = NEW(im->arena, Op);
	ptrmap_put(im->pseudo, v, copy);
	return v;
}

bool pseudo_is(const Import *im, const Value *v)
{
	return pseudo_of(im, v);
}

static Value *sequence_new(Node *n, int count, Value *const *at)
{
	Pseudo p = {.n = count, .at = NEW_N(n->im->arena, Value *, count + 1)};
	for (int i = 0; i < count; i++)
		p.at[i] = at[i];
	return pseudo_new(n->im, p);
}

/* ---- sequences ---- */

static const Pseudo *sequence(Node *n)
{
	const Pseudo *p = pseudo_of(n->im, node_in(n, 0));
	if (p)
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
	n->out[0] = sequence_new(n, n->n_in, n->in);
	return true;
}

static bool sequence_at(Node *n)
{
	const Pseudo *s = sequence(n);
	int at;
	if (!s || !position(n, 1, s->n, s->n - 1, 0, &at) || !s->n)
		return false;
	n->out[0] = s->at[at];
	return true;
}

static bool sequence_length(Node *n)
{
	const Pseudo *s = sequence(n);
	if (s)
		n->out[0] = ir_const_int(n->b, DT_I64, s->n);
	return s;
}

static bool sequence_insert(Node *n)
{
	const Pseudo *s = sequence(n);
	int at;
	if (!s || !node_in(n, 1) || !position(n, 2, s->n, s->n, s->n, &at))
		return false;
	Value **list = NEW_N(n->im->arena, Value *, s->n + 1);
	for (int i = 0; i <= s->n; i++)
		list[i] = i == at ? n->in[1] : s->at[i - (i > at)];
	n->out[0] = sequence_new(n, s->n + 1, list);
	return true;
}

static bool sequence_erase(Node *n)
{
	const Pseudo *s = sequence(n);
	int at;
	if (!s || !position(n, 1, s->n, s->n - 1, s->n - 1, &at) || !s->n)
		return false;
	Value **list = NEW_N(n->im->arena, Value *, s->n);
	for (int i = 0; i < s->n - 1; i++)
		list[i] = s->at[i + (i >= at)];
	n->out[0] = sequence_new(n, s->n - 1, list);
	return true;
}

static Value *with_unit_axis(Node *n, Value *x, int axis)
{
	int64_t dim[IR_MAX_RANK];
	for (int i = 0; i <= x->type.rank; i++)
		dim[i] = i == axis ? 1 : x->type.dim[i - (i > axis)];
	return ir_reshape(n->b, x, x->type.rank + 1, dim);
}

static bool concat_from_sequence(Node *n)
{
	const Pseudo *s = sequence(n);
	bool fresh = node_int(n, "new_axis", 0);
	if (!s || !s->n)
		return s ? node_error(n, "the sequence is empty") : false;
	int rank = s->at[0]->type.rank + fresh;
	int axis = rank > IR_MAX_RANK ? -1 : node_axis(n, node_int(n, "axis", 0), rank);
	Value **list = NEW_N(n->im->arena, Value *, s->n);
	if (axis < 0)
		return false;
	for (int i = 0; i < s->n; i++)
		list[i] = fresh && s->at[i]->type.rank < IR_MAX_RANK ? with_unit_axis(n, s->at[i], axis) : s->at[i];
	n->out[0] = emit_concat(n->b, s->n, list, axis);
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
	n->out[0] = sequence_new(n, pieces, list);
	return true;
}

static bool pass(Node *n)
{
	n->out[0] = n->in[0];
	return true;
}

/* ---- by op ---- */

typedef struct PseudoOp { const char *op; OnnxImporter *import; } PseudoOp;

static const PseudoOp pseudo_ops[] = {
	{"SequenceAt", sequence_at}, {"SequenceLength", sequence_length}, {"SequenceInsert", sequence_insert},
	{"SequenceErase", sequence_erase}, {"ConcatFromSequence", concat_from_sequence},
	{"Identity", pass},
};

static const PseudoOp *find_pseudo_op(const char *op)
{
	for (int i = 0; i < COUNT_OF(pseudo_ops); i++)
		if (!strcmp(pseudo_ops[i].op, op))
			return &pseudo_ops[i];
	return NULL;
}

bool pseudo_takes(const char *op)
{
	return strstr(op, "Sequence") && find_pseudo_op(op);
}

bool pseudo_import(Node *n)
{
	const PseudoOp *p = find_pseudo_op(n->op);
	if (p)
		return p->import(n);
	return node_refuse(n, "it takes a sequence, which is not supported");
}
