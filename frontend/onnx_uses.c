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

/* What a name stands for where it hides an outer name or is another name of a weight; w is NULL for other values. */
typedef struct Alias { Weight *w; const char *name; } Alias;
typedef struct Product { Weight *w; int use; } Product;
/* A graph whose nodes are looked at. */
typedef struct Scope {
	const struct Scope *outer;
	Map *aliases;   /* value -> Alias */
	Map *products;  /* result of a node that uses a weight -> Product; shared by all graphs */
	const char *module;
	int depth;
} Scope;

static const Alias *find_weight(Import *im, const Scope *s, const char *name)
{
	for (; s; s = s->outer) {
		const Alias *a = map_get(s->aliases, name);
		if (a)
			return a->w ? a : NULL;
	}
	Weight *w = map_get(im->weights, name);
	Alias *top = w && !w->inner ? NEW(im->arena, Alias) : NULL;
	if (top)
		top->w = w;
	return top;
}

static void define(Import *im, const Scope *s, const char *name, Alias a)
{
	Alias *now = NEW(im->arena, Alias);
	*now = a;
	map_put(s->aliases, name, now);
}

/* Whether the node only passes the weight on.  Identity gives it another name; behind a node that stops gradients it
 * keeps the name it had. */
static bool passes_on(Import *im, const Scope *s, const Alias *a, const Onnx__NodeProto *n)
{
	bool stop = node_stops(n);
	if (!n->n_output || (!stop && strcmp(n->op_type, "Identity") != 0))
		return false;
	define(im, s, n->output[0], (Alias){a->w, stop ? a->name : n->output[0]});
	return true;
}

static void add_use(Import *im, const Scope *s, Weight *w, const Onnx__NodeProto *n, WeightUse use)
{
	Product *p = NEW(im->arena, Product);
	*p = (Product){w, w->uses.n};
	if (n->n_output)
		map_put(s->products, n->output[0], p);
	vec_push(im->arena, &w->uses, use);
}

static void collect_graph(Import *im, const Scope *s, const OnnxGraph *g);

/* Looks at the nodes of a subgraph, whose own names hide those around it. */
static void collect_subgraph(Import *im, const Scope *outer, const char *module, const Onnx__AttributeProto *a)
{
	const OnnxGraph *g = onnx_subgraph(im->onnx, a, im->d);
	Scope s = {.outer = outer, .aliases = map_new(im->arena), .products = outer->products, .module = module,
		.depth = outer->depth + 1};
	if (!g || s.depth > SUBGRAPHS_MAX)
		return;
	for (int i = 0; i < g->inputs.n; i++)
		define(im, &s, g->inputs.at[i]->name ? g->inputs.at[i]->name : "", (Alias){0});
	for (int i = 0; i < g->tensors.n; i++)
		define(im, &s, g->tensors.at[i].name, (Alias){.w = ptrmap_get(im->inner, &g->tensors.at[i])});
	collect_graph(im, &s, g);
}

static void collect_node(Import *im, const Scope *s, const Onnx__NodeProto *n)
{
	Frame around = {.prefix = "", .scope = s->module};
	const char *op = n->op_type ? n->op_type : "", *module = names_scope(im, &around, n);
	const char *fx = names_metadata(n, "pkg.torch.onnx.fx_node");
	bool passed = false;
	if (names_folds_norm(n)) { /* place and trace are the norm's, and its weights are not those that are read */
		module = "";
		fx = NULL;
	}
	for (int k = 0; k < (int)n->n_input; k++) {
		const Alias *a = find_weight(im, s, n->input[k]);
		Product *p = strncmp(op, "Reduce", 6) ? NULL : map_get(s->products, n->input[k]);
		if (p)
			p->w->uses.at[p->use].reduced = true;
		passed = a && passes_on(im, s, a, n);
		if (a && !passed)
			add_use(im, s, a->w, n, (WeightUse){.op = op, .operand = k, .scope = module,
				.alias = a->name, .fx = fx, .call = n->domain && *n->domain});
	}
	for (size_t i = 0; i < n->n_attribute; i++)
		if (n->attribute[i]->has_g)
			collect_subgraph(im, s, module, n->attribute[i]);
	for (size_t k = 0; s->outer && !passed && k < n->n_output; k++)
		define(im, s, n->output[k], (Alias){0});
}

static void collect_graph(Import *im, const Scope *s, const OnnxGraph *g)
{
	for (int i = 0; i < g->nodes.n; i++)
		collect_node(im, s, g->nodes.at[i]);
}

void uses_collect(Import *im)
{
	const OnnxGraph *g = &im->onnx->graph;
	Scope top = {.aliases = map_new(im->arena), .products = map_new(im->arena), .module = ""};
	collect_infos(im, &g->infos);
	collect_graph(im, &top, g);
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
