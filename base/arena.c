/* base/arena.c: bump allocation in chunks; nothing is freed alone.
 *
 * Chunks grow with the arena, so that a large module costs few system calls.  A mark names a chunk and
 * the bytes used in it; rewinding frees every later chunk and zeroes the rest of that one, because
 * arena_alloc promises zeroed memory. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

typedef struct Chunk {
	struct Chunk *older;
	size_t used, size; /* of the bytes after this header */
	_Alignas(16) char bytes[];
} Chunk;

struct Arena { Chunk *newest; };

enum { CHUNK_MIN = 1 << 16, CHUNK_MAX = 1 << 24 };

static Chunk *chunk_new(size_t size, Chunk *older)
{
	Chunk *c = calloc(1, sizeof(Chunk) + size);
	if (!c)
		ice("out of memory: %zu bytes wanted", size);
	c->size = size;
	c->older = older;
	return c;
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
		free(c);
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
	if (want < bytes)
		ice("allocation of %zu bytes overflows", bytes);
	if (c->size - c->used < want) {
		size_t size = MIN(c->size * 2, (size_t)CHUNK_MAX);
		c = a->newest = chunk_new(MAX(size, want), c);
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
