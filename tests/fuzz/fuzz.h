/* tests/fuzz/fuzz.h: what the fuzz targets share: a file of an input's bytes, choices made by them, messages. */
#ifndef SHARDC_FUZZ_H
#define SHARDC_FUZZ_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* A file in memory that has a path. */
typedef struct FuzzFile { int fd; char path[64]; } FuzzFile;
static inline FuzzFile fuzz_file(const void *bytes, size_t n)
{
	FuzzFile f = {.fd = memfd_create("fuzz", 0)};
	if (f.fd < 0 || write(f.fd, bytes, n) != (ssize_t)n)
		abort();
	snprintf(f.path, sizeof(f.path), "/proc/self/fd/%d", f.fd);
	return f;
}

/* Messages that nobody reads, but each of whose bytes is made. */
typedef struct FuzzLog { Diag d; char *text; size_t n; } FuzzLog;
static inline FuzzLog *fuzz_log(void)
{
	FuzzLog *l = calloc(1, sizeof(*l));
	l->d.out = open_memstream(&l->text, &l->n);
	return l;
}
static inline void fuzz_log_free(FuzzLog *l)
{
	fclose(l->d.out);
	free(l->text);
	free(l);
}

/* FNV-1a: an input's own choice among options, the same whenever it is run. */
static inline uint32_t fuzz_hash(const uint8_t *bytes, size_t n)
{
	uint32_t h = 2166136261u;
	for (size_t i = 0; i < n; i++)
		h = (h ^ bytes[i]) * 16777619u;
	return h;
}
/* One of n choices; the next call makes another one. */
static inline uint32_t fuzz_choose(uint32_t *h, uint32_t n)
{
	uint32_t at = *h % n;
	*h = *h / n * 2654435761u + 977u;
	return at;
}

#endif
