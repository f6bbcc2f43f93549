/* runtime/comm/wait.c: waiting for a counter that another thread or process advances: spin, then sleep.
 *
 * The counter is itself the futex word, in private memory or in a mapping that several processes share.  Only its owner
 * writes it; a sleeper needs no write access, so peers may map it read-only.  A sleep lasts at most a second, so that a
 * lost wake-up cannot hang a run. */
#include "runtime/comm/private.h"

#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SPINS = 2000, FEW_SPINS = 50 };

static int reached(uint32_t now, uint32_t target)
{
	return (int32_t)(now - target) >= 0;
}

void wait_reach(Counter *c, uint32_t target, int spins)
{
	const struct timespec second = {.tv_sec = 1};
	uint32_t now = atomic_load_explicit(c, memory_order_acquire);
	for (int i = 0; !reached(now, target) && i < spins; i++) {
		wait_pause();
		now = atomic_load_explicit(c, memory_order_acquire);
	}
	while (!reached(now, target)) {
		syscall(SYS_futex, (void *)c, FUTEX_WAIT, now, &second, NULL, 0);
		now = atomic_load_explicit(c, memory_order_acquire);
	}
}

void wait_post(Counter *c)
{
	atomic_fetch_add_explicit(c, 1, memory_order_release);
	syscall(SYS_futex, (void *)c, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

int wait_spins(int threads)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof(set), &set))
		return FEW_SPINS;
	return CPU_COUNT(&set) >= threads ? SPINS : FEW_SPINS;
}
