/* tests/fuzz/npy.c: any bytes as a .npy file: a header that fits the bytes, or a reason. */
#include <stdlib.h>
#include <string.h>

#include "base/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	NpyHeader h = {0};
	char why[NPY_WHY] = "";
	uint8_t *copy = malloc(n ? n : 1); /* exact, so that reading past it is seen */
	memcpy(copy, bytes, n);
	if (!npy_parse(copy, (int64_t)n, &h, why)) {
		if (!*why || !memchr(why, '\0', sizeof(why)))
			abort();
	} else {
		int64_t numel = 1;
		for (int i = 0; i < h.rank; i++)
			if (h.dim[i] < 0 || __builtin_mul_overflow(numel, h.dim[i], &numel))
				abort();
		if (h.rank > NPY_MAX_RANK || numel != h.numel || h.bytes != numel * dtype_info[h.dtype].bytes
			|| h.data_offset < 0 || h.data_offset + h.bytes > (int64_t)n)
			abort();
	}
	free(copy);
	return 0;
}
