/* passes/memory/memory.c: gives every value a place in memory.
 *
 * Requires PLAN (total order).  Ensures that values lie in the activation arena; inputs, buffers and data at fixed
 * offsets of their arenas; parameters inside their gathered unit and gradients inside their unit's flat gradient,
 * so that nothing is copied in or out; that no two values that are live at once overlap (proved by memory_check);
 * and that the sizes of arenas are known.
 * Refuses a plan above --memory-limit, naming the op at the peak and the largest live values.
 *
 * Where a value cannot live where it must (a gradient that is a view or is needed twice, an output that is a
 * parameter, a buffer that is read after it was overwritten) a `copy` is inserted.  Training and eval share the
 * arena, since nothing in it outlives a step; so do the flat gradients of a single rank, which lie above the
 * activations that are still needed when they are begun (base/layout.c). */
#include "passes/passes.h"

#include "base/layout.h"
#include "base/plan.h"

#include <string.h>

/* ---- copies where sharing is impossible ---- */

/* Copies v in front of `before`; NULL: at the end of near's section.  near: the op whose location the copy gets. */
static Value *copy_value(Module *m, Value *v, const Op *near, Op *before)
{
	Builder b = {.m = m, .section = near->section, .before = before,
		.loc = loc_with_role(m, near->loc, "memory"), .name = v->name};
	return ir_emit1(&b, OP_COPY, v);
}

static Place flat_place(const Symbol *s, Region region)
{
	const Flat *f = &s->unit->flat[s->flat];
	DType dtype = region == REGION_GRAD ? f->grad : f->param;
	return (Place){region, s->flat, s->unit, s->offset * dtype_info[dtype].bytes};
}

static bool same_place(const Place *a, const Place *b)
{
	return a->region == b->region && a->unit == b->unit && a->flat == b->flat && a->offset == b->offset;
}

/* The place of v in its buffer. */
static Place buffer_place(const Buffers *b, const Value *v)
{
	Place place = b->at[b->of_value[v->id]].place;
	place.offset += value_offset(v);
	return place;
}

static void copy_gradients(Module *m, const Buffers *b, Op *collect)
{
	const Unit *u = collect->unit;
	for (int i = 0, k = 0; i < u->n_params && k < collect->n_in; i++) {
		if (!u->params[i]->trainable)
			continue;
		Value *v = op_in(collect, k++);
		Place want = flat_place(u->params[i], REGION_GRAD), is = {0};
		if (v && b->of_value[v->id] >= 0)
			is = buffer_place(b, v);
		if (v && !same_place(&is, &want))
			ir_set_in(collect, k - 1, copy_value(m, v, collect, collect));
	}
}

static bool read_after(const Value *v, const Op *write)
{
	for (const Use *u = v->uses; u; u = u->next) {
		if (u->op->order > write->order)
			return true;
		if (op_info[u->op->kind].flags & VIEW && read_after(u->op->out[0], write))
			return true;
	}
	return false;
}

/* A value read from a buffer shows the buffer's bytes, so an op that reads it after a write needs a copy. */
static void copy_stale_reads(Module *m, const Buffers *b)
{
	PtrMap *write = ptrmap_new(m->arena);
	for (int p = b->n_ops - 1; p >= 0; p--) {
		Op *op = b->op[p], *next;
		if (op->kind == OP_WRITE)
			ptrmap_put(write, op->sym, op);
		next = op->kind == OP_READ ? ptrmap_get(write, op->sym) : NULL;
		if (!next || !read_after(op->out[0], next))
			continue;
		Value *copy = copy_value(m, op->out[0], op, op->next);
		ir_replace_uses(op->out[0], copy);
		ir_set_in(copy->op, 0, op->out[0]);
	}
}

/* The driver of a forward-only program expects outputs in the activation arena. */
static void copy_outputs(Module *m, const Buffers *b)
{
	for (int p = 0; p < b->n_ops; p++) {
		Op *op = b->op[p];
		if (op->kind == OP_OUTPUT && !m->first[SEC_FORWARD] && b->of_value[op_in(op, 0)->id] < 0)
			ir_set_in(op, 0, copy_value(m, op_in(op, 0), op, op));
	}
}

