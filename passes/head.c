/* passes/head.c: computes a cross-entropy of products by blocks of rows, so that large logits are never whole.
 *
 * Requires TRAIN; after sums, by which products of weight gradients are f32 and have their sums, and before fuse, which
 * would make loops of the casts between.  Ensures that where --loss-chunk asks for it the logits, their gradient and
 * what reads them (the products of the gradient with weights and rows, the sum for a bias; in eval the accuracy) are
 * one op, which has a block of logits at a time.  In a step that op stands in backward, whose seed is known before the
 * loss is: nothing is computed twice, and the report of the loss moves behind it.
 * Logits that anything else reads stay whole; -v says why, and a note does for large ones. */
#include "passes/passes.h"

/* auto: logits above AUTO_BYTES are computed by blocks.  On CPUs blocks have few bytes, to stay in a cache or at least
 * small.  On GPUs they are half of the logits or CUDA_BYTES.  Both have many rows, since dw is read and written once a
 * block, in f32.  On an H200 with 790 TFLOP/s and 4.3 TB/s that is 245 / rows of the time of a block's products: a
 * quarter for 1,024 rows, 6% for 4,096. */
enum { AUTO_BYTES = 256 << 20, CPU_BYTES = 32 << 20, CUDA_BYTES = 1 << 30, CPU_ROWS = 512, CUDA_ROWS = 4096,
	MOST_MOVED = 64 };

typedef struct Head {
	Module *m;
	const Options *o;
	Op *loss, *product;        /* cross_entropy and the matmul that makes its logits */
	Value *h, *w, *bias;       /* bias may be NULL */
	int64_t rows, c, d;
	bool tb;
	Op *grad, *dh, *dw, *db;   /* of a step; the last three may be NULL */
	VEC(Op *) moved;           /* ops of forward that need the loss, in order */
	Arena *a;
	const char *why;           /* why the logits stay whole; NULL = they need not */
} Head;

static bool stay(Head *x, const char *fmt, ...) PRINTF_LIKE(2, 3);
static bool stay(Head *x, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	x->why = arena_vprintf(x->a, fmt, ap);
	va_end(ap);
	return false;
}

static const char *said(const Head *x, const Op *op)
{
	return arena_printf(x->a, *op->loc->node ? "%s of node \"%s\"" : "%s%s", op_info[op->kind].text, op->loc->node);
}

static bool is_view(const Op *op)
{
	return op_info[op->kind].flags & VIEW && op->n_in == 1;
}

/* ---- the product ---- */

static bool find_product(Head *x)
{
	Value *logits = op_in(x->loss, 0), *y = value_root(logits);
	const Type *t = &logits->type;
	Op *op = x->product = y->op;
	if (op->kind != OP_MATMUL || op_in(op, 1)->type.rank != 2 || op_sum(op) || attr_get_int(op->attrs, "ta", 0))
		return stay(x, "they are the result of %s, not of a product of rows with weights", said(x, op));
	x->h = op_in(op, 0);
	x->w = op_in(op, 1);
	x->bias = op_in(op, 2);
	x->tb = attr_get_int(op->attrs, "tb", 0);
	x->c = y->type.dim[y->type.rank - 1];
	x->d = x->w->type.dim[x->tb ? 1 : 0];
	x->rows = x->c ? type_numel(t) / x->c : 0;
	if (!x->rows || !x->d || t->dim[t->rank - 1] != x->c || (y->type.dtype != DT_F32 && !dtype_is_half(y->type.dtype)))
		return stay(x, "%s makes them for other classes, or in f64", said(x, op));
	return true;
}

/* Whether only views, the loss, its gradient and the accuracy read v. */
static bool check_readers(Head *x, const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next) {
		Op *op = u->op;
		if (is_view(op)) {
			if (!check_readers(x, op->out[0]))
				return false;
		} else if (op->kind == OP_CROSS_ENTROPY_GRAD && !x->grad) {
			x->grad = op;
		} else if (op != x->loss && (op->kind != OP_REPORT_ACC || op_in(op, 0) != v)) {
			return stay(x, "%s reads them, too", said(x, op));
		}
	}
	return true;
}

