/* codegen/columns.c: finds what differs from row to row among modules that do the same.
 *
 * Numbers that are the same in all rows need no column; places whose distance is the same in all rows share one
 * column. */
#include "codegen/pieces.h"

#include <inttypes.h>

Columns columns_new(Arena *a, int n_rows)
{
	return (Columns){.a = a, .n_rows = n_rows, .names = map_new(a)};
}

bool columns_constant(const Columns *c, const int64_t *v)
{
	for (int r = 1; r < c->n_rows; r++)
		if (v[r] != v[0])
			return false;
	return true;
}

/* Whether v is u plus a number that is the same in all rows. */
static bool is_beside(int n, const int64_t *u, const int64_t *v)
{
	for (int r = 1; r < n; r++)
		if (v[r] - v[0] != u[r] - u[0])
			return false;
	return true;
}

const char *columns_unused(const Columns *c, const char *name)
{
	const char *unused = name;
	for (int n = 2; map_has(c->names, unused); n++)
		unused = arena_printf(c->a, "%s_%d", name, n);
	return unused;
}

static const Column *find(Columns *c, int kind, bool distance, const char *name, const int64_t *v)
{
	for (int i = 0; i < c->all.n; i++) {
		const Column *k = &c->all.at[i];
		if (k->kind == kind && (distance || k->at[0] == v[0]) && is_beside(c->n_rows, k->at, v))
			return k;
	}
	Column new = {kind, columns_unused(c, name), v};
	map_add(c->names, new.name);
	vec_push(c->a, &c->all, new);
	return &c->all.at[c->all.n - 1];
}

const char *columns_text(Columns *c, int kind, bool distance, const char *name, const int64_t *v, const char *of)
{
	const Column *k = find(c, kind, distance, name, v);
	int64_t more = v[0] - k->at[0];
	if (!more)
		return arena_printf(c->a, "%s%s", of, k->name);
	return arena_printf(c->a, "%s%s %c %" PRId64, of, k->name, more < 0 ? '-' : '+', more < 0 ? -more : more);
}
