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

/* A position of the input or output, and the kernel's position, from the first on: what is divided out once, not at
 * each step. */
typedef struct Walk { int64_t at[3], tap[3]; } Walk;

static Walk walk_from(const KPool *p, const int64_t *dim, int64_t i)
{
	Walk w = {{0}, {0}};
	unravel(i, p->rank, dim, w.at);
	return w;
}

/* To the next position of the kernel. */
static void walk_on(const KPool *p, Walk *w)
{
	for (int i = p->rank - 1; i >= 0 && ++w->tap[i] == p->kernel[i]; i--)
		w->tap[i] = 0;
}

/* The flat input position of the kernel's at an output position; -1 outside the input. */
static int64_t pool_input_at(const KPool *p, const Walk *w)
{
	int64_t at = 0;
	for (int i = 0; i < p->rank; i++) {
		int64_t x = w->at[i] * p->stride[i] + w->tap[i] * p->dilation[i] - p->pad[i];
		if (x < 0 || x >= p->in[i])
			return -1;
		at = at * p->in[i] + x;
	}
	return at;
}

/* The flat output position whose kernel position lies on an input position; -1 when there is none. */
static int64_t pool_output_at(const KPool *p, const Walk *w)
{
	int64_t at = 0;
	for (int d = 0; d < p->rank; d++) {
		int64_t x = w->at[d] + p->pad[d] - w->tap[d] * p->dilation[d], q = x;
		if (x < 0)
			return -1;
		if (p->stride[d] != 1) {
			q = x / p->stride[d];
			if (q * p->stride[d] != x)
				return -1;
		}
		if (q >= p->out[d])
			return -1;
		at = at * p->out[d] + q;
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
