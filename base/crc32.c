/* base/crc32.c: CRC-32 with libdeflate, and the CRC-32 of joined runs.
 *
 * The one idea: a checksum is a polynomial over GF(2) modulo the generator.  Appending n bytes multiplies it by x^(8n),
 * and that power is found by repeated squaring (the algorithm of zlib's crc32_combine, by M.  Adler). */
#include <libdeflate.h>

#include "base/crc32.h"

enum { X0_BIT = 31 }; /* reflected: the highest bit is the coefficient of x^0 */

uint32_t crc32_more(uint32_t crc, const void *bytes, int64_t n)
{
	return n > 0 ? libdeflate_crc32(crc, bytes, (size_t)n) : crc;
}

static uint32_t times_x(uint32_t a)
{
	return a & 1 ? a >> 1 ^ UINT32_C(0xedb88320) : a >> 1;
}

static uint32_t times(uint32_t a, uint32_t b)
{
	uint32_t product = 0;
	for (int bit = X0_BIT; bit >= 0; bit--, b = times_x(b))
		product ^= a >> bit & 1 ? b : 0;
	return product;
}

uint32_t crc32_join(uint32_t first, uint32_t second, int64_t n_second)
{
	uint32_t power = UINT32_C(1) << (X0_BIT - 8); /* x^8, for one byte */
	for (; n_second > 0; n_second >>= 1, power = times(power, power))
		if (n_second & 1)
			first = times(first, power);
	return first ^ second;
}
