/* passes/patterns/condition.c: sets of positions, as diagonals for each combination of atoms.
 *
 * The representation is canonical: two conditions over the same atoms are equal if and only if their tables are. */
#include "passes/patterns/mask.h"

#include <string.h>

/* ---- diagonals ---- */

static Diagonals *diagonals_new(Space *x, int room)
{
	Diagonals *d = arena_alloc(x->a, sizeof(*d) + sizeof(Run) * (size_t)MAX(room, 1));
	d->n = 0;
	return d;
}

static Diagonals *one_run(Space *x, int64_t lo, int64_t hi)
{
	Diagonals *d = diagonals_new(x, 1);
	lo = MAX(lo, x->all.lo);
	hi = MIN(hi, x->all.hi);
	if (lo <= hi)
		d->run[d->n++] = (Run){lo, hi};
	return d;
}

static const Diagonals *diagonals_and(Space *x, const Diagonals *a, const Diagonals *b)
{
	Diagonals *d = diagonals_new(x, a->n + b->n);
	for (int i = 0, j = 0; i < a->n && j < b->n;) {
		int64_t lo = MAX(a->run[i].lo, b->run[j].lo), hi = MIN(a->run[i].hi, b->run[j].hi);
		if (lo <= hi)
			d->run[d->n++] = (Run){lo, hi};
		if (a->run[i].hi < b->run[j].hi)
			i++;
		else
			j++;
	}
	if (d->n <= MASK_RUNS)
		return d;
	x->overflow = true;
	return one_run(x, 0, -1);
}

static const Diagonals *diagonals_not(Space *x, const Diagonals *a)
{
	Diagonals *d = diagonals_new(x, a->n + 1);
	int64_t from = x->all.lo;
	for (int i = 0; i < a->n; i++) {
		if (a->run[i].lo > from)
			d->run[d->n++] = (Run){from, a->run[i].lo - 1};
		from = a->run[i].hi + 1;
	}
	if (from <= x->all.hi)
		d->run[d->n++] = (Run){from, x->all.hi};
	return d;
}

static bool diagonals_equal(const Diagonals *a, const Diagonals *b)
{
	return a->n == b->n && !memcmp(a->run, b->run, sizeof(Run) * (size_t)a->n);
}

/* ---- conditions ---- */

static Condition *condition_new(Space *x, int n)
{
	Condition *c = arena_alloc(x->a, sizeof(*c) + (sizeof(c->at[0]) << n));
	c->n = n;
	return c;
}

static const Diagonals *diagonals_of(const Condition *c, int atoms)
{
	return c->at[atoms & ((1 << c->n) - 1)];
}

const Condition *condition_run(Space *x, int64_t lo, int64_t hi)
{
	Condition *c = condition_new(x, 0);
	c->at[0] = one_run(x, lo, hi);
	return c;
}

const Condition *condition_atom(Space *x, int atom)
{
	Condition *c = condition_new(x, atom + 1);
	const Diagonals *all = one_run(x, x->all.lo, x->all.hi), *none = one_run(x, 0, -1);
	for (int i = 0; i < 1 << c->n; i++)
		c->at[i] = i >> atom & 1 ? all : none;
	return c;
}

const Condition *condition_and(Space *x, const Condition *a, const Condition *b)
{
	Condition *c = condition_new(x, MAX(a->n, b->n));
	for (int i = 0; i < 1 << c->n; i++)
		c->at[i] = diagonals_and(x, diagonals_of(a, i), diagonals_of(b, i));
	return c;
}

const Condition *condition_not(Space *x, const Condition *a)
{
	Condition *c = condition_new(x, a->n);
	for (int i = 0; i < 1 << c->n; i++)
		c->at[i] = diagonals_not(x, a->at[i]);
	return c;
}

const Condition *condition_or(Space *x, const Condition *a, const Condition *b)
{
	return condition_not(x, condition_and(x, condition_not(x, a), condition_not(x, b)));
}

const Condition *condition_given(Space *x, const Condition *a, int atom, bool holds)
{
	Condition *c = condition_new(x, a->n);
	for (int i = 0; i < 1 << c->n; i++)
		c->at[i] = diagonals_of(a, holds ? i | 1 << atom : i & ~(1 << atom));
	return c;
}

bool condition_equal(const Condition *a, const Condition *b)
{
	for (int i = 0; i < 1 << MAX(a->n, b->n); i++)
		if (!diagonals_equal(diagonals_of(a, i), diagonals_of(b, i)))
			return false;
	return true;
}

bool condition_is_none(const Condition *a)
{
	for (int i = 0; i < 1 << a->n; i++)
		if (a->at[i]->n)
			return false;
	return true;
}

bool condition_is_all(const Space *x, const Condition *a)
{
	for (int i = 0; i < 1 << a->n; i++)
		if (a->at[i]->n != 1 || a->at[i]->run[0].lo != x->all.lo || a->at[i]->run[0].hi != x->all.hi)
			return false;
	return true;
}

bool condition_asks(const Condition *a, int atom)
{
	for (int i = 0; i < 1 << a->n; i++)
		if (!diagonals_equal(a->at[i], diagonals_of(a, i ^ 1 << atom)))
			return true;
	return false;
}

const Condition *condition_any(Space *x, const Condition *a)
{
	Condition *c = condition_new(x, a->n);
	for (int i = 0; i < 1 << c->n; i++)
		c->at[i] = a->at[i]->n ? one_run(x, x->all.lo, x->all.hi) : a->at[i];
	return c;
}

const Diagonals *condition_diagonals(const Condition *a)
{
	const Diagonals *d = NULL;
	for (int i = 0; i < 1 << a->n; i++) {
		if (d && a->at[i]->n && !diagonals_equal(d, a->at[i]))
			return NULL;
		d = a->at[i]->n ? a->at[i] : d;
	}
	return d;
}
