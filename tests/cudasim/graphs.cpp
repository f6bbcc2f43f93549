/* tests/cudasim/graphs.cpp: cuDNN's backend descriptors, emulated: what a program sets is kept, and checked as the
 * documentation says.
 *
 * The one idea: a descriptor is a table of attributes.  `rows` says which attributes a descriptor has, of what type,
 * and which of them it wants; a descriptor that is finished is read only, and one that is not serves nobody. */
#include "tests/cudasim/graphs.h"

#include <string.h>

#include <algorithm>

struct Values { int64_t n; std::vector<char> bytes; };

struct SimBackend {
	cudnnBackendDescriptorType_t type;
	bool finished;
	std::map<int, Values> set;
	std::shared_ptr<SimGraph> graph; /* of a graph, and of what is made for it */
};

/* ---- attributes ---- */

enum Wants { WANTED, MAY_BE };
struct Row { cudnnBackendDescriptorType_t of; cudnnBackendAttributeName_t name; cudnnBackendAttributeType_t type;
	int64_t least, most; Wants wants; };

#define OF(d) CUDNN_BACKEND_##d##_DESCRIPTOR
#define PART(d, name, wants) {OF(d), CUDNN_ATTR_##name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, wants}
#define WINDOW(name) {OF(CONVOLUTION), CUDNN_ATTR_CONVOLUTION_##name, CUDNN_TYPE_INT64, 2, 3, WANTED}
#define SCALAR(d, name) {OF(d), CUDNN_ATTR_##name, CUDNN_TYPE_FLOAT, 1, 1, WANTED}, \
	{OF(d), CUDNN_ATTR_##name, CUDNN_TYPE_DOUBLE, 1, 1, WANTED}
#define CONV(d, name, x, w, y) PART(d, name##_CONV_DESC, WANTED), PART(d, name##_##x, WANTED), \
	PART(d, name##_##w, WANTED), PART(d, name##_##y, WANTED), SCALAR(d, name##_ALPHA), SCALAR(d, name##_BETA)
static const Row rows[] = {
	{OF(TENSOR), CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1, WANTED},
	{OF(TENSOR), CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, WANTED},
	{OF(TENSOR), CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1, WANTED},
	{OF(TENSOR), CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 5, WANTED},
	{OF(TENSOR), CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 5, WANTED},
	{OF(TENSOR), CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1, MAY_BE},
	{OF(TENSOR), CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, 1, MAY_BE},
	{OF(POINTWISE), CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1, WANTED},
	{OF(POINTWISE), CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1, WANTED},
	{OF(POINTWISE), CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, 1, MAY_BE},
	PART(OPERATION_POINTWISE, OPERATION_POINTWISE_PW_DESCRIPTOR, WANTED),
	PART(OPERATION_POINTWISE, OPERATION_POINTWISE_XDESC, WANTED),
	PART(OPERATION_POINTWISE, OPERATION_POINTWISE_BDESC, MAY_BE),
	PART(OPERATION_POINTWISE, OPERATION_POINTWISE_TDESC, MAY_BE),
	PART(OPERATION_POINTWISE, OPERATION_POINTWISE_YDESC, WANTED),
	{OF(MATMUL), CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, WANTED},
	PART(OPERATION_MATMUL, OPERATION_MATMUL_DESC, WANTED),
	PART(OPERATION_MATMUL, OPERATION_MATMUL_ADESC, WANTED),
	PART(OPERATION_MATMUL, OPERATION_MATMUL_BDESC, WANTED),
	PART(OPERATION_MATMUL, OPERATION_MATMUL_CDESC, WANTED),
	{OF(REDUCTION), CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, 1, WANTED},
	{OF(REDUCTION), CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, WANTED},
	PART(OPERATION_REDUCTION, OPERATION_REDUCTION_DESC, WANTED),
	PART(OPERATION_REDUCTION, OPERATION_REDUCTION_XDESC, WANTED),
	PART(OPERATION_REDUCTION, OPERATION_REDUCTION_YDESC, WANTED),
	{OF(CONVOLUTION), CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, WANTED},
	{OF(CONVOLUTION), CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, 1, WANTED},
	{OF(CONVOLUTION), CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, 1, WANTED},
	WINDOW(PRE_PADDINGS), WINDOW(POST_PADDINGS), WINDOW(FILTER_STRIDES), WINDOW(DILATIONS),
	CONV(OPERATION_CONVOLUTION_FORWARD, OPERATION_CONVOLUTION_FORWARD, X, W, Y),
	CONV(OPERATION_CONVOLUTION_BACKWARD_DATA, OPERATION_CONVOLUTION_BWD_DATA, DX, W, DY),
	CONV(OPERATION_CONVOLUTION_BACKWARD_FILTER, OPERATION_CONVOLUTION_BWD_FILTER, X, DW, DY),
	PART(OPERATION_RESHAPE, OPERATION_RESHAPE_XDESC, WANTED),
	PART(OPERATION_RESHAPE, OPERATION_RESHAPE_YDESC, WANTED),
	{OF(OPERATIONGRAPH), CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, WANTED},
	{OF(OPERATIONGRAPH), CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 64, WANTED},
	PART(ENGINEHEUR, ENGINEHEUR_OPERATION_GRAPH, WANTED),
	{OF(ENGINEHEUR), CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1, WANTED},
	{OF(EXECUTION_PLAN), CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, 1, WANTED},
	PART(EXECUTION_PLAN, EXECUTION_PLAN_ENGINE_CONFIG, WANTED),
	{OF(VARIANT_PACK), CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 0, 64, WANTED},
	{OF(VARIANT_PACK), CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 0, 64, WANTED},
	{OF(VARIANT_PACK), CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1, WANTED},
};
#undef PART
#undef WINDOW
#undef SCALAR
#undef CONV

static int64_t bytes_of(cudnnBackendAttributeType_t type)
{
	switch (type) {
	case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
	case CUDNN_TYPE_DATA_TYPE: case CUDNN_TYPE_HEUR_MODE: case CUDNN_TYPE_NUMERICAL_NOTE:
	case CUDNN_TYPE_POINTWISE_MODE: case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE: case CUDNN_TYPE_CONVOLUTION_MODE:
	case CUDNN_TYPE_FLOAT: return 4;
	default: return 8;
	}
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
	cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
	bool known = false;
	for (const Row &r : rows) {
		known = known || (r.of == d->type && r.name == name);
		if (r.of != d->type || r.name != name || r.type != type)
			continue;
		if (d->finished || n < r.least || n > r.most || (n && !values))
			return CUDNN_STATUS_BAD_PARAM;
		const char *from = (const char *)values;
		const SimBackend *const *part = (const SimBackend *const *)values;
		for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < n; i++)
			if (!part[i] || !part[i]->finished)
				return CUDNN_STATUS_BAD_PARAM;
		d->set[name] = {n, std::vector<char>(from, from + n * bytes_of(type))};
		return CUDNN_STATUS_SUCCESS;
	}
	return known ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_NOT_SUPPORTED;
}

static bool has(const SimBackend *d, cudnnBackendAttributeName_t name) { return d->set.count(name) > 0; }

template <class T> static const T *list(const SimBackend *d, cudnnBackendAttributeName_t name)
{
	return (const T *)d->set.at(name).bytes.data();
}

static int64_t count(const SimBackend *d, cudnnBackendAttributeName_t name) { return d->set.at(name).n; }

template <class T> static T one(const SimBackend *d, cudnnBackendAttributeName_t name, T otherwise)
{
	return has(d, name) ? *list<T>(d, name) : otherwise;
}

static const SimBackend *part(const SimBackend *d, cudnnBackendAttributeName_t name)
{
	return one<const SimBackend *>(d, name, NULL);
}

/* ---- tensors ---- */

static int64_t size_of(cudnnDataType_t t)
{
	return t == CUDNN_DATA_DOUBLE ? 8 : t == CUDNN_DATA_FLOAT || t == CUDNN_DATA_INT32 ? 4
		: t == CUDNN_DATA_BOOLEAN ? 1 : 2;
}

static bool tensor_fits(const SimBackend *d)
{
	int64_t align = one<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0);
	const int64_t *dim = list<int64_t>(d, CUDNN_ATTR_TENSOR_DIMENSIONS);
	const int64_t *stride = list<int64_t>(d, CUDNN_ATTR_TENSOR_STRIDES);
	int64_t n = count(d, CUDNN_ATTR_TENSOR_DIMENSIONS);
	bool both = one(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false) && one(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, false);
	return align > 0 && align % size_of(one(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT)) == 0 && !both
		&& n == count(d, CUDNN_ATTR_TENSOR_STRIDES) && std::all_of(dim, dim + n, [](int64_t x) { return x > 0; })
		&& std::all_of(stride, stride + n, [](int64_t x) { return x >= 0; });
}

