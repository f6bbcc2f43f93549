/* kernels/cpu/conv_sums.h: the gradient of a convolution's weights, from the order in which products sum it. */
#ifndef SHARDC_CPU_CONV_SUMS_H
#define SHARDC_CPU_CONV_SUMS_H

#include "kernels/cpu/half.h"

/* to (channels, taps) = sums (taps, channels), of one result channel */
INLINE void put_sums(void *to, KDType type, const float *sums, int64_t channels, int64_t taps)
{
	enum { SOME = 1024 };
	float line[SOME];
	int64_t all = channels * taps, c = 0, k = 0;
	for (int64_t at = 0; at < all; at += SOME) {
		int64_t n = MIN(SOME, all - at);
		for (int64_t i = 0; i < n; i++) {
			line[i] = sums[k * channels + c];
			if (++k == taps) {
				k = 0;
				c++;
			}
		}
		narrow((char *)to + at * type_bytes(type), line, type, n);
	}
}

#endif
