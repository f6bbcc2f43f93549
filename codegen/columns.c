/* codegen/columns.c: finds what differs from row to row among modules that do the same.
 *
 * Numbers that are the same in all rows need no column; places whose distance is the same in all rows share one
 * column. */
#include "codegen/pieces.h"

#include <inttypes.h>

Columns columns_new(Arena *a, int n_rows)
{
	return (Columns){.a = a, .n_rows = n_rows, .names = map_new(a), .found = map_new(a)};
}

bool columns_constant(const Columns *c, const int64_t *v)
{
	for (int r = 1; r < c->n_rows; r++)
		if (v[r] != v[0])
			return false;
	return true;
}

const char *columns_unused(Columns *c, const char *name)
{
	const char *unused = name;
	intptr_t n = (intptr_t)map_get(c->names, name); /* the numbers up to this one are taken */
	for (n = MAX(n, 1); map_has(c->names, unused);)
		unused = arena_printf(c->a, "%s_%d", name, (int)++n);
	if (unused != name)
		map_put(c->names, name, (void *)(n - 1));
	return unused;
}

/* A text that columns of one kind share if they differ by a number that is the same in all rows. */
static char *steps_text(const Columns *c, int kind, const int64_t *v)
{
	Buf b = {0};
	buf_printf(&b, "%d", kind);
	for (int r = 1; r < c->n_rows; r++)
		buf_printf(&b, ",%" PRId64, v[r] - v[0]);
	char *text = arena_strndup(c->a, b.at, b.n);
	buf_free(&b);
	return text;
}

static Column *add(Columns *c, int kind, const char *name, const int64_t *v)
{
	Column *k = NEW(c->a, Column);
	*k = (Column){kind, columns_unused(c, name), v};
	map_add(c->names, k->name);
	vec_push(c->a, &c->all, k);
	return k;
}

/* The first column of this kind and these steps, which at !distance also begins with v[0]; a new one if there is
 * none. */
static const Column *find(Columns *c, int kind, bool distance, const char *name, const int64_t *v)
{
	const char *steps = steps_text(c, kind, v), *same = arena_printf(c->a, "%s from %" PRId64, steps, v[0]);
	Column *k = map_get(c->found, distance ? steps : same);
	if (k)
		return k;
	k = add(c, kind, name, v);
	if (!map_has(c->found, steps))
		map_put(c->found, steps, k);
	map_put(c->found, same, k);
	return k;
}

const char *columns_text(Columns *c, int kind, bool distance, const char *name, const int64_t *v, const char *of)
{
	const Column *k = find(c, kind, distance, name, v);
	int64_t more = v[0] - k->at[0];
	if (!more)
		return arena_printf(c->a, "%s%s", of, k->name);
	return arena_printf(c->a, "%s%s %c %" PRId64, of, k->name, more < 0 ? '-' : '+', more < 0 ? -more : more);
}
