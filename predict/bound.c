/* predict/bound.c: the least time that any order of a plan's collectives takes, by relaxation.
 *
 * Computing takes as long as it takes alone, and each stream moves its bytes at full bandwidth, which is the best of
 * all sizes where several were measured, without latencies:
 * beside computing, which is slower for that time, or exposed, which is worse.  What forward gathers is there before
 * the first reduce begins, so the two do not share their time.  Of what backward gathers again, it could have kept what
 * fits.
 *
 * A GPU's step takes no less than its bytes take on their wire, beside which values may be computed again.
 *
 * Units of other sizes have other latencies, and gaps at their ends; these few bytes are left out, and so is what
 * gathers copy from memory of the host, which may stand beside computing without slowing it.
 *
 * Some of it is exposed in any order.  When an op begins, all parameters that were read up to it have been gathered,
 * and only the computing in front of it can have hidden that; when backward ends, the gradients that its last ops
 * write are still to be reduced, and only what is computed behind them hides that.  Of the first gather and of the last
 * reduce the latency is exposed, too.
 *
 * Where values have to be computed again (price.c), a step takes that much longer at least.  It may stand beside the
 * last reduces, but for those of the very last op, and hide there what was exposed without.  How much that is follows
 * from the bytes that no units do without: at the op at which most is live in a plan that recomputes nothing, any
 * choice of values, which changes no order of the other ops, frees these values at most. */
#include "predict/private.h"

#include <inttypes.h>
#include <math.h>

/* The least seconds that a collective of this kind takes for each element, and its latency; 0: there is none.  Sums
 * over groups of ranks come on top of the reduce of a unit. */
static double rate_of(const Timeline *t, RtStream stream, SectionKind section, double *latency)
{
	double least = INFINITY;
	*latency = INFINITY;
	for (int i = 0; i < t->n_transfers; i++) {
		const Transfer *x = t->transfer[i];
		int64_t n = 0;
		for (int f = 0; x->op->unit && f < x->op->unit->n_flats; f++)
			n += x->op->unit->flat[f].numel;
		if (x->row->stream != stream || x->op->section != section || x->row->kind == RT_ALL_REDUCE_SHARDS || !n)
			continue;
		least = MIN(least, x->least / (double)n);
		*latency = MIN(*latency, x->least_latency);
	}
	*latency = isinf(*latency) ? 0 : *latency;
	return isinf(least) ? 0 : least;
}

/* Elements that op is the first to read of parameters, or that it writes of gradients: of values that lie in one place
 * in turn, as parts of a gradient that is added up, the first that is asked for. */
static double first_elements(const Op *op, Region region, Map *seen, Arena *a)
{
	bool reads = region == REGION_PARAM;
	int n = reads ? op->n_in : op->n_out;
	double elements = 0;
	for (int i = 0; i < n; i++) {
		Value *v = reads ? op_in(op, i) : op->out[i], *root = v ? value_root(v) : NULL;
		if (!root || root->place.region != region
				|| (reads && strategy_info[root->place.unit->strategy].group == GROUP_ONE))
			continue;
		const Place *at = &root->place;
		const char *key = arena_printf(a, "%d %d %" PRId64, at->unit->index, at->flat, at->offset);
		elements += map_get(seen, key) ? 0 : (double)type_numel(&root->type);
		map_put(seen, key, root);
	}
	return elements;
}

typedef struct ExposedEnd {
	double seconds;
	double latency;      /* of it, that no byte takes */
	double beside;       /* of it, what more computing could hide */
	double moved;        /* what all its bytes take */
} ExposedEnd;

static bool is_in_front(const Op *op, const Op *of)
{
	return op->section != of->section ? op->section < of->section : op->order < of->order;
}

/* How many times as long as alone ops take beside what runs on a stream. */
static double slower_beside(const Timeline *t, RtStream stream)
{
	return t->machine->of[t->copy_engines && stream == RT_STREAM_GATHER ? MACHINE_CONTENTION_COPY : MACHINE_CONTENTION];
}

/* What is exposed in any order of forward's gathers (from the front), or of backward's reduces (from the end); from:
 * of these only what ops behind this one write, NULL: all. */
