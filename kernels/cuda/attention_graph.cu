/* kernels/cuda/attention_graph.cu: the operations of attention and of its gradient, in the order that cuDNN's engines
 * for attention expect. */
#include "kernels/cuda/attention_graph.cuh"

#include <math.h>

#include "kernels/place.h"

AttentionNumbers attention_numbers(const KAttention *a)
{
	return {a->scale, -INFINITY, 1, a->has_left ? (float)(a->left + 1) : 0, a->has_right ? (int32_t)a->right : 0};
}

/* What the operations share: sizes, and the numbers. */
struct Shared { Graph *g; const KAttention *a; cudnnDataType_t type; GraphTensor scale, hidden; };

static Shared shared(Graph *g, const KAttention *a, KDType type)
{
	return {g, a, type == K_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF, graph_number(g, AT_SCALE, CUDNN_DATA_FLOAT),
		a->has_left || a->has_right ? graph_number(g, AT_HIDDEN, CUDNN_DATA_FLOAT) : GraphTensor{}};
}

/* ---- tensors of memory ---- */

static GraphTensor heads(const Shared *x, int uid, int64_t h, int64_t rows, int64_t width, int64_t pitch)
{
	Place p = place_of(x->a->layout, h, rows, width, pitch);
	return graph_tensor(x->g, uid, x->type, {{x->a->b, h, rows, width}}, {{p.batch, p.head, p.row, 1}});
}

/* The same, each head a matrix of width x rows. */
static GraphTensor transposed(const Shared *x, int uid, int64_t h, int64_t rows, int64_t width, int64_t pitch)
{
	Place p = place_of(x->a->layout, h, rows, width, pitch);
	return graph_tensor(x->g, uid, x->type, {{x->a->b, h, width, rows}}, {{p.batch, p.head, 1, p.row}});
}

static Dims per_row(const KAttention *a) { return {{a->b, a->h, a->t, 1}}; }
static Dims per_pair(const KAttention *a) { return {{a->b, a->h, a->t, a->s}}; }

static GraphTensor row_numbers(const Shared *x, int uid)
{
	return graph_tensor(x->g, uid, CUDNN_DATA_FLOAT, per_row(x->a), packed(per_row(x->a)));
}

/* The bias, for all rows: those that share one have a stride of 0. */
static GraphTensor bias(const Shared *x)
{
	BiasShape n = bias_shape(x->a);
	return graph_tensor(x->g, AT_BIAS, CUDNN_DATA_FLOAT, {{n.b, n.h, x->a->t, x->a->s}},
		{{n.h * n.t * n.s, n.t * n.s, n.t > 1 ? n.s : 0, 1}});
}

/* ---- the band ---- */

static GraphTensor index_along(const Shared *x, GraphTensor scores, int64_t dim)
{
	return graph_pointwise(x->g, CUDNN_POINTWISE_GEN_INDEX, scores, NULL, NULL,
		graph_virtual(x->g, CUDNN_DATA_INT32, scores.dim), CUDNN_DATA_FLOAT, dim);
}

static GraphTensor moved(const Shared *x, GraphTensor index, int uid, cudnnDataType_t type)
{
	GraphTensor by = graph_number(x->g, uid, type);
	return graph_pointwise(x->g, CUDNN_POINTWISE_ADD, index, &by, NULL, graph_virtual(x->g, type, index.dim), type, -1);
}

/* Scores where y `mode` z of two indices, hidden elsewhere. */
static GraphTensor shown(const Shared *x, GraphTensor scores, cudnnPointwiseMode_t mode, GraphTensor y, GraphTensor z)
{
	GraphTensor seen = graph_pointwise(x->g, mode, y, &z, NULL, graph_virtual(x->g, CUDNN_DATA_BOOLEAN, scores.dim),
		CUDNN_DATA_BOOLEAN, -1);
	return graph_pointwise(x->g, CUDNN_POINTWISE_BINARY_SELECT, scores, &x->hidden, &seen,
		graph_virtual(x->g, CUDNN_DATA_FLOAT, scores.dim), CUDNN_DATA_FLOAT, -1);
}

/* row + right >= key, and key + left + 1 > row. */
static GraphTensor in_band(const Shared *x, GraphTensor scores)
{
	if (x->a->has_right) {
		GraphTensor row = index_along(x, scores, 2), key = index_along(x, scores, 3);
		if (x->a->right != 0)
			row = moved(x, row, AT_RIGHT, CUDNN_DATA_INT32);
		scores = shown(x, scores, CUDNN_POINTWISE_CMP_GE, row, key);
	}
	if (x->a->has_left) {
		GraphTensor row = index_along(x, scores, 2), key = index_along(x, scores, 3);
		key = moved(x, key, AT_LEFT, CUDNN_DATA_FLOAT);
		scores = shown(x, scores, CUDNN_POINTWISE_CMP_GT, key, row);
	}
	return scores;
}

/* ---- forward ---- */

/* The scaled scores of all pairs, with the bias. */
static GraphTensor scores_of(const Shared *x, GraphTensor q, GraphTensor kt)
{
	GraphTensor raw = graph_matmul(x->g, q, kt, graph_virtual(x->g, CUDNN_DATA_FLOAT, per_pair(x->a)));
	GraphTensor scaled = graph_pair(x->g, CUDNN_POINTWISE_MUL, raw, x->scale);
	return x->a->mask == K_MASK_NONE ? scaled : graph_pair(x->g, CUDNN_POINTWISE_ADD, scaled, bias(x));
}

