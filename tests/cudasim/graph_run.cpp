/* tests/cudasim/graph_run.cpp: computes operation graphs of the emulated cuDNN.
 *
 * The one idea: every tensor is a list of doubles with its dims, rounded to its type when it is made, and an operation
 * is a loop over its result; sums of attention go from the last term to the first.  Nothing here knows of attention,
 * but for which graphs have an engine and how much scratch one would take. */
#include "tests/cudasim/graphs.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <math.h>
#include <string.h>

#include <algorithm>

typedef std::map<int64_t, std::vector<double>> Contents;

/* ---- engines ---- */

static bool of_16_bits(const SimNode &t) { return t.type == CUDNN_DATA_HALF || t.type == CUDNN_DATA_BFLOAT16; }

/* A convolution stands alone, or a forward one before a bias; all its tensors of memory have one type, which is not
 * narrower than that of its sums. */
static bool conv_served(const SimGraph &g)
{
	const SimOp &op = g.op[0];
	const SimNode &x = g.tensor.at(op.x);
	bool wide = x.type == CUDNN_DATA_DOUBLE;
	for (const auto &at : g.tensor)
		if (at.second.is_virtual ? at.second.type != op.window.compute : at.second.type != x.type)
			return false;
	if (!sim_is_conv(op) || g.convs > 1 || g.op.size() > 2 || wide != (op.window.compute == CUDNN_DATA_DOUBLE))
		return false;
	return g.op.size() == 1 || (op.kind == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
		&& g.op[1].mode == CUDNN_POINTWISE_ADD && g.op[1].x == op.y && sim_numel(g.tensor.at(g.op[1].b))
			== g.tensor.at(op.y).dim[1]);
}

/* The bias that is added to the scores, NULL = none. */
static const SimNode *bias_of(const SimGraph &g)
{
	for (const SimOp &op : g.op)
		if (op.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR && op.mode == CUDNN_POINTWISE_ADD
			&& !g.tensor.at(op.b).is_virtual && !g.tensor.at(op.b).by_value)
			return &g.tensor.at(op.b);
	return NULL;
}

/* A bias is one for all samples or heads, or has them all; rows and keys it has.  Beside it the band may be that of
 * causal attention: indices are not moved. */
static bool bias_served(const SimGraph &g, const SimNode &bias)
{
	for (const SimOp &op : g.op) {
		const SimNode &y = g.tensor.at(op.y);
		bool moves = op.mode == CUDNN_POINTWISE_ADD && op.b && g.tensor.at(op.b).by_value;
		if (op.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR && (moves || op.mode == CUDNN_POINTWISE_CMP_GT))
			return false;
		if (op.b && &g.tensor.at(op.b) == &bias && (bias.dim[2] != y.dim[2] || bias.dim[3] != y.dim[3]))
			return false;
	}
	return bias.stride[3] == 1 && bias.type != CUDNN_DATA_BOOLEAN;
}

/* Attention has two products, its gradient five; heads are rows of at most 128 elements, by 8, and their elements
 * follow each other. */
bool sim_graph_served(const SimGraph &g)
{
	if (g.convs)
		return conv_served(g);
	const SimNode *bias = bias_of(g);
	if ((g.products != 2 && g.products != 5) || (bias && !bias_served(g, *bias)))
		return false;
	for (const auto &at : g.tensor) {
		const SimNode &t = at.second;
		int along = t.stride[3] == 1 ? 3 : 2;
		if (t.is_virtual || t.by_value || !of_16_bits(t))
			continue;
		if (t.stride[along] != 1 || t.dim[along] % 8 || t.dim[along] > 128 || t.stride[0] % 8 || t.stride[1] % 8
			|| t.stride[5 - along] % 8)
			return false;
	}
	return true;
}

static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static int64_t size_of(const SimNode &t) { return t.type == CUDNN_DATA_DOUBLE ? 8 : of_16_bits(t) ? 2 : 4; }

/* A gradient of attention keeps pairs in tiles, and results by query head that are summed over groups; a convolution a
 * copy of its filters, or two of their gradient. */
