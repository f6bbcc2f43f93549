/* tests/oracle/oracle.c: a happens-before interpreter of schedules.
 *
 * One idea: every range of memory that a collective can touch knows *what* it holds (which unit's parameters
 * after how many updates, which contributions to whose gradient, how far reduced) and *who* touched it last,
 * as vector clocks of the streams.  An op that reads the wrong thing, or touches a range that another stream
 * may still be touching, is the fault.  Ranges are poisoned when their contents end: a gathered unit at its
 * reshard, a flat gradient at the end of its reduce, the ring slots between their occupants.
 *
 * All ranks run the same program, so one rank is run.  A collective lasts on it until no peer reads its
 * memory any more, so whatever peers do to this rank's memory lies between the collective's start and its end.
 * Where ranks differ (a unit with an owner), the parameters at rest exist twice: copy 0 on the owner, copy 1
 * on all others.
 *
 * Ops run in program order, in which everything stands behind what it depends on; if no two accesses race,
 * each other order that the streams allow gives the same contents.
 *
 * Of several micro-batches a step the programs run one behind the other on the same memory, so that what one leaves
 * is what the next one finds.  None may rely on more than that: between them, compute touches all memory for
 * gathered units that holds nothing.
 *
 * Not modelled: activations (no collective touches them; passes/memory/check.c runs those) and deadlock (the
 * order of a stream is the program's, on all ranks). */
#include "tests/oracle/oracle.h"

#include "tests/oracle/state.h"

#include <string.h>

const char *oracle_op_name(Oracle *o, const Op *op)
{
	int64_t seq = attr_get_int(op->attrs, "seq", 0);
	const char *unit = op->unit ? ir_unit_str(o->a, op->unit) : "";
	const char *value = op->n_out ? arena_printf(o->a, " -> %%%s", op->out[0]->name) : "";
	return arena_printf(o->a, "%s%s%s%s%s", op_info[op->kind].text, op->unit ? " " : "", unit,
		seq ? arena_printf(o->a, " (seq %lld)", (long long)seq) : "", value);
}

/* ---- time ---- */

static const char *const stream_names[STREAM_COUNT] = {"gather", "reduce", "sync", "compute"};

static void join(Clock *c, const Clock *other)
{
	for (int s = 0; s < STREAM_COUNT; s++)
		c->at[s] = MAX(c->at[s], other->at[s]);
}

/* Something happens on s now. */
static void tick(Oracle *o, Stream s)
{
	o->clock[s].at[s]++;
}

void oracle_touch(Oracle *o, const Op *op, Stream s, Range *r, bool write)
{
	const Clock *now = &o->clock[s];
	if (r->written > now->at[r->writer])
		FAULT(o, op, "may run while %s is still written on stream %s", r->name, stream_names[r->writer]);
	for (int other = 0; write && other < STREAM_COUNT; other++)
		if (r->read[other] > now->at[other])
			FAULT(o, op, "may run while %s is still read on stream %s", r->name, stream_names[other]);
	if (write) {
		r->writer = s;
		r->written = now->at[s];
	} else {
		r->read[s] = now->at[s];
	}
}

/* ---- what is where ---- */

static Full *full_of(Oracle *o, const Op *gather)
{
	int64_t slot = attr_get_int(gather->attrs, "slot", -1);
	return slot < 0 ? &memory_of(o, gather->unit)->own : &o->slot[slot];
}

/* The parameter whose gradient lies at p, as an index in the unit's list; -1 = none begins there. */
static int param_at(const Place *p)
{
	for (int i = 0; i < p->unit->n_params; i++) {
		const Symbol *s = p->unit->params[i];
		int bytes = dtype_info[p->unit->flat[p->flat].grad].bytes;
		if (s->flat == p->flat && s->trainable && s->offset * bytes == p->offset)
			return i;
	}
	return -1;
}

static bool is_trainable_flat(const Unit *u, int flat)
{
	return u->flat[flat].trainable;
}

static int copies(const Unit *u)
{
	return strategy(u)->owned ? 2 : 1;
}

/* ---- compute reads and writes ---- */

