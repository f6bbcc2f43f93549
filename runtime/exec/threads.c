/* runtime/exec/threads.c: how many threads kernels of the host use.
 *
 * The one idea: OpenMP's functions are asked for weakly, so a program without parallel kernels needs no OpenMP. */
#include "runtime/exec/exec.h"

/* From the OpenMP runtime that the kernels bring; absent where nothing is parallel. */
__attribute__((weak)) void omp_set_num_threads(int n);
__attribute__((weak)) int omp_get_max_threads(void);

void device_set_threads(int64_t n)
{
	if (n > 0 && omp_set_num_threads)
		omp_set_num_threads((int)n);
}

int device_threads(void)
{
	return omp_get_max_threads ? omp_get_max_threads() : 1;
}