int64_t sim_graph_work(const SimGraph &g)
{
	int64_t bytes = 0;
	for (const SimOp &op : g.op) {
		const SimNode &x = g.tensor.at(op.x), &y = g.tensor.at(op.y);
		if (sim_is_conv(op)) {
			SimConvParts parts = sim_conv_parts(op);
			const SimNode &w = g.tensor.at(parts.w);
			return (parts.kind == SIM_CONV_GRAD_W ? 2 : 1) * sim_numel(w) * size_of(w) + 40;
		}
		if (op.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && !y.is_virtual && x.type == CUDNN_DATA_FLOAT)
			bytes += x.dim[0] * x.dim[1] * up(x.dim[2], 128) * up(x.dim[3], 128) * 2;
		if (op.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR && of_16_bits(x))
			bytes += x.dim[0] * x.dim[1] * up(x.dim[2], 128) * x.dim[3] * 2;
	}
	return bytes + 256;
}

/* ---- elements ---- */

static double rounded(double x, cudnnDataType_t t)
{
	switch (t) {
	case CUDNN_DATA_BFLOAT16: return __bfloat162float(__float2bfloat16_rn((float)x));
	case CUDNN_DATA_HALF: return __half2float(__float2half_rn((float)x));
	case CUDNN_DATA_INT32: return (double)(int32_t)x;
	case CUDNN_DATA_BOOLEAN: return x != 0;
	case CUDNN_DATA_DOUBLE: return x;
	default: return (double)(float)x;
	}
}

static int64_t offset_of(const SimNode &t, int64_t i)
{
	int64_t at = 0;
	for (int d = t.n - 1; d >= 0; i /= t.dim[d], d--)
		at += i % t.dim[d] * t.stride[d];
	return at;
}

static double read(const void *p, const SimNode &t, int64_t i)
{
	switch (t.type) {
	case CUDNN_DATA_BFLOAT16: return __bfloat162float(__ushort_as_bfloat16(((const unsigned short *)p)[i]));
	case CUDNN_DATA_HALF: return __half2float(__ushort_as_half(((const unsigned short *)p)[i]));
	case CUDNN_DATA_INT32: return ((const int32_t *)p)[i];
	case CUDNN_DATA_DOUBLE: return ((const double *)p)[i];
	default: return ((const float *)p)[i];
	}
}

static void write(void *p, const SimNode &t, int64_t i, double x)
{
	if (t.type == CUDNN_DATA_FLOAT)
		((float *)p)[i] = (float)x;
	else if (t.type == CUDNN_DATA_DOUBLE)
		((double *)p)[i] = x;
	else
		((unsigned short *)p)[i] = t.type == CUDNN_DATA_BFLOAT16 ? __bfloat16_as_ushort(__float2bfloat16_rn((float)x))
			: __half_as_ushort(__float2half_rn((float)x));
}

/* Element of x at the place of element i of y, whose dims x has or spreads over. */
static double spread(const std::vector<double> &of, const SimNode &x, const SimNode &y, int64_t i)
{
	int64_t at = 0, step = 1;
	for (int d = y.n - 1; d >= 0; i /= y.dim[d], d--) {
		at += i % y.dim[d] % x.dim[d] * step;
		step *= x.dim[d];
	}
	return of[(size_t)at];
}

/* ---- operations ---- */

static double pointwise(const SimOp &op, double x, double b, double t, int64_t index)
{
	switch (op.mode) {
	case CUDNN_POINTWISE_ADD: return x + b;
	case CUDNN_POINTWISE_SUB: return x - b;
	case CUDNN_POINTWISE_MUL: return x * b;
	case CUDNN_POINTWISE_DIV: return x / b;
	case CUDNN_POINTWISE_EXP: return exp(x);
	case CUDNN_POINTWISE_LOG: return log(x);
	case CUDNN_POINTWISE_IDENTITY: return x;
	case CUDNN_POINTWISE_CMP_GE: return x >= b;
	case CUDNN_POINTWISE_CMP_GT: return x > b;
	case CUDNN_POINTWISE_GEN_INDEX: return (double)index;
	case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
	default: sim_die("cuDNN: function %d of elements is not emulated", op.mode);
	}
}

