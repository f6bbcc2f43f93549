/* frontend/onnx_refusals.c: what a refusal says: why an op is not compiled, the way out, and where the node comes from.
 *
 * Refusals are collected by op and reason while nodes are imported, so that one run reports all of them, and one line
 * all nodes of the same refusal. */
#include "frontend/onnx_import.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"

/* A row of onnx_refused.def; op: NULL for the rest of a domain. */
typedef struct Refused { const char *domain, *op, *why; } Refused;

static const Refused refused[] = {
#define REFUSED(domain, op, why) {domain, #op, why},
#define REFUSED_DOMAIN(domain, why) {domain, NULL, why},
#include "frontend/onnx_refused.def"
};

/* An op that is compiled; the table of importers is in onnx_import.c. */
static const struct { const char *domain, *op; } compiled[] = {
#undef ONNX_OP
#undef ONNX_IN
#define ONNX_OP(op, since, until, importer) {"", #op},
#define ONNX_IN(domain, op, since, until, importer) {domain, #op},
#include "frontend/onnx_ops.def"
};

typedef struct Refusal {
	const char *op, *reason, *first, *origin;
	int64_t opset;
	int count;
} Refusal;

/* ---- the way out ---- */

static const char *way_out(const char *domain, const char *op)
{
	const char *of_domain = NULL;
	for (int i = 0; i < COUNT_OF(refused); i++) {
		if (strcmp(refused[i].domain, domain) != 0)
			continue;
		if (refused[i].op && !strcmp(refused[i].op, op))
			return refused[i].why;
		if (!refused[i].op)
			of_domain = refused[i].why;
	}
	return of_domain;
}

/* "; did you mean Erf?", or the other domain that has an op of this name; "" when no op is near. */
static const char *nearest(const Node *n, const char *domain)
{
	Arena *a = n->im->arena;
	const char *known[COUNT_OF(compiled)];
	int count = 0;
	for (int i = 0; i < COUNT_OF(compiled); i++) {
		if (!strcmp(compiled[i].domain, domain))
			known[count++] = compiled[i].op;
		else if (!strcmp(compiled[i].op, n->op))
			return arena_printf(a, "; domain \"%s\" has an op of this name",
				*compiled[i].domain ? compiled[i].domain : "ai.onnx");
	}
	const char *word = near_word(n->op, known, count);
	return word ? arena_printf(a, "; did you mean %s?", word) : "";
}

const char *refusal_of_op(const Node *n, const char *domain)
{
	Arena *a = n->im->arena;
	const char *why = way_out(domain, n->op), *shown = str_escape(a, ESCAPE_IR, domain);
	if (!why && !*domain)
		why = "there is no such op, or none that can be compiled";
	if (!why)
		why = arena_printf(a, "domain \"%s\" is not ONNX's and no function of the model has this name: write the op as "
			"such a function, or translate it when exporting (torch.onnx.export's custom_translation_table)", shown);
	return arena_printf(a, "%s%s", why, nearest(n, domain));
}

const char *refusal_of_opset(const Node *n, const OnnxOp *first, int rows)
{
	Arena *a = n->im->arena;
	int64_t next = INT64_MAX, last = 0;
	for (int i = 0; i < rows; i++) {
		if (first[i].since > n->opset)
			next = MIN(next, first[i].since);
		last = MAX(last, first[i].until);
	}
	if (next < INT64_MAX)
		return arena_printf(a, "its meaning in this opset is not supported: export with opset_version=%" PRId64
			" or more", next);
	return arena_printf(a, "its meaning in this opset is not supported: export with opset_version=%" PRId64 " or less",
		last);
}

/* ---- where a node comes from ---- */

/* Whether a path is of an installed package, and not of the user's own code. */
static bool is_installed(const char *path, size_t n)
{
	static const char *const parts[] = {"site-packages/", "dist-packages/"};
	bool any = false;
	for (int i = 0; i < COUNT_OF(parts); i++) {
		const char *at = strstr(path, parts[i]);
		any = any || (at && at < path + n);
	}
	return any;
}

