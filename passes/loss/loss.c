/* passes/loss/loss.c: attaches the loss that --loss chooses, and derives the eval section.
 *
 * A loss is a sum and a weight that are reported together.  The step's loss is their quotient over all ranks and
 * micro-batches, so that a mean stays a mean when labels are ignored, or it is the sum of all losses (reduce.c).
 * The inputs that the loss needs (labels, target) are added to the module.  shift=1 does not cut the logits: the
 * labels move by one position, and the last one is ignored.
 * With --infer there is no loss: the forward moves to eval with its outputs.
 * Refuses outputs that do not exist or do not fit the loss, and unknown options. */
#include "base/near.h"
#include "passes/loss/loss.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct Spec {
	const char *output;   /* logits=NAME, output=NAME or output:NAME; NULL = the only one that fits */
	int64_t axis, ignore_index, shift;
	bool axis_given;
	double smoothing;
} Spec;

typedef struct Loss {
	Module *m;
	const Options *o;
	Diag *d;
	Builder b;
	Spec spec;
	/* results of the build function */
	Value *sum, *weight;
	Value *logits, *labels; /* of a cross-entropy: for the accuracy */
	int64_t n;              /* static element count */
	bool mean;              /* sum is one number per micro-batch, and these are averaged */
	bool counted;           /* every element of `target` counts */
	bool adds;              /* losses of ranks and micro-batches are added, not averaged */
} Loss;

typedef bool BuildFn(Loss *l, Op *output);
static bool build_cross_entropy(Loss *l, Op *output);
static bool build_mse(Loss *l, Op *output);
static bool build_l1(Loss *l, Op *output);
static bool build_bce(Loss *l, Op *output);
static bool build_output(Loss *l, Op *output);

/* One kind of loss.  keys: the keys that may follow the colon; none = a name follows it. */
typedef struct LossKind { const char *name; BuildFn *build; const char *keys, *usage; } LossKind;
static const LossKind kinds[] = {
	{"cross_entropy", build_cross_entropy, "logits axis ignore_index label_smoothing shift",
		"cross_entropy[:logits=NAME,axis=-1,ignore_index=-100,label_smoothing=0,shift=0]"},
	{"mse", build_mse, "output", "mse[:output=NAME]"},
	{"l1", build_l1, "output", "l1[:output=NAME]"},
	{"bce_with_logits", build_bce, "output", "bce_with_logits[:output=NAME]"},
	{"output", build_output, "", "output:NAME"},
};

/* ---- reading --loss ---- */

static const char *usage(Arena *a)
{
	const char *s = "";
	for (int i = 0; i < COUNT_OF(kinds); i++)
		s = arena_printf(a, "%s%s%s", s, i ? " | " : "", kinds[i].usage);
	return s;
}

static bool bad_option(Loss *l, const char *text, const LossKind *kind, const char *why)
{
	diag_error(l->d, "--loss", "\"%s\": %s; accepted: %s", text, why,
		kind ? kind->usage : usage(l->m->arena));
	return false;
}

static bool is_word_of(const char *list, const char *word)
{
	size_t n = strlen(word);
	for (const char *s = list; *s; s += strspn(s, " ")) {
		size_t k = strcspn(s, " ");
		if (k == n && !memcmp(s, word, n))
			return true;
		s += k;
	}
	return false;
}

static bool read_int(const char *text, int64_t *out)
{
	char *end;
	errno = 0;
	long long v = strtoll(text, &end, 10);
	*out = v;
	return !errno && end != text && !*end;
}

static bool read_float(const char *text, double *out)
{
	char *end;
	*out = strtod(text, &end);
	return end != text && !*end;
}

static bool set_key(Loss *l, const LossKind *kind, const char *key, const char *value)
{
	const char *text = arena_printf(l->m->arena, "%s=%s", key, value);
	Spec *s = &l->spec;
	if (!is_word_of(kind->keys, key))
		return bad_option(l, key, kind, "unknown key");
	if (!strcmp(key, "logits") || !strcmp(key, "output")) {
		s->output = value;
		return *value || bad_option(l, text, kind, "a name is missing");
	}
	if (!strcmp(key, "label_smoothing"))
		return (read_float(value, &s->smoothing) && s->smoothing >= 0 && s->smoothing <= 1)
			|| bad_option(l, text, kind, "not a number from 0 to 1");
	if (!strcmp(key, "shift"))
		return (read_int(value, &s->shift) && (s->shift == 0 || s->shift == 1))
			|| bad_option(l, text, kind, "not 0 or 1");
	s->axis_given = s->axis_given || !strcmp(key, "axis");
	return read_int(value, !strcmp(key, "axis") ? &s->axis : &s->ignore_index)
		|| bad_option(l, text, kind, "not an integer");
}