/* ---- the gradient ---- */

static bool is_matrix(const Value *v, int64_t rows, int64_t cols)
{
	return v->type.rank == 2 && v->type.dim[0] == rows && v->type.dim[1] == cols;
}

/* The place of what a product with the gradient d is; NULL = it is neither of the two. */
static Op **place_of_product(Head *x, const Op *op, const Value *d)
{
	bool ta = attr_get_int(op->attrs, "ta", 0), tb = attr_get_int(op->attrs, "tb", 0);
	Value *a = op_in(op, 0), *b = op_in(op, 1), *other = a == d ? b : a;
	if (op_in(op, 2) || a == b)
		return NULL;
	if (a == d && b == x->w && !ta && tb != x->tb && !op_sum(op) && op->out[0]->type.dtype == x->h->type.dtype)
		return &x->dh;
	bool rows = value_root(other) == value_root(x->h) && is_matrix(other, x->rows, x->d);
	return ta && !tb && rows && is_matrix(d, x->rows, x->c) && (a == d) == x->tb ? &x->dw : NULL;
}

/* Whether op sums d over all rows: over each axis but the last, unless its length is 1. */
static bool sums_rows(const Head *x, const Op *op, const Value *d)
{
	const Attr *axes = attr_find(op->attrs, "axes");
	int rank = d->type.rank;
	bool summed[IR_MAX_RANK] = {false};
	for (int i = 0; i < axes->n; i++)
		summed[axes->ints[i] < 0 ? axes->ints[i] + rank : axes->ints[i]] = true;
	for (int i = 0; i < rank - 1; i++)
		if (!summed[i] && d->type.dim[i] != 1)
			return false;
	return !summed[rank - 1] && d->type.dim[rank - 1] == x->c;
}

/* Finds what reads the gradient d: both products and the sum over rows, through views and the cast to h's dtype. */
static bool find_gradients(Head *x, Value *d)
{
	for (const Use *u = d->uses; u; u = u->next) {
		Op *op = u->op, **place = NULL;
		bool cast = op->kind == OP_CAST && op->out[0]->type.dtype == x->h->type.dtype;
		if (is_view(op) || cast) {
			if (!find_gradients(x, op->out[0]))
				return false;
			continue;
		}
		if (op->kind == OP_MATMUL)
			place = place_of_product(x, op, d);
		else if (op->kind == OP_REDUCE_SUM && sums_rows(x, op, d))
			place = &x->db;
		if (!place || *place || op->section != SEC_BACKWARD)
			return stay(x, "%s reads their gradient", said(x, op));
		*place = op;
	}
	return true;
}

/* ---- what needs the loss ---- */

/* Whether v is computed from the values in `from`, at any distance. */
static bool depends(Head *x, const Value *v, const PtrMap *from, PtrMap *seen)
{
	VEC(const Op *) left = {0};
	if (ptrmap_get(from, v))
		return true;
	vec_push(x->a, &left, v->op);
	while (left.n) {
		const Op *op = left.at[--left.n];
		if (ptrmap_get(seen, op))
			continue;
		ptrmap_put(seen, op, (void *)(uintptr_t)op);
		for (int i = 0; i < op->n_in; i++) {
			if (op_in(op, i) && ptrmap_get(from, op_in(op, i)))
				return true;
			if (op_in(op, i))
				vec_push(x->a, &left, op_in(op, i)->op);
		}
	}
	return false;
}

