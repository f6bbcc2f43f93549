/* passes/memory/check.c: proves a memory plan by executing it on shadow memory.
 *
 * Every byte knows the value that was written there last.  An op must find each operand's value in the whole of the
 * operand's place, and may write over an operand only where its kernel allows that.  This file shares nothing with
 * the planner but the places, so a wrong lifetime, a wrong alias or an overlap shows as a value that is not where
 * it is read.
 *
 * Slots are memory that units share.  A gather fills a slot for its wait and invalidates it for all other units;
 * the unit's reshard, and the wait of a reduce, leave it invalid.  They are laid out for an assumed number of
 * ranks.  A single rank is checked again if its flat gradients lie among the activations: they must be there until
 * their unit's update.
 *
 * The shadow is a segment tree over the plan's distinct addresses: O(n log n). */
#include "passes/passes.h"

#include <stdlib.h>

enum { POISON = -1, MIXED = -2, RANKS = 3 };
static const LayoutRank one_rank = {0, 1, 1};

typedef struct Shadow {
	Module *m;
	Arena *a;
	int64_t *address; /* distinct, ascending; cell i is [address[i], address[i+1]) */
	int n;
	int *cell;        /* segment tree: what the node's cells hold, MIXED = look below */
	int *content;     /* by Value.id: what the value's place must hold */
	PtrMap *symbol;   /* Symbol -> what its place holds, + 1 */
	int64_t *space;   /* by Value.id: for views and values that show them, the space of their gathered unit */
	int64_t *grads;   /* by unit: the space of its flat gradient */
	const LayoutModel *alone;    /* of a single rank whose flat gradients lie among the activations; else NULL */
	LayoutOffsets *flat;         /* by unit: where they lie there */
	const Op **collect;          /* by unit: what must be there until its update */
	int next_content;
	const char *violation;
	const Op *blamed; /* for the violation */
} Shadow;

typedef struct Span { int64_t begin, end; } Span;

/* ---- addresses ---- */

/* Regions are disjoint spaces of one address line.  So are each unit's own region and each flat gradient, followed
 * by the slots of gathered units and those of flat gradients. */
static Span span_in(int64_t space, int64_t offset, int64_t bytes)
{
	int64_t begin = 2 * space * MEMORY_SPACE_MAX + offset; /* twice: flats are padded */
	return (Span){begin, begin + bytes};
}

static int64_t unit_space(const Module *m, const Unit *u, const Op *opens, bool grad)
{
	int64_t slot = attr_get_int(opens->attrs, "slot", -1);
	int64_t key = slot < 0 ? u->index : m->n_units + slot;
	return REGION_COUNT + 2 * key + grad;
}

/* The distance from a unit's start in a slot to one of its flats, of parameters or gradients; flat = n_flats: to
 * its end. */
static int64_t in_slot(const Unit *u, int flat, bool grad)
{
	int64_t sum = 0;
	for (int f = 0; f < flat; f++)
		sum += layout_flat_numel(u->flat[f].numel, RANKS) *
			dtype_info[grad ? u->flat[f].grad : u->flat[f].param].bytes;
	return sum;
}

static bool lies_over_acts(const Shadow *s, const Unit *u)
{
	return s->alone && layout_grad_over_acts(s->alone, &s->alone->unit[u->index], &one_rank);
}

/* Of the unit's flat gradient, `bytes` at an offset of one of its flats. */
static Span grad_span(const Shadow *s, const Unit *u, int flat, int64_t offset, int64_t bytes)
{
	if (lies_over_acts(s, u))
		return span_in(REGION_ACT, s->flat[u->index][flat] + offset, bytes);
	return span_in(s->grads[u->index], in_slot(u, flat, true) + offset, bytes);
}

/* Columns count as the whole of the value that they are of. */
static Span span_of(const Shadow *s, const Value *part)
{
	const Value *v = value_whole((Value *)part);
	const Place *p = &v->place;
	int64_t bytes = type_bytes(&v->type);
	if (p->region == REGION_PARAM)
		return span_in(s->space[v->id], in_slot(p->unit, p->flat, false) + p->offset, bytes);
	if (p->region == REGION_GRAD)
		return grad_span(s, p->unit, p->flat, p->offset, bytes);
	return span_in(p->region, p->offset, bytes);
}