/* Returns the buffers of the program, including the copies. */
static Buffers *insert_copies(Module *m, bool eval, Arena *a)
{
	Buffers *b = buffers_find(m, eval, a);
	int before = m->n_values;
	copy_stale_reads(m, b);
	copy_outputs(m, b);
	for (int p = 0; p < b->n_ops; p++)
		if (b->op[p]->kind == OP_COLLECT)
			copy_gradients(m, b, b->op[p]);
	return m->n_values == before ? b : buffers_find(m, eval, a);
}

/* ---- arenas of inputs and states ---- */

bool in_state_arena(const Symbol *s)
{
	return s->kind == SYM_BUFFER || s->kind == SYM_DATA || s->kind == SYM_SCALE || (s->kind == SYM_STATE && !s->unit);
}

static void place_symbols(Module *m)
{
	m->input_bytes = m->state_bytes = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		int64_t *end = s->kind == SYM_INPUT ? &m->input_bytes : in_state_arena(s) ? &m->state_bytes : NULL;
		if (!end)
			continue;
		s->offset = *end;
		*end += round_up(MAX(type_bytes(&s->type), 1), 64);
	}
}

static Place symbol_place(const Op *op)
{
	if (op->kind == OP_VIEW_OP)
		return flat_place(op->sym, REGION_PARAM);
	return (Place){op->kind == OP_INPUT ? REGION_INPUT : REGION_STATE, 0, NULL, op->sym->offset};
}

static Place place_of(const Buffers *b, Value *v)
{
	Op *root = value_root(v)->op;
	Place place = {0};
	if (b->of_value[v->id] >= 0)
		return buffer_place(b, v);
	if (root->kind == OP_INPUT || root->kind == OP_READ || root->kind == OP_VIEW_OP)
		place = symbol_place(root);
	place.offset += value_offset(v);
	return place;
}

/* By position of the step, the bytes of flat gradients that were begun and lie above what is live then; NULL: none lie
 * there. */
static int64_t *gradients_above(const Module *m, const Buffers *b, const LayoutModel *l, const LayoutRank *who,
	Arena *a)
{
	int64_t *above = NEW_N(a, int64_t, b->n_ops + 1), sum = 0;
	for (int p = 0; p <= b->n_ops; p++) {
		const Op *op = p < b->n_ops && b->op[p]->kind == OP_ZERO_GAPS ? b->op[p] : NULL;
		const LayoutUnit *u = op && m->variant == VARIANT_ONLY ? &l->unit[op->unit->index] : NULL;
		if (u && layout_grad_may_lie_over_acts(l, u, who)) /* how much is free is known when all has a place */
			sum += layout_grad_bytes(u, 1);
		above[p] = sum;
	}
	return sum ? above : NULL;
}

/* The same of gradients that lie or may lie there, each begun where its parameter's own is: no unit begins it later. */
static int64_t *gradients_begun(const Buffers *b, const LayoutModel *l, const LayoutRank *who, Arena *a)
{
	int64_t *begun = NEW_N(a, int64_t, b->n_ops + 1);
	for (int i = 0; i < b->n; i++) {
		const Place *p = &b->at[i].place;
		if (p->region == REGION_GRAD && layout_grad_may_lie_over_acts(l, &l->unit[p->unit->index], who))
			begun[b->at[i].first] += b->at[i].bytes;
	}
	for (int p = 1; p <= b->n_ops; p++)
		begun[p] += begun[p - 1];
	return begun;
}

int64_t memory_least(Module *m, const LayoutModel *l, const LayoutRank *who, const Op **fullest, Arena *a)
{
	Buffers *b = buffers_find(m, false, a);
	int64_t *live = NEW_N(a, int64_t, b->n_ops + 1), most = 0;
	const int64_t *begun = gradients_begun(b, l, who, a);
	buffers_live(b, live);
	for (int p = 0; p <= b->n_ops; p++) {
		if (live[p] + begun[p] <= most)
			continue;
		most = live[p] + begun[p];
		*fullest = b->op[MIN(p, b->n_ops - 1)];
	}
	return most;
}

