/* ckpt/convert.h: a checkpoint becomes one of another kind, or for another number of ranks. */
#ifndef SHARDC_CKPT_CONVERT_H
#define SHARDC_CKPT_CONVERT_H

#include "ckpt/cut.h"
#include "ckpt/output.h"

typedef struct ConvertTo {
	CheckpointKind kind;
	int64_t world;      /* 0: as many ranks as the checkpoint's */
	int64_t shard_size; /* of hybrid_shard; 0: the checkpoint's where it divides world */
} ConvertTo;

/* What is written, planned: files of every rank and section, which may be empty, index.json and state.json. */
typedef struct Convert {
	Arena *a;
	const Checkpoint *c;
	Cut *cut;
	ConvertTo to;
	OutputFile **file[CHECKPOINT_SECTIONS]; /* [rank]; one of kind full */
	CheckpointIndex index;
	json_t *state;
	bool drops_own;     /* ranks' own buffers are of another number of ranks */
	Diag *d;
} Convert;

/* False after messages, all that were found.  convert_free in any case. */
bool convert_plan(Convert *v, const Checkpoint *c, ConvertTo to, Arena *a, Diag *d);
/* Into a folder that output_is_free. */
bool convert_write(Convert *v, const char *path);
void convert_free(Convert *v);

#endif
