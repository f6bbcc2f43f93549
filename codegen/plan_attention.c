/* codegen/plan_attention.c: what `shardc plan` prints of attention in programs for GPUs: a line for each distinct one,
 * which says who computes it, and its gradient, and why.  The choice is pass attend's. */
#include "codegen/emit.h"
#include "passes/passes.h"

#include <inttypes.h>
#include <string.h>

enum { FORWARD, BACKWARD, WAYS };
static const char *const way_name[WAYS] = {"forward", "backward"};

/* How often it is computed in a step, what is computed again counted again, and why by our own kernels; NULL: by
 * cuDNN. */
typedef struct Way { int n; const char *own; } Way;
/* op: the first of those that are alike. */
typedef struct Attention { const Op *op; Way way[WAYS]; } Attention;
typedef struct Attentions { Attention *at; int n, cap; } Attentions;

static int first_of(const Op *op) { return op->kind == OP_ATTENTION_GRAD; } /* q; dy stands before it */

/* ---- what it is of ---- */

#define UNLIMITED INT64_MAX

/* left, right: the limits of its band; UNLIMITED: none, or one that hides nothing. */
typedef struct Shape { int64_t batch, heads, kv_heads, rows, keys, size, value_size, left, right; } Shape;

static int64_t limit_of(const Op *op, const char *name, int64_t most)
{
	const Attr *limit = attr_find(op->attrs, name);
	return limit && limit->i < most ? limit->i : UNLIMITED;
}

static Shape shape_of(const Op *op)
{
	int at = first_of(op), last = attr_get_int(op->attrs, "layout", 0) ? 1 : 0, h = 1 + last, t = 2 - last;
	const int64_t *q = op_in(op, at)->type.dim, *k = op_in(op, at + 1)->type.dim, *v = op_in(op, at + 2)->type.dim;
	return (Shape){q[0], q[h], k[h], q[t], k[t], q[3], v[3], limit_of(op, "left", q[t] - 1),
		limit_of(op, "right", k[t] - 1)};
}

static const Value *mask_of(const Op *op) { return op_in(op, first_of(op) + 3); }
static DType dtype_of(const Op *op) { return op_in(op, first_of(op))->type.dtype; }

/* Of what it has besides, whether it has it decides who computes it. */
static int extras_of(const Op *op)
{
	bool capped = attr_get_float(op->attrs, "softcap", 0) != 0, positive = attr_get_float(op->attrs, "scale", 1) > 0;
	return capped | positive << 1 | op_draws(op) << 2 | (op_in(op, first_of(op) + 4) != NULL) << 3; /* documents */
}

/* Whether they are one attention, or an attention and its gradient; which of their dims come first does not matter. */
static bool alike(const Op *x, const Op *y)
{
	const Value *a = mask_of(x), *b = mask_of(y);
	Shape n = shape_of(x), k = shape_of(y);
	return !memcmp(&n, &k, sizeof(n)) && dtype_of(x) == dtype_of(y) && extras_of(x) == extras_of(y)
		&& (!a || !b ? a == b : type_equal(&a->type, &b->type));
}

/* ---- those of a step ---- */

static void add(Attentions *list, const Op *op, Arena *a)
{
	int way = op->kind == OP_ATTENTION_GRAD ? BACKWARD : FORWARD;
	const char *own = attend_own(op);
	for (int i = 0; i < list->n; i++) {
		Way *w = &list->at[i].way[way];
		if (!alike(list->at[i].op, op) || (w->n && (w->own ? !own || strcmp(w->own, own) != 0 : own != NULL)))
			continue;
		w->own = own;
		w->n++;
		return;
	}
	Attention new = {.op = op};
	new.way[way] = (Way){1, own};
	vec_push(a, list, new);
}

/* Those of a step; of programs for CPUs, where there is no choice, none. */
static Attentions attentions_of(const Module *m, const CodegenPlan *p, Arena *a)
{
	Attentions list = {0};
	for (int s = SEC_FORWARD; p->layout->cuda.on && s < SEC_EVAL; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == OP_ATTENTION || op->kind == OP_ATTENTION_GRAD)
				add(&list, op, a);
	return list;
}

