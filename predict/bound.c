/* predict/bound.c: the least time that any order of a plan's collectives takes, by relaxation.
 *
 * Computing takes as long as it takes alone, and each stream moves its bytes at full bandwidth, without latencies:
 * beside computing, which is slower for that time, or exposed, which is worse.  What forward gathers is there before
 * the first reduce begins, so the two do not share their time.  Of what backward gathers again, it could have kept what
 * fits.
 *
 * Units of other sizes have other latencies, and gaps at their ends; these few bytes are left out.
 *
 * Some of it is exposed in any order.  When an op begins, all parameters that were read up to it have been gathered,
 * and only the computing in front of it can have hidden that; when backward ends, the gradients that its last ops write
 * are still to be reduced, and only what is computed behind them hides that. */
#include "predict/private.h"

#include <math.h>

/* The least seconds that a collective of this kind takes for each element; 0: there is none. */
static double rate_of(const Timeline *t, RtStream stream, SectionKind section)
{
	double least = INFINITY;
	for (int i = 0; i < t->n_transfers; i++) {
		const Transfer *x = t->transfer[i];
		int64_t n = 0;
		for (int f = 0; x->op->unit && f < x->op->unit->n_flats; f++)
			n += x->op->unit->flat[f].numel;
		if (x->row->stream == stream && x->op->section == section && n)
			least = MIN(least, x->moving / (double)n);
	}
	return isinf(least) ? 0 : least;
}

/* Elements that op is the first to read of parameters, or that it writes of gradients. */
static double first_elements(const Op *op, Region region, PtrMap *seen)
{
	bool reads = region == REGION_PARAM;
	int n = reads ? op->n_in : op->n_out;
	double elements = 0;
	for (int i = 0; i < n; i++) {
		Value *v = reads ? op_in(op, i) : op->out[i], *root = v ? value_root(v) : NULL;
		if (!root || root->place.region != region || ptrmap_get(seen, root)
				|| (reads && strategy_info[root->place.unit->strategy].group == GROUP_ONE))
			continue;
		ptrmap_put(seen, root, root);
		elements += (double)type_numel(&root->type);
	}
	return elements;
}

/* What is exposed in any order of forward's gathers (from the front), or of backward's reduces (from the end). */
static double exposed_of(const Timeline *t, SectionKind section, Arena *a)
{
	bool forward = section == SEC_FORWARD;
	double rate = rate_of(t, forward ? RT_STREAM_GATHER : RT_STREAM_REDUCE, section), hidden = 0, moved = 0, most = 0;
	PtrMap *seen = ptrmap_new(a);
	for (int i = 0; i < t->n_slices; i++) {
		const Slice *s = &t->slice[forward ? i : t->n_slices - 1 - i];
		if (s->stream != TIMELINE_COMPUTE || s->waits || s->op->section != section)
			continue;
		moved += rate * first_elements(s->op, forward ? REGION_PARAM : REGION_GRAD, seen);
		most = MAX(most, moved - hidden);
		hidden += s->alone * t->machine->of[MACHINE_CONTENTION];
	}
	return most;
}

double timeline_bound(const Timeline *t, double room)
{
	double slower = t->machine->of[MACHINE_CONTENTION];
	double again = t->again_bytes ? t->again * MAX(1 - MAX(room, 0) / (double)t->again_bytes, 0) : 0;
	double forward = t->moving[RT_STREAM_GATHER] - t->again, reduce = t->moving[RT_STREAM_REDUCE];
	bool beside = t->machine->cuda || t->threads;
	if (!beside)
		return t->alone + t->moving[RT_STREAM_SYNC] + forward + again + reduce;
	Arena *a = arena_new();
	double exposed = exposed_of(t, SEC_FORWARD, a) + exposed_of(t, SEC_BACKWARD, a);
	arena_free(a);
	return t->alone + t->moving[RT_STREAM_SYNC] + (forward + MAX(again, reduce)) * (1 - 1 / slower) + exposed / slower;
}
