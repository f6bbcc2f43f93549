/* base/layout.h: where every parameter, shard, gathered flat, gradient and state lies, for any number of
 * ranks.
 *
 * Used by the compiler (`shardc plan`, --memory-limit) and by the runtime, so that the plan is exact.
 * Offsets count elements inside a flat and are the same in every dtype: a parameter starts at a multiple of
 * 64 elements; a rank's shard of a flat is round_up(ceil(numel / S), 64), so a rank may be all padding
 * (docs/sharding.md, Units; F20 and F22 of docs/compatibility.md say where that deviates).  Offsets of
 * LayoutPlaces count bytes from an arena's start. */
#ifndef SHARDC_LAYOUT_H
#define SHARDC_LAYOUT_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LAYOUT_ALIGN = 64, LAYOUT_MAX_FLATS = 4 }; /* elements; flats of a unit */
enum { LAYOUT_SCALARS = 12 }; /* doubles of all_reduce_scalars: loss, weight, accuracy, norm, what is asked of a run */

/* ---- strategies ---- */

typedef enum Strategy {
#define STRATEGY(id, ...) STRATEGY_##id,
#include "base/strategies.def"
	STRATEGY_COUNT
} Strategy;
typedef enum StrategyGroup { GROUP_WORLD, GROUP_SHARD, GROUP_ONE } StrategyGroup;
typedef enum StrategyReduce { REDUCE_TO_SHARDS, REDUCE_TO_ALL, REDUCE_TO_OWNER } StrategyReduce;
typedef struct StrategyInfo {
	const char *text;
	StrategyGroup group;
	bool kept;
	StrategyReduce reduce;
	bool owned;
	const char *doc;
} StrategyInfo;
extern const StrategyInfo strategy_info[STRATEGY_COUNT];
bool strategy_from_text(const char *text, Strategy *out);

/* ---- flats and shards ---- */

/* The dtypes of one flat over its life.  Offsets and numel count elements, so they are the same in each.
 *
 * Updates are made in f32.  Where `dtype` is f32 it is updated itself, but of units with an owner whose broadcasts
 * move 16 bits all ranks, the owner too, work with values that 16 bits hold: the owner then updates a master copy
 * beside its states, and every working copy is that rounded to `bcast`. */
typedef struct LayoutFlat {
	DType dtype;           /* at rest: of the shards, or of the whole unit on every rank */
	bool trainable;
	int64_t numel;         /* from the first element to the end of the last parameter, gaps included */
	DType param;           /* gathered, as forward and backward read it; a gather casts each rank's shard once */
	/* Of trainable flats: */
	DType grad;            /* the flat gradient that backward writes */
	DType reduce;          /* what a reduction sends; other than grad: cast into the send buffer first */
	DType kept;            /* the reduced gradient that the update reads, where it has a place of its own */
	DType bcast;           /* what the owner sends after an update */
	bool master;           /* bcast is 16-bit, and who updates the flat holds an f32 copy beside its states */
	bool away;             /* of GPUs: rests in memory of the host, so every gather copies what a rank has of it */
} LayoutFlat;
/* The initializer of a flat of one dtype in all its roles. */
#define LAYOUT_FLAT(dtype, trainable, numel) {dtype, trainable, numel, dtype, dtype, dtype, dtype, dtype, false, false}
/* Whether a gather casts, or copies: each rank its own shard, in the gathered flat, from where its peers take it. */
static inline bool layout_casts(const LayoutFlat *f) { return f->param != f->dtype || f->away; }
/* Whether the gathered flat has memory of its own: not at one shard, where it is the shard itself. */
static inline bool layout_is_gathered(const LayoutFlat *f, int64_t ranks)
{
	return ranks > 1 || layout_casts(f);
}

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

/* Who asks: rank of world, in groups of shard_size consecutive ranks (for hybrid_shard; divides world). */
typedef struct LayoutRank { int64_t rank, world, shard_size; } LayoutRank;

/* How a unit of this strategy is split: over S ranks; this one holds shard `index` of group `group`. */
typedef struct LayoutSplit { int64_t ranks, index, group, groups; } LayoutSplit;
LayoutSplit layout_split(Strategy s, const LayoutRank *who);

typedef struct LayoutUnit {
	Strategy strategy;
	int owner;                      /* rank, -1 = none */
	int n_flats;
	LayoutFlat flat[LAYOUT_MAX_FLATS];
	int grad_slot;                  /* shared slot of its flat gradient, -1 = a region of its own */
	bool own_region;                /* some gather of it has no ring slot */
	bool apart;                     /* its reduced gradient is a sum over micro-batches, in a place of its own */
} LayoutUnit;

