/* predict/search.h: --wrap=auto: the fastest plan that fits a machine, among the options that the user left open.
 *
 * Every plan that is tried is made whole and played (simulate.c), so what is said of it is what `shardc plan` says of
 * it by hand.  The search is coordinate descent from each combination of micro-batch, strategy and recomputation that
 * can still win; it depends on nothing but its arguments. */
#ifndef SHARDC_SEARCH_H
#define SHARDC_SEARCH_H

#include "passes/passes.h"
#include "predict/predict.h"

typedef struct Search Search;

/* Whether the options leave the units to the search; such options reach no pass. */
bool search_wanted(const Options *o);
/* A micro-batch of this many samples, and where planning with it begins. */
typedef struct SearchBatch {
	const char *bind;            /* "batch=4"; NULL: it is as the user and the model say */
	int64_t size;
	Restart start;
} SearchBatch;
/* Whether a step may have several micro-batches: it has them, or the user left it open and a program is made, whose
 * binary can. */
bool search_may_many(const Options *o);
/* The sizes that a micro-batch of --global-batch may have, the smallest first; returns their number. */
enum { SEARCH_BATCHES = 12 };
int search_batches(const Options *o, int64_t size[SEARCH_BATCHES]);
typedef struct SearchFrom {
	const SearchBatch *batch;    /* those that are tried; they live as long as the result */
	int n_batches;
	const Options *options;      /* --wrap is empty */
	Sync sync;                   /* where options do not say */
	const Machine *machine;
	const PlanAgain *again;
} SearchFrom;
/* NULL after messages: no plan can be made, or none is within --memory-limit.  Where none fits the memory of the
 * machine alone, it finds the smallest and says so.  The result lives in the arena. */
Search *search_run(const SearchFrom *from, Arena *a, Diag *d);
/* The options that the search chose, as a user gives them ("--wrap=blocks:2"); NULL ends them. */
const char *const *search_options(const Search *s);
/* Flags of the binary with which it runs the step that was chosen ("--accum 8"); "": none. */
const char *search_flags(const Search *s);
const Machine *search_machine(const Search *s); /* for which it looked */
/* Bytes that the plan needs beyond what a rank may have; 0: it fits. */
int64_t search_over(const Search *s);
/* What was chosen, what one other choice would cost, and how far from the best it may be. */
void search_text(FILE *f, const Search *s);
void search_json(FILE *f, const Search *s); /* a member of the plan's object, ended by ",\n" */

#endif
