/* frontend/onnx_ops_linear_attention.c: LinearAttention and CausalConvWithState of opset 27.
 *
 * Linear attention keeps a state S [dk,dv] for each head.  It is computed by chunks of C tokens: products of C x C
 * numbers inside a chunk, and one step of the state for each chunk.  With G the sum of the log-decays of a chunk up
 * to its row,
 *
 *   o_t = scale (e^G_t q_t S + sum over s <= t of (q_t . e^(G_t - G_s) k_s) u_s)
 *   S'  = e^G_end S + sum over s of (e^(G_end - G_s) k_s) u_s
 *
 * where S is the state before the chunk.  Without a delta rule u is v.  With it u = (I + L)^-1 beta (v - e^G k S), L
 * the products beta_t (k_t . e^(G_t - G_s) k_s) below the diagonal.  No exponent is positive where decays are not. */
#include "frontend/onnx_import.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *text_of(const Node *n, const Value *v)
{
	return type_str(n->im->arena, &v->type);
}

/* ---- linear attention: chunks ---- */

/* With key decays of their own, products inside a chunk take C x C x dk numbers, so chunks are shorter then. */
enum { CHUNK_BY_KEY = 16, CHUNK_MAX = 256 };

typedef struct Linear {
	Node *n;
	Builder *b;
	Value *q, *k, *v;           /* [B,H,N,C,dk], of v dv */
	Value *sums;                /* G: [B,H,N,C,dk] or [B,H,N,C,1]; NULL: no decay */
	Value *beta;                /* [B,H,N,C,1]; NULL: no delta rule */
	Value *state;               /* [B,H,dk,dv] */
	int64_t batch, rows, heads, of_kv, dk, dv, chunk, chunks;
	bool by_key;                /* decays are of keys, not of heads */
	DType dtype;
} Linear;

/* x of [B,T,heads*d] by chunks, [B,H,N,C,d]: padded by zeros, each head repeated for all queries that share it. */
static Value *by_chunks(const Linear *l, Value *x, int64_t heads)
{
	Builder *b = l->b;
	int64_t d = heads ? x->type.dim[2] / heads : 0, all = l->chunk * l->chunks, before[3] = {0}, after[3] = {0};
	x = ir_cast(b, x, l->dtype);
	after[1] = all - l->rows;
	if (after[1]) {
		Attr *a = attr_ints(b->m, attr_ints(b->m, NULL, "before", 3, before), "after", 3, after);
		x = ir_emit(b, OP_PAD, 1, &x, attr_float(b->m, attr_str(b->m, a, "mode", "constant"), "value", 0));
	}
	if (heads < l->heads) {
		Type wide = type_tensor(l->dtype, 5, (int64_t[]){l->batch, all, heads, l->heads / heads, d});
		x = ir_broadcast(b, ir_reshape(b, x, 5, (int64_t[]){l->batch, all, heads, 1, d}), &wide);
	}
	x = ir_reshape(b, x, 5, (int64_t[]){l->batch, l->chunks, l->chunk, l->heads, d});
	return ir_transpose(b, x, (int[]){0, 3, 1, 2, 4});
}

/* Chunk i of x [B,H,N,..] as [B,H,r,c] */
static Value *chunk_of(const Linear *l, Value *x, int64_t i, int64_t r, int64_t c)
{
	return ir_reshape(l->b, emit_slice(l->b, x, 2, i, 1, 1), 4, (int64_t[]){l->batch, l->heads, r, c});
}

/* Values of all chunks, [B,H,r,c] each, as [B,H,N,r,c] */
static Value *all_chunks(const Linear *l, Value **x)
{
	Value **y = NEW_N(l->n->im->arena, Value *, l->chunks);
	for (int64_t i = 0; i < l->chunks; i++) {
		const int64_t *d = x[i]->type.dim;
		y[i] = ir_reshape(l->b, x[i], 5, (int64_t[]){d[0], d[1], 1, d[2], d[3]});
	}
	return emit_concat(l->b, (int)l->chunks, y, 2);
}

/* ---- linear attention: inside a chunk ---- */

/* Row and column numbers of a C x C matrix. */
static Value *numbers(const Linear *l, int axis)
{
	int64_t dim[2] = {1, 1};
	dim[axis] = l->chunk;
	return emit_iota(l->b, DT_I64, 2, dim, axis, 0, 1);
}