/* Packs the buffers of a region into an arena and returns its size; what is within `enough` bytes is not improved. */
static int64_t pack_region(const Buffers *b, Region region, const int64_t *above, int64_t enough, Arena *a)
{
	MemoryBlock *block = NEW_N(a, MemoryBlock, b->n);
	int n = 0;
	for (int i = 0; i < b->n; i++)
		if (b->at[i].place.region == region)
			block[n++] = (MemoryBlock){b->at[i].bytes, 0, b->at[i].first, b->at[i].last};
	int64_t bytes = memory_pack(block, n, b->n_ops + 1, above, enough, a);
	n = 0;
	for (int i = 0; i < b->n; i++)
		if (b->at[i].place.region == region)
			b->at[i].place.offset = block[n++].offset;
	return bytes;
}

static void place_values(const Buffers *b)
{
	for (int p = 0; p < b->n_ops; p++)
		for (int i = 0; i < b->op[p]->n_out; i++)
			b->op[p]->out[i]->place = place_of(b, b->op[p]->out[i]);
}

static int64_t largest_workspace(const Module *m, const Options *o)
{
	int64_t most = 0;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op) {
			int64_t bytes = op_workspace(op, o);
			most = MAX(most, bytes);
		}
	return round_up(most, 64);
}

/* ---- what the plan costs ---- */

static void note_largest(MemoryPeak *peak, const Value *v, int64_t bytes)
{
	int i = peak->n < MEMORY_LARGEST ? peak->n++ : MEMORY_LARGEST - 1;
	if (peak->largest[i] && peak->largest_bytes[i] >= bytes)
		return;
	for (; i > 0 && peak->largest_bytes[i - 1] < bytes; i--) {
		peak->largest[i] = peak->largest[i - 1];
		peak->largest_bytes[i] = peak->largest_bytes[i - 1];
	}
	peak->largest[i] = v;
	peak->largest_bytes[i] = bytes;
}

static MemoryPeak program_peak(Module *m, bool eval, Arena *a)
{
	MemoryPeak peak = {0};
	Buffers *b = buffers_find(m, eval, a);
	int64_t *live = NEW_N(a, int64_t, b->n_ops + 1);
	int at = 0;
	peak.bytes = buffers_live(b, live);
	while (at < b->n_ops && live[at] < peak.bytes)
		at++;
	if (!peak.bytes)
		return peak;
	peak.op = b->op[MIN(at, b->n_ops - 1)];
	for (int i = 0; i < b->n; i++)
		if (b->at[i].place.region == REGION_ACT && b->at[i].first <= at && at <= b->at[i].last)
			note_largest(&peak, b->at[i].value, b->at[i].bytes);
	return peak;
}

MemoryPeak memory_peak(Module *m, Arena *a)
{
	MemoryPeak train = program_peak(m, false, a), eval = program_peak(m, true, a);
	return eval.bytes > train.bytes ? eval : train;
}

static int states_per_element(const Module *m)
{
	const Symbol *first = NULL;
	int n = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		if (s->kind != SYM_STATE || !s->unit)
			continue;
		first = first ? first : s;
		n += s->unit == first->unit && s->flat == first->flat;
	}
	return n;
}

/* Lists all gathers, since the ring and the gradient slots are as large as their largest member. */
static void list_gathers(const Module *m, int from, LayoutModel *out, LayoutUnit *units, LayoutGather *gathers)
{
	for (int s = from; s < SEC_COUNT; s++) {
		IR_FOR_OPS(m, s, op) {
			int slot = (int)attr_get_int(op->attrs, "slot", -1), unit = op->unit ? op->unit->index : -1;
			if (op->kind == OP_CARRIED)
				units[unit].own_region = true;
			if (op->kind == OP_ZERO_GAPS) {
				units[unit].grad_slot = slot;
				out->n_grad_slots = MAX(out->n_grad_slots, slot + 1);
			} else if (op->kind == OP_ALL_GATHER && slot < 0) {
				units[unit].own_region = true;
			} else if (op->kind == OP_ALL_GATHER) {
				gathers[out->n_gathers++] = (LayoutGather){unit, slot};
				out->n_slots = MAX(out->n_slots, slot + 1);
			}
		}
	}
}

