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

/* The bytes that a rank needs at this size of the dim; -1: it is refused. */
static int64_t bytes_at(const Asking *s, int at, int64_t size)
{
	Options o = *s->o;
	o.graph.bind.at[at] = bind_of(s, at, size);
	o.memory.memory_limit = 0;
	return s->of->again->memory(&o, s->of->again->context);
}

/* The largest size that fits so far and the least that does not, with their bytes; 0: none is known. */
typedef struct Between {
	int64_t low, low_bytes, high, high_bytes;
	double slope;            /* bytes of one more, between the last two sizes with a plan; 0: not known */
} Between;

/* The size to try next: memory is nearly a line, so most often it is on this line.  Every third time the middle is
 * tried, which ends the search where it is none. */
static int64_t next_size(const Between *b, int64_t limit, int tried)
{
	int64_t last = b->high ? b->high - 1 : SIZE_MAX_ASKED;
	double line = b->slope > 0 ? (double)b->low + (double)(limit - b->low_bytes) / b->slope : 0;
	int64_t guess = line >= (double)last ? last : (int64_t)line;
	if (!b->low || b->slope <= 0 || tried % 3 == 2)
		guess = b->high ? b->low + (b->high - b->low) / 2 : 2 * b->low;
	return MIN(MAX(guess, b->low + 1), last);
}

/* Takes what is known of one more size. */
static void learn(Between *b, int64_t size, int64_t bytes, int64_t limit)
{
	bool fits = bytes >= 0 && bytes <= limit;
	int64_t near = b->low ? b->low : b->high, near_bytes = b->low ? b->low_bytes : b->high_bytes;
	if (bytes > 0 && near_bytes > 0)
		b->slope = (double)(bytes - near_bytes) / (double)(size - near);
	*(fits ? &b->low : &b->high) = size;
	*(fits ? &b->low_bytes : &b->high_bytes) = bytes;
}

/* Finds the largest size that fits, from `now` on: it does, and the next one does not. */
static void grow(const Asking *s, int at, int64_t now, Largest *out)
{
	Between b = {0};
	learn(&b, now, bytes_at(s, at, now), s->limit);
	for (int tried = 1; b.high ? b.high - b.low > 1 : b.low < SIZE_MAX_ASKED; tried++) {
		int64_t size = tried == 1 && b.low ? MIN(2 * now, SIZE_MAX_ASKED) : next_size(&b, s->limit, tried);
		learn(&b, size, bytes_at(s, at, size), s->limit);
	}
	out->more = !b.high;
	out->size = b.low;
	out->bytes = b.low_bytes;
	out->option = b.low ? answers_option(s, "--bind", bind_of(s, at, b.low)) : NULL;
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
