/* kernels/cpu/conv_sums.h: the gradient of a convolution's weights, from the order in which products sum it. */
#ifndef SHARDC_CPU_CONV_SUMS_H
#define SHARDC_CPU_CONV_SUMS_H

#include "kernels/cpu/half.h"

/* to (channels, taps) = the sums of one result channel.  They lie by lines of `line` taps: a line is (line, channels)
 * and begins `width` floats behind the line before. */
INLINE void put_sums(void *to, KDType type, const float *sums, int64_t channels, int64_t taps, int64_t line,
	int64_t width)
{
	enum { SOME = 1024 };
	float some[SOME];
	int64_t all = channels * taps, c = 0, k = 0, l = 0;
	const float *from = sums;
	for (int64_t at = 0; at < all; at += SOME) {
		int64_t n = MIN(SOME, all - at);
		for (int64_t i = 0; i < n; i++) {
			some[i] = from[l * channels + c];
			if (++l == line) {
				l = 0;
				from += width;
			}
			if (++k == taps) {
				k = 0;
				from = sums;
				c++;
			}
		}
		narrow((char *)to + at * type_bytes(type), some, type, n);
	}
}

#endif
