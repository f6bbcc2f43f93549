/* frontend/onnx_ops_gradient.c: Gradient of ai.onnx.preview.training: dy/dx inside a model.
 *
 * The attributes name tensors of the graph: y, of one element, as a function of xs and zs.  The operands are the values
 * of xs and zs to differentiate at.  What lies between is emitted again from views of the operands, and differentiated
 * there by the rules that training uses; the copies that were not needed merge with the originals later.  What the
 * gradients become a part of is differentiated in its turn.  This file alone in frontend/ uses a pass, so that there is
 * one set of gradient rules.
 *
 * Warns of a y that is a mean over samples, or mixes them: then dy/dx of a sample depends on how many others its rank
 * has.  Refuses xs that depend on each other, a y of several elements, which the standard gives no meaning, draws of
 * random numbers between x and y, whose copies would be other draws, and gradients that need an op which has no
 * gradient itself. */
#include "frontend/onnx_params.h"
#include "frontend/onnx_pseudo.h"
#include "passes/passes.h"

#include <string.h>

typedef struct Leaves {
	int n_x, n;                /* xs come first, zs behind them */
	Value **named, **at;       /* what the names stand for; views of the operands */
	Value *y;
} Leaves;

static const char *quoted(Node *n, const char *name)
{
	return str_escape(n->im->arena, ESCAPE_IR, name);
}

/* Whether a node reads the parameter under the name of another initializer, which is not the tensor that is named. */
static bool has_other_name(const Import *im, const Weight *w, const Symbol *s)
{
	for (int i = 0; i < im->places.n; i++)
		if (im->places.at[i].symbol == s && im->places.at[i].tensor != w->t)
			return true;
	return false;
}

/* An initializer, which each node reads for itself: as a parameter or buffer it is known by its symbol. */
static Value *named_weight(Node *n, const Weight *w, const char *list, const char *name, int i)
{
	Value *v = n->in[i];
	if (strcmp(n->proto->input[i], name) != 0)
		node_refuse(n, "%s names the initializer \"%s\", but operand %d is \"%s\": give it the "
			"initializer itself", list, quoted(n, name), i, quoted(n, n->proto->input[i]));
	else if ((v->op->kind != OP_PARAM && v->op->kind != OP_READ) || has_other_name(n->im, w, v->op->sym))
		node_refuse(n, "%s names the initializer \"%s\", which is a constant, is shared under another name, or was "
			"transposed by the exporter: make it an input of the model, or a parameter of its own", list,
			quoted(n, name));
	else
		return v;
	return NULL;
}

/* What a name in an attribute stands for; i: its operand, -1 for y.  NULL after an error. */
static Value *named_value(Node *n, const char *list, const char *name, int i)
{
	const OnnxValue *ov = frame_find(n->frame, name);
	if (!ov) {
		node_error(n, "%s names \"%s\", which no input, initializer or node before this one makes", list,
			quoted(n, name));
		return NULL;
	}
	if (ov->w && i < 0) {
		node_refuse(n, "%s is the initializer \"%s\": it is computed from nothing", list, quoted(n, name));
		return NULL;
	}
	Value *v = ov->w ? named_weight(n, ov->w, list, name, i) : ov->v;
	if (v == &n->im->m->poison)
		return NULL; /* was reported where it failed */
	if (v && pseudo_is(n->im, v)) {
		node_refuse(n, "%s names \"%s\", which is a sequence or optional: tensors are wanted", list, quoted(n, name));
		return NULL;
	}
	return v;
}

