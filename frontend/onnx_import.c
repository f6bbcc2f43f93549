/* frontend/onnx_import.c: imports an ONNX graph into the forward section of a module.
 *
 * Nodes are imported in order, each as its row of onnx_ops.def says; calls of model-local functions are inlined.
 * Results that follow from literals alone are evaluated at once, so that passes never see shape arithmetic.  Refuses
 * unknown opsets, ops without a row, names that are used before they are defined, and whatever an importer declines.
 * An operand whose node failed silently poisons the results that depend on it, so that each problem is reported
 * once. */
#include "frontend/onnx_params.h"
#include "frontend/onnx_pseudo.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const OnnxOp onnx_ops[] = {
#undef ONNX_OP
#define ONNX_OP(op, since, until, importer) {"", #op, since, until, import_##importer, OP_COUNT},
#define ONNX_EW(op, since, until, importer, kind) {"", #op, since, until, import_ew_##importer, OP_##kind},
#define ONNX_IN(domain, op, since, until, importer) {domain, #op, since, until, import_##importer, OP_COUNT},
#include "frontend/onnx_ops.def"
};

/* Limits of inlining.  A file of a few thousand bytes can hold functions that each call the next one twice, sixty
 * levels deep.  The number of inlined nodes may therefore be large, but only in proportion to the nodes of the file. */
enum { INLINED_MIN = 200000, INLINED_PER_NODE = 50 };

static bool is_onnx_domain(const char *domain)
{
	return !domain || !*domain || !strcmp(domain, "ai.onnx");
}

/* ---- what is known at compile time ---- */

static Known op_known(const Import *im, const Op *op)
{
	unsigned flags = op_info[op->kind].flags;
	if (op->kind == OP_CONST || op->kind == OP_IOTA)
		return KNOWN_LITERALLY;
	if (op->kind == OP_INPUT && im->o->inputs && type_numel(&op->out[0]->type) <= LITERAL_MAX)
		return KNOWN_GIVEN;
	if (flags & (EFFECT | SYM | SRC) || op_draws(op))
		return KNOWN_NOT;
	Known known = KNOWN_LITERALLY;
	for (int i = 0; i < op->n_in && known; i++) {
		Known in = op_in(op, i) ? im->known[op_in(op, i)->id] : KNOWN_LITERALLY;
		known = in ? MAX(known, in) : KNOWN_NOT;
	}
	return known;
}

static void mark_op(Import *im, const Op *op)
{
	while (im->m->n_values > im->cap_known)
		im->known = arena_grow(im->arena, im->known, 1, &im->cap_known);
	Known known = op_known(im, op);
	for (int i = 0; i < op->n_out; i++)
		im->known[op->out[i]->id] = (uint8_t)known;
}

void import_mark(Import *im, const Op *last)
{
	for (const Op *op = last ? last->next : im->m->first[SEC_FORWARD]; op; op = op->next)
		mark_op(im, op);
}

/* Replaces a small result that follows from literals by a literal. */
static Value *fold(Import *im, Value *v)
{
	if (!v || v == &im->m->poison || pseudo_is(im, v) || v->op->kind == OP_CONST
			|| im->known[v->id] != KNOWN_LITERALLY)
		return v;
	int64_t limit = dtype_is_float(v->type.dtype) ? LITERAL_FLOATS_MAX : LITERAL_MAX;
	EvalTensor *t = type_numel(&v->type) > limit ? NULL : eval_constant(im->eval, v, EVAL_MAX);
	if (!t)
		return v;
	Value *now = emit_literal(&im->b, t);
	mark_op(im, now->op);
	return now;
}

/* ---- names ---- */

OnnxValue *frame_find(const Frame *f, const char *name)
{
	for (; f; f = f->outer) {
		OnnxValue *v = map_get(f->values, name);
		if (v)
			return v;
	}
	return NULL;
}

static void frame_define(Node *n, const char *name, Value *v, const Narrow *narrow)
{
	if (map_has(n->frame->values, name)) {
		node_error(n, "result \"%s\" is made twice", str_escape(n->im->arena, ESCAPE_IR, name));
		return;
	}
	OnnxValue *ov = NEW(n->im->arena, OnnxValue);
	ov->v = v;
	ov->narrow = narrow;
	map_put(n->frame->values, name, ov);
}