/* The end of what the op reads and writes in the arena of activations. */
static int64_t acts_end(const Op *op)
{
	int64_t end = 0;
	for (int i = 0; i < op->n_in + op->n_out; i++) {
		Value *v = i < op->n_in ? op_in(op, i) : op->out[i - op->n_in];
		const Value *whole = v ? value_whole(v) : NULL;
		if (whole && whole->place.region == REGION_ACT && whole->type.kind == TYPE_TENSOR)
			end = MAX(end, whole->place.offset + round_up(type_bytes(&whole->type), 64));
	}
	return end;
}

/* Where micro-batches leave gradients to each other, these outlive the activations. */
static void find_acts_free(const Module *m, LayoutUnit *units)
{
	int64_t used = 0;
	for (int s = SEC_UPDATE; s >= SEC_FORWARD && m->variant == VARIANT_ONLY; s--)
		for (const Op *op = m->last[s]; op; op = op->prev) {
			if (op->kind == OP_ZERO_GAPS)
				units[op->unit->index].acts_free = m->act_bytes - used;
			used = MAX(used, acts_end(op));
		}
}

static int64_t averaged_bytes(const Module *m)
{
	int64_t sum = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		if (s->kind == SYM_BUFFER && dtype_is_float(s->type.dtype))
			sum += round_up(MAX(type_bytes(&s->type), 1), 64);
	}
	return sum;
}

/* Bytes of the symbols as checkpoints store them. */
static int64_t saved_bytes(const Module *m)
{
	int64_t sum = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		if (s->kind == SYM_BUFFER || (s->kind == SYM_STATE && in_state_arena(s)))
			sum += type_numel(&s->type) * dtype_info[s->narrowed ? s->saved : s->type.dtype].bytes;
	}
	return sum;
}

int64_t plan_message(const Module *m, const Op *op)
{
	int64_t sum = 0;
	if (!(op_info[op->kind].flags & COMM))
		return 0;
	CollectiveBytes bytes = collective_info[op_collective(op)].bytes;
	for (int i = 0; bytes == BYTES_SCALES_OF_WEIGHTS && i < m->n_symbols; i++)
		sum += m->symbols[i]->kind == SYM_SCALE ? (int64_t)sizeof(float) : 0;
	for (int i = 0; bytes == BYTES_OPERANDS && i < op->n_in; i++)
		sum += type_bytes(&op_in(op, i)->type);
	return bytes == BYTES_BUFFERS_OF_FIRST ? averaged_bytes(m) : sum;
}

static int64_t largest_message(const Module *m)
{
	int64_t most = 0;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			most = MAX(most, plan_message(m, op));
	return most;
}

/* The layout of the program made of sections `from` and later. */
static LayoutModel layout_of(const Module *m, int from, Arena *a)
{
	int n_gathers = 0;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			n_gathers += op->kind == OP_ALL_GATHER;
	LayoutUnit *units = NEW_N(a, LayoutUnit, m->n_units);
	LayoutGather *gathers = NEW_N(a, LayoutGather, n_gathers);
	for (int i = 0; i < m->n_units; i++) {
		const Unit *u = m->units[i];
		units[i] = (LayoutUnit){.strategy = u->strategy, .owner = u->owner, .n_flats = u->n_flats, .grad_slot = -1,
			.offload = ir_offload(m, u)};
		for (int f = 0; f < u->n_flats; f++) {
			units[i].flat[f] = u->flat[f];
			units[i].apart = units[i].apart || (ir_sums_reduced(m) && u->flat[f].trainable);
		}
	}
	LayoutModel out = {.unit = units, .n_units = m->n_units, .gather = gathers, .n_states = states_per_element(m),
		.act_bytes = m->act_bytes, .input_bytes = m->input_bytes, .state_bytes = m->state_bytes,
		.work_bytes = m->work_bytes, .host_bytes = m->host_bytes, .average_bytes = averaged_bytes(m),
		.saved_bytes = saved_bytes(m), .sync_bytes = largest_message(m),
		.brief = from <= SEC_BACKWARD && ir_updates_early(m),
		.hook_send = ir_train(m)->hook.send, .hook_keep = ir_train(m)->hook.keep};
	list_gathers(m, from, &out, units, gathers);
	if (from <= SEC_BACKWARD)
		find_acts_free(m, units);
	return out;
}

LayoutModel memory_layout(const Module *m, Arena *a)
{
	return layout_of(m, 0, a);
}