static bool read_list(Node *n, const char *list, const Onnx__AttributeProto *a, Leaves *l, int from)
{
	for (int k = 0; a && k < (int)a->n_strings; k++) {
		int i = from + k;
		const char *name = wire_str(n->im->arena, (Span){a->strings[k].data, a->strings[k].len});
		if (!n->in[i])
			return node_error(n, "operand %d, the value of \"%s\", is missing", i, quoted(n, name));
		Value *v = l->named[i] = named_value(n, list, name, i);
		if (!v)
			return false;
		if (!type_equal(&v->type, &n->in[i]->type))
			return node_error(n, "operand %d is %s, but \"%s\" is %s", i, type_str(n->im->arena, &n->in[i]->type),
				quoted(n, name), type_str(n->im->arena, &v->type));
		if (i < l->n_x && !dtype_is_float(v->type.dtype))
			return node_error(n, "xs names \"%s\", which is %s: floats have gradients, integers do not (name it in zs)",
				quoted(n, name), type_str(n->im->arena, &v->type));
		for (int j = 0; j < i; j++)
			if (l->named[j] == v || (v->op->sym && l->named[j]->op->sym == v->op->sym))
				return node_error(n, "\"%s\" is named twice in xs and zs", quoted(n, name));
	}
	return true;
}

static bool read_names(Node *n, Leaves *l)
{
	const Onnx__AttributeProto *xs = node_attr(n, "xs"), *zs = node_attr(n, "zs");
	const char *y = node_str(n, "y", "");
	l->n_x = xs ? (int)xs->n_strings : 0;
	l->n = l->n_x + (zs ? (int)zs->n_strings : 0);
	if (l->n_x < 1)
		return node_error(n, "xs names no tensor");
	if (n->n_in != l->n || n->n_out > l->n_x)
		return node_error(n, "%d operands and %d results: xs and zs name %d tensors, which are the operands, and xs "
			"%d, which have a result each", n->n_in, n->n_out, l->n, l->n_x);
	l->named = NEW_N(n->im->arena, Value *, l->n);
	l->at = NEW_N(n->im->arena, Value *, l->n);
	if (!read_list(n, "xs", xs, l, 0) || !read_list(n, "zs", zs, l, l->n_x) || !(l->y = named_value(n, "y", y, -1)))
		return false;
	if (!dtype_is_float(l->y->type.dtype))
		return node_error(n, "y, \"%s\", is %s: it must be a float", quoted(n, y), type_str(n->im->arena, &l->y->type));
	return type_numel(&l->y->type) == 1 || node_refuse(n, "y, \"%s\", is %s: the gradient of several numbers is not "
		"one tensor; sum them up first (ReduceSum)", quoted(n, y), type_str(n->im->arena, &l->y->type));
}

/* ---- the graph between ---- */

/* Whether the named tensors are independent of each other, as the standard wants them. */
static bool check_independent(Node *n, const Leaves *l, const PtrMap *leaf)
{
	bool *depends = NEW_N(n->im->arena, bool, n->im->m->n_values);
	for (const Op *op = n->im->m->first[SEC_FORWARD]; op != l->at[0]->op; op = op->next) {
		bool any = false;
		for (int i = 0; i < op->n_in; i++)
			any = any || (op_in(op, i) && depends[op_in(op, i)->id]);
		for (int i = 0; i < op->n_out; i++) {
			if (any && ptrmap_get(leaf, op->out[i]))
				return node_error(n, "\"%s\" is computed from another tensor in xs and zs: they must be independent",
					quoted(n, op->out[i]->name));
			depends[op->out[i]->id] = any || ptrmap_get(leaf, op->out[i]);
		}
	}
	return true;
}

/* Marks what y is computed from, back to the tensors that are named. */
static bool *find_between(Node *n, const Leaves *l, const PtrMap *leaf)
{
	bool *needed = NEW_N(n->im->arena, bool, n->im->m->n_values);
	needed[l->y->id] = true;
	for (const Op *op = l->y->op; op; op = op->prev) {
		bool any = false;
		for (int i = 0; i < op->n_out; i++)
			any = any || (needed[op->out[i]->id] && !ptrmap_get(leaf, op->out[i]));
		for (int i = 0; any && i < op->n_in; i++)
			if (op_in(op, i))
				needed[op_in(op, i)->id] = true;
	}
	return needed;
}