/* The IR's name for a result: the ONNX name without the parts that TorchScript adds.  The name is reserved before the
 * node is imported, so that no intermediate op of the node takes it. */
static const char *reserve_name(Import *im, const char *name)
{
	Value v = {0};
	const char *end = strstr(name, "_output_");
	name += *name == '/';
	if (!*name)
		return NULL;
	ir_rename(im->m, &v, end && end > name ? arena_strndup(im->arena, name, (size_t)(end - name)) : name);
	return v.name;
}

static bool read_operand(Node *n, int i)
{
	const char *name = n->proto->input[i];
	n->in[i] = NULL;
	if (!*name)
		return true;
	OnnxValue *ov = frame_find(n->frame, name);
	if (!ov) {
		n->in[i] = &n->im->m->poison;
		return node_error(n, "operand %d, \"%s\", is not made before this node: it is missing, or the graph has "
			"a cycle", i, str_escape(n->im->arena, ESCAPE_IR, name));
	}
	n->in[i] = ov->w ? params_value(n->im, ov->w, ov->alias, n, i) : ov->v;
	n->in_narrow[i] = ov->w ? ov->w->narrow : ov->narrow;
	return true;
}

static void define_results(Node *n, bool good, const Op *last, int n_values, const char *const *names)
{
	import_mark(n->im, last);
	for (int i = 0; i < n->n_out; i++) {
		const char *name = n->proto->output[i];
		if (!*name)
			continue;
		Value *v = good ? n->out[i] : &n->im->m->poison;
		if (!v) {
			node_refuse(n, "its result %d is not supported", i);
			v = &n->im->m->poison;
		}
		v = fold(n->im, v);
		if (v->op && v->id >= n_values && names[i])
			v->name = names[i];
		frame_define(n, name, v, n->out_narrow[i]);
	}
}

/* ---- ops and functions ---- */

static int64_t opset_of(const Import *im, const Frame *f, const char *domain)
{
	while (f && !f->function)
		f = f->outer;
	if (f) {
		for (size_t i = 0; i < f->function->n_opset_import; i++) {
			const Onnx__OperatorSetIdProto *o = f->function->opset_import[i];
			if (is_onnx_domain(domain) ? is_onnx_domain(o->domain) : o->domain && !strcmp(o->domain, domain))
				return o->version;
		}
	}
	for (int i = 0; i < im->onnx->opsets.n; i++) {
		const OnnxOpset *o = &im->onnx->opsets.at[i];
		if (is_onnx_domain(domain) ? is_onnx_domain(o->domain) : !strcmp(o->domain, domain))
			return o->version;
	}
	return 0;
}

static const char *function_key(Import *im, const char *domain, const char *name, const char *overload)
{
	return arena_printf(im->arena, "%s::%s::%s", is_onnx_domain(domain) ? "" : domain, name,
		overload ? overload : "");
}

/* The first row of onnx_ops.def for an op, NULL when there is none. */
static const OnnxOp *rows_of(Import *im, const char *domain, const char *op)
{
	return map_get(im->rows, function_key(im, domain, op, NULL));
}

static bool same_op(const OnnxOp *x, const OnnxOp *y)
{
	return !strcmp(x->op, y->op) && !strcmp(x->domain, y->domain);
}

/* The row of onnx_ops.def for the node's op and opset; NULL after a refusal. */
static const OnnxOp *find_row(Node *n)
{
	const char *domain = n->proto->domain;
	bool own = is_onnx_domain(domain);
	if (own && (n->opset < 1 || n->opset > OPSET_MAX))
		return NULL; /* the missing opset was already reported for the model or function */
	if (training_artifact(domain, n->op)) {
		node_refuse(n, "this file is a training graph, in which onnxruntime-training has written out backward or "
			"update: give shardc the forward model that it was made from (the argument of generate_artifacts), it "
			"builds both");
		return NULL;
	}
	const OnnxOp *first = rows_of(n->im, domain, n->op), *row = first;
	if (!first) {
		node_refuse(n, "%s", refusal_of_op(n, own ? "" : domain));
		return NULL;
	}
	for (; row < onnx_ops + COUNT_OF(onnx_ops) && same_op(row, first); row++)
		if (row->since <= n->opset && n->opset <= row->until)
			return row;
	if (n->opset < 1)
		node_refuse(n, "the model imports no version of its domain, \"%s\"", domain);
	else
		node_refuse(n, "%s", refusal_of_opset(n, first, (int)(row - first)));
	return NULL;
}