/* dynamo's trace: 'File "model.py", line 12, in forward' and the code below it, the innermost call last. */
static const char *line_of_trace(Arena *a, const char *trace)
{
	static const char mark[] = "File \"";
	const char *best = NULL;
	bool own = false;
	for (const char *at = strstr(trace, mark); at; at = strstr(at + 1, mark)) {
		const char *path = at + strlen(mark);
		bool installed = is_installed(path, strcspn(path, "\""));
		if (!installed || !own)
			best = path;
		own = own || !installed;
	}
	const char *line = best ? strstr(best, "\", line ") : NULL;
	if (!line)
		return NULL;
	const char *code = strchr(line, '\n');
	code = code ? code + strspn(code, " \n") : "";
	const char *shown = arena_strndup(a, code, strcspn(code, "\n"));
	const char *where = arena_printf(a, "%.*s:%d", (int)(line - best), best, atoi(line + strlen("\", line ")));
	return *shown ? arena_printf(a, "%s: %s", where, shown) : where;
}

/* TorchScript's trace, of export(verbose=True): lines "model.py(12): forward", the innermost call first. */
static const char *line_of_doc(Arena *a, const char *doc)
{
	const char *best = NULL;
	for (const char *at = doc; *at; at += strcspn(at, "\n"), at += *at == '\n') {
		size_t n = strcspn(at, "\n"), path = strcspn(at, "(\n");
		if (path < n && path > 3 && !strncmp(at + path - 3, ".py", 3) && !is_installed(at, n)) {
			best = at;
			break;
		}
	}
	if (!best)
		return NULL;
	size_t path = strcspn(best, "(");
	return arena_printf(a, "%.*s:%d", (int)path, best, atoi(best + path + 1));
}

static const char *source_line(Arena *a, const Onnx__NodeProto *node)
{
	const char *trace = names_metadata(node, "pkg.torch.onnx.stack_trace");
	return trace ? line_of_trace(a, trace) : line_of_doc(a, node->doc_string);
}

const char *node_line(const Node *n)
{
	const char *line = source_line(n->im->arena, n->proto);
	for (const Frame *f = n->frame; !line && f; f = f->function ? f->caller : f->outer)
		line = f->call ? source_line(n->im->arena, f->call) : NULL;
	return line ? str_escape(n->im->arena, ESCAPE_IR, line) : NULL;
}

/* " in module \"encoder.0\" (model.py:12: y = self.f(x))", as much of it as is known. */
static const char *origin_of(const Node *n)
{
	Arena *a = n->im->arena;
	const char *line = node_line(n);
	const char *module = n->scope && *n->scope
		? arena_printf(a, " in module \"%s\"", str_escape(a, ESCAPE_IR, n->scope)) : "";
	return line ? arena_printf(a, "%s (%s)", module, line) : module;
}

/* ---- refusals ---- */

bool node_refuse(Node *n, const char *fmt, ...)
{
	Import *im = n->im;
	va_list ap;
	va_start(ap, fmt);
	const char *reason = arena_vprintf(im->arena, fmt, ap);
	va_end(ap);
	const char *key = arena_printf(im->arena, "%s\n%s", n->op, reason);
	Refusal *r = map_get(im->refusals, key);
	if (!r) {
		r = NEW(im->arena, Refusal);
		*r = (Refusal){.op = arena_strdup(im->arena, n->op), .reason = reason, .first = n->name,
			.origin = origin_of(n), .opset = n->opset};
		map_put(im->refusals, key, r);
	}
	r->count++;
	return false;
}

void refusals_report(Import *im)
{
	for (int i = 0; i < map_count(im->refusals); i++) {
		const Refusal *r = map_get(im->refusals, map_key(im->refusals, i));
		diag_error(im->d, im->m->file, "refused: %d x %s (opset %" PRId64 "), first at node \"%s\"%s: %s",
			r->count, r->op, r->opset, str_escape(im->arena, ESCAPE_IR, r->first), r->origin, r->reason);
	}
}
