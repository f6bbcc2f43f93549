/* predict/simulate.c: plays a PLAN on its streams.
 *
 * Computing is one sequence.  A collective starts when all earlier ones of its stream have ended and, on a GPU, its
 * event has happened, however far behind it the program issues it, since a host and its graphs run ahead; on a CPU,
 * where the program issues it, or inside the wait if it has no thread.  While any collective runs beside it, a
 * kernel is slower by the machine's contention; what remains of it is then counted at the new rate.
 *
 * On a CPU, ops and collectives are longer by the machine's skew, and a gather in a lower dtype begins with a cast,
 * which is computed where the program issues it.
 *
 * Two streams of a GPU that move bytes at the same time are each as fast as alone.  But a step takes no less than what
 * all its bytes take on their wire, the links of a host or the network, and its last collective is longer by what is
 * missing.
 *
 * A gather of parameters that rest in memory of a GPU's host begins with a copy of the rank's part, which takes its
 * bytes over the link to the host and does not slow kernels down: a copy engine makes it, or a cast that mostly waits
 * for the link.
 *
 * A copy between a GPU and memory of its host starts where it stands, behind the earlier ones of its direction.  Both
 * directions go on at once, and take so little of the GPU's own bandwidth that kernels are not slower. */
#include "predict/timeline.h"

#include <math.h>
#include <string.h>

#include "passes/passes.h"

typedef struct Simulation {
	const Module *m;
	const SimulateOptions *o;
	Timeline *t;
	Arena *a;
	VEC(Slice) slices;
	VEC(Transfer *) transfers;
	PtrMap *transfer_of;       /* collective -> its Transfer */
	PtrMap *recorded;          /* record -> its time, a double */
	MachineSkew skew;
	double now;                /* of computing */
	double free[RT_STREAMS];   /* when a stream has ended what it has */
	double over[2];            /* seconds that all bytes take over links, and over the network */
	const Transfer *longer;    /* the last transfer, if bytes of all are what a step takes */
	double copied[2];          /* when the copies out, in have ended */
	const Op *last_out;        /* the offload that begins last */
	bool turned;               /* its value is copied in again, or was */
	double flying, most_flying; /* seconds of copies out that are not waited for yet; the most at any time */
	PtrMap *end_of_copy;       /* offload, reload -> its end, a double */
	Transfer *last[RT_STREAMS]; /* the transfer that ends then */
	VEC(Transfer *) queue[RT_STREAMS]; /* GPUs: the collectives of a stream, and how many of them have a time */
	int placed[RT_STREAMS];
	int live;                  /* all transfers in front of this one have ended */
	int number;
} Simulation;

static bool cuda(const Simulation *s)
{
	return s->o->machine->cuda;
}

static void add_slice(Simulation *s, Slice slice)
{
	slice.number = s->number;
	if (slice.end > slice.begin)
		vec_push(s->a, &s->slices, slice);
}

/* ---- computing ---- */

/* When a collective next begins or ends after `at`; INFINITY: never.  *slower: how many times as long kernels take
 * beside those that run at `at`. */
static double next_change(Simulation *s, double at, double *slower)
{
	const double *of = s->o->machine->of;
	double next = INFINITY;
	*slower = 1;
	while (s->live < s->transfers.n && s->transfers.at[s->live]->end <= at)
		s->live++;
	for (int i = s->live; i < s->transfers.n; i++) {
		const Transfer *t = s->transfers.at[i];
		if (t->talks > at)
			next = MIN(next, t->talks);
		if (t->talks <= at && t->end > at) {
			next = MIN(next, t->end);
			bool copies = s->o->copy_engines && t->row->kind == RT_ALL_GATHER;
			*slower = MAX(*slower, of[copies ? MACHINE_CONTENTION_COPY : MACHINE_CONTENTION]);
		}
	}
	return next;
}

/* When work that takes `seconds` alone ends, if it begins now. */
static double end_of(Simulation *s, double seconds)
{
	double at = s->now;
	while (seconds > 0) {
		double slower, next = next_change(s, at, &slower);
		if (at + seconds * slower <= next)
			return at + seconds * slower;
		seconds -= (next - at) / slower;
		at = next;
	}
	return at;
}

