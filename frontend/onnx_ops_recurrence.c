/* frontend/onnx_ops_recurrence.c: RNN, GRU and LSTM.
 *
 * Each direction becomes a product of all steps with W, which adds the biases, and an op that goes through the steps.
 * With layout 1 tensors are transposed around them.  An initial state of known zeros is left out, and so are lengths
 * that are known to be all of the steps. */
#include "frontend/onnx_import.h"
#include "ir/recurrence.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <strings.h>

/* Operands of the three nodes; P and the initial c of an LSTM alone. */
enum { IN_X, IN_W, IN_R, IN_B, IN_LENGTHS, IN_H, IN_C, IN_P };
enum { DIRECTIONS = 2 };

typedef struct Layer {
	Cell cell;
	int gates, acts, n_dirs;
	bool first_backward, after;
	int64_t layout, t, b, i, h;
	Value *x, *lengths;        /* [T,B,I]; [B] or NULL */
	Attr *attrs[DIRECTIONS];
} Layer;

/* ---- activations ---- */

/* Reads the next number of a list; without one it is `otherwise`, INFINITY: the node must give it. */
static bool next_number(Node *n, const char *list, const char *act, size_t *at, double otherwise, double *out)
{
	const Onnx__AttributeProto *a = node_attr(n, list);
	*out = 0;
	if (isnan(otherwise))
		return true;
	*out = a && *at < a->n_floats ? (double)a->floats[(*at)++] : otherwise;
	return isfinite(*out) || node_error(n, "%s has no number for %s", list, act);
}

static bool find_activation(Node *n, const char *name, Activation *out)
{
	for (int a = 0; a < ACT_COUNT; a++)
		if (!strcasecmp(activation_info[a].onnx, name)) {
			*out = (Activation)a;
			return true;
		}
	Buf all = {0};
	for (int a = 0; a < ACT_COUNT; a++)
		buf_printf(&all, "%s%s", a ? ", " : "", activation_info[a].onnx);
	node_error(n, "there is no activation \"%s\"; there are %s", str_escape(n->im->arena, ESCAPE_IR, name), all.at);
	buf_free(&all);
	return false;
}

/* Appends activation i of a direction, with its numbers, to the lists. */
static bool add_activation(Node *n, const Onnx__AttributeProto *given, int i, size_t *alphas, size_t *betas,
	const char **acts, double *alpha, double *beta)
{
	Activation act;
	const char *name = wire_str(n->im->arena, (Span){given->strings[i].data, given->strings[i].len});
	if (!find_activation(n, name, &act))
		return false;
	const ActivationInfo *info = &activation_info[act];
	*acts = arena_printf(n->b->m->arena, "%s%s%s", *acts, **acts ? "," : "", info->text);
	if (!next_number(n, "activation_alpha", name, alphas, info->alpha, alpha)
			|| !next_number(n, "activation_beta", name, betas, info->beta, beta))
		return false;
	bool slope = act == ACT_ELU || act == ACT_LEAKY_RELU || act == ACT_THRESHOLDED_RELU;
	return !slope || *alpha >= 0
		|| node_refuse(n, "%s with alpha %g: it may not be below 0 in a recurrent cell", info->onnx, *alpha);
}

static bool read_activations(Node *n, Layer *l)
{
	const Onnx__AttributeProto *given = node_attr(n, "activations");
	const Onnx__AttributeProto *a = node_attr(n, "activation_alpha"), *b = node_attr(n, "activation_beta");
	size_t alphas = 0, betas = 0;
	Module *m = n->b->m;
	if (given && (int)given->n_strings != l->n_dirs * l->acts)
		return node_error(n, "%zu activations, expected %d for each of %d directions", given->n_strings, l->acts,
			l->n_dirs);
	for (int d = 0; d < l->n_dirs; d++) {
		const char *acts = given ? "" : cell_info[l->cell].defaults;
		double alpha[3] = {0}, beta[3] = {0};
		bool any_alpha = false, any_beta = false;
		for (int i = 0; given && i < l->acts; i++) {
			if (!add_activation(n, given, d * l->acts + i, &alphas, &betas, &acts, &alpha[i], &beta[i]))
				return false;
			any_alpha = any_alpha || alpha[i] != 0;
			any_beta = any_beta || beta[i] != 0;
		}
		Attr *list = attr_str(m, attr_str(m, NULL, "cell", cell_info[l->cell].text), "acts", acts);
		list = any_alpha ? attr_floats(m, list, "alpha", l->acts, alpha) : list;
		l->attrs[d] = any_beta ? attr_floats(m, list, "beta", l->acts, beta) : list;
	}
	if ((a && alphas < a->n_floats) || (b && betas < b->n_floats))
		return node_error(n, "activation_alpha or activation_beta has more numbers (%zu and %zu) than the activations "
			"take (%zu and %zu)", a ? a->n_floats : 0, b ? b->n_floats : 0, alphas, betas);
	return true;
}

/* ---- attributes and shapes ---- */

