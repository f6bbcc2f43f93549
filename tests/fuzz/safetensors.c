/* tests/fuzz/safetensors.c: any bytes as a safetensors file: tensors that lie inside it, or a message. */
#include "base/safetensors.h"
#include "tests/fuzz/fuzz.h"

static void check(const SafeFile *f, size_t n)
{
	volatile uint8_t sum = 0;
	for (int i = 0; i < f->n; i++) {
		const SafeTensor *t = &f->tensors[i];
		int64_t bytes = dtype_info[t->dtype].bytes;
		for (int k = 0; k < t->rank; k++)
			if (t->dim[k] < 0 || __builtin_mul_overflow(bytes, t->dim[k], &bytes))
				abort();
		if (bytes != t->bytes || t->offset < 0 || t->offset + t->bytes > (int64_t)n || !safetensors_find(f, t->name))
			abort();
		for (int64_t k = 0; k < t->bytes; k++)
			sum = (uint8_t)(sum + ((const uint8_t *)t->data)[k]);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	Arena *a = arena_new();
	FuzzFile file = fuzz_file(bytes, n);
	FuzzLog *log = fuzz_log();
	SafeFile *f = safetensors_open(a, file.path, &log->d);
	if (!f != (log->d.errors > 0))
		abort();
	if (f) {
		check(f, n);
		safetensors_close(f);
	}
	fuzz_log_free(log);
	close(file.fd);
	arena_free(a);
	return 0;
}