static bool is_running(const Frame *f, const Onnx__FunctionProto *fn)
{
	for (; f; f = f->function ? f->caller : f->outer)
		if (f->function == fn)
			return true;
	return false;
}

bool import_charge(Node *n, int64_t nodes)
{
	Import *im = n->im;
	bool was_said = im->n_inlined > im->max_inlined;
	im->n_inlined += nodes;
	if (was_said)
		return false;
	if (im->n_inlined > im->max_inlined)
		return node_error(n, "refused: inlining the model's functions and unrolling its loops makes more than %" PRId64
			" nodes, too many for a file of this size; where that is meant, inline functions in the file "
			"(onnx.inliner.inline_local_functions), whose own nodes have no limit", im->max_inlined);
	return true;
}

static bool may_call(Node *n, const Onnx__FunctionProto *fn)
{
	if (is_running(n->frame, fn))
		return node_error(n, "function \"%s\" calls itself: functions are inlined, so recursion cannot be "
			"compiled", n->op);
	if (n->frame->depth + 1 > SUBGRAPHS_MAX)
		return node_error(n, "calls of functions nest deeper than %d", SUBGRAPHS_MAX);
	if ((size_t)n->n_in > fn->n_input)
		return node_error(n, "%d operands, function \"%s\" takes %zu", n->n_in, n->op, fn->n_input);
	return import_charge(n, (int64_t)fn->n_node);
}

static bool call_function(Node *n, const Onnx__FunctionProto *fn)
{
	Import *im = n->im;
	Frame f = {.caller = n->frame, .call = n->proto, .function = fn, .values = map_new(im->arena),
		.prefix = n->name, .scope = n->scope, .depth = n->frame->depth + 1};
	if (!may_call(n, fn))
		return false;
	for (size_t i = 0; i < fn->n_input; i++) {
		OnnxValue *v = NEW(im->arena, OnnxValue);
		v->v = node_in(n, (int)i);
		v->narrow = v->v ? n->in_narrow[i] : NULL;
		map_put(f.values, fn->input[i], v);
	}
	if (!import_nodes(im, &f, (int)fn->n_node, fn->node))
		return false;
	im->b.loc = loc_new(im->m, n->name, n->op, n->scope, "");
	for (int i = 0; i < n->n_out && (size_t)i < fn->n_output; i++) {
		OnnxValue *v = map_get(f.values, fn->output[i]);
		if (!v)
			return node_error(n, "function \"%s\" never makes its result \"%s\"", n->op, fn->output[i]);
		n->out[i] = v->v;
		n->out_narrow[i] = v->narrow;
	}
	return true;
}

/* ---- subgraphs ---- */

const OnnxGraph *import_subgraph(Node *n, const char *attribute)
{
	const Onnx__AttributeProto *a = node_attr(n, attribute);
	if (a && a->has_g)
		return onnx_subgraph(n->im->onnx, a, n->im->d);
	node_error(n, "it has no graph in its attribute \"%s\"", attribute);
	return NULL;
}

/* The value of a subgraph's initializer.  Those inside functions have no place in the file, and are constants. */
static OnnxValue *inner_value(Import *im, const OnnxTensor *t)
{
	OnnxValue *v = NEW(im->arena, OnnxValue);
	v->w = ptrmap_get(im->inner, t);
	v->v = v->w ? NULL : params_constant(im, t, false);
	v->v = v->w || v->v ? v->v : &im->m->poison;
	return v;
}

static bool define_inner(Node *n, Frame *f, const char *name, OnnxValue *v)
{
	if (map_has(f->values, name))
		return node_error(n, "\"%s\" stands for two inputs or initializers of its subgraph",
			str_escape(n->im->arena, ESCAPE_IR, name));
	map_put(f->values, name, v);
	return true;
}