/* e^(G_t - G_s) where the mask allows it, else 0; x and y are G with its rows along t and s. */
static Value *decays(const Linear *l, Value *x, Value *y, Value *mask)
{
	Value *d = emit_sub(l->b, x, y);
	return ir_emit1(l->b, OP_EXP, ir_emit3(l->b, OP_WHERE, mask, d, emit_float(l->b, d, -INFINITY)));
}

/* x_t . e^(G_t - G_s) k_s for s <= t, or s < t where strict: [B,H,N,C,C] */
static Value *products(const Linear *l, Value *x, bool strict)
{
	Builder *b = l->b;
	int64_t row[6] = {l->batch, l->heads, l->chunks, l->chunk, 1, l->dk}, column[6];
	memcpy(column, row, sizeof(row));
	column[3] = 1;
	column[4] = l->chunk;
	Value *mask = ir_emit2(b, strict ? OP_GT : OP_GE, numbers(l, 0), numbers(l, 1));
	if (l->by_key) {
		mask = ir_reshape(b, mask, 3, (int64_t[]){l->chunk, l->chunk, 1});
		Value *d = decays(l, ir_reshape(b, l->sums, 6, row), ir_reshape(b, l->sums, 6, column), mask);
		d = emit_mul(b, d, emit_mul(b, ir_reshape(b, x, 6, row), ir_reshape(b, l->k, 6, column)));
		return ir_reduce(b, OP_REDUCE_SUM, d, 1, (int64_t[]){5}, false);
	}
	Value *s = emit_matmul(b, x, l->k, NULL, false, true);
	if (!l->sums)
		return ir_emit3(b, OP_WHERE, mask, s, emit_float(b, s, 0));
	return emit_mul(b, s, decays(l, l->sums, ir_transpose(b, l->sums, (int[]){0, 1, 2, 4, 3}), mask));
}

/* Where the inverse of blocks of `half` rows is joined to one of twice as many: rows of the second half of a block,
 * columns of the first. */
static Value *joined(const Linear *l, int64_t half)
{
	Builder *b = l->b;
	Value *in[2], *size = ir_const_int(b, DT_I64, half);
	for (int i = 0; i < 2; i++)
		in[i] = ir_emit2(b, OP_DIV, numbers(l, i), size);
	/* block 2j+1 of rows and block 2j of columns */
	Value *odd = ir_emit2(b, OP_EQ, ir_emit2(b, OP_AND, in[0], ir_const_int(b, DT_I64, 1)), ir_const_int(b, DT_I64, 1));
	return ir_emit2(b, OP_AND, odd, ir_emit2(b, OP_EQ, emit_sub(b, in[0], in[1]), ir_const_int(b, DT_I64, 1)));
}

/* (I + L)^-1 of L below the diagonal, by blocks of twice the rows: of [A 0; B D] it is [A' 0; -D' B A' D']. */
static Value *inverse(const Linear *l, Value *lower)
{
	Builder *b = l->b;
	Value *zero = emit_float(b, lower, 0);
	Value *eye = ir_cast(b, ir_emit2(b, OP_EQ, numbers(l, 0), numbers(l, 1)), l->dtype);
	Value *x = emit_sub(b, eye, ir_emit3(b, OP_WHERE, joined(l, 1), lower, zero));
	for (int64_t half = 2; half < l->chunk; half *= 2) {
		Value *part = ir_emit3(b, OP_WHERE, joined(l, half), lower, zero);
		part = emit_matmul(b, emit_matmul(b, x, part, NULL, false, false), x, NULL, false, false);
		x = emit_sub(b, x, part);
	}
	return x;
}

/* x times e^G, which carries it from the chunk's start to its row */
static Value *from_start(const Linear *l, Value *x)
{
	return l->sums ? emit_mul(l->b, x, ir_emit1(l->b, OP_EXP, l->sums)) : x;
}

/* ---- linear attention: the state ---- */

