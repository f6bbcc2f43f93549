/* base/layout.h: where every parameter, shard, gathered flat, gradient and state lies in memory, for any number of
 * ranks.
 *
 * Both the compiler (`shardc plan`, --memory-limit) and the runtime use it, so that the plan is exact.  Offsets inside
 * a flat count elements and are the same in every dtype.  A parameter starts at a multiple of 64 elements.  A rank's
 * shard of a flat over S ranks has round_up(ceil(numel / S), 64) elements, so a rank may hold only padding
 * (docs/sharding.md, Units; F20 and F22 of docs/compatibility.md say where that deviates).  Offsets of LayoutPlaces
 * count bytes from the start of an arena. */
#ifndef SHARDC_LAYOUT_H
#define SHARDC_LAYOUT_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LAYOUT_ALIGN = 64, LAYOUT_MAX_FLATS = 4 }; /* in elements; the most flats of a unit */
enum { LAYOUT_SCALE_BYTES = 64 }; /* from one scale of weights (symbols of SYM_SCALE) to the next */
enum { LAYOUT_SCALARS = 12 }; /* doubles in all_reduce_scalars: loss, weight, accuracy, norm, requests to the run */

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
 * Updates are computed in f32, and an f32 flat is updated in place.  Units with an owner whose broadcasts have 16 bits
 * are different: all ranks, the owner too, compute with values of 16 bits.  Their owner updates a master copy, which
 * lies beside its states, and every working copy is the master rounded to `bcast`. */
typedef struct LayoutFlat {
	DType dtype;           /* at rest: of the shards, or of the whole unit that every rank holds */
	bool trainable;
	int64_t numel;         /* from the first element to the end of the last parameter, including gaps */
	DType param;           /* as gathered, for forward and backward; each rank casts its shard once per gather */
	/* Only for trainable flats: */
	DType grad;            /* the flat gradient that backward writes */
	DType reduce;          /* what a reduction sends; if it differs from grad, the gradient is cast into the send
	                          buffer */
	DType kept;            /* the reduced gradient that the update reads, if it has a place of its own */
	DType bcast;           /* what the owner sends after an update */
	bool master;           /* bcast is 16-bit, and the rank that updates the flat keeps an f32 copy beside its states */
	bool away;             /* on GPUs: rests in host memory, so a gather first copies the rank's part to the device */
} LayoutFlat;
/* The initializer of a flat that has one dtype in all its roles. */
#define LAYOUT_FLAT(dtype, trainable, numel) {dtype, trainable, numel, dtype, dtype, dtype, dtype, dtype, false, false}
/* Whether a gather begins with a cast or a copy: each rank puts its own shard into the gathered flat, where its peers
 * read it. */
static inline bool layout_casts(const LayoutFlat *f) { return f->param != f->dtype || f->away; }
/* Whether the gathered flat has memory of its own.  A unit of one shard needs none: the shard is the gathered flat. */
static inline bool layout_is_gathered(const LayoutFlat *f, int64_t ranks)
{
	return ranks > 1 || layout_casts(f);
}

/* Whether some flat of a unit is gathered in 8 bits, so that the gather divides by scales. */
static inline bool layout_is_scaled(const LayoutFlat *f, int n)
{
	for (int i = 0; i < n; i++)
		if (dtype_is_scaled(f[i].param))
			return true;
	return false;
}

/* Offset of the parameter that follows one that ends at `end`. */
static inline int64_t layout_next(int64_t end) { return round_up(end, LAYOUT_ALIGN); }
/* Elements of one rank's shard, and of the gathered flat, which is as long as the shards of all ranks. */
static inline int64_t layout_shard_numel(int64_t numel, int64_t ranks)
{
	return round_up(ceil_div(numel, ranks), LAYOUT_ALIGN);
}
static inline int64_t layout_flat_numel(int64_t numel, int64_t ranks)
{
	return layout_shard_numel(numel, ranks) * ranks;
}

/* The rank that is asked about, the number of ranks, and for hybrid_shard the size of its groups of consecutive ranks,
 * which divides world. */
