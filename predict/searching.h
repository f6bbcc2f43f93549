/* predict/searching.h: what search.c has tried, which search_show.c prints.  Private to these two. */
#ifndef SHARDC_SEARCHING_H
#define SHARDC_SEARCHING_H

#include <string.h>

#include "predict/private.h"
#include "predict/search.h"

enum { VALUES_MAX = 13, TRIALS_MAX = 400 };
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