/* KEY=VALUE,.. */
static bool read_keys(Loss *l, const LossKind *kind, const char *text)
{
	Arena *a = l->m->arena;
	Map *seen = map_new(a);
	while (*text) {
		size_t n = strcspn(text, ","), k = strcspn(text, "=");
		if (k >= n)
			return bad_option(l, arena_strndup(a, text, n), kind, "not of the form key=value");
		const char *key = arena_strndup(a, text, k);
		if (map_has(seen, key))
			return bad_option(l, key, kind, "given twice");
		map_put(seen, key, NULL);
		if (!set_key(l, kind, key, arena_strndup(a, text + k + 1, n - k - 1)))
			return false;
		text += n + (text[n] == ',');
	}
	return true;
}

static const LossKind *read_spec(Loss *l)
{
	const char *text = l->o->graph.loss;
	size_t n = strcspn(text, ":");
	l->spec = (Spec){.axis = -1, .ignore_index = -100};
	for (int i = 0; i < COUNT_OF(kinds); i++) {
		if (strlen(kinds[i].name) != n || memcmp(kinds[i].name, text, n))
			continue;
		const char *rest = text[n] ? text + n + 1 : "";
		if (*kinds[i].keys)
			return read_keys(l, &kinds[i], rest) ? &kinds[i] : NULL;
		l->spec.output = rest;
		return *rest || bad_option(l, text, &kinds[i], "a name is missing") ? &kinds[i] : NULL;
	}
	const char *names[COUNT_OF(kinds)];
	for (int i = 0; i < COUNT_OF(kinds); i++)
		names[i] = kinds[i].name;
	Arena *a = l->m->arena;
	bad_option(l, text, NULL, arena_printf(a, "not a loss%s", near_hint(a, "--loss", arena_strndup(a, text, n), names,
		COUNT_OF(names))));
	return NULL;
}

bool loss_shifts(Module *m, const Options *o, Diag *d)
{
	Loss l = {.m = m, .o = o, .d = d};
	return o->graph.loss && read_spec(&l) && l.spec.shift;
}

/* ---- choosing the output ---- */

static const char *module_where(const Module *m)
{
	return m->file ? m->file : m->name;
}

static bool is_float_output(const Op *op)
{
	return op->kind == OP_OUTPUT && dtype_is_float(op_in(op, 0)->type.dtype);
}

static void list_outputs(Loss *l)
{
	int n = 0;
	IR_FOR_OPS(l->m, SEC_FORWARD, op) {
		if (op->kind != OP_OUTPUT)
			continue;
		diag_note(l->d, module_where(l->m), "output \"%s\" %s", op->sym->name,
			type_str(l->m->arena, &op_in(op, 0)->type));
		n++;
	}
	if (!n)
		diag_note(l->d, module_where(l->m), "the graph has no outputs");
}

/* The output that was named, else the only float output, else the one called logits. */
static Op *choose_output(Loss *l)
{
	const char *name = l->spec.output;
	Op *found = NULL, *logits = NULL;
	int n = 0;
	IR_FOR_OPS(l->m, SEC_FORWARD, op) {
		if (op->kind != OP_OUTPUT)
			continue;
		bool named = name && (!strcmp(op->sym->name, name) || !strcmp(op->sym->onnx, name));
		if (name ? named : is_float_output(op)) {
			found = op;
			n++;
		}
		if (is_float_output(op) && !strcmp(op->sym->name, "logits"))
			logits = op;
	}
	if (found && !is_float_output(found))
		diag_error(l->d, "--loss", "output \"%s\" is not of floats", name);
	else if (n == 1)
		return found;
	else if (n > 1 && logits)
		return logits;
	else if (name)
		diag_error(l->d, "--loss", "the graph has no output \"%s\"", name);
	else
		diag_error(l->d, "--loss", "%d outputs of floats to choose from: say which by %s", n,
			"logits=NAME or output=NAME");
	list_outputs(l);
	return NULL;
}

