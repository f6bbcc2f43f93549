/* frontend/onnx_uses.c: finds what a graph shows of an initializer: its users, what exporters say of it, its values. */
#include "frontend/onnx_params.h"

#include <string.h>

static const Role roles[] = {
#define ROLE(op, operand, suffix, strong) {#op, operand, suffix, strong},
#include "frontend/roles.def"
};

const Role *role_of(const char *op, int operand)
{
	for (int i = 0; i < COUNT_OF(roles); i++)
		if (roles[i].operand == operand && !strcmp(roles[i].op, op))
			return &roles[i];
	return NULL;
}

bool role_has_suffix(const char *suffix)
{
	for (int i = 0; i < COUNT_OF(roles); i++)
		if (!strcmp(roles[i].suffix, suffix))
			return true;
	return false;
}

bool is_statistic(const char *op, int operand)
{
	return operand >= 3 && !strcmp(op, "BatchNormalization");
}

/* ---- what exporters say ---- */

static const char *metadata(const Onnx__ValueInfoProto *v, const char *key)
{
	for (size_t i = 0; i < v->n_metadata_props; i++)
		if (v->metadata_props[i]->key && !strcmp(v->metadata_props[i]->key, key))
			return v->metadata_props[i]->value;
	return NULL;
}

/* Adds the names in a list such as "['a.weight', 'b.bias']". */
static void read_folded(Import *im, Weight *w)
{
	const char *s = w->folded_from ? strchr(w->folded_from, '\'') : NULL;
	for (const char *end; s && (end = strchr(s + 1, '\'')); s = strchr(end + 1, '\''))
		vec_push(im->arena, &w->folded, arena_strndup(im->arena, s + 1, (size_t)(end - s - 1)));
}

/* Several values may have the initializer's name; the first one whose metadata say something counts. */
static void collect_infos(Import *im, const OnnxInfoVec *infos)
{
	for (int i = 0; i < infos->n; i++) {
		const Onnx__ValueInfoProto *v = infos->at[i];
		Weight *w = v->name ? map_get(im->weights, v->name) : NULL;
		if (!w || w->kind || w->folded_from)
			continue;
		const char *persistent = metadata(v, "pkg.torch.export.graph_signature.InputSpec.persistent");
		w->kind = metadata(v, "pkg.torch.export.graph_signature.InputSpec.kind");
		w->folded_from = metadata(v, "pkg.onnxscript.optimizer.folded_from");
		read_folded(im, w);
		w->transient = persistent && !strcmp(persistent, "False");
	}
}

/* ---- uses ---- */

typedef struct Alias { Weight *w; const char *name; } Alias;

static Alias *find_weight(Import *im, const Map *aliases, const char *name)
{
	Alias *a = map_get(aliases, name);
	Weight *w = a ? NULL : map_get(im->weights, name);
	if (w) {
		a = NEW(im->arena, Alias);
		a->w = w;
	}
	return a;
}

/* Whether the node only passes the weight on.  Identity gives it another name; behind a node that stops gradients it
 * keeps the name it had. */
static bool passes_on(Import *im, Map *aliases, const Alias *a, const Onnx__NodeProto *n)
{
	bool stop = node_stops(n);
	if (!n->n_output || (!stop && strcmp(n->op_type, "Identity") != 0))
		return false;
	Alias *now = NEW(im->arena, Alias);
	*now = (Alias){a->w, stop ? a->name : n->output[0]};
	map_put(aliases, n->output[0], now);
	return true;
}

typedef struct Product { Weight *w; int use; } Product;
typedef struct Collect {
	Map *aliases;  /* value -> Alias */
	Map *products; /* result of a node that uses a weight -> Product */
} Collect;

static void add_use(Import *im, Collect *c, Weight *w, const Onnx__NodeProto *n, WeightUse use)
{
	Product *p = NEW(im->arena, Product);
	*p = (Product){w, w->uses.n};
	if (n->n_output)
		map_put(c->products, n->output[0], p);
	vec_push(im->arena, &w->uses, use);
}

