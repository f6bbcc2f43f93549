/* runtime/exec/threads.c: the number of threads that kernels of the host use, and their processors.
 *
 * References to OpenMP's functions are weak, so a program without parallel kernels needs no OpenMP. */
#include <sched.h>

#include "runtime/exec/exec.h"

/* From the OpenMP runtime that the kernels bring; absent where nothing is parallel. */
__attribute__((weak)) void omp_set_num_threads(int n);
__attribute__((weak)) int omp_get_max_threads(void);
__attribute__((weak)) int omp_get_num_places(void);
__attribute__((weak)) int omp_get_place_num_procs(int place);
__attribute__((weak)) void omp_get_place_proc_ids(int place, int *ids);

void device_set_threads(int64_t n)
{
	if (n > 0 && omp_set_num_threads)
		omp_set_num_threads((int)n);
}

int device_threads(void)
{
	return omp_get_max_threads ? omp_get_max_threads() : 1;
}

void device_unbind(void)
{
	static int ids[CPU_SETSIZE];
	cpu_set_t set;
	CPU_ZERO(&set);
	for (int place = omp_get_num_places ? omp_get_num_places() : 0; place-- > 0;) {
		int n = omp_get_place_num_procs(place);
		if (n > CPU_SETSIZE)
			return;
		omp_get_place_proc_ids(place, ids);
		for (int i = 0; i < n; i++)
			CPU_SET(ids[i], &set);
	}
	if (CPU_COUNT(&set))
		sched_setaffinity(0, sizeof(set), &set);
}
