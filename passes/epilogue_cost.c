/* passes/epilogue_cost.c: the costs of epilogue_cost.def, and the cheapest place. */
#include "passes/epilogue_cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEVER INFINITY
const EpilogueRates epilogue_rates[EPILOGUE_TARGETS] = {
#define TARGET(id, launch, gelu, sums) [EPILOGUE_ON_##id] = {#id, launch, {[OF_GELU] = {[IN_PRODUCT] = gelu}, \
	[OF_GELU_GRAD] = {[IN_PRODUCT] = gelu}, [OF_SUMS] = {[IN_PRODUCT] = sums}}},
#include "passes/epilogue_cost.def"
};

typedef struct Row { bool is; int passes, launches, kept; } Row;
static const Row row[FOLLOWERS][WHERES] = {
#define COST(what, where, passes, launches, kept) [OF_##what][IN_##where] = {true, passes, launches, kept},
#include "passes/epilogue_cost.def"
};

EpilogueTarget epilogue_target(const Options *o)
{
	enum { HOPPER = 90 };
	if (!options_cuda(o))
		return EPILOGUE_ON_CPU;
	return options_sm(o) < HOPPER ? EPILOGUE_ON_AMPERE : EPILOGUE_ON_HOPPER;
}

EpilogueCost epilogue_cost(const EpilogueRates *r, Follower what, Where where, const Type *t)
{
	const Row *x = &row[what][where];
	double bytes = (double)type_bytes(t), more = x->is ? r->more[what][where] : NEVER;
	return (EpilogueCost){.moved = x->passes * bytes, .kept = x->kept * bytes, .launches = x->launches,
		.more = more > 0 ? more * (double)type_numel(t) : 0};
}

double epilogue_total(const EpilogueRates *r, const EpilogueCost *c)
{
	enum { KEPT = 2 };
	return c->moved + KEPT * c->kept + c->launches * r->launch + c->more;
}

Where epilogue_where(const EpilogueRates *r, Follower what, unsigned may, const Type *t)
{
	double least = INFINITY;
	Where best = row[what][IN_APART].is ? IN_APART : IN_LOOP;
	for (int w = 0; w < WHERES; w++) {
		EpilogueCost c = epilogue_cost(r, what, (Where)w, t);
		if (!(may >> w & 1) || !(epilogue_total(r, &c) < least))
			continue;
		least = epilogue_total(r, &c);
		best = (Where)w;
	}
	return best;
}
