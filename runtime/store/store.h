/* runtime/store/store.h: what lies on a disk: weights, and checkpoints: what this rank holds of one, how it is written,
 * beside steps or between them, and how a run goes on from it.
 *
 *   weights.c    first contents of all tensors; full.c: whole tensors for a caller of the library
 *   holdings.c   which elements of which tensors this rank holds, and the files that it writes
 *   save.c       the folder, and a save that all ranks wait for; save_text.c: state.json, index.json
 *   snapshot.c   a save beside the steps: a copy in memory, and a thread that writes it
 *   places.c     whether all ranks see the folder; gather.c: what to do where they do not
 *   folder.c     what lies in the folder of --save, and whose it is; tidy.c: what goes from it
 *   resume.c     a checkpoint back into a run; resume_find.c: which */
#ifndef SHARDC_RUNTIME_STORE_H
#define SHARDC_RUNTIME_STORE_H

#include "base/safetensors.h"
#include "runtime/exec/exec.h"

/* ---- weights.c ---- */

/* Which tensors get their first contents: all, or all but what a checkpoint holds.  All ranks call it. */
bool weights_load(const Rt *rt, bool from_checkpoint, Diag *d);

/* ---- full.c: whole parameters and buffers outside a step ---- */

typedef struct FullParams FullParams;
/* Copies of all parameters and buffers; rank0: only there, others get no copies but take part.  All ranks call both,
 * between steps, with the same arguments.  NULL after a message, on all ranks: there is no memory for them. */
FullParams *full_begin(const Rt *rt, bool writeback, bool rank0, Diag *d);
char *full_at(const FullParams *full, int tensor); /* NULL: none, or not on this rank */
/* Frees the copies; with writeback, and if put, what this rank holds is put back.  False after a message, on all ranks:
 * ranks that hold the same elements wrote different ones, and nothing was put back. */
bool full_end(const Rt *rt, FullParams *full, bool put, Diag *d);

/* ---- holdings.c ---- */

/* A tensor of a section, or of a file, and what of it this rank holds: Slice.first counts from the tensor's start. */
typedef struct SavePart {
	const RtTensor *t;           /* of sections: which tensor, or whose state */
	bool of_state;
	int only;                    /* rank whose own it is; -1: any that holds it */
	Slice slice, master;         /* of sections: where a resume puts them */
	Slice source;                /* where a save finds them */
	bool writes;                 /* of several ranks that hold them, this one */
} SavePart;
typedef struct SaveFile { const char *name; SafeTensor *at; SavePart *part; int n; } SaveFile;
typedef struct Snapshot Snapshot;
typedef struct SaveSet {
	SaveFile section[CHECKPOINT_SECTIONS]; /* whole tensors, the same on all ranks; n = 0: there is no such section */
	SaveFile file[CHECKPOINT_SECTIONS];    /* what this rank writes, by kind; of kind full the sections */
	CheckpointKind kind;
	bool own_files;              /* no other rank writes into these files */
	Snapshot *snapshot;          /* NULL: saves are waited for */
	Rt *rt;
	Arena *arena;
} SaveSet;
/* With the memory of rt mapped; lives in a.  kind: --save-kind. */
void save_init(SaveSet *c, Rt *rt, Arena *a);

/* ---- save.c ---- */

/* Writes DIR/step-NNNNNNNN and moves DIR/latest; on failure of any rank the older ones are as they were, and all ranks
 * know.  All ranks call it, between steps. */
bool save_run(const SaveSet *c, const Progress *p, Diag *d);

/* ---- places.c ---- */

/* Whose folder of --save each rank sees: lead[r] is the lowest rank that sees rank r's; lead NULL: rank
 * 0's.  gathers: of kind full, where some do not see rank 0's: rank 0 writes all.  run: a number of this run. */
typedef struct SavePlaces { int *lead; int n; bool gathers; uint64_t run; } SavePlaces;
/* When rank 0 has its folder.  All ranks call it; false after a message.  Lives in a. */
bool places_find(SavePlaces *p, const Rt *rt, Arena *a, Diag *d);
/* Whether this rank makes and completes the checkpoint's folder that it sees. */
bool places_leads(const Rt *rt);

/* ---- snapshot.c ---- */

/* Of the save under way beside the steps, this rank's part: its files are being written; are on the disk; could not be
 * written. */
typedef enum SaveState { SAVE_NONE, SAVE_WRITING, SAVE_WRITTEN, SAVE_FAILED } SaveState;
SaveState save_state(const Rt *rt);
/* What save_init adds: memory, and copies of c->file that find their elements there. */
bool snapshot_open(SaveSet *c, Diag *d);
void snapshot_close(SaveSet *c);
/* Begins a save of what is in memory now: copies it and lets a thread write the copy.  Nothing may be under way.  All
 * ranks call it, between steps; false: the folder could not be made, which was said. */
bool snapshot_begin(SaveSet *c, const Progress *p, Diag *d);
/* Told on all ranks at the same step, when all have written: rank 0 completes the checkpoint beside the steps. */
void snapshot_all_written(SaveSet *c);
/* Waits for what is under way.  False after a message; then it was dropped.  All ranks call it and know. */
bool snapshot_end(SaveSet *c, Diag *d);

/* ---- folder.c ---- */

/* Of rank 0, from before the first step on: the folder of --save, made and locked for this process.  False after a
 * message: it is another run's. */
typedef struct RunFolder { int fd; const char *made; } RunFolder; /* fd -1: not open */
bool folder_open(RunFolder *f, const Rt *rt, int64_t first_step, Diag *d);
void folder_close(RunFolder *f);

/* ---- resume.c ---- */

/* The folder of the checkpoint that --resume means, NULL without a message: none (auto); progress, and the flags that
 * were not given. */
bool resume_begin(const Rt *rt, RtOptions *o, const char **dir, Progress *p, Diag *d);
bool resume_is_strict(const RtOptions *o); /* --strict */
bool resume_load(const SaveSet *c, const char *dir, Arena *a, Diag *d);

#endif
