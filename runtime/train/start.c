/* runtime/train/start.c: before ranks can communicate through memory: compares what must be equal on all of them.
 *
 * Refuses ranks whose program, flags or data differ in anything that changes numbers or the order of collectives. */
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/train/train.h"

bool start_check_world(const Rt *rt, Diag *d)
{
	const RtOptions *o = rt->p->options;
	int64_t world = MAX(rt->p->world.size, 1), wants = rt->model->world;
	int before = d->errors;
	if (world > 1 && o->comm && !strcmp(o->comm, "self"))
		diag_error(d, o->program, "--comm=self is one rank alone, there are %" PRId64, world);
	if (wants && wants != world)
		diag_error(d, o->program, "this program runs on %" PRId64 " ranks, which it was compiled for (oss and "
			"sharded_ddp give every parameter an owner), there %s %" PRId64 ": start it with --ranks %" PRId64
			", or compile it with --world=%" PRId64, wants, world == 1 ? "is" : "are", world, wants, world);
	if (o->text[OPT_shard_size] && (o->shard_size < 1 || world % o->shard_size))
		diag_error(d, o->program, "--shard-size %" PRId64 " does not divide %" PRId64 " ranks into equal groups",
			o->shard_size, world);
	if (o->infer.in && world > 1)
		diag_error(d, o->program, "--infer runs on one rank, there are %" PRId64, world);
	return d->errors == before;
}

/* ---- what must be equal ---- */

static void put_flat(Buf *b, const LayoutFlat *f)
{
	const DType roles[] = {f->dtype, f->param, f->grad, f->reduce, f->kept, f->bcast};
	for (int i = 0; i < COUNT_OF(roles); i++)
		buf_printf(b, i ? "/%s" : " %s", dtype_info[roles[i]].text);
	buf_printf(b, "[%" PRId64 "]%s%s", f->numel, f->trainable ? "" : " frozen", f->master ? " master" : "");
}

static void put_units(Buf *b, const Rt *rt)
{
	const LayoutModel *l = &rt->model->layout;
	for (int u = 0; u < l->n_units; u++) {
		const LayoutUnit *unit = &l->unit[u];
		buf_printf(b, "unit \"%s\": %s, owner %d, gradient slot %d, flats", rt->model->unit_names[u],
			strategy_info[unit->strategy].text, unit->owner, unit->grad_slot);
		for (int f = 0; f < unit->n_flats; f++)
			put_flat(b, &unit->flat[f]);
		buf_printf(b, "\n");
	}
}

static void put_collectives(Buf *b, const Rt *rt, const char *program, const RtCollective *row, int n)
{
	for (int i = 0; i < n; i++)
		buf_printf(b, "collective %d of %s: %s%s%s, stream %d, slot %d\n", i + 1, program,
			collective_name(row[i].kind), row[i].unit < 0 ? "" : " @",
			row[i].unit < 0 ? "" : rt->model->unit_names[row[i].unit], (int)row[i].stream, row[i].slot);
}

/* Writes the flags that affect numbers or what ranks do together; paths may differ. */
static void put_flags(Buf *b, const RtOptions *o)
{
	static const OptionId too[] = {OPT_eval_every, OPT_save_every, OPT_save_kind, OPT_keep, OPT_sync_init, OPT_on_nan,
		OPT_check_replicas, OPT_threads_exact};
	for (int i = 0; i < OPT_COUNT; i++) {
		bool counts = option_info[i].saved;
		for (int k = 0; k < COUNT_OF(too); k++)
			counts = counts || too[k] == (OptionId)i;
		if (counts)
			buf_printf(b, "flag --%s=%s\n", option_info[i].flag, o->text[i] ? o->text[i] : "(not given)");
	}
	buf_printf(b, "saves: %s\nhyper: %s\ntune: %s\n", o->save ? "yes" : "no", o->hyper ? "yes" : "no",
		o->tune ? "yes" : "no");
}

/* Without --shard-size, groups of hybrid_shard are hosts. */
static bool check_hosts(const Rt *rt, Diag *d)
{
	const World *w = &rt->p->world;
	const LayoutModel *l = &rt->model->layout;
	bool hybrid = false, equal = true;
	for (int u = 0; u < l->n_units; u++)
		hybrid = hybrid || l->unit[u].strategy == STRATEGY_HYBRID_SHARD;
	for (int r = 0, n_hosts = w->n_hosts; w->host_of && r < w->size; r++)
		equal = equal && w->host_of[r] == r / MAX(w->size / n_hosts, 1);
	if (!hybrid || rt->p->options->shard_size || equal)
		return true;
	diag_error(d, rt->p->options->program, "%d ranks on %d hosts, not equally many on each or not side by side: the "
		"groups of hybrid_shard are hosts where nothing else is said; say how large they are with --shard-size",
		w->size, w->n_hosts);
	return false;
}

