/* frontend/onnx_ops_fused_attention.c: attention as onnxruntime's optimizers fuse it, of the domain com.microsoft:
 * Attention, MultiHeadAttention, GroupQueryAttention, and what they take.
 *
 * All become one op attention.  A mask of keys adds mask_filter_value to the scores, as onnxruntime does: it is
 * finite, so a row whose keys are all masked sees them as if none were. */
#include "frontend/onnx_blocks.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct Fused {
	Value *q, *k, *v;       /* [B,H,T,D], [B,Hk,S,D], [B,Hk,S,Dv] */
	Value *mask;            /* added to the scores, broadcasts to [B,H,T,S]; or NULL */
	bool causal;            /* the last query is at the last key */
	int64_t left;           /* how many keys before its own a row sees; -1: all */
	double scale, softcap;  /* scale 0: 1 / sqrt(D) */
	const char *empty;      /* what a row that sees nothing gives: "zero" or (NULL) "nan" */
} Fused;

static const char *text_of(const Node *n, const Value *v)
{
	return type_str(n->im->arena, &v->type);
}

static bool asks_for(const Node *n, int result)
{
	return n->n_out > result && *n->proto->output[result];
}

/* ---- masks ---- */

/* Where the keys 0..keys-1 are below the lengths [B] and, if starts is given, from these on: bool [B,1,1,keys]. */
static Value *keys_between(Node *n, Value *starts, Value *ends, int64_t keys)
{
	Builder *b = n->b;
	int64_t dim[4] = {type_numel(&ends->type), 1, 1, 1};
	Value *key = emit_iota(b, DT_I64, 4, (int64_t[]){1, 1, 1, keys}, 3, 0, 1);
	Value *keep = ir_emit2(b, OP_LT, key, ir_reshape(b, ir_cast(b, ends, DT_I64), 4, dim));
	if (!starts)
		return keep;
	return ir_emit2(b, OP_AND, keep, ir_emit2(b, OP_GE, key, ir_reshape(b, ir_cast(b, starts, DT_I64), 4, dim)));
}

/* Which keys a mask of integers shows, in any of its forms: [B] lengths, [2B] ends and starts, [B,S] and [B,T,S] of 0
 * and 1.  NULL after a message. */
static Value *keys_shown(Node *n, Value *mask, int64_t batch, int64_t keys)
{
	Builder *b = n->b;
	const Type *t = &mask->type;
	if (t->rank == 1 && t->dim[0] == batch)
		return keys_between(n, NULL, mask, keys);
	if (t->rank == 1 && t->dim[0] == 2 * batch)
		return keys_between(n, emit_slice(b, mask, 0, batch, batch, 1), emit_slice(b, mask, 0, 0, batch, 1), keys);
	if ((t->rank != 2 && t->rank != 3) || t->dim[t->rank - 1] != keys) {
		node_refuse(n, "a mask %s for %" PRId64 " samples of %" PRId64 " keys is not supported: give it as [batch, "
			"keys], [batch, queries, keys], or [batch] lengths", text_of(n, mask), batch, keys);
		return NULL;
	}
	int64_t dim[4] = {t->dim[0], 1, t->rank == 3 ? t->dim[1] : 1, keys};
	Value *shown = t->dtype == DT_BOOL ? mask : ir_emit2(b, OP_GT, mask, ir_const_int(b, t->dtype, 0));
	return ir_reshape(b, shown, 4, dim);
}

/* Fills f->mask from the mask of keys and the bias of the scores, each of which may be absent. */
static bool add_masks(Node *n, Fused *f, Value *keys, Value *bias)
{
	f->mask = bias;
	if (!keys)
		return true;
	Value *shown = keys_shown(n, keys, f->q->type.dim[0], f->k->type.dim[2]);
	if (!shown)
		return false;
	Value *low = emit_float(n->b, f->q, node_float(n, "mask_filter_value", -10000));
	Value *added = ir_emit3(n->b, OP_WHERE, shown, emit_float(n->b, f->q, 0), low);
	f->mask = bias ? emit_add(n->b, bias, added) : added;
	return f->mask->op != NULL;
}

