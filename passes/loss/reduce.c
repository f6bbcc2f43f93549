/* passes/loss/reduce.c: how the losses of ranks and micro-batches become one (--loss-reduce), and which parts of a
 * loss or an evaluation depend on which samples share a batch.
 *
 * A loss that the graph computes itself is one number per micro-batch.  Whether these numbers are added or averaged
 * follows from how the graph computes them from its samples.  Where the graph does not show it, a mean is assumed
 * and a warning says so. */
#include "ir/samples.h"
#include "passes/loss/loss.h"

#include <string.h>

static const char *node_of(const Module *m, const Op *op)
{
	const char *name = *op->loc->node ? op->loc->node : op_info[op->kind].text;
	return arena_printf(m->arena, "node \"%s\"%s", str_escape(m->arena, ESCAPE_IR, name),
		*op->loc->onnx ? arena_printf(m->arena, " (%s)", op->loc->onnx) : "");
}

static const char *file_of(const Module *m)
{
	return m->file ? m->file : m->name;
}

/* ---- --loss-reduce ---- */

static const char *say_otherwise = "say which by --loss-reduce=mean or --loss-reduce=sum";

/* Assumes a mean, with a warning, where the graph does not show which it is. */
static bool assume_mean(const Module *m, const SampleScan *scan, const char *output, const Samples *x, Diag *d)
{
	if (x->kind == SAMPLES_NONE)
		diag_warn(d, file_of(m), "output \"%s\" depends on no sample: losses and gradients of ranks and micro-batches "
			"are averaged; %s", output, say_otherwise);
	else if (m->batch == 1)
		diag_warn(d, file_of(m), "output \"%s\": of batches of one sample the graph does not show whether it is a sum "
			"or a mean over samples: losses and gradients of ranks and micro-batches are averaged; %s, or export the "
			"model with a batch of 2 or more", output, say_otherwise);
	else if (samples_is_scaled_by_batch(scan, x))
		diag_warn(d, file_of(m), "output \"%s\" is a %s over samples times %g, which looks like the batch size %lld: a "
			"mean over samples is assumed, so losses and gradients of ranks and micro-batches are averaged; %s", output,
			x->kind == SAMPLES_SUM ? "sum" : "mean", x->scale, (long long)m->batch, say_otherwise);
	else if (x->kind == SAMPLES_AXIS) /* one number, but of one sample: x[0] */
		diag_warn(d, file_of(m), "output \"%s\" is the loss of one sample of a batch of %lld, not a sum or a mean over "
			"samples (they meet, or are told apart by their positions, in %s): losses and gradients of ranks and "
			"micro-batches are averaged; %s", output, (long long)m->batch, node_of(m, x->mixes), say_otherwise);
	else
		diag_warn(d, file_of(m), "output \"%s\": the graph does not show whether it is a sum or a mean over samples "
			"(%s is not linear in them): losses and gradients of ranks and micro-batches are averaged; %s", output,
			node_of(m, x->lost), say_otherwise);
	return false;
}

/* Warns when --loss-reduce contradicts the graph. */
static void check_asked(const char *output, const Samples *x, bool sum, bool plain, Diag *d)
{
	if (plain && sum && x->kind == SAMPLES_MEAN)
		diag_warn(d, "--loss-reduce", "sum: output \"%s\" is a mean over samples: the means of ranks and micro-batches "
			"are added, so 2 x 4 samples give twice the loss and gradients of 8", output);
	if (plain && !sum && x->kind == SAMPLES_SUM)
		diag_warn(d, "--loss-reduce", "mean: output \"%s\" is a sum over samples: the sums of ranks and micro-batches "
			"are averaged, so 2 x 4 samples give half the loss and gradients of 8", output);
}

/* What an output was before rules rewrote it, for a module with batches of one sample. */
static const char *noted(const Op *output)
{
	return attr_get_str(output->attrs, "over", "");
}