static void run_pointwise(const SimGraph &g, const SimOp &op, Contents &c)
{
	const SimNode &y = g.tensor.at(op.y), &x = g.tensor.at(op.x);
	for (int64_t i = 0; i < sim_numel(y); i++) {
		int64_t index = i;
		for (int d = y.n - 1; op.axis >= 0 && d > op.axis; d--)
			index /= y.dim[d];
		double b = op.b ? spread(c[op.b], g.tensor.at(op.b), y, i) : 0;
		double t = op.t ? spread(c[op.t], g.tensor.at(op.t), y, i) : 0;
		c[op.y][(size_t)i] = pointwise(op, spread(c[op.x], x, y, i), b, t, op.axis >= 0 ? index % y.dim[op.axis] : 0);
	}
}

/* Heads are summed by groups of neighbours, other dims whole. */
static void run_reduction(const SimGraph &g, const SimOp &op, Contents &c)
{
	const SimNode &x = g.tensor.at(op.x), &y = g.tensor.at(op.y);
	bool max = op.mode == CUDNN_REDUCE_TENSOR_MAX;
	std::fill(c[op.y].begin(), c[op.y].end(), max ? -INFINITY : 0);
	for (int64_t i = sim_numel(x) - 1; i >= 0; i--) {
		int64_t at = 0, step = 1, left = i;
		for (int d = 3; d >= 0; left /= x.dim[d], d--) {
			at += left % x.dim[d] / (x.dim[d] / y.dim[d]) * step;
			step *= y.dim[d];
		}
		double &to = c[op.y][(size_t)at];
		to = max ? std::max(to, c[op.x][(size_t)i]) : to + c[op.x][(size_t)i];
	}
}

static void run_product(const SimGraph &g, const SimOp &op, Contents &c)
{
	const SimNode &a = g.tensor.at(op.x), &b = g.tensor.at(op.b), &y = g.tensor.at(op.y);
	int64_t m = y.dim[2], n = y.dim[3], k = a.dim[3], group = y.dim[1] / b.dim[1];
	for (int64_t h = 0; h < y.dim[0] * y.dim[1]; h++) {
		const double *A = &c[op.x][(size_t)(h * m * k)];
		const double *B = &c[op.b][(size_t)((h / y.dim[1] * b.dim[1] + h % y.dim[1] / group) * k * n)];
		double *Y = &c[op.y][(size_t)(h * m * n)];
		std::fill(Y, Y + m * n, 0);
		for (int64_t i = 0; i < m; i++)
			for (int64_t l = k - 1; l >= 0; l--)
				for (int64_t j = 0; j < n; j++)
					Y[i * n + j] += rounded(A[i * k + l], of_16_bits(b) ? b.type : a.type) * B[l * n + j];
	}
}

static void run_transpose(const SimGraph &g, const SimOp &op, Contents &c)
{
	const SimNode &y = g.tensor.at(op.y);
	int64_t m = y.dim[2], n = y.dim[3];
	for (int64_t i = 0; i < sim_numel(y); i++)
		c[op.y][(size_t)i] = c[op.x][(size_t)(i / (m * n) * m * n + i % n * m + i / n % m)];
}

static double round_tf32(double x)
{
	unsigned u = __float_as_uint((float)x);
	return x - x == 0 ? __uint_as_float((u + 0xFFF + (u >> 13 & 1)) & ~0x1FFFu) : x;
}

static void run_conv(const SimGraph &g, const SimOp &op, Contents &c)
{
	SimConvParts parts = sim_conv_parts(op);
	const SimNode &x = g.tensor.at(parts.x), &w = g.tensor.at(parts.w), &y = g.tensor.at(parts.y);
	SimConv s = {x.dim[0], x.dim[1], y.dim[1], x.dim[1] / w.dim[1], {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1},
		{1, 1, 1}, {}};
	for (int i = 0; i < op.window.n; i++) {
		int at = 3 - op.window.n + i;
		s.in[at] = x.dim[2 + i];
		s.out[at] = y.dim[2 + i];
		s.kernel[at] = w.dim[2 + i];
		s.stride[at] = op.window.stride[i];
		s.dilation[at] = op.window.dilation[i];
		s.pad[at] = op.window.pad[i];
	}
	for (int64_t uid : {op.x, op.b})
		for (double &v : c[uid])
			v = g.engine == SIM_TF32 ? round_tf32(v) : v;
	std::fill(c[op.y].begin(), c[op.y].end(), 0);
	sim_convolve(parts.kind, s, c[parts.x].data(), c[parts.w].data(), c[parts.y].data());
}