/* ---- heads ---- */

/* Part `which` of `parts` along axis, which is dropped from the shape: of [B,T,H,parts,D] it is [B,T,H,D]. */
static Value *part_of(Node *n, Value *x, int axis, int64_t which)
{
	int64_t dim[IR_MAX_RANK];
	int rank = 0;
	Value *part = emit_slice(n->b, x, axis, which, 1, 1);
	for (int i = 0; i < x->type.rank; i++)
		if (i != axis)
			dim[rank++] = x->type.dim[i];
	return ir_reshape(n->b, part, rank, dim);
}

/* Columns start to start+size of the bias of a packed projection, added to x [B,T,size]. */
static Value *add_bias(Node *n, Value *x, Value *bias, int64_t start)
{
	int64_t size = x->type.dim[x->type.rank - 1];
	return bias ? emit_add(n->b, x, emit_slice(n->b, bias, 0, start, size, 1)) : x;
}

/* Puts keys and values of earlier calls, [B,H,P,D], before those of this one. */
static bool join_past(Node *n, Fused *f, Value *past_k, Value *past_v)
{
	if (!past_k != !past_v)
		return node_error(n, "past_key and past_value must come together");
	if (past_k) {
		f->k = emit_concat(n->b, 2, (Value *[]){past_k, f->k}, 2);
		f->v = emit_concat(n->b, 2, (Value *[]){past_v, f->v}, 2);
	}
	return f->k->op && f->v->op;
}

static bool heads_fit(Node *n, const Fused *f)
{
	const Type *q = &f->q->type, *k = &f->k->type, *v = &f->v->type;
	if (!f->q->op || !f->k->op || !f->v->op)
		return false;
	if (q->rank != 4 || k->rank != 4 || v->rank != 4 || k->dim[1] < 1 || q->dim[1] % k->dim[1] || k->dim[1] != v->dim[1]
			|| q->dim[3] != k->dim[3])
		return node_error(n, "heads of q, k and v do not agree: %s, %s, %s", text_of(n, f->q), text_of(n, f->k),
			text_of(n, f->v));
	return true;
}

/* Emits the attention; the result is [B,T,H*Dv]. */
static bool attend(Node *n, const Fused *f)
{
	Module *m = n->b->m;
	int64_t rows = f->q->type.dim[2], keys = f->k->type.dim[2];
	double scale = f->scale != 0 ? f->scale : 1 / sqrt((double)f->q->type.dim[3]);
	Attr *a = attr_str(m, attr_int(m, attr_float(m, NULL, "scale", scale), "layout", 0), "empty",
		f->empty ? f->empty : "nan");
	if (f->causal)
		a = attr_int(m, a, "right", keys - rows);
	if (f->left >= 0 && f->left < keys - 1)
		a = attr_int(m, a, "left", f->left - (keys - rows));
	if (f->softcap > 0)
		a = attr_float(m, a, "softcap", f->softcap);
	Value *y = ir_emit(n->b, OP_ATTENTION, 4, (Value *[]){f->q, f->k, f->v, f->mask}, a);
	n->out[0] = y->op ? heads_join(n, y) : y;
	return y->op != NULL;
}

/* ---- MultiHeadAttention ---- */

enum { MHA_Q, MHA_K, MHA_V, MHA_BIAS, MHA_KEYS, MHA_ADDED, MHA_PAST_K, MHA_PAST_V, MHA_OPERANDS };

/* [B,T,H,parts,D] as parts of [B,T,H*D] */
static Value *unpacked(Node *n, Value *x, int64_t which)
{
	Value *v = part_of(n, x, 3, which);
	const int64_t *d = v->type.dim;
	return ir_reshape(n->b, v, 3, (int64_t[]){d[0], d[1], d[2] * d[3]});
}

/* Whether x is [B,T,H,parts,D]. */
static bool is_packed(const Value *x, int64_t heads, int64_t parts)
{
	return x && x->type.rank == 5 && x->type.dim[2] == heads && x->type.dim[3] == parts;
}

