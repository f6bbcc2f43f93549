/* base/arena.c: bump allocation in chunks; single allocations are never freed.
 *
 * Chunks grow with the arena, so that a large module costs few system calls.  Chunks of a large page (2 MiB) or more
 * are aligned to large pages and fill them: with small pages a walk over a module of a gigabyte spends its time on
 * address translation.  A mark names a chunk and the bytes used in it.  Rewinding to it frees all later chunks and
 * zeroes the unused rest of that one, because arena_alloc promises zeroed memory. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct Chunk {
	struct Chunk *older;
	size_t used, size; /* of the bytes after this header */
	_Alignas(16) char bytes[];
} Chunk;

struct Arena { Chunk *newest; };

enum { CHUNK_MIN = 1 << 16, CHUNK_MAX = 1 << 24, LARGE_PAGE = 1 << 21 };

/* Zeroed memory that begins at a large page, backed by large pages if the system has them; NULL: out of memory. */
static void *pages_new(size_t bytes)
{
	size_t all = bytes + LARGE_PAGE;
	char *at = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return NULL;
	size_t before = -(uintptr_t)at & (LARGE_PAGE - 1);
	if (before)
		munmap(at, before);
	munmap(at + before + bytes, all - before - bytes);
	madvise(at + before, bytes, MADV_HUGEPAGE); /* only advice: small pages work, too */
	return at + before;
}

static Chunk *chunk_new(size_t bytes, Chunk *older)
{
	if (bytes >= LARGE_PAGE)
		bytes = (bytes + LARGE_PAGE - 1) & ~(size_t)(LARGE_PAGE - 1);
	Chunk *c = bytes >= LARGE_PAGE ? pages_new(bytes) : calloc(1, bytes);
	if (!c)
		ice("out of memory: %zu bytes wanted", bytes);
	c->size = bytes - sizeof(Chunk);
	c->older = older;
	return c;
}

static void chunk_free(Chunk *c)
{
	size_t bytes = sizeof(Chunk) + c->size;
	if (bytes >= LARGE_PAGE)
		munmap(c, bytes);
	else
		free(c);
}

Arena *arena_new(void)
{
	Arena *a = calloc(1, sizeof(*a));
	if (!a)
		ice("out of memory");
	a->newest = chunk_new(CHUNK_MIN, NULL);
	return a;
}

static void chunks_free(Chunk *c, const Chunk *until)
{
	while (c != until) {
		Chunk *older = c->older;
		chunk_free(c);
		c = older;
	}
}

void arena_free(Arena *a)
{
	if (!a)
		return;
	chunks_free(a->newest, NULL);
	free(a);
}

void *arena_alloc(Arena *a, size_t bytes)
{
	size_t want = (bytes + 15) & ~(size_t)15;
	Chunk *c = a->newest;
	if (bytes > SIZE_MAX / 2)
		ice("allocation of %zu bytes overflows", bytes);
	if (c->size - c->used < want) {
		size_t twice = MIN((sizeof(Chunk) + c->size) * 2, (size_t)CHUNK_MAX);
		c = a->newest = chunk_new(MAX(twice, sizeof(Chunk) + want), c);
	}
	void *p = c->bytes + c->used;
	c->used += want;
	return p;
}

char *arena_strndup(Arena *a, const char *s, size_t n)
{
	char *copy = arena_alloc(a, n + 1);
	memcpy(copy, s, n);
	return copy;
}

char *arena_strdup(Arena *a, const char *s)
{
	return arena_strndup(a, s, strlen(s));
}

char *arena_vprintf(Arena *a, const char *fmt, va_list ap)
{
	va_list again;
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	if (n < 0)
		ice("bad format \"%s\"", fmt);
	char *s = arena_alloc(a, (size_t)n + 1);
	vsnprintf(s, (size_t)n + 1, fmt, again);
	va_end(again);
	return s;
}

char *arena_printf(Arena *a, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	char *s = arena_vprintf(a, fmt, ap);
	va_end(ap);
	return s;
}

ArenaMark arena_mark(const Arena *a)
{
	return (ArenaMark){a->newest, a->newest->used};
}

void arena_rewind(Arena *a, ArenaMark m)
{
	Chunk *c = m.chunk;
	chunks_free(a->newest, c);
	memset(c->bytes + m.used, 0, c->used - m.used);
	c->used = m.used;
	a->newest = c;
}

void *arena_grow(Arena *a, void *old, size_t elem, int *cap)
{
	int more = *cap ? *cap * 2 : 8;
	void *now = arena_alloc(a, elem * (size_t)more);
	if (*cap)
		memcpy(now, old, elem * (size_t)*cap);
	*cap = more;
	return now;
}
