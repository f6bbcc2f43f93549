/* tests/oracle/mutate.h: small wrong (and some right) changes of a schedule. */
#ifndef SHARDC_TEST_MUTATE_H
#define SHARDC_TEST_MUTATE_H

#include "ir/ir.h"

typedef struct Mutation {
	Module *m;
	uint64_t random;       /* state of the generator */
	bool numbered;         /* out: seq is wrong on purpose */
	int change;            /* out: which kind of change */
	const char *said;      /* out: what was done, for messages */
} Mutation;

/* Changes x->m, which stays well-formed in its use lists, and numbers the collectives anew.  Equal seeds make
 * equal mutants.  false: the change drawn does not apply here (nothing was done). */
bool mutate(Mutation *x);
extern const int n_changes;
const char *change_name(int change);

/* Collectives with an event operand; the k-th loses it. */
int count_events(const Module *m);
const char *drop_event(Module *m, int k);
/* Gives every collective without an event the one of a record directly before it. */
void add_all_events(Module *m);

/* edit.c: writes text, a schedule file, to f with one to three of its lines changed: points of issue, wait or
 * release moved a little, or another slot. */
void edit_schedule(FILE *f, const char *text, uint64_t seed);
uint64_t mutate_draw(uint64_t *state);

#endif