static bool read_direction(Node *n, Layer *l)
{
	const char *text = node_str(n, "direction", "forward");
	bool both = !strcmp(text, "bidirectional");
	l->first_backward = !strcmp(text, "reverse");
	l->n_dirs = both ? 2 : 1;
	return both || l->first_backward || !strcmp(text, "forward")
		|| node_error(n, "direction is \"%s\", expected forward, reverse or bidirectional",
			str_escape(n->im->arena, ESCAPE_IR, text));
}

static bool read_attributes(Node *n, Layer *l)
{
	Module *m = n->b->m;
	double clip = node_float(n, "clip", INFINITY);
	bool couple = l->cell == CELL_LSTM && node_int(n, "input_forget", 0);
	l->layout = node_int(n, "layout", 0);
	l->after = l->cell == CELL_GRU && node_int(n, "linear_before_reset", 0);
	if (!read_direction(n, l) || !read_activations(n, l))
		return false;
	if (l->layout != 0 && l->layout != 1)
		return node_error(n, "layout is %" PRId64 ", expected 0 or 1", l->layout);
	if (!(clip > 0))
		return node_error(n, "clip is %g, expected more than 0", clip);
	for (int d = 0; d < l->n_dirs; d++) {
		Attr *a = attr_int(m, l->attrs[d], "reverse", d == 1 || l->first_backward);
		a = isfinite(clip) ? attr_float(m, a, "clip", clip) : a;
		a = l->after ? attr_int(m, a, "after", 1) : a;
		l->attrs[d] = couple ? attr_int(m, a, "couple", 1) : a;
	}
	return true;
}

/* Checks an operand, which may be absent, against the dims that the others give. */
static bool want_dims(Node *n, int i, const char *what, int rank, const int64_t *dim)
{
	Value *v = node_in(n, i);
	Type want = type_tensor(v ? v->type.dtype : DT_F32, rank, dim);
	return !v || type_same_shape(&v->type, &want) || node_error(n, "operand %d (%s) is %s, expected %s", i, what,
		type_str(n->im->arena, &v->type), type_str(n->im->arena, &want));
}

static bool read_sizes(Node *n, Layer *l)
{
	const Type *x = &n->in[IN_X]->type, *r = &n->in[IN_R]->type;
	if (x->rank != 3 || r->rank != 3)
		return node_error(n, "X is %s and R is %s: both must have rank 3", type_str(n->im->arena, x),
			type_str(n->im->arena, r));
	l->t = x->dim[l->layout == 1];
	l->b = x->dim[l->layout == 0];
	l->i = x->dim[2];
	l->h = r->dim[2];
	int64_t said = node_int(n, "hidden_size", l->h), d = l->n_dirs, rows = l->gates * l->h;
	if (said != l->h || l->h < 1)
		return node_error(n, "hidden_size is %" PRId64 ", but R is %s", said, type_str(n->im->arena, r));
	if (l->t < 1)
		return node_error(n, "X is %s: it has no steps", type_str(n->im->arena, x));
	int64_t state[3] = {l->layout ? l->b : d, l->layout ? d : l->b, l->h};
	return want_dims(n, IN_W, "W", 3, (int64_t[]){d, rows, l->i}) && want_dims(n, IN_R, "R", 3,
		(int64_t[]){d, rows, l->h}) && want_dims(n, IN_B, "B", 2, (int64_t[]){d, 2 * rows})
		&& want_dims(n, IN_LENGTHS, "sequence_lens", 1, &l->b) && want_dims(n, IN_H, "initial_h", 3, state)
		&& want_dims(n, IN_C, "initial_c", 3, state) && want_dims(n, IN_P, "P", 2, (int64_t[]){d, 3 * l->h});
}

/* Lengths that are known are checked here, others when the program runs. */
static bool read_lengths(Node *n, Layer *l)
{
	Value *v = node_in(n, IN_LENGTHS);
	EvalTensor *known = v ? node_known(n, IN_LENGTHS) : NULL;
	bool all = known;
	if (v && v->type.dtype != DT_I32 && v->type.dtype != DT_I64)
		return node_error(n, "operand %d (sequence_lens) is %s, integers are wanted", (int)IN_LENGTHS,
			type_str(n->im->arena, &v->type));
	for (int64_t b = 0; known && b < l->b; b++) {
		if (known->i[b] < 0 || known->i[b] > l->t)
			return node_error(n, "sequence length %" PRId64 " of sample %" PRId64 " is outside 0..%" PRId64,
				known->i[b], b, l->t);
		all = all && known->i[b] == l->t;
	}
	l->lengths = all ? NULL : v;
	return true;
}

/* ---- what a direction reads ---- */

/* Part d of the first dim, without that dim. */
static Value *of_direction(Node *n, Value *v, int d)
{
	if (v && v->type.dim[0] != 1)
		v = emit_slice(n->b, v, 0, d, 1, 1);
	return v ? ir_reshape(n->b, v, v->type.rank - 1, v->type.dim + 1) : NULL;
}