void attention_graph(Graph *g, const KAttention *a, KDType type, bool stats)
{
	Shared x = shared(g, a, type);
	GraphTensor q = heads(&x, AT_Q, a->h, a->t, a->d, a->q_pitch);
	GraphTensor kt = transposed(&x, AT_K, a->hk, a->s, a->d, a->k_pitch);
	GraphTensor scores = in_band(&x, scores_of(&x, q, kt));
	GraphTensor max = graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, scores, graph_virtual(g, CUDNN_DATA_FLOAT, per_row(a)));
	GraphTensor factor = graph_each(g, CUDNN_POINTWISE_EXP, graph_pair(g, CUDNN_POINTWISE_SUB, scores, max));
	GraphTensor sum = graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, factor, graph_virtual(g, CUDNN_DATA_FLOAT, per_row(a)));
	if (stats) {
		GraphTensor log = graph_each(g, CUDNN_POINTWISE_LOG, sum);
		graph_pointwise(g, CUDNN_POINTWISE_ADD, max, &log, NULL, row_numbers(&x, AT_LSE), CUDNN_DATA_FLOAT, -1);
	}
	GraphTensor weights = graph_pointwise(g, CUDNN_POINTWISE_DIV, factor, &sum, NULL,
		graph_virtual(g, x.type, per_pair(a)), CUDNN_DATA_FLOAT, -1);
	GraphTensor v = heads(&x, AT_V, a->hk, a->s, a->dv, a->v_pitch);
	graph_matmul(g, weights, v, heads(&x, AT_O, a->h, a->t, a->dv, 0));
}

/* ---- gradient ---- */

/* delta, the sums of dy o; times 1 where dropout would have its scale. */
static GraphTensor delta_of(const Shared *x, GraphTensor dy)
{
	GraphTensor o = heads(x, AT_O, x->a->h, x->a->t, x->a->dv, 0);
	GraphTensor sum = graph_reduce(x->g, CUDNN_REDUCE_TENSOR_ADD, graph_pair(x->g, CUDNN_POINTWISE_MUL, dy, o),
		graph_virtual(x->g, CUDNN_DATA_FLOAT, per_row(x->a)));
	GraphTensor one = graph_number(x->g, AT_ONE, CUDNN_DATA_FLOAT);
	return graph_pointwise(x->g, CUDNN_POINTWISE_MUL, sum, &one, NULL, row_numbers(x, AT_DELTA), CUDNN_DATA_FLOAT, -1);
}

/* The gradient of keys or values: the transposed factors of pairs times `rows`, summed over the heads of a group. */
static void to_keys(const Shared *x, GraphTensor pairs, GraphTensor rows, int uid, int64_t width, int64_t pitch)
{
	const KAttention *a = x->a;
	GraphTensor to = heads(x, uid, a->hk, a->s, width, pitch);
	GraphTensor turned = graph_transpose(x->g, pairs, x->type, {{a->h * a->t * a->s, a->t * a->s, 1, a->s}});
	if (a->h == a->hk) {
		graph_matmul(x->g, turned, rows, to);
		return;
	}
	GraphTensor each = graph_virtual(x->g, x->type, {{a->b, a->h, a->s, width}});
	graph_reduce(x->g, CUDNN_REDUCE_TENSOR_ADD, graph_matmul(x->g, turned, rows, each), to);
}

void attention_grad_graph(Graph *g, const KAttention *a, KDType type)
{
	Shared x = shared(g, a, type);
	GraphTensor dy = heads(&x, AT_DO, a->h, a->t, a->dv, 0), delta = delta_of(&x, dy);
	GraphTensor q = heads(&x, AT_Q, a->h, a->t, a->d, a->q_pitch);
	GraphTensor kt = transposed(&x, AT_K, a->hk, a->s, a->d, a->k_pitch);
	GraphTensor less = graph_pair(g, CUDNN_POINTWISE_SUB, scores_of(&x, q, kt), row_numbers(&x, AT_LSE));
	GraphTensor weights = graph_each(g, CUDNN_POINTWISE_EXP, in_band(&x, less));
	to_keys(&x, weights, dy, AT_DV, a->dv, a->dv_pitch);
	GraphTensor vt = transposed(&x, AT_V, a->hk, a->s, a->dv, a->v_pitch);
	GraphTensor dp = graph_matmul(g, dy, vt, graph_virtual(g, CUDNN_DATA_FLOAT, per_pair(a)));
	GraphTensor ds = graph_pair(g, CUDNN_POINTWISE_MUL, graph_pair(g, CUDNN_POINTWISE_SUB, dp, delta), weights);
	ds = graph_pair(g, CUDNN_POINTWISE_MUL, ds, x.scale);
	to_keys(&x, ds, q, AT_DK, a->d, a->dk_pitch);
	Place at = place_of(a->layout, a->hk, a->s, a->d, a->k_pitch);
	GraphTensor k = graph_transpose(g, kt, x.type, {{at.batch, at.head, at.row, 1}});
	graph_matmul(g, ds, k, heads(&x, AT_DQ, a->h, a->t, a->d, a->dq_pitch));
}