static ExposedEnd exposed_of(const Timeline *t, SectionKind section, const Op *from, Arena *a)
{
	bool forward = section == SEC_FORWARD;
	ExposedEnd x = {0};
	RtStream stream = forward ? RT_STREAM_GATHER : RT_STREAM_REDUCE;
	double latency, rate = rate_of(t, stream, section, &latency);
	double hidden = 0, moved = 0, first = 0;
	Map *seen = map_new(a);
	for (int i = 0; i < t->n_slices; i++) {
		const Slice *s = &t->slice[forward ? i : t->n_slices - 1 - i];
		if (s->stream != TIMELINE_COMPUTE || s->waits || s->op->section != section
				|| (from && !is_in_front(from, s->op)))
			continue;
		double more = rate * first_elements(s->op, forward ? REGION_PARAM : REGION_GRAD, seen, a);
		moved += more + (moved > 0 || more <= 0 ? 0 : latency);
		x.seconds = MAX(x.seconds, moved - hidden);
		first = hidden > 0 ? first : x.seconds;
		hidden += s->alone * slower_beside(t, stream);
	}
	x.latency = x.seconds > 0 ? latency : 0;
	x.beside = x.seconds - first;
	x.moved = MAX(moved - x.latency, 0);
	return x;
}

double timeline_before(const Timeline *t, const Op *op)
{
	double seconds = 0;
	for (int i = 0; op && i < t->n_slices; i++) {
		const Slice *s = &t->slice[i];
		if (s->stream == TIMELINE_COMPUTE && !s->waits && is_in_front(s->op, op) && !op_is_again(s->op))
			seconds += s->alone;
	}
	return seconds;
}

/* What stands behind an op in any order: computing, slower beside the bytes of gradients that are written there, and
 * what is exposed of these. */
static BoundAt bound_at(const Timeline *t, const Op *op, double fewer, Arena *a)
{
	double shared = 1 - 1 / slower_beside(t, RT_STREAM_REDUCE);
	ExposedEnd end = exposed_of(t, SEC_BACKWARD, op, a);
	return (BoundAt){.behind = t->alone - t->recomputed - timeline_before(t, op) + (end.latency + end.moved) * shared
		+ end.seconds * (1 - shared), .beside = end.beside * (1 - shared), .fewer = fewer};
}

/* The op of forward with most bytes that a bus would not have copied by then; *bytes: that are live there.  NULL: none
 * computes. */
static const Op *earliest(const Timeline *t, Module *m, int64_t *bytes, Arena *a)
{
	Buffers *b = buffers_find(m, false, a);
	int64_t *live = NEW_N(a, int64_t, b->n_ops + 1);
	double before = 0, most = -INFINITY;
	const Op *found = NULL;
	buffers_live(b, live);
	for (int i = 0; i < t->n_slices; i++) {
		const Slice *s = &t->slice[i];
		if (s->stream != TIMELINE_COMPUTE || s->waits || s->op->section != SEC_FORWARD)
			continue;
		double late = (double)live[s->number] / t->machine->of[MACHINE_HOST] - before;
		before += s->alone;
		if (late > most) {
			most = late;
			found = s->op;
			*bytes = live[s->number];
		}
	}
	return found;
}

Bound timeline_bound(const Timeline *t, Module *m, Variant k, const BoundLive *live, double room)
{
	double gathers = 1 - 1 / slower_beside(t, RT_STREAM_GATHER), reduces = 1 - 1 / slower_beside(t, RT_STREAM_REDUCE);
	double again = t->again_bytes ? t->again * MAX(1 - MAX(room, 0) / (double)t->again_bytes, 0) : 0;
	double forward = t->least[RT_STREAM_GATHER] - t->again, reduce = t->least[RT_STREAM_REDUCE];
	double fixed = t->alone + t->least[RT_STREAM_SYNC];
	if (!t->machine->cuda && !t->threads)
		return (Bound){.seconds = fixed + forward + again + reduce, .roomy = fixed + forward + reduce};
	Arena *a = arena_new();
	ExposedEnd front = exposed_of(t, SEC_FORWARD, NULL, a), end = exposed_of(t, SEC_BACKWARD, NULL, a);
	fixed += (front.latency + forward) * gathers + front.seconds * (1 - gathers)
		+ end.latency * reduces + end.seconds * (1 - reduces);
	Bound b = {.seconds = fixed + MAX(again * gathers, reduce * reduces), .roomy = fixed + reduce * reduces,
		.beside = end.beside * (1 - reduces), .wire = t->one_wire ? forward + reduce : 0, .copies = t->copies_apart};
	if (t->one_wire)
		b.seconds = MAX(b.seconds, b.wire + again);
	int64_t bytes = 0;
	const Op *early = t->machine->of[MACHINE_HOST] > 0 ? earliest(t, m, &bytes, a) : NULL;
	b.fullest = bound_at(t, live->op[k], 0, a);
	b.early = early ? bound_at(t, early, (double)(live->bytes - bytes), a) : b.fullest;
	arena_free(a);
	return b;
}