typedef struct LayoutRank { int64_t rank, world, shard_size; } LayoutRank;

/* How a strategy splits a unit: into `ranks` shards, of which this rank holds number `index`; `groups` groups of ranks
 * hold a copy each, and this rank is in number `group`. */
typedef struct LayoutSplit { int64_t ranks, index, group, groups; } LayoutSplit;
LayoutSplit layout_split(Strategy s, const LayoutRank *who);

/* What of a unit lies in a file: optimizer states and masters (OPTIM); also parameters at rest and the gradients that
 * the update reads (PARAMS).  On GPUs it lies in pinned host memory instead, and gradients stay on the device. */
typedef enum LayoutOffload { LAYOUT_OFFLOAD_NONE, LAYOUT_OFFLOAD_OPTIM, LAYOUT_OFFLOAD_PARAMS } LayoutOffload;
extern const char *const offload_text[3]; /* by LayoutOffload: "none", .. */
bool offload_from_text(const char *text, LayoutOffload *out);

typedef struct LayoutModel LayoutModel;
typedef struct LayoutUnit {
	Strategy strategy;
	int owner;                      /* a rank; -1 = none */
	int n_flats;
	LayoutFlat flat[LAYOUT_MAX_FLATS];
	int grad_slot;                  /* the shared slot for its flat gradient; -1 = it has a region of its own */
	bool own_region;                /* at least one gather of it uses no ring slot */
	bool apart;                     /* its reduced gradient is summed over micro-batches, in a place of its own */
	LayoutOffload offload;
	int64_t acts_free;              /* bytes at the end of the arena of activations that nothing else uses from the op
	                                   that begins its flat gradient to the end of the step */
} LayoutUnit;
/* Whether what a unit has of a category lies in the file or, of programs for GPUs (cuda), in memory of the host. */
static inline bool layout_params_away(const LayoutUnit *u) { return u->offload == LAYOUT_OFFLOAD_PARAMS; }
static inline bool layout_states_away(const LayoutUnit *u) { return u->offload != LAYOUT_OFFLOAD_NONE; }
static inline bool layout_grads_away(const LayoutUnit *u, bool cuda) { return !cuda && layout_params_away(u); }

/* The part of a flat that a rank updates and holds states for: elements [begin, begin + n).  Elements below numel are
 * parameters or gaps between them, the rest is padding.  n is 0 if another rank owns the flat. */
typedef struct LayoutRange { int64_t begin, n; } LayoutRange;
LayoutRange layout_range(const LayoutUnit *u, int flat, const LayoutRank *who);

/* Whether this rank's part is counted in sums over ranks (norms) and is written to checkpoints.  If several ranks hold
 * the same part, this is true of one of them. */
bool layout_counts(const LayoutUnit *u, const LayoutRank *who);
/* The elements of a flat that a rank writes to checkpoints, without padding at the end; none where layout_counts is
 * false. */
LayoutRange layout_saved(const LayoutUnit *u, int flat, const LayoutRank *who);

/* Whether the unit's flat gradient is also its reduced gradient: it is all_reduced in place, or there is one shard. */
bool layout_grad_stays(const LayoutUnit *u, const LayoutRank *who);

/* Whether the unit's flat gradient lies in the arena of activations, where some that it outlives were: where no peer
 * reads it, and it is begun anew in each step. */
bool layout_grad_over_acts(const LayoutModel *m, const LayoutUnit *u, const LayoutRank *who);
/* Whether it would if something were free there when it is begun, in a step of one micro-batch. */
bool layout_grad_may_lie_over_acts(const LayoutModel *m, const LayoutUnit *u, const LayoutRank *who);

int64_t layout_grad_bytes(const LayoutUnit *u, int64_t ranks); /* of a unit's flat gradients */

/* The dtype of the gradient that this rank's update reads. */
DType layout_update_dtype(const LayoutUnit *u, int flat, const LayoutRank *who);

/* An all_reduce of n elements is split among its members: the part that member `me` sums up and the others copy from
 * it. */
