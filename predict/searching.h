/* predict/searching.h: what search.c has tried, which search_show.c prints.  Private to these two. */
#ifndef SHARDC_SEARCHING_H
#define SHARDC_SEARCHING_H

#include <string.h>

#include "predict/private.h"
#include "predict/search.h"

enum { VALUES_MAX = 13, TRIALS_MAX = 500 };
enum { LARGER_MAX = 4, SMALLER_MAX = 2 }; /* groups of hybrid_shard that are tried, beside that of a host */

typedef enum KnobId {
#define KNOB(id, ...) KNOB_##id,
#include "predict/search.def"
	KNOBS
} KnobId;

typedef struct Knob {
	const char *option;
	bool open;                   /* the user left it to the search */
	const char *value[VALUES_MAX];
	bool further[VALUES_MAX];    /* than the value in front of it */
	int n;
} Knob;

/* A plan that was tried. */
typedef struct Trial {
	int pick[KNOBS];             /* of the values of each knob; those that are not open have 0 */
	const char *keep;            /* regular expression of units that stay gathered after forward; NULL: none more */
	bool refused;
	Played of;
	int64_t over;                /* bytes beyond the limit, and beyond what may be pinned on the host */
	double bound;                /* of plans with its strategy and recomputation or, if it has none, with any */
} Trial;

typedef VEC(const Trial *) TrialVec;

struct Search {
	SearchFrom from;
	Options given;
	Sync sync;
	const Machine *m;
	Arena *a;
	int64_t limit, parameters;   /* bytes */
	int64_t group[LARGER_MAX + SMALLER_MAX]; /* ranks of a group of hybrid_shard */
	int n_groups;
	Knob knob[KNOBS];
	Trial *trial[TRIALS_MAX];
	int n;
	const Trial *best;
	Price *price[SEARCH_BATCHES]; /* by micro-batch; NULL: nothing had to be computed again so far */
	double bound;
};

static inline const SearchBatch *batch_of(const Search *s, const Trial *t)
{
	return &s->from.batch[t->pick[KNOB_BATCH]];
}
/* Plans with these choices, once; NULL: TRIALS_MAX plans have been made. */
const Trial *search_try(Search *s, const Trial *choice);
/* Whether the knob changes anything beside these options. */
bool search_matters(const Search *s, KnobId k, const Options *o);

/* ---- search_bound.c ---- */

/* The bound of a trial, and of all for which it stands; INFINITY: none of them is within the limit.  o: its options. */
double search_bound(Search *s, const Trial *x, const Options *o);
/* The least seconds of a step in which plans with this trial's micro-batch free so many bytes by recomputing. */
double search_price(const Search *s, const Trial *x, double bytes);
/* The least of the bounds of all strategies and, where the user chose a recomputation, of that; those without any hold
 * for all.  Where nothing is within the limit, it is that of plans that are not. */
double search_least(const Search *s);

/* ---- search.c ---- */

/* Whether the plan has this knob's option; those that do without have what holds without it. */
bool search_says(const Search *s, const Trial *t, int k);
/* The micro-batches of a step: several of them want --accum=many, which goes with them where the user did not say. */
int64_t search_micro_batches(const Search *s, const Trial *t);
bool search_adds_many(const Search *s, const Trial *t);
/* NULL is equal to itself alone. */
static inline bool same_text(const char *x, const char *y)
{
	return x && y ? !strcmp(x, y) : x == y;
}

#endif