static void read_param(Oracle *o, const Op *op, const Value *flat, const Symbol *sym)
{
	const Unit *u = flat->type.unit;
	UnitMemory *um = memory_of(o, u);
	const Ref *ref = &o->ref[flat->id];
	if (!sym || sym->unit != u || sym->flat != flat->type.flat) {
		FAULT(o, op, "reads what is no parameter of unit %s", u->name);
		return;
	}
	bool trainable = is_trainable_flat(u, sym->flat);
	for (int c = 0; ref->kind == REF_REST && trainable && c < copies(u); c++) {
		oracle_touch(o, op, STREAM_COMPUTE, &um->rest[c].range, false);
		if (um->rest[c].version != o->steps)
			FAULT(o, op, "reads \"%s\" after %lld updates instead of %lld", sym->name,
				(long long)um->rest[c].version, (long long)o->steps);
	}
	if (ref->kind == REF_REST)
		return;
	Full *f = full_of(o, ref->from);
	oracle_touch(o, op, STREAM_COMPUTE, &f->range, false);
	if (f->gather != ref->from || um->open != ref->from)
		FAULT(o, op, "reads \"%s\" behind its reshard: poison", sym->name);
	else if (trainable && f->version != o->steps)
		FAULT(o, op, "reads \"%s\" as gathered after %lld updates instead of %lld", sym->name,
			(long long)f->version, (long long)o->steps);
}

static void read_gradient(Oracle *o, const Op *op, const Value *v)
{
	Grad *g = memory_of(o, v->place.unit)->grad;
	int i = param_at(&v->place);
	if (!g || i < 0 || g->wrote[i] != v || g->stage == STAGE_REDUCED)
		FAULT(o, op, "reads %%%s from the flat gradient of %s, which does not hold it", v->name, v->place.unit->name);
	else
		oracle_touch(o, op, STREAM_COMPUTE, &g->range, false);
}

const Value *oracle_root_of(const Value *v, const Symbol **sym)
{
	for (; op_info[v->op->kind].flags & VIEW; v = op_in(v->op, 0))
		if (v->op->kind == OP_VIEW_OP)
			*sym = v->op->sym;
	return v;
}

static void read_operands(Oracle *o, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Symbol *sym = op->kind == OP_VIEW_OP ? op->sym : NULL;
		const Value *v = op_in(op, i) ? oracle_root_of(op_in(op, i), &sym) : NULL;
		if (!v)
			continue;
		if (v->type.kind == TYPE_FLAT || v->type.kind == TYPE_SHARD) {
			if (o->ref[v->id].kind == REF_FULL || o->ref[v->id].kind == REF_REST)
				read_param(o, op, v, sym);
			else
				FAULT(o, op, "reads a gradient as a parameter");
		} else if (v->place.region == REGION_GRAD) {
			read_gradient(o, op, v);
		}
	}
}

/* v lies at parameter i, and at those behind it that it covers. */
static void note_written(Grad *g, const Unit *u, int i, const Value *v)
{
	const Symbol *first = u->params[i];
	for (; i < u->n_params && u->params[i]->flat == first->flat
		&& u->params[i]->offset < first->offset + MAX(type_numel(&v->type), 1); i++)
		g->wrote[i] = v;
}

/* Adds to the sum of the previous micro-batches at the parameter's place, wherever the result is said to lie. */
static void run_accumulate(Oracle *o, const Op *op)
{
	const Unit *u = op->sym->unit;
	Grad *g = memory_of(o, u)->grad;
	int i = 0;
	while (i < u->n_params && u->params[i] != op->sym)
		i++;
	if (!g || g->stage != STAGE_OPEN || !g->n || i == u->n_params || g->wrote[i]) {
		FAULT(o, op, "%s", !g || g->stage != STAGE_OPEN ? "adds to no open gradient" :
			!g->n ? "adds to what holds no sum" : "adds a second time");
		return;
	}
	oracle_touch(o, op, STREAM_COMPUTE, &g->range, true);
	note_written(g, u, i, op->out[0]);
}

/* Whether op adds to what it finds at i, where its result lies. */
static bool adds_there(const Grad *g, int i, const Op *op)
{
	const Value *sum = op->kind == OP_MATMUL ? op_in(op, 3) : op->kind == OP_GATHER_GRAD ? op_in(op, 2) : NULL;
	return sum && g->wrote[i] == sum && sum->place.region == REGION_GRAD && param_at(&sum->place) == i
		&& sum->place.unit == op->out[0]->place.unit;
}