LayoutRange layout_piece(int64_t n, int64_t members, int64_t me);

/* ---- memory ---- */

typedef struct LayoutGather { int unit, slot; } LayoutGather; /* a gather into the ring, in a step or an evaluation */

/* For programs for GPUs: what lies on the device beside the arenas, and in host memory that the device reads. */
typedef struct LayoutCuda {
	bool on;
	bool staged;        /* ranks communicate through host memory, which mirrors what they send */
	int64_t n_segments; /* number of trainable parameters */
	int64_t n_groups;   /* number of --param-group options; the two groups that every program has are not counted */
} LayoutCuda;
enum {
	LAYOUT_CUDA_SEGMENT = 32, LAYOUT_CUDA_GROUP = 20,                            /* sizes in bytes of Segment and
	                                                                                Group */
	LAYOUT_CUDA_STATE = 1024, LAYOUT_CUDA_INPUT = 256, LAYOUT_CUDA_OUTCOME = 512, /* structs of cuda/step.h, at most */
	LAYOUT_CUDA_BAD = 64,                                                        /* KBad, at most */
	LAYOUT_CUDA_CHUNKS = 1024,                                                   /* chunks of a flat: K_FLAT_CHUNKS */
	LAYOUT_CUDA_MESSAGE = 2048,                                                  /* COMM_MAILBOX */
	LAYOUT_CUDA_SLOTS = 2,         /* buffers for inputs, and for results */
	LAYOUT_CUDA_WINDOW = 16 << 20, /* at most: memory through which tensors are sent outside of steps */
	LAYOUT_CUDA_CARRIED = 64 << 20 /* at most: windows of all ranks together, when they are on several hosts */
};

struct LayoutModel {
	const LayoutUnit *unit;
	int n_units;
	const LayoutGather *gather;
	int n_gathers, n_slots, n_grad_slots;
	bool brief;        /* units are updated in backward: a slot holds a unit's flat and reduced gradient until then */
	int n_states;      /* optimizer states per trainable element (adamw: 2), all f32 */
	int64_t act_bytes, input_bytes, state_bytes, work_bytes;
	int64_t host_bytes;    /* GPUs: activations that lie in memory of the host from forward to backward */
	int64_t average_bytes; /* buffers that are averaged over ranks before an evaluation or a save */
	int64_t saved_bytes;   /* in checkpoints: buffers, and states that belong to no unit */
	bool snapshot;         /* saves are written during the next steps, from a copy in memory */
	int64_t hook_send, hook_keep; /* --comm-hook: bytes in send, per element of a flat gradient */
	int64_t sync_bytes; /* the largest message of a collective of batch norm statistics or buffers */
	int64_t hosts;     /* 0 or 1: all ranks share memory */
	LayoutCuda cuda;   /* filled by memory_complete or by the runtime */
};
bool layout_offloads(const LayoutModel *m); /* some unit lies elsewhere, in part */

/* Bytes of each category that the runtime maps; printed by `shardc plan` and --print-plan. */
typedef struct LayoutMemory {
	int64_t params;      /* at rest: shards or whole units */
	int64_t gathered;    /* ring slots, and regions of units that stay gathered */
	int64_t grads;       /* flat gradients and reduced shards, without what lies in the memory of activations */
	int64_t grads_behind; /* of grads: bytes that follow the activations, in their arena */
	int64_t send;        /* copies that are sent in another dtype (gradients, broadcasts of one unit); memory of
	                        hooks */
	int64_t states;      /* optimizer states and masters */
	int64_t buffers, inputs, activations, workspace;
	int64_t comm;        /* counters, mailboxes, staging, messages of layout_sync_bytes; on GPUs only those messages */
	int64_t tables;      /* GPUs: tables that the update reads, the step's scalars, the next inputs */
	int64_t snapshot;    /* the copy from which a save is written during the next steps */
	int64_t total;
	/* Bytes in the offload file.  They are not counted above, where the same category is smaller by them. */
	struct LayoutFile { int64_t params, grads, states, total; } file;
	/* GPUs: bytes of host memory, which are not counted above.  Pinned: what --offload and --offload-acts keep there
	 * (params, states; activations) and what a run needs for itself (pinned).  comm: what peers map. */
	struct LayoutHost { int64_t params, states, activations, pinned, comm, snapshot, total; } host;
} LayoutMemory;
LayoutMemory layout_memory(const LayoutModel *m, const LayoutRank *who);
/* An upper bound of the bytes of this rank's elements in a checkpoint; gaps between parameters are counted. */
int64_t layout_snapshot_bytes(const LayoutModel *m, const LayoutRank *who);
/* The rank that needs the most memory (owners differ); the lowest one if there are several.  who->rank is ignored. */
int64_t layout_rank_most(const LayoutModel *m, const LayoutRank *who);
LayoutMemory layout_memory_most(const LayoutModel *m, const LayoutRank *who);