/* Fills q, k and v with heads apart; k and v that have them already take no bias. */
static bool split_operands(Node *n, Fused *f, int64_t heads)
{
	Value *q = n->in[MHA_Q], *k = node_in(n, MHA_K), *v = node_in(n, MHA_V), *bias = node_in(n, MHA_BIAS);
	if (!k && is_packed(q, heads, 3)) {
		Value *all = q;
		q = unpacked(n, all, 0);
		k = unpacked(n, all, 1);
		v = unpacked(n, all, 2);
	} else if (!v && is_packed(k, heads, 2)) {
		Value *both = k;
		k = unpacked(n, both, 0);
		v = unpacked(n, both, 1);
	}
	if (!k || !v || q->type.rank != 3 || k->type.rank != v->type.rank || (k->type.rank != 3 && k->type.rank != 4))
		return node_error(n, "wants q, k and v as [B,T,H*D], k and v with heads as [B,H,S,D], or packed as "
			"[B,T,H,3,D] or [B,S,H,2,D]; q is %s", text_of(n, n->in[MHA_Q]));
	int64_t size = q->type.dim[2], of_v = v->type.rank == 3 ? v->type.dim[2] : v->type.dim[1] * v->type.dim[3];
	if (bias && (bias->type.rank != 1 || bias->type.dim[0] != 2 * size + of_v))
		return node_error(n, "bias is %s, %" PRId64 " numbers are wanted", text_of(n, bias), 2 * size + of_v);
	bool apart = k->type.rank == 4;
	f->q = heads_split(n, add_bias(n, q, bias, 0), heads);
	f->k = apart ? k : heads_split(n, add_bias(n, k, bias, size), heads);
	f->v = apart ? v : heads_split(n, add_bias(n, v, bias, 2 * size), heads);
	return f->q->op && f->k->op && f->v->op;
}

bool import_ms_multi_head_attention(Node *n)
{
	Fused f = {.left = -1, .scale = node_float(n, "scale", 0), .causal = node_int(n, "unidirectional", 0)};
	if (!node_want(n, 1, MHA_OPERANDS + 2))
		return false;
	if (n->n_in > MHA_OPERANDS)
		return node_refuse(n, "it shares buffers of past keys with its results: export the model without a cache "
			"(use_cache=False)");
	if (!split_operands(n, &f, node_int(n, "num_heads", 0))
			|| !join_past(n, &f, node_in(n, MHA_PAST_K), node_in(n, MHA_PAST_V)) || !heads_fit(n, &f)
			|| !add_masks(n, &f, node_in(n, MHA_KEYS), node_in(n, MHA_ADDED)) || !attend(n, &f))
		return false;
	if (n->n_out > 1)
		n->out[1] = f.k;
	if (n->n_out > 2)
		n->out[2] = f.v;
	return true;
}

/* ---- Attention ---- */

enum { ATT_X, ATT_W, ATT_BIAS, ATT_KEYS, ATT_PAST, ATT_ADDED, ATT_OPERANDS };

/* The columns of q, k and v in the product of x with the packed weights. */
static bool read_sizes(Node *n, int64_t heads, int64_t columns, int64_t size[3])
{
	const int64_t *list;
	int count = node_ints(n, "qkv_hidden_sizes", &list);
	for (int i = 0; i < 3; i++)
		size[i] = count == 3 ? list[i] : columns / 3;
	bool whole = true;
	for (int i = 0; i < 3; i++)
		whole = whole && size[i] > 0 && heads > 0 && size[i] % heads == 0 && size[i] <= columns;
	if ((count > 0 && count != 3) || !whole || size[0] != size[1] || size[0] + size[1] + size[2] != columns)
		return node_error(n, "%" PRId64 " columns of weights are not q, k and v of %" PRId64 " heads", columns, heads);
	return true;
}

/* past is [2,B,H,P,D], keys and values. */
static bool split_past(Node *n, Fused *f, Value *past)
{
	if (!past)
		return true;
	if (past->type.rank != 5 || past->type.dim[0] != 2)
		return node_error(n, "past is %s, [2,B,H,P,D] is wanted", text_of(n, past));
	return join_past(n, f, part_of(n, past, 0, 0), part_of(n, past, 0, 1));
}

