/* runtime/exec/optim.c: the optimizer of a program: states, parameter segments, hyper-parameters, updates.
 *
 * Refuses a flag that the optimizer has no use for, and trainable parameters that are not f32 and have no f32 master.
 *
 * An optimizer is a row of base/optimizers.def and a kernel.  A flat is cut into segments, one per parameter, and a
 * segment's group has its hyper-parameters, such as weight decay.  A rank updates the part of a flat that layout_range
 * gives it: its segments are those of the flat, cut to that part.  Where the flat has a master, the master is updated,
 * and the working copy is rounded from it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/private.h"

static void (*const kernels[OPTIMIZER_COUNT])(const KUpdate *u) = {
#define OPTIMIZER(kernel, ...) [OPTIMIZER_##kernel] = k_##kernel##_f32,
#include "base/optimizers.def"
};

double optim_norm_p(const RtModel *model)
{
	return model->norm_p > 0 ? model->norm_p : 2;
}

const char *optim_state_name(const Optimizer *opt, int state)
{
	return opt->info->states[state];
}

static bool segment_of(const RtTensor *t, int unit, int flat)
{
	return t->kind == RT_PARAM && t->unit == unit && t->flat == flat && t->trainable;
}

static int by_begin(const void *pa, const void *pb)
{
	const Segment *a = pa, *b = pb;
	return (a->begin > b->begin) - (a->begin < b->begin);
}

static SegmentList cut_segments(const Optimizer *opt, const RtModel *m, int unit, int flat, Arena *a)
{
	SegmentList list = {0};
	for (int i = 0; i < m->n_tensors; i++)
		list.n += segment_of(&m->tensors[i], unit, flat);
	list.at = NEW_N(a, Segment, MAX(list.n, 1));
	int64_t n = 0;
	int32_t tensor = 0;
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		if (segment_of(t, unit, flat))
			list.at[n++] = (Segment){t->offset, tensor_numel(t), 2 * t->group + t->no_decay, tensor,
				opt->began[i]};
		tensor += t->kind == RT_PARAM && t->unit == unit;
	}
	qsort(list.at, (size_t)n, sizeof(*list.at), by_begin);
	for (int64_t i = 1; i < n; i++)
		if (list.at[i].begin < list.at[i - 1].begin + list.at[i - 1].length)
			ice("unit %d flat %d: parameters overlap", unit, flat);
	return list;
}

/* Cuts the segments to a range of the flat, counted from the range's start. */
static SegmentList cut_range(const SegmentList *whole, LayoutRange range, Arena *a)
{
	SegmentList list = {.at = NEW_N(a, Segment, MAX(whole->n, 1))};
	for (int64_t i = 0; i < whole->n; i++) {
		const Segment *s = &whole->at[i];
		int64_t begin = MAX(s->begin, range.begin), end = MIN(s->begin + s->length, range.begin + range.n);
		if (begin < end)
			list.at[list.n++] = (Segment){begin - range.begin, end - begin, s->group, s->tensor, s->began};
	}
	return list;
}

static void set_info(Optimizer *opt, const char *spec)
{
	OptimizerChoice choice;
	if (!optimizer_read(spec, &choice))
		ice("optimizer \"%s\" is unknown to the runtime", spec);
	opt->info = choice.info;
	opt->nesterov = choice.nesterov;
	opt->n_states = choice.info->n_states;
}