static void write_results(Oracle *o, const Op *op)
{
	for (int r = 0; r < op->n_out; r++) {
		const Value *v = op->out[r];
		if (v->place.region != REGION_GRAD)
			continue;
		Grad *g = memory_of(o, v->place.unit)->grad;
		int i = param_at(&v->place);
		if (!g || g->stage != STAGE_OPEN || i < 0) {
			FAULT(o, op, "writes into the flat gradient of %s %s", v->place.unit->name,
				!g ? "before zero_gaps" : i < 0 ? "where no parameter begins" : "after collect");
			return;
		}
		oracle_touch(o, op, STREAM_COMPUTE, &g->range, true);
		if (g->n && !adds_there(g, i, op))
			FAULT(o, op, "overwrites the sum of %lld micro-batches", (long long)g->n);
		note_written(g, v->place.unit, i, v);
	}
}

/* ---- gathered units ---- */

/* Whether the unit rests whole on this rank, in the dtypes that ops read. */
static bool rests_as_read(const Unit *u)
{
	bool same = true;
	for (int f = 0; f < u->n_flats; f++)
		same &= u->flat[f].dtype == u->flat[f].param;
	return same && strategy(u)->group == GROUP_ONE;
}

static void run_gather(Oracle *o, const Op *op)
{
	Full *f = full_of(o, op);
	Rest *rest = &memory_of(o, op->unit)->rest[0];
	if (rests_as_read(op->unit))
		FAULT(o, op, "gathers a unit that rests whole");
	if (f->gather)
		FAULT(o, op, "overwrites %s, which still holds %s", f->range.name, oracle_op_name(o, f->gather));
	oracle_touch(o, op, RT_STREAM_GATHER, &rest->range, false);
	oracle_touch(o, op, RT_STREAM_GATHER, &f->range, true);
	f->gather = op;
	f->version = rest->version;
}

/* Takes up again what the previous micro-batch left in the unit's own region. */
static void run_carried(Oracle *o, const Op *op)
{
	UnitMemory *um = memory_of(o, op->unit);
	if (!um->own.gather || um->own.left != o->run - 1 || um->open) {
		FAULT(o, op, um->open ? "takes up what is readable already" : "finds nothing that the micro-batch before left");
		return;
	}
	um->own.left = 0;
	um->own.gather = um->open = op;
	for (int i = 0; i < op->n_out; i++)
		o->ref[op->out[i]->id].kind = REF_FULL;
}

static void run_resident(Oracle *o, const Op *op)
{
	if (!rests_as_read(op->unit))
		FAULT(o, op, "wants a unit whole that rests in shards");
	for (int i = 0; i < op->n_out; i++)
		o->ref[op->out[i]->id].kind = REF_REST;
}

static void run_reshard(Oracle *o, const Op *op)
{
	const Ref *ref = &o->ref[op_in(op, 0)->id];
	UnitMemory *um = memory_of(o, op->unit);
	bool all = op->n_in == op->unit->n_flats;
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		all = all && v && v->op == op_in(op, 0)->op && v->index == i;
	}
	if (!all || ref->kind != REF_FULL || ref->from->unit != op->unit) {
		FAULT(o, op, "does not take the flats of one wait");
	} else if (um->open != ref->from) {
		FAULT(o, op, "ends what is not gathered");
	} else {
		Full *f = full_of(o, ref->from);
		oracle_touch(o, op, STREAM_COMPUTE, &f->range, true);
		um->open = NULL;
		if (op->kind == OP_RESHARD)
			f->gather = NULL;
		else if (f != &um->own || ends_step(o))
			FAULT(o, op, "leaves %s to a next micro-batch that does not look there", f->range.name);
		else
			f->left = o->run;
	}
}

/* ---- streams ---- */

static void run_wait(Oracle *o, const Op *op)
{
	const Op *from = op_in(op, 0)->op;
	Ref *async = from->n_out ? &o->ref[from->out[0]->id] : NULL;
	bool all = async && async->kind == REF_ASYNC && op->n_in == from->n_out;
	for (int i = 0; i < op->n_in; i++)
		all = all && op_in(op, i) == from->out[i];
	if (!all || async->waited) {
		FAULT(o, op, all ? "waits a second time" : "does not take all results of one collective");
		return;
	}
	async->waited = true;
	join(&o->clock[STREAM_COMPUTE], &async->at);
	UnitMemory *um = memory_of(o, from->unit);
	RefKind kind = from->kind == OP_ALL_GATHER ? REF_FULL : from->kind == OP_BROADCAST_FLAT ? REF_REST
		: op->out[0]->type.kind == TYPE_SHARD || sums_reduced(o) ? REF_MINE : REF_GRAD;
	for (int i = 0; i < op->n_out; i++) {
		o->ref[op->out[i]->id].kind = kind;
		o->ref[op->out[i]->id].from = from;
	}
	if (kind == REF_FULL && um->open)
		FAULT(o, op, "makes a second copy of the unit readable");
	if (kind == REF_FULL)
		um->open = from;
	bool is_sent = from->kind == OP_REDUCE_SCATTER || from->kind == OP_REDUCE || from->kind == OP_ALL_REDUCE;
	if (is_sent && um->grad && um->grad->stage == STAGE_SENT && !is_early(o))
		oracle_end_gradient(o, op, um);
}