/* The default without --loss: output:NAME of the only float output, if that is a scalar. */
static const LossKind *default_loss(Loss *l)
{
	const Op *only = NULL;
	int n = 0;
	IR_FOR_OPS(l->m, SEC_FORWARD, op) {
		if (is_float_output(op)) {
			only = op;
			n++;
		}
	}
	if (n == 1 && type_numel(&op_in(only, 0)->type) == 1) {
		l->spec = (Spec){.output = only->sym->name};
		return &kinds[COUNT_OF(kinds) - 1];
	}
	diag_error(l->d, module_where(l->m), "the graph does not end in one scalar, so the loss must be chosen: "
		"--loss=%s", usage(l->m->arena));
	list_outputs(l);
	return NULL;
}

/* ---- inputs that the loss needs ---- */

/* Adds an input `name` of type t with one entry for each entry of an output.  For an output that merged samples
 * with their positions ([B*T,..]) the input is [B,T,..]. */
static Value *loss_input(Loss *l, const char *name, Type t)
{
	Module *m = l->m;
	Type fed = t;
	Symbol *s = ir_find_symbol(m, name);
	if (!m->batch)
		m->batch = t.dim[0];
	if (t.dim[0] % m->batch || (t.dim[0] != m->batch && t.rank == IR_MAX_RANK)) {
		diag_error(l->d, "--loss", "input \"%s\" %s cannot be fed by sample: the first dimension of the "
			"output is no multiple of the batch %lld", name, type_str(m->arena, &t), (long long)m->batch);
		return NULL;
	}
	if (t.dim[0] != m->batch) {
		memmove(fed.dim + 1, t.dim, sizeof(int64_t) * (size_t)t.rank);
		fed.rank = t.rank + 1;
		fed.dim[0] = m->batch;
		fed.dim[1] = t.dim[0] / m->batch;
	}
	if (s && (s->kind != SYM_INPUT || !type_equal(&s->type, &fed))) {
		diag_error(l->d, "--loss", "the loss needs an input \"%s\" %s, but the graph has one of type %s",
			name, type_str(m->arena, &fed), type_str(m->arena, &s->type));
		return NULL;
	}
	if (!s) {
		s = ir_add_symbol(m, SYM_INPUT, name, fed);
		s->batched = true;
	}
	return ir_reshape(&l->b, ir_read(&l->b, s), t.rank, t.dim);
}

/* The token ids that the model reads: the integer input shaped like the labels. */
static Value *token_input(Loss *l, const Type *labels)
{
	Module *m = l->m;
	Op *found = NULL;
	int n = 0;
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		if (op->kind != OP_INPUT || dtype_is_float(op->sym->type.dtype) || op->sym->type.dtype == DT_BOOL
				|| !type_same_shape(&op->sym->type, labels))
			continue;
		bool named = !strcmp(op->sym->name, "input_ids");
		if (named || !n)
			found = op;
		n = named ? 1 : n + 1;
		if (named)
			break;
	}
	if (n == 1)
		return ir_cast(&l->b, found->out[0], DT_I64);
	Type wanted = *labels;
	wanted.dtype = DT_I64;
	diag_error(l->d, "--loss", "shift=1 takes its labels from the integer input %s: the graph has %s",
		type_str(m->arena, &wanted), n ? "several, and none is called input_ids" : "none");
	return NULL;
}

