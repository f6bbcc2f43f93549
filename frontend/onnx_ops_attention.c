/* frontend/onnx_ops_attention.c: Attention and RotaryEmbedding of opsets 23 and 24.
 *
 * Attention becomes one op of the IR.  If the node also returns its score matrix, or is of f64, for which that op has
 * no kernel, it is written out as single ops instead. */
#include "frontend/onnx_blocks.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct Heads {
	Value *q, *k, *v, *mask;     /* [B,H,T,D], [B,Hk,S,D], [B,Hk,S,Dv]; mask as the op takes it, or NULL */
	bool packed, causal;         /* packed: the operands came as [B,T,H*D] */
	int64_t past;                /* number of keys from earlier calls */
	int64_t left, right;         /* window; -1 = not limited */
	Value *length;               /* valid keys per sample, [B,1,1,1]; NULL = all are */
	double scale, softcap;
} Heads;

Value *heads_split(Node *n, Value *x, int64_t heads)
{
	const Type *t = &x->type;
	if (heads < 1 || t->dim[2] % heads) {
		node_error(n, "%" PRId64 " heads do not divide %s", heads, type_str(n->im->arena, t));
		return &n->im->m->poison;
	}
	x = ir_reshape(n->b, x, 4, (int64_t[]){t->dim[0], t->dim[1], heads, t->dim[2] / heads});
	return ir_transpose(n->b, x, (int[]){0, 2, 1, 3});
}

Value *heads_join(Node *n, Value *x)
{
	const int64_t *d = x->type.dim;
	return ir_reshape(n->b, ir_transpose(n->b, x, (int[]){0, 2, 1, 3}), 3, (int64_t[]){d[0], d[2], d[1] * d[3]});
}

/* Extends a mask that is shorter than the keys so that it hides the rest of the keys. */
static Value *extend_mask(Node *n, Value *mask, int64_t keys)
{
	int rank = mask->type.rank;
	int64_t have = rank ? mask->type.dim[rank - 1] : 0, before[IR_MAX_RANK] = {0}, after[IR_MAX_RANK] = {0};
	if (!rank || have == keys || have == 1)
		return mask;
	bool is_bool = mask->type.dtype == DT_BOOL;
	after[rank - 1] = MAX(keys - have, 0);
	Attr *a = attr_ints(n->b->m, attr_ints(n->b->m, NULL, "before", rank, before), "after", rank, after);
	a = attr_float(n->b->m, attr_str(n->b->m, a, "mode", "constant"), "value", is_bool ? 0 : -INFINITY);
	return ir_emit(n->b, OP_PAD, 1, &mask, a);
}

static Value *join_masks(Node *n, Value *mask, Value *keep)
{
	if (!mask || !keep)
		return mask ? mask : keep;
	if (mask->type.dtype == DT_BOOL)
		return ir_emit2(n->b, OP_AND, mask, keep);
	return ir_emit3(n->b, OP_WHERE, keep, mask, emit_float(n->b, mask, -INFINITY));
}

static Value *compare(Builder *b, OpKind kind, Value *x, Value *y, int64_t more)
{
	return ir_emit2(b, kind, x, more ? emit_add(b, y, ir_const_int(b, DT_I64, more)) : y);
}

/* Adds to the mask what the op gives as numbers: the valid keys, causality if `causal` is set, and the window.  A row's
 * position is counted from the first key: it starts behind the past keys, or is aligned with the last valid key. */
static void number_masks(Node *n, Heads *h, bool causal)
{
	Builder *b = n->b;
	int64_t rows = h->q->type.dim[2];
	Value *key = emit_iota(b, DT_I64, 2, (int64_t[]){1, h->k->type.dim[2]}, 1, 0, 1);
	Value *row = emit_iota(b, DT_I64, 2, (int64_t[]){rows, 1}, 0, (double)(h->length ? -rows : h->past), 1);
	if (h->length) {
		h->mask = join_masks(n, h->mask, ir_emit2(b, OP_LT, key, h->length));
		row = emit_add(b, row, h->length);
	}
	if (causal)
		h->mask = join_masks(n, h->mask, ir_emit2(b, OP_LE, key, row));
	if (h->left >= 0)
		h->mask = join_masks(n, h->mask, compare(b, OP_GE, key, row, -h->left));
	if (h->right >= 0)
		h->mask = join_masks(n, h->mask, compare(b, OP_LE, key, row, h->right));
}