/* ---- several micro-batches ---- */

/* Bytes of the activation arena that an evaluation needs. */
static int64_t eval_bytes(const Module *m)
{
	int64_t most = 0;
	IR_FOR_OPS(m, SEC_EVAL, op)
		for (int i = 0; i < op->n_out; i++)
			if (op->out[i]->place.region == REGION_ACT)
				most = MAX(most, op->out[i]->place.offset + round_up(MAX(type_bytes(&op->out[i]->type), 1), 64));
	return most;
}

/* Joins two programs that use the same memory one after the other: takes the larger of each size, and every place
 * that either has. */
static void join_layout(LayoutModel *to, LayoutUnit *units, LayoutGather *gathers, const LayoutModel *from)
{
	if (to->input_bytes != from->input_bytes || to->state_bytes != from->state_bytes || to->n_units != from->n_units)
		ice("micro-batches of a step have inputs, buffers or units of their own");
	int64_t acts = MAX(to->act_bytes, from->act_bytes);
	for (int i = 0; i < from->n_units; i++) {
		int64_t free[] = {units[i].acts_free, from->unit[i].acts_free};
		units[i].own_region = units[i].own_region || from->unit[i].own_region;
		units[i].apart = units[i].apart || from->unit[i].apart;
		units[i].acts_free = !free[0] || !free[1] ? 0
			: acts - MAX(to->act_bytes - free[0], from->act_bytes - free[1]);
	}
	for (int i = 0; i < from->n_gathers; i++)
		gathers[to->n_gathers++] = from->gather[i];
	to->n_slots = MAX(to->n_slots, from->n_slots);
	to->n_grad_slots = MAX(to->n_grad_slots, from->n_grad_slots);
	to->brief = to->brief || from->brief;
	to->act_bytes = acts;
	to->work_bytes = MAX(to->work_bytes, from->work_bytes);
	to->host_bytes = MAX(to->host_bytes, from->host_bytes);
	to->sync_bytes = MAX(to->sync_bytes, from->sync_bytes);
	to->hook_send = MAX(to->hook_send, from->hook_send);
	to->hook_keep = MAX(to->hook_keep, from->hook_keep);
}

/* Joins n > 0 programs. */
static LayoutModel join_all(const LayoutModel *part, int n, Arena *a)
{
	LayoutModel out = part[0];
	int n_gathers = 0;
	for (int i = 0; i < n; i++)
		n_gathers += part[i].n_gathers;
	LayoutUnit *units = NEW_N(a, LayoutUnit, out.n_units);
	LayoutGather *gathers = NEW_N(a, LayoutGather, n_gathers);
	for (int i = 0; i < out.n_units; i++)
		units[i] = out.unit[i];
	for (int i = 0; i < out.n_gathers; i++)
		gathers[i] = out.gather[i];
	for (int i = 1; i < n; i++)
		join_layout(&out, units, gathers, &part[i]);
	out.unit = units;
	out.gather = gathers;
	return out;
}

LayoutModel memory_join(const Variants *v, bool more, Arena *a)
{
	LayoutModel part[4] = {memory_layout(v->of[VARIANT_FIRST], a)};
	int n = 1;
	if (more)
		part[n++] = memory_layout(v->of[VARIANT_MIDDLE], a);
	part[n++] = memory_layout(v->of[VARIANT_LAST], a);
	part[n] = layout_of(v->of[VARIANT_ONLY], SEC_EVAL, a);
	part[n++].act_bytes = eval_bytes(v->of[VARIANT_ONLY]);
	return join_all(part, n, a);
}

LayoutModel memory_sizes(const Sizes *s, int micro, Arena *a)
{
	LayoutModel part[SIZES_MAX];
	for (int k = 0; k < s->n; k++)
		part[k] = micro == 1 ? memory_layout(s->of[s->n - 1 - k].of[VARIANT_ONLY], a)
			: memory_join(&s->of[s->n - 1 - k], micro > 2, a);
	return join_all(part, s->n, a);
}