static void run_record(Oracle *o, const Op *op)
{
	Ref *ref = &o->ref[op->out[0]->id];
	ref->kind = REF_EVENT;
	ref->at = o->clock[STREAM_COMPUTE];
}

/* Nothing waits for these: they have ended when compute goes on. */
static bool blocks(const Op *op)
{
	return op->kind == OP_ALL_REDUCE_SCALARS || op->kind == OP_ALL_REDUCE_MOMENTS
		|| op->kind == OP_ALL_REDUCE_MEANS || op->kind == OP_BROADCAST_BUFFERS || op->kind == OP_F8_SCALES;
}

static Stream stream_of(const Op *op)
{
	return op->kind == OP_ALL_GATHER || op->kind == OP_BROADCAST_FLAT ? RT_STREAM_GATHER
		: blocks(op) ? RT_STREAM_SYNC : RT_STREAM_REDUCE;
}

static void check_number(Oracle *o, const Op *op, Stream s)
{
	if (attr_get_int(op->attrs, "seq", 0) != ++o->seq)
		FAULT(o, op, "is collective number %lld of its program", (long long)o->seq);
	if (strcmp(attr_get_str(op->attrs, "stream", ""), stream_names[s]))
		FAULT(o, op, "belongs on stream %s", stream_names[s]);
}

/* Blocks compute: begins after all of it and ends before it goes on. */
static void run_blocking(Oracle *o, const Op *op)
{
	join(&o->clock[RT_STREAM_SYNC], &o->clock[STREAM_COMPUTE]);
	tick(o, RT_STREAM_SYNC);
	if (op->kind != OP_ALL_REDUCE_SCALARS && op->kind != OP_F8_SCALES && op->section == SEC_EVAL)
		FAULT(o, op, "synchronises an evaluation, to which ranks may bring nothing");
	if (op->kind == OP_ALL_REDUCE_SCALARS)
		o->n_scalars++;
	else if (op->kind == OP_BROADCAST_BUFFERS && (o->n_broadcasts++ || o->n_buffer_uses))
		FAULT(o, op, "overwrites buffers that this step has read, written or overwritten");
	else
		read_operands(o, op);
	join(&o->clock[STREAM_COMPUTE], &o->clock[RT_STREAM_SYNC]);
}

static void run_collective(Oracle *o, const Op *op)
{
	Stream s = stream_of(op);
	check_number(o, op, s);
	if (blocks(op)) {
		run_blocking(o, op);
		return;
	}
	const Value *last = op->n_in ? op_in(op, op->n_in - 1) : NULL;
	if (last && last->type.kind == TYPE_EVENT)
		join(&o->clock[s], &o->ref[last->id].at);
	tick(o, s);
	if (op->kind == OP_ALL_GATHER)
		run_gather(o, op);
	else if (op->kind == OP_BROADCAST_FLAT)
		oracle_broadcast(o, op);
	else
		oracle_reduce(o, op);
	o->ref[op->out[0]->id].kind = REF_ASYNC;
	o->ref[op->out[0]->id].at = o->clock[s];
}

/* ---- programs ---- */

static void run_compute(Oracle *o, const Op *op)
{
	tick(o, STREAM_COMPUTE);
	switch (op->kind) {
	case OP_RECORD: run_record(o, op); break;
	case OP_RESIDENT: run_resident(o, op); break;
	case OP_WAIT: run_wait(o, op); break;
	case OP_CARRIED: run_carried(o, op); break;
	case OP_RESHARD: case OP_CARRY: run_reshard(o, op); break;
	case OP_ZERO_GAPS: oracle_zero_gaps(o, op); break;
	case OP_CARRIED_GRAD: oracle_carried_grad(o, op); break;
	case OP_CARRY_GRAD: oracle_carry_grad(o, op); break;
	case OP_COLLECT: oracle_collect(o, op); break;
	case OP_SUMSQ: oracle_sumsq(o, op); break;
	case OP_STEP_SCALARS: oracle_step_scalars(o, op); break;
	case OP_UPDATE_SHARD: oracle_update(o, op); break;
	default:
		if ((op->kind == OP_READ || op->kind == OP_WRITE) && op->sym->kind == SYM_BUFFER)
			o->n_buffer_uses += dtype_is_float(op->sym->type.dtype);
		read_operands(o, op);
		if (op->kind == OP_ACCUMULATE)
			run_accumulate(o, op);
		else if (!(op_info[op->kind].flags & VIEW))
			write_results(o, op);
	}
}

