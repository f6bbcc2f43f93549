/* predict/price.h: the least seconds that backward takes to compute values again where a plan must keep fewer bytes. */
#ifndef SHARDC_PRICE_H
#define SHARDC_PRICE_H

#include "passes/passes.h"
#include "predict/machine.h"

typedef struct Price Price;

/* How ops run: how the host is shared, and how many times as long they take since ranks take turns and wait. */
typedef struct PriceOf {
	const Machine *machine;
	MachineLayout rows;
	double turns;
} PriceOf;
/* Of the values that backward of this program reads from repeated blocks of forward.  It lives in the arena. */
Price *price_find(const Restart *start, const Options *o, const PriceOf *of, Arena *a);
/* No choice of --remat that frees so many bytes between forward and backward takes fewer seconds; INFINITY: none frees
 * them. */
double price_seconds(const Price *p, double bytes);
double price_bytes(const Price *p); /* the most that a choice frees */

#endif