/* Computes what takes so many seconds alone, from now on. */
static void run(Simulation *s, Slice x, double seconds)
{
	x.begin = s->now;
	x.end = s->now = end_of(s, seconds);
	s->t->of_class[x.class] += x.end - x.begin;
	s->t->of_evidence[x.evidence] += x.end - x.begin;
	add_slice(s, x);
}

static void compute(Simulation *s, const Op *op)
{
	Timeline *t = s->t;
	Work w = cost_of(op, &t->who);
	if (w.class == COST_NONE)
		return;
	const LayoutUnit *u = op->unit ? &s->o->plan->layout->unit[op->unit->index] : NULL;
	w.host = u ? (layout_states_away(u) ? w.states : 0) + (layout_params_away(u) ? w.rest : 0) : 0;
	CostTime alone = cost_seconds(s->o->machine, op, &w, t->rows, s->o->tf32);
	alone.seconds *= t->turns;
	t->alone += alone.seconds;
	t->forward += op->section == SEC_FORWARD ? alone.seconds : 0;
	double ideal = cost_at_peak(s->o->machine, &w, t->layout, s->o->tf32);
	t->flops += w.flops;
	t->ideal += ideal;
	bool again = op_is_again(op);
	t->ideal_again += again ? ideal : 0;
	t->recomputed += again ? alone.seconds : 0;
	t->saved += MAX(alone.seconds - t->turns * cost_again(s->o->machine, op, &w, t->rows, s->o->tf32), 0);
	run(s, (Slice){.op = op, .alone = alone.seconds, .class = w.class, .evidence = alone.evidence}, alone.seconds);
}

/* What a CPU computes where it issues a collective.  How often a unit is gathered is the plan's choice, so it does not
 * count in Timeline.alone, which every plan computes. */
static void compute_issue(Simulation *s, const Op *op, int seq)
{
	Work w = cost_of_issue(op, &s->t->who);
	if (w.class == COST_NONE)
		return;
	CostTime time = cost_seconds(s->o->machine, op, &w, s->t->rows, s->o->tf32);
	run(s, (Slice){.op = op, .issues = true, .seq = seq, .class = w.class, .evidence = time.evidence},
		time.seconds * s->t->turns);
}

/* ---- collectives ---- */

/* The most hosts on which one of the groups is, each of so many ranks behind those of the one before: groups that do
 * not divide a host evenly straddle two of them, and begin at multiples of a common divisor. */
static int64_t most_hosts(int64_t members, int64_t of_host)
{
	int64_t a = members, b = of_host;
	while (b) {
		int64_t rest = a % b;
		a = b;
		b = rest;
	}
	return ceil_div(of_host - a + members, of_host);
}

static CostMessage message_of(const Simulation *s, const PlanCollective *c)
{
	const LayoutRank *who = &s->t->who;
	const LayoutUnit *u = c->unit < 0 ? NULL : &s->o->plan->layout->unit[c->unit];
	LayoutSplit split = u ? layout_split(u->strategy, who) : (LayoutSplit){.ranks = who->world, .groups = 1};
	CollectiveBytes kind = collective_info[c->kind].bytes;
	bool shards = kind == BYTES_SHARDS || kind == BYTES_GRADIENTS, groups = kind == BYTES_SUM_OVER_GROUPS;
	int64_t members = shards ? split.ranks : groups ? split.groups : who->world;
	int64_t all = MAX(s->o->plan->layout->hosts, 1), of_host = MAX(who->world / all, 1);
	int64_t hosts = groups ? MIN(members, all) : most_hosts(members, of_host);
	return (CostMessage){c->kind, plan_received(s->o->plan, c), members, hosts, s->o->comm};
}

/* The time of the event that a collective has to wait for; *record is the event. */
static double event_time(const Simulation *s, const Op *op, const Op **record)
{
	const Value *last = op->n_in ? op_in(op, op->n_in - 1) : NULL;
	*record = last && last->type.kind == TYPE_EVENT ? last->op : NULL;
	const double *time = *record ? ptrmap_get(s->recorded, *record) : NULL;
	return time ? *time : 0;
}

