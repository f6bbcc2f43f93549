/* predict/layouts.c: how ranks share the cores of a host, and how much longer steps take than ops and collectives.
 *
 * A step is longer than its ops, each measured by itself: they are not all at their usual speed at once, and something
 * is between two of them.  That grows with its ops.  Ranks with equal work come to a collective at different times and
 * have to be woken, and where there are more of them than cores the next finds its data in no cache of the core.  That
 * grows with its collectives. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "predict/machine.h"

MachineLayout machine_layout(const Machine *m, int64_t ranks, int64_t threads)
{
	int64_t cores = (int64_t)m->of[MACHINE_RANKS];
	if (m->cuda)
		return (MachineLayout){1, 1};
	return (MachineLayout){(int)ranks, (int)(threads ? threads : MAX(cores / ranks, 1))};
}

int machine_running(const Machine *m, MachineLayout l)
{
	int cores = MAX((int)m->of[MACHINE_RANKS], 1);
	return MIN(l.ranks, MAX(cores / l.threads, 1));
}

typedef enum Sharing { ONE_RANK, CORES_FOR_EACH, TURNS } Sharing;

static Sharing sharing_of(const Machine *m, MachineLayout l)
{
	return l.ranks <= 1 ? ONE_RANK : l.ranks <= machine_running(m, l) ? CORES_FOR_EACH : TURNS;
}

static int distance(MachineLayout x, MachineLayout y)
{
	return abs(x.ranks - y.ranks) + abs(x.threads - y.threads);
}

MachineLayout machine_rows(const Machine *m, MachineLayout l)
{
	if (sharing_of(m, l) != TURNS)
		return l;
	const MachineLayout *near = NULL;
	for (int i = 0; i < m->n_kernels; i++) {
		const MachineLayout *x = &m->kernel[i].layout;
		bool like = x->threads == l.threads && sharing_of(m, *x) == TURNS;
		if (like && (!near || distance(*x, l) < distance(*near, l)))
			near = x;
	}
	return near ? *near : (MachineLayout){machine_running(m, l), l.threads};
}

/* Least squares of times x + each y - z, where x = ops, y = collectives and z = rest.  These are the sums of x x and so
 * on, each weighted. */
typedef struct Squares { double xx, xy, yy, xz, yz; } Squares;

/* Where there are longer steps, those below this do not count: most of such a step is waking threads. */
static double least_step(const Machine *m, MachineLayout l)
{
	bool longer = false;
	for (int i = 0; i < m->n_steps; i++)
		longer = longer || (machine_same_layout(m->step[i].layout, l) && m->step[i].rest >= MACHINE_TINY);
	return longer ? MACHINE_TINY : 0;
}

/* Weights make squares shares of a step's time by which `now` is off it; what is off by less than `near` counts by its
 * square. */
static Squares squares_of(const Machine *m, MachineLayout l, const MachineSkew *now)
{
	const double near = 1e-3, least = least_step(m, l);
	Squares s = {0};
	for (int i = 0; i < m->n_steps; i++) {
		const MachineStep *step = &m->step[i];
		double x = step->ops, y = step->collectives, z = step->rest;
		double off = now ? fmax(fabs(now->times * x + now->each * y - z), near * z) : z, w = 1 / (off * z);
		if (machine_same_layout(step->layout, l) && z >= least)
			s = (Squares){s.xx + w * x * x, s.xy + w * x * y, s.yy + w * y * y, s.xz + w * x * z, s.yz + w * y * z};
	}
	return s;
}

/* times is at least 1, each at least 0. */
static MachineSkew fit(Squares s)
{
	const double alike = 1e-6; /* of the same collectives for their ops, steps do not tell one from the other */
	double det = s.xx * s.yy - s.xy * s.xy;
	bool both = det > alike * s.xx * s.yy;
	MachineSkew k = {s.xz / s.xx, 0};
	if (both && s.yz * s.xx > s.xz * s.xy)
		k = (MachineSkew){(s.xz * s.yy - s.yz * s.xy) / det, (s.yz * s.xx - s.xz * s.xy) / det};
	if (k.times < 1)
		k = (MachineSkew){1, s.yy > 0 ? fmax((s.yz - s.xy) / s.yy, 0) : 0};
	return k;
}

/* Least absolute deviations, by least squares whose weights follow from the ones before: a step that something else on
 * the machine made long does not pull, as its square would. */
static MachineSkew deviations(const Machine *m, MachineLayout l)
{
	enum { ROUNDS = 40 };
	MachineSkew k = fit(squares_of(m, l, NULL));
	for (int i = 0; i < ROUNDS; i++)
		k = fit(squares_of(m, l, &k));
	return k;
}

static int by_value(const void *x, const void *y)
{
	double a = *(const double *)x, b = *(const double *)y;
	return (a > b) - (a < b);
}

/* The median, over the steps of models in this layout, of what they take divided by what k gives; 1: there are none.
 * Probes are lists of ops that have little in common, so their steps are longer or shorter than a model's. */
static double of_models(const Machine *m, MachineLayout l, MachineSkew k)
{
	Arena *a = arena_new();
	double *ratio = NEW_N(a, double, m->n_steps + 1), least = least_step(m, l), median = 1;
	int n = 0;
	for (int i = 0; i < m->n_steps; i++) {
		const MachineStep *s = &m->step[i];
		bool probe = !strncmp(s->program, MACHINE_PROBE, strlen(MACHINE_PROBE));
		if (machine_same_layout(s->layout, l) && !probe && s->rest >= least)
			ratio[n++] = s->rest / (k.times * s->ops + k.each * s->collectives);
	}
	qsort(ratio, (size_t)n, sizeof(*ratio), by_value);
	if (n)
		median = (ratio[(n - 1) / 2] + ratio[n / 2]) / 2;
	arena_free(a);
	return median;
}

/* The fit of all steps, scaled so that it is right for models at the median, but no step is shorter than its ops. */
static MachineSkew skew_of(const Machine *m, MachineLayout l)
{
	MachineSkew k = deviations(m, l);
	double times = of_models(m, l, k);
	return (MachineSkew){fmax(times * k.times, 1), times * k.each};
}

MachineSkew machine_skew(const Machine *m, MachineLayout l)
{
	const MachineStep *near = NULL;
	for (int i = 0; i < m->n_steps; i++) {
		const MachineStep *s = &m->step[i];
		bool like = sharing_of(m, s->layout) == sharing_of(m, l);
		if (like && (!near || distance(s->layout, l) < distance(near->layout, l)))
			near = s;
	}
	return near ? skew_of(m, near->layout) : (MachineSkew){1, 0};
}
