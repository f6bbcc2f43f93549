/* kernels/cpu/pool.c: max and average pooling and their gradients, one to three spatial dims.
 *
 * The inner loop runs over channels; channels-first data is treated as n * c samples of one channel.  A gradient is
 * scattered by one thread for each sample and block of channels, so no two threads write one element; 16-bit gradients
 * are gathered instead (pool_half.h). */
#include "kernels/cpu/half.h"

enum { LANES = 64 };

typedef struct Plane {
	const KPool *p;
	int64_t n, c, in, out, kernel;
} Plane;

static Plane plane_of(const KPool *p)
{
	return (Plane){p, p->layout ? p->n : p->n * p->c, p->layout ? p->c : 1, numel(p->rank, p->in),
		numel(p->rank, p->out), numel(p->rank, p->kernel)};
}

/* The flat input position of kernel position k at output position q; -1 outside the input. */
static int64_t pool_input_at(const KPool *p, int64_t q, int64_t k)
{
	int64_t qa[3], ka[3], at = 0;
	unravel(q, p->rank, p->out, qa);
	unravel(k, p->rank, p->kernel, ka);
	for (int i = 0; i < p->rank; i++) {
		int64_t x = qa[i] * p->stride[i] + ka[i] * p->dilation[i] - p->pad[i];
		if (x < 0 || x >= p->in[i])
			return -1;
		at = at * p->in[i] + x;
	}
	return at;
}

/* The flat output position whose kernel position k lies on input position i; -1 when there is none. */
static int64_t pool_output_at(const KPool *p, int64_t i, int64_t k)
{
	int64_t ia[3], ka[3], at = 0;
	unravel(i, p->rank, p->in, ia);
	unravel(k, p->rank, p->kernel, ka);
	for (int d = 0; d < p->rank; d++) {
		int64_t x = ia[d] + p->pad[d] - ka[d] * p->dilation[d];
		if (x < 0 || x % p->stride[d] || x / p->stride[d] >= p->out[d])
			return -1;
		at = at * p->out[d] + x / p->stride[d];
	}
	return at;
}

/* The divisor of an average at output position q: padding counts when count_pad is set, what ceil mode adds never
 * does. */
static int64_t pool_count(const KPool *p, int64_t q)
{
	int64_t qa[3], count = 1;
	unravel(q, p->rank, p->out, qa);
	for (int i = 0; i < p->rank; i++) {
		int64_t lo = p->count_pad ? -p->pad[i] : 0, hi = p->in[i] + (p->count_pad ? p->pad_end[i] : 0), c = 0;
		for (int64_t k = 0; k < p->kernel[i]; k++) {
			int64_t x = qa[i] * p->stride[i] + k * p->dilation[i] - p->pad[i];
			c += x >= lo && x < hi;
		}
		count *= c;
	}
	return count;
}

#define TEMPLATE "kernels/cpu/pool_half.h"
#include "kernels/cpu/each_half.h"
#define TEMPLATE "kernels/cpu/pool.h"
#include "kernels/cpu/each_float.h"
#define TEMPLATE "kernels/cpu/pool_max.h"
#include "kernels/cpu/each_number.h"
#define TEMPLATE "kernels/cpu/pool_max.h"
#include "kernels/cpu/each_half.h"