/* Steps the state through all chunks; the state before each chunk goes to before, what u is there to u. */
static void step_chunks(Linear *l, Value **before, Value **u)
{
	Builder *b = l->b;
	Value *to_end = l->k, *whole = NULL, *wk = NULL, *wv = l->v;
	if (l->sums) {
		Value *end = emit_slice(b, l->sums, 3, l->chunk - 1, 1, 1);
		to_end = emit_mul(b, l->k, ir_emit1(b, OP_EXP, emit_sub(b, end, l->sums)));
		whole = ir_emit1(b, OP_EXP, end);
	}
	if (l->beta) {
		Value *x = inverse(l, emit_mul(b, products(l, l->k, true), l->beta));
		wv = emit_matmul(b, x, emit_mul(b, l->v, l->beta), NULL, false, false);
		wk = emit_matmul(b, x, emit_mul(b, from_start(l, l->k), l->beta), NULL, false, false);
	}
	for (int64_t i = 0; i < l->chunks && l->state->op; i++) {
		before[i] = l->state;
		u[i] = chunk_of(l, wv, i, l->chunk, l->dv);
		if (wk)
			u[i] = emit_sub(b, u[i], emit_matmul(b, chunk_of(l, wk, i, l->chunk, l->dk), l->state, NULL, false, false));
		Value *kept = whole ? emit_mul(b, l->state, chunk_of(l, whole, i, l->by_key ? l->dk : 1, 1)) : l->state;
		Value *added = emit_matmul(b, chunk_of(l, to_end, i, l->chunk, l->dk), u[i], NULL, true, false);
		l->state = emit_add(b, kept, added);
	}
}

/* [B,H,N,C,dv] -> [B,T,H*dv] */
static Value *by_rows(const Linear *l, Value *o)
{
	o = ir_transpose(l->b, o, (int[]){0, 2, 3, 1, 4});
	o = ir_reshape(l->b, o, 3, (int64_t[]){l->batch, l->chunks * l->chunk, l->heads * l->dv});
	return emit_slice(l->b, o, 1, 0, l->rows, 1);
}

static Value *outputs(Linear *l)
{
	Value **before = NEW_N(l->n->im->arena, Value *, l->chunks), **u = NEW_N(l->n->im->arena, Value *, l->chunks);
	step_chunks(l, before, u);
	if (!l->state->op)
		return l->state;
	Value *inside = emit_matmul(l->b, products(l, l->q, false), all_chunks(l, u), NULL, false, false);
	Value *carried = emit_matmul(l->b, from_start(l, l->q), all_chunks(l, before), NULL, false, false);
	return by_rows(l, emit_add(l->b, carried, inside));
}

/* ---- linear attention: the node ---- */

enum { LINEAR_Q, LINEAR_K, LINEAR_V, LINEAR_PAST, LINEAR_DECAY, LINEAR_BETA };

static const struct { const char *name; bool decay, delta; } update_rules[] = {{"linear", false, false},
	{"gated", true, false}, {"delta", false, true}, {"gated_delta", true, true}};

/* Whether x is [B,T,size] with one of two sizes. */
static bool linear_fits(const Linear *l, const Value *x, int64_t size, int64_t other)
{
	const Type *t = &x->type;
	return t->rank == 3 && t->dim[0] == l->batch && t->dim[1] == l->rows && (t->dim[2] == size || t->dim[2] == other);
}

static bool linear_sizes(Linear *l)
{
	Node *n = l->n;
	const Type *q = &n->in[LINEAR_Q]->type, *v = &n->in[LINEAR_V]->type;
	l->heads = node_int(n, "q_num_heads", 0);
	l->of_kv = node_int(n, "kv_num_heads", 0);
	if (q->rank != 3 || v->rank != 3 || l->heads < 1 || l->of_kv < 1 || l->heads % l->of_kv || q->dim[2] % l->heads
			|| v->dim[2] % l->of_kv || !q->dim[1])
		return node_error(n, "wants q, k and v of rank 3 and heads that divide them, q_num_heads a multiple of "
			"kv_num_heads: q %s, v %s, heads %" PRId64 " and %" PRId64, text_of(n, n->in[LINEAR_Q]),
			text_of(n, n->in[LINEAR_V]), l->heads, l->of_kv);
	l->batch = q->dim[0];
	l->rows = q->dim[1];
	l->dk = q->dim[2] / l->heads;
	l->dv = v->dim[2] / l->of_kv;
	if (!linear_fits(l, n->in[LINEAR_K], l->of_kv * l->dk, l->of_kv * l->dk)
			|| !linear_fits(l, n->in[LINEAR_V], l->of_kv * l->dv, l->of_kv * l->dv))
		return node_error(n, "k is %s and v %s, which do not fit q, %s", text_of(n, n->in[LINEAR_K]),
			text_of(n, n->in[LINEAR_V]), text_of(n, n->in[LINEAR_Q]));
	return true;
}

