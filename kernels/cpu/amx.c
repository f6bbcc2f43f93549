/* kernels/cpu/amx.c: asks the system for tiles. */
#include "kernels/cpu/amx.h"

#if defined HAS_AMX
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* In memory from the start: the compiler does not know how much LDTILECFG reads. */
const TileShapes whole_tiles __attribute__((aligned(64))) = {.palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
	.rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};

bool tiles_ready(void)
{
	enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
	enum { UNKNOWN, YES, NO };
	static atomic_int answer;
	if (atomic_load_explicit(&answer, memory_order_relaxed) == UNKNOWN)
		atomic_store(&answer, syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) ? NO : YES);
	return atomic_load_explicit(&answer, memory_order_relaxed) == YES;
}
#else
typedef int NoTiles; /* a file is not empty */
#endif