static bool body_outputs(Node *n, const Frame *f, const OnnxGraph *g, Value **out)
{
	for (int i = 0; i < g->outputs.n; i++) {
		const char *name = g->outputs.at[i]->name;
		OnnxValue *v = name ? frame_find(f, name) : NULL;
		if (!v)
			return node_error(n, "its subgraph never makes \"%s\"", str_escape(n->im->arena, ESCAPE_IR,
				name ? name : ""));
		const Op *last = n->im->m->last[SEC_FORWARD];
		out[i] = v->w ? params_value(n->im, v->w, v->alias, n, -1) : v->v;
		import_mark(n->im, last);
		if (out[i] == &n->im->m->poison)
			return false;
		if (v->w ? v->w->narrow : v->narrow)
			return node_refuse(n, "its subgraph gives out a value of type %s: cast it to floats inside",
				(v->w ? v->w->narrow : v->narrow)->text);
	}
	return true;
}

bool import_body(Node *n, const OnnxGraph *g, const char *prefix, int n_args, Value *const *args, Value **out)
{
	Import *im = n->im;
	Frame f = {.outer = n->frame, .values = map_new(im->arena), .prefix = prefix, .scope = n->scope,
		.depth = n->frame->depth + 1};
	if (f.depth > SUBGRAPHS_MAX)
		return node_error(n, "subgraphs nest deeper than %d", SUBGRAPHS_MAX);
	if (g->inputs.n != n_args)
		return node_error(n, "its subgraph has %d input(s), %d wanted", g->inputs.n, n_args);
	for (int i = 0; i < g->inputs.n; i++) {
		OnnxValue *v = NEW(im->arena, OnnxValue);
		v->v = args[i];
		if (!define_inner(n, &f, g->inputs.at[i]->name ? g->inputs.at[i]->name : "", v))
			return false;
	}
	for (int i = 0; i < g->tensors.n; i++) {
		const Op *last = im->m->last[SEC_FORWARD];
		OnnxValue *v = inner_value(im, &g->tensors.at[i]);
		import_mark(im, last);
		if (!define_inner(n, &f, g->tensors.at[i].name, v))
			return false;
	}
	if (!import_nodes(im, &f, g->nodes.n, g->nodes.at))
		return false;
	im->b.loc = loc_new(im->m, n->name, n->op, n->scope, "");
	return body_outputs(n, &f, g, out);
}

/* ---- nodes ---- */

static bool any_poison(const Node *n)
{
	for (int i = 0; i < n->n_in; i++)
		if (n->in[i] == &n->im->m->poison)
			return true;
	return false;
}

static bool any_pseudo(const Node *n)
{
	for (int i = 0; i < n->n_in; i++)
		if (pseudo_is(n->im, n->in[i]))
			return true;
	return false;
}

/* Makes the result of Identity another name of the initializer that it reads: so TorchScript writes merged tensors. */
static bool import_alias(Node *n)
{
	if (node_stops(n->proto) || strcmp(n->op, "Identity") || n->n_in != 1 || n->n_out != 1 || !*n->proto->input[0])
		return false;
	OnnxValue *of = frame_find(n->frame, n->proto->input[0]);
	if (!of || !of->w || map_has(n->frame->values, n->proto->output[0]))
		return false;
	OnnxValue *v = NEW(n->im->arena, OnnxValue);
	*v = *of;
	v->alias = n->proto->output[0];
	map_put(n->frame->values, v->alias, v);
	return true;
}

/* Imports a node that stops gradients.  An operand that has no gradient anyway is passed on unchanged. */
static bool import_stop(Node *n)
{
	if (n->n_in != 1 || n->n_out != 1 || (*n->op == 'S' && n->opset > 1) || !n->in[0])
		return node_error(n, "takes one operand and has one result in version 1 of its domain: %d, %d and version %d",
			n->n_in, n->n_out, (int)n->opset);
	bool floats = !pseudo_is(n->im, n->in[0]) && dtype_is_float(n->in[0]->type.dtype);
	n->out[0] = floats ? ir_emit1(n->b, OP_STOP_GRADIENT, n->in[0]) : n->in[0];
	return true;
}