/* Byte offsets in the arena of a category; -1 where the rank holds nothing.  What peers read has the same offset on all
 * ranks: parameters at rest, flat gradients, what is sent, and gathered flats, which peers read when a gather casts. */
typedef int64_t LayoutOffsets[LAYOUT_MAX_FLATS];
typedef struct LayoutPlaces {
	LayoutOffsets *param;       /* [unit]: in params, at rest; or in that section of the file */
	LayoutOffsets *own;         /* [unit]: in gathered: the unit's own region */
	int64_t *slot;              /* [slot]: in gathered; the unit's flats follow each other (layout_in_slot) */
	LayoutOffsets *grad;        /* [unit]: in grads; in activations, if layout_grad_over_acts; or in the file, if it
	                               stays there */
	LayoutOffsets *grad_shard;  /* [unit]: in grads or the file: what the update reads; = grad if layout_grad_stays */
	LayoutOffsets *state[2];    /* [unit]: in states, or in that section of the file */
	LayoutOffsets *master;      /* [unit]: the same */
	LayoutOffsets *send;        /* [unit]: in send: gradients as they are sent; -1: they are sent from grads */
	LayoutOffsets *bcast;       /* [unit]: in send: the same for broadcasts */
	int64_t hook_send;          /* in send: a hook's scratch memory for the largest flat */
	LayoutOffsets *hook_keep;   /* [unit]: in send: what a hook keeps between steps */
} LayoutPlaces;
LayoutPlaces layout_places(const LayoutModel *m, const LayoutRank *who, Arena *a);
/* Bytes from the start of a slot, or of the unit's own region, to the given gathered flat. */
int64_t layout_in_slot(const LayoutUnit *u, int flat, int64_t ranks);

/* Bytes of the memory that ranks communicate through: a page of counters, mailboxes and, between hosts, staging
 * memory. */
int64_t layout_comm_bytes(int64_t world, int64_t hosts);
/* Bytes for the messages of collectives of statistics and buffers; they lie in front of the parameters, in memory that
 * peers read. */
int64_t layout_sync_bytes(const LayoutModel *m, int64_t world);

/* ---- GPUs ---- */

/* The parts of LayoutMemory.tables, in this order: segments of every trainable flat, both whole and cut to the part
 * that is updated here; groups; the step's state and the sums over all ranks; partial sums of a norm; the inputs of the
 * next micro-batch. */
typedef struct LayoutTables { int64_t segments, groups, state, norm, input; } LayoutTables;
LayoutTables layout_tables(const LayoutModel *m, int64_t world);
/* Host memory.  layout_cuda_pinned: bytes that every rank pins for itself.  layout_cuda_window: bytes of the window,
 * which lies in memory that peers map.  Behind the window lie mirrors of parameters, gathered flats, sent copies and
 * gradients if ranks communicate through host memory; or, if ranks are on several hosts, the windows of all ranks. */
int64_t layout_cuda_pinned(const LayoutModel *m, int64_t world);
int64_t layout_cuda_window(const LayoutModel *m, const LayoutRank *who);

#ifdef __cplusplus
}
#endif

#endif
