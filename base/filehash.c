/* base/filehash.c: a hash of samples of a file.
 *
 * Weights of gigabytes must be recognised in milliseconds, so 64 blocks of 4 KiB stand for the file.  An edit between
 * them that does not change the file's size is not noticed. */
#include "base/filehash.h"

enum { BLOCK = 4096, BLOCKS = 64 };

uint64_t filehash_sampled(const void *file, int64_t bytes)
{
	uint64_t h = (uint64_t)bytes;
	if (bytes <= BLOCK * BLOCKS)
		return hash_bytes(file, (size_t)bytes, h);
	for (int i = 0; i < BLOCKS; i++) {
		int64_t begin = (bytes - BLOCK) / (BLOCKS - 1) * i;
		if (i == BLOCKS - 1)
			begin = bytes - BLOCK;
		h = hash_bytes((const char *)file + begin, BLOCK, h);
	}
	return h;
}