/* The labels moved one position earlier; the last position of each sample is ignored. */
static Value *shifted_labels(Loss *l, const Type *labels)
{
	Builder *b = &l->b;
	Module *m = l->m;
	int64_t start[IR_MAX_RANK] = {0}, step[IR_MAX_RANK];
	Type size = *labels, last = *labels;
	if (labels->rank < 2 || labels->dim[labels->rank - 1] < 2) {
		diag_error(l->d, "--loss", "shift=1 wants logits of at least two positions per sample, got labels %s",
			type_str(m->arena, labels));
		return NULL;
	}
	Value *tokens = token_input(l, labels);
	if (!tokens)
		return NULL;
	int axis = labels->rank - 1;
	for (int i = 0; i < labels->rank; i++)
		step[i] = 1;
	start[axis] = 1;
	size.dim[axis]--;
	last.dim[axis] = 1;
	Attr *attrs = attr_ints(m, NULL, "starts", size.rank, start);
	attrs = attr_ints(m, attrs, "sizes", size.rank, size.dim);
	attrs = attr_ints(m, attrs, "steps", size.rank, step);
	Value *part[2] = {ir_emit(b, OP_SLICE, 1, &tokens, attrs)};
	last.dtype = DT_I64;
	attrs = attr_ints(m, NULL, "value", 1, &l->spec.ignore_index);
	part[1] = ir_emit_typed(b, OP_CONST, 0, NULL, attrs, last);
	return ir_emit(b, OP_CONCAT, 2, part, attr_int(m, NULL, "axis", axis));
}

/* ---- the losses ---- */

/* Warns when the output already went through the activation that the loss applies: it would train, but not what was
 * meant. */
static void warn_activated(Loss *l, const Op *output, OpKind activation)
{
	if (op_in(output, 0)->op->kind == activation)
		diag_warn(l->d, "--loss", "output \"%s\" is the result of a %s, which the loss applies again: give the "
			"output before it", output->sym->name, op_info[activation].text);
}

/* The logits as they were stored: `precision` casts 16-bit logits to f32 only for the output. */
static Value *as_stored(Value *logits)
{
	const Op *op = logits->op;
	bool cast = op->kind == OP_CAST && !strcmp(op->loc->role, "precision");
	return cast && dtype_is_half(op_in(op, 0)->type.dtype) ? op_in(op, 0) : logits;
}

/* Whether the class axis is clear: [B,C,H,W], as PyTorch has it, and [B,T,V], with the classes last, look alike. */
static bool check_axis(const Loss *l, const Op *output, const Value *logits)
{
	const Type *t = &logits->type;
	if (l->spec.axis_given || l->spec.shift || t->rank < 3 || loss_classes_are_last(l->m, logits))
		return true;
	diag_error(l->d, "--loss", "cross_entropy: which axis of output \"%s\" %s counts the classes?  axis 1 (%lld "
		"classes; PyTorch's cross_entropy takes it): --loss=cross_entropy:axis=1; the last one (%lld classes): "
		"--loss=cross_entropy:axis=-1", output->sym->name, type_str(l->m->arena, t), (long long)t->dim[1],
		(long long)t->dim[t->rank - 1]);
	return false;
}

static Value *classes_last(Loss *l, Value *logits)
{
	int rank = logits->type.rank, perm[IR_MAX_RANK], n = 0;
	int64_t axis = l->spec.axis < 0 ? l->spec.axis + rank : l->spec.axis;
	if (rank < 2 || axis < 0 || axis >= rank) {
		diag_error(l->d, "--loss", "axis=%lld is no axis of classes of logits %s (2 dimensions or more)",
			(long long)l->spec.axis, type_str(l->m->arena, &logits->type));
		return NULL;
	}
	for (int i = 0; i < rank; i++)
		if (i != axis)
			perm[n++] = i;
	perm[n] = (int)axis;
	if (logits->op->kind == OP_TRANSPOSE) { /* of what a layer made with the classes last, as [B,T,V]: as it was */
		const int64_t *was = attr_find(logits->op->attrs, "perm")->ints;
		for (int i = 0; i < rank; i++)
			perm[i] = (int)was[perm[i]];
		logits = op_in(logits->op, 0);
	}
	return ir_transpose(&l->b, logits, perm);
}

/* Rows of logits may be read in any order with their labels.  If the leading dims of logits are transposed, as behind a
 * recurrent layer, the labels are transposed instead, which are far fewer numbers. */
static void transpose_labels(Loss *l)
{
	int perm[IR_MAX_RANK], rank = l->logits->type.rank;
	const Attr *was = l->logits->op->kind == OP_TRANSPOSE ? attr_find(l->logits->op->attrs, "perm") : NULL;
	if (!was || was->ints[rank - 1] != rank - 1)
		return;
	for (int i = 0; i < rank - 1; i++)
		perm[was->ints[i]] = i;
	l->logits = op_in(l->logits->op, 0);
	l->labels = ir_transpose(&l->b, l->labels, perm);
}