void memory_complete(LayoutModel *l, const Module *m, const Options *o)
{
	l->hosts = o->sharding.hosts;
	l->snapshot = o->command == COMMAND_PLAN && o->what.save == SAVE_ON && !layout_offloads(l);
	l->cuda = (LayoutCuda){.on = options_cuda(o), .n_groups = ir_train(m)->n_groups};
	for (int i = 0; options_cuda(o) && i < m->n_symbols; i++)
		l->cuda.n_segments += m->symbols[i]->kind == SYM_PARAM && m->symbols[i]->trainable;
}

LayoutRank memory_rank(const Options *o)
{
	int64_t world = MAX(o->sharding.world, 1);
	return (LayoutRank){0, world, o->sharding.shard_size ? o->sharding.shard_size : world / MAX(o->sharding.hosts, 1)};
}

void memory_describe(LayoutModel *l, LayoutRank *who, const Module *m, const Options *o)
{
	memory_complete(l, m, o);
	l->cuda.staged = o->sharding.world > 1 && o->sharding.comm && !comm_info[o->sharding.comm].cuda;
	*who = memory_rank(o);
	who->rank = layout_rank_most(l, who);
}

/* ---- sizes that no rank has ---- */

static bool too_large(Module *m, const Op *op, const char *what, const char *bytes, Diag *d)
{
	diag_error(d, op ? loc_where(m, op->loc) : m->file ? m->file : m->name, "%s takes %s bytes; a rank has room for "
		"%lld at most: make the batch smaller, or --bind shorter axes", what, bytes, (long long)MEMORY_SPACE_MAX);
	return false;
}

static const char *number(Module *m, int64_t n)
{
	return arena_printf(m->arena, "%lld", (long long)n);
}

static const char *value_text(Module *m, const Value *v)
{
	return arena_printf(m->arena, "%%%s, %s,", v->name, type_str(m->arena, &v->type));
}

static bool check_results(Module *m, const Op *op, int64_t *sum, Diag *d)
{
	for (int i = 0; i < op->n_out; i++) {
		const Value *v = op->out[i];
		int64_t bytes = v->type.kind == TYPE_TENSOR ? type_bytes(&v->type) : 0;
		if (bytes > MEMORY_SPACE_MAX)
			return too_large(m, op, value_text(m, v), number(m, bytes), d);
		if (__builtin_add_overflow(*sum, round_up(MAX(bytes, 1), 64), sum))
			return too_large(m, op, arena_printf(m->arena, "%s with all before it", value_text(m, v)),
				"more than 2^63", d);
	}
	return true;
}

/* Refuses a value that is larger than an arena may be, and a sum of all that does not fit into an int64.  A state of a
 * loop has a second copy. */
static bool check_values(Module *m, Diag *d)
{
	int64_t sum = 0;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op) {
			if (!check_results(m, op, &sum, d) || (op->body && !check_results(m, op, &sum, d)))
				return false;
			for (const Op *inner = op->body ? op->body->first[SEC_FORWARD] : NULL; inner; inner = inner->next)
				if (!check_results(m, inner, &sum, d))
					return false;
		}
	return true;
}

static bool check_symbols(Module *m, Diag *d)
{
	int64_t sum = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		sum += s->type.kind == TYPE_TENSOR ? MIN(type_bytes(&s->type), MEMORY_SPACE_MAX + 1) : 0;
		if (sum > MEMORY_SPACE_MAX)
			return too_large(m, NULL, arena_printf(m->arena, "\"%s\", %s, with all before it,",
				str_escape(m->arena, ESCAPE_IR, s->name), type_str(m->arena, &s->type)), number(m, sum), d);
	}
	return true;
}

static void say_largest(Module *m, const MemoryPeak *peak, Diag *d)
{
	if (peak->op)
		diag_note(d, loc_where(m, peak->op->loc), "activations peak here at %lld bytes (%s)", (long long)peak->bytes,
			op_info[peak->op->kind].text);
	for (int i = 0; i < peak->n; i++)
		diag_note(d, loc_where(m, peak->largest[i]->op->loc), "%lld bytes are live in %%%s: %s",
			(long long)peak->largest_bytes[i], peak->largest[i]->name, type_str(m->arena, &peak->largest[i]->type));
}