/* The output of this name; NULL: there is none. */
static const Op *output_named(const Module *m, const char *name)
{
	IR_FOR_OPS(m, SEC_FORWARD, op)
		if (op->kind == OP_OUTPUT && !strcmp(op->sym->name, name))
			return op;
	return NULL;
}

/* What the value of an output is over samples: sum, mean, ratio, or "". */
static const char *over_of(const Module *m, SampleScan *scan, const Value *y, const Samples *x)
{
	bool ratio = y->op->kind == OP_DIV && loss_is_ratio(m, NULL, op_in(y->op, 0), op_in(y->op, 1));
	return ratio ? "ratio" : !samples_is_plain(scan, x) ? "" : x->kind == SAMPLES_SUM ? "sum" : "mean";
}

/* The op in which samples meet; that of the output where its samples are not its rows, which labels and targets are. */
static const Op *meets_in(const Module *of, const Value *y, const Samples *x)
{
	bool turned = of->batch > 1 && x->kind == SAMPLES_AXIS && (x->axis || x->batches != 1);
	return x->mixes ? x->mixes : turned ? y->op : NULL;
}

void loss_note_samples(Module *m, const Module *of)
{
	Arena *scratch = arena_new();
	SampleScan *scan = samples_new(of, scratch, false);
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		const Op *same = m->batch == 1 && op->kind == OP_OUTPUT && !attr_find(op->attrs, "meets")
			? output_named(of, op->sym->name) : NULL;
		if (!same)
			continue;
		const Value *y = op_in(same, 0);
		Samples x = samples_of(scan, y);
		const Op *meets = meets_in(of, y, &x);
		const char *over = type_numel(&y->type) == 1 ? over_of(of, scan, y, &x) : "";
		if (*over && !*noted(op))
			op->attrs = attr_str(m, op->attrs, "over", over);
		op->attrs = attr_str(m, op->attrs, "meets", meets ? node_of(m, meets) : "");
		if (x.placed)
			op->attrs = attr_str(m, op->attrs, "places", node_of(m, x.placed));
	}
	arena_free(scratch);
}

bool loss_adds(const Module *m, const Options *o, const Op *op, Diag *d)
{
	Arena *scratch = arena_new();
	SampleScan *scan = samples_new(m, scratch, false);
	Samples x = samples_of(scan, op_in(op, 0));
	bool plain = samples_is_plain(scan, &x);
	const char *output = op->sym->name, *over = noted(op);
	if (m->batch == 1 && x.kind != SAMPLES_NONE) {
		plain = !strcmp(over, "sum") || !strcmp(over, "mean");
		x.kind = !plain ? SAMPLES_LOST : *over == 's' ? SAMPLES_SUM : SAMPLES_MEAN;
	}
	bool own = o->graph.loss_norm == LOSS_NORM_RANK, sum = plain && x.kind == SAMPLES_SUM && !own;
	if (o->graph.loss_reduce) {
		sum = o->graph.loss_reduce == LOSS_REDUCE_SUM;
		check_asked(output, &x, sum, plain, d);
	} else if (own && plain && x.kind == SAMPLES_MEAN) {
		diag_warn(d, "--loss-norm", "output \"%s\" is a mean over samples, and is averaged over ranks and "
			"micro-batches all the same: rank is not used", output);
	} else if (own) {
		diag_info(d, file_of(m), "output \"%s\": losses of ranks and micro-batches are averaged (--loss-norm=rank)",
			output);
	} else if (sum) {
		diag_note(d, file_of(m), "output \"%s\" is a sum over samples: losses and gradients of ranks and micro-batches "
			"are added (--loss-reduce=mean averages them)", output);
	} else if (plain) {
		diag_info(d, file_of(m), "output \"%s\" is a mean over samples: losses and gradients of ranks and "
			"micro-batches are averaged", output);
	} else if (m->batch) {
		sum = assume_mean(m, scan, output, &x, d);
	}
	arena_free(scratch);
	return sum;
}

