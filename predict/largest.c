/* predict/largest.c: `shardc plan --machine --ask`: the largest batch, and the largest of each other dim that --bind
 * gives a size, with which a rank has enough memory.
 *
 * Each dim grows alone, with all other options as they are.  The model is read and planned for each size that is tried,
 * so the memory is that of the plan by hand. */
#include <inttypes.h>
#include <string.h>

#include "predict/answers.h"

enum { SIZE_MAX_ASKED = 1 << 24 };

static const char *bind_of(const Asking *s, int at, int64_t size)
{
	const char *bind = s->o->graph.bind.at[at];
	return arena_printf(s->a, "%.*s=%" PRId64, (int)strcspn(bind, "="), bind, size);
}

/* A size of the dim: what a rank needs; 0 bytes: it is refused. */
typedef struct Size {
	int64_t at;
	PlanNeeds needs;
	bool fits;
} Size;

static Size plan_at(const Asking *s, int at, int64_t size)
{
	Options o = *s->o;
	Size x = {.at = size};
	o.graph.bind.at[at] = bind_of(s, at, size);
	o.memory.memory_limit = o.memory.host_limit = 0;
	bool ok = s->of->again->memory(&o, &x.needs, s->of->again->context);
	x.fits = ok && x.needs.bytes <= s->limit && !machine_overpins(s->of->machine, x.needs.pinned);
	return x;
}

/* The largest size that fits so far and the least that does not; at 0: none is known. */
typedef struct Between {
	Size low, high;
	double slope;            /* bytes of one more, between the last two sizes with a plan; 0: not known */
} Between;

/* The size to try next: memory is nearly a line, so most often it is on this line.  Every third time the middle is
 * tried, which ends the search where it is none. */
static int64_t next_size(const Between *b, int64_t limit, int tried)
{
	int64_t low = b->low.at, high = b->high.at, last = high ? high - 1 : SIZE_MAX_ASKED;
	double line = b->slope > 0 ? (double)low + (double)(limit - b->low.needs.bytes) / b->slope : 0;
	int64_t guess = line >= (double)last ? last : (int64_t)line;
	if (!low || b->slope <= 0 || tried % 3 == 2)
		guess = high ? low + (high - low) / 2 : 2 * low;
	return MIN(MAX(guess, low + 1), last);
}

/* Takes what is known of one more size. */
static void learn(Between *b, const Size *x)
{
	const Size *near = b->low.at ? &b->low : &b->high;
	if (x->needs.bytes > 0 && near->needs.bytes > 0)
		b->slope = (double)(x->needs.bytes - near->needs.bytes) / (double)(x->at - near->at);
	*(x->fits ? &b->low : &b->high) = *x;
}

/* The size, or the largest below it with which --global-batch is whole micro-batches: samples grow with the size where
 * they do not divide. */
static int64_t whole_batches(const Options *o, const Size *x)
{
	int64_t size = x->at;
	while (size > 1 && !predict_micro_batches(o, x->needs.batch * size / x->at))
		size--;
	return size;
}

/* Finds the largest size that fits, from `now` on: it does, and the next one does not. */
static void grow(const Asking *s, int at, int64_t now, Largest *out)
{
	Between b = {0};
	Size x = plan_at(s, at, now);
	learn(&b, &x);
	for (int tried = 1; b.high.at ? b.high.at - b.low.at > 1 : b.low.at < SIZE_MAX_ASKED; tried++) {
		x = plan_at(s, at, tried == 1 && b.low.at ? MIN(2 * now, SIZE_MAX_ASKED) : next_size(&b, s->limit, tried));
		learn(&b, &x);
	}
	int64_t size = whole_batches(s->o, &b.low);
	out->more = !b.high.at && size == b.low.at;
	out->held = size != b.low.at;
	if (size != b.low.at)
		b.low = plan_at(s, at, size);
	out->size = b.low.fits ? b.low.at : 0;
	out->bytes = b.low.needs.bytes;
	out->option = b.low.fits ? answers_option(s, "--bind", bind_of(s, at, b.low.at)) : NULL;
}

void largest_find(Asking *s)
{
	Answers *x = s->out;
	if (options_sizes(s->o)) {
		x->largest_why = "the program has several sizes (--bind=DIM=N,N), which share their memory; give one";
		return;
	}
	for (int i = 0; i < s->o->graph.bind.n; i++) {
		const char *bind = s->o->graph.bind.at[i], *equals = strrchr(bind, '=');
		Largest l = {.now = bind};
		int64_t now;
		if (!equals || !str_to_size(equals + 1, false, &now) || now < 1)
			continue;
		grow(s, i, now, &l);
		vec_push(s->a, &x->largest, l);
	}
	if (!x->largest.n)
		x->largest_why = "no --bind gives a dim its size: those of the model are fixed, or export it with free ones "
			"(dynamic_batch=True of shardc.export)";
}
