/* frontend/onnx_shadow.c: renames results that have the same name as an initializer.
 *
 * PyTorch's dynamo exporter gives one name to the buffer "mean" and the result of x.mean(), which ONNX forbids.  Nodes
 * before the one that computes the result read the initializer.  For nodes behind it, the exporter's trace says which
 * of the two they read, "%b_mean" or "%mean".  The result is renamed here, before anything else reads the graph. */
#include "frontend/onnx_params.h"

#include <string.h>

typedef struct Shadow {
	const char *name;     /* new name of the result */
	const char *maker;    /* the node that computes the result */
	const char *token;    /* what the exporter's trace calls the result, "%mean" */
	const char *argument; /* what the trace calls the initializer, "%b_mean"; NULL: the exporter does not list it */
} Shadow;

/* The text of the fx node that the ONNX node was made from, beginning at its arguments; NULL: there is none. */
static const char *arguments_of(const Onnx__NodeProto *node)
{
	const char *fx = names_metadata(node, "pkg.torch.onnx.fx_node");
	return fx ? strstr(fx, "(args = ") : NULL;
}

static bool has_token(const char *text, const char *token)
{
	static const char more[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
	size_t n = token ? strlen(token) : 0;
	for (const char *at = n ? strstr(text, token) : NULL; at; at = strstr(at + n, token))
		if (!at[n] || !strchr(more, at[n]))
			return true;
	return false;
}

static bool unclear(const Import *im, const Onnx__NodeProto *node, const char *name, const Shadow *s)
{
	const char *where = arena_printf(im->arena, "%s: node \"%s\"", im->onnx->path,
		str_escape(im->arena, ESCAPE_IR, node->name ? node->name : ""));
	diag_error(im->d, where, "\"%s\" is both an initializer and the result of node \"%s\", and nothing shows which of "
		"them is read: export with shardc.export, or give the tensor of the module another name",
		str_escape(im->arena, ESCAPE_IR, name), str_escape(im->arena, ESCAPE_IR, s->maker));
	return false;
}

/* Gives the operands that read a renamed result its new name; for nodes behind the one that computes it. */
static bool rename_operands(const Import *im, Onnx__NodeProto *node, const Map *shadows)
{
	const char *arguments = arguments_of(node);
	for (size_t k = 0; k < node->n_input; k++) {
		const Shadow *s = map_get(shadows, node->input[k]);
		if (!s)
			continue;
		bool result = arguments && has_token(arguments, s->token);
		if (result == (arguments && has_token(arguments, s->argument)))
			return unclear(im, node, node->input[k], s);
		if (result)
			node->input[k] = arena_strdup(im->onnx->arena, s->name);
	}
	return true;
}

static bool has_subgraph(const Onnx__NodeProto *node)
{
	for (size_t i = 0; i < node->n_attribute; i++)
		if (node->attribute[i]->g.len)
			return true;
	return false;
}

static Shadow *shadow_of(const Import *im, const Onnx__NodeProto *node, const char *name, const Map *taken)
{
	const char *fx = names_metadata(node, "pkg.torch.onnx.fx_node");
	const char *argument = im->signature ? map_get(im->signature, name) : NULL;
	Shadow *s = NEW(im->arena, Shadow);
	*s = (Shadow){.name = arena_printf(im->onnx->arena, "%s_value", name), .maker = node->name ? node->name : ""};
	while (map_has(taken, s->name) || map_has(im->weights, s->name))
		s->name = arena_printf(im->onnx->arena, "%s_", s->name);
	s->token = arena_strndup(im->arena, fx, strcspn(fx, " "));
	s->argument = argument ? arena_printf(im->arena, "%%%s", argument) : NULL;
	return s;
}

static Map *names_taken(const Import *im)
{
	const OnnxGraph *g = &im->onnx->graph;
	Map *taken = map_new(im->arena);
	for (int i = 0; i < g->nodes.n; i++)
		for (size_t k = 0; k < g->nodes.at[i]->n_output; k++)
			map_put(taken, g->nodes.at[i]->output[k], im->onnx);
	return taken;
}

static bool is_shadow(const Import *im, const Onnx__NodeProto *node, size_t k, const Map *shadows)
{
	const char *name = node->output[k], *fx = names_metadata(node, "pkg.torch.onnx.fx_node");
	const Weight *w = map_get(im->weights, name);
	return fx && *fx == '%' && w && !w->inner && !map_has(shadows, name);
}

bool shadows_rename(Import *im)
{
	const OnnxGraph *g = &im->onnx->graph;
	Map *shadows = map_new(im->arena), *taken = NULL;
	for (int i = 0; i < g->nodes.n; i++) {
		Onnx__NodeProto *node = g->nodes.at[i];
		if (map_count(shadows) && has_subgraph(node))
			return unclear(im, node, map_key(shadows, 0), map_get(shadows, map_key(shadows, 0)));
		if (!rename_operands(im, node, shadows))
			return false;
		for (size_t k = 0; k < node->n_output; k++) {
			if (!is_shadow(im, node, k, shadows))
				continue;
			taken = taken ? taken : names_taken(im);
			Shadow *s = shadow_of(im, node, node->output[k], taken);
			map_put(shadows, node->output[k], s);
			map_put(taken, s->name, s);
			map_put(im->onnx->renamed, node->output[k], (void *)(uintptr_t)s->name);
			node->output[k] = arena_strdup(im->onnx->arena, s->name);
		}
	}
	return true;
}
