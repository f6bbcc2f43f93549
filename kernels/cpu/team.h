/* kernels/cpu/team.h: which thread of how many computes.  A kernel may cut by this only what no bit depends on. */
#ifndef SHARDC_CPU_TEAM_H
#define SHARDC_CPU_TEAM_H

#include "kernels/cpu/common.h"

#ifdef _OPENMP
#include <omp.h>
/* Inside of a parallel region: its threads, and which of them calls.  Outside: how many threads one would have, and
 * says so for those that follow. */
INLINE int64_t team_size(void) { return omp_get_num_threads(); }
INLINE int64_t team_rank(void) { return omp_get_thread_num(); }
INLINE int64_t team_most(void) { return omp_get_max_threads(); }
INLINE void team_set(int64_t threads) { omp_set_num_threads((int)threads); }
#else
INLINE int64_t team_size(void) { return 1; }
INLINE int64_t team_rank(void) { return 0; }
INLINE int64_t team_most(void) { return 1; }
INLINE void team_set(int64_t threads) { (void)threads; }
#endif
/* Inside of a parallel region: what the calling thread calls takes no other threads, until the region ends. */
INLINE void team_alone(void) { team_set(1); }

#endif
