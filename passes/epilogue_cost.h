/* passes/epilogue_cost.h: where a GELU, its gradient and the sums of columns are computed, by what that costs.
 *
 * A cost is a number of bytes: those that memory moves, and those that it would move in the time that the rest takes.
 * A byte that is kept for backward costs the two that a loop would move to make it again. */
#ifndef SHARDC_EPILOGUE_COST_H
#define SHARDC_EPILOGUE_COST_H

#include "base/options.h"
#include "ir/ir.h"

typedef enum Follower { OF_GELU, OF_GELU_GRAD, OF_SUMS, FOLLOWERS } Follower;
/* By itself, in a loop, or in a product. */
typedef enum Where { IN_APART, IN_LOOP, IN_PRODUCT, WHERES } Where;

/* What a launch costs; and for each element what it costs in that place besides, INFINITY: it cannot be there. */
typedef struct EpilogueRates { const char *id; double launch, more[FOLLOWERS][WHERES]; } EpilogueRates;
typedef enum EpilogueTarget {
#define TARGET(id, ...) EPILOGUE_ON_##id,
#include "passes/epilogue_cost.def"
	EPILOGUE_TARGETS
} EpilogueTarget;
extern const EpilogueRates epilogue_rates[EPILOGUE_TARGETS];
EpilogueTarget epilogue_target(const Options *o);

/* The parts of a cost. */
typedef struct EpilogueCost { double moved, kept, more; int launches; } EpilogueCost;
EpilogueCost epilogue_cost(const EpilogueRates *r, Follower what, Where where, const Type *t);
double epilogue_total(const EpilogueRates *r, const EpilogueCost *c);
/* The cheapest place for a tensor of type t among the set `may`, 1 << IN_LOOP and so on; the first of equals. */
Where epilogue_where(const EpilogueRates *r, Follower what, unsigned may, const Type *t);

#endif