static Span unit_span(const Unit *u, int64_t space)
{
	return span_in(space, 0, MAX(in_slot(u, u->n_flats, false), in_slot(u, u->n_flats, true)));
}

/* All of the unit's flat gradient. */
static Span flat_span(const Shadow *s, const Unit *u)
{
	int first = 0;
	if (!lies_over_acts(s, u))
		return unit_span(u, s->grads[u->index]);
	while (first < u->n_flats - 1 && !u->flat[first].trainable)
		first++;
	return grad_span(s, u, first, 0, layout_grad_bytes(&s->alone->unit[u->index], 1));
}

static Span param_span(const Symbol *p, int64_t space)
{
	int64_t bytes = dtype_info[p->unit->flat[p->flat].param].bytes;
	return span_in(space, in_slot(p->unit, p->flat, false) + p->offset * bytes, type_numel(&p->type) * bytes);
}

/* The op that makes the unit of these flats readable: its gather, or a resident or carried. */
static const Op *opener_of(const Value *flat)
{
	const Op *op = flat->op;
	return op->kind == OP_WAIT ? op_in(op, 0)->op : op;
}

static bool opens_unit(const Op *op)
{
	return op->kind == OP_RESIDENT || op->kind == OP_CARRIED
		|| (op->kind == OP_WAIT && opener_of(op->out[0])->kind == OP_ALL_GATHER);
}

static void find_spaces(Shadow *s, const SectionKind *sections, int n)
{
	s->space = NEW_N(s->a, int64_t, s->m->n_values);
	s->grads = NEW_N(s->a, int64_t, s->m->n_units);
	for (int k = 0; k < n; k++) {
		IR_FOR_OPS(s->m, sections[k], op) {
			if (op->kind == OP_ZERO_GAPS || op->kind == OP_CARRIED_GRAD)
				s->grads[op->unit->index] = unit_space(s->m, op->unit, op, true);
			if (op->kind == OP_VIEW_OP)
				s->space[op->out[0]->id] = unit_space(s->m, op->sym->unit, opener_of(op_in(op, 0)), false);
			else if (op_info[op->kind].flags & VIEW)
				s->space[op->out[0]->id] = s->space[op_in(op, 0)->id];
		}
	}
}

static bool is_placed(const Value *v)
{
	return v && v->place.region != REGION_NONE && v->type.kind == TYPE_TENSOR && type_bytes(&v->type) > 0;
}

static int compare_addresses(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return x < y ? -1 : x > y;
}

typedef struct Addresses { int64_t *at; int n, cap; } Addresses;

static void add_span(Shadow *s, Addresses *at, Span span)
{
	vec_push(s->a, at, span.begin);
	vec_push(s->a, at, span.end);
}

static void add_addresses(Shadow *s, Addresses *at, const Op *op)
{
	for (int i = 0; i < op->n_out; i++)
		if (is_placed(op->out[i]))
			add_span(s, at, span_of(s, op->out[i]));
	if (op->kind == OP_ZERO_GAPS || op->kind == OP_CARRIED_GRAD)
		add_span(s, at, flat_span(s, op->unit));
	if (!opens_unit(op))
		return;
	const Unit *u = op->out[0]->type.unit;
	int64_t space = unit_space(s->m, u, opener_of(op->out[0]), false);
	add_span(s, at, unit_span(u, space));
	for (int i = 0; i < u->n_params; i++)
		add_span(s, at, param_span(u->params[i], space));
}

static void list_addresses(Shadow *s, const SectionKind *sections, int n_sections)
{
	Addresses at = {0};
	for (int k = 0; k < n_sections; k++)
		IR_FOR_OPS(s->m, sections[k], op)
			add_addresses(s, &at, op);
	if (at.n)
		qsort(at.at, (size_t)at.n, sizeof(*at.at), compare_addresses);
	s->address = at.at;
	for (int i = 0; i < at.n; i++)
		if (!s->n || s->address[s->n - 1] != at.at[i])
			s->address[s->n++] = at.at[i];
}

