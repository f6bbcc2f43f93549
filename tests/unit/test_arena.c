/* tests/unit/test_arena.c: memory from arenas is zeroed, also where an arena used it before. */
#include <string.h>

#include "base/base.h"
#include "tests/unit/unit.h"

enum { LARGE = 3 << 20, SMALL = 1000, MANY = 5000 };

static bool is_zero(const char *p, size_t n)
{
	return !*p && !memcmp(p, p + 1, n - 1);
}

/* Fills `n` allocations of `bytes` bytes; returns whether all were zero before. */
static bool fill(Arena *a, int n, size_t bytes)
{
	bool zero = true;
	for (int i = 0; i < n; i++) {
		char *p = arena_alloc(a, bytes);
		zero = zero && is_zero(p, bytes);
		memset(p, 0x5a, bytes);
	}
	return zero;
}

static void test_reused(void)
{
	for (int i = 0; i < 3; i++) { /* from the second time on with the chunks of the first */
		Arena *a = arena_new();
		CU_ASSERT(fill(a, MANY, SMALL));
		CU_ASSERT(fill(a, 2, LARGE));
		CU_ASSERT(fill(a, MANY, SMALL + (size_t)i));
		arena_free(a);
	}
}

static void test_rewound(void)
{
	Arena *a = arena_new();
	char *before = memset(arena_alloc(a, SMALL), 0x5a, SMALL);
	ArenaMark mark = arena_mark(a);
	for (int i = 0; i < 3; i++) {
		CU_ASSERT(fill(a, 7, SMALL));
		arena_rewind(a, mark);
		CU_ASSERT(fill(a, 3, SMALL));
		arena_rewind(a, mark);
		CU_ASSERT(fill(a, MANY, SMALL));
		arena_rewind(a, mark);
	}
	CU_ASSERT(before[0] == 0x5a && !memcmp(before, before + 1, SMALL - 1));
	arena_free(a);
}

void suite_arena(void)
{
	CU_pSuite s = CU_add_suite("arena", NULL, NULL);
	CU_add_test(s, "memory of freed arenas", test_reused);
	CU_add_test(s, "rewound memory", test_rewound);
}