static SimNode node_of(const SimBackend *d)
{
	SimNode t = {one<int64_t>(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0), one<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0),
		one(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT),
		(int)count(d, CUDNN_ATTR_TENSOR_DIMENSIONS), {}, {}, one(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false),
		one(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, false)};
	std::copy_n(list<int64_t>(d, CUDNN_ATTR_TENSOR_DIMENSIONS), t.n, t.dim);
	std::copy_n(list<int64_t>(d, CUDNN_ATTR_TENSOR_STRIDES), t.n, t.stride);
	return t;
}

/* ---- graphs ---- */

static bool same_node(const SimNode &a, const SimNode &b)
{
	return a.type == b.type && a.is_virtual == b.is_virtual && a.by_value == b.by_value && a.n == b.n
		&& std::equal(a.dim, a.dim + a.n, b.dim) && std::equal(a.stride, a.stride + a.n, b.stride);
}

/* The uid of the tensor that an attribute names, which is the graph's then; -1: two tensors of one uid differ. */
static int64_t tensor_in(SimGraph &g, const SimBackend *op, cudnnBackendAttributeName_t name)
{
	const SimBackend *d = part(op, name);
	if (!d)
		return 0;
	SimNode t = node_of(d);
	auto found = g.tensor.emplace(t.uid, t);
	return d->type == OF(TENSOR) && t.uid > 0 && same_node(found.first->second, t) ? t.uid : -1;
}

