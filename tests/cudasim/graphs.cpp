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
static const Row rows[] = {
	{OF(TENSOR), CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1, WANTED},
	{OF(TENSOR), CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, WANTED},
	{OF(TENSOR), CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1, WANTED},
	{OF(TENSOR), CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 4, WANTED},
	{OF(TENSOR), CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 4, WANTED},
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

static int64_t bytes_of(cudnnBackendAttributeType_t type)
{
	switch (type) {
	case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
	case CUDNN_TYPE_DATA_TYPE: case CUDNN_TYPE_HEUR_MODE: case CUDNN_TYPE_NUMERICAL_NOTE:
	case CUDNN_TYPE_POINTWISE_MODE: case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE: return 4;
	default: return 8;
	}
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
	cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
	for (const Row &r : rows) {
		if (r.of != d->type || r.name != name)
			continue;
		if (d->finished || r.type != type || n < r.least || n > r.most || (n && !values))
			return CUDNN_STATUS_BAD_PARAM;
		const char *from = (const char *)values;
		const SimBackend *const *part = (const SimBackend *const *)values;
		for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < n; i++)
			if (!part[i] || !part[i]->finished)
				return CUDNN_STATUS_BAD_PARAM;
		d->set[name] = {n, std::vector<char>(from, from + n * bytes_of(type))};
		return CUDNN_STATUS_SUCCESS;
	}
	return CUDNN_STATUS_NOT_SUPPORTED;
}

static bool has(const SimBackend *d, cudnnBackendAttributeName_t name) { return d->set.count(name) > 0; }

template <class T> static const T *list(const SimBackend *d, cudnnBackendAttributeName_t name)
{
	return (const T *)d->set.at(name).bytes.data();
}

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
	return t == CUDNN_DATA_FLOAT || t == CUDNN_DATA_INT32 ? 4 : t == CUDNN_DATA_BOOLEAN ? 1 : 2;
}

static bool tensor_fits(const SimBackend *d)
{
	int64_t align = one<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0);
	const int64_t *dim = list<int64_t>(d, CUDNN_ATTR_TENSOR_DIMENSIONS);
	const int64_t *stride = list<int64_t>(d, CUDNN_ATTR_TENSOR_STRIDES);
	bool both = one(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false) && one(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, false);
	return align > 0 && align % size_of(one(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT)) == 0 && !both
		&& std::all_of(dim, dim + 4, [](int64_t x) { return x > 0; })
		&& std::all_of(stride, stride + 4, [](int64_t x) { return x > 0; });
}

static SimNode node_of(const SimBackend *d)
{
	SimNode t = {one<int64_t>(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0), one<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0),
		one(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT), {}, {}, one(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false),
		one(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, false)};
	std::copy_n(list<int64_t>(d, CUDNN_ATTR_TENSOR_DIMENSIONS), 4, t.dim);
	std::copy_n(list<int64_t>(d, CUDNN_ATTR_TENSOR_STRIDES), 4, t.stride);
	return t;
}

/* ---- graphs ---- */

static bool same_node(const SimNode &a, const SimNode &b)
{
	return a.type == b.type && a.is_virtual == b.is_virtual && a.by_value == b.by_value
		&& std::equal(a.dim, a.dim + 4, b.dim) && std::equal(a.stride, a.stride + 4, b.stride);
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

static SimOp op_of(SimGraph &g, const SimBackend *d)
{
	SimOp op = {d->type, 0, -1, 0, 0, 0, 0};
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

/* Whether the dims of an operation fit each other. */
static bool dims_fit(const SimGraph &g, const SimOp &op)
{
	const SimNode &x = g.tensor.at(op.x), &y = g.tensor.at(op.y);
	auto spread = [&](int64_t uid) { /* over the dims of y */
		for (int i = 0; uid && i < 4; i++)
			if (g.tensor.at(uid).dim[i] != 1 && g.tensor.at(uid).dim[i] != y.dim[i])
				return false;
		return true;
	};
	if (op.kind == OF(OPERATION_POINTWISE))
		return spread(op.x) && spread(op.b) && spread(op.t) && (op.mode != CUDNN_POINTWISE_GEN_INDEX || op.axis >= 0);
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

/* Whether every virtual tensor is made before it is read, and once. */
static bool order_fits(const SimGraph &g)
{
	std::map<int64_t, int> made;
	for (const SimOp &op : g.op) {
		for (int64_t uid : {op.x, op.b, op.t})
			if (uid && g.tensor.at(uid).is_virtual && !made[uid])
				return false;
		if (made[op.y]++)
			return false;
	}
	return true;
}

static bool graph_fits(SimBackend *d)
{
	auto g = std::make_shared<SimGraph>();
	const SimBackend *const *ops = list<const SimBackend *>(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);
	for (int64_t i = 0; i < d->set.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).n; i++) {
		SimOp op = op_of(*g, ops[i]);
		if (op.x < 1 || op.y < 1 || op.b < 0 || op.t < 0 || !dims_fit(*g, op))
			return false;
		g->op.push_back(op);
	}
	d->graph = g;
	return order_fits(*g);
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
	if (d->finished || (d->type == OF(TENSOR) && !tensor_fits(d)) || (d->type == OF(OPERATIONGRAPH) && !graph_fits(d)))
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

/* Of a graph that is served two engines are proposed, the first with sums by atomics. */
static int64_t propose(const SimBackend *d, int64_t asked, cudnnBackendDescriptor_t *config)
{
	int64_t n = d->graph && sim_graph_served(*d->graph) ? std::min<int64_t>(asked, 2) : 0;
	for (int64_t i = 0; i < n; i++) {
		config[i]->graph = std::make_shared<SimGraph>(*d->graph);
		config[i]->graph->atomics = i == 0;
		config[i]->finished = true;
	}
	return n;
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
		*(int64_t *)values = d->graph->atomics ? 0 : d->graph->products;
	} else if (d->type == OF(ENGINE) && name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE) {
		((cudnnBackendNumericalNote_t *)values)[0] = d->graph->atomics ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC
			: CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
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
	if (plan->graph->atomics)
		sim_die("cuDNN: an engine that sums by atomics has other bits in every run");
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
