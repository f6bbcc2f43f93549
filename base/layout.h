/* base/layout.h: where every parameter, shard and state lies, for any number of ranks.
 *
 * Used by `shardc plan` and by the runtime, so that the plan is exact.  Offsets count elements and are
 * the same in every dtype: a parameter starts at a multiple of 64 elements; a rank's shard of a flat
 * is round_up(ceil(numel / S), 64), so a rank may be all padding (DESIGN 3; deviates from F20, F22). */
#ifndef SHARDC_LAYOUT_H
#define SHARDC_LAYOUT_H

#include "base/base.h"

enum { LAYOUT_ALIGN = 64 }; /* elements */

typedef struct LayoutFlat { DType dtype; bool trainable; int64_t numel; } LayoutFlat;

/* Offset of the next parameter after one that ends at `end`. */
static inline int64_t layout_next(int64_t end) { return round_up(end, LAYOUT_ALIGN); }
/* Elements of one rank's shard, and of the gathered flat (S shards). */
static inline int64_t layout_shard_numel(int64_t numel, int64_t ranks)
{
	return round_up(ceil_div(numel, ranks), LAYOUT_ALIGN);
}
static inline int64_t layout_flat_numel(int64_t numel, int64_t ranks)
{
	return layout_shard_numel(numel, ranks) * ranks;
}

/* Bytes per category that the runtime maps; filled by layout_memory, printed by plan and --print-plan. */
typedef struct LayoutMemory {
	int64_t params, grads, states, buffers, inputs, activations, workspace, total;
} LayoutMemory;

/* n_states: optimizer state tensors per trainable parameter element (adamw: 2), all f32. */
typedef struct LayoutModel {
	const LayoutFlat *const *flats; /* [n_units][] */
	const int *n_flats;
	int n_units;
	int n_states;
	int64_t act_bytes, input_bytes, state_bytes, work_bytes;
} LayoutModel;
LayoutMemory layout_memory(const LayoutModel *m, int64_t ranks);

#endif
