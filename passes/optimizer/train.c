/* passes/optimizer/train.c: makes the train block of a module from the options, once its gradients are known. */
#include "passes/loss/loss.h"

/* Copies the groups with strings that live as long as the module. */
static void copy_groups(Module *m, Train *t, const ParamGroup *group, int n)
{
	t->group = NEW_N(m->arena, ParamGroup, n);
	t->n_groups = n;
	for (int i = 0; i < n; i++) {
		t->group[i] = group[i];
		t->group[i].regex = ir_intern(m, group[i].regex);
	}
}

/* Warns of --no-decay-1d when no trained tensor has fewer than two dims. */
static void check_decay(Symbol *const *trained, int n, Diag *d)
{
	bool some = false;
	for (int i = 0; i < n; i++)
		some = some || trained[i]->type.rank <= 1;
	if (!some)
		diag_warn(d, "--no-decay-1d", "every parameter that is trained has two dimensions or more: it is not used");
}

bool train_make(Module *m, const TrainParts *p, const Options *o, Diag *d)
{
	const Op *step = ir_find_in_step(m, OP_STEP_SCALARS);
	bool scaled = ir_find_in_step(m, OP_LOSS_SCALE);
	const GraphOptions *g = &o->graph;
	Train *t = m->train = NEW(m->arena, Train);
	*t = (Train){.optimizer = ir_intern(m, g->optimizer ? g->optimizer : OPTIMIZER_DEFAULT),
		.norm = ir_find_in_step(m, OP_NORM), .clip = step ? p->clip.p : 0, .clip_value = step && p->clip.value,
		.no_decay_1d = g->no_decay_1d, .loss_scale = scaled ? p->scale.value : 0,
		.growth_interval = scaled ? p->scale.growth_interval : 0,
		.shift = loss_shifts(m, o, d), .accum = options_many(o), .check_nan = g->check_nan,
		.offload = o->memory.offload, .cuda = options_cuda(o),
		.tf32 = options_cuda(o) && o->precision.matmul_precision == MATMUL_TF32,
		.options = o->canonical_program ? ir_intern(m, o->canonical_program) : NULL};
	copy_groups(m, t, p->group, p->n_groups);
	if (g->no_decay_1d)
		check_decay(p->trained, p->n_trained, d);
	return !g->comm_hook || hook_parse(g->comm_hook, &t->hook, m->arena, d);
}