/* sum of -log softmax(logits)[label] over valid labels, and their number */
static bool build_cross_entropy(Loss *l, Op *output)
{
	Module *m = l->m;
	warn_activated(l, output, OP_SOFTMAX);
	l->logits = classes_last(l, as_stored(op_in(output, 0)));
	if (!l->logits || !check_axis(l, output, op_in(output, 0)))
		return false;
	Type t = l->logits->type;
	t.rank--;
	t.dtype = DT_I64;
	l->n = type_numel(&t);
	l->labels = l->spec.shift ? shifted_labels(l, &t) : loss_input(l, "labels", t);
	if (!l->labels)
		return false;
	transpose_labels(l);
	Attr *attrs = attr_int(m, NULL, "ignore_index", l->spec.ignore_index);
	attrs = attr_float(m, attrs, "smoothing", l->spec.smoothing);
	Op *op = ir_emit_op(&l->b, OP_CROSS_ENTROPY, 2, (Value *[]){l->logits, l->labels}, attrs, NULL);
	l->sum = op->out[0];
	l->weight = op->out[1];
	return true;
}

static bool add_up(Loss *l, Value *each)
{
	int64_t axes[IR_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
	l->n = type_numel(&each->type);
	if (dtype_info[each->type.dtype].bytes < 4)
		each = ir_cast(&l->b, each, DT_F32);
	l->sum = ir_reduce(&l->b, OP_REDUCE_SUM, each, each->type.rank, axes, false);
	l->weight = ir_const_float(&l->b, l->sum->type.dtype, (double)l->n);
	return true;
}

/* The model's output and, in *target, what it should be. */
static Value *against_target(Loss *l, Op *output, Value **target)
{
	Value *y = op_in(output, 0);
	if (!y->type.rank) {
		diag_error(l->d, "--loss", "output \"%s\" is a scalar: --loss=output:%s takes it as the loss",
			output->sym->name, output->sym->name);
		return NULL;
	}
	*target = loss_input(l, "target", y->type);
	l->counted = true;
	return *target ? y : NULL;
}

/* sum of (y - t)^2 */
static bool build_mse(Loss *l, Op *output)
{
	Value *t, *y = against_target(l, output, &t);
	if (!y)
		return false;
	Value *e = ir_emit2(&l->b, OP_SUB, y, t);
	return add_up(l, ir_emit2(&l->b, OP_MUL, e, e));
}

/* sum of |y - t| */
static bool build_l1(Loss *l, Op *output)
{
	Value *t, *y = against_target(l, output, &t);
	return y && add_up(l, ir_emit1(&l->b, OP_ABS, ir_emit2(&l->b, OP_SUB, y, t)));
}

/* sum of -t log s(x) - (1 - t) log(1 - s(x)) = ln(1 + e^x) - x t */
static bool build_bce(Loss *l, Op *output)
{
	Value *t, *x = against_target(l, output, &t);
	if (!x)
		return false;
	warn_activated(l, output, OP_SIGMOID);
	Value *part = ir_emit1(&l->b, OP_SOFTPLUS, x);
	return add_up(l, ir_emit2(&l->b, OP_SUB, part, ir_emit2(&l->b, OP_MUL, x, t)));
}

static Op *made_by(Value *v, OpKind kind)
{
	while (v->op->kind == OP_RESHAPE || v->op->kind == OP_CAST)
		v = op_in(v->op, 0);
	return v->op->kind == kind ? v->op : NULL;
}

/* Takes a mean that the graph computes as a sum divided by a count of valid items: sum and count are reported
 * separately. */
static bool take_ratio(Loss *l, const Op *output)
{
	Value *y = op_in(output, 0);
	Op *div = made_by(y, OP_DIV), *ce = div ? made_by(op_in(div, 0), OP_CROSS_ENTROPY) : NULL;
	if (!div || l->o->graph.loss_reduce == LOSS_REDUCE_SUM)
		return false;
	if (ce && ce == made_by(op_in(div, 1), OP_CROSS_ENTROPY) && op_in(div, 0)->type.rank == 0) {
		l->sum = ce->out[0];
		l->weight = ce->out[1];
		l->logits = op_in(ce, 0);
		l->labels = op_in(ce, 1);
		l->spec.ignore_index = attr_get_int(ce->attrs, "ignore_index", -100);
		l->n = type_numel(&l->labels->type);
		return true;
	}
	if (type_numel(&op_in(div, 0)->type) != 1 || type_numel(&op_in(div, 1)->type) != 1
			|| !loss_is_ratio(l->m, output, op_in(div, 0), op_in(div, 1)))
		return false;
	l->sum = ir_reshape(&l->b, op_in(div, 0), 0, NULL);
	l->weight = ir_reshape(&l->b, op_in(div, 1), 0, NULL);
	l->n = MAX(l->m->batch, 1);
	return true;
}

/* The loss is a scalar output of the graph. */
static bool build_output(Loss *l, Op *output)
{
	Value *y = op_in(output, 0);
	if (type_numel(&y->type) != 1) {
		diag_error(l->d, "--loss", "output \"%s\" is %s, not a scalar", output->sym->name,
			type_str(l->m->arena, &y->type));
		return false;
	}
	if (take_ratio(l, output))
		return true;
	l->sum = ir_reshape(&l->b, y, 0, NULL);
	l->weight = ir_const_float(&l->b, DT_F32, 1);
	l->n = 1;
	l->adds = loss_adds(l->m, l->o, output, l->d);
	l->mean = !l->adds;
	return true;
}

/* ---- reporting ---- */

static void report(Loss *l, SectionKind s, Value *sum, Value *weight, bool mean)
{
	Builder b = l->b;
	b.section = s;
	if (s == SEC_EVAL)
		b.loc = loc_with_role(l->m, b.loc, "eval");
	sum = ir_cast(&b, sum, DT_F32);
	weight = ir_cast(&b, weight, DT_F32);
	Attr *attrs = attr_int(l->m, attr_int(l->m, NULL, "mean", mean), "n", mean || l->adds ? 1 : l->n);
	if (l->adds)
		attrs = attr_int(l->m, attrs, "adds", 1);
	ir_emit(&b, OP_REPORT_LOSS, 2, (Value *[]){sum, weight}, attrs);
}

static void report_eval(Loss *l, const PtrMap *copy)
{
	Builder b = l->b;
	b.section = SEC_EVAL;
	b.loc = loc_with_role(l->m, b.loc, "eval");
	report(l, SEC_EVAL, ptrmap_get(copy, l->sum), ptrmap_get(copy, l->weight), l->mean);
	if (l->labels) {
		Value *in[] = {ptrmap_get(copy, l->logits), ptrmap_get(copy, l->labels)};
		ir_emit(&b, OP_REPORT_ACC, 2, in, attr_int(l->m, NULL, "ignore_index", l->spec.ignore_index));
	}
}

/* With --loss-norm=rank each rank's loss is its own mean, and the step's loss is the mean of these. */
static void report_forward(Loss *l)
{
	bool rank = l->o->graph.loss_norm == LOSS_NORM_RANK;
	if (rank && !l->mean && !l->adds) {
		Value *least = ir_const_float(&l->b, l->weight->type.dtype, 1.17549435e-38); /* no label is valid */
		Value *count = ir_emit2(&l->b, OP_MAX, l->weight, least);
		Value *one = ir_const_float(&l->b, DT_F32, 1);
		report(l, SEC_FORWARD, ir_emit2(&l->b, OP_DIV, l->sum, count), one, true);
	} else {
		report(l, SEC_FORWARD, l->sum, l->weight, l->mean);
	}
}

static void remove_ops(Module *m, SectionKind s, bool outputs_only)
{
	for (Op *op = m->last[s], *prev; op; op = prev) {
		prev = op->prev;
		if (!outputs_only || op->kind == OP_OUTPUT)
			ir_remove(m, op);
	}
}

/* Warns that --loss-norm has no effect: where all ranks and micro-batches divide by the same count, the mean of
 * their means is the mean over all. */
static void check_norm(const Loss *l)
{
	bool rank = l->o->graph.loss_norm == LOSS_NORM_RANK;
	if (rank && !l->mean && !l->adds && l->weight->op->kind == OP_CONST)
		diag_warn(l->d, "--loss-norm", "each micro-batch of each rank counts %lld elements, none is left out, so the "
			"mean of their means is the mean over all: rank is not used", (long long)l->n);
}

/* The mean of an empty output is not a number. */
static bool check_elements(const Loss *l, const Op *output)
{
	const Type *t = &op_in(output, 0)->type;
	if (!type_numel(t))
		diag_error(l->d, "--loss", "output \"%s\" %s has no elements: a loss of it is no number; name another "
			"output, or export the model with dimensions above 0", output->sym->name, type_str(l->m->arena, t));
	return type_numel(t) > 0;
}

/* Refuses --loss-reduce=sum for means that ranks compute for themselves. */
static bool check_reduce(const Loss *l)
{
	bool rank = l->o->graph.loss_norm == LOSS_NORM_RANK;
	bool sum = l->o->graph.loss_reduce == LOSS_REDUCE_SUM;
	if (rank && sum)
		diag_error(l->d, "--loss-reduce", "sum adds the losses of ranks and micro-batches, --loss-norm=rank averages "
			"them: give one of them");
	return !rank || !sum;
}

/* Whether no loss is attached yet: a text may be one that this pass has made. */
static bool check_new(const Loss *l)
{
	IR_FOR_OPS(l->m, SEC_FORWARD, op)
		if (op->kind == OP_REPORT_LOSS) {
			diag_error(l->d, module_where(l->m), "the text reports a loss already, in \"report_loss\": pass loss adds "
				"another; name the passes behind it (--passes), or give a text without");
			return false;
		}
	return true;
}

static bool attach(Loss *l, Arena *scratch)
{
	Module *m = l->m;
	if (!check_new(l))
		return false;
	const LossKind *kind = l->o->graph.loss ? read_spec(l) : default_loss(l);
	Op *output = kind ? choose_output(l) : NULL;
	if (!output || !check_elements(l, output))
		return false;
	const Loc *loc = op_in(output, 0)->op->loc;
	l->b = (Builder){.m = m, .section = SEC_FORWARD, .loc = loc_new(m, loc->node, loc->onnx, "", "loss")};
	if (!check_reduce(l) || !kind->build(l, output))
		return false;
	l->adds = l->adds || l->o->graph.loss_reduce == LOSS_REDUCE_SUM;
	check_norm(l);
	loss_say_mixing(m, output, l->sum, l->d);
	PtrMap *copy = loss_clone_eval(m, scratch, false);
	report_eval(l, copy);
	report_forward(l);
	remove_ops(m, SEC_FORWARD, true);
	return true;
}

/* Freezes batch norms of a module that was read as text.  The frontend has done it for a model that it read. */
static bool freeze_norms(Module *m, const char *pattern, Diag *d)
{
	regex_t re;
	if (!pattern_compile(&re, pattern, "--bn", d))
		return false;
	int n = loss_fix_statistics(m, SEC_FORWARD, &re);
	regfree(&re);
	if (!n)
		diag_error(d, "--bn", "\"frozen:%s\" matches no batch norm that trains on the batch's statistics", pattern);
	return n > 0;
}

bool pass_loss(Module *m, const Options *o, Diag *d)
{
	Loss l = {.m = m, .o = o, .d = d};
	Arena *scratch = arena_new();
	bool ok = true;
	if (options_infer(o)) {
		loss_clone_eval(m, scratch, true);
		remove_ops(m, SEC_FORWARD, false);
	} else {
		ok = attach(&l, scratch);
	}
	if (!options_infer(o) || o->graph.dropout == DROPOUT_OFF) /* `shardc run` computes what the model says */
		loss_drop_dropout(m, SEC_EVAL);
	loss_fix_statistics(m, SEC_EVAL, NULL);
	if (ok && !options_infer(o))
		loss_mark_whole(m, d);
	if (ok && options_sizes(o))
		ok = loss_pads(m, o, l.counted, d);
	if (o->graph.dropout == DROPOUT_OFF)
		loss_drop_dropout(m, SEC_FORWARD);
	for (int i = 0; options_reads_text(o) && i < o->graph.bn.frozen.n; i++)
		ok = freeze_norms(m, o->graph.bn.frozen.at[i], d) && ok;
	if (o->graph.bn.all == NORM_FROZEN)
		loss_fix_statistics(m, SEC_FORWARD, NULL);
	arena_free(scratch);
	return ok;
}
