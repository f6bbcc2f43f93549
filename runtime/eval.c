/* runtime/eval.c: one pass over held-out samples.
 *
 * A loss that is a mean already (output:NAME) is averaged over whole batches, and the samples left out
 * are reported.  Other losses count every sample once.
 *
 * The one idea, for a last batch of t < B samples: sums are additive over rows, so a batch of those t
 * samples filled up with copies of one of them, less (B - t)/B of a batch of copies alone, is what the t
 * samples add.  No program needs a notion of masked rows for it. */
#include "runtime/internal.h"

typedef struct Sums { double loss, weight, correct, counted; } Sums;

static Sums run_batch(Rt *rt)
{
	report_begin(rt);
	rt->model->eval(rt);
	return (Sums){rt->loss_sum, rt->loss_weight, rt->correct, rt->counted};
}

static void add(Sums *to, Sums s, double scale)
{
	to->loss += s.loss * scale;
	to->weight += s.weight * scale;
	to->correct += s.correct * scale;
	to->counted += s.counted * scale;
}

static void add_tail(Rt *rt, const DataSet *set, int64_t first, int64_t n, Sums *total)
{
	data_load_part(set, rt, first, n, first);
	add(total, run_batch(rt), 1);
	data_load_part(set, rt, first, 0, first);
	add(total, run_batch(rt), -(double)(set->batch - n) / (double)set->batch);
}

bool eval_run(Rt *rt, const DataSet *set, StepResult *out, int64_t *n_samples, Diag *d)
{
	char bad[512];
	Sums total = {0};
	int64_t whole = set->n_samples / set->batch, tail = set->n_samples % set->batch, last = 0;
	for (int64_t i = 0; i < whole && !report_has_bad_input(); i++) {
		last = i * set->batch;
		data_load(set, rt, last);
		data_prefetch(set, (i + 1) * set->batch);
		add(&total, run_batch(rt), 1);
	}
	if (tail && !rt->model->loss.mean && !report_has_bad_input()) {
		last = whole * set->batch;
		add_tail(rt, set, last, tail, &total);
	}
	*n_samples = rt->model->loss.mean ? whole * set->batch : set->n_samples;
	if (report_take_bad_input(bad, sizeof(bad))) {
		data_blame(set, last, "an evaluation", bad, rt->p->options->program, d);
		return false;
	}
	*out = (StepResult){.loss = total.weight == 0 ? 0 : total.loss / total.weight,
		.has_accuracy = rt->model->loss.accuracy,
		.accuracy = total.counted == 0 ? 0 : total.correct / total.counted};
	return true;
}