static void compute(const SimGraph &g, const SimGiven &given, Contents c)
{
	if (int64_t bytes = sim_graph_work(g))
		memset(given.work, 0xA5, (size_t)bytes);
	for (const auto &at : g.tensor) {
		const SimNode &t = at.second;
		std::vector<double> &x = c[at.first];
		if (t.by_value)
			continue;
		x.resize((size_t)sim_numel(t));
		for (int64_t i = 0; i < sim_numel(t) && !t.is_virtual; i++)
			x[(size_t)i] = read(given.at.at(at.first), t, offset_of(t, i));
	}
	for (const SimOp &op : g.op) {
		const SimNode &y = g.tensor.at(op.y);
		(sim_is_conv(op) ? run_conv : op.kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ? run_pointwise
			: op.kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ? run_reduction
			: op.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ? run_product : run_transpose)(g, op, c);
		for (int64_t i = 0; i < sim_numel(y); i++) {
			double &x = c[op.y][(size_t)i];
			x = rounded(x, y.type);
			if (!y.is_virtual)
				write(given.at.at(op.y), y, offset_of(y, i), x);
		}
	}
}

/* ---- launches ---- */

/* Dies where a product makes a tensor of memory that another operation reads: the library's engines add to it by
 * atomics. */
static void want_one_order(const SimGraph &g)
{
	for (const SimOp &product : g.op)
		for (const SimOp &reader : g.op)
			if (product.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && !g.tensor.at(product.y).is_virtual
				&& (reader.x == product.y || reader.b == product.y))
				sim_die("cuDNN: products that are summed in memory have other bits in every run");
}

/* Dies where some versions of the library give NaN: in the last tile of keys of a gradient behind a bias, if it is not
 * whole; where a tile of a bias is -inf, of which one stands for all. */
static void want_tame_bias(const SimGraph &g, const SimGiven &given)
{
	const SimNode *bias = bias_of(g);
	if (!bias)
		return;
	if (g.products == 5 && (bias->dim[2] % 128 || bias->dim[3] % 128))
		sim_die("cuDNN: a gradient behind a bias of %lld keys may be NaN", (long long)bias->dim[3]);
	for (int64_t i = 0; i < sim_numel(*bias); i++)
		if (read(given.at.at(bias->uid), *bias, offset_of(*bias, i)) < -0x1p126)
			sim_die("cuDNN: a bias times log2(e) is infinite");
}

void sim_graph_run(cudaStream_t stream, std::shared_ptr<const SimGraph> g, const SimGiven &given)
{
	Contents numbers;
	want_one_order(*g);
	for (const auto &at : g->tensor) {
		const SimNode &t = at.second;
		std::string name = "cudnnBackendExecute: tensor " + std::to_string(at.first);
		if (t.is_virtual)
			continue;
		void *p = given.at.at(at.first);
		int64_t last = 0, size = size_of(t);
		for (int d = 0; d < t.n; d++)
			last += (t.dim[d] - 1) * t.stride[d];
		if (t.by_value) {
			numbers[at.first] = {read(p, t, 0)};
			continue;
		}
		if ((uintptr_t)p % (uintptr_t)t.align)
			sim_die("%s is not aligned to %lld bytes", name.c_str(), (long long)t.align);
		sim_must_reach(p, (size_t)((last + 1) * size), name.c_str());
	}
	sim_must_reach(given.work, (size_t)sim_graph_work(*g), "cudnnBackendExecute: workspace");
	sim_issue_kernel(stream, "cudnnBackendExecute", [g, given, numbers] {
		if (!g->convs)
			want_tame_bias(*g, given);
		compute(*g, given, numbers);
		return true;
	});
}
