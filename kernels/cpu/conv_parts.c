/* kernels/cpu/conv_parts.c: f32 convolutions of the library that have the same bits for any number of threads.
 *
 * The library divides some sums by its threads.  Here it runs on one: parts of the batch, which are cut by shape alone,
 * are computed side by side, each in a slot with a primitive and work of its own.  A weight gradient is the sum of
 * those of its parts, in order.  There are as many slots as threads, parts and work allow; no bit depends on them. */
#include "kernels/cpu/prim.h"
#include "kernels/cpu/team.h"

#include <stdio.h>
#include <stdlib.h>

enum { SUMS = 16 }; /* of about so many parts a weight gradient is the sum */

/* Images of a part: a divisor of the batch. */
static int64_t images_of(const KConvDesc *d, ConvKind kind)
{
	int64_t images = kind == CONV_GRAD_W ? ceil_div(d->n, SUMS) : 1;
	while (d->n % images)
		images--;
	return images;
}

static int64_t x_bytes(const KConvDesc *part) { return part->n * part->c * numel(part->rank, part->in) * 4; }
static int64_t y_bytes(const KConvDesc *part) { return part->n * part->o * numel(part->rank, part->out) * 4; }
static int64_t w_numel(const KConvDesc *d) { return d->o * d->c / d->group * numel(d->rank, d->kernel); }

/* Work of a slot: of its primitive, then its sum. */
static int64_t slot_bytes(const KPrim *slot, ConvKind kind)
{
	return round_up(slot->work, 64) + (kind == CONV_GRAD_W ? round_up(w_numel(&slot->conv) * 4, 64) : 0);
}

/* Runs the parts from `first` on, each in its slot, on one thread each. */
static void run_parts(KPrim *p, const PrimArgs *args, int64_t first, int64_t parts, ConvKind kind, char *work)
{
	#pragma omp parallel for schedule(static, 1)
	for (int64_t i = 0; i < parts; i++) {
		KPrim *slot = p->slot[i];
		char *of_slot = work + i * slot_bytes(slot, kind), *a = args->at[0], *b = args->at[1], *c = args->at[2];
		int64_t x = x_bytes(&slot->conv) * (first + i), y = y_bytes(&slot->conv) * (first + i);
		team_alone();
		PrimArgs t = {{a + y, b + x, c, args->at[3]}};
		if (kind == CONV_GRAD_X)
			t = (PrimArgs){{a + x, b + y, c, NULL}};
		else if (kind == CONV_GRAD_W)
			t = (PrimArgs){{of_slot + round_up(slot->work, 64), b + x, c + y, NULL}};
		slot->run(slot, &t, of_slot);
	}
}

static void add_sum(float *to, const float *from, int64_t n, bool first)
{
	#pragma omp parallel for simd schedule(static) if (n > PARALLEL_MIN)
	for (int64_t i = 0; i < n; i++)
		to[i] = first ? from[i] : to[i] + from[i];
}

static void run(KPrim *p, PrimArgs *args, char *work, ConvKind kind)
{
	int64_t all = p->conv.n / p->slot[0]->conv.n, each = slot_bytes(p->slot[0], kind);
	for (int64_t first = 0; first < all; first += p->n_slots) {
		int64_t parts = MIN(p->n_slots, all - first);
		run_parts(p, args, first, parts, kind, work);
		for (int64_t i = 0; i < parts && kind == CONV_GRAD_W; i++)
			add_sum(args->at[0], (const float *)(const void *)(work + i * each + round_up(p->slot[i]->work, 64)),
				w_numel(&p->conv), first + i == 0);
	}
}

static void forward(KPrim *p, PrimArgs *t, char *work) { run(p, t, work, CONV_FORWARD); }
static void grad_x(KPrim *p, PrimArgs *t, char *work) { run(p, t, work, CONV_GRAD_X); }
static void grad_w(KPrim *p, PrimArgs *t, char *work) { run(p, t, work, CONV_GRAD_W); }

KPrim *conv_parts_create(const KConvDesc *d, ConvKind kind, ConvCreate *create)
{
	static void (*const runs[])(KPrim *, PrimArgs *, char *) = {forward, grad_x, grad_w};
	KConvDesc part = *d;
	part.n = images_of(d, kind);
	int64_t threads = team_most(), parts = d->n / part.n;
	prim_stream(); /* is made by the first who asks, and slots ask side by side */
	team_set(1);
	KPrim *slot = d->dtype == K_F32 ? create(&part, kind) : NULL;
	int64_t slots = slot ? MIN(MIN(parts, threads), d->work_bytes / MAX(1, slot_bytes(slot, kind))) : 0;
	KPrim *p = slots > 0 ? prim_new("") : NULL;
	if (p) {
		p->conv = *d;
		p->run = runs[kind];
		p->slot = calloc((size_t)slots, sizeof(KPrim *));
		if (!p->slot)
			k_fail("out of memory for a primitive");
		p->work = slots * slot_bytes(slot, kind);
		snprintf(p->impl, sizeof p->impl, "parts:%.40s", slot->impl);
		for (p->slot[0] = slot, p->n_slots = 1; p->n_slots < slots; p->n_slots++)
			p->slot[p->n_slots] = create(&part, kind);
	} else
		k_prim_free(slot);
	team_set(threads);
	return p;
}