static bool is_zero(Node *n, int i)
{
	const EvalTensor *t = node_in(n, i) ? node_known(n, i) : NULL;
	for (int64_t k = 0; t && k < type_numel(&t->type); k++)
		if (t->f[k] != 0)
			return false;
	return t;
}

/* The initial state [B,H] of a direction; NULL = zeros. */
static Value *initial(Node *n, const Layer *l, int i, int d)
{
	Value *v = node_in(n, i);
	if (!v || is_zero(n, i))
		return NULL;
	return of_direction(n, l->layout ? ir_transpose(n->b, v, (int[]){1, 0, 2}) : v, d);
}

static const Op *emit_direction(Node *n, const Layer *l, int d)
{
	Builder *b = n->b;
	int64_t rows = l->gates * l->h;
	Value *w = of_direction(n, n->in[IN_W], d), *r = of_direction(n, n->in[IN_R], d);
	Value *both = of_direction(n, node_in(n, IN_B), d), *of_x = NULL, *of_h = NULL;
	if (both) {
		of_x = emit_slice(b, both, 0, 0, rows, 1);
		of_h = emit_slice(b, both, 0, rows, rows, 1);
	}
	if (both && !l->after) { /* both are added to the same sum */
		of_x = emit_add(b, of_x, of_h);
		of_h = NULL;
	}
	Value *x = emit_matmul(b, l->x, w, of_x, false, true);
	Value *h0 = initial(n, l, IN_H, d), *c0 = initial(n, l, IN_C, d), *p = of_direction(n, node_in(n, IN_P), d);
	Value *in[REC_OPERANDS] = {x, r, h0, c0, l->lengths, of_h, p};
	return x->op ? ir_emit_op(b, OP_RECURRENCE, REC_OPERANDS, in, l->attrs[d], NULL) : NULL;
}

/* ---- what the node gives ---- */

/* [T,B,H] or [B,H] of each direction as ONNX orders them: [T,D,B,H] or [D,B,H]; in layout 1 [B,T,D,H] or [B,D,H]. */
static Value *join(Node *n, const Layer *l, Value *const *dir)
{
	const Type *t = &dir[0]->type;
	int steps = t->rank == 3, axis = l->layout ? steps + 1 : steps, rank = t->rank + 1;
	Value *all[DIRECTIONS];
	for (int d = 0; d < l->n_dirs; d++) {
		Value *v = l->layout && steps ? ir_transpose(n->b, dir[d], (int[]){1, 0, 2}) : dir[d];
		int64_t dim[IR_MAX_RANK];
		for (int k = 0; k < rank; k++)
			dim[k] = k == axis ? 1 : v->type.dim[k - (k > axis)];
		all[d] = ir_reshape(n->b, v, rank, dim);
	}
	return l->n_dirs == 1 ? all[0] : emit_concat(n->b, l->n_dirs, all, axis);
}

/* PyTorch's modules have weights of another form: a tensor of the file that is W was made of them by folding. */
static void say_folded(Node *n)
{
	if (n->im->pytorch && n->in[IN_W]->op && n->in[IN_W]->op->kind == OP_PARAM)
		diag_warn(n->im->d, loc_where(n->im->m, n->b->loc), "the exporter folded weights of PyTorch's module into "
			"\"%s\" and others: they are trained, but in ONNX's form and under these names, so they do not go back "
			"into the module; export with shardc.export, do_constant_folding=False or optimize=False (docs/export.md)",
			n->in[IN_W]->op->sym->onnx ? n->in[IN_W]->op->sym->onnx : n->in[IN_W]->op->sym->name);
}

static bool import_layer(Node *n, Cell cell)
{
	Layer l = {.cell = cell, .gates = cell_info[cell].gates, .acts = cell_info[cell].acts};
	static const int result[] = {REC_Y, REC_H, REC_C};
	const Op *op[DIRECTIONS];
	if (!node_want(n, 3, cell == CELL_LSTM ? 8 : 6) || !read_attributes(n, &l) || !read_sizes(n, &l)
			|| !read_lengths(n, &l))
		return false;
	say_folded(n);
	l.x = l.layout ? ir_transpose(n->b, n->in[IN_X], (int[]){1, 0, 2}) : n->in[IN_X];
	if (n->n_out > (cell == CELL_LSTM ? 3 : 2))
		return node_error(n, "%d results, expected at most %d", n->n_out, cell == CELL_LSTM ? 3 : 2);
	for (int d = 0; d < l.n_dirs; d++)
		if (!(op[d] = emit_direction(n, &l, d)))
			return false;
	for (int i = 0; i < n->n_out; i++) {
		Value *dir[DIRECTIONS];
		for (int d = 0; d < l.n_dirs; d++)
			dir[d] = op[d]->out[result[i]];
		if (*n->proto->output[i])
			n->out[i] = join(n, &l, dir);
	}
	return true;
}

bool import_rnn(Node *n)
{
	return import_layer(n, CELL_RNN);
}

bool import_gru(Node *n)
{
	return import_layer(n, CELL_GRU);
}

bool import_lstm(Node *n)
{
	return import_layer(n, CELL_LSTM);
}