/* Copies an op that depends on a leaf, unless all its results that are needed are leaves. */
static bool copy_op(Node *n, const Op *op, const bool *needed, PtrMap *now)
{
	Value **leaf = NEW_N(n->im->arena, Value *, op->n_out + 1);
	bool depends = false, wanted = false;
	for (int i = 0; i < op->n_in; i++)
		depends = depends || (op_in(op, i) && ptrmap_get(now, op_in(op, i)));
	for (int i = 0; i < op->n_out; i++) {
		leaf[i] = ptrmap_get(now, op->out[i]);
		wanted = wanted || (needed[op->out[i]->id] && !leaf[i]);
	}
	if (!depends || !wanted)
		return true;
	if (op_draws(op))
		return node_refuse(n, "%s between x and y draws random numbers: such gradients in a model are not supported",
			op_info[op->kind].text);
	if (!import_charge(n, 1))
		return false;
	const Loc *loc = n->b->loc;
	n->b->loc = op->loc;
	ir_clone(n->b, op, now);
	n->b->loc = loc;
	for (int i = 0; i < op->n_out; i++)
		if (leaf[i])
			ptrmap_put(now, op->out[i], leaf[i]);
	return true;
}

/* Emits what lies between again, from views of the operands; the result is the y of these.  NULL after an error. */
static Value *copy_between(Node *n, Leaves *l)
{
	Module *m = n->im->m;
	PtrMap *now = ptrmap_new(n->im->arena);
	for (int i = 0; i < l->n; i++) {
		const Type *t = &n->in[i]->type;
		l->at[i] = ir_emit(n->b, OP_RESHAPE, 1, &n->in[i], attr_ints(m, NULL, "shape", t->rank, t->dim));
		ptrmap_put(now, l->named[i], l->at[i]);
	}
	/* all reads of a parameter or buffer that is named */
	for (const Op *op = m->first[SEC_FORWARD]; op; op = op->next)
		for (int i = 0; op->sym && op->n_out == 1 && i < l->n; i++)
			if (l->named[i]->op->sym == op->sym)
				ptrmap_put(now, op->out[0], l->at[i]);
	const bool *needed = find_between(n, l, now);
	bool ok = check_independent(n, l, now);
	const Op *end = l->at[0]->op;
	for (const Op *op = m->first[SEC_FORWARD]; ok && op != end; op = op->next)
		ok = copy_op(n, op, needed, now);
	Value *y = ptrmap_get(now, l->y);
	return !ok ? NULL : y ? y : l->y;
}

static void check_samples(Node *n, const Value *y)
{
	const SampleScan *scan = n->im->samples;
	Samples of = n->im->m->batch > 0 ? samples_of(n->im->samples, y) : (Samples){0};
	bool mean = of.kind == SAMPLES_MEAN || (of.kind == SAMPLES_SUM && samples_is_scaled_by_batch(scan, &of));
	if (mean || of.kind == SAMPLES_LOST || of.mixes)
		diag_warn(n->im->d, loc_where(n->im->m, n->b->loc), "y %s: the gradient of a sample depends on how many "
			"samples a rank and micro-batch have, so other numbers of ranks train differently; let y be a sum over "
			"samples",
			mean ? "is a mean over samples" : "may mix samples");
}

bool import_gradient(Node *n)
{
	Leaves l = {0};
	if (!read_names(n, &l))
		return false;
	Value *y = copy_between(n, &l), **dx = NEW_N(n->im->arena, Value *, l.n_x);
	if (!y)
		return false;
	const Op *lacks = NULL;
	if (!autodiff_inside(n->im->m, y, l.n_x, l.at, dx, &lacks, n->im->d))
		return lacks && node_refuse(n, "the gradient of node \"%s\" (%s) needs the op %s, which has no gradient "
			"itself, so no model may have it: write that node as its parts", quoted(n, lacks->loc->node),
			lacks->loc->onnx, op_info[lacks->kind].text);
	check_samples(n, y);
	for (int i = 0; i < n->n_out; i++)
		n->out[i] = dx[i] ? dx[i] : ir_emit_typed(n->b, OP_CONST, 0, NULL,
			attr_floats(n->b->m, NULL, "value", 1, (double[]){0}), n->in[i]->type);
	return true;
}