/* The seconds in which a gather copies the rank's part of its unit from memory of the host. */
static double copy_seconds(const Simulation *s, const PlanCollective *c)
{
	const LayoutUnit *u = c->unit < 0 ? NULL : &s->o->plan->layout->unit[c->unit];
	double bytes = 0;
	if (!u || c->kind != RT_ALL_GATHER || !layout_params_away(u))
		return 0;
	for (int f = 0; f < u->n_flats; f++)
		bytes += (double)layout_shard_numel(u->flat[f].numel, layout_split(u->strategy, &s->t->who).ranks)
			* dtype_info[u->flat[f].dtype].bytes;
	return bytes / s->o->machine->of[MACHINE_HOST];
}

/* The seconds in which scales of weights read the rank's parts of them, a kernel for each scale. */
static double read_seconds(const Simulation *s, const PlanCollective *c)
{
	const LayoutModel *l = s->o->plan->layout;
	double bytes = 0;
	for (int u = 0; c->kind == RT_F8_SCALES && u < l->n_units; u++)
		for (int f = 0; f < l->unit[u].n_flats; f++) {
			const LayoutFlat *flat = &l->unit[u].flat[f];
			int64_t ranks = layout_split(l->unit[u].strategy, &s->t->who).ranks;
			if (dtype_is_scaled(flat->param))
				bytes += (double)layout_shard_numel(flat->numel, ranks) * dtype_info[flat->dtype].bytes;
		}
	double kernels = c->kind == RT_F8_SCALES ? (double)c->message / sizeof(float) : 0;
	return bytes / s->o->machine->of[MACHINE_BANDWIDTH] + kernels * s->o->machine->of[MACHINE_KERNEL];
}

static void place(Simulation *s, Transfer *t, double from)
{
	RtStream stream = t->row->stream;
	CostMessage c = message_of(s, t->row);
	t->begin = MAX(from, s->free[stream]);
	t->talks = t->begin + copy_seconds(s, t->row) + read_seconds(s, t->row);
	t->end = t->talks + cost_transfer(s->o->machine, &c) + s->skew.each;
	s->free[stream] = t->end;
	CostMessage empty = {c.kind, 0, c.members, c.hosts, c.comm};
	double latency = cost_transfer(s->o->machine, &empty) + s->skew.each;
	double moving = t->end - t->talks - (stream == RT_STREAM_SYNC ? 0 : latency);
	bool again = t->op->section == SEC_BACKWARD && t->row->kind == RT_ALL_GATHER;
	t->moving = MAX(moving, 0);
	t->latency = stream == RT_STREAM_SYNC ? 0 : latency;
	t->least = MIN(t->moving, cost_transfer_least(s->o->machine, &c));
	t->least_latency = t->least < t->moving ? 0 : t->latency;
	s->t->least[stream] += t->least;
	s->over[c.hosts > 1] += t->moving;
	s->t->again += again ? t->least : 0;
	s->t->again_bytes += again ? c.bytes : 0;
}

static Transfer *new_transfer(Simulation *s, const Op *op)
{
	PlanCollective *row = NEW(s->a, PlanCollective);
	Transfer *t = NEW(s->a, Transfer);
	*row = (PlanCollective){.kind = op_collective(op), .stream = op_stream(op->kind),
		.unit = op->unit ? op->unit->index : -1, .slot = (int)attr_get_int(op->attrs, "slot", -1),
		.message = plan_message(s->m, op)};
	*t = (Transfer){.op = op, .row = row, .seq = (int)attr_get_int(op->attrs, "seq", 0), .issued = INFINITY,
		.begin = INFINITY, .talks = INFINITY, .end = INFINITY, .bytes = plan_received(s->o->plan, row),
		.before = s->last[row->stream]};
	vec_push(s->a, &s->transfers, t);
	s->last[row->stream] = t;
	ptrmap_put(s->transfer_of, op, t);
	return t;
}

