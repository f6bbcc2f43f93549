/* ckpt/convert.h: converts a checkpoint to another kind or another number of ranks. */
#ifndef SHARDC_CKPT_CONVERT_H
#define SHARDC_CKPT_CONVERT_H

#include "ckpt/cut.h"
#include "ckpt/output.h"

typedef struct ConvertTo {
	CheckpointKind kind;
	int64_t world;      /* 0: as many ranks as the checkpoint has */
	int64_t shard_size; /* for hybrid_shard; 0: the checkpoint's if it divides world */
} ConvertTo;

/* The plan of what is written: a file for each rank and section, which may be empty; index.json and state.json. */
typedef struct Convert {
	Arena *a;
	const Checkpoint *c;
	Cut *cut;
	ConvertTo to;
	OutputFile **file[CHECKPOINT_SECTIONS]; /* [rank]; a single file for kind full */
	CheckpointIndex index;
	json_t *state;
	bool drops_own;     /* buffers of single ranks are left out, because the number of ranks changes */
	Diag *d;
} Convert;

/* Plans the conversion.  False after errors; all that are found are reported.  Call convert_free in any case. */
bool convert_plan(Convert *v, const Checkpoint *c, ConvertTo to, Arena *a, Diag *d);
/* Writes the plan into a folder for which output_is_free is true. */
bool convert_write(Convert *v, const char *path);
void convert_free(Convert *v);

#endif
