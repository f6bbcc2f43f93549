/* runtime/exec/threads.c: the number of threads that kernels of the host use.
 *
 * References to OpenMP's functions are weak, so a program without parallel kernels needs no OpenMP. */
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