static void collect_node(Import *im, Collect *c, const Onnx__NodeProto *n)
{
	Frame top = {.prefix = "", .scope = ""};
	const char *op = n->op_type ? n->op_type : "";
	for (int k = 0; k < (int)n->n_input; k++) {
		Alias *a = find_weight(im, c->aliases, n->input[k]);
		Product *p = strncmp(op, "Reduce", 6) ? NULL : map_get(c->products, n->input[k]);
		if (p)
			p->w->uses.at[p->use].reduced = true;
		if (a && !passes_on(im, c->aliases, a, n))
			add_use(im, c, a->w, n, (WeightUse){.op = op, .operand = k, .scope = names_scope(im, &top, n),
				.alias = a->name, .fx = names_metadata(n, "pkg.torch.onnx.fx_node"), .call = n->domain && *n->domain});
	}
}

void uses_collect(Import *im)
{
	const OnnxGraph *g = &im->onnx->graph;
	Collect c = {map_new(im->arena), map_new(im->arena)};
	collect_infos(im, &g->infos);
	for (int i = 0; i < g->nodes.n; i++)
		collect_node(im, &c, g->nodes.at[i]);
}

bool weight_has_use(const Weight *w, const char *op, int operand)
{
	for (int i = 0; i < w->uses.n; i++)
		if (w->uses.at[i].operand == operand && !strcmp(w->uses.at[i].op, op))
			return true;
	return false;
}

const WeightUse *weight_strong_use(const Weight *w)
{
	for (int i = 0; i < w->uses.n; i++) {
		const Role *r = role_of(w->uses.at[i].op, w->uses.at[i].operand);
		if (r && r->strong)
			return &w->uses.at[i];
	}
	return NULL;
}

bool weight_only_statistics(const Weight *w)
{
	bool all = w->uses.n > 0;
	for (int i = 0; i < w->uses.n; i++)
		all = all && is_statistic(w->uses.at[i].op, w->uses.at[i].operand);
	return all;
}

/* ---- values, sampled ---- */

bool weight_values(Import *im, const Weight *w, HostTensor *out)
{
	Diag quiet = *im->d;
	Span at;
	const FileMap *file;
	quiet.max_errors = -1; /* errors are reported when the value is read */
	if (!w->typed || (w->t->typed && !w->t->has_raw) || !onnx_tensor_bytes(im->onnx, w->t, &at, &file, &quiet))
		return false;
	*out = (HostTensor){w->type, at.at};
	return true;
}

bool weight_is_splat(Import *im, const Weight *w, double *value)
{
	HostTensor h;
	int64_t n = type_numel(&w->type);
	if (!n || !weight_values(im, w, &h))
		return false;
	int size = dtype_info[w->type.dtype].bytes;
	const uint8_t *at = h.data;
	for (int64_t i = 1; i < n; i++)
		if (memcmp(at, at + i * size, (size_t)size) != 0)
			return false;
	*value = host_get_float(&h, 0);
	return true;
}

enum { SAMPLES = 4096 };

/* Compares 4096 elements spread over rows and columns, so that large tensors are not read as a whole. */
bool weight_is_transpose(Import *im, const Weight *w, const Weight *other)
{
	HostTensor a, b;
	if (w == other || other->tie || !other->typed || w->type.rank != 2 || other->type.rank != 2
		|| w->type.dtype != other->type.dtype || w->type.dim[0] != other->type.dim[1]
		|| w->type.dim[1] != other->type.dim[0] || !weight_values(im, w, &a) || !weight_values(im, other, &b))
		return false;
	int64_t rows = w->type.dim[0], cols = w->type.dim[1], n = MIN(rows * cols, (int64_t)SAMPLES);
	int size = dtype_info[w->type.dtype].bytes;
	const uint8_t *x = a.data, *y = b.data;
	bool varied = false;
	for (int64_t k = 0; k < n; k++) {
		int64_t i = n == SAMPLES ? (k * 2654435761) % rows : k / cols;
		int64_t j = n == SAMPLES ? (k * 40503 + k / cols) % cols : k % cols;
		const uint8_t *p = x + (i * cols + j) * size;
		if (memcmp(p, y + (j * rows + i) * size, (size_t)size) != 0)
			return false;
		varied = varied || memcmp(p, x, (size_t)size) != 0;
	}
	return varied;
}