static bool join_past(Node *n, Heads *h)
{
	Value *past_k = node_in(n, 4), *past_v = node_in(n, 5);
	if (!past_k != !past_v)
		return node_error(n, "past_key and past_value must come together");
	if (past_k) {
		h->past = past_k->type.rank == 4 ? past_k->type.dim[2] : 0;
		h->k = emit_concat(n->b, 2, (Value *[]){past_k, h->k}, 2);
		h->v = emit_concat(n->b, 2, (Value *[]){past_v, h->v}, 2);
	}
	return h->k->op && h->v->op;
}

static bool read_heads(Node *n, Heads *h)
{
	if (!node_want(n, 3, n->opset < 24 ? 6 : 7))
		return false;
	*h = (Heads){n->in[0], n->in[1], n->in[2], node_in(n, 3), .causal = node_int(n, "is_causal", 0),
		.softcap = node_float(n, "softcap", 0)};
	h->packed = h->q->type.rank == 3;
	if (h->packed) {
		h->q = heads_split(n, h->q, node_int(n, "q_num_heads", 0));
		h->k = heads_split(n, h->k, node_int(n, "kv_num_heads", 0));
		h->v = heads_split(n, h->v, node_int(n, "kv_num_heads", 0));
	}
	if (!h->q->op || !h->k->op || !h->v->op || h->q->type.rank != 4 || h->k->type.rank != 4
			|| h->v->type.rank != 4)
		return h->packed ? false : node_error(n, "q, k and v must all have rank 3 or all rank 4");
	h->scale = node_float(n, "scale", 1 / sqrt((double)h->q->type.dim[3]));
	h->left = node_int(n, "left_window_size", -1);
	h->right = node_int(n, "right_window_size", -1);
	if (node_in(n, 6))
		h->length = ir_reshape(n->b, ir_cast(n->b, n->in[6], DT_I64), 4,
			(int64_t[]){type_numel(&n->in[6]->type), 1, 1, 1});
	if (!join_past(n, h))
		return false;
	if (h->mask)
		h->mask = extend_mask(n, h->mask, h->k->type.dim[2]);
	return true;
}

Value *heads_repeat(Node *n, Value *x, int64_t heads)
{
	const int64_t *d = x->type.dim;
	int64_t each = d[1] ? heads / d[1] : 0;
	if (each <= 1)
		return x;
	Type wide = type_tensor(x->type.dtype, 5, (int64_t[]){d[0], d[1], each, d[2], d[3]});
	Value *v = ir_reshape(n->b, x, 5, (int64_t[]){d[0], d[1], 1, d[2], d[3]});
	return ir_reshape(n->b, ir_broadcast(n->b, v, &wide), 4, (int64_t[]){d[0], heads, d[2], d[3]});
}

/* The steps of the score matrix; qk_matmul_output_mode selects one as the node's fourth result. */
enum { SCORE_RAW, SCORE_CAPPED, SCORE_MASKED, SCORE_SOFTMAX, SCORE_COUNT };

/* Softmax of each row; a row that sees no key gives zeros. */
static Value *softmax_rows(Builder *b, Value *s)
{
	Value *top = ir_reduce(b, OP_REDUCE_MAX, s, 1, (int64_t[]){3}, true);
	Value *empty = ir_emit2(b, OP_EQ, top, emit_float(b, s, -INFINITY));
	return ir_emit3(b, OP_WHERE, empty, emit_float(b, s, 0), emit_softmax(b, OP_SOFTMAX, s, 3));
}