static bool import_node(Import *im, const Frame *frame, const Onnx__NodeProto *proto, int index)
{
	const char *op = proto->op_type ? proto->op_type : "";
	Node n = {.im = im, .b = &im->b, .frame = frame, .proto = proto, .op = op,
		.name = names_node(im, frame, proto, index), .scope = names_scope(im, frame, proto),
		.n_in = (int)proto->n_input, .n_out = (int)proto->n_output};
	const Op *last = im->m->last[SEC_FORWARD];
	im->n_dropout_nodes += !strcmp(op, "Dropout");
	im->n_batch_norms += !strcmp(op, "BatchNormalization");
	if (names_folds_norm(proto))
		vec_push(im->arena, &im->folded_norms, n.scope);
	im->b.loc = loc_new(im->m, n.name, op, n.scope, "");
	n.opset = opset_of(im, frame, proto->domain);
	if (import_alias(&n))
		return true;
	n.in = NEW_N(im->arena, Value *, n.n_in + 1);
	n.out = NEW_N(im->arena, Value *, n.n_out + 1);
	n.in_narrow = NEW_N(im->arena, const Narrow *, n.n_in + 1);
	n.out_narrow = NEW_N(im->arena, const Narrow *, n.n_out + 1);
	for (int i = 0; i < n.n_in; i++)
		read_operand(&n, i);
	while (n.n_in && !n.in[n.n_in - 1])
		n.n_in--;
	import_mark(im, last);
	last = im->m->last[SEC_FORWARD];
	int n_values = im->m->n_values;
	const char **names = NEW_N(im->arena, const char *, n.n_out + 1);
	for (int i = 0; i < n.n_out; i++)
		names[i] = reserve_name(im, proto->output[i]);
	bool stop = node_stops(proto); /* takes precedence over a function of this name, which the model has for other
	                                  runtimes */
	const Onnx__FunctionProto *fn = stop ? NULL : map_get(im->functions, function_key(im, proto->domain, op,
		proto->overload));
	bool pseudo = any_pseudo(&n) && !sequence_takes(op);
	const OnnxOp *row = fn || pseudo || stop ? NULL : find_row(&n); /* looked up even if operands failed, so that all
	                                                                   refusals appear in one run */
	bool good = !any_poison(&n) && (fn || row || pseudo || stop);
	n.kind = row ? row->kind : OP_COUNT;
	good = good && (fn || narrow_take(&n)) && (stop ? import_stop(&n) : fn ? call_function(&n, fn)
		: pseudo ? pseudo_import(&n) : row->import(&n));
	im->b.name = NULL;
	define_results(&n, good, last, n_values, names);
	return good;
}

static bool is_inlined(const Frame *f)
{
	while (f && !f->function)
		f = f->outer;
	return f;
}

bool import_nodes(Import *im, const Frame *frame, int n, Onnx__NodeProto *const *nodes)
{
	/* In a function the first error ends the call: every further call would repeat the message. */
	bool good = true, inlined = is_inlined(frame);
	for (int i = 0; i < n && (good || !inlined); i++)
		good = import_node(im, frame, nodes[i], im->n_nodes++);
	return good || !(inlined || frame->outer);
}

/* ---- the whole model ---- */

static void index_tables(Import *im)
{
	im->rows = map_new(im->arena);
	for (int i = COUNT_OF(onnx_ops) - 1; i >= 0; i--)
		map_put(im->rows, function_key(im, onnx_ops[i].domain, onnx_ops[i].op, NULL),
			(void *)(uintptr_t)&onnx_ops[i]);
	im->functions = map_new(im->arena);
	for (int i = 0; i < im->onnx->functions.n; i++) {
		const Onnx__FunctionProto *f = im->onnx->functions.at[i];
		if (f->name)
			map_put(im->functions, function_key(im, f->domain, f->name, f->overload),
				(void *)(uintptr_t)f);
	}
}

static int64_t inlined_limit(const OnnxModel *onnx)
{
	int64_t n = onnx->graph.nodes.n;
	for (int i = 0; i < onnx->functions.n; i++)
		n += (int64_t)onnx->functions.at[i]->n_node;
	return INLINED_MIN + INLINED_PER_NODE * n;
}

static void check_opset(Import *im, const char *where, const char *domain, int64_t version)
{
	if (is_onnx_domain(domain) && (version < 1 || version > OPSET_MAX))
		diag_error(im->d, where, "opset %" PRId64 " is unknown; 1..%d are known", version, OPSET_MAX);
}