int start_compare(Rt *rt, const DataSet *train, const DataSet *eval, Diag *d)
{
	const RtModel *m = rt->model;
	LayoutRank who = device_rank(rt);
	if (rt->p->world.size < 2)
		return 0;
	if (!check_hosts(rt, d))
		return EXIT_USAGE;
	Buf b = {0};
	buf_printf(&b, "program %s\noptions %s\nversions %s\n", m->name, m->options, m->versions);
	buf_printf(&b, "hook %s\n", m->hook ? m->hook->name : "(none)");
	buf_printf(&b, "ranks %" PRId64 ", groups of %" PRId64 "\nbatch %" PRId64 "\n", who.world, who.shard_size,
		m->batch);
	buf_printf(&b, "samples: %" PRId64 " for training, %" PRId64 " for evaluations\n", train->n_samples,
		eval->n_samples);
	buf_printf(&b, "lengths: %016" PRIx64 " for training, %016" PRIx64 " for evaluations\n", train->sizes.hash,
		eval->sizes.hash);
	buf_printf(&b, "begins after step %" PRId64 " and %" PRId64 " samples\n", rt->p->progress.step,
		rt->p->progress.samples);
	put_flags(&b, rt->p->options);
	put_units(&b, rt);
	static const char *const micro_batch[] = {"the first micro-batch", "a middle micro-batch", "the last micro-batch"};
	put_collectives(&b, rt, "a step", m->step, m->n_step);
	for (int k = 0; m->programs && k < RT_PROGRAMS; k++)
		put_collectives(&b, rt, micro_batch[k], m->programs[k].collectives, m->programs[k].n);
	put_collectives(&b, rt, "an evaluation", m->evaluation, m->n_evaluation);
	bool same = control_compare(rt->p->control, b.at, d);
	buf_free(&b);
	return same ? 0 : EXIT_INPUT;
}

/* ---- threads ---- */

typedef struct Cores { int32_t host, threads; cpu_set_t set; } Cores;

static int cores_of_host(const Cores *all, int n, int host)
{
	cpu_set_t any;
	CPU_ZERO(&any);
	for (int r = 0; r < n; r++)
		if (all[r].host == host)
			CPU_OR(&any, &any, &all[r].set);
	return CPU_COUNT(&any);
}

static int threads_of_host(const Cores *all, int n, int host)
{
	int threads = 0;
	for (int r = 0; r < n; r++)
		threads += all[r].host == host ? all[r].threads : 0;
	return threads;
}

/* Those of all ranks; NULL: a rank is lost. */
static const Cores *gather_cores(const Rt *rt)
{
	const World *w = &rt->p->world;
	Cores mine = {.host = w->host, .threads = device_threads()}, *all = NEW_N(rt->p->arena, Cores, w->size);
	sched_getaffinity(0, sizeof(mine.set), &mine.set);
	return control_all_gather(rt->p->control, &mine, sizeof(mine), all) ? all : NULL;
}

/* The result is equal on all ranks: if any has no core to spare, none gets such threads. */
bool start_comm_threads(const Rt *rt)
{
	const struct RtPrivate *p = rt->p;
	const World *w = &p->world;
	if (w->size < 2 || p->options->text[OPT_comm_threads])
		return p->options->comm_threads > 0;
	if (w->n_hosts > 1 && !w->threads)
		return false;
	const Cores *all = gather_cores(rt);
	bool spare = all;
	for (int r = 0; r < w->size && all; r++)
		spare = spare && CPU_COUNT(&all[r].set) > all[r].threads &&
			cores_of_host(all, w->size, all[r].host) > threads_of_host(all, w->size, all[r].host);
	return spare;
}

bool start_takes_turns(const Rt *rt)
{
	const World *w = &rt->p->world;
	const Cores *all = w->size > 1 ? gather_cores(rt) : NULL;
	return all && threads_of_host(all, w->size, w->host) > cores_of_host(all, w->size, w->host);
}