/* Refuses an arena or a workspace that is larger than memory_check can address. */
static bool check_arenas(Module *m, Arena *a, Diag *d)
{
	if (m->act_bytes > MEMORY_SPACE_MAX) {
		MemoryPeak peak = memory_peak(m, a);
		too_large(m, NULL, "what is live at once", number(m, m->act_bytes), d);
		say_largest(m, &peak, d);
		return false;
	}
	if (m->host_bytes > MEMORY_SPACE_MAX)
		return too_large(m, NULL, "what lies in memory of the host", number(m, m->host_bytes), d);
	bool fits = m->work_bytes >= 0 && m->work_bytes <= MEMORY_SPACE_MAX;
	return fits || too_large(m, NULL, "the workspace of one kernel",
		m->work_bytes < 0 ? "more than 2^63" : number(m, m->work_bytes), d);
}

static void report_excess(Module *m, const Options *o, const LayoutMemory *memory, Arena *a, Diag *d)
{
	MemoryPeak peak = memory_peak(m, a);
	diag_error(d, "--memory-limit", "the plan needs %lld bytes at %lld rank(s), the limit is %lld (try "
		"--remat=auto, a smaller batch or more ranks)", (long long)memory->total,
		(long long)MAX(o->sharding.world, 1), (long long)o->memory.memory_limit);
	diag_note(d, "--memory-limit", "these bytes are: %s", plan_memory_text(memory, a));
	say_largest(m, &peak, d);
}

static bool fits_host(const LayoutMemory *memory, const Options *o, Diag *d)
{
	bool fits = !o->memory.host_limit || memory->host.total <= o->memory.host_limit;
	if (!fits)
		diag_error(d, "--host-limit", "a rank pins %lld bytes of memory of its host, the limit is %lld: %lld of them "
			"are activations (--offload-acts), %lld optimizer states and parameters (--offload)",
			(long long)memory->host.total, (long long)o->memory.host_limit, (long long)memory->host.activations,
			(long long)(memory->host.states + memory->host.params));
	return fits;
}

bool memory_fits(Module *m, const Options *o, Diag *d)
{
	Arena *a = arena_new();
	LayoutModel layout = memory_layout(m, a);
	LayoutRank who = memory_rank(o);
	memory_complete(&layout, m, o);
	LayoutMemory memory = layout_memory_most(&layout, &who);
	bool fits = !o->memory.memory_limit || memory.total <= o->memory.memory_limit;
	if (!fits)
		report_excess(m, o, &memory, a, d);
	arena_free(a);
	return fits_host(&memory, o, d) && fits;
}

bool pass_memory(Module *m, const Options *o, Diag *d)
{
	if (!check_values(m, d) || !check_symbols(m, d))
		return false;
	Arena *a = arena_new();
	Buffers *of_train = insert_copies(m, false, a), *of_eval = insert_copies(m, true, a);
	place_symbols(m);
	/* A program runs with any number of ranks, unless owners have fixed it; a single one wants room for gradients. */
	LayoutModel layout = memory_layout(m, a);
	memory_complete(&layout, m, o);
	const int64_t *above = m->world > 1 ? NULL : gradients_above(m, of_train, &layout, &(LayoutRank){0, 1, 1}, a);
	/* One arena is for both: eval has what the step needs. */
	int64_t train = pack_region(of_train, REGION_ACT, above, 0, a);
	int64_t eval = pack_region(of_eval, REGION_ACT, NULL, train, a);
	m->act_bytes = MAX(train, eval);
	m->host_bytes = pack_region(of_train, REGION_HOST, NULL, 0, a);
	place_values(of_train);
	place_values(of_eval);
	m->work_bytes = largest_workspace(m, o);
	if (!check_arenas(m, a, d)) {
		arena_free(a);
		return false;
	}
	const char *violation = memory_check(m, a, NULL);
	if (violation)
		ice("%s", violation);
	arena_free(a);
	return memory_fits(m, o, d);
}

/* ---- a plan that was read ---- */

static const char *place_text(const Place *p, Arena *a)
{
	if (p->region == REGION_NONE)
		return "no place";
	return arena_printf(a, "@%s%s%s+%lld", region_text[p->region], p->unit ? " " : "",
		p->unit ? ir_unit_str(a, p->unit) : "", (long long)p->offset);
}

/* Checks the place of a value: activations, and values in memory of the host, may lie anywhere in their arena, all
 * others must lie where this pass puts them. */
