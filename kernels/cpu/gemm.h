/* kernels/cpu/gemm.h: small f32 products c (m, n) = a (m, k) b (k, n), or c += a b, on one thread, from cache.
 *
 * a may have any strides, since its elements are broadcast; rows of b and c are contiguous.  A tile of MR rows x NV
 * vectors of c stays in registers over all of k. */
#ifndef SHARDC_CPU_GEMM_H
#define SHARDC_CPU_GEMM_H

#include "kernels/cpu/common.h"

#if defined __AVX512F__
enum { VW = 16, MR = 12, NV = 2 };
#elif defined __AVX__
enum { VW = 8, MR = 6, NV = 2 };
#else
enum { VW = 4, MR = 6, NV = 2 };
#endif
/* Columns of a tile; how deep blocks of b are: KC x NR of them fill about three quarters of the nearest cache. */
enum { NR = NV * VW, KC = VW == 16 ? 256 : 384 };
typedef float Vec __attribute__((vector_size(VW * sizeof(float))));
typedef float VecU __attribute__((vector_size(VW * sizeof(float)), aligned(sizeof(float)), may_alias));

INLINE Vec vec_load(const float *p) { return *(const VecU *)p; }
INLINE void vec_store(float *p, Vec v) { *(VecU *)p = v; }
typedef int32_t VecInt __attribute__((vector_size(VW * sizeof(int32_t))));
/* Of any bits, as a lane may have a pair of 16-bit numbers. */
INLINE Vec vec_all(float x)
{
	int32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return (Vec)(bits - (VecInt){0});
}

/* s += x v, in the register of s.  Left to itself the compiler puts sums into registers of operands, copies them back
 * and reads operands from memory for each use. */
INLINE void vec_fma(Vec *s, Vec x, Vec v)
{
#if defined __FMA__
	__asm__("vfmadd231ps %2, %1, %0" : "+v"(*s) : "v"(x), "v"(v));
#else
	*s += x * v;
#endif
}

/* Whether this processor's vectors multiply bf16.  vec_dot: s += x v, where a lane of x and of v is a pair of bf16 and
 * adds both products; denormals count as zero. */
#if defined __AVX512BF16__
enum { HAS_PAIRS = 1 };
INLINE void vec_dot(Vec *s, Vec x, Vec v) { __asm__("vdpbf16ps %2, %1, %0" : "+v"(*s) : "v"(x), "v"(v)); }
#else
enum { HAS_PAIRS = 0 };
INLINE void vec_dot(Vec *s, Vec x, Vec v) { (void)s, (void)x, (void)v; }
#endif

/* s (mr, nv vectors) += column p of a times row p of b, for p < steps, each added before the next one.  pairs: elements
 * of a and b are pairs of bf16, for vec_dot. */
INLINE void gemm_steps(bool pairs, int mr, int nv, int steps, Vec s[MR][NV], const float *a, int64_t ar, int64_t ak,
	const float *b, int64_t br)
{
	#pragma GCC unroll 4
	for (int p = 0; p < steps; p++) {
		Vec v[NV];
		#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			v[j] = vec_load(b + p * br + j * VW);
		#pragma GCC unroll 16
		for (int i = 0; i < mr; i++) {
			Vec x = vec_all(a[i * ar + p * ak]);
			#pragma GCC unroll 4
			for (int j = 0; j < nv; j++)
				if (pairs)
					vec_dot(&s[i][j], x, v[j]);
				else
					vec_fma(&s[i][j], x, v[j]);
		}
	}
}

/* The same of MR rows of a that lie anywhere, from column `at` on, and packed rows of b. */
INLINE void gemm_rows(int steps, Vec s[MR][NV], const float *const a[MR], int64_t at, const float *b)
{
	#pragma GCC unroll 4
	for (int p = 0; p < steps; p++) {
		Vec v[NV];
		#pragma GCC unroll 4
		for (int j = 0; j < NV; j++)
			v[j] = vec_load(b + (p * NV + j) * VW);
		#pragma GCC unroll 16
		for (int i = 0; i < MR; i++) {
			Vec x = vec_all(a[i][at + p]);
			#pragma GCC unroll 4
			for (int j = 0; j < NV; j++)
				vec_fma(&s[i][j], x, v[j]);
		}
	}
}

/* Columns of a in one turn of a loop: where a core is shared, instructions of the loop itself would delay the sums. */
enum { TURN = 4 };

/* pairs, mr and nv are constants once this is inlined.  ahead: NULL, or what is fetched meanwhile, a vector for each of
 * k. */
INLINE void gemm_tile(bool pairs, int mr, int nv, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b,
	int64_t br, float *c, int64_t cr, bool add, const float *ahead)
{
	enum { LINE = 64 };
	Vec s[MR][NV];
	int64_t p = 0;
	#pragma GCC unroll 16
	for (int i = 0; i < mr; i++)
		#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			s[i][j] = add ? vec_load(c + i * cr + j * VW) : (Vec){0};
	for (; ahead && p + TURN <= k; p += TURN) {
		#pragma GCC unroll 4
		for (int l = 0; l < TURN * VW * 4; l += LINE)
			__builtin_prefetch((const char *)(ahead + p * VW) + l, 0, 2);
		gemm_steps(pairs, mr, nv, TURN, s, a + p * ak, ar, ak, b + p * br, br);
	}
	for (; p + TURN <= k; p += TURN)
		gemm_steps(pairs, mr, nv, TURN, s, a + p * ak, ar, ak, b + p * br, br);
	for (; p < k; p++)
		gemm_steps(pairs, mr, nv, 1, s, a + p * ak, ar, ak, b + p * br, br);
	#pragma GCC unroll 16
	for (int i = 0; i < mr; i++)
		#pragma GCC unroll 4
		for (int j = 0; j < nv; j++)
			vec_store(c + i * cr + j * VW, s[i][j]);
}

/* ar and ak are a's strides from row to row and along k; br and cr are the row strides of b and c.  add: c += a b. */
void gemm_small(int64_t m, int64_t n, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b,
	int64_t br, float *c, int64_t cr, bool add);

/* The same where HAS_PAIRS: elements of a and b, k of them, are pairs of bf16, for vec_dot. */
void gemm_pairs(int64_t m, int64_t n, int64_t k, const float *a, int64_t ar, int64_t ak, const float *b,
	int64_t br, float *c, int64_t cr, bool add);

/* c (m, NV * VW) = a b or c += a b with packed rows of b.  The k rows behind b, which the next call reads, are brought
 * into the near caches while tiles of c behind the first read b there. */
void gemm_panel(int64_t m, int64_t k, const float *a, int64_t ar, const float *b, float *c, int64_t cr, bool add);

/* The same with an a that is packed, too: MR rows one behind the other, by columns of MR. */
void gemm_packed(int64_t m, int64_t k, const float *a, const float *b, float *c, int64_t cr, bool add);

#endif
