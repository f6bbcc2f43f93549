/* kernels/cuda/rope.cu: rotary position embedding.
 *
 * A thread turns V neighbouring pairs of one row and reads both halves before it writes either, so y may be x.  Dims
 * behind the rotated ones are copied V at a time.  V is as wide as sizes and alignment allow. */
#include "kernels/cuda/common.cuh"
#include "kernels/place.h"

enum { THREADS = 256 };

template <class T> __device__ __forceinline__ void turn(T &left, T &right, float cosine, float sine)
{
	float u = widen(left), v = widen(right);
	left = narrow<T>(u * cosine - v * sine);
	right = narrow<T>(v * cosine + u * sine);
}

/* I: an integer type wide enough for the number of elements.  pitch: elements from h rows to the next h rows,
 * which are those of a token in layout 1, and any in layout 0, where no gaps are. */
template <class T, int V, class I> static __global__ void __launch_bounds__(THREADS) rope(T *y, const T *x,
	const T *__restrict__ cosines, const T *__restrict__ sines, KRope r, I pitch)
{
	I half = (I)(r.r / 2), d = (I)r.d, pairs = half / V, items = pairs + (d - 2 * half) / V;
	I at = (I)blockIdx.x * THREADS + threadIdx.x, row = at / items, item = at % items;
	I heads = (I)r.h, rows = (I)r.t, t = r.layout ? row / heads % rows : row % rows, b = row / (heads * rows);
	if (row >= (I)r.b * heads * rows)
		return;
	I from = row / heads * pitch + row % heads * d;
	x += from;
	y += from;
	if (item >= pairs) {
		I i = 2 * half + (item - pairs) * V;
		store(y + i, load<V>(x + i));
		return;
	}
	I first = r.interleaved ? item * 2 * V : item * V, second = r.interleaved ? first + V : first + half;
	I angle = ((r.cos_batched ? b * rows : 0) + t) * half + item * V;
	Vec<T, V> p = load<V>(x + first), q = load<V>(x + second), c = load<V>(cosines + angle), s = load<V>(sines + angle);
	float sign = r.inverse ? -1.0f : 1.0f;
	#pragma unroll
	for (int i = 0; i < V; i++) {
		float cosine = widen(c.at[i]), sine = sign * widen(s.at[i]);
		int l = 2 * i, m = 2 * i + 1; /* indices of a pair in p followed by q */
		if (r.interleaved)
			turn(l < V ? p.at[l] : q.at[l - V], m < V ? p.at[m] : q.at[m - V], cosine, sine);
		else
			turn(p.at[i], q.at[i], cosine, sine);
	}
	store(y + first, p);
	store(y + second, q);
}

template <class T, int V> static void launch(T *y, const T *x, const T *cosines, const T *sines, const KRope *r)
{
	Place p = place_of(r->layout, r->h, r->t, r->d, r->pitch);
	int64_t rows = r->b * r->h * r->t, items = rows * ((r->d - r->r / 2) / V);
	int64_t pitch = r->layout ? p.row : r->h * r->d;
	if (items == 0)
		return;
	unsigned blocks = (unsigned)ceil_div(items, THREADS);
	if (r->b * r->t * pitch < 1ll << 31)
		LAUNCH((rope<T, V, uint32_t>), blocks, THREADS, 0, k_stream, y, x, cosines, sines, *r, (uint32_t)pitch);
	else
		LAUNCH((rope<T, V, int64_t>), blocks, THREADS, 0, k_stream, y, x, cosines, sines, *r, pitch);
}

template <class T> static void run(T *y, const T *x, const T *cosines, const T *sines, const KRope *r)
{
	constexpr int V = vec_of<T>;
	bool wide = r->r / 2 % V == 0 && r->d % V == 0 && r->pitch % V == 0 && aligned16(y) && aligned16(x)
		&& aligned16(cosines) && aligned16(sines);
	(wide ? launch<T, V> : launch<T, 1>)(y, x, cosines, sines, r);
}

void k_rope_f32(float *y, const float *x, const float *cosines, const float *sines, const KRope *r)
{
	run(y, x, cosines, sines, r);
}

#define K_DEFINE(E, t) \
void k_rope_##t(uint16_t *y, const uint16_t *x, const uint16_t *cosines, const uint16_t *sines, const KRope *r) \
{ \
	run(reinterpret_cast<E *>(y), reinterpret_cast<const E *>(x), reinterpret_cast<const E *>(cosines), \
		reinterpret_cast<const E *>(sines), r); \
}
K_DEFINE(Bf16, bf16)
K_DEFINE(F16, f16)
#undef K_DEFINE
