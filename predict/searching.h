/* predict/searching.h: what search.c has tried, which search_offload.c goes on from, search_bound.c bounds and
 * search_show.c prints.  Private to these four. */
#ifndef SHARDC_SEARCHING_H
#define SHARDC_SEARCHING_H

#include <string.h>

#include "predict/private.h"
#include "predict/search.h"

enum { VALUES_MAX = 24, OVER_MAX = 4 /* plans above the limit that are changed */ };
enum { TRIALS_MAX = 500, TRIALS_SPARE = 128 /* more where none of these fits, or only some on the host */ };
enum { LARGER_MAX = 4, SMALLER_MAX = 2 }; /* groups of hybrid_shard that are tried, beside that of a host */

#define NEGLIGIBLE 5e-3 /* of the step: what a descent is not made for */

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
	int64_t elements;            /* of parameters */
	int64_t group[LARGER_MAX + SMALLER_MAX]; /* ranks of a group of hybrid_shard */
	int n_groups;
	Knob knob[KNOBS];
	Trial *trial[TRIALS_MAX + TRIALS_SPARE];
	int n, most;                 /* trials, and how many there may be */
	const Trial *best;
	Price *price[SEARCH_BATCHES]; /* by micro-batch; NULL: nothing had to be computed again so far */
	double bound;
};

static inline const SearchBatch *batch_of(const Search *s, const Trial *t)
{
	return &s->from.batch[t->pick[KNOB_BATCH]];
}

/* ---- search.c ---- */

/* Plans with these choices, once; NULL: as many plans as may be have been made. */
const Trial *search_try(Search *s, const Trial *choice);
/* The same with another value of one knob. */
const Trial *search_with(Search *s, const Trial *from, int knob, int value);
/* Whether x is to be preferred: it fits better, is faster by more than a ten-thousandth, or else needs less memory by
 * more than a hundredth.  Either may be NULL. */
bool search_better(const Trial *x, const Trial *than);
/* Makes x the best if it is better. */
bool search_takes(Search *s, const Trial *x);
/* Whether the knob changes anything beside these options. */
bool search_matters(const Search *s, KnobId k, const Options *o);
int search_picks(const Search *s, KnobId k); /* how many values of it are tried; 1: only what is given */
/* The trial with what --remat=auto chooses for it within the limit, where no more than `pinned` bytes (0: any number)
 * are pinned on the host.  NULL: it chooses nothing. */
const Trial *search_recompute(Search *s, const Trial *from, int64_t pinned);

/* ---- search_bound.c ---- */

/* The bound of a trial, and of all for which it stands; INFINITY: none of them is within the limit.  o: its options. */
double search_bound(Search *s, const Trial *x, const Options *o);
/* The least seconds of a step in which plans with this trial's micro-batch free so many bytes by recomputing. */
double search_price(const Search *s, const Trial *x, double bytes);
/* The least of the bounds of all strategies and, where the user chose a recomputation, of that; those without any hold
 * for all.  Where nothing is within the limit, it is that of plans that are not. */
double search_least(const Search *s);

/* ---- search_offload.c ---- */

/* Where values of all blocks lie on the host, those of fewer may be enough.  If these take longer to copy out than
 * forward takes, or more of them than may be pinned, others are computed again: first as many as leave no more than
 * both places have room for, then as many as it takes with so many blocks on the host as are hidden.  How many that is
 * depends on what a block leaves, which is known when that has been planned.  Where none of this fits, units are
 * parts of a block.  from: the starts; NULL: nothing that could be the best. */
const Trial *search_offload(Search *s, const TrialVec *from);
/* Starts have the default units and prefetch, and something on the host only where these do not fit without.  Plans
 * above the limit that are faster than what fits have it here; and where the best has the values of all blocks there,
 * those of fewer may be enough. */
void search_offload_faster(Search *s);

/* ---- search.c, for search_show.c ---- */

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
