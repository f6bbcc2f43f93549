/* kernels/cuda/graph.cu: makes, plans and runs operation graphs of cuDNN. */
#include "kernels/cuda/graph.cuh"

/* ---- descriptors ---- */

static bool accepted(Graph *g, cudnnStatus_t s, const char *what)
{
	if (g->status == CUDNN_STATUS_SUCCESS && s != CUDNN_STATUS_SUCCESS) {
		g->status = s;
		g->failed = what;
	}
	return g->status == CUDNN_STATUS_SUCCESS;
}

static cudnnBackendDescriptor_t make(Graph *g, cudnnBackendDescriptorType_t type)
{
	cudnnBackendDescriptor_t d = NULL;
	if (g->status != CUDNN_STATUS_SUCCESS)
		return NULL;
	if (g->n_made == GRAPH_DESCRIPTORS) {
		accepted(g, CUDNN_STATUS_NOT_SUPPORTED, "so many descriptors");
		return NULL;
	}
	if (!accepted(g, cudnnBackendCreateDescriptor(type, &d), "a descriptor"))
		return NULL;
	return g->made[g->n_made++] = d;
}

static void put(Graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
	cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
	if (g->status == CUDNN_STATUS_SUCCESS)
		accepted(g, cudnnBackendSetAttribute(d, name, type, n, values), "an attribute");
}