bool optim_init(Optimizer *opt, const RtModel *model, const LayoutRank *who, Arena *a, const char *program, Diag *d)
{
	memset(opt, 0, sizeof(*opt));
	if (!model->optimizer)
		return true;
	set_info(opt, model->optimizer);
	opt->began = NEW_N(a, int64_t, model->n_tensors + 1);
	opt->group = NEW_N(a, Group, 2 * (model->n_groups + 1));
	opt->segments = arena_alloc(a, sizeof(*opt->segments) * (size_t)MAX(model->layout.n_units, 1));
	opt->mine = arena_alloc(a, sizeof(*opt->mine) * (size_t)MAX(model->layout.n_units, 1));
	for (int u = 0; u < model->layout.n_units; u++)
		for (int f = 0; f < model->layout.unit[u].n_flats; f++) {
			const LayoutFlat *flat = &model->layout.unit[u].flat[f];
			if (flat->trainable && flat->dtype != DT_F32 && !flat->master) {
				diag_error(d, program, "unit \"%s\" trains %s parameters without f32 masters: only f32 is supported",
					model->unit_names[u], dtype_info[flat->dtype].text);
				return false;
			}
			if (!flat->trainable)
				continue;
			opt->segments[u][f] = cut_segments(opt, model, u, f, a);
			opt->mine[u][f] = cut_range(&opt->segments[u][f], layout_range(&model->layout.unit[u], f, who), a);
		}
	return true;
}

/* The index of a tensor among the parameters of its unit, as in Segment.tensor. */
static int number_in_unit(const RtModel *m, int tensor)
{
	int n = 0;
	for (int i = 0; i < tensor; i++)
		n += m->tensors[i].kind == RT_PARAM && m->tensors[i].unit == m->tensors[tensor].unit;
	return n;
}

void optim_set_began(Optimizer *opt, const RtModel *model, int tensor, int64_t updates)
{
	const RtTensor *t = &model->tensors[tensor];
	int number = number_in_unit(model, tensor);
	opt->began[tensor] = updates;
	SegmentList *lists[] = {&opt->segments[t->unit][t->flat], &opt->mine[t->unit][t->flat]};
	for (int k = 0; k < COUNT_OF(lists); k++)
		for (int64_t i = 0; i < lists[k]->n; i++)
			if (lists[k]->at[i].tensor == number)
				lists[k]->at[i].began = updates;
}

/* "adam, adamw and lion have it" */
static const char *readers_of(GroupKey key, Arena *a)
{
	const char *names = optimizer_readers(a, key, ", ", " and ");
	return arena_printf(a, strchr(names, ' ') ? "%s have it" : "only --optimizer=%s has it", names);
}

const char *optim_refuses(const Optimizer *opt, const RtModel *model, OptionId flag, Arena *a)
{
	switch (flag) {
	case OPT_momentum: return optimizer_reads(opt->info, GROUP_momentum) ? NULL : readers_of(GROUP_momentum, a);
	case OPT_betas: return optimizer_reads(opt->info, GROUP_beta1) ? NULL : readers_of(GROUP_beta1, a);
	case OPT_eps: return optimizer_reads(opt->info, GROUP_eps) ? NULL : readers_of(GROUP_eps, a);
	case OPT_clip_norm:
		return model->clip ? NULL : "compile with --clip=P, the norm's p (1, 2, 2.5, inf), to have it";
	case OPT_clip_value: return model->clip_value ? NULL : "compile with --clip=value to have it";
	default: return NULL;
	}
}

const char *optim_help(const RtModel *model, OptionId flag, Arena *a)
{
	Optimizer opt = {.info = NULL};
	if (!model->optimizer)
		return NULL;
	set_info(&opt, model->optimizer);
	const char *name = opt.info->name;
	const double *is = opt.info->number;
	const char *why = optim_refuses(&opt, model, flag, a);
	if (why)
		return arena_printf(a, "refused by this program: %s", why);
	switch (flag) {
	case OPT_lr: return arena_printf(a, "%s: %g", name, opt.info->lr);
	case OPT_momentum: return arena_printf(a, "%s: %g", name, is[GROUP_momentum]);
	case OPT_betas: return arena_printf(a, "%s: %g,%g", name, is[GROUP_beta1], is[GROUP_beta2]);
	case OPT_eps: return arena_printf(a, "%s: %g", name, is[GROUP_eps]);
	case OPT_weight_decay: return arena_printf(a, "%s: %g", name, is[GROUP_weight_decay]);
	case OPT_clip_norm: return arena_printf(a, "of the %g-norm", optim_norm_p(model));
	default: return NULL;
	}
}

