/* passes/schedule/slots.h: which contents share memory.  Private to passes/schedule. */
#ifndef SHARDC_SCHEDULE_SLOTS_H
#define SHARDC_SCHEDULE_SLOTS_H

#include "passes/passes.h"

/* Contents that need memory from position begin, exclusive, to position end. */
typedef struct SlotLife {
	int64_t begin, end;
	int64_t bytes;       /* about: the padding of shards, which depends on the number of ranks, is left out */
	int slot;            /* the result */
} SlotLife;

/* Gives each life, in the order of their beginnings, the slot that was left the longest ago among `ring` slots, or
 * else the lowest one that is free, or a new one.  Returns the number of slots. */
int slots_by_time(SlotLife *life, int n, int ring, Arena *a);
/* Gives the largest lives the first choice; each takes the lowest slot that is free.  Slots are numbered in the order
 * of their first use.  Returns the number of slots. */
int slots_by_size(SlotLife *life, int n, Arena *a);
/* By time, or by size if that needs less memory. */
void slots_assign(SlotLife *life, int n, Arena *a);
/* Bytes of slots that are as large as their largest content. */
int64_t slots_bytes(const SlotLife *life, int n, int n_slots, Arena *a);

#endif
