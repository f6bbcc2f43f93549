/* runtime/exec/cuda/progress_kernels.cu: writes where collectives of the device are into host memory, for the watchdog.
 *
 * A kernel of one thread runs before a collective and one after it; only one stream writes the words of a channel, so
 * plain stores in order are enough. */
#include "kernels/cuda/common.cuh"
#include "runtime/exec/cuda/words.h"

static __global__ void enter(volatile int32_t *inside, int32_t seq)
{
	*inside = seq;
	__threadfence_system();
}

static __global__ void end(volatile int32_t *inside, volatile int32_t *ended, volatile int64_t *done, int32_t seq)
{
	*ended = seq;
	*inside = 0;
	*done = *done + 1;
	__threadfence_system();
}

void progress_device_enter(ProgressWords p, int seq, cudaStream_t stream)
{
	LAUNCH(enter, 1, 1, 0, stream, p.inside, seq);
}

void progress_device_end(ProgressWords p, int seq, cudaStream_t stream)
{
	LAUNCH(end, 1, 1, 0, stream, p.inside, p.ended, p.done, seq);
}