/* Makes the transfer of a collective; on a GPU each stream has its own in the order of the program. */
static void queue(Simulation *s, const Op *op)
{
	if (!(op_info[op->kind].flags & COMM) || op->kind == OP_WAIT || op->kind == OP_RECORD)
		return;
	Transfer *t = new_transfer(s, op);
	if (cuda(s) && !op_blocks(op->kind))
		vec_push(s->a, &s->queue[t->row->stream], t);
}

/* Gives a time to the collectives at the heads of their streams whose events have happened. */
static void start_queued(Simulation *s)
{
	for (int i = 0; i < RT_STREAMS; i++)
		for (; s->placed[i] < s->queue[i].n; s->placed[i]++) {
			Transfer *t = s->queue[i].at[s->placed[i]];
			t->ready = event_time(s, t->op, &t->freed);
			if (t->freed && !ptrmap_get(s->recorded, t->freed))
				break;
			place(s, t, t->ready);
		}
}

static Transfer *issue(Simulation *s, const Op *op)
{
	Transfer *t = ptrmap_get(s->transfer_of, op);
	bool blocks = op_blocks(op->kind);
	if (!cuda(s))
		compute_issue(s, op, t->seq);
	t->issued = s->now;
	if (cuda(s) && !blocks)
		return t;
	t->ready = event_time(s, op, &t->freed);
	if (s->t->threads || blocks) /* else it has no time until it is waited for */
		place(s, t, MAX(t->ready, s->now));
	return t;
}

/* What is waited for is exposed, and so is what the stream has in front of it: without gaps, since what a collective
 * waits for itself has been computed. */
static void wait_until(Simulation *s, const Op *op, Transfer *t)
{
	if (t->end > s->now) {
		for (Transfer *x = t; x && x->end > s->now; x = x->before)
			x->exposed += x->end - MAX(s->now, x->begin);
		s->t->exposed += t->end - s->now;
		add_slice(s, (Slice){.op = op, .waits = true, .seq = t->seq, .begin = s->now, .end = t->end,
			.class = COST_COLLECTIVE});
		s->now = t->end;
	}
}

static void block(Simulation *s, const Op *op)
{
	wait_until(s, op, issue(s, op));
}

/* Collectives without a thread run in the first wait for one of them or a later one of their stream. */
static void run_held(Simulation *s, Transfer *last)
{
	for (int i = s->live; i < s->transfers.n && isinf(last->end); i++) {
		Transfer *t = s->transfers.at[i];
		if (isinf(t->end) && t->issued <= s->now && t->row->stream == last->row->stream)
			place(s, t, s->now);
	}
}

static void wait(Simulation *s, const Op *op)
{
	Transfer *t = op->n_in ? ptrmap_get(s->transfer_of, op_in(op, 0)->op) : NULL;
	if (!t)
		return;
	if (isinf(t->end))
		run_held(s, t);
	wait_until(s, op, t);
}

/* ---- copies to and from memory of the host ---- */

/* Copies of a direction follow each other, and what was copied out last is copied in behind all copies out.  What comes
 * in before that, and the values of a block, which another plan may have in another order, do not count. */
static void note_apart(Simulation *s, const Op *op, double seconds)
{
	bool out = op->kind == OP_OFFLOAD;
	s->flying += out ? seconds : 0;
	s->most_flying = MAX(s->most_flying, s->flying);
	s->last_out = out ? op : s->last_out;
	s->turned = s->turned || (!out && op_in(op_in(op, 0)->op, 0)->op == s->last_out);
	s->t->copies_apart += out || s->turned ? seconds : 0;
}

static void begin_copy(Simulation *s, const Op *op)
{
	bool in = op->kind == OP_RELOAD;
	int64_t bytes = type_bytes(&op->out[0]->type);
	double *end = NEW(s->a, double), begin = MAX(s->now, s->copied[in]);
	*end = s->copied[in] = begin + (double)bytes / s->o->machine->of[MACHINE_HOST];
	ptrmap_put(s->end_of_copy, op, end);
	note_apart(s, op, *end - begin);
	s->t->copying += *end - begin;
	add_slice(s, (Slice){.op = op, .stream = in ? TIMELINE_IN : TIMELINE_OUT, .bytes = bytes, .begin = begin,
		.end = *end});
}

