/* frontend/onnx_names.c: recovers the framework's names from what exporters write into the model.
 *
 * PyTorch's dynamo exporter writes the module path into metadata.  The TorchScript exporter writes it into node names:
 * "/layer1/layer1.0/conv1/Conv" stands for module layer1.0.conv1. */
#include "frontend/onnx_import.h"

#include <ctype.h>
#include <string.h>

const char *names_metadata(const Onnx__NodeProto *node, const char *key)
{
	for (size_t i = 0; i < node->n_metadata_props; i++)
		if (node->metadata_props[i]->key && !strcmp(node->metadata_props[i]->key, key))
			return node->metadata_props[i]->value;
	return NULL;
}

static bool is_rewritten(const Onnx__NodeProto *node, const char *rule)
{
	const char *rules = names_metadata(node, "pkg.onnxscript.rewriter.rule_name");
	return rules && strstr(rules, rule);
}

bool node_rewritten_by(const Node *n, const char *rule)
{
	return is_rewritten(n->proto, rule);
}

bool names_folds_norm(const Onnx__NodeProto *node)
{
	return is_rewritten(node, "FuseBatchNormInto");
}

bool node_is_call(const Node *n, const char *target)
{
	static const char before[] = "[target=torch.ops.";
	const char *fx = names_metadata(n->proto, "pkg.torch.onnx.fx_node"), *at = fx ? strstr(fx, before) : NULL;
	return at && !strncmp(at + strlen(before), target, strlen(target));
}

bool node_stops(const Onnx__NodeProto *node)
{
	const char *fx = names_metadata(node, "pkg.torch.onnx.fx_node");
	if (!node->op_type)
		return false;
	if (node->domain && !strcmp(node->domain, "shardc"))
		return !strcmp(node->op_type, "StopGradient");
	return !strcmp(node->op_type, "Identity") && fx && strstr(fx, "[target=torch.ops.aten.detach.default]");
}

/* The argument's name is followed, behind its terminating 0, by its line of the signature: " PARAMETER
 * target='fc.weight'". */
const char *signature_kind(const char *argument)
{
	static const char *const kinds[] = {"PARAMETER", "BUFFER"};
	const char *kind = argument + strlen(argument) + 1;
	kind += strspn(kind, " ");
	for (int i = 0; i < COUNT_OF(kinds); i++)
		if (!strncmp(kind, kinds[i], strlen(kinds[i])))
			return kinds[i];
	return "CONSTANT";
}

bool signature_is_saved(const char *argument)
{
	const char *kind = signature_kind(argument);
	return !strcmp(kind, "PARAMETER")
		|| (!strcmp(kind, "BUFFER") && !strstr(argument + strlen(argument) + 1, "persistent=False"));
}

bool names_fx_reads(const char *fx, const char *argument)
{
	const char *args = fx ? strstr(fx, "(args = ") : NULL;
	size_t n = strlen(argument);
	for (const char *at = args ? strchr(args, '%') : NULL; n && at; at = strchr(at + 1, '%'))
		if (!strncmp(at + 1, argument, n) && !isalnum((unsigned char)at[1 + n]) && at[1 + n] != '_')
			return true;
	return false;
}

/* Reads lines such as "p_fc_weight: PARAMETER target='fc.weight'" into the map 'fc.weight' -> "p_fc_weight". */
Map *names_of_signature(const OnnxGraph *g, Arena *a)
{
	static const char target[] = " target='";
	char *text = arena_strdup(a, wire_str(a, g->signature)), *line;
	Map *names = *text ? map_new(a) : NULL;
	while ((line = strsep(&text, "\n"))) {
		char *at = strstr(line, target), *colon = strchr(line, ':');
		if (!at || !colon || strstr(colon, ": BUFFER_MUTATION"))
			continue;
		*colon = 0;
		at += strlen(target);
		map_put(names, arena_strndup(a, at, strcspn(at, "'")), line);
	}
	return names;
}

Map *names_of_arguments(const Map *signature, Arena *a)
{
	Map *of = map_new(a);
	for (int i = 0; signature && i < map_count(signature); i++)
		map_put(of, map_get(signature, map_key(signature, i)), (void *)map_key(signature, i));
	return of;
}