static SimWindow window_of(const SimBackend *how)
{
	SimWindow w = {(int)one<int64_t>(how, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0), {}, {}, {}, {},
		one(how, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)};
	std::copy_n(list<int64_t>(how, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), w.n, w.pad);
	std::copy_n(list<int64_t>(how, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS), w.n, w.end);
	std::copy_n(list<int64_t>(how, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), w.n, w.stride);
	std::copy_n(list<int64_t>(how, CUDNN_ATTR_CONVOLUTION_DILATIONS), w.n, w.dilation);
	return w;
}

/* Whether a scalar of a convolution has a value, in the type that it was set in. */
static bool holds(const SimBackend *d, cudnnBackendAttributeName_t name, double x)
{
	return (d->set.at(name).bytes.size() == 8 ? *list<double>(d, name) : (double)*list<float>(d, name)) == x;
}

/* a, b: the tensors that are read, made: the result. */
static void take_conv(SimGraph &g, SimOp &op, const SimBackend *d, cudnnBackendAttributeName_t how,
	cudnnBackendAttributeName_t a, cudnnBackendAttributeName_t b, cudnnBackendAttributeName_t made)
{
	g.convs++;
	op.window = window_of(part(d, how));
	op.x = tensor_in(g, d, a);
	op.b = tensor_in(g, d, b);
	op.y = tensor_in(g, d, made);
}