static bool check_flags(const Optimizer *opt, const RtModel *model, const RtOptions *o, Diag *d)
{
	bool ok = true;
	for (int i = 0; i < OPT_COUNT; i++) {
		const char *why = o->text[i] ? optim_refuses(opt, model, (OptionId)i, o->arena) : NULL;
		if (!why)
			continue;
		diag_error(d, o->program, "--%s is refused by this program, compiled with --optimizer=%s%s%s: %s",
			option_info[i].flag, model->optimizer, model->clip ? " --clip=P" : "",
			model->clip_value ? " --clip=value" : "", why);
		ok = false;
	}
	return ok;
}

/* Replaces numbers of g by those that are set in `own`. */
static void change_group(Group *g, const double *own)
{
	float *const field[GROUP_KEYS] = {[GROUP_lr_scale] = &g->lr_scale, [GROUP_weight_decay] = &g->weight_decay,
		[GROUP_beta1] = &g->beta1, [GROUP_beta2] = &g->beta2, [GROUP_eps] = &g->eps, [GROUP_momentum] = &g->beta1};
	for (int k = 0; k < GROUP_KEYS; k++)
		if (!isnan(own[k]))
			*field[k] = (float)own[k];
}

static double chosen(bool given, double flag, const double *hyper, int key, double otherwise)
{
	return hyper && !isnan(hyper[key]) ? hyper[key] : given ? flag : otherwise;
}

/* The default of an optimizer's number; 0: it does not read this number. */
static double number_of(const Optimizer *opt, GroupKey key)
{
	return optimizer_reads(opt->info, key) ? opt->info->number[key] : 0;
}

/* The numbers of parameters that are in no group. */
static Group base_group(const Optimizer *opt, const RtOptions *o, const double *hyper)
{
	bool betas = o->text[OPT_betas];
	Group g = {.lr_scale = 1,
		.weight_decay = (float)chosen(o->text[OPT_weight_decay], o->weight_decay, hyper, HYPER_weight_decay,
			number_of(opt, GROUP_weight_decay)),
		.beta1 = (float)chosen(betas, o->betas.beta1, hyper, HYPER_betas, number_of(opt, GROUP_beta1)),
		.beta2 = (float)chosen(betas, o->betas.beta2, hyper, HYPER_betas_second, number_of(opt, GROUP_beta2)),
		.eps = (float)chosen(o->text[OPT_eps], o->eps, hyper, HYPER_eps, number_of(opt, GROUP_eps))};
	if (optimizer_reads(opt->info, GROUP_momentum))
		g.beta1 = (float)chosen(o->text[OPT_momentum], o->momentum, hyper, HYPER_momentum,
			number_of(opt, GROUP_momentum));
	return g;
}

LrSchedule optim_schedule(const Optimizer *opt, const RtOptions *o, const double *hyper)
{
	return (LrSchedule){.kind = (Schedule)chosen(true, o->lr_schedule, hyper, HYPER_lr_schedule, 0),
		.lr = chosen(o->text[OPT_lr], o->lr, hyper, HYPER_lr, opt->info->lr),
		.min_lr = chosen(true, o->min_lr, hyper, HYPER_min_lr, 0),
		.warmup = (int64_t)chosen(true, (double)o->warmup, hyper, HYPER_warmup, 0), .steps = o->steps};
}

void optim_apply(Optimizer *opt, const RtModel *model, const RtOptions *o, const double *hyper)
{
	Group base = base_group(opt, o, hyper);
	for (int i = 0; i <= model->n_groups; i++) {
		Group *g = &opt->group[2 * i];
		*g = base;
		if (i)
			change_group(g, model->groups[i - 1].value);
		if (i && hyper)
			change_group(g, hyper + HYPER_KEYS + (i - 1) * GROUP_KEYS);
		g[1] = g[0];
		g[1].weight_decay = 0;
	}
	opt->clip_norm = chosen(true, o->clip_norm, hyper, HYPER_clip_norm, 0);
	opt->clip_value = chosen(true, o->clip_value, hyper, HYPER_clip_value, 0);
	opt->lr = optim_schedule(opt, o, hyper);
}

