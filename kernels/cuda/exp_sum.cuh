/* kernels/cuda/exp_sum.cuh: the sum of e^x over numbers that come one by one, without overflow.
 *
 * The one idea: the sum is kept relative to the largest number so far (online softmax, Milakov and Gimelshein 2018).
 * -inf adds nothing; NaN and +inf give NaN. */
#ifndef SHARDC_CUDA_EXP_SUM_CUH
#define SHARDC_CUDA_EXP_SUM_CUH

#include "kernels/cuda/team.cuh"

template <class W> struct ExpSum { W max, sum; };
template <class W> __device__ __forceinline__ ExpSum<W> exp_sum_none() { return {-(W)INFINITY, 0}; }
/* What to subtract from numbers whose largest is max. */
template <class W> __device__ __forceinline__ W exp_shift(W max) { return max == -(W)INFINITY ? (W)0 : max; }

/* What a sum relative to `from` is multiplied with to be relative to max, which is at least that.  A sum of nothing,
 * whose largest number is -inf, gets 0: e^(0 - max) would be infinite for numbers below -88. */
template <class W> __device__ __forceinline__ W exp_ratio(W from, W max)
{
	return from == max ? (W)1 : exp(from - max);
}

template <class W> __device__ __forceinline__ void exp_sum_raise(ExpSum<W> &a, W max)
{
	if (max > a.max) {
		a.sum = a.sum * exp_ratio(a.max, max);
		a.max = max;
	}
}

template <int N, class W> __device__ __forceinline__ void exp_sum_add(ExpSum<W> &a, const W (&x)[N])
{
	W top = x[0];
	#pragma unroll
	for (int i = 1; i < N; i++)
		top = x[i] > top ? x[i] : top;
	exp_sum_raise(a, top);
	#pragma unroll
	for (int i = 0; i < N; i++)
		a.sum += exp(x[i] - exp_shift(a.max));
}

/* Joins the sums of a team; all its threads get the result.  scratch and turn are those of team_reduce. */
template <class W>
__device__ __forceinline__ ExpSum<W> exp_sum_team(ExpSum<W> a, const Team &team, W *scratch, int &turn)
{
	W max = team_reduce_one(a.max, Max(), team, scratch, turn);
	W sum = a.sum * exp_ratio(a.max, max);
	return {max, team_reduce_one(sum, Sum(), team, scratch, turn)};
}

#endif
