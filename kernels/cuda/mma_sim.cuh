/* kernels/cuda/mma_sim.cuh: the PTX functions of mma.cuh as plain code, for the emulation only.
 *
 * The last lane of a warp that arrives computes for all lanes (sim_warp).  Half of the asynchronous copies are made
 * when they begin and half when they are waited for, so that both reading and overwriting too early give wrong
 * results. */
#ifndef SHARDC_CUDA_MMA_SIM_CUH
#define SHARDC_CUDA_MMA_SIM_CUH

#include <string.h>

template <class T> inline float sim_element(uint32_t two, int i) { return widen(T{(uint16_t)(two >> 16 * i)}); }

struct SimMma { float *c; const uint32_t *a; uint32_t b[2]; };

template <class T> void sim_mma_op(void *const *lanes, unsigned)
{
	SimMma *const *lane = reinterpret_cast<SimMma *const *>(lanes);
	float a[16][16], b[8][16];
	for (int g = 0; g < 8; g++)
		for (int k = 0; k < 16; k++) {
			const SimMma *from = lane[g * 4 + k % 8 / 2];
			a[g][k] = sim_element<T>(from->a[k / 8 * 2], k % 2);
			a[g + 8][k] = sim_element<T>(from->a[k / 8 * 2 + 1], k % 2);
			b[g][k] = sim_element<T>(from->b[k / 8], k % 2);
		}
	for (int row = 0; row < 16; row++)
		for (int col = 0; col < 8; col++) {
			float sum = 0;
			for (int k = 0; k < 16; k++)
				sum += a[row][k] * b[col][k];
			lane[row % 8 * 4 + col / 2]->c[row / 8 * 2 + col % 2] += sum;
		}
}

template <class T> inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	SimMma mine = {c, a, {b0, b1}};
	sim_warp(0xFFFFFFFFu, &mine, sim_mma_op<T>, "mma.sync");
}

struct SimMatrices { uint32_t *to; const char *row; };

template <bool TRANSPOSED> void sim_matrices_op(void *const *lanes, unsigned)
{
	SimMatrices *const *lane = reinterpret_cast<SimMatrices *const *>(lanes);
	for (int m = 0; m < 4; m++)
		for (int l = 0; l < WARP; l++) {
			uint16_t two[2];
			for (int i = 0; i < 2; i++) {
				int row = TRANSPOSED ? l % 4 * 2 + i : l / 4, col = TRANSPOSED ? l / 4 : l % 4 * 2 + i;
				memcpy(&two[i], lane[m * 8 + row]->row + col * 2, 2);
			}
			lane[l]->to[m] = two[0] | (uint32_t)two[1] << 16;
		}
}

inline void load_matrices(uint32_t (&r)[4], const void *row)
{
	SimMatrices mine = {r, static_cast<const char *>(row)};
	sim_warp(0xFFFFFFFFu, &mine, sim_matrices_op<false>, "ldmatrix");
}

inline void load_transposed(uint32_t (&r)[4], const void *row)
{
	SimMatrices mine = {r, static_cast<const char *>(row)};
	sim_warp(0xFFFFFFFFu, &mine, sim_matrices_op<true>, "ldmatrix.trans");
}

enum { SIM_THREADS = 1024, SIM_COPIES = 256 };
struct SimCopy { char *to; char bytes[16]; int n; };
/* For each thread of a block, the copies that have begun and are not made yet. */
inline SimCopy sim_copy[SIM_THREADS][SIM_COPIES];
inline int sim_copies[SIM_THREADS];

inline void sim_copy_begin(void *to, const void *from, bool zero, int n)
{
	int thread = (int)threadIdx.x;
	SimCopy copy = {static_cast<char *>(to), {}, n};
	if (((uintptr_t)to | (uintptr_t)from) % (unsigned)n != 0)
		k_fail("a copy of %d bytes in the background begins at no multiple of them", n);
	if (!zero)
		memcpy(copy.bytes, from, (size_t)n);
	bool late = ((uintptr_t)to / 16 + (uintptr_t)to / 256) % 2;
	if (!late)
		memcpy(to, copy.bytes, (size_t)n);
	else if (sim_copies[thread] < SIM_COPIES)
		sim_copy[thread][sim_copies[thread]++] = copy;
	else
		k_fail("a thread begins more than %d copies without waiting", (int)SIM_COPIES);
}

inline void copy16_async(void *to, const void *from, bool zero) { sim_copy_begin(to, from, zero, 16); }
inline void copy4_async(void *to, const void *from, bool zero) { sim_copy_begin(to, from, zero, 4); }

inline void copies_wait(void)
{
	int thread = (int)threadIdx.x;
	for (int i = 0; i < sim_copies[thread]; i++)
		memcpy(sim_copy[thread][i].to, sim_copy[thread][i].bytes, (size_t)sim_copy[thread][i].n);
	sim_copies[thread] = 0;
}

template <class T> inline uint32_t pack2(float lo, float hi)
{
	return narrow<T>(lo).bits | (uint32_t)narrow<T>(hi).bits << 16;
}

inline float exp2_fast(float x) { return exp2f(x); }

#endif
