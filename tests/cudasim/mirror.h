/* tests/cudasim/mirror.h: memory of the kernels' tests on CUDA: the host's, which tests fill and read, and the
 * device's, which kernels get.
 *
 * A test calls a kernel with the host's pointers.  The call that mirror.py writes gives the kernel the device's in
 * their place, and copies what the host may have changed.  From then on the test may read what the kernel reads, and
 * touch nothing that it writes, until case_sync has waited and copied results back.  A kernel touches none of the
 * host's. */
#ifndef SHARDC_KERNELS_MIRROR_H
#define SHARDC_KERNELS_MIRROR_H

#include "kernels/kernels.h"

/* Memory of the host, of `whole` bytes from a page's start on, of which the device has the first `bytes` and nothing
 * behind them.  The last one taken is the first released. */
void *mirror_take(int64_t bytes, int64_t whole);
void mirror_release(void *p);

/* The device's place for one of the host's, as an operand or as a result.  what: "k_softmax_f32: y".  The program ends
 * with a message where p is no memory of mirror_take; NULL stays NULL. */
const void *mirror_read(const void *p, const char *what);
void *mirror_write(void *p, const char *what);
/* The same of lists and descriptors of pointers; what is returned lasts until the next call. */
void *mirror_list(const void *list, int n, bool written, const char *what);
const KUpdate *mirror_update(const KUpdate *u, const char *what);

/* Around what may run kernels: meanwhile the host's memory of what they were given cannot be touched. */
void mirror_hide(void);
void mirror_show(void);

/* Waits for the device; all memory is the host's again. */
void mirror_sync(void);

#endif