static int cell_index(const Shadow *s, int64_t address)
{
	int lo = 0, hi = s->n;
	while (lo < hi) {
		int mid = (lo + hi) / 2;
		if (s->address[mid] < address)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* ---- the tree ---- */

static void tree_set(Shadow *s, int node, int lo, int hi, int from, int to, int content)
{
	if (from > hi || to < lo)
		return;
	if (from <= lo && hi <= to) {
		s->cell[node] = content;
		return;
	}
	int mid = (lo + hi) / 2;
	if (s->cell[node] != MIXED)
		s->cell[2 * node] = s->cell[2 * node + 1] = s->cell[node];
	tree_set(s, 2 * node, lo, mid, from, to, content);
	tree_set(s, 2 * node + 1, mid + 1, hi, from, to, content);
	s->cell[node] = s->cell[2 * node] == s->cell[2 * node + 1] ? s->cell[2 * node] : MIXED;
}

static bool tree_holds(const Shadow *s, int node, int lo, int hi, int from, int to, int content)
{
	if (from > hi || to < lo)
		return true;
	if (s->cell[node] != MIXED)
		return s->cell[node] == content;
	int mid = (lo + hi) / 2;
	return tree_holds(s, 2 * node, lo, mid, from, to, content)
		&& tree_holds(s, 2 * node + 1, mid + 1, hi, from, to, content);
}

static void put(Shadow *s, Span span, int content)
{
	if (span.begin == span.end)
		return;
	tree_set(s, 1, 0, s->n - 1, cell_index(s, span.begin), cell_index(s, span.end) - 1, content);
}

static bool holds(const Shadow *s, Span span, int content)
{
	return tree_holds(s, 1, 0, s->n - 1, cell_index(s, span.begin), cell_index(s, span.end) - 1, content);
}

/* ---- execution ---- */

static void blame(Shadow *s, const Op *op, const Value *v, const char *what)
{
	if (s->violation)
		return;
	s->blamed = op;
	s->violation = arena_printf(s->m->arena, "%s: %%%s %s", op_info[op->kind].text, v->name, what);
}

static bool is_symbol_read(const Op *op)
{
	return op->kind == OP_INPUT || op->kind == OP_READ || op->kind == OP_VIEW_OP;
}

static int content_of(Shadow *s, const Symbol *sym)
{
	intptr_t known = (intptr_t)ptrmap_get(s->symbol, sym);
	if (known)
		return (int)known - 1;
	ptrmap_put(s->symbol, sym, (void *)(intptr_t)(s->next_content + 1));
	return s->next_content++;
}

/* What a symbol's place holds.  It is there before the first op, except for a parameter. */
static int symbol_content(Shadow *s, const Op *op)
{
	bool known = op->kind == OP_VIEW_OP || ptrmap_get(s->symbol, op->sym);
	int content = content_of(s, op->sym);
	if (!known)
		put(s, span_of(s, op->out[0]), content);
	return content;
}

/* Parameters that one view shows count as one. */
static void unite_params(Shadow *s, const Op *view)
{
	int content = content_of(s, view->sym);
	for (int64_t i = 1; i < op_n_params(view); i++)
		ptrmap_put(s->symbol, view->sym->unit->params[view->sym->member + i], (void *)(intptr_t)(content + 1));
}

static void fill_symbols(Shadow *s, const SectionKind *sections, int n)
{
	for (int k = 0; k < n; k++)
		IR_FOR_OPS(s->m, sections[k], op)
			if (is_symbol_read(op) && is_placed(op->out[0])) {
				if (op->kind == OP_VIEW_OP)
					unite_params(s, op);
				symbol_content(s, op);
			}
}

/* Whether the op passes scalars to the runtime, which holds them for a collective. */
static bool runtime_holds(const Op *op)
{
	return op->kind == OP_ALL_REDUCE_SCALARS || op->kind == OP_SUMSQ;
}

static void check_operands(Shadow *s, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		if (v && v->type.kind == TYPE_TENSOR && v->place.region == REGION_NONE && !runtime_holds(v->op))
			blame(s, op, v, "is read but has no place");
		if (is_placed(v) && !holds(s, span_of(s, v), s->content[v->id]))
			blame(s, op, v, "is read but its bytes hold something else");
	}
}

static bool may_overwrite(const Shadow *s, const Op *op, int result, int operand)
{
	Value *r = op->out[result], *v = op_in(op, operand);
	if (op->kind == OP_STACK) {
		int64_t begin = span_of(s, r).begin;
		for (int i = 0; i < operand; i++)
			begin += type_bytes(&op_in(op, i)->type);
		return span_of(s, v).begin == begin;
	}
	for (int k = inplace_operand(op, result, 0); k >= 0; k = inplace_operand(op, result, k + 1))
		if (k == operand)
			return span_of(s, r).begin == span_of(s, v).begin && inplace_agrees(v, r);
	return false;
}

static void check_overwrites(Shadow *s, const Op *op, int result)
{
	Span r = span_of(s, op->out[result]);
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		Span span = is_placed(v) ? span_of(s, v) : (Span){0, 0};
		if (span.begin < r.end && r.begin < span.end && !may_overwrite(s, op, result, i))
			blame(s, op, v, "is overwritten by a result while it is read");
	}
}