static void put_part(Graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
	cudnnBackendDescriptor_t part)
{
	put(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

static void finish(Graph *g, cudnnBackendDescriptor_t d, const char *what)
{
	if (g->status == CUDNN_STATUS_SUCCESS)
		accepted(g, cudnnBackendFinalize(d), what);
}

/* ---- tensors ---- */

enum Storage { MEMORY, NUMBER, VIRTUAL };

static GraphTensor tensor(Graph *g, int64_t uid, cudnnDataType_t type, Dims dim, Dims stride, Storage storage)
{
	const int64_t align = 16;
	const bool yes = true;
	cudnnBackendDescriptor_t d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
	put(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
	put(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
	put(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
	put(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, dim.n, dim.at);
	put(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, stride.n, stride.at);
	if (storage != MEMORY)
		put(g, d, storage == NUMBER ? CUDNN_ATTR_TENSOR_IS_BY_VALUE : CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN,
			1, &yes);
	finish(g, d, "a tensor");
	return {d, type, dim};
}

GraphTensor graph_tensor(Graph *g, int64_t uid, cudnnDataType_t type, Dims dim, Dims stride)
{
	return tensor(g, uid, type, dim, stride, MEMORY);
}

GraphTensor graph_number(Graph *g, int64_t uid, cudnnDataType_t type)
{
	return tensor(g, uid, type, {{1, 1, 1, 1}}, {{1, 1, 1, 1}}, NUMBER);
}

GraphTensor graph_between(Graph *g, cudnnDataType_t type, Dims dim, Dims stride)
{
	return tensor(g, GRAPH_OWN + g->own++, type, dim, stride, VIRTUAL);
}

GraphTensor graph_virtual(Graph *g, cudnnDataType_t type, Dims dim)
{
	return graph_between(g, type, dim, packed(dim));
}

/* ---- operations ---- */

static void add_op(Graph *g, cudnnBackendDescriptor_t op, const char *what)
{
	finish(g, op, what);
	if (g->n_ops == GRAPH_OPS)
		accepted(g, CUDNN_STATUS_NOT_SUPPORTED, "so many operations");
	else
		g->op[g->n_ops++] = op;
}

GraphTensor graph_pointwise(Graph *g, cudnnPointwiseMode_t mode, GraphTensor x, const GraphTensor *b,
	const GraphTensor *t, GraphTensor y, cudnnDataType_t compute, int64_t axis)
{
	cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
	put(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
	put(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
	if (axis >= 0)
		put(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
	finish(g, how, "a function of elements");
	cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
	put_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
	put_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.desc);
	if (b)
		put_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->desc);
	if (t)
		put_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t->desc);
	put_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.desc);
	add_op(g, op, "an operation on elements");
	return y;
}

GraphTensor graph_each(Graph *g, cudnnPointwiseMode_t mode, GraphTensor x)
{
	return graph_pointwise(g, mode, x, NULL, NULL, graph_virtual(g, CUDNN_DATA_FLOAT, x.dim), CUDNN_DATA_FLOAT, -1);
}

GraphTensor graph_pair(Graph *g, cudnnPointwiseMode_t mode, GraphTensor x, GraphTensor b)
{
	return graph_pointwise(g, mode, x, &b, NULL, graph_virtual(g, CUDNN_DATA_FLOAT, x.dim), CUDNN_DATA_FLOAT, -1);
}

GraphTensor graph_matmul(Graph *g, GraphTensor a, GraphTensor b, GraphTensor y)
{
	const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
	cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
	put(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
	finish(g, how, "a product's description");
	cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
	put_part(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
	put_part(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.desc);
	put_part(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.desc);
	put_part(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y.desc);
	add_op(g, op, "a product");
	return y;
}

GraphTensor graph_reduce(Graph *g, cudnnReduceTensorOp_t kind, GraphTensor x, GraphTensor y)
{
	const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
	cudnnBackendDescriptor_t how = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
	put(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &kind);
	put(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
	finish(g, how, "a reduction's description");
	cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
	put_part(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
	put_part(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.desc);
	put_part(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.desc);
	add_op(g, op, "a reduction");
	return y;
}

GraphTensor graph_transpose(Graph *g, GraphTensor x, cudnnDataType_t type, Dims stride)
{
	Dims dim = {{x.dim.at[0], x.dim.at[1], x.dim.at[3], x.dim.at[2]}};
	GraphTensor y = graph_between(g, type, dim, stride);
	cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
	put_part(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.desc);
	put_part(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.desc);
	add_op(g, op, "a transpose");
	return y;
}

/* ---- convolutions ---- */

#define CONV(kind, name, x, w, y) {CUDNN_BACKEND_OPERATION_CONVOLUTION_##kind##_DESCRIPTOR, \
	CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_ALPHA, \
	CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_##x, \
	CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_##w, CUDNN_ATTR_OPERATION_CONVOLUTION_##name##_##y}
static const struct { cudnnBackendDescriptorType_t kind; cudnnBackendAttributeName_t how, alpha, beta, x, w, y; }
	convs[] = {CONV(FORWARD, FORWARD, X, W, Y), CONV(BACKWARD_DATA, BWD_DATA, DX, W, DY),
		CONV(BACKWARD_FILTER, BWD_FILTER, X, DW, DY)};
#undef CONV

static cudnnBackendDescriptor_t windows(Graph *g, const GraphWindow &w, int64_t n, cudnnDataType_t compute)
{
	const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
	cudnnBackendDescriptor_t d = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
	put(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
	put(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
	put(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &n);
	put(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, n, w.pad);
	put(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, n, w.pad);
	put(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, n, w.stride);
	put(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, n, w.dilation);
	finish(g, d, "a convolution's description");
	return d;
}

void graph_conv(Graph *g, cudnnBackendDescriptorType_t kind, const GraphWindow &window, cudnnDataType_t compute,
	GraphTensor x, GraphTensor w, GraphTensor y)
{
	const float one = 1, zero = 0;
	const double wide_one = 1, wide_zero = 0;
	bool wide = compute == CUDNN_DATA_DOUBLE;
	cudnnBackendAttributeType_t scalar = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
	cudnnBackendDescriptor_t how = windows(g, window, x.dim.n - 2, compute), op = make(g, kind);
	for (const auto &c : convs) {
		if (c.kind != kind)
			continue;
		put_part(g, op, c.how, how);
		put(g, op, c.alpha, scalar, 1, wide ? (const void *)&wide_one : &one);
		put(g, op, c.beta, scalar, 1, wide ? (const void *)&wide_zero : &zero);
		put_part(g, op, c.x, x.desc);
		put_part(g, op, c.w, w.desc);
		put_part(g, op, c.y, y.desc);
	}
	add_op(g, op, "a convolution");
}

/* ---- plans ---- */

enum { PROPOSALS = 16, NOTES = CUDNN_NUMERICAL_NOTE_TYPE_COUNT };

/* Whether an engine gives the same bits in every run, and has no note that the graph refuses, which gets its number. */
static bool wanted(Graph *g, cudnnBackendDescriptor_t config)
{
	const unsigned refused = g->refused | 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
	cudnnBackendDescriptor_t engine = NULL;
	cudnnBackendNumericalNote_t note[NOTES];
	int64_t n = 0, notes = 0;
	if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS)
		return false;
	bool known = cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
			&engine) == CUDNN_STATUS_SUCCESS
		&& cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, NOTES, &notes,
			note) == CUDNN_STATUS_SUCCESS
		&& cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &n,
			&g->engine) == CUDNN_STATUS_SUCCESS;
	for (int64_t i = 0; i < notes && i < NOTES; i++)
		known = known && !(refused >> note[i] & 1);
	cudnnBackendDestroyDescriptor(engine);
	return known;
}

/* Whether the engine of a proposal can be planned, within work_bytes; the plan is the graph's then. */
static bool take(Graph *g, cudnnBackendDescriptor_t config, int64_t work_bytes)
{
	cudnnBackendDescriptor_t plan = NULL;
	int64_t n = 0, work = 0;
	if (!wanted(g, config)
		|| cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) != CUDNN_STATUS_SUCCESS)
		return false;
	cudnnStatus_t where = g->device
		? cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
			&g->device)
		: cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
	if (where == CUDNN_STATUS_SUCCESS
		&& cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
			&config) == CUDNN_STATUS_SUCCESS
		&& cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS
		&& cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &work)
			== CUDNN_STATUS_SUCCESS && work <= work_bytes) {
		g->plan = plan;
		g->work = work;
		return true;
	}
	cudnnBackendDestroyDescriptor(plan);
	return false;
}

/* The engines of one way to propose, the best first. */
static bool propose(Graph *g, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode, int64_t work_bytes)
{
	cudnnBackendDescriptor_t asked = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), config[PROPOSALS] = {};
	int64_t n = 0;
	bool found = false;
	g->status = CUDNN_STATUS_SUCCESS; /* another way may have been refused */
	put_part(g, asked, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
	put(g, asked, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
	if (g->device)
		put_part(g, asked, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->device);
	finish(g, asked, "the graph");
	for (int i = 0; i < PROPOSALS && g->status == CUDNN_STATUS_SUCCESS; i++)
		accepted(g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[i]), "a descriptor");
	if (g->status == CUDNN_STATUS_SUCCESS)
		accepted(g, cudnnBackendGetAttribute(asked, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
			PROPOSALS, &n, config), "the graph");
	for (int i = 0; i < PROPOSALS; i++) {
		found = found || (g->status == CUDNN_STATUS_SUCCESS && i < n && take(g, config[i], work_bytes));
		if (config[i])
			cudnnBackendDestroyDescriptor(config[i]);
	}
	return found;
}

bool graph_plan(Graph *g, int64_t work_bytes)
{
	cudnnBackendDescriptor_t graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
	put(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->op);
	if (!g->device)
		put(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->handle);
	finish(g, graph, "the graph");
	return g->status == CUDNN_STATUS_SUCCESS && (propose(g, graph, CUDNN_HEUR_MODE_A, work_bytes)
		|| propose(g, graph, CUDNN_HEUR_MODE_FALLBACK, work_bytes));
}

cudnnStatus_t graph_run(const Graph *g, int n, const int64_t *uid, void *const *at, void *work)
{
	cudnnBackendDescriptor_t pack = NULL;
	cudnnStatus_t s = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
	if (s == CUDNN_STATUS_SUCCESS)
		s = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uid);
	if (s == CUDNN_STATUS_SUCCESS)
		s = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, at);
	if (s == CUDNN_STATUS_SUCCESS)
		s = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &work);
	if (s == CUDNN_STATUS_SUCCESS)
		s = cudnnBackendFinalize(pack);
	if (s == CUDNN_STATUS_SUCCESS)
		s = cudnnBackendExecute(g->handle, g->plan, pack);
	if (pack)
		cudnnBackendDestroyDescriptor(pack);
	return s;
}

void graph_free(Graph *g)
{
	if (g->plan)
		cudnnBackendDestroyDescriptor(g->plan);
	while (g->n_made > 0)
		cudnnBackendDestroyDescriptor(g->made[--g->n_made]);
	g->plan = NULL;
}