NameVec names_of_fx(const char *fx, Arena *a)
{
	NameVec names = {0};
	const char *args = strstr(fx, "(args = ");
	for (const char *at = args ? strchr(args, '%') : NULL; at; at = strchr(at + 1, '%')) {
		size_t n = 1;
		while (isalnum((unsigned char)at[n]) || at[n] == '_')
			n++;
		vec_push(a, &names, arena_strndup(a, at + 1, n - 1));
	}
	return names;
}

/* In a list such as "['', 'h', 'h.0', 'linear']" the last entry is the operation and the one before it the module. */
static const char *scope_of_list(Import *im, const char *list)
{
	const char *last = NULL, *before = NULL;
	size_t n_last = 0, n_before = 0;
	for (const char *s = strchr(list, '\''); s; s = strchr(s, '\'')) {
		const char *end = strchr(s + 1, '\'');
		if (!end)
			break;
		before = last;
		n_before = n_last;
		last = s + 1;
		n_last = (size_t)(end - last);
		s = end + 1;
	}
	return before ? arena_strndup(im->arena, before, n_before) : "";
}

/* Joins the parts of a path.  A part that extends the one before it ("layer1", "layer1.0") replaces it. */
static const char *scope_of_path(Import *im, const char *path)
{
	Buf b = {0};
	size_t n_last = 0;
	const char *last = "";
	for (const char *s = path + 1, *end; (end = strchr(s, '/')); s = end + 1) {
		size_t n = (size_t)(end - s);
		if (n > n_last && n_last && !memcmp(s, last, n_last) && s[n_last] == '.')
			b.n -= n_last;
		else if (b.n)
			buf_put(&b, ".", 1);
		buf_put(&b, s, n);
		last = s;
		n_last = n;
	}
	const char *scope = b.n ? arena_strndup(im->arena, b.at, b.n) : "";
	buf_free(&b);
	return scope;
}

const char *names_scope(Import *im, const Frame *frame, const Onnx__NodeProto *node)
{
	const char *list = names_metadata(node, "pkg.torch.onnx.name_scopes");
	if (list)
		return scope_of_list(im, list);
	if (node->name && node->name[0] == '/')
		return scope_of_path(im, node->name);
	return frame->scope;
}

const char *names_node(Import *im, const Frame *frame, const Onnx__NodeProto *node, int index)
{
	const char *name = node->name && *node->name ? node->name : arena_printf(im->arena, "#%d", index);
	return *frame->prefix ? arena_printf(im->arena, "%s/%s", frame->prefix, name) : name;
}

bool names_all_digits(const char *s)
{
	for (; isdigit((unsigned char)*s); s++)
		;
	return !*s;
}

bool names_same_part(const char *scope, size_t n, const char *module, size_t k)
{
	size_t digits = 0;
	if (n < k || memcmp(scope, module, k) != 0)
		return false;
	if (n == k)
		return true;
	for (size_t i = k + 1; i < n; i++)
		digits += isdigit((unsigned char)scope[i]) != 0;
	return scope[k] == '_' && digits && digits == n - k - 1;
}

bool names_same_module(const char *scope, const char *module)
{
	while (*scope && *module) {
		size_t n = strcspn(scope, "."), k = strcspn(module, ".");
		if (!names_same_part(scope, n, module, k))
			return false;
		scope += n + (scope[n] == '.');
		module += k + (module[k] == '.');
	}
	return !*scope && !*module;
}

/* Names that ONNX optimizers make: "const_fold_opt__12", "const_axes__7". */
static bool is_const_of_optimizer(const char *name)
{
	const char *end = strstr(name, "__");
	return end && end[2] && names_all_digits(end + 2) && !strncmp(name, "const_", 6)
		&& strspn(name, "abcdefghijklmnopqrstuvwxyz_") == (size_t)(end + 2 - name);
}

bool names_is_made_up(const char *name)
{
	static const char *const numbered[] = {"Constant_", "const_", "val_"};
	if (*name == '/' || !strncmp(name, "onnx::", 6) || names_all_digits(name) || is_const_of_optimizer(name))
		return true;
	for (int i = 0; i < COUNT_OF(numbered); i++) {
		size_t n = strlen(numbered[i]);
		if (!strncmp(name, numbered[i], n) && name[n] && names_all_digits(name + n))
			return true;
	}
	return false;
}