/* ---- both forms ---- */

/* "causal", "left=9, right=0", "". */
static const char *band_text(const Shape *n, Arena *a)
{
	if (n->left == UNLIMITED)
		return n->right == UNLIMITED ? "" : !n->right ? "causal" : arena_printf(a, "right=%" PRId64, n->right);
	return n->right == UNLIMITED ? arena_printf(a, "left=%" PRId64, n->left)
		: arena_printf(a, "left=%" PRId64 ", right=%" PRId64, n->left, n->right);
}

static const char *mask_text(const Op *op, Arena *a)
{
	const Value *mask = mask_of(op);
	return mask ? type_str(a, &mask->type) : "";
}

static const char *dtype_text(const Op *op) { return dtype_info[dtype_of(op)].text; }

static void text_shape(FILE *f, const Op *op, Arena *a)
{
	Shape n = shape_of(op);
	const char *band = band_text(&n, a), *mask = mask_text(op, a);
	fprintf(f, "  %s, %" PRId64 " x %" PRId64 " heads of %" PRId64, dtype_text(op), n.batch, n.heads, n.size);
	if (n.value_size != n.size)
		fprintf(f, " and %" PRId64, n.value_size);
	if (n.kv_heads != n.heads)
		fprintf(f, ", %" PRId64 " of keys", n.kv_heads);
	fprintf(f, ", %" PRId64 " x %" PRId64, n.rows, n.keys);
	fprintf(f, "%s%s%s%s", *band ? ", " : "", band, *mask ? ", mask " : "", mask);
}

void plan_text_attention(FILE *f, const Module *m, const CodegenPlan *p, Arena *a)
{
	Attentions list = attentions_of(m, p, a);
	if (list.n)
		fputs("\nattention: by cuDNN, where it takes it when the program starts (--print-plan), or by our own "
			"kernels\n", f);
	for (int i = 0; i < list.n; i++) {
		const Attention *t = &list.at[i];
		text_shape(f, t->op, a);
		for (int w = 0, n = 0; w < WAYS; w++) {
			if (!t->way[w].n)
				continue;
			fprintf(f, "%s %s %d x ", n++ ? ";" : ":", way_name[w], t->way[w].n);
			if (t->way[w].own)
				fprintf(f, "own (%s)", t->way[w].own);
			else
				fputs("cuDNN", f);
		}
		fputc('\n', f);
	}
}

void plan_json_attention(FILE *f, const Module *m, const CodegenPlan *p, Arena *a)
{
	Attentions list = attentions_of(m, p, a);
	fputs("  \"attention\": [", f);
	for (int i = 0; i < list.n; i++) {
		const Attention *t = &list.at[i];
		Shape n = shape_of(t->op);
		fprintf(f, "%s\n    {\"dtype\": \"%s\", \"batch\": %" PRId64 ", \"heads\": %" PRId64 ", \"kv_heads\": %" PRId64
			", \"rows\": %" PRId64 ", \"keys\": %" PRId64 ", \"head_size\": %" PRId64 ", \"value_size\": %" PRId64
			", \"band\": \"%s\", \"mask\": \"%s\"", i ? "," : "", dtype_text(t->op), n.batch, n.heads, n.kv_heads,
			n.rows, n.keys, n.size, n.value_size, band_text(&n, a), mask_text(t->op, a));
		for (int w = 0; w < WAYS; w++) {
			const Way *by = &t->way[w];
			fprintf(f, ", \"%s\": {\"count\": %d", way_name[w], by->n);
			if (by->n)
				fprintf(f, ", \"by\": \"%s\", \"why\": \"%s\"", by->own ? "own" : "cudnn", by->own ? by->own : "");
			fputc('}', f);
		}
		fputc('}', f);
	}
	fputs(list.n ? "\n  ],\n" : "],\n", f);
}
