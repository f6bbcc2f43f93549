/* kernels/cpu/index.c: gathers and scatters.  An index out of range is reported as bad input and read as 0.
 *
 * Scatters run in order of position, on one thread: equal targets are common, and their order is part of the result.
 * The gradient of an embedding (gather_grad) has to be fast: every thread walks all ids and adds the rows whose id
 * belongs to it, so the order holds for any number of threads.  16-bit rows must be rounded once, so there equal ids
 * are chained first. */
#ifdef _OPENMP
int omp_get_num_threads(void);
int omp_get_thread_num(void);
#else
static int omp_get_num_threads(void) { return 1; }
static int omp_get_thread_num(void) { return 0; }
#endif

#include "kernels/cpu/half.h"
#include "kernels/work.h"

/* Copies one element or a run of them. */
INLINE void copy_run(char *y, const char *x, int64_t bytes)
{
	if (bytes == 4)
		memcpy(y, x, 4);
	else if (bytes == 8)
		memcpy(y, x, 8);
	else
		memcpy(y, x, (size_t)bytes);
}

void k_gather(void *y, const void *x, const void *ids, int64_t outer, int64_t n, int64_t inner, int64_t n_ids,
	int size, int id_size)
{
	int64_t bytes = inner * size;
	#pragma omp parallel for schedule(static) if (outer * n_ids * inner > PARALLEL_MIN)
	for (int64_t r = 0; r < outer * n_ids; r++) {
		int64_t id = load_index(ids, r % n_ids, id_size, n);
		copy_run((char *)y + r * bytes, (const char *)x + (r / n_ids * n + id) * bytes, bytes);
	}
}

void k_gather_elements(void *y, const void *x, const void *ids, int rank, const int64_t *dim,
	const int64_t *xdim, int axis, int size, int id_size)
{
	int64_t xs[K_MAX_RANK], n = numel(rank, dim);
	strides_of(rank, xdim, xs);
	#pragma omp parallel for schedule(static) if (n > PARALLEL_MIN)
	for (int64_t i = 0; i < n; i++) {
		int64_t at[K_MAX_RANK];
		unravel(i, rank, dim, at);
		at[axis] = load_index(ids, i, id_size, xdim[axis]);
		copy_run((char *)y + i * size, (const char *)x + offset_of(rank, at, xs) * size, size);
	}
}

void k_gather_nd(void *y, const void *x, const void *ids, int64_t batch, int64_t n, int depth,
	const int64_t *xdim, int64_t inner, int size, int id_size)
{
	int64_t whole = numel(depth, xdim) * inner, bytes = inner * size;
	#pragma omp parallel for schedule(static) if (batch * n * inner > PARALLEL_MIN)
	for (int64_t i = 0; i < batch * n; i++) {
		int64_t at = 0;
		for (int d = 0; d < depth; d++)
			at = at * xdim[d] + load_index(ids, i * depth + d, id_size, xdim[d]);
		copy_run((char *)y + i * bytes, (const char *)x + (i / n * whole + at * inner) * size, bytes);
	}
}

#define GATHER_GRAD(T, t) \
void k_gather_grad_##t(T *dx, const T *dy, const void *ids, int64_t outer, int64_t n, int64_t inner, \
	int64_t n_ids, bool add, int id_size, void *work) \
{ \
	T zero = 0; \
	(void)work; \
	if (!add) \
		k_fill(dx, &zero, outer * n * inner, sizeof(T)); \
	_Pragma("omp parallel if (outer * n_ids * inner > PARALLEL_MIN)") \
	{ \
		int64_t parts = omp_get_num_threads(), part = omp_get_thread_num(); \
		for (int64_t r = 0; r < outer * n_ids; r++) { \
			int64_t id = load_index(ids, r % n_ids, id_size, n); \
			if (id % parts != part) \
				continue; \
			T *to = dx + (r / n_ids * n + id) * inner; \
			const T *from = dy + r * inner; \
			for (int64_t j = 0; j < inner; j++) \
				to[j] += from[j]; \
		} \
	} \
}
K_FLOATS(GATHER_GRAD)

/* Chains of the positions of equal ids, in order: first[0..n_first) begin the chains, next[i] follows i, -1 ends a
 * chain. */
typedef struct Chains { int32_t *next, *first; int64_t n_first; } Chains;

static Chains chains_of(const void *ids, int64_t n, int64_t n_ids, int id_size, void *work)
{
	Chains c = {.next = work, .first = (int32_t *)work + n_ids};
	int64_t slots = kwork_chain_slots(n_ids);
	int32_t *last = c.first + n_ids; /* the last position of each chain, by hash of its id */
	for (int64_t i = 0; i < slots; i++)
		last[i] = -1;
	for (int64_t i = 0; i < n_ids; i++) {
		int64_t id = load_index(ids, i, id_size, n);
		int64_t at = (int64_t)((uint64_t)id * 0x9E3779B97F4A7C15u >> 32) & (slots - 1);
		while (last[at] >= 0 && load_index(ids, last[at], id_size, n) != id)
			at = (at + 1) & (slots - 1);
		if (last[at] >= 0)
			c.next[last[at]] = (int32_t)i;
		else
			c.first[c.n_first++] = (int32_t)i;
		c.next[i] = -1;
		last[at] = (int32_t)i;
	}
	return c;
}

/* 16-bit rows: the rows of a chain are summed in f32, piece by piece, and rounded once. */
static void gather_grad_half(uint16_t *dx, const uint16_t *dy, KDType type, const void *ids, int64_t outer, int64_t n,
	int64_t inner, int64_t n_ids, bool add, int id_size, void *work)
{
	enum { PIECE = 512 };
	int64_t pieces = ceil_div(inner, PIECE);
	Chains c = chains_of(ids, n, n_ids, id_size, work);
	if (!add)
		k_fill(dx, &(uint16_t){0}, outer * n * inner, 2);
	#pragma omp parallel for schedule(static) if (outer * n_ids * inner > PARALLEL_MIN)
	for (int64_t t = 0; t < outer * c.n_first * pieces; t++) {
		int64_t o = t / pieces / c.n_first, from = t % pieces * PIECE, w = MIN(PIECE, inner - from);
		int32_t i = c.first[t / pieces % c.n_first];
		uint16_t *to = dx + (o * n + load_index(ids, i, id_size, n)) * inner + from;
		float sum[PIECE], wide[PIECE];
		widen(sum, to, type, w);
		for (; i >= 0; i = c.next[i]) {
			widen(wide, dy + (o * n_ids + i) * inner + from, type, w);
			for (int64_t j = 0; j < w; j++)
				sum[j] += wide[j];
		}
		narrow(to, sum, type, w);
	}
}

void k_gather_grad_bf16(uint16_t *dx, const uint16_t *dy, const void *ids, int64_t outer, int64_t n, int64_t inner,
	int64_t n_ids, bool add, int id_size, void *work)
{
	gather_grad_half(dx, dy, K_BF16, ids, outer, n, inner, n_ids, add, id_size, work);
}

void k_gather_grad_f16(uint16_t *dx, const uint16_t *dy, const void *ids, int64_t outer, int64_t n, int64_t inner,
	int64_t n_ids, bool add, int id_size, void *work)
{
	gather_grad_half(dx, dy, K_F16, ids, outer, n, inner, n_ids, add, id_size, work);
}

#define TEMPLATE "kernels/cpu/index.h"
#include "kernels/cpu/each_number.h"
