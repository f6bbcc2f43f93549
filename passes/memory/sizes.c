/* passes/memory/sizes.c: programs for several sizes of the data (--bind seq=128,256) become plans over one memory.
 *
 * Each size was planned alone.  Here units, parameters, states and buffers must turn out equal, and inputs and states
 * get one place for all sizes: inputs those that they have in the largest; buffers, and data that is the same at every
 * size, are there once; other data, such as masks and tables of positions, is there for each size.
 * Refuses sizes whose plans do not fit together, and inputs for which no padding is known. */
#include "passes/passes.h"

#include <string.h>

/* ---- what must be equal ---- */

static bool same_flats(const Unit *a, const Unit *b)
{
	bool same = a->n_flats == b->n_flats && a->strategy == b->strategy && a->owner == b->owner
		&& a->n_params == b->n_params && !strcmp(a->name, b->name);
	for (int f = 0; same && f < a->n_flats; f++)
		same = a->flat[f].numel == b->flat[f].numel && a->flat[f].param == b->flat[f].param
			&& a->flat[f].grad == b->flat[f].grad && a->flat[f].trainable == b->flat[f].trainable;
	for (int i = 0; same && i < a->n_params; i++)
		same = !strcmp(a->params[i]->name, b->params[i]->name) && a->params[i]->flat == b->params[i]->flat
			&& a->params[i]->offset == b->params[i]->offset && type_equal(&a->params[i]->type, &b->params[i]->type);
	return same;
}

static bool check_units(const Module *m, const Module *base, const char *size, Diag *d)
{
	const char *unit = m->n_units == base->n_units ? NULL : "their number";
	for (int u = 0; !unit && u < m->n_units; u++)
		if (!same_flats(m->units[u], base->units[u]))
			unit = m->units[u]->name;
	if (unit)
		diag_error(d, "--bind", "%s has other parameters or units than the largest size (%s): their shapes depend on "
			"the dimension, so no one set of parameters serves both; make a program for each", size, unit);
	return !unit;
}

/* The gradients of a unit lie in the same slot at all sizes, because they are summed there over micro-batches. */
static bool check_slots(const Module *m, const Module *base, const char *size, Arena *a, Diag *d)
{
	LayoutModel one = memory_layout(m, a), other = memory_layout(base, a);
	for (int u = 0; u < one.n_units; u++)
		if (one.unit[u].grad_slot != other.unit[u].grad_slot) {
			diag_error(d, "--bind", "at %s the gradient of unit %s lies in another slot than at the largest size: say "
				"--loss-chunk, --tile-rows and --remat by numbers, so that all sizes are planned alike", size,
				m->units[u]->name);
			return false;
		}
	return true;
}

/* ---- inputs ---- */

/* Whether the input has rank and samples of that of the largest size, and no longer axis; *varies: one is shorter. */
static bool input_agrees(const Symbol *s, const Symbol *large, bool *varies)
{
	bool ok = large && large->kind == SYM_INPUT && large->type.rank == s->type.rank && large->batched == s->batched
		&& large->type.dtype == s->type.dtype;
	*varies = false;
	for (int i = 0; ok && i < s->type.rank; i++) {
		ok = s->type.dim[i] <= large->type.dim[i];
		*varies = *varies || s->type.dim[i] != large->type.dim[i];
	}
	return ok;
}

static bool check_input(const Symbol *s, const Symbol *large, const char *size, Diag *d)
{
	bool varies;
	if (!input_agrees(s, large, &varies)) {
		diag_error(d, "--bind", "input \"%s\" at %s does not fit into that of the largest size", s->name, size);
		return false;
	}
	if (varies && s->batched && s->type.dim[0] != large->type.dim[0])
		diag_error(d, "--bind", "%s: the first axis of input \"%s\" counts samples, and a step has as many of them at "
			"every size: give this dimension one number", size, s->name);
	else if (varies && !s->batched)
		diag_error(d, "--bind", "%s: input \"%s\" has no sample axis (--const) and another shape at each size, but one "
			"file for all of them", size, s->name);
	else if (varies && !large->pads)
		diag_error(d, "--bind", "input \"%s\": short samples cannot be filled up: %s", s->name, large->pad_why
			? large->pad_why : "no number is known that stands for nothing; if there is one, give --pad NAME=VALUE");
	else
		return true;
	return false;
}

static bool check_inputs(const Module *m, const Module *base, const char *size, Diag *d)
{
	bool ok = m->batch == base->batch;
	if (!ok)
		diag_error(d, "--bind", "at %s a step has %lld samples, at the largest size %lld: the dimension counts "
			"samples, so give it one number", size, (long long)m->batch, (long long)base->batch);
	for (int i = 0; i < m->n_symbols && ok; i++)
		if (m->symbols[i]->kind == SYM_INPUT)
			ok = check_input(m->symbols[i], ir_find_symbol(base, m->symbols[i]->name), size, d);
	return ok;
}

static void note_pads(const Module *small, const Module *base, Diag *d)
{
	for (int i = 0; i < base->n_symbols; i++) {
		const Symbol *s = base->symbols[i], *other = ir_find_symbol(small, s->name);
		if (s->kind == SYM_INPUT && s->pads && other && !type_equal(&s->type, &other->type))
			diag_note(d, "--bind", "input \"%s\" of short samples is filled up with %g: %s", s->name, s->pad,
				s->pad_why);
	}
}

/* ---- places ---- */