static Value *write_out(Node *n, Heads *h, Value *score[SCORE_COUNT])
{
	Builder *b = n->b;
	int64_t heads = h->q->type.dim[1];
	number_masks(n, h, h->causal);
	Value *mask = h->mask, *keys = heads_repeat(n, h->k, heads);
	Value *s = emit_matmul(b, emit_scale(b, h->q, h->scale), keys, NULL, false, true);
	score[SCORE_RAW] = s;
	if (h->softcap > 0)
		s = emit_scale(b, ir_emit1(b, OP_TANH, emit_scale(b, s, 1 / h->softcap)), h->softcap);
	score[SCORE_CAPPED] = s;
	if (mask)
		s = mask->type.dtype != DT_BOOL ? emit_add(b, s, mask)
			: ir_emit3(b, OP_WHERE, mask, s, emit_float(b, s, -INFINITY));
	score[SCORE_MASKED] = s;
	s = mask ? softmax_rows(b, s) : emit_softmax(b, OP_SOFTMAX, s, 3);
	score[SCORE_SOFTMAX] = s;
	return emit_matmul(b, s, heads_repeat(n, h->v, heads), NULL, false, false);
}

static Value *one_op(Node *n, Heads *h)
{
	Module *m = n->b->m;
	int64_t rows = h->q->type.dim[2], keys = h->k->type.dim[2], right = h->causal ? 0 : h->right;
	Attr *a = attr_int(m, attr_float(m, NULL, "scale", h->scale), "layout", 0);
	a = attr_str(m, a, "empty", "zero");
	if (h->length)
		number_masks(n, h, h->causal);
	if (!h->length && h->left >= 0 && h->left < h->past + rows - 1)
		a = attr_int(m, a, "left", h->left - h->past);
	if (!h->length && right >= 0 && right < keys - 1 - h->past)
		a = attr_int(m, a, "right", right + h->past);
	if (h->softcap > 0)
		a = attr_float(m, a, "softcap", h->softcap);
	return ir_emit(n->b, OP_ATTENTION, 4, (Value *[]){h->q, h->k, h->v, h->mask}, a);
}

static bool wants_scores(const Node *n)
{
	return n->n_out > 3 && *n->proto->output[3];
}

bool import_attention(Node *n)
{
	Heads h;
	Value *score[SCORE_COUNT] = {NULL}, *y;
	int64_t mode = node_int(n, "qk_matmul_output_mode", 0);
	if (!read_heads(n, &h))
		return false;
	if (mode < 0 || mode >= SCORE_COUNT)
		return node_error(n, "qk_matmul_output_mode is %" PRId64, mode);
	if (h.k->type.dim[1] < 1 || h.q->type.dim[1] % h.k->type.dim[1])
		return node_error(n, "%" PRId64 " query heads are no multiple of %" PRId64, h.q->type.dim[1],
			h.k->type.dim[1]);
	y = wants_scores(n) || h.q->type.dtype == DT_F64 ? write_out(n, &h, score) : one_op(n, &h);
	n->out[0] = h.packed && y->op ? heads_join(n, y) : y;
	if (n->n_out > 1)
		n->out[1] = h.k;
	if (n->n_out > 2)
		n->out[2] = h.v;
	if (n->n_out > 3)
		n->out[3] = score[mode];
	return true;
}

bool import_rotary_embedding(Node *n)
{
	int64_t heads = node_int(n, "num_heads", 0);
	if (!node_want(n, 3, 4))
		return false;
	Value *x = n->in[0], *cos = n->in[1], *sin = n->in[2], *ids = node_in(n, 3);
	bool packed = x->type.rank == 3;
	if (packed) {
		if (heads < 1 || x->type.dim[2] % heads)
			return node_error(n, "%" PRId64 " heads do not divide %s", heads, type_str(n->im->arena, &x->type));
		x = ir_reshape(n->b, x, 4,
			(int64_t[]){x->type.dim[0], x->type.dim[1], heads, x->type.dim[2] / heads});
	}
	if (ids) {
		Attr *axis = attr_int(n->b->m, NULL, "axis", 0);
		cos = ir_emit(n->b, OP_GATHER, 2, (Value *[]){cos, ids}, axis);
		sin = ir_emit(n->b, OP_GATHER, 2, (Value *[]){sin, ids}, axis);
	}
	Attr *a = attr_int(n->b->m, NULL, "interleaved", node_int(n, "interleaved", 0));
	a = attr_int(n->b->m, attr_int(n->b->m, a, "layout", packed), "inverse", 0);
	Value *y = ir_emit(n->b, OP_ROPE, 3, (Value *[]){x, cos, sin}, a);
	n->out[0] = y->op ? ir_reshape(n->b, y, n->in[0]->type.rank, n->in[0]->type.dim) : y;
	return true;
}