bool optim_configure(Optimizer *opt, const RtModel *model, const RtOptions *o, Diag *d)
{
	if (!check_flags(opt, model, o, d))
		return false;
	optim_apply(opt, model, o, NULL);
	return true;
}

static bool in_group(const RtTensor *t, int group, bool no_decay)
{
	return t->kind == RT_PARAM && t->trainable && t->group == group && t->no_decay == no_decay;
}

static bool has_groups(const RtModel *model)
{
	bool any = model->n_groups;
	for (int t = 0; t < model->n_tensors; t++)
		any = any || model->tensors[t].no_decay;
	return any;
}

void optim_print_groups(const Optimizer *opt, const RtModel *model, FILE *out)
{
	if (!has_groups(model))
		return;
	for (int i = 0; i < 2 * (model->n_groups + 1); i++) {
		const Group *g = &opt->group[i];
		const double own[GROUP_KEYS] = {[GROUP_lr_scale] = g->lr_scale, [GROUP_weight_decay] = g->weight_decay,
			[GROUP_beta1] = g->beta1, [GROUP_beta2] = g->beta2, [GROUP_eps] = g->eps, [GROUP_momentum] = g->beta1};
		int64_t n = 0, elements = 0;
		for (int t = 0; t < model->n_tensors; t++) {
			bool in = in_group(&model->tensors[t], i / 2, i % 2);
			n += in;
			elements += in ? tensor_numel(&model->tensors[t]) : 0;
		}
		if (!n)
			continue;
		fprintf(out, "group %s%s%s%s: %lld tensors, %lld elements", i > 1 ? "\"" : "",
			i > 1 ? model->groups[i / 2 - 1].regex : "of the rest", i > 1 ? "\"" : "", i % 2 ? ", not decayed" : "",
			(long long)n, (long long)elements);
		for (int k = 0; k < GROUP_KEYS; k++)
			if (group_key_used((GroupKey)k, model->optimizer))
				fprintf(out, ", %s %.7g", group_key_info[k].name, own[k]);
		fputc('\n', out);
	}
}

/* Rounds the owner's working copy from its master.  If the working copy is f32 but holds 16-bit values, the memory of
 * the gradient, which is no longer needed, serves as the intermediate. */
static void round_working_copy(const Rt *rt, int unit, int f)
{
	const LayoutFlat *flat = &rt->model->layout.unit[unit].flat[f];
	void *copy = rt->shard[unit][f], *half = flat->dtype == flat->bcast ? copy : rt->grad_shard[unit][f];
	int64_t n = layout_flat_numel(flat->numel, 1);
	step_cast(rt, &(Cast){.to = half, .from = rt->p->optim.master[unit][f], .made = flat->bcast, .given = DT_F32,
		.n = n, .unit = unit, .flat = f, .chance = {.on = rt->model->by_chance, .next = true}});
	if (half != copy)
		step_cast(rt, &(Cast){.to = copy, .from = half, .made = flat->dtype, .given = flat->bcast, .n = n});
}

void optim_update(const Rt *rt, int unit, int f, SegmentList segments, const Group *groups)
{
	const Optimizer *opt = &rt->p->optim;
	const LayoutUnit *u = &rt->model->layout.unit[unit];
	LayoutRank who = device_rank(rt);
	bool master = u->flat[f].master;
	if (!u->flat[f].trainable || segments.n == 0)
		return;
	KUpdate update = {.p = master ? opt->master[unit][f] : rt->shard[unit][f], .g = rt->grad_shard[unit][f],
		.g_type = (KDType)layout_update_dtype(u, f, &who), .segment = segments.at, .n_segments = segments.n,
		.group = groups, .s = rt->scalars, .nesterov = opt->nesterov};
	for (int k = 0; k < opt->n_states; k++)
		update.state[k] = opt->state[k][unit][f];
	kernels[opt->info - optimizer_info](&update);
	if (master)
		round_working_copy(rt, unit, f);
}