static void check_opsets(Import *im)
{
	const OnnxModel *onnx = im->onnx;
	bool any = false;
	for (int i = 0; i < onnx->opsets.n; i++) {
		any = any || is_onnx_domain(onnx->opsets.at[i].domain) || training_domain(onnx->opsets.at[i].domain);
		/* A session writes all domains that it knows. */
		im->runtime_folded = im->runtime_folded || !strcmp(onnx->opsets.at[i].domain, "com.microsoft.nchwc");
		check_opset(im, onnx->path, onnx->opsets.at[i].domain, onnx->opsets.at[i].version);
	}
	for (int i = 0; i < onnx->functions.n; i++) {
		const Onnx__FunctionProto *f = onnx->functions.at[i];
		const char *where = arena_printf(im->arena, "%s: function \"%s\"", onnx->path, f->name ? f->name : "");
		for (size_t k = 0; k < f->n_opset_import; k++)
			check_opset(im, where, f->opset_import[k]->domain, f->opset_import[k]->version);
	}
	if (!any && onnx->graph.nodes.n && !onnx->functions.n)
		diag_error(im->d, onnx->path, "the model imports no opset of ONNX's own domain");
}

/* Adds a graph output.  The elements of a sequence are outputs of their own, NAME.0, NAME.1, ..; an optional is what it
 * holds, or no output. */
static void add_output(Import *im, const char *name, const char *onnx, Value *v, const Narrow *narrow)
{
	const Pseudo *p = pseudo_of(im, v);
	for (int i = 0; p && i < p->n; i++)
		add_output(im, p->kind == PSEUDO_OPTIONAL ? name : arena_printf(im->arena, "%s.%d", name, i), onnx, p->at[i],
			NULL);
	if (p || !v || v == &im->m->poison)
		return;
	Symbol *s = ir_add_symbol(im->m, SYM_OUTPUT, name, v->type);
	s->onnx = ir_intern(im->m, onnx);
	s->narrow = narrow ? narrow->text : NULL;
	im->b.sym = s;
	ir_emit(&im->b, OP_OUTPUT, 1, &v, NULL);
}

static void import_outputs(Import *im, const Frame *frame)
{
	OnnxGraph *g = &im->onnx->graph;
	for (int i = 0; i < g->outputs.n; i++) {
		const char *name = g->outputs.at[i]->name ? g->outputs.at[i]->name : "";
		const char *renamed = map_get(im->onnx->renamed, name);
		OnnxValue *ov = frame_find(frame, renamed ? renamed : name);
		if (!ov) {
			diag_error(im->d, arena_printf(im->arena, "%s: output \"%s\"", im->onnx->path,
				str_escape(im->arena, ESCAPE_IR, name)), "no node makes it");
			continue;
		}
		Node reader = {.im = im, .b = &im->b, .frame = frame, .op = "", .scope = ""};
		im->b.loc = loc_new(im->m, "", "", "", "");
		Value *v = ov->w ? params_value(im, ov->w, ov->alias, &reader, -1) : ov->v;
		add_output(im, name, name, v, ov->w ? ov->w->narrow : ov->narrow);
	}
	if (!g->outputs.n)
		diag_error(im->d, im->onnx->path, "the graph has no output");
}

/* Removes ops that no output or write needs: shape arithmetic, and results that nobody reads. */
static void drop_unused(Module *m)
{
	for (Op *op = m->last[SEC_FORWARD], *prev; op; op = prev) {
		prev = op->prev;
		if (!op_has_effect(op) && !op_is_read(op) && op->kind != OP_INPUT)
			ir_remove(m, op);
	}
}

static void warn_folded(const Import *im)
{
	int norms = im->folded_norms.n, convs = im->computed_convs.n;
	if (norms && !im->o->infer)
		diag_warn(im->d, im->onnx->path, "the exporter folded %d batch norm%s into the layer%s in front, first \"%s\": "
			"%s not trained, and the weights of such a layer do not fit the module any more: export with "
			"optimize=False", norms, norms == 1 ? "" : "s", norms == 1 ? "" : "s", str_escape(im->arena, ESCAPE_IR,
			im->folded_norms.at[0]), norms == 1 ? "it is" : "they are");
	if (convs && !im->o->infer)
		diag_warn(im->d, im->onnx->path, "the exporter computed the weights of %d convolution%s, first \"%s\", as it "
			"does where it folds batch norms into them in eval mode: what it folded is not trained, and such weights "
			"do not fit the module any more: export model.train() with training=TrainingMode.TRAINING, "
			"do_constant_folding=False, or by shardc.export", convs, convs == 1 ? "" : "s", str_escape(im->arena,
			ESCAPE_IR, im->computed_convs.at[0]));
}

