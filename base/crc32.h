/* base/crc32.h: the checksum of tensors in files: CRC-32 as zlib, gzip and PNG have it (ISO 3309, polynomial
 * 0x04c11db7 reflected), so `zlib.crc32(bytes)` of Python tells the same. */
#ifndef SHARDC_CRC32_H
#define SHARDC_CRC32_H

#include "base/base.h"

/* Of bytes that follow those of which crc is the checksum; of the first ones: 0. */
uint32_t crc32_more(uint32_t crc, const void *bytes, int64_t n);
/* Of two runs of bytes side by side, from the checksum of each: so parts may be summed up in any order and on any
 * rank.  n_second: bytes of the second.  O(log n_second). */
uint32_t crc32_join(uint32_t first, uint32_t second, int64_t n_second);

#endif