static Value *present_of(Node *n, const Fused *f)
{
	const int64_t *d = f->k->type.dim;
	int64_t dim[5] = {1, d[0], d[1], d[2], d[3]};
	return emit_concat(n->b, 2, (Value *[]){ir_reshape(n->b, f->k, 5, dim), ir_reshape(n->b, f->v, 5, dim)}, 0);
}

bool import_ms_attention(Node *n)
{
	Fused f = {.left = -1, .scale = node_float(n, "scale", 0), .causal = node_int(n, "unidirectional", 0)};
	int64_t heads = node_int(n, "num_heads", 0), size[3];
	if (!node_want(n, 2, ATT_OPERANDS + 1))
		return false;
	if (n->n_in > ATT_OPERANDS || node_int(n, "past_present_share_buffer", 0))
		return node_refuse(n, "it shares a buffer of past keys with its result: export the model without a cache "
			"(use_cache=False)");
	if (node_int(n, "do_rotary", 0))
		return node_refuse(n, "it rotates q and k (do_rotary): optimise with this fusion off");
	Value *x = n->in[ATT_X], *w = n->in[ATT_W];
	if (x->type.rank != 3 || w->type.rank != 2)
		return node_error(n, "wants x of rank 3 and weights of rank 2: %s, %s", text_of(n, x), text_of(n, w));
	if (!read_sizes(n, heads, w->type.dim[1], size))
		return false;
	x = emit_matmul(n->b, x, w, node_in(n, ATT_BIAS), false, false);
	if (!x->op)
		return false;
	f.q = heads_split(n, emit_slice(n->b, x, 2, 0, size[0], 1), heads);
	f.k = heads_split(n, emit_slice(n->b, x, 2, size[0], size[1], 1), heads);
	f.v = heads_split(n, emit_slice(n->b, x, 2, size[0] + size[1], size[2], 1), heads);
	if (!split_past(n, &f, node_in(n, ATT_PAST)) || !heads_fit(n, &f)
			|| !add_masks(n, &f, node_in(n, ATT_KEYS), node_in(n, ATT_ADDED)) || !attend(n, &f))
		return false;
	if (n->n_out > 1)
		n->out[1] = present_of(n, &f);
	return true;
}

/* ---- rotary positions ---- */

/* Rows of a table [positions, R/2] for T positions: consecutive from a known number, or as ids say. */
static Value *rope_rows(Node *n, Value *table, Value *ids, int64_t first, int64_t rows)
{
	if (!ids)
		return emit_slice(n->b, table, 0, first, rows, 1);
	return ir_emit(n->b, OP_GATHER, 2, (Value *[]){table, ids}, attr_int(n->b->m, NULL, "axis", 0));
}

static Value *rope(Node *n, Value *x, Value *cos, Value *sin, bool interleaved, bool heads_last)
{
	Attr *a = attr_int(n->b->m, NULL, "interleaved", interleaved);
	a = attr_int(n->b->m, attr_int(n->b->m, a, "layout", heads_last), "inverse", 0);
	return ir_emit(n->b, OP_ROPE, 3, (Value *[]){x, cos, sin}, a);
}

/* The positions of x's T rows: NULL and *first where they are consecutive from a number that is known. */
static Value *positions_of(Node *n, Value *ids, int64_t rows, int64_t *first)
{
	EvalTensor *known = NULL;
	*first = 0;
	if (type_numel(&ids->type) != 1)
		return ids;
	for (int i = 0; i < n->n_in; i++)
		known = n->in[i] == ids ? node_known(n, i) : known;
	if (known && known->i[0] >= 0) {
		*first = known->i[0];
		return NULL;
	}
	Value *start = ir_reshape(n->b, ir_cast(n->b, ids, DT_I64), 1, (int64_t[]){1});
	return emit_add(n->b, emit_iota(n->b, DT_I64, 1, &rows, 0, 0, 1), start);
}

