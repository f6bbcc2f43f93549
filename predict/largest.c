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

/* The bytes that a rank needs at this size of the dim; -1: it is refused, or too much. */
static int64_t fitting(const Asking *s, int at, int64_t size)
{
	Options o = *s->o;
	o.graph.bind.at[at] = bind_of(s, at, size);
	o.memory.memory_limit = 0;
	int64_t bytes = s->of->again->memory(&o, s->of->again->context);
	return bytes <= s->limit ? bytes : -1;
}

/* Finds the largest size that fits, from `now` on. */
static void grow(const Asking *s, int at, int64_t now, Largest *out)
{
	int64_t low = fitting(s, at, now) >= 0 ? now : 0, high = low ? 2 * now : now;
	while (low && high <= SIZE_MAX_ASKED && fitting(s, at, high) >= 0) {
		low = high;
		high *= 2;
	}
	out->more = low && high > SIZE_MAX_ASKED;
	while (high - low > 1 && !out->more) {
		int64_t middle = low + (high - low) / 2;
		if (fitting(s, at, middle) >= 0)
			low = middle;
		else
			high = middle;
	}
	out->size = low;
	out->bytes = low ? fitting(s, at, low) : 0;
	out->option = low ? answers_option(s, "--bind", bind_of(s, at, low)) : NULL;
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
