/* runtime/train/eval.c: evaluates held-out samples, each once, on all ranks.
 *
 * Batch i of rank r is the B samples from (iW + r)B on; all ranks run the program equally often, because it has
 * gathers.  If the loss is one number per batch (output:NAME), or samples of a batch depend on each other, only whole
 * batches are evaluated, and the caller reports how many samples are left out.  Otherwise every sample counts once.
 *
 * A last batch has t < B samples.  Sums are additive over rows, so the t samples contribute the sums of a batch that is
 * filled up with copies of one of them, less (B - t)/B of the sums of a batch of copies only.  So programs need no
 * masked rows. */
#include "runtime/train/train.h"

typedef struct Sums { double loss, weight, correct, counted, bad; } Sums;

/* The step of random numbers in evaluations; no step of training gets there.  So each evaluation draws the same for
 * each sample. */
#define EVAL_RNG_STEP ((UINT64_C(1) << 44) - 1)

/* Runs a batch of n samples from `first` on, filled up with copies of it. */
static Sums run_batch(Rt *rt, DataSet *set, int64_t first, int64_t n)
{
	StepScalars scalars = rt->p->scalars;
	scalars.seed = (uint64_t)rt->p->options->seed;
	scalars.rng_step = EVAL_RNG_STEP;
	scalars.own = MAX(n, 1);
	step_begin(rt, &scalars);
	data_load_part(set, step_input(rt), first, n, first);
	step_run(rt, PROGRAM_EVAL, first);
	step_sums(rt);
	return (Sums){rt->loss_sum, rt->loss_weight, rt->correct, rt->counted, 0};
}

static void add(Sums *to, Sums s, double scale)
{
	if (scale == 0)
		return;
	to->loss += s.loss * scale;
	to->weight += s.weight * scale;
	to->correct += s.correct * scale;
	to->counted += s.counted * scale;
}

/* Chooses the size of a round of n samples, which all ranks run at; one that is not full may be filled up
 * with the sample at position 0. */
static void choose_size(Rt *rt, DataSet *set, int64_t first, int64_t n)
{
	int64_t round = MAX(rt->p->world.size, 1) * set->batch;
	if (!set->sizes.model)
		return;
	set->sizes.now = MAX(data_size(set, first, n), n < round ? data_size(set, 0, 1) : 0);
	program_size(rt, set->sizes.now);
	streams_program(rt, PROGRAM_EVAL);
}

/* Runs the last round: n samples for this rank, from `first` on; parted: some rank has a partial batch. */
static void add_tail(Rt *rt, DataSet *set, int64_t first, int64_t n, bool parted, Sums *total)
{
	add(total, run_batch(rt, set, first, n), n > 0);
	if (!parted || rt->model->loss.whole)
		return;
	add(total, run_batch(rt, set, first, 0), n > 0 ? -(double)(set->batch - n) / (double)set->batch : 0);
}

/* Remembers the first batch in which bad data was met. */
static void note_bad(int64_t *bad_first, int64_t first)
{
	if (*bad_first < 0 && report_has_bad_input())
		*bad_first = first;
}

/* With several ranks all continue after bad data, because either all or none must run the program. */
static Sums run_all(Rt *rt, DataSet *set, int64_t *bad_first)
{
	Sums total = {0};
	int64_t world = MAX(rt->p->world.size, 1), round = world * set->batch, mine = rt->p->world.rank * set->batch;
	int64_t whole = set->n_samples / round, tail = set->n_samples % round;
	for (int64_t i = 0; i < whole && (world > 1 || !report_has_bad_input()); i++) {
		int64_t first = i * round + mine;
		choose_size(rt, set, i * round, round);
		data_prefetch(set, first + round);
		add(&total, run_batch(rt, set, first, set->batch), 1);
		note_bad(bad_first, first);
	}
	if (tail >= (rt->model->loss.whole ? set->batch : 1) && (world > 1 || !report_has_bad_input())) {
		int64_t n = MIN(MAX(tail - mine, 0), set->batch), first = whole * round + mine;
		if (n == 0 || (rt->model->loss.whole && n < set->batch))
			first = n = 0; /* samples that are left out are not read: copies of a sample that counts run in their
			                * place */
		choose_size(rt, set, whole * round, tail);
		add_tail(rt, set, first, n, tail % set->batch, &total);
		note_bad(bad_first, first);
	}
	total.bad = report_has_bad_input();
	return total;
}

bool eval_run(Rt *rt, DataSet *set, StepResult *out, int64_t *n_samples, Diag *d)
{
	BadInput bad;
	int64_t bad_first = -1;
	streams_program(rt, PROGRAM_EVAL);
	Sums total = run_all(rt, set, &bad_first);
	streams_program(rt, PROGRAM_OUTSIDE);
	if (rt->p->comm)
		comm_sum(rt->p->comm, &total.loss, (int)(sizeof(total) / sizeof(double)));
	*n_samples = set->n_samples - (rt->model->loss.whole ? set->n_samples % set->batch : 0);
	if (report_take_bad_input(&bad))
		data_blame(set, bad_first, "an evaluation", &bad, rt->p->options->program, d);
	if (total.bad > 0)
		return false;
	*out = (StepResult){.loss = total.weight == 0 ? 0 : total.loss / (rt->model->loss.adds ? 1 : total.weight),
		.has_accuracy = rt->model->loss.accuracy,
		.accuracy = total.counted == 0 ? 0 : total.correct / total.counted};
	return true;
}