static bool operands_defined(Oracle *o, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		if (v && o->ref[v->id].run != o->run) {
			SAY(o, "structure: %s: %s takes %%%s before it is computed", o->what, oracle_op_name(o, op), v->name);
			return false;
		}
	}
	return true;
}

static void run_section(Oracle *o, SectionKind s)
{
	for (const Op *op = o->m->first[s]; op && !o->fault; op = op->next) {
		if (!operands_defined(o, op))
			return;
		for (int i = 0; i < op->n_out; i++)
			o->ref[op->out[i]->id] = (Ref){.run = o->run, .from = op};
		if (op_info[op->kind].flags & COMM)
			run_collective(o, op);
		else
			run_compute(o, op);
	}
}

/* What is left must be taken up by the next program. */
static void check_left(Oracle *o)
{
	for (int u = 0; u < o->m->n_units; u++) {
		const UnitMemory *um = &o->unit[u];
		if (um->own.gather && um->own.left != o->run)
			SAY(o, "%s: gathered %s was left by the micro-batch before, and not taken up", o->what,
				o->m->units[u]->name);
		if (um->own_grad.unit && um->own_grad.stage == STAGE_LEFT && um->own_grad.left != o->run)
			SAY(o, "%s: the gradient of %s was left by the micro-batch before, and not taken up", o->what,
				o->m->units[u]->name);
	}
}

/* What began in the program must have ended in it. */
static void check_end(Oracle *o, SectionKind first, SectionKind last)
{
	for (int s = first; s <= (int)last; s++)
		IR_FOR_OPS(o->m, s, op)
			if (op_info[op->kind].flags & COMM && !blocks(op) && !o->ref[op->out[0]->id].waited)
				FAULT(o, op, "is never waited for");
	for (int u = 0; u < o->m->n_units; u++) {
		if (o->unit[u].open)
			FAULT(o, o->unit[u].open, "has no reshard");
		if (o->unit[u].grad)
			SAY(o, "%s: the gradient of %s is not reduced", o->what, o->m->units[u]->name);
	}
	check_left(o);
}

/* Of several micro-batches a program knows nothing of the one in front of it but what that left: it may have
 * touched whatever else there is for gathered units. */
static void begin_run(Oracle *o, Variant variant)
{
	o->run++;
	o->m = o->of[variant];
	o->ref = o->refs[variant];
	if (!o->m->sync)
		return;
	tick(o, STREAM_COMPUTE);
	for (int64_t i = 0; i < o->n_slots + o->m->n_units; i++) {
		Full *f = i < o->n_slots ? &o->slot[i] : &o->unit[i - o->n_slots].own;
		if (f->gather)
			continue;
		f->range = (Range){.name = f->range.name, .writer = STREAM_COMPUTE,
			.written = o->clock[STREAM_COMPUTE].at[STREAM_COMPUTE]};
	}
}

/* Checks that each unit is updated: in the last micro-batch where a step has several. */
static void check_updated(Oracle *o)
{
	bool updates = false;
	for (int u = 0; u < o->m->n_units; u++) {
		UnitMemory *um = &o->unit[u];
		updates = updates || um->trainable;
		for (int c = 0; um->trainable && c < copies(o->m->units[u]); c++)
			if (um->rest[c].version != o->steps)
				SAY(o, "%s: %s was not updated%s", o->what, o->m->units[u]->name, c ? " on all ranks" : "");
	}
	if (updates && o->n_scalars != 1)
		SAY(o, "%s: the scalars are summed %d times", o->what, o->n_scalars);
}

static void run_step(Oracle *o, Variant variant)
{
	begin_run(o, variant);
	o->micro = variant == VARIANT_ONLY || variant == VARIANT_FIRST ? 1 : o->micro + 1;
	o->seq = o->n_scalars = o->n_step_scalars = o->n_broadcasts = o->n_buffer_uses = 0;
	o->what = arena_printf(o->a, "step %lld%s%s", (long long)o->steps + 1, variant ? ", micro-batch " : "",
		variant ? variant_text[variant] : "");
	for (int u = 0; u < o->m->n_units; u++)
		o->unit[u].summed = false;
	for (SectionKind s = SEC_FORWARD; s <= SEC_UPDATE; s++)
		run_section(o, s);
	if (o->fault)
		return;
	check_end(o, SEC_FORWARD, SEC_UPDATE);
	if (ends_step(o)) {
		o->steps++;
		check_updated(o);
	} else if (o->n_scalars) {
		SAY(o, "%s: the scalars are summed before the step ends", o->what);
	}
}

