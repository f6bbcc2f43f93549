/* frontend/onnx_declared.c: the inputs of a model as its file declares them, before any dim is bound. */
#include "frontend/onnx_file.h"

#include <string.h>

static bool is_initializer(const OnnxGraph *g, const char *name)
{
	for (int i = 0; i < g->tensors.n; i++)
		if (!strcmp(g->tensors.at[i].name, name))
			return true;
	return false;
}

static DeclaredInput declared(Arena *a, const Onnx__ValueInfoProto *info)
{
	const Onnx__TensorTypeProto *t = info->type ? info->type->tensor_type : NULL;
	const Onnx__TensorShapeProto *shape = t ? t->shape : NULL;
	DeclaredInput in = {.name = arena_strdup(a, info->name ? info->name : ""), .rank = -1};
	if (!shape || shape->n_dim > IR_MAX_RANK)
		return in;
	in.rank = (int)shape->n_dim;
	for (int k = 0; k < in.rank; k++) {
		const Onnx__DimensionProto *dim = shape->dim[k];
		bool named = dim->dim_param && *dim->dim_param;
		in.dim[k] = dim->has_dim_value && !named ? dim->dim_value : -1;
		in.param[k] = named ? arena_strdup(a, dim->dim_param) : "";
	}
	return in;
}

bool onnx_declared(const char *path, Arena *a, DeclaredInputVec *out, Diag *d)
{
	OnnxModel *m = onnx_model_open(path, a, d);
	for (int i = 0; m && i < m->graph.inputs.n; i++)
		if (!is_initializer(&m->graph, m->graph.inputs.at[i]->name))
			vec_push(a, out, declared(a, m->graph.inputs.at[i]));
	if (m)
		onnx_model_close(m);
	return m;
}