bool loss_is_ratio(const Module *m, const Op *output, const Value *num, const Value *den)
{
	if (m->batch == 1 && output)
		return !strcmp(noted(output), "ratio");
	Arena *scratch = arena_new();
	SampleScan *scan = samples_new(m, scratch, false);
	Samples n = samples_of(scan, num), w = samples_of(scan, den);
	bool scaled = samples_is_scaled_by_batch(scan, &n) || samples_is_scaled_by_batch(scan, &w);
	bool sums = n.kind == SAMPLES_SUM && w.kind == SAMPLES_SUM && !n.unsure && !w.unsure;
	arena_free(scratch);
	return sums && (n.scale == w.scale || !scaled) && !n.mixes && !w.mixes && !w.trained;
}

/* ---- samples that meet ---- */

void loss_say_mixing(const Module *m, const Op *output, const Value *loss, Diag *d)
{
	Arena *scratch = arena_new();
	Samples x = samples_of(samples_new(m, scratch, false), loss);
	bool one = m->batch == 1, has = one && attr_find(output->attrs, "meets");
	const char *meets = has ? attr_get_str(output->attrs, "meets", "") : x.mixes ? node_of(m, x.mixes) : "";
	const char *places = has ? attr_get_str(output->attrs, "places", "") : x.placed ? node_of(m, x.placed) : "";
	const char *numbers = one ? "That of every rank and micro-batch is 0"
		: arena_printf(scratch, "Those of every rank and micro-batch are 0 to %lld", (long long)m->batch - 1);
	const char *own = one ? "sample" : arena_printf(scratch, "%lld samples", (long long)m->batch);
	if (*places && !*meets) /* comparisons take their labels from positions */
		diag_note(d, file_of(m), "the loss depends on the places of samples in their batch: in %s each has other "
			"numbers.  %s, so W ranks do not equal one rank with W times the batch", places, numbers);
	if (*meets)
		diag_note(d, file_of(m), "the loss depends on which samples share a batch: they meet in %s.  Each rank and "
			"micro-batch sees its own %s, so W ranks do not equal one rank with W times the batch "
			"(docs/training.md, Numbers)", meets, own);
	arena_free(scratch);
}

/* The op because of which padding a batch with copies would change a result: it mixes samples, depends on their
 * positions, or makes sums that are not sums over samples.  NULL: every sample counts for itself. */
static const Op *apart(SampleScan *scan, const Op *report, bool *known)
{
	const Op *found = NULL;
	for (int i = 0; i < report->n_in; i++) {
		Samples x = samples_of(scan, op_in(report, i));
		const Op *op = x.mixes ? x.mixes : x.placed ? x.placed : x.lost;
		*known = *known && (!op || op != x.lost);
		found = found ? found : op;
	}
	return found;
}

void loss_mark_whole(Module *m, Diag *d)
{
	if (m->batch == 1) /* always full */
		return;
	Arena *scratch = arena_new();
	SampleScan *scan = samples_new(m, scratch, true);
	const Op *why = NULL;
	Op *report = NULL;
	bool known = true;
	IR_FOR_OPS(m, SEC_EVAL, op) {
		if (op->kind != OP_REPORT_LOSS && op->kind != OP_REPORT_ACC)
			continue;
		report = op->kind == OP_REPORT_LOSS ? op : report;
		why = why ? why : apart(scan, op, &known);
	}
	bool scalar = report && attr_get_int(report->attrs, "mean", 0);
	if (report && why)
		report->attrs = attr_str(m, report->attrs, "whole", *why->loc->node ? why->loc->node : op_info[why->kind].text);
	if (report && why && !scalar && known)
		diag_note(d, file_of(m), "in evaluations, too, samples of a batch meet or are told apart in %s: a last batch "
			"that is not full is left out", node_of(m, why));
	else if (report && why && !scalar)
		diag_note(d, file_of(m), "samples of a batch may meet in %s: evaluations leave out a last batch that is not "
			"full", node_of(m, why));
	arena_free(scratch);
}