/* The part of a flat that a rank updates and holds states for: elements [begin, begin + n) of the flat; of
 * them, those below numel are parameters or gaps between them.  n may be 0 (not the owner). */
typedef struct LayoutRange { int64_t begin, n; } LayoutRange;
LayoutRange layout_range(const LayoutUnit *u, int flat, const LayoutRank *who);

/* Whether this rank's part counts in sums over ranks (norms) and is written to checkpoints: of several
 * ranks that hold the same part, one does. */
bool layout_counts(const LayoutUnit *u, const LayoutRank *who);
/* What of a flat a rank writes to checkpoints: its elements where it counts, without what lies behind the last. */
LayoutRange layout_saved(const LayoutUnit *u, int flat, const LayoutRank *who);

/* Whether the unit's reduced gradient is its flat gradient itself (all_reduced in place, or one shard). */
bool layout_grad_stays(const LayoutUnit *u, const LayoutRank *who);

/* The dtype of the gradient that the update of this rank reads. */
DType layout_update_dtype(const LayoutUnit *u, int flat, const LayoutRank *who);

/* The part of an all_reduced range of n elements that member `me` folds and the others take from it. */
LayoutRange layout_piece(int64_t n, int64_t members, int64_t me);

/* ---- memory ---- */

/* What lies in a file (--offload): optimizer states and masters; also parameters at rest and the gradients that the
 * update reads.  Of GPUs it lies in pinned memory of the host, and gradients stay on the device. */
typedef enum LayoutOffload { LAYOUT_OFFLOAD_NONE, LAYOUT_OFFLOAD_OPTIM, LAYOUT_OFFLOAD_PARAMS } LayoutOffload;

typedef struct LayoutGather { int unit, slot; } LayoutGather; /* a gather into the ring, of step or eval */

/* Of programs for GPUs: what lies on the device beside the arenas, and in memory of the host that it reads. */
typedef struct LayoutCuda {
	bool on;
	bool staged;        /* ranks talk through memory of the host, which mirrors what they send */
	int64_t n_segments; /* trainable parameters */
	int64_t n_groups;   /* --param-group, without the two that all programs have */
} LayoutCuda;
enum {
	LAYOUT_CUDA_SEGMENT = 32, LAYOUT_CUDA_GROUP = 20,                            /* bytes of Segment, Group */
	LAYOUT_CUDA_STATE = 1024, LAYOUT_CUDA_INPUT = 256, LAYOUT_CUDA_OUTCOME = 512, /* of cuda/step.h, at most */
	LAYOUT_CUDA_BAD = 64,                                                        /* KBad, at most */
	LAYOUT_CUDA_CHUNKS = 1024,                                                   /* of a flat: K_FLAT_CHUNKS */
	LAYOUT_CUDA_MESSAGE = 2048,                                                  /* COMM_MAILBOX */
	LAYOUT_CUDA_SLOTS = 2,         /* of inputs, and of results */
	LAYOUT_CUDA_WINDOW = 16 << 20, /* at most: what tensors are sent through outside of steps */
	LAYOUT_CUDA_CARRIED = 64 << 20 /* windows of all ranks, at most, where they are on several hosts */
};

typedef struct LayoutModel {
	const LayoutUnit *unit;
	int n_units;
	const LayoutGather *gather;
	int n_gathers, n_slots, n_grad_slots;
	int n_states;      /* optimizer state tensors per trainable element (adamw: 2), all f32 */
	int64_t act_bytes, input_bytes, state_bytes, work_bytes;
	int64_t average_bytes; /* of buffers that are averaged over ranks before an eval or a save */
	int64_t saved_bytes;   /* of buffers, and of states that no unit has, in checkpoints */
	bool snapshot;         /* saves go on beside steps, from a copy in memory */
	int64_t hook_send, hook_keep; /* --comm-hook: bytes per element of a flat gradient, in send */
	int64_t sync_bytes; /* the largest message of a collective of batch norm statistics or buffers */
	int64_t hosts;     /* 0 or 1: ranks share memory */
	LayoutOffload offload;
	LayoutCuda cuda;   /* memory_complete's or the runtime's to fill */
} LayoutModel;

