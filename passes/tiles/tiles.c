/* passes/tiles/tiles.c: computes wide inner values of a block by tiles of rows (--tile-rows).
 *
 * Requires SHARD, behind merge and columns, which make one value of a block's widest, and before schedule.  Ensures
 * that inner values above the limit, as the hidden layer of an MLP and its gradient, exist by tiles of rows only: for
 * each tile the products and loops of forward; of backward what is recomputed, the gradients, and products that add to
 * the weights' gradients in f32 and in place.  Results are those of whole values, but for the order in which weight
 * gradients are summed.  Wide values of which anything needs the whole stay, and the dump says why.
 *
 * Linear in the module's size and in the number of tiles. */
#include "passes/tiles/tiles.h"

/* auto: inner values above AUTO_BYTES are cut, into tiles of TILE_BYTES.  Tiles have many rows, since the f32 gradient
 * of a weight is read and written once a tile. */
enum { AUTO_BYTES = 1 << 30, TILE_BYTES = 512 << 20, CPU_ROWS = 512, CUDA_ROWS = 4096, MOST_TILES = 256 };
enum { GOOD_ROWS = 128 }; /* products of GPUs are made of pieces of so many rows */

static int64_t bytes_of(const TileRegion *r)
{
	return type_bytes(&r->widest->type);
}

/* The least number of rows after which each value that is cut is at a multiple of 64 bytes. */
static int64_t rows_aligned(const TileRegion *r)
{
	int64_t most = 1;
	for (int i = 0; i < r->ops.n; i++) {
		const Op *op = r->ops.at[i];
		for (int k = 0; k < op->n_in + op->n_out; k++) {
			const Value *v = k < op->n_in ? op_in(op, k) : op->out[k - op->n_in];
			int64_t row = v && tiles_rows(&v->type) == r->rows ? type_bytes(&v->type) / r->rows : 64, n = 1;
			while (row * n % 64)
				n *= 2;
			most = MAX(most, n);
		}
	}
	return most;
}

/* Rows of a tile; 0 = the region stays whole. */
static int64_t tile_of(const Tiles *t, const TileRegion *r)
{
	int64_t least = options_cuda(t->o) ? CUDA_ROWS : CPU_ROWS, rows = t->asked;
	if (!rows && bytes_of(r) > AUTO_BYTES)
		rows = round_up(rows_of_block(r->rows, bytes_of(r) / r->rows, TILE_BYTES, least), GOOD_ROWS);
	rows = round_up(MIN(rows, r->rows), rows_aligned(r));
	return rows < r->rows ? rows : 0;
}

static void say_whole(Tiles *t, const Value *v, const char *why)
{
	diag_info(t->d, loc_where(t->m, v->op->loc), "tiles: %%%s, %s, stays whole: %s", v->name,
		type_str(t->a, &v->type), why);
}

static void cut(Tiles *t, TileRegion *r)
{
	tiles_settle(t, r);
	if (!r->widest)
		return;
	r->tile = tile_of(t, r);
	int64_t n = r->tile ? (r->rows + r->tile - 1) / r->tile : 0;
	t->n_small += !n && t->asked;
	if (n > MOST_TILES)
		r->why = arena_printf(t->a, "it would be %lld tiles, more than %d", (long long)n, MOST_TILES);
	if (n && r->why)
		say_whole(t, r->widest, r->why);
	if (!n || r->why)
		return;
	diag_info(t->d, loc_where(t->m, r->widest->op->loc), "tiles: %%%s, %s, exists by %lld rows", r->widest->name,
		type_str(t->a, &r->widest->type), (long long)r->tile);
	tiles_build(t, r);
	t->n_regions++;
}

/* Says of products that make wide values which op needs these whole. */
static void say_why(Tiles *t, const Look *l)
{
	const Value *v = l->op->kind == OP_MATMUL ? l->op->out[0] : NULL; /* other ops may have no result */
	if (!v || !l->why || (!t->asked && type_bytes(&v->type) <= AUTO_BYTES))
		return;
	const char *node = l->why->loc->node, *kind = op_info[l->why->kind].text;
	const char *who = *node ? arena_printf(t->a, "%s of node \"%s\"", kind, node) : kind;
	say_whole(t, v, arena_printf(t->a, l->why->section == t->section ? "%s needs it" : "it is kept for %s in backward",
		who));
}

static void cut_section(Tiles *t, SectionKind s)
{
	tiles_look(t, s);
	TileRegion *of = NEW_N(t->a, TileRegion, t->n);
	for (int i = 0; i < t->n; i++) {
		TileRegion *r = t->at[i].in ? &of[tiles_root(t, i)] : NULL;
		say_why(t, &t->at[i]);
		if (!r)
			continue;
		if (!r->member)
			r->member = ptrmap_new(t->a);
		ptrmap_put(r->member, t->at[i].op, t->at[i].op);
		vec_push(t->a, &r->ops, t->at[i].op);
	}
	for (int i = 0; i < t->n; i++)
		if (of[i].ops.n)
			cut(t, &of[i]);
}

bool pass_tiles(Module *m, const Options *o, Diag *d)
{
	Tiles t = {.m = m, .o = o, .d = d};
	if (!rows_asked("--tile-rows", o->memory.tile_rows, &t.asked, d))
		return false;
	if (t.asked < 0)
		return true;
	t.a = arena_new();
	ir_number(m);
	tiles_mark(&t);
	for (int s = 0; s < SEC_COUNT; s++)
		cut_section(&t, (SectionKind)s);
	if (t.asked && !t.n_regions)
		diag_warn(d, "--tile-rows", t.n_small ? "a tile of %lld rows holds all rows: it is not used"
			: "no inner value of a block can be cut into tiles of %lld rows: it is not used", (long long)t.asked);
	for (int s = SEC_COUNT - 1; s >= 0 && t.n_regions; s--)
		ir_sweep(m, (SectionKind)s);
	arena_free(t.a);
	return true;
}