static SimOp op_of(SimGraph &g, const SimBackend *d)
{
	SimOp op = {d->type, 0, -1, 0, 0, 0, 0, {}};
	switch (d->type) {
	case OF(OPERATION_POINTWISE): {
		const SimBackend *how = part(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
		op.mode = one<int>(how, CUDNN_ATTR_POINTWISE_MODE, -1);
		op.axis = one<int64_t>(how, CUDNN_ATTR_POINTWISE_AXIS, -1);
		op.x = tensor_in(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
		op.b = tensor_in(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
		op.t = tensor_in(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
		op.y = tensor_in(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
		break;
	}
#define ATTR(name) CUDNN_ATTR_OPERATION_CONVOLUTION_##name
	case OF(OPERATION_CONVOLUTION_FORWARD):
		take_conv(g, op, d, ATTR(FORWARD_CONV_DESC), ATTR(FORWARD_X), ATTR(FORWARD_W), ATTR(FORWARD_Y));
		break;
	case OF(OPERATION_CONVOLUTION_BACKWARD_DATA):
		take_conv(g, op, d, ATTR(BWD_DATA_CONV_DESC), ATTR(BWD_DATA_W), ATTR(BWD_DATA_DY), ATTR(BWD_DATA_DX));
		break;
	case OF(OPERATION_CONVOLUTION_BACKWARD_FILTER):
		take_conv(g, op, d, ATTR(BWD_FILTER_CONV_DESC), ATTR(BWD_FILTER_X), ATTR(BWD_FILTER_DY), ATTR(BWD_FILTER_DW));
		break;
	case OF(OPERATION_MATMUL):
		g.products++;
		op.x = tensor_in(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
		op.b = tensor_in(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
		op.y = tensor_in(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
		break;
	case OF(OPERATION_REDUCTION):
		op.mode = one<int>(part(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC), CUDNN_ATTR_REDUCTION_OPERATOR, -1);
		op.x = tensor_in(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
		op.y = tensor_in(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
		break;
	default:
		op.x = tensor_in(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
		op.y = tensor_in(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
	}
	return op;
}

/* Whether the tensors of a convolution fit its window. */
static bool conv_fits(const SimGraph &g, const SimOp &op)
{
	SimConvParts parts = sim_conv_parts(op);
	const SimNode &x = g.tensor.at(parts.x), &w = g.tensor.at(parts.w), &y = g.tensor.at(parts.y);
	const SimWindow &win = op.window;
	if (x.n != win.n + 2 || w.n != x.n || y.n != x.n || x.dim[0] != y.dim[0] || x.dim[1] % w.dim[1]
		|| y.dim[1] != w.dim[0] || w.dim[0] % (x.dim[1] / w.dim[1]))
		return false;
	for (int i = 0; i < win.n; i++) {
		int64_t span = x.dim[2 + i] + win.pad[i] + win.end[i] - win.dilation[i] * (w.dim[2 + i] - 1) - 1;
		if (span < 0 || y.dim[2 + i] != span / win.stride[i] + 1)
			return false;
	}
	return true;
}

/* Whether the dims of an operation fit each other. */
static bool dims_fit(const SimGraph &g, const SimOp &op)
{
	const SimNode &x = g.tensor.at(op.x), &y = g.tensor.at(op.y);
	if (sim_is_conv(op))
		return op.b > 0 && conv_fits(g, op);
	auto spread = [&](int64_t uid) { /* over the dims of y */
		if (uid && g.tensor.at(uid).n != y.n)
			return false;
		for (int i = 0; uid && i < y.n; i++)
			if (g.tensor.at(uid).dim[i] != 1 && g.tensor.at(uid).dim[i] != y.dim[i])
				return false;
		return true;
	};
	if (op.kind == OF(OPERATION_POINTWISE))
		return spread(op.x) && spread(op.b) && spread(op.t) && (op.mode != CUDNN_POINTWISE_GEN_INDEX || op.axis >= 0);
	if (x.n != 4 || y.n != 4)
		return false;
	if (op.kind == OF(OPERATION_RESHAPE)) { /* dims 2 and 3 change places, the elements stay */
		static const int to[] = {0, 1, 3, 2};
		return std::all_of(to, to + 4, [&](const int &i) { int at = (int)(&i - to);
			return x.dim[i] == y.dim[at] && (x.stride[i] == y.stride[at] || x.dim[i] == 1); });
	}
	if (op.kind == OF(OPERATION_REDUCTION)) {
		for (int i = 0; i < 4; i++)
			if (x.dim[i] % y.dim[i] || (i != 1 && y.dim[i] != 1 && y.dim[i] != x.dim[i]))
				return false;
		return true;
	}
	const SimNode &b = g.tensor.at(op.b);
	return x.dim[0] == y.dim[0] && b.dim[0] == y.dim[0] && x.dim[1] == y.dim[1] && y.dim[1] % b.dim[1] == 0
		&& x.dim[2] == y.dim[2] && x.dim[3] == b.dim[2] && b.dim[3] == y.dim[3];
}

/* Whether every virtual tensor is made before it is read, and once; and each element that is made is another one. */
static bool order_fits(const SimGraph &g)
{
	std::map<int64_t, int> made;
	for (const SimOp &op : g.op) {
		for (int64_t uid : {op.x, op.b, op.t})
			if (uid && g.tensor.at(uid).is_virtual && !made[uid])
				return false;
		const SimNode &y = g.tensor.at(op.y);
		if (made[op.y]++ || std::count(y.stride, y.stride + y.n, 0))
			return false;
	}
	return true;
}

/* Scalars other than 1 and 0 are not emulated. */
static void want_plain_sums(const SimBackend *d)
{
	static const struct { cudnnBackendDescriptorType_t of; cudnnBackendAttributeName_t alpha, beta; } all[] = {
		{OF(OPERATION_CONVOLUTION_FORWARD), ATTR(FORWARD_ALPHA), ATTR(FORWARD_BETA)},
		{OF(OPERATION_CONVOLUTION_BACKWARD_DATA), ATTR(BWD_DATA_ALPHA), ATTR(BWD_DATA_BETA)},
		{OF(OPERATION_CONVOLUTION_BACKWARD_FILTER), ATTR(BWD_FILTER_ALPHA), ATTR(BWD_FILTER_BETA)}};
	for (const auto &a : all)
		if (a.of == d->type && (!holds(d, a.alpha, 1) || !holds(d, a.beta, 0)))
			sim_die("cuDNN: a convolution: only alpha 1 and beta 0 are emulated");
}
#undef ATTR

static bool graph_fits(SimBackend *d)
{
	auto g = std::make_shared<SimGraph>();
	const SimBackend *const *ops = list<const SimBackend *>(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);
	for (int64_t i = 0; i < d->set.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).n; i++) {
		want_plain_sums(ops[i]);
		SimOp op = op_of(*g, ops[i]);
		if (op.x < 1 || op.y < 1 || op.b < 0 || op.t < 0 || !dims_fit(*g, op))
			return false;
		g->op.push_back(op);
	}
	d->graph = g;
	return order_fits(*g);
}

static bool window_fits(const SimBackend *d)
{
	int64_t n = one<int64_t>(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0);
	for (auto name : {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
		CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_ATTR_CONVOLUTION_DILATIONS}) {
		bool pad = name == CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS || name == CUDNN_ATTR_CONVOLUTION_POST_PADDINGS;
		const int64_t *v = list<int64_t>(d, name);
		if (count(d, name) != n || !std::all_of(v, v + n, [pad](int64_t x) { return x >= !pad; }))
			return false;
	}
	return one<int>(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, -1) == CUDNN_CROSS_CORRELATION;
}

/* Whether the attributes that a descriptor has fit each other; makes the graph of one that has them all. */
static bool parts_fit(SimBackend *d)
{
	switch (d->type) {
	case OF(TENSOR): return tensor_fits(d);
	case OF(CONVOLUTION): return window_fits(d);
	case OF(OPERATIONGRAPH): return graph_fits(d);
	default: return true;
	}
}

/* ---- the life of descriptors ---- */

size_t cudnnGetVersion(void) { return (size_t)sim_setting("CUDASIM_CUDNN", 92801); }

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *d)
{
	*d = new SimBackend{type, false, {}, NULL};
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
	delete d;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
	for (const Row &r : rows)
		if (r.of == d->type && r.wants == WANTED && !has(d, r.name))
			return CUDNN_STATUS_BAD_PARAM;
	if (d->finished || !parts_fit(d))
		return CUDNN_STATUS_BAD_PARAM;
	if (d->type == OF(ENGINEHEUR))
		d->graph = part(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->graph;
	if (d->type == OF(EXECUTION_PLAN))
		d->graph = part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->graph;
	if (d->type == OF(EXECUTION_PLAN) && !d->graph)
		return CUDNN_STATUS_BAD_PARAM;
	d->finished = true;
	return CUDNN_STATUS_SUCCESS;
}

/* Of a graph that is served, engines are proposed by their speed: sums by atomics first.  Of convolutions, engines that
 * transform or narrow what they read come before those that do not, which for f32 and f64 are the last resort. */
static int64_t propose(const SimBackend *d, int64_t asked, cudnnBackendDescriptor_t *config)
{
	std::vector<SimEngine> engines = {SIM_ATOMICS};
	bool last = one<int>(d, CUDNN_ATTR_ENGINEHEUR_MODE, -1) == CUDNN_HEUR_MODE_FALLBACK;
	if (d->graph && d->graph->convs) {
		cudnnDataType_t type = d->graph->tensor.at(d->graph->op[0].x).type;
		engines.push_back(SIM_WINOGRAD);
		if (type == CUDNN_DATA_FLOAT)
			engines.push_back(SIM_TF32);
		if (last || type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16)
			engines.push_back(SIM_PLAIN);
	} else if (!last) {
		engines.push_back(SIM_PLAIN);
	}
	int64_t n = d->graph && sim_graph_served(*d->graph) ? std::min<int64_t>(asked, (int64_t)engines.size()) : 0;
	for (int64_t i = 0; i < n; i++) {
		config[i]->graph = std::make_shared<SimGraph>(*d->graph);
		config[i]->graph->engine = engines[(size_t)i];
		config[i]->finished = true;
	}
	return n;
}

static int64_t engine_number(const SimGraph &g)
{
	return g.engine == SIM_ATOMICS ? 0 : g.convs ? 10 + g.engine : g.products;
}

static cudnnBackendNumericalNote_t note_of(SimEngine engine)
{
	return engine == SIM_ATOMICS ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC
		: engine == SIM_WINOGRAD ? CUDNN_NUMERICAL_NOTE_WINOGRAD
		: engine == SIM_TF32 ? CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
}

/* Convolutions of f32 and f64 that are not narrowed have no tensor cores. */
static bool wants_cores(const SimGraph &g)
{
	return !g.convs || size_of(g.tensor.at(g.op[0].x).type) == 2;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const d, cudnnBackendAttributeName_t name,
	cudnnBackendAttributeType_t, int64_t asked, int64_t *n, void *values)
{
	if (!d->finished || asked < 1)
		return CUDNN_STATUS_BAD_PARAM;
	*n = 1;
	if (d->type == OF(ENGINEHEUR) && name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
		*n = propose(d, asked, (cudnnBackendDescriptor_t *)values);
	} else if (d->type == OF(ENGINECFG) && name == CUDNN_ATTR_ENGINECFG_ENGINE) {
		SimBackend *engine = *(cudnnBackendDescriptor_t *)values;
		engine->graph = d->graph;
		engine->finished = true;
	} else if (d->type == OF(ENGINE) && name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX) {
		*(int64_t *)values = engine_number(*d->graph);
	} else if (d->type == OF(ENGINE) && name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
		bool cores = d->graph->engine != SIM_PLAIN || wants_cores(*d->graph);
		((cudnnBackendNumericalNote_t *)values)[0] = note_of(d->graph->engine);
		*n = cores;
	} else if (d->type == OF(EXECUTION_PLAN) && name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
		*(int64_t *)values = sim_graph_work(*d->graph);
	} else {
		return CUDNN_STATUS_NOT_SUPPORTED;
	}
	return CUDNN_STATUS_SUCCESS;
}

/* ---- runs ---- */

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
	if (!handle || !plan->finished || plan->type != OF(EXECUTION_PLAN) || !pack->finished
		|| pack->type != OF(VARIANT_PACK))
		return CUDNN_STATUS_BAD_PARAM;
	if (plan->graph->engine == SIM_ATOMICS)
		sim_die("cuDNN: an engine that sums by atomics has other bits in every run");
	if (plan->graph->engine == SIM_WINOGRAD)
		sim_die("cuDNN: an engine that transforms has other errors than sums");
	const Values &uids = pack->set.at(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
	if (uids.n != pack->set.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).n)
		return CUDNN_STATUS_BAD_PARAM;
	SimGiven given = {{}, one<void *>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, NULL)};
	for (int64_t i = 0; i < uids.n; i++)
		given.at[((const int64_t *)uids.bytes.data())[i]] =
			list<void *>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)[i];
	for (const auto &t : plan->graph->tensor)
		if (!t.second.is_virtual && !given.at.count(t.first))
			return CUDNN_STATUS_BAD_PARAM;
	sim_graph_run(handle->stream, plan->graph, given);
	return CUDNN_STATUS_SUCCESS;
}