double bound_recomputing(const Bound *b, double again)
{
	return MAX(b->roomy + again - MIN(again, b->beside), b->wire);
}

double bound_behind(const BoundAt *at, double again)
{
	return at->behind + again - MIN(again, at->beside);
}

/* The bytes of a parameter's gathered values or, of its gradient, of what backward writes. */
static int64_t whole_bytes(const Symbol *s, bool gradient)
{
	const Flat *f = &s->unit->flat[s->flat];
	return type_numel(&s->type) * dtype_info[gradient ? f->grad : f->param].bytes;
}

/* Some unit is gathered whole, and reduced from whole gradients; it has one parameter at least. */
static int64_t least_whole(const Module *m, const LayoutRank *who)
{
	int64_t gathered = 0, reduced = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		if (s->kind != SYM_PARAM || !s->unit)
			continue;
		if (layout_split(s->unit->strategy, who).ranks > 1) {
			gathered = MAX(gathered, whole_bytes(s, false));
			reduced = s->unit->flat[s->flat].trainable ? MAX(reduced, whole_bytes(s, true)) : reduced;
		}
	}
	return gathered + reduced;
}

/* Bytes of gradients that wait for the update in memory of their own, whatever the units are.  alone: of one
 * micro-batch. */
static int64_t waiting_gradients(const Plan *plan, bool alone)
{
	int64_t bytes = 0;
	for (int i = 0; i < plan->layout->n_units; i++) {
		const LayoutUnit *u = &plan->layout->unit[i];
		bool among = alone && layout_grad_may_lie_over_acts(plan->layout, u, &plan->who);
		for (int f = 0; f < u->n_flats && !among; f++)
			if (u->flat[f].trainable)
				bytes += layout_grad_stays(u, &plan->who) ? u->flat[f].numel * dtype_info[u->flat[f].grad].bytes
					: layout_range(u, f, &plan->who).n * dtype_info[u->flat[f].kept].bytes;
	}
	return bytes;
}

/* Of what a plan has for gradients, the bytes of those that other units might let lie among activations: behind these,
 * or in memory of their own since nothing is free there. */
static int64_t grads_that_may(const Plan *plan, const LayoutMemory *memory)
{
	int64_t bytes = memory->grads_behind;
	for (int i = 0; i < plan->layout->n_units; i++) {
		const LayoutUnit *u = &plan->layout->unit[i];
		bool may = layout_grad_may_lie_over_acts(plan->layout, u, &plan->who);
		bytes += may && !layout_grad_over_acts(plan->layout, u, &plan->who) ? layout_grad_bytes(u, 1) : 0;
	}
	return bytes;
}

int64_t bound_bytes(const Variants *v, const Plan *plan, const LayoutMemory *memory, int64_t micro_batches,
	BoundLive *live)
{
	bool alone = micro_batches == 1;
	int64_t may = alone ? grads_that_may(plan, memory) : 0;
	Arena *a = arena_new();
	*live = (BoundLive){0};
	for (int k = 0; k < VARIANT_COUNT; k++) {
		MemoryPeak peak = v->of[k] ? memory_peak(v->of[k], a) : (MemoryPeak){0};
		live->op[k] = peak.op;
		live->bytes = MAX(live->bytes, peak.bytes);
	}
	const Op *op = NULL;
	int64_t least = alone ? memory_least(v->of[VARIANT_ONLY], plan->layout, &plan->who, &op, a) : 0;
	if (least > live->bytes)
		live->op[VARIANT_ONLY] = op;
	live->bytes = MAX(live->bytes, least);
	arena_free(a);
	int64_t rest = memory->total - memory->gathered - memory->grads - memory->send - memory->activations;
	return rest + MIN(live->bytes, memory->activations + may)
		+ MIN(waiting_gradients(plan, alone) + least_whole(v->of[VARIANT_ONLY], &plan->who),
		memory->gathered + memory->grads - may + memory->send);
}
