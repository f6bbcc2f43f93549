/* base/arena.c: bump allocation in chunks; single allocations are never freed.
 *
 * Chunks grow with the arena, so that a large module costs few system calls.  Chunks of a large page (2 MiB) or more
 * are aligned to large pages and fill them: with small pages a walk over a module of a gigabyte spends its time on
 * address translation.  The system clears every page that it hands out, which takes longer than what a pass does with
 * it, so freed chunks of this size are kept and used again, in whatever arena wants one next.
 *
 * arena_alloc promises zeroed memory and clears what was used before (Chunk.dirty).  A mark names a chunk and the bytes
 * used in it; rewinding to it frees all later chunks. */
#include "base/base.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct Chunk {
	struct Chunk *older;
	size_t used, size; /* of the bytes after this header */
	size_t dirty;      /* bytes behind these are zero */
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

/* ---- freed chunks ---- */

/* Chunks of at least a large page that no arena uses. */
static struct { pthread_mutex_t lock; Chunk *first; } spare = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Takes the most recently freed chunk of at least `bytes` bytes and at most twice as many; NULL: there is none. */
static Chunk *spare_take(size_t bytes)
{
	pthread_mutex_lock(&spare.lock);
	Chunk **at = &spare.first;
	while (*at && ((*at)->size + sizeof(Chunk) < bytes || (*at)->size / 2 > bytes))
		at = &(*at)->older;
	Chunk *c = *at;
	if (c)
		*at = c->older;
	pthread_mutex_unlock(&spare.lock);
	return c;
}

static void spare_put(Chunk *c)
{
	c->dirty = MAX(c->dirty, c->used);
	c->used = 0;
	pthread_mutex_lock(&spare.lock);
	c->older = spare.first;
	spare.first = c;
	pthread_mutex_unlock(&spare.lock);
}

/* Gives all spare chunks back to the system; returns whether there were any. */
static bool spare_free(void)
{
	pthread_mutex_lock(&spare.lock);
	Chunk *c = spare.first;
	spare.first = NULL;
	pthread_mutex_unlock(&spare.lock);
	bool any = c;
	for (Chunk *older; c; c = older) {
		older = c->older;
		munmap(c, sizeof(Chunk) + c->size);
	}
	return any;
}

/* ---- chunks ---- */

static Chunk *large_new(size_t bytes)
{
	bytes = (bytes + LARGE_PAGE - 1) & ~(size_t)(LARGE_PAGE - 1);
	Chunk *c = spare_take(bytes);
	if (c)
		return c;
	c = pages_new(bytes);
	if (!c && spare_free())
		c = pages_new(bytes);
	if (c)
		c->size = bytes - sizeof(Chunk);
	return c;
}

static Chunk *small_new(size_t bytes)
{
	Chunk *c = calloc(1, bytes);
	if (c)
		c->size = bytes - sizeof(Chunk);
	return c;
}

static Chunk *chunk_new(size_t bytes, Chunk *older)
{
	Chunk *c = bytes >= LARGE_PAGE ? large_new(bytes) : small_new(bytes);
	if (!c)
		ice("out of memory: %zu bytes wanted", bytes);
	c->older = older;
	return c;
}

static void chunk_free(Chunk *c)
{
	if (sizeof(Chunk) + c->size >= LARGE_PAGE)
		spare_put(c);
	else
		free(c);
}

/* ---- arenas ---- */

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
	if (c->used < c->dirty)
		memset(p, 0, MIN(want, c->dirty - c->used));
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
	c->dirty = MAX(c->dirty, c->used);
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