static bool check_place(const Module *m, const Buffers *b, Value *v, Diag *d)
{
	Place want = place_of(b, v);
	const Place *is = &v->place;
	bool packed = want.region == REGION_ACT || want.region == REGION_HOST;
	int64_t arena = want.region == REGION_ACT ? m->act_bytes : m->host_bytes, bytes = packed ? type_bytes(&v->type) : 0;
	bool inside = is->offset >= 0 && is->offset % 64 == 0 && bytes <= arena - is->offset;
	Value *whole = v->op->kind == OP_ROWS ? op_in(v->op, 0) : value_stack(v) != v ? value_stack(v) : value_whole(v);
	if (whole != v) {
		want = whole->place;
		want.offset += value_start(v) * dtype_info[v->type.dtype].bytes;
		inside = same_place(is, &want);
	}
	if (packed ? is->region == want.region && inside : same_place(is, &want))
		return true;
	diag_error(d, ir_where(m, v->op->at), "%%%s has %s; expected %s", v->name, place_text(is, m->arena),
		packed ? arena_printf(m->arena, "a multiple of 64 of @%s, inside its %lld bytes", region_text[want.region],
		(long long)arena) : place_text(&want, m->arena));
	return false;
}

static bool check_places(Module *m, bool eval, Arena *a, Diag *d)
{
	Buffers *b = buffers_find(m, eval, a);
	bool ok = true;
	for (int p = 0; p < b->n_ops && ok; p++)
		for (int i = 0; i < b->op[p]->n_out && ok; i++)
			ok = check_place(m, b, b->op[p]->out[i], d);
	return ok;
}

static bool same_number(const Module *m, TextPlace at, const char *what, int64_t is, int64_t want, Diag *d)
{
	if (is != want)
		diag_error(d, ir_where(m, at), "%s is %lld; expected %lld", what, (long long)is, (long long)want);
	return is == want;
}

/* Checks that inputs, buffers and states lie in order.  The module must be as place_symbols leaves it. */
static bool check_symbol_places(Module *m, Arena *a, Diag *d)
{
	int64_t input = m->input_bytes, state = m->state_bytes, *at = NEW_N(a, int64_t, m->n_symbols);
	bool ok = true;
	for (int i = 0; i < m->n_symbols; i++)
		at[i] = m->symbols[i]->offset;
	place_symbols(m);
	for (int i = 0; i < m->n_symbols && ok; i++)
		ok = same_number(m, m->symbols[i]->at, arena_printf(a, "the place of \"%s\"", m->symbols[i]->name), at[i],
			m->symbols[i]->offset, d);
	return ok && same_number(m, m->at, "input_bytes", input, m->input_bytes, d)
		&& same_number(m, m->at, "state_bytes", state, m->state_bytes, d);
}

static bool check_workspace(const Module *m, Diag *d)
{
	Options o = {.memory.workspace = m->work_bytes,
		.target.target = ir_train(m)->cuda ? TARGET_CUDA : TARGET_CPU};
	int64_t least = largest_workspace(m, &o);
	if (m->work_bytes < least || m->work_bytes > MEMORY_SPACE_MAX)
		diag_error(d, ir_where(m, m->at), "work_bytes is %lld; expected at least the %lld that the kernels want",
			(long long)m->work_bytes, (long long)least);
	return m->work_bytes >= least && m->work_bytes <= MEMORY_SPACE_MAX;
}

bool memory_accept(Module *m, Diag *d)
{
	Arena *a = arena_new();
	bool ok = check_values(m, d) && check_symbols(m, d)
		&& same_number(m, m->at, "act_bytes", MIN(m->act_bytes, MEMORY_SPACE_MAX), m->act_bytes, d)
		&& same_number(m, m->at, "host_bytes", MIN(m->host_bytes, MEMORY_SPACE_MAX), m->host_bytes, d);
	ok = ok && check_symbol_places(m, a, d) && check_workspace(m, d);
	ok = ok && check_places(m, false, a, d) && check_places(m, true, a, d);
	const Op *op = NULL;
	const char *violation = ok ? memory_check(m, a, &op) : NULL;
	if (violation)
		diag_error(d, ir_where(m, op->at), "memory is planned wrongly: %s", violation);
	arena_free(a);
	return ok && !violation;
}