static bool same_source(const Source *a, const Source *b)
{
	bool same = (!a->file && !b->file) || (a->file && b->file && !strcmp(a->file, b->file));
	same = same && a->offset == b->offset && a->bytes == b->bytes && a->fill == b->fill && a->dtype == b->dtype
		&& a->rank == b->rank;
	for (int i = 0; same && i < a->rank; i++)
		same = a->dim[i] == b->dim[i] && a->perm[i] == b->perm[i];
	return same;
}

/* The symbol of the largest size in whose place s lies: its own, or that of a copy of its data, which is added. */
static Symbol *place_in(Module *base, const Symbol *s)
{
	Symbol *other = ir_find_symbol(base, s->name);
	if (s->kind != SYM_DATA)
		return other && other->kind == s->kind && (s->kind == SYM_INPUT || type_equal(&s->type, &other->type)) ? other
			: NULL;
	for (int i = 0; i < base->n_symbols; i++) {
		other = base->symbols[i];
		if (other->kind == SYM_DATA && type_equal(&s->type, &other->type) && same_source(&s->src, &other->src))
			return other;
	}
	Symbol *copy = ir_add_symbol(base, SYM_DATA, s->name, s->type);
	copy->onnx = ir_intern(base, s->onnx);
	copy->src = s->src;
	copy->src.file = s->src.file ? ir_intern(base, s->src.file) : NULL;
	copy->offset = base->state_bytes;
	base->state_bytes += round_up(MAX(type_bytes(&s->type), 1), 64);
	return copy;
}

/* Where the bytes of symbols of an arena were, in rising order, and where they go. */
typedef struct Moved { int64_t from, to; } Moved;
typedef struct Moves { Moved *at; int n; } Moves;

static int64_t moved(const Moves *moves, int64_t offset)
{
	int low = 0, high = moves->n - 1;
	while (low < high) {
		int middle = (low + high + 1) / 2;
		if (moves->at[middle].from <= offset)
			low = middle;
		else
			high = middle - 1;
	}
	return moves->n ? offset - moves->at[low].from + moves->at[low].to : offset;
}

static void move_values(Module *m, const Moves *inputs, const Moves *states)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			for (int i = 0; i < op->n_out; i++) {
				Place *p = &op->out[i]->place;
				if (p->region == REGION_INPUT || p->region == REGION_STATE)
					p->offset = moved(p->region == REGION_INPUT ? inputs : states, p->offset);
			}
}

/* Gives inputs and states of m, whose places are those of pass memory, the places that they have in base. */
static bool move(Module *m, Module *base, const char *size, Arena *a, Diag *d)
{
	Moves moves[2] = {{NEW_N(a, Moved, m->n_symbols + 1), 0}, {NEW_N(a, Moved, m->n_symbols + 1), 0}};
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		if (s->kind != SYM_INPUT && !in_state_arena(s))
			continue;
		Moves *to = &moves[s->kind != SYM_INPUT];
		Symbol *place = place_in(base, s);
		if (!place) {
			diag_error(d, "--bind", "at %s \"%s\" is %s, at the largest size it is another: a buffer whose shape "
				"depends on the dimension cannot be shared; make a program for each size", size, s->name,
				type_str(m->arena, &s->type));
			return false;
		}
		to->at[to->n++] = (Moved){s->offset, place->offset};
		s->offset = place->offset;
	}
	move_values(m, &moves[0], &moves[1]);
	return true;
}

/* ---- all sizes ---- */

static bool join(const Variants *v, const Variants *largest, const char *size, Diag *d)
{
	Arena *a = arena_new();
	Module *base = largest->of[VARIANT_ONLY];
	const Module *only = v->of[VARIANT_ONLY];
	bool ok = check_inputs(only, base, size, d) && check_units(only, base, size, d);
	for (int k = 0; k < VARIANT_COUNT && ok; k++)
		ok = !v->of[k] || (check_slots(v->of[k], largest->of[k], size, a, d) && move(v->of[k], base, size, a, d));
	arena_free(a);
	return ok;
}

static void share_arenas(Variants *v, const Module *base)
{
	for (int k = 0; k < VARIANT_COUNT; k++)
		if (v->of[k]) {
			v->of[k]->input_bytes = base->input_bytes;
			v->of[k]->state_bytes = base->state_bytes;
		}
}

bool sizes_join(Sizes *s, const Options *o, Diag *d)
{
	const Variants *largest = &s->of[s->n - 1];
	const Module *base = largest->of[VARIANT_ONLY];
	for (int k = 0; k < s->n - 1; k++)
		if (!join(&s->of[k], largest, s->name[k], d))
			return false;
	for (int k = 0; k < s->n; k++)
		share_arenas(&s->of[k], base);
	note_pads(s->of[0].of[VARIANT_ONLY], base, d);
	Arena *a = arena_new();
	int64_t total = 0;
	for (int micro = 1; micro <= (largest->of[VARIANT_FIRST] ? 3 : 1); micro++) {
		LayoutModel all = memory_sizes(s, micro, a);
		LayoutRank who = memory_rank(o);
		memory_complete(&all, base, o);
		total = MAX(total, layout_memory_most(&all, &who).total);
	}
	bool fits = !o->memory.memory_limit || total <= o->memory.memory_limit;
	if (!fits)
		diag_error(d, "--memory-limit", "the plans of all sizes need %lld bytes together at %lld rank(s), the limit is "
			"%lld", (long long)total, (long long)memory_rank(o).world, (long long)o->memory.memory_limit);
	arena_free(a);
	return fits;
}
