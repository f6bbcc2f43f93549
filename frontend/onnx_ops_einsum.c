/* frontend/onnx_ops_einsum.c: Einsum, taking one operand after the other, each step as one batched matmul.
 *
 * Labels are letters.  An ellipsis stands for labels of its own, aligned at the last dim.  Refuses terms with more than
 * IR_MAX_RANK labels. */
#include "frontend/onnx_import.h"

#include <ctype.h>
#include <string.h>

/* A tensor v with one label per dim.  Dims of an ellipsis have the labels '0', '1', .., counted from the last. */
typedef struct Term {
	char label[IR_MAX_RANK + 1];
	int n;
	Value *v;
} Term;

static bool add_label(Term *t, char c)
{
	if (t->n == IR_MAX_RANK)
		return false;
	t->label[t->n++] = c;
	t->label[t->n] = 0;
	return true;
}

/* Parses one term.  ellipsis: how many dims "..." stands for; -1 = as many as the rank leaves. */
static bool parse_term(const char **s, Term *t, int rank, int ellipsis)
{
	int letters = 0;
	for (const char *c = *s; *c && *c != ',' && *c != '-'; c++)
		letters += isalpha((unsigned char)*c) != 0;
	for (; **s && **s != ',' && **s != '-'; (*s)++) {
		if (isalpha((unsigned char)**s)) {
			if (!add_label(t, **s))
				return false;
		} else if (!strncmp(*s, "...", 3)) {
			int dims = ellipsis < 0 ? rank - letters : ellipsis;
			for (int i = dims - 1; i >= 0; i--)
				if (!add_label(t, (char)('0' + i)))
					return false;
			*s += 2;
		} else if (**s != ' ') {
			return false;
		}
	}
	return rank < 0 || t->n == rank;
}

/* The labels of the result where the equation does not give them: those that occur once, in alphabetical order. */
static void implicit_output(const Term *in, int n, Term *out)
{
	int count[128] = {0};
	for (int k = 0; k < n; k++)
		for (const char *c = in[k].label; *c; c++)
			count[(unsigned char)*c & 127]++;
	for (char c = '9'; c >= '0'; c--)
		if (count[(unsigned char)c])
			add_label(out, c);
	for (char c = 'A'; c <= 'z'; c++)
		if (isalpha((unsigned char)c) && count[(unsigned char)c] == 1)
			add_label(out, c);
}

static bool parse_equation(Node *n, Term *in, Term *out)
{
	const char *s = node_str(n, "equation", "");
	int ellipsis = 0;
	for (int k = 0; k < n->n_in; k++) {
		in[k].v = n->in[k];
		if (!parse_term(&s, &in[k], n->in[k]->type.rank, -1) || (k + 1 < n->n_in ? *s++ != ',' : *s == ','))
			return false;
		int dims = 0;
		for (const char *c = in[k].label; *c; c++)
			dims += isdigit((unsigned char)*c) != 0;
		ellipsis = MAX(ellipsis, dims);
	}
	if (!*s) {
		implicit_output(in, n->n_in, out);
		return true;
	}
	s += 2;
	return s[-2] == '-' && s[-1] == '>' && parse_term(&s, out, -1, ellipsis) && !*s;
}

static int find(const Term *t, char c)
{
	const char *at = c ? strchr(t->label, c) : NULL;
	return at ? (int)(at - t->label) : -1;
}

/* Transposes t to the given order of its labels. */
static void reorder(Builder *b, Term *t, const char *labels)
{
	int perm[IR_MAX_RANK];
	for (int i = 0; i < t->n; i++)
		perm[i] = find(t, labels[i]);
	t->v = ir_transpose(b, t->v, perm);
	memmove(t->label, labels, (size_t)t->n);
}

/* Takes the diagonal for each label that occurs twice in one term. */
static bool take_diagonals(Node *n, Term *t)
{
	Builder *b = n->b;
	for (int i = 0; i < t->n; i++) {
		int j = find(t, t->label[i]);
		if (j == i)
			continue;
		int64_t d = t->v->type.dim[i], dim[IR_MAX_RANK];
		if (t->v->type.dim[j] != d)
			return node_error(n, "label %c stands for dimensions of different size", t->label[i]);
		t->v = emit_move_axis(b, emit_move_axis(b, t->v, i, t->n - 1), j, t->n - 2);
		memcpy(dim, t->v->type.dim, sizeof(dim));
		dim[t->n - 2] = d * d;
		t->v = ir_reshape(b, t->v, t->n - 1, dim);
		t->v = emit_slice(b, t->v, t->n - 2, 0, d, d + 1);
		char c = t->label[i];
		memmove(t->label + i, t->label + i + 1, (size_t)(t->n - i));
		memmove(t->label + j, t->label + j + 1, (size_t)(t->n - j));
		t->n--;
		t->label[t->n - 1] = c;
		t->label[t->n] = 0;
		i = -1;
	}
	return true;
}

