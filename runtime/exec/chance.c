/* runtime/exec/chance.c: --stochastic-rounding: the random numbers by which an f32 parameter is rounded to 16 bits.
 *
 * A number depends on --seed, the parameter's name, the element's index in it and the update that the step makes
 * (StepScalars.step), and on nothing else.  So every gather of a step gives the same bits, for any number of ranks,
 * strategy and grouping into units.  A step that was left out is followed by one with the same random numbers and the
 * same parameters.
 *
 * A cast of a part of a flat is cut at the parameters in it, and each parameter is rounded with its own numbers. */
#include <string.h>

#include "base/philox.h"
#include "runtime/exec/private.h"

enum { NAMES = 1 }; /* seed of the hash of names; it differs from that of initial weights, which may use the same
                     * --seed */

uint64_t chance_id(const RtTensor *t)
{
	return hash_bytes(t->name, strlen(t->name), NAMES);
}

uint64_t chance_key(const Rt *rt, uint64_t id)
{
	return philox_key((uint64_t)rt->p->options->seed, id);
}

uint64_t chance_step(const Rt *rt)
{
	return (uint64_t)rt->p->progress.updates + 1;
}

/* Calls `use` for elements [begin, end) of the flat that c casts, with this chance. */
static Cast part_of(const Cast *c, int64_t begin, int64_t end)
{
	Cast part = *c;
	int64_t skip = begin - c->first;
	part.to = (char *)c->to + skip * dtype_info[c->made].bytes;
	part.from = (const char *)c->from + skip * dtype_info[c->given].bytes;
	part.n = end - begin;
	return part;
}

/* Each piece is a parameter and the gap of zeros after it; the last one is what follows all parameters. */
void chance_parts(const Rt *rt, const Cast *c, ChanceUse *use)
{
	int64_t end = c->first + c->n, covered = c->first;
	for (int i = 0; i < rt->model->n_tensors && c->chance.on; i++) {
		const RtTensor *t = &rt->model->tensors[i];
		if (t->kind != RT_PARAM || t->unit != c->unit || t->flat != c->flat)
			continue;
		int64_t from = MAX(t->offset, c->first), to = MIN(layout_next(t->offset + tensor_numel(t)), end);
		if (from >= to)
			continue;
		Cast part = part_of(c, from, to);
		part.chance.id = chance_id(t);
		part.first = from - t->offset;
		use(rt, &part);
		covered = MAX(covered, to);
	}
	Cast rest = part_of(c, covered, end);
	rest.chance.on = false;
	if (rest.n)
		use(rt, &rest);
}

static void cast_part(const Rt *rt, const Cast *c)
{
	const StepScalars *s = rt->scalars;
	if (!c->chance.on)
		k_cast_wide(c->to, (KDType)c->made, c->from, (KDType)c->given, c->n);
	else
		k_cast_by_chance(c->to, (KDType)c->made, c->from, c->n, philox_key(s->seed, c->chance.id), c->first,
			(uint64_t)(s->step + (c->chance.next && !s->skip)));
}

void chance_cast(const Rt *rt, const Cast *c)
{
	if (dtype_is_scaled(c->made))
		scales_cast(rt, c, k_cast_f8_wide);
	else
		chance_parts(rt, c, cast_part);
}