bool import_ms_rotary_embedding(Node *n)
{
	if (!node_want(n, 4, 4))
		return false;
	Value *x = n->in[0], *cos = n->in[2], *sin = n->in[3];
	bool flat = x->type.rank == 3;
	int64_t heads = node_int(n, "num_heads", 0), first;
	if ((!flat && x->type.rank != 4) || cos->type.rank != 2)
		return node_error(n, "wants x of rank 3 or 4 and tables of rank 2: %s, %s", text_of(n, x), text_of(n, cos));
	if (node_float(n, "scale", 1) != 1 || node_int(n, "is_packed_batching", 0))
		return node_refuse(n, "scale and is_packed_batching are not supported: optimise with this fusion off");
	heads = flat && heads < 1 && cos->type.dim[1] > 0 ? x->type.dim[2] / (2 * cos->type.dim[1]) : heads;
	if (flat && (heads < 1 || x->type.dim[2] % heads))
		return node_error(n, "%" PRId64 " heads do not divide %s", heads, text_of(n, x));
	int64_t rows = x->type.dim[flat ? 1 : 2];
	Value *ids = positions_of(n, n->in[1], rows, &first);
	if (!ids && first + rows > cos->type.dim[0])
		return node_error(n, "positions up to %" PRId64 " are outside of %s", first + rows - 1, text_of(n, cos));
	if (flat)
		x = ir_reshape(n->b, x, 4, (int64_t[]){x->type.dim[0], rows, heads, x->type.dim[2] / heads});
	Value *y = rope(n, x, rope_rows(n, cos, ids, first, rows), rope_rows(n, sin, ids, first, rows),
		node_int(n, "interleaved", 0), flat);
	n->out[0] = y->op ? ir_reshape(n->b, y, n->in[0]->type.rank, n->in[0]->type.dim) : y;
	return true;
}

static Value *gemma_turned(Node *n, Value *x, Value *half, Value *cos, Value *sin)
{
	return emit_add(n->b, emit_mul(n->b, x, cos), emit_mul(n->b, half, sin));
}

/* (angles [B,T,D], q, q_rot, k, k_rot): q cos + q_rot sin, and the same of k. */
bool import_ms_gemma_rotary(Node *n)
{
	if (!node_want(n, 5, 5))
		return false;
	const Type *t = &n->in[0]->type;
	if (t->rank != 3)
		return node_error(n, "wants angles of rank 3, has %s", text_of(n, n->in[0]));
	int64_t dim[4] = {t->dim[0], 1, t->dim[1], t->dim[2]};
	DType dtype = n->in[1]->type.dtype;
	Value *cos = ir_reshape(n->b, ir_cast(n->b, ir_emit1(n->b, OP_COS, n->in[0]), dtype), 4, dim);
	Value *sin = ir_reshape(n->b, ir_cast(n->b, ir_emit1(n->b, OP_SIN, n->in[0]), dtype), 4, dim);
	n->out[0] = gemma_turned(n, n->in[1], n->in[2], cos, sin);
	if (n->n_out > 1)
		n->out[1] = gemma_turned(n, n->in[3], n->in[4], cos, sin);
	return true;
}

/* ---- GroupQueryAttention ---- */

enum { GQA_Q, GQA_K, GQA_V, GQA_PAST_K, GQA_PAST_V, GQA_LENGTHS, GQA_TOTAL, GQA_COS, GQA_SIN, GQA_IDS, GQA_ADDED,
	GQA_SINK, GQA_K_SCALE, GQA_V_SCALE, GQA_Q_NORM, GQA_K_NORM, GQA_LENGTHS_Q, GQA_OPERANDS };

static const struct { const char *name; int64_t plain; } gqa_plain[] = {{"qk_output", 0}, {"smooth_softmax", 0},
	{"sliding_window_cache", 0}};