/* Sums over those labels that neither other operands nor the result have. */
static void sum_private(Builder *b, Term *t, const Term *others, int n_others, const Term *out)
{
	int64_t axes[IR_MAX_RANK];
	int n = 0;
	Term kept = {.n = 0};
	for (int i = 0; i < t->n; i++) {
		bool wanted = find(out, t->label[i]) >= 0;
		for (int k = 0; k < n_others; k++)
			wanted = wanted || find(&others[k], t->label[i]) >= 0;
		if (wanted)
			add_label(&kept, t->label[i]);
		else
			axes[n++] = i;
	}
	if (n)
		t->v = ir_reduce(b, OP_REDUCE_SUM, t->v, n, axes, false);
	memcpy(t->label, kept.label, sizeof(kept.label));
	t->n = kept.n;
}

typedef enum { GROUP_BATCH, GROUP_LEFT, GROUP_RIGHT, GROUP_SUM, GROUP_COUNT } Group;

/* Groups the labels of x and y by their part in a matmul: batch, rows, columns and the sum. */
static void group_labels(const Term *x, const Term *y, const Term *rest, int n_rest, const Term *out,
	Term group[GROUP_COUNT])
{
	for (int i = 0; i < x->n + y->n; i++) {
		char c = i < x->n ? x->label[i] : y->label[i - x->n];
		bool in_x = find(x, c) >= 0, in_y = find(y, c) >= 0, kept = find(out, c) >= 0;
		if (i >= x->n && in_x)
			continue;
		for (int k = 0; k < n_rest; k++)
			kept = kept || find(&rest[k], c) >= 0;
		add_label(&group[in_x && in_y ? kept ? GROUP_BATCH : GROUP_SUM : in_x ? GROUP_LEFT : GROUP_RIGHT], c);
	}
}

static int64_t group_numel(const Term *t, const Term *g)
{
	int64_t n = 1;
	for (const char *c = g->label; *c; c++)
		n *= t->v->type.dim[find(t, *c)];
	return n;
}

/* Reshapes t to [batch, rows, columns] by three groups of its labels. */
static Value *as_matrix(Builder *b, Term *t, const Term *batch, const Term *rows, const Term *columns)
{
	char labels[3 * IR_MAX_RANK + 1];
	int64_t dim[3] = {group_numel(t, batch), group_numel(t, rows), group_numel(t, columns)};
	snprintf(labels, sizeof(labels), "%s%s%s", batch->label, rows->label, columns->label);
	reorder(b, t, labels);
	return ir_reshape(b, t->v, 3, dim);
}

static bool multiply(Node *n, Term *x, Term *y, const Term *rest, int n_rest, const Term *out, Term *to)
{
	Term group[GROUP_COUNT] = {0};
	int64_t dim[3 * IR_MAX_RANK];
	group_labels(x, y, rest, n_rest, out, group);
	Term *gb = &group[GROUP_BATCH], *gl = &group[GROUP_LEFT], *gr = &group[GROUP_RIGHT], *gs = &group[GROUP_SUM];
	if (gb->n + gl->n + gr->n > IR_MAX_RANK)
		return node_refuse(n, "an intermediate result has a rank above 8");
	for (int i = 0; i < x->n; i++) {
		int j = find(y, x->label[i]);
		if (j >= 0 && x->v->type.dim[i] != y->v->type.dim[j])
			return node_error(n, "label %c stands for dimensions of different size", x->label[i]);
	}
	int rank = 0;
	const Term *parts[3] = {gb, gl, gr};
	*to = (Term){.n = 0};
	for (int g = 0; g < 3; g++) {
		for (const char *c = parts[g]->label; *c; c++) {
			const Term *of = find(x, *c) >= 0 ? x : y;
			dim[rank++] = of->v->type.dim[find(of, *c)];
			add_label(to, *c);
		}
	}
	Value *left = as_matrix(n->b, x, gb, gl, gs), *right = as_matrix(n->b, y, gb, gs, gr);
	to->v = ir_reshape(n->b, emit_matmul(n->b, left, right, NULL, false, false), rank, dim);
	return true;
}

bool import_einsum(Node *n)
{
	Term *in = NEW_N(n->im->arena, Term, n->n_in + 1), out = {.n = 0}, acc;
	if (!node_want(n, 1, n->n_in))
		return false;
	if (!parse_equation(n, in, &out))
		return node_error(n, "equation \"%s\" does not fit its operands", node_str(n, "equation", ""));
	for (int k = 0; k < n->n_in; k++)
		if (!take_diagonals(n, &in[k]))
			return false;
	acc = in[0];
	sum_private(n->b, &acc, in + 1, n->n_in - 1, &out);
	for (int k = 1; k < n->n_in; k++) {
		Term next;
		int n_rest = n->n_in - k - 1;
		Term *others = NEW_N(n->im->arena, Term, n_rest + 1);
		memcpy(others, in + k + 1, sizeof(Term) * (size_t)n_rest);
		others[n_rest] = acc;
		sum_private(n->b, &in[k], others, n_rest + 1, &out);
		if (!multiply(n, &acc, &in[k], in + k + 1, n_rest, &out, &next))
			return false;
		acc = next;
		sum_private(n->b, &acc, in + k + 1, n_rest, &out);
	}
	if (acc.n != out.n)
		return node_error(n, "the result's labels are not those of the operands");
	for (int i = 0; i < out.n; i++)
		if (find(&acc, out.label[i]) < 0)
			return node_error(n, "label %c of the result is in no operand", out.label[i]);
	reorder(n->b, &acc, out.label);
	n->out[0] = acc.v;
	return true;
}