static void end_copy(Simulation *s, const Op *op)
{
	const Op *copy = op_in(op, 0)->op;
	if (copy->kind == OP_OFFLOAD)
		s->flying -= (double)type_bytes(&copy->out[0]->type) / s->o->machine->of[MACHINE_HOST];
	double end = *(const double *)ptrmap_get(s->end_of_copy, copy), more = MAX(end - s->now, 0);
	s->t->exposed += more;
	s->t->copies_exposed += more;
	add_slice(s, (Slice){.op = op, .waits = true, .begin = s->now, .end = s->now + more});
	s->now += more;
}

/* ---- reasons ---- */

/* When the first op of a step computes, and when the last one of backward has. */
static void find_ends(const Simulation *s, double *first, double *last)
{
	*first = INFINITY;
	*last = 0;
	for (int i = 0; i < s->slices.n; i++) {
		const Slice *x = &s->slices.at[i];
		if (x->waits || x->stream != TIMELINE_COMPUTE)
			continue;
		*first = MIN(*first, x->begin);
		*last = x->op->section == SEC_UPDATE ? *last : MAX(*last, x->end);
	}
}

/* Lets a step of a GPU last until its wires have carried all bytes. */
static void carry_all(Simulation *s)
{
	Timeline *t = s->t;
	double least = cuda(s) ? MAX(s->over[0], s->over[1]) : 0;
	t->one_wire = cuda(s) && MIN(s->over[0], s->over[1]) <= 0;
	if (least <= t->seconds)
		return;
	Transfer *last = NULL;
	for (int i = 0; i < s->transfers.n; i++) {
		Transfer *x = s->transfers.at[i];
		last = !op_blocks(x->op->kind) && (!last || x->end >= last->end) ? x : last;
	}
	if (!last)
		return;
	s->longer = last;
	last->end = least;
	last->exposed += least - t->seconds;
	t->exposed += least - t->seconds;
	add_slice(s, (Slice){.op = last->op, .waits = true, .seq = last->seq, .begin = t->seconds, .end = least,
		.class = COST_COLLECTIVE});
	t->seconds = least;
}

/* What bound the start of a collective decides the reason. */
static Exposed reason_of(const Simulation *s, const Transfer *t, double first, double last)
{
	double tiny = 1e-9, began = t->end - t->exposed; /* of the wait */
	if (t->exposed <= tiny)
		return EXPOSED_NOT;
	if (t == s->longer)
		return EXPOSED_WIRE;
	if (op_blocks(t->op->kind))
		return EXPOSED_BLOCKS;
	if (!cuda(s) && !s->t->threads)
		return EXPOSED_INLINE;
	if (began <= first + tiny)
		return EXPOSED_FIRST;
	if (began >= last - tiny)
		return EXPOSED_LAST;
	if (t->before && t->before->end > MAX(t->ready, cuda(s) ? 0 : t->issued) + tiny)
		return EXPOSED_STREAM;
	/* A CPU issues nothing ahead of its program, so there an event of before the issue has held nothing back. */
	bool held = t->freed && (cuda(s) || t->ready >= t->issued - tiny);
	if (held && t->row->kind == RT_ALL_GATHER)
		return t->row->slot >= 0 ? EXPOSED_SLOT : EXPOSED_EVENT;
	return EXPOSED_LATE;
}

/* The op in front of a record: what had to end before a slot was free, or a gradient complete. */
static const Op *before_record(const Op *record)
{
	const Op *op = record;
	while (op && (op->kind == OP_RECORD || op->kind == OP_WAIT || op->kind == OP_VIEW_OP || op->kind == OP_OFFLOAD
		|| op->kind == OP_RELOAD || op->kind == OP_COPIED))
		op = op->prev;
	return op;
}