/* Checks decay and beta against the update rule, and decides how long a chunk is: a power of two. */
static bool linear_rule(Linear *l)
{
	Node *n = l->n;
	const char *rule = node_str(n, "update_rule", "gated_delta");
	Value *decay = node_in(n, LINEAR_DECAY), *beta = node_in(n, LINEAR_BETA);
	int r = 0;
	while (r < COUNT_OF(update_rules) && strcmp(update_rules[r].name, rule) != 0)
		r++;
	if (r == COUNT_OF(update_rules))
		return node_error(n, "update_rule is \"%s\"; linear, gated, delta and gated_delta are known", rule);
	if (update_rules[r].decay != (decay != NULL) || update_rules[r].delta != (beta != NULL))
		return node_error(n, "update_rule %s wants %s decay and %s beta", rule, update_rules[r].decay ? "a" : "no",
			update_rules[r].delta ? "a" : "no");
	if ((decay && !linear_fits(l, decay, l->of_kv * l->dk, l->of_kv)) || (beta && !linear_fits(l, beta, l->of_kv, 1)))
		return node_error(n, "decay or beta does not fit q, %s", text_of(n, n->in[LINEAR_Q]));
	l->by_key = decay && l->dk > 1 && decay->type.dim[2] == l->of_kv * l->dk;
	int64_t most = MIN(node_int(n, "chunk_size", 64), CHUNK_MAX);
	for (l->chunk = 1; l->chunk * 2 <= most && l->chunk < l->rows && (!l->by_key || l->chunk < CHUNK_BY_KEY);)
		l->chunk *= 2;
	l->chunks = ceil_div(l->rows, l->chunk);
	return true;
}

/* The state before the first token, its heads repeated for all queries that share them. */
static bool linear_past(Linear *l)
{
	Value *past = node_in(l->n, LINEAR_PAST);
	int64_t dim[4] = {l->batch, l->heads, l->dk, l->dv}, own[5] = {l->batch, l->of_kv, 1, l->dk, l->dv};
	Type given = type_tensor(DT_F32, 4, (int64_t[]){l->batch, l->of_kv, l->dk, l->dv});
	if (!past) {
		l->state = ir_const_full(l->b, type_tensor(l->dtype, 4, dim), 0);
		return true;
	}
	given.dtype = past->type.dtype;
	if (!type_equal(&given, &past->type))
		return node_error(l->n, "past_state is %s, %s is wanted", text_of(l->n, past), type_str(l->n->im->arena,
			&given));
	Type wide = type_tensor(l->dtype, 5, (int64_t[]){l->batch, l->of_kv, l->heads / l->of_kv, l->dk, l->dv});
	past = ir_broadcast(l->b, ir_reshape(l->b, ir_cast(l->b, past, l->dtype), 5, own), &wide);
	l->state = ir_reshape(l->b, past, 4, dim);
	return true;
}

static Value *linear_decay(const Linear *l, Value *decay)
{
	Value *g = by_chunks(l, decay, l->of_kv);
	Attr *a = attr_int(l->b->m, attr_int(l->b->m, NULL, "axis", 3), "exclusive", 0);
	return ir_emit(l->b, OP_CUMSUM, 1, &g, attr_int(l->b->m, a, "reverse", 0));
}