/* Refuses what has no form without a cache. */
static bool gqa_is_plain(Node *n)
{
	static const int absent[] = {GQA_SINK, GQA_K_SCALE, GQA_V_SCALE, GQA_LENGTHS_Q};
	for (int i = 0; i < COUNT_OF(gqa_plain); i++)
		if (node_int(n, gqa_plain[i].name, gqa_plain[i].plain) != gqa_plain[i].plain)
			return node_refuse(n, "%s is not supported: optimise with this fusion off", gqa_plain[i].name);
	for (int i = 0; i < COUNT_OF(absent); i++)
		if (node_in(n, absent[i]))
			return node_refuse(n, "operand %d, \"%s\", is not supported: optimise with this fusion off", absent[i],
				str_escape(n->im->arena, ESCAPE_IR, n->proto->input[absent[i]]));
	const Value *past = node_in(n, GQA_PAST_K);
	if (past && type_numel(&past->type))
		return node_refuse(n, "it has a cache of %s: export the model with use_cache=False, or bind the length of the "
			"past to 0", text_of(n, past));
	return true;
}

/* Which keys seqlens_k shows, each one the last key of its sample, bool [B,1,1,S]; NULL: all.  Without a cache a sample
 * begins with its first key, so what is not shown is padding at the right.  False after a message. */
static bool gqa_lengths(Node *n, int64_t batch, int64_t keys, Value **shown)
{
	Value *last = node_in(n, GQA_LENGTHS);
	*shown = NULL;
	if (!last || last->type.dtype != DT_I32 || type_numel(&last->type) != batch)
		return node_error(n, "wants seqlens_k, an i32 for each of %" PRId64 " samples, and has %s", batch,
			last ? text_of(n, last) : "none");
	const EvalTensor *known = node_known(n, GQA_LENGTHS);
	bool full = known;
	for (int64_t i = 0; known && i < batch; i++) {
		if (known->i[i] < 0 || known->i[i] >= keys)
			return node_error(n, "seqlens_k has %" PRId64 ", and the last key of a sample is one of 0 to %" PRId64,
				known->i[i], keys - 1);
		full = full && known->i[i] == keys - 1;
	}
	if (full)
		return true;
	last = known ? last : emit_in_range(n->b, last, 0, (double)(keys - 1), "last key of seqlens_k");
	*shown = keys_between(n, NULL, ir_emit2(n->b, OP_ADD, last, ir_const_int(n->b, last->type.dtype, 1)), keys);
	return true;
}

/* Fills f->mask from the keys that are shown and the bias of the scores, each of which may be absent. */
static void gqa_mask(Node *n, Fused *f, Value *shown, Value *bias)
{
	f->mask = bias;
	if (!shown)
		return;
	f->mask = bias ? ir_emit3(n->b, OP_WHERE, shown, bias, emit_float(n->b, bias, -INFINITY)) : shown;
	f->empty = "zero"; /* a row of padding whose window shows nothing */
}

static bool gqa_heads(Node *n, Fused *f, int64_t heads, int64_t of_kv)
{
	Value *q = n->in[GQA_Q], *k = node_in(n, GQA_K), *v = node_in(n, GQA_V);
	if (q->type.rank != 3 || heads < 1 || of_kv < 1 || heads % of_kv || !k != !v)
		return node_error(n, "wants q of rank 3, both or none of k and v, and heads that are a multiple of "
			"kv_num_heads: %s, %" PRId64 " and %" PRId64, text_of(n, q), heads, of_kv);
	if (!k) {
		int64_t each = q->type.dim[2] / (heads + 2 * of_kv);
		if (each * (heads + 2 * of_kv) != q->type.dim[2])
			return node_error(n, "%" PRId64 " heads do not divide %s", heads + 2 * of_kv, text_of(n, q));
		v = emit_slice(n->b, q, 2, (heads + of_kv) * each, of_kv * each, 1);
		k = emit_slice(n->b, q, 2, heads * each, of_kv * each, 1);
		q = emit_slice(n->b, q, 2, 0, heads * each, 1);
	}
	if (k->type.rank != 3 || v->type.rank != 3)
		return node_error(n, "wants k and v of rank 3: %s, %s", text_of(n, k), text_of(n, v));
	f->q = heads_split(n, q, heads);
	f->k = heads_split(n, k, of_kv);
	f->v = heads_split(n, v, of_kv);
	return f->q->op && f->k->op && f->v->op;
}

static Value *gqa_norm(Node *n, Value *x, Value *w, const char *own)
{
	double eps = node_float(n, own, node_float(n, "qk_norm_epsilon", 1e-6));
	const Op *op = node_norm(n, OP_RMS_NORM, x, w, NULL, 3, eps);
	return op ? op->out[0] : &n->im->m->poison;
}