/* Bytes per category that the runtime maps; printed by plan and --print-plan. */
typedef struct LayoutMemory {
	int64_t params;      /* at rest: shards, or whole units */
	int64_t gathered;    /* ring slots and regions of units that stay gathered */
	int64_t grads;       /* flat gradients and reduced shards */
	int64_t send;        /* what is sent in another dtype than it lies in (gradients, broadcasts of a unit); hooks */
	int64_t states;      /* of the optimizer, and masters */
	int64_t buffers, inputs, activations, workspace;
	int64_t comm;        /* counters, mailboxes, staging, messages of layout_sync_bytes; of GPUs those messages alone */
	int64_t tables;      /* GPUs: lists that the update reads, the step's scalars, its next inputs */
	int64_t snapshot;    /* what a save beside the steps writes */
	int64_t total;
	/* In a file, so none of the above, which are 0 or less by them: */
	struct LayoutFile { int64_t params, grads, states, total; } file;
	/* GPUs: memory of the host, so none of the above: what --offload keeps there, and what a run has for itself, all of
	 * it pinned; what peers map. */
	struct LayoutHost { int64_t params, states, pinned, comm, snapshot, total; } host;
} LayoutMemory;
LayoutMemory layout_memory(const LayoutModel *m, const LayoutRank *who);
/* Of checkpoints, this rank's elements; a bound, since gaps between parameters count. */
int64_t layout_snapshot_bytes(const LayoutModel *m, const LayoutRank *who);
/* The rank that needs most (owners differ), the first of several: who->rank is ignored. */
int64_t layout_rank_most(const LayoutModel *m, const LayoutRank *who);
LayoutMemory layout_memory_most(const LayoutModel *m, const LayoutRank *who);

/* Byte offsets, in the arena of their category; -1 where a rank holds nothing.  What peers read lies at equal
 * offsets on all ranks: parameters at rest, flat gradients, what is sent; gathered flats, which a gather that
 * casts reads. */
typedef int64_t LayoutOffsets[LAYOUT_MAX_FLATS];
typedef struct LayoutPlaces {
	LayoutOffsets *param;       /* [unit]: at rest, in params; of what is offloaded: in that section of the file */
	LayoutOffsets *own;         /* [unit]: its own gathered region, in gathered */
	int64_t *slot;              /* [slot]: in gathered; a unit's flats follow each other, see layout_in_slot */
	LayoutOffsets *grad;        /* [unit]: flat gradient, in grads, or in the file where it stays */
	LayoutOffsets *grad_shard;  /* [unit]: what the update reads; = grad where layout_grad_stays; in grads or file */
	LayoutOffsets *state[2];    /* [unit]: in states */
	LayoutOffsets *master;      /* [unit]: in states */
	LayoutOffsets *send;        /* [unit]: gradients as they are sent, in send; -1: sent from where they lie */
	LayoutOffsets *bcast;       /* [unit]: the same of broadcasts */
	int64_t hook_send;          /* in send: a hook's scratch, of the largest flat */
	LayoutOffsets *hook_keep;   /* [unit]: in send: what a hook keeps */
} LayoutPlaces;
LayoutPlaces layout_places(const LayoutModel *m, const LayoutRank *who, Arena *a);
/* Bytes from the start of a slot (or own region) to the unit's gathered flat. */
int64_t layout_in_slot(const LayoutUnit *u, int flat, int64_t ranks);

/* Bytes of memory that ranks talk through: a counter page, mailboxes and, between hosts, staging. */
int64_t layout_comm_bytes(int64_t world, int64_t hosts);
/* Of its messages, in front of the parameters in memory that peers read. */
int64_t layout_sync_bytes(const LayoutModel *m, int64_t world);

/* ---- GPUs ---- */

/* Parts of LayoutMemory.tables, in this order: segments of every trainable flat, of the whole and of the part that is
 * updated here; groups; the step's state and the sums of all ranks; parts of a norm; the inputs of the next
 * micro-batch. */
typedef struct LayoutTables { int64_t segments, groups, state, norm, input; } LayoutTables;
LayoutTables layout_tables(const LayoutModel *m, int64_t world);
/* Of the host: what every rank has pinned for itself; the window, in memory that peers map, and behind it the mirrors
 * of parameters, gathered flats, sent copies and gradients where ranks talk through the host; or, behind it, the
 * windows of all ranks, where they are on several hosts. */
int64_t layout_cuda_pinned(const LayoutModel *m, int64_t world);
int64_t layout_cuda_window(const LayoutModel *m, const LayoutRank *who);

#ifdef __cplusplus
}
#endif

#endif