static void define_results(Shadow *s, const Op *op)
{
	bool view = op_info[op->kind].flags & VIEW && op->kind != OP_VIEW_OP;
	for (int i = 0; i < op->n_out; i++) {
		const Value *v = op->out[i];
		if (!is_placed(v))
			continue;
		if (is_symbol_read(op) || view) {
			s->content[v->id] = view ? s->content[op_in(op, 0)->id] : symbol_content(s, op);
			if (!holds(s, span_of(s, v), s->content[v->id]))
				blame(s, op, v, "shows bytes that hold something else");
			continue;
		}
		int *content = &s->content[value_whole(op->out[i])->id];
		if (*content == POISON) { /* else another operand of the join that reads it began to write, or all did */
			check_overwrites(s, op, i);
			*content = s->next_content++;
			put(s, span_of(s, v), *content);
		}
		s->content[v->id] = *content;
	}
	for (int i = 0; i < op->n_out; i++)
		if (is_placed(op->out[i]) && !holds(s, span_of(s, op->out[i]), s->content[op->out[i]->id]))
			blame(s, op, op->out[i], "overlaps another result");
}

static void execute_write(Shadow *s, const Op *op)
{
	Span span = span_in(REGION_STATE, op->sym->offset, type_bytes(&op->sym->type));
	if (ptrmap_get(s->symbol, op->sym)) {
		ptrmap_put(s->symbol, op->sym, (void *)(intptr_t)(s->next_content + 1));
		put(s, span, s->next_content++);
	}
}

/* Checks that every collected gradient lies in the unit's flat where its parameter does. */
static void check_collect(Shadow *s, const Op *op)
{
	const Unit *u = op->unit;
	for (int i = 0, k = 0; i < u->n_params && k < op->n_in; i++) {
		const Symbol *p = u->params[i];
		if (!p->trainable)
			continue;
		const Value *v = op_in(op, k++);
		if (v && (v->place.region != REGION_GRAD || v->place.unit != p->unit || v->place.flat != p->flat
				|| v->place.offset != p->offset * dtype_info[u->flat[p->flat].grad].bytes))
			blame(s, op, v, "is not at its parameter's place in the flat gradient");
	}
}

/* The unit becomes readable as a whole. */
static void open_unit(Shadow *s, const Op *op)
{
	const Unit *u = op->out[0]->type.unit;
	int64_t space = unit_space(s->m, u, opener_of(op->out[0]), false);
	put(s, unit_span(u, space), POISON);
	for (int i = 0; i < u->n_params; i++)
		put(s, param_span(u->params[i], space), content_of(s, u->params[i]));
}

/* Peers read a flat gradient until the wait of its reduce: nothing writes it before, and its contents are lost
 * afterwards. */