bool import_linear_attention(Node *n)
{
	Linear l = {.n = n, .b = n->b};
	if (!node_want(n, 3, 6))
		return false;
	if (node_int(n, "state_window", 0))
		return node_refuse(n, "state_window is not supported: export the model without a cache (use_cache=False)");
	DType given = n->in[LINEAR_Q]->type.dtype;
	l.dtype = given == DT_F64 ? DT_F64 : DT_F32;
	if (!linear_sizes(&l) || !linear_rule(&l) || !linear_past(&l))
		return false;
	double scale = node_float(n, "scale", 0);
	l.q = emit_scale(n->b, by_chunks(&l, n->in[LINEAR_Q], l.heads), scale != 0 ? scale : 1 / sqrt((double)l.dk));
	l.k = by_chunks(&l, n->in[LINEAR_K], l.of_kv);
	l.v = by_chunks(&l, n->in[LINEAR_V], l.of_kv);
	Value *beta = node_in(n, LINEAR_BETA);
	l.beta = beta ? by_chunks(&l, beta, beta->type.dim[2]) : NULL;
	l.sums = node_in(n, LINEAR_DECAY) ? linear_decay(&l, n->in[LINEAR_DECAY]) : NULL;
	Value *y = outputs(&l), *past = node_in(n, LINEAR_PAST);
	if (!y->op)
		return false;
	n->out[0] = ir_cast(n->b, y, given);
	l.state = emit_slice(n->b, l.state, 1, 0, l.of_kv, l.heads / l.of_kv);
	if (n->n_out > 1)
		n->out[1] = ir_cast(n->b, l.state, past ? past->type.dtype : given);
	return true;
}

/* ---- CausalConvWithState ---- */

static const struct { const char *name; int64_t plain; } conv_plain[] = {{"ndim", 1}, {"dilation", 1},
	{"channels_last", 0}, {"state_window", 0}, {"state_length", 0}, {"state_update_capacity", 0}, {"input_channels", 0},
	{"input_channel_offset", 0}, {"state_channels_last", -1}};

/* The state, or zeros, in front of x: [B,C,k-1+L] */
static Value *with_history(Node *n, Value *x, Value *past, int64_t more)
{
	int64_t before[3] = {0, 0, more}, after[3] = {0};
	if (past)
		return emit_concat(n->b, 2, (Value *[]){past, x}, 2);
	if (!more)
		return x;
	Attr *a = attr_ints(n->b->m, attr_ints(n->b->m, NULL, "before", 3, before), "after", 3, after);
	return ir_emit(n->b, OP_PAD, 1, &x, attr_float(n->b->m, attr_str(n->b->m, a, "mode", "constant"), "value", 0));
}

static bool conv_fits(Node *n)
{
	const Type *x = &n->in[0]->type, *w = &n->in[1]->type;
	for (int i = 0; i < COUNT_OF(conv_plain); i++)
		if (node_int(n, conv_plain[i].name, conv_plain[i].plain) != conv_plain[i].plain)
			return node_refuse(n, "%s is not supported: export the convolution as Concat, Conv and Slice",
				conv_plain[i].name);
	if (x->rank != 3 || w->rank != 3 || w->dim[0] != x->dim[1] || w->dim[1] != 1)
		return node_error(n, "wants [B,C,L] and weights [C,1,k]: %s, %s", text_of(n, n->in[0]), text_of(n, n->in[1]));
	return true;
}

bool import_causal_conv(Node *n)
{
	const char *act = node_str(n, "activation", "none");
	bool silu = !strcmp(act, "silu") || !strcmp(act, "swish");
	if (!node_want(n, 2, 4) || !conv_fits(n))
		return false;
	if (!silu && strcmp(act, "none") != 0)
		return node_error(n, "activation is \"%s\"; silu, swish and none are known", act);
	int64_t more = n->in[1]->type.dim[2] - 1, channels = n->in[0]->type.dim[1], length = n->in[0]->type.dim[2];
	Value *past = more ? node_in(n, 3) : NULL, *x = with_history(n, n->in[0], past, more);
	Module *m = n->b->m;
	Attr *a = attr_ints(m, attr_ints(m, NULL, "strides", 1, (int64_t[]){1}), "dilations", 1, (int64_t[]){1});
	a = attr_int(m, attr_ints(m, a, "pads", 2, (int64_t[]){0, 0}), "group", channels);
	Value *y = ir_emit(n->b, OP_CONV, 3, (Value *[]){x, n->in[1], node_in(n, 2)}, attr_int(m, a, "layout", 0));
	n->out[0] = silu && y->op ? ir_emit1(n->b, OP_SILU, y) : y;
	if (n->n_out > 1 && *n->proto->output[1])
		n->out[1] = emit_slice(n->b, x, 2, length, more, 1);
	return y->op != NULL;
}
