/* runtime/store/full.h: whole parameters and buffers outside a step. */
#ifndef SHARDC_RUNTIME_FULL_H
#define SHARDC_RUNTIME_FULL_H

#include "runtime/internal.h"

typedef struct FullParams FullParams;
/* Copies of all parameters and buffers; rank0: only there, others get no copies but take part.  All ranks call both,
 * between steps, with the same arguments.  NULL after a message, on all ranks: there is no memory for them. */
FullParams *full_begin(const Rt *rt, bool writeback, bool rank0, Diag *d);
char *full_at(const FullParams *full, int tensor); /* NULL: none, or not on this rank */
/* Frees the copies; with writeback, and if put, what this rank holds is put back.  False after a message, on all ranks:
 * ranks that hold the same elements wrote different ones, and nothing was put back. */
bool full_end(const Rt *rt, FullParams *full, bool put, Diag *d);

#endif