/* The sum of weights of valid labels, from the labels alone. */
static Value *count_labels(Head *x)
{
	Builder b = {.m = x->m, .section = SEC_FORWARD, .before = x->loss, .loc = x->loss->loc};
	Value *labels = op_in(x->loss, 1), *weights = op_in(x->loss, 2);
	DType dtype = x->loss->out[1]->type.dtype;
	int64_t axes[IR_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
	Value *ignored = ir_const_int(&b, DT_I64, attr_get_int(x->loss->attrs, "ignore_index", -100));
	Value *valid = ir_emit1(&b, OP_NOT, ir_emit2(&b, OP_EQ, labels, ignored));
	Value *each = ir_cast(&b, valid, dtype);
	if (weights) {
		Value *known = ir_emit3(&b, OP_WHERE, valid, labels, ir_const_int(&b, DT_I64, 0)), *in[] = {weights, known};
		Value *w = ir_cast(&b, ir_emit(&b, OP_GATHER, 2, in, attr_int(x->m, NULL, "axis", 0)), dtype);
		each = ir_emit2(&b, OP_MUL, w, each);
	}
	return labels->type.rank ? ir_reduce(&b, OP_REDUCE_SUM, each, labels->type.rank, axes, false) : each;
}

static void mark_results(PtrMap *map, const Op *op, int from, int to)
{
	for (int i = from; i < to; i++)
		ptrmap_put(map, op->out[i], op->out[i]);
}

/* Finds the ops of forward that need the loss.  They move, so they must be small and without other effects. */
static bool find_moved(Head *x, PtrMap *needs)
{
	mark_results(needs, x->loss, 0, 2);
	for (Op *op = x->loss->next; op; op = op->next) {
		bool reads = false;
		for (int i = 0; i < op->n_in; i++)
			reads = reads || (op_in(op, i) && ptrmap_get(needs, op_in(op, i)));
		if (!reads)
			continue;
		bool plain = op_info[op->kind].flags & (EW | VIEW) || op->kind == OP_REPORT_LOSS;
		if (!plain || x->moved.n == MOST_MOVED)
			return stay(x, "%s needs the loss in forward", said(x, op));
		mark_results(needs, op, 0, op->n_out);
		vec_push(x->a, &x->moved, op);
	}
	return true;
}

/* The first op that reads what the head makes. */
static Op *first_reader(const Head *x)
{
	Op *of[] = {x->dh, x->dw, x->db}, *first = NULL;
	for (int i = 0; i < COUNT_OF(of); i++)
		if (of[i] && (!first || of[i]->order < first->order))
			first = of[i];
	return first;
}

/* Whether the seed of backward is known without the loss, and whether nothing in front of `first` needs it. */
static bool check_order(Head *x, const Op *first)
{
	PtrMap *loss = ptrmap_new(x->a), *weight = ptrmap_new(x->a), *needs = ptrmap_new(x->a);
	Value *seed = op_in(x->grad, 0);
	mark_results(loss, x->loss, 0, 1);
	mark_results(weight, x->loss, 1, 2);
	if (depends(x, seed, loss, ptrmap_new(x->a)))
		return stay(x, "the gradient of the loss depends on the loss itself");
	if (depends(x, seed, weight, ptrmap_new(x->a)))
		ir_replace_uses(x->loss->out[1], count_labels(x));
	if (!find_moved(x, needs))
		return false;
	for (const Op *op = x->m->first[SEC_BACKWARD]; op != first; op = op->next)
		for (int i = 0; i < op->n_in; i++)
			if (op_in(op, i) && ptrmap_get(needs, op_in(op, i)))
				return stay(x, "%s needs the loss before the gradient of the logits does", said(x, op));
	const Value *sum = x->dw ? op_sum(x->dw) : NULL;
	if (sum && sum->op->section == SEC_BACKWARD && sum->op->order >= first->order)
		return stay(x, "the gradient of the weights is added to what is not there yet");
	return true;
}

/* ---- blocks ---- */

static int64_t logits_bytes(const Head *x)
{
	return type_bytes(&op_in(x->loss, 0)->type);
}

/* Rows of a block; 0 = the logits stay whole. */
static int64_t block_of(const Head *x, int64_t asked)
{
	if (asked)
		return asked < x->rows ? asked : 0;
	if (logits_bytes(x) <= AUTO_BYTES)
		return 0;
	bool cuda = options_cuda(x->o);
	int64_t bytes = cuda ? MIN(CUDA_BYTES, logits_bytes(x) / 2) : CPU_BYTES;
	return rows_of_block(x->rows, logits_bytes(x) / x->rows, bytes, cuda ? CUDA_ROWS : CPU_ROWS);
}

static Attr *head_attrs(const Head *x, int64_t block)
{
	Module *m = x->m;
	DType to = x->product->out[0]->type.dtype;
	Attr *attrs = attr_int(m, NULL, "tb", x->tb);
	if (to != x->h->type.dtype)
		attrs = attr_dtype(m, attrs, "to", to);
	attrs = attr_int(m, attrs, "block", block);
	attrs = attr_int(m, attrs, "ignore_index", attr_get_int(x->loss->attrs, "ignore_index", -100));
	return attr_float(m, attrs, "smoothing", attr_get_float(x->loss->attrs, "smoothing", 0));
}

/* What was the result of op is now v, in its shape and dtype.  A sum that is rounded behind the head has the name, too:
 * it may be the largest value of a step. */
static void put_for(Builder *b, const Op *op, Value *v)
{
	Value *was = op->out[0], *sum = v;
	const char *name = was->name;
	v = ir_cast(b, v, was->type.dtype);
	v = ir_reshape(b, v, was->type.rank, was->type.dim);
	ir_replace_uses(was, v);
	was->name = v->name;
	v->name = name;
	if (sum->type.dtype != was->type.dtype)
		ir_rename(b->m, sum, arena_printf(b->m->arena, "%s.%s", name, dtype_info[sum->type.dtype].text));
}

static void build_step(Head *x, int64_t block, Op *first)
{
	Module *m = x->m;
	Builder b = {.m = m, .section = SEC_BACKWARD, .before = first, .loc = loc_with_role(m, x->product->loc, "grad")};
	Value *in[] = {op_in(x->grad, 0), x->h, x->w, op_in(x->loss, 1), op_in(x->loss, 2), x->bias,
		x->dw ? op_sum(x->dw) : NULL};
	Attr *attrs = attr_int(m, head_attrs(x, block), "dh", x->dh != NULL);
	attrs = attr_int(m, attr_int(m, attrs, "dw", x->dw != NULL), "db", x->db != NULL);
	Op *head = ir_emit_op(&b, OP_LINEAR_CROSS_ENTROPY_GRAD, COUNT_OF(in), in, attrs, NULL);
	Op *of[] = {x->dh, x->dw, x->db};
	for (int i = 0, n = 2; i < COUNT_OF(of); i++)
		if (of[i])
			put_for(&b, of[i], head->out[n++]);
	for (int i = 0; i < 2; i++)
		ir_replace_uses(x->loss->out[i], head->out[i]);
	for (int i = 0; i < x->moved.n; i++)
		ir_move_before(m, x->moved.at[i], first);
}

static void build_eval(Head *x, int64_t block)
{
	Builder b = {.m = x->m, .section = SEC_EVAL, .before = x->loss, .loc = x->product->loc};
	Value *in[] = {x->h, x->w, op_in(x->loss, 1), op_in(x->loss, 2), x->bias};
	Op *head = ir_emit_op(&b, OP_LINEAR_CROSS_ENTROPY, COUNT_OF(in), in, head_attrs(x, block), NULL);
	for (int i = 0; i < 2; i++)
		ir_replace_uses(x->loss->out[i], head->out[i]);
	IR_FOR_OPS_SAFE(x->m, SEC_EVAL, op) {
		if (op->kind != OP_REPORT_ACC || value_root(op_in(op, 0))->op != x->product)
			continue;
		const Type *t = &op_in(op, 1)->type;
		b.before = op;
		ir_set_in(op, 0, ir_reshape(&b, head->out[2], t->rank, t->dim));
	}
}

/* ---- the pass ---- */

/* Finds all that the op for the loss needs, without changing a result. */
static bool match(Head *x, bool step)
{
	if (!find_product(x) || !check_readers(x, x->product->out[0]))
		return false;
	const Value *lse = x->loss->out[2];
	for (const Use *u = lse->uses; u; u = u->next)
		if (u->op != x->grad)
			return stay(x, "%s reads their log-sum-exp", said(x, u->op));
	if (!step)
		return !x->grad || stay(x, "they have a gradient in eval");
	if (!x->grad || x->grad->section != SEC_BACKWARD || op_in(x->grad, 4) != lse)
		return stay(x, "they have no gradient");
	if (op_in(x->grad, 2) != op_in(x->loss, 1) || op_in(x->grad, 3) != op_in(x->loss, 2)
			|| !attr_equal(x->grad->attrs, x->loss->attrs))
		return stay(x, "their gradient is that of another loss");
	return find_gradients(x, x->grad->out[0]) && (first_reader(x) || stay(x, "nothing reads their gradient"));
}

static const char *mib(const Head *x)
{
	return arena_printf(x->a, "%.4g MiB", (double)logits_bytes(x) / (1 << 20));
}

static void say(const Head *x, int64_t asked, Diag *d)
{
	const char *where = asked ? "--loss-chunk" : x->m->file ? x->m->file : x->m->name;
	if (asked)
		diag_warn(d, where, "the logits %%%s stay whole (%s): %s", op_in(x->loss, 0)->name, mib(x), x->why);
	else if (logits_bytes(x) > AUTO_BYTES)
		diag_note(d, where, "the logits %%%s stay whole (%s): %s", op_in(x->loss, 0)->name, mib(x), x->why);
	else
		diag_info(d, where, "the logits %%%s stay whole: %s", op_in(x->loss, 0)->name, x->why);
}

static void chunk(Module *m, const Options *o, Op *loss, int64_t asked, Diag *d)
{
	bool step = loss->section == SEC_FORWARD;
	Head x = {.m = m, .o = o, .loss = loss, .a = arena_new()};
	bool ok = match(&x, step);
	int64_t block = ok ? block_of(&x, asked) : 0;
	if (block && step)
		ok = check_order(&x, first_reader(&x));
	if (!ok && step)
		say(&x, asked, d);
	else if (ok && asked && !block && step)
		diag_warn(d, "--loss-chunk", "a block of %lld rows holds all %lld rows of logits: they stay whole",
			(long long)asked, (long long)x.rows);
	if (ok && block) {
		if (step)
			diag_info(d, "head", "the logits %%%s (%s) are computed by %lld rows", op_in(loss, 0)->name, mib(&x),
				(long long)block);
		step ? build_step(&x, block, first_reader(&x)) : build_eval(&x, block);
	}
	arena_free(x.a);
}

bool pass_head(Module *m, const Options *o, Diag *d)
{
	static const SectionKind sections[] = {SEC_FORWARD, SEC_EVAL};
	int64_t asked;
	int found = 0;
	if (!rows_asked("--loss-chunk", o->graph.loss_chunk, &asked, d))
		return false;
	ir_number(m);
	for (int s = 0; s < COUNT_OF(sections) && asked >= 0; s++)
		IR_FOR_OPS_SAFE(m, sections[s], op)
			if (op->kind == OP_CROSS_ENTROPY) {
				found++;
				chunk(m, o, op, asked, d);
			}
	if (!found && asked > 0)
		diag_warn(d, "--loss-chunk", "the module has no cross-entropy: it is not used");
	for (int s = SEC_COUNT - 1; s >= 0; s--)
		ir_sweep(m, (SectionKind)s);
	return true;
}
