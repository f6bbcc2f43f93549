/* frontend/onnx_draws.c: finds out, when the whole model is known, along which axis draws have samples whose node gives
 * only a shape, as in torch.randn(x.shape[0], 16) and the masks of drop path.
 *
 * Every axis as long as the batch is supposed in turn, and the numbers are followed to where they meet values of known
 * samples, or weights.  They have samples along the axis if they meet samples along it, sample by sample.  They do not
 * if samples would be mixed, or weights, which are the same for all samples, would meet them row by row: so noise of
 * weights is told from noise of samples.  Without evidence, as in a generator that makes samples of noise alone, the
 * first axis counts if it is as long as the batch.  A draw without samples draws once a step for all ranks. */
#include "frontend/onnx_import.h"

typedef enum { NEUTRAL, FOR, AGAINST } Evidence;

typedef struct Walk {
	SampleScan *plain;     /* in which the draws in question have no samples */
	SampleScan *supposed;  /* in which they have */
	Arena *a;
	PtrMap *seen;
	VEC(Value *) next;
} Walk;

static void set_axis(Module *m, Op *op, int axis)
{
	op->attrs = attr_int(m, op->attrs, "axis", axis);
}

static int axis_of_draw(const Op *op)
{
	return (int)attr_get_int(op->attrs, "axis", -1);
}

static void visit(Walk *w, Value *v)
{
	if (ptrmap_get(w->seen, v))
		return;
	ptrmap_put(w->seen, v, v);
	vec_push(w->a, &w->next, v);
}

/* Whether the op reads weights that depend on no draw. */
static bool reads_weights(Walk *w, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		Samples x = op_in(op, i) ? samples_of(w->supposed, op_in(op, i)) : (Samples){0};
		if (x.kind == SAMPLES_NONE && x.trained)
			return true;
	}
	return false;
}

/* What op, which reads the draw, says of the axis; its results are visited while no other samples have met it. */
static Evidence evidence_of(Walk *w, Op *op)
{
	Evidence found = NEUTRAL;
	for (int i = 0; i < op->n_out; i++) {
		Samples was = samples_of(w->plain, op->out[i]), now = samples_of(w->supposed, op->out[i]);
		bool apart = now.mixes == op || (now.kind == SAMPLES_LOST && now.lost == op);
		if (was.kind != SAMPLES_NONE)
			found = apart ? AGAINST : now.kind == SAMPLES_AXIS ? FOR : found;
		else if ((apart || now.placed == op) && reads_weights(w, op))
			found = AGAINST;
		else if (now.kind == SAMPLES_AXIS)
			visit(w, op->out[i]);
		if (found == AGAINST)
			return found;
	}
	return found;
}

static Evidence follow(const Import *im, SampleScan *plain, SampleScan *supposed, Op *draw)
{
	Walk w = {.plain = plain, .supposed = supposed, .a = im->arena, .seen = ptrmap_new(im->arena)};
	Evidence all = NEUTRAL;
	visit(&w, draw->out[0]);
	while (w.next.n) {
		Value *v = w.next.at[--w.next.n];
		for (const Use *u = v->uses; u; u = u->next) {
			Evidence e = evidence_of(&w, u->op);
			if (e == AGAINST)
				return e;
			all = e == FOR ? FOR : all;
		}
	}
	return all;
}

/* The k-th axis that may have the samples; -1: there are fewer.  Of a tensor with rows of several samples this is the
 * first one. */
static int candidate(const Import *im, const Op *op, int k)
{
	const Type *t = &op->out[0]->type;
	for (int i = 0; i < t->rank; i++)
		if (t->dim[i] == im->m->batch && k-- == 0)
			return i;
	return -1;
}

/* Whether the axis is as long as the batch in the draw's own shape, so that its length is evidence by itself. */
static bool is_whole(const Op *op)
{
	const Value *v = op->out[0];
	return v->n_uses != 1 || v->uses->op->kind != OP_RESHAPE
		|| v->uses->op->out[0]->type.dim[0] == v->type.dim[0];
}

/* An analysis in which the draws have the samples that their attributes say now. */
static SampleScan *scan_of(Import *im)
{
	SampleScan *s = samples_new(im->m, im->arena, false);
	for (int i = 0; i < im->draws.n; i++)
		samples_of(s, im->draws.at[i]->out[0]); /* answers are kept */
	return s;
}

/* A draw in question. */
typedef struct Question { int guess, axis; } Question; /* -1: none */

/* Supposes the k-th candidate of each draw that has no answer yet; false: there are no more. */
static bool suppose(Import *im, const Question *q, int k)
{
	bool any = false;
	for (int i = 0; i < im->draws.n; i++) {
		if (q[i].axis < 0)
			set_axis(im->m, im->draws.at[i], candidate(im, im->draws.at[i], k));
		any = any || (q[i].axis < 0 && axis_of_draw(im->draws.at[i]) >= 0);
	}
	return any;
}

void draws_resolve(Import *im)
{
	int n = im->draws.n;
	Question *q = NEW_N(im->arena, Question, n + 1);
	for (int i = 0; i < n; i++) {
		q[i] = (Question){axis_of_draw(im->draws.at[i]), -1};
		set_axis(im->m, im->draws.at[i], -1);
	}
	SampleScan *plain = scan_of(im);
	for (int k = 0; k < IR_MAX_RANK && suppose(im, q, k); k++) {
		SampleScan *supposed = scan_of(im);
		for (int i = 0; i < n; i++) {
			int at = axis_of_draw(im->draws.at[i]);
			if (q[i].axis >= 0 || at < 0)
				continue;
			Evidence e = follow(im, plain, supposed, im->draws.at[i]);
			q[i].axis = e == FOR ? at : -1;
			q[i].guess = e == AGAINST && q[i].guess == at ? -1 : q[i].guess;
		}
	}
	for (int i = 0; i < n; i++)
		set_axis(im->m, im->draws.at[i], q[i].axis >= 0 ? q[i].axis : is_whole(im->draws.at[i]) ? q[i].guess : -1);
}

/* A file does not tell noise that the module adds only in training from noise that it always draws. */
void draws_report(Import *im)
{
	const Op *first = NULL;
	int n = 0;
	for (const Op *op = im->m->first[SEC_FORWARD]; op; op = op->next)
		if (op->kind == OP_DRAW && !attr_find(op->attrs, "off")) {
			first = first ? first : op;
			n++;
		}
	if (first && !im->o->infer && im->o->say_roles)
		diag_note(im->d, im->onnx->path, "%d draw%s of random numbers, first node \"%s\", %s no dropout: evaluations "
			"draw, too, also where the module does so only in training (docs/training.md, Random numbers)", n,
			n > 1 ? "s" : "", str_escape(im->arena, ESCAPE_IR, first->loc->node), n > 1 ? "are" : "is");
}