/* The norms of heads, then their rotation by the first T rows of the tables. */
static bool gqa_turn(Node *n, Fused *f)
{
	Value *cos = node_in(n, GQA_COS), *sin = node_in(n, GQA_SIN);
	int64_t rows = f->q->type.dim[2];
	if (node_in(n, GQA_Q_NORM) && node_in(n, GQA_K_NORM)) {
		f->q = gqa_norm(n, f->q, n->in[GQA_Q_NORM], "q_norm_epsilon");
		f->k = gqa_norm(n, f->k, n->in[GQA_K_NORM], "k_norm_epsilon");
	}
	if (!node_int(n, "do_rotary", 0))
		return f->q->op && f->k->op;
	if (!cos || !sin || cos->type.rank != 2 || sin->type.rank != 2 || cos->type.dim[0] < rows
			|| sin->type.dim[0] < rows)
		return node_error(n, "do_rotary wants cos_cache and sin_cache of at least %" PRId64 " rows", rows);
	if (node_in(n, GQA_IDS))
		return node_refuse(n, "position_ids are not supported, since onnxruntime reads the first alone: leave them "
			"out, or optimise with this fusion off");
	bool pairs = node_int(n, "rotary_interleaved", 0);
	cos = rope_rows(n, cos, NULL, 0, rows);
	sin = rope_rows(n, sin, NULL, 0, rows);
	f->q = rope(n, f->q, cos, sin, pairs, false);
	f->k = rope(n, f->k, cos, sin, pairs, false);
	return f->q->op && f->k->op;
}

bool import_ms_group_query_attention(Node *n)
{
	int64_t window = node_int(n, "local_window_size", -1);
	Value *shown;
	Fused f = {.left = window > 0 ? window - 1 : -1, .scale = node_float(n, "scale", 0),
		.softcap = node_float(n, "softcap", 0), .causal = node_int(n, "causal", 1)};
	if (!node_want(n, 1, GQA_OPERANDS) || !gqa_is_plain(n)
			|| !gqa_heads(n, &f, node_int(n, "num_heads", 0), node_int(n, "kv_num_heads", 0)) || !heads_fit(n, &f)
			|| !gqa_lengths(n, f.k->type.dim[0], f.k->type.dim[2], &shown) || !gqa_turn(n, &f))
		return false;
	gqa_mask(n, &f, shown, node_in(n, GQA_ADDED));
	if (!attend(n, &f))
		return false;
	if (asks_for(n, 1))
		n->out[1] = f.k;
	if (asks_for(n, 2))
		n->out[2] = f.v;
	return true;
}

/* ---- a bias by relative positions ---- */

/* As WavLM has it: u (r a - 1) + 2, times rel_pos, of two gates u and r of each query. */
bool import_ms_gated_relative_position_bias(Node *n)
{
	Builder *b = n->b;
	if (!node_want(n, 6, 6))
		return node_refuse(n, "token_offset is not supported: optimise the model without packing mode");
	Value *q = heads_split(n, emit_add(b, n->in[0], n->in[1]), node_int(n, "num_heads", 0));
	Value *gates = q->op ? emit_matmul(b, q, n->in[3], n->in[4], false, false) : q;
	if (!gates->op)
		return false;
	int64_t dim[5] = {0, 0, 0, 2, gates->type.dim[3] / 2};
	memcpy(dim, gates->type.dim, 3 * sizeof(*dim));
	gates = ir_emit1(b, OP_SIGMOID, ir_reduce(b, OP_REDUCE_SUM, ir_reshape(b, gates, 5, dim), 1, (int64_t[]){4},
		false));
	Value *u = emit_slice(b, gates, 3, 0, 1, 1), *r = emit_slice(b, gates, 3, 1, 1, 1);
	Value *gate = emit_shift(b, emit_mul(b, u, emit_shift(b, emit_mul(b, r, n->in[5]), -1)), 2);
	n->out[0] = emit_mul(b, gate, n->in[2]);
	return true;
}