/* Reports what remains to be said of initializers once all nodes are imported. */
static void end_roles(Import *im, const ParamsPrint *print)
{
	if (im->trainable)
		trainable_check(im);
	modes_report(im);
	if (print)
		report_print(im, print);
	if (im->o->say_roles || im->o->graph.strict_params)
		report_roles(im);
}

/* Warns of options for kinds of nodes that the model does not have. */
static void warn_idle(const Import *im)
{
	if (im->o->graph.loops != LOOPS_AUTO && !im->n_loops)
		diag_warn(im->d, "--loops", "the model has no Loop or Scan node: nothing changes");
	const FrontendOptions *o = im->o;
	if (o->graph.dropout != DROPOUT_AUTO && !im->n_dropout_nodes)
		diag_warn(im->d, "--dropout", "the model has no Dropout node: it is not used");
	if (o->graph.bn.all != NORM_AUTO && !im->n_batch_norms)
		diag_warn(im->d, "--bn", "the model has no batch norm: it is not used");
	if (o->graph.bn_biased && !im->n_batch_norms)
		diag_warn(im->d, "--bn-biased-var", "the model has no batch norm: it is not used");
}

Module *import_model(OnnxModel *onnx, const FrontendOptions *o, Arena *a, const ImportExtra *extra, Diag *d)
{
	const char *slash = strrchr(onnx->path, '/'), *base = slash ? slash + 1 : onnx->path;
	const char *dot = strrchr(base, '.');
	Module *m = ir_module_new(dot && dot > base ? arena_strndup(a, base, (size_t)(dot - base)) : base);
	Import im = {.m = m, .onnx = onnx, .o = o, .d = d, .arena = a, .refusals = map_new(a),
		.weights = map_new(a), .inner = ptrmap_new(a), .samples = samples_new(m, a, false), .given = ptrmap_new(a),
		.pseudo = ptrmap_new(a), .written = ptrmap_new(a)};
	Frame top = {.values = map_new(a), .prefix = "", .scope = ""};
	int before = d->errors;
	m->file = ir_intern(m, onnx->path);
	im.b = (Builder){.m = m, .section = SEC_FORWARD, .diag = d};
	im.eval = eval_new(m, a);
	eval_set_round(im.eval, true);
	im.pytorch = !strncmp(onnx->producer, "pytorch", 7);
	index_tables(&im);
	im.max_inlined = inlined_limit(onnx);
	check_opsets(&im);
	inputs_import(&im, &top);
	import_mark(&im, NULL);
	im.meta = metadata_read(onnx, a, d);
	im.signature = names_of_signature(&onnx->graph, a);
	im.arguments = names_of_arguments(im.signature, a);
	if ((onnx->n_metadata && !im.meta) || !shadows_rename(&im) || !modes_survey(&im)) {
		ir_module_free(m);
		return NULL;
	}
	if (o->graph.trainable)
		trainable_read(&im, o->graph.trainable);
	params_classify(&im);
	import_nodes(&im, &top, onnx->graph.nodes.n, onnx->graph.nodes.at);
	refusals_report(&im);
	warn_folded(&im);
	norms_end(&im);
	import_outputs(&im, &top);
	drop_unused(m);
	if (d->errors == before) {
		draws_resolve(&im);
		masks_resolve(&im);
		drop_unused(m);
		draws_report(&im);
	}
	warn_idle(&im);
	end_roles(&im, extra ? extra->print : NULL);
	if (extra && extra->absent)
		params_absent(&im, extra->absent);
	if (extra && extra->places)
		*extra->places = im.places;
	if (d->errors == before)
		return m;
	ir_module_free(m);
	return NULL;
}

bool onnx_params(const char *path, const FrontendOptions *o, const ParamsPrint *to, Diag *d)
{
	Arena *a = arena_new();
	OnnxModel *onnx = onnx_model_open(path, a, d);
	Module *m = onnx ? import_model(onnx, o, a, &(ImportExtra){.print = to}, d) : NULL;
	if (m)
		ir_module_free(m);
	onnx_model_close(onnx);
	arena_free(a);
	return m != NULL;
}

Module *onnx_load(const char *path, const FrontendOptions *o, Diag *d)
{
	Arena *a = arena_new();
	OnnxModel *onnx = onnx_model_open(path, a, d);
	Module *m = onnx ? import_model(onnx, o, a, NULL, d) : NULL;
	onnx_model_close(onnx);
	arena_free(a);
	return m;
}
