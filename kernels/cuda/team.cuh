/* kernels/cuda/team.cuh: rows that are shared by teams of warps.
 *
 * A row belongs to 1, 2, 4, 8 or 16 neighbouring warps of a block, by its length, so that short rows fill a block
 * together and a long one has all of it.  All teams of a block run in step: they meet the same barriers. */
#ifndef SHARDC_CUDA_TEAM_CUH
#define SHARDC_CUDA_TEAM_CUH

#include "kernels/cuda/common.cuh"

enum { TEAM_WARPS = 16, TEAM_THREADS = TEAM_WARPS * WARP, TEAM_BLOCK = 128 };

/* id: the team's number in the block; lane: the thread's in the team; size: threads of the team. */
struct Team { int warps, id, lane, size; };

__device__ __forceinline__ Team team_of(int warps)
{
	int size = warps * WARP;
	return {warps, (int)threadIdx.x / size, (int)threadIdx.x % size, size};
}

/* Reduces each of v over the team; all its threads get the results.  All threads of the block must call it.  scratch:
 * 64 N elements of shared memory.  turn counts a thread's calls, since successive calls use different halves of
 * scratch. */
template <int N, class T, class Op>
__device__ __forceinline__ void team_reduce(T (&v)[N], Op op, const Team &team, T *scratch, int &turn)
{
	#pragma unroll
	for (int i = 0; i < N; i++)
		v[i] = warp_reduce(v[i], op);
	if (team.warps == 1)
		return;
	T *at = scratch + (turn++ & 1) * WARP * N;
	int warp = (int)threadIdx.x / WARP, first = team.id * team.warps;
	if (threadIdx.x % WARP == 0)
		for (int i = 0; i < N; i++)
			at[warp * N + i] = v[i];
	__syncthreads();
	for (int i = 0; i < N; i++)
		v[i] = at[first * N + i];
	for (int k = 1; k < team.warps; k++)
		for (int i = 0; i < N; i++)
			v[i] = op(v[i], at[(first + k) * N + i]);
}

template <class T, class Op>
__device__ __forceinline__ T team_reduce_one(T x, Op op, const Team &team, T *scratch, int &turn)
{
	T v[1] = {x};
	team_reduce(v, op, team, scratch, turn);
	return v[0];
}

/* The warps of a team for rows of n elements, of which a lane keeps `lane`; at most TEAM_WARPS. */
static inline int team_warps(int64_t n, int lane)
{
	int warps = 1;
	while (warps < TEAM_WARPS && (int64_t)warps * WARP * lane < n)
		warps *= 2;
	return warps;
}
static inline int team_block(int warps) { return warps * WARP < TEAM_BLOCK ? TEAM_BLOCK : warps * WARP; }
static inline int teams_in_block(int warps) { return team_block(warps) / (warps * WARP); }

#endif
