/* choose.h: what --remat=auto and --wrap=auto stand for: options that a user could have given. */
#ifndef SHARDC_CHOOSE_H
#define SHARDC_CHOOSE_H

#include "predict/search.h"
#include "recompute.h"

/* Checks what is asked of --remat=auto, before a model is read.  chosen: NULL, or what --wrap=auto found. */
bool choose_check(const Options *o, const Search *chosen, Diag *d);
/* Puts a policy in the place of --remat=auto.  asked: the options as they were when the model was read. */
bool choose_remat(Options *o, Options *asked, const PipelineView *view, Arena *a, Diag *d);
bool choose_write_remat(const Options *o, Diag *d); /* --remat-out */

/* What --remat=auto knows of plans with some options. */
typedef struct ChooseKept { Options o; Sync sync; Recompute *of; Arena *a; } ChooseKept;
enum { CHOOSE_KEPT = 4 };
/* How to plan from the model again.  asked: the options as they were when it was read; it lives as long as the plans
 * are made. */
typedef struct ChooseAgain {
	Options asked;
	const Machine *machine;
	ChooseKept kept[CHOOSE_KEPT]; int n_kept; /* the last ones that were asked about */
} ChooseAgain;
PlanAgain choose_again(ChooseAgain *context);
void choose_again_end(ChooseAgain *context);

/* Sets *settled to the options of this command line with those that --wrap=auto found; NULL after messages.  o: the
 * options as they were given. */
const Search *choose_units(int argc, char **argv, const Options *o, Options *settled, Arena *a, Diag *d);

#endif