static void run_eval(Oracle *o)
{
	begin_run(o, VARIANT_ONLY);
	o->seq = 0;
	o->what = arena_printf(o->a, "eval after step %lld", (long long)o->steps);
	run_section(o, SEC_EVAL);
	if (!o->fault)
		check_end(o, SEC_EVAL, SEC_EVAL);
}

/* ---- the machine ---- */

/* As many slots as there are ops that could use one each. */
static int64_t count_slots(Oracle *o, const Module *m, OpKind kind)
{
	int64_t n = 0;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			n += op->kind == kind;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op) {
			int64_t slot = attr_get_int(op->attrs, "slot", -1);
			if (op->kind == kind && (slot < -1 || slot >= n))
				SAY(o, "%s has no slot %lld", oracle_op_name(o, op), (long long)slot);
		}
	return n;
}

static void add_units(Oracle *o, int max_params)
{
	for (int i = 0; i < o->m->n_units; i++) {
		UnitMemory *um = &o->unit[i];
		const Unit *u = o->m->units[i];
		for (int c = 0; c < 2; c++)
			um->rest[c].range.name = arena_printf(o->a, "%s at rest", u->name);
		um->own.range.name = arena_printf(o->a, "gathered %s", u->name);
		um->own_grad.range.name = arena_printf(o->a, "the flat gradient of %s", u->name);
		um->own_grad.wrote = NEW_N(o->a, const Value *, max_params);
		um->mine.range.name = arena_printf(o->a, "the reduced gradient of %s", u->name);
		um->mine.step = -1;
		for (int f = 0; f < u->n_flats; f++)
			um->trainable |= u->flat[f].trainable;
	}
}

static void add_memory(Oracle *o)
{
	int max_params = 0;
	for (int i = 0; i < o->m->n_units; i++)
		max_params = MAX(max_params, o->m->units[i]->n_params);
	o->unit = NEW_N(o->a, UnitMemory, o->m->n_units);
	add_units(o, max_params);
	for (int k = 0; k < VARIANT_COUNT; k++) {
		if (!o->of[k])
			continue;
		o->refs[k] = NEW_N(o->a, Ref, o->of[k]->n_values);
		o->n_slots = MAX(o->n_slots, count_slots(o, o->of[k], OP_ALL_GATHER));
		o->n_grad_slots = MAX(o->n_grad_slots, count_slots(o, o->of[k], OP_ZERO_GAPS));
	}
	o->slot = NEW_N(o->a, Full, o->n_slots);
	o->grad_slot = NEW_N(o->a, Grad, o->n_grad_slots);
	for (int64_t i = 0; i < o->n_slots; i++)
		o->slot[i].range.name = arena_printf(o->a, "ring slot %lld", (long long)i);
	for (int64_t i = 0; i < o->n_grad_slots; i++) {
		o->grad_slot[i].range.name = arena_printf(o->a, "gradient slot %lld", (long long)i);
		o->grad_slot[i].wrote = NEW_N(o->a, const Value *, max_params);
	}
}

const char *oracle_run(const Module *m, Module *const others[VARIANT_COUNT], Arena *a)
{
	/* o, f, m, l: the training of a variant; e: an evaluation */
	static const char one[] = "ooeeo", many[] = "flefmlflefmmleefl", letters[] = "ofml";
	Oracle o = {.m = m, .a = a, .what = "module"};
	bool is_one = m->variant == VARIANT_ONLY;
	for (int k = 0; k < VARIANT_COUNT; k++)
		o.of[k] = k == (int)m->variant ? m : is_one ? NULL : others[k];
	for (int k = 0; k < VARIANT_COUNT; k++)
		if (o.of[k] && o.of[k]->level != LEVEL_PLAN)
			return "the module is not at level PLAN";
	add_memory(&o);
	for (const char *p = is_one ? one : many; *p && !o.fault; p++) {
		if (*p == 'e')
			run_eval(&o);
		else
			run_step(&o, (Variant)(strchr(letters, *p) - letters));
	}
	return o.fault;
}