static void end_gradient(Shadow *s, const Op *wait)
{
	const Op *sent = op_in(wait, 0)->op;
	if (!op_in(sent, 0) || op_in(sent, 0)->op->kind != OP_COLLECT)
		return;
	check_operands(s, op_in(sent, 0)->op);
	s->collect[sent->unit->index] = op_in(sent, 0)->op;
	if (lies_over_acts(s, sent->unit))
		return;
	if (sent->kind != OP_ALL_REDUCE || ir_sums_reduced(s->m))
		put(s, flat_span(s, sent->unit), POISON);
}

static void execute_life(Shadow *s, const Op *op)
{
	const Unit *u = op->unit;
	if (opens_unit(op))
		open_unit(s, op);
	else if (op->kind == OP_ALL_GATHER)
		put(s, unit_span(u, unit_space(s->m, u, op, false)), POISON);
	else if (op->kind == OP_RESHARD)
		put(s, unit_span(u, unit_space(s->m, u, opener_of(op_in(op, 0)), false)), POISON);
	else if (op->kind == OP_ZERO_GAPS)
		put(s, flat_span(s, u), POISON);
	else if (op->kind == OP_WAIT && op_in(op, 0)->op->n_in)
		end_gradient(s, op);
	else if (op->kind == OP_UPDATE_SHARD && lies_over_acts(s, u) && s->collect[u->index])
		check_operands(s, s->collect[u->index]);
}

static void execute(Shadow *s, const Op *op)
{
	if (!(op_info[op->kind].flags & VIEW) || op->kind == OP_COPIED) /* a copy has read it until then */
		check_operands(s, op);
	if (op->kind == OP_COLLECT)
		check_collect(s, op);
	if (op_info[op->kind].flags & COMM && op->n_in && op_in(op, 0)->op->kind == OP_COLLECT)
		check_operands(s, op_in(op, 0)->op);
	execute_life(s, op);
	define_results(s, op);
	if (op->kind == OP_WRITE)
		execute_write(s, op);
}

/* alone: as on a single rank, whose flat gradients lie at these places among the activations; NULL: as on several. */
static const char *check_program(Module *m, const SectionKind *sections, int n, const LayoutModel *alone, Arena *a,
	const Op **blamed)
{
	Shadow s = {.m = m, .a = a, .symbol = ptrmap_new(a), .alone = alone, .collect = NEW_N(a, const Op *, m->n_units)};
	s.flat = alone ? layout_places(alone, &one_rank, a).grad : NULL;
	find_spaces(&s, sections, n);
	list_addresses(&s, sections, n);
	if (!s.n)
		return NULL;
	s.cell = NEW_N(a, int, 4 * s.n);
	s.content = NEW_N(a, int, m->n_values);
	for (int i = 0; i < 4 * s.n; i++)
		s.cell[i] = POISON;
	for (int i = 0; i < m->n_values; i++)
		s.content[i] = POISON;
	fill_symbols(&s, sections, n);
	for (int k = 0; k < n; k++)
		IR_FOR_OPS(m, sections[k], op)
			execute(&s, op);
	/* The outputs of a forward-only program must still be there at its end. */
	IR_FOR_OPS(m, SEC_EVAL, op)
		if (!m->first[SEC_FORWARD] && op->kind == OP_OUTPUT)
			check_operands(&s, op);
	if (blamed)
		*blamed = s.blamed;
	return s.violation;
}

static const SectionKind train[] = {SEC_FORWARD, SEC_BACKWARD, SEC_UPDATE}, eval[] = {SEC_EVAL};

const char *memory_check_alone(Module *m, const LayoutModel *l, Arena *a, const Op **blamed)
{
	bool over = false;
	for (int i = 0; i < l->n_units; i++)
		over = over || layout_grad_over_acts(l, &l->unit[i], &one_rank);
	return over ? check_program(m, train, COUNT_OF(train), l, a, blamed) : NULL;
}

const char *memory_check(Module *m, Arena *a, const Op **blamed)
{
	LayoutModel layout = memory_layout(m, a);
	layout.cuda.on = ir_train(m)->cuda;
	const char *violation = check_program(m, train, COUNT_OF(train), NULL, a, blamed);
	violation = violation ? violation : memory_check_alone(m, &layout, a, blamed);
	return violation ? violation : check_program(m, eval, COUNT_OF(eval), NULL, a, blamed);
}