static void finish_transfers(Simulation *s)
{
	for (int i = 0; i < s->transfers.n; i++) {
		Transfer *t = s->transfers.at[i];
		if (isinf(t->end))
			place(s, t, s->now);
		t->freed = t->freed ? before_record(t->freed) : NULL;
	}
	s->t->seconds = s->now;
	for (int i = 0; i < RT_STREAMS; i++)
		s->t->seconds = MAX(s->t->seconds, s->free[i]);
	carry_all(s);
	double first, last;
	find_ends(s, &first, &last);
	for (int i = 0; i < s->transfers.n; i++) {
		Transfer *t = s->transfers.at[i];
		t->reason = reason_of(s, t, first, last);
		Slice slice = {.op = t->op, .stream = 1 + (int)t->row->stream, .seq = t->seq, .bytes = t->bytes,
			.begin = t->begin, .end = t->end, .class = COST_COLLECTIVE};
		s->number = (int)t->op->order;
		add_slice(s, slice);
	}
}

const char *exposed_text(const Transfer *t, Arena *a)
{
	const char *until = t->freed ? arena_printf(a, "%s%s%s", op_info[t->freed->kind].text, t->freed->unit ? " @" : "",
		t->freed->unit ? t->freed->unit->name : "") : "an earlier op";
	switch (t->reason) {
	case EXPOSED_FIRST: return "nothing is computed before it";
	case EXPOSED_LAST: return "no computing is left beside it";
	case EXPOSED_BLOCKS: return "its result is needed at once";
	case EXPOSED_INLINE: return "no core is left for it: it runs where it is waited for";
	case EXPOSED_SLOT: return arena_printf(a, "no slot: slot %d was in use until %s", t->row->slot, until);
	case EXPOSED_EVENT: return arena_printf(a, "it waited for %s", until);
	case EXPOSED_WIRE: return "bandwidth: a step's bytes take this long";
	case EXPOSED_STREAM: return arena_printf(a, "bandwidth: its stream was busy with #%d", t->before->seq);
	case EXPOSED_LATE: return "less is computed beside it than it takes";
	default: return "";
	}
}

/* ---- the step ---- */

static void play(Simulation *s, const Op *op)
{
	const OpInfo *info = &op_info[op->kind];
	if (op->kind == OP_RECORD) {
		double *time = NEW(s->a, double);
		*time = s->now;
		ptrmap_put(s->recorded, op, time);
		start_queued(s);
	} else if (op->kind == OP_WAIT) {
		wait(s, op);
	} else if (info->flags & COMM && op_blocks(op->kind)) {
		block(s, op);
	} else if (info->flags & COMM) {
		issue(s, op);
	} else if (op->kind == OP_OFFLOAD || op->kind == OP_RELOAD) {
		begin_copy(s, op);
	} else if (op->kind == OP_COPIED) {
		end_copy(s, op);
	} else {
		compute(s, op);
	}
}

Timeline *simulate(const Module *m, const SimulateOptions *o, Arena *a)
{
	int64_t hosts = MAX(o->plan->layout->hosts, 1);
	Timeline *t = NEW(a, Timeline);
	*t = (Timeline){.m = m, .machine = o->machine, .who = o->plan->who, .threads = o->comm_threads,
		.copy_engines = o->copy_engines,
		.layout = machine_layout(o->machine, ceil_div(o->plan->who.world, hosts), o->threads)};
	t->rows = machine_rows(o->machine, t->layout);
	Simulation s = {.m = m, .o = o, .t = t, .a = a, .skew = machine_skew(o->machine, t->layout),
		.transfer_of = ptrmap_new(a), .recorded = ptrmap_new(a), .end_of_copy = ptrmap_new(a)};
	t->turns = (double)t->layout.ranks / machine_running(o->machine, t->layout) * s.skew.times;
	for (int section = SEC_FORWARD; section <= SEC_UPDATE; section++)
		IR_FOR_OPS(m, section, op)
			queue(&s, op);
	start_queued(&s);
	for (int section = SEC_FORWARD; section <= SEC_UPDATE; section++)
		IR_FOR_OPS(m, section, op) {
			op->order = s.number;
			play(&s, op);
			s.number++;
		}
	t->computing = s.now - t->exposed;
	t->copies_apart = MAX(t->copies_apart - s.most_flying, 0);
	finish_transfers(&s);
	t->slice = s.slices.at;
	t->n_slices = s.slices.n;
	t->transfer = s.transfers.at;
	t->n_transfers = s.transfers.n;
	return t;
}
