/* base/layout.c: bytes of every memory category for any number of ranks.
 *
 * The one idea: `shardc plan` and the runtime call the same function, so the plan cannot drift from what
 * is mapped.  At one rank a gathered flat is its own shard; from two ranks on every unit has a gathered
 * flat and a flat gradient beside its shards. */
#include "base/layout.h"

static void add_flat(LayoutMemory *sum, const LayoutFlat *f, int n_states, int64_t ranks)
{
	int64_t shard = layout_shard_numel(f->numel, ranks);
	int64_t held = ranks > 1 ? shard + layout_flat_numel(f->numel, ranks) : shard;
	sum->params += held * dtype_info[f->dtype].bytes;
	if (!f->trainable)
		return;
	sum->grads += held * dtype_info[f->dtype].bytes;
	sum->states += shard * n_states * dtype_info[DT_F32].bytes;
}

LayoutMemory layout_memory(const LayoutModel *m, int64_t ranks)
{
	LayoutMemory sum = {.buffers = m->state_bytes, .inputs = m->input_bytes, .activations = m->act_bytes,
		.workspace = m->work_bytes};
	for (int u = 0; u < m->n_units; u++)
		for (int f = 0; f < m->n_flats[u]; f++)
			add_flat(&sum, &m->flats[u][f], m->n_states, ranks);
	sum.total = sum.params + sum.grads + sum.states + sum.buffers + sum.inputs + sum.activations + sum.workspace;
	return sum;
}
