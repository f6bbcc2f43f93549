/* base/crc32.h: the checksum of tensors in files: CRC-32 as in zlib, gzip and PNG (ISO 3309, polynomial 0x04c11db7,
 * reflected).  Python's `zlib.crc32(bytes)` gives the same number. */
#ifndef SHARDC_CRC32_H
#define SHARDC_CRC32_H

#include "base/base.h"

/* The checksum of bytes that follow others with checksum crc; crc is 0 for the first bytes. */
uint32_t crc32_more(uint32_t crc, const void *bytes, int64_t n);
/* The checksum of two runs of bytes side by side, from the checksum of each; n_second: the length of the second run.
 * So parts may be summed up in any order and by any rank.  Takes O(log n_second). */
uint32_t crc32_join(uint32_t first, uint32_t second, int64_t n_second);

#endif
