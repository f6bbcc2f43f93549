/* runtime/store/store.h: files of weights and checkpoints: what this rank holds of a checkpoint, how it is written,
 * beside steps or between them, and how a run continues from it.
 *
 *   weights.c    first contents of all tensors; full.c: whole tensors for a caller of the library
 *   holdings.c   which elements of which tensors this rank holds, and the files that it writes
 *   save.c       the folder, and a save that all ranks wait for; save_text.c: state.json, index.json
 *   snapshot.c   a save beside the steps: a copy in memory, and a thread that writes it
 *   places.c     whether all ranks see the folder; gather.c: what to do where they do not
 *   folder.c     what lies in the folder of --save, and whose it is; tidy.c: what goes from it
 *   resume.c     a checkpoint back into a run; resume_find.c: which
 *
 * A function takes the parts of a run that it needs; those that take the whole run (Rt, SaveSet.rt) move the elements
 * of tensors, agree with other ranks or set what a checkpoint says of the run, and exec's functions for that (slice_*,
 * device_*, staging_*, agree_end, hyper_from) take the run. */
#ifndef SHARDC_RUNTIME_STORE_H
#define SHARDC_RUNTIME_STORE_H

#include "base/safetensors.h"
#include "runtime/exec/exec.h"

/* ---- weights.c ---- */

/* Gives all tensors their initial contents; with from_checkpoint, only those that no checkpoint holds.  All ranks call
 * it. False after a message. */
bool weights_load(const Rt *rt, bool from_checkpoint, Diag *d);

/* ---- full.c: whole parameters and buffers outside a step ---- */

typedef struct FullParams FullParams;
/* Makes copies of all parameters and buffers; rank0: only rank 0 gets them, and the others take part.  All ranks call
 * full_begin and full_end, between steps, with the same arguments.  NULL after a message, on all ranks: memory is
 * short. */
FullParams *full_begin(const Rt *rt, bool writeback, bool rank0, Diag *d);
char *full_at(const FullParams *full, int tensor); /* a copy; NULL: this rank has none of this tensor */
/* Frees the copies; with writeback and `put`, first puts back the elements that this rank holds.  False after a
 * message, on all ranks: ranks that hold the same elements wrote different values, and nothing was put back. */
bool full_end(const Rt *rt, FullParams *full, bool put, Diag *d);

/* ---- holdings.c ---- */

/* A tensor of a section or of a file, and the part that this rank holds: Slice.first counts from the tensor's start. */
typedef struct SavePart {
	const RtTensor *t;           /* of sections: the tensor, or the one whose state it is */
	bool of_state;
	int only;                    /* the only rank that has it; -1: any rank that holds it */
	Slice slice, master;         /* of sections: where a resume puts them */
	Slice source;                /* where a save finds them */
	bool writes;                 /* this rank writes it, possibly as one of several that hold it */
} SavePart;
typedef struct SaveFile { const char *name; SafeTensor *at; SavePart *part; int n; } SaveFile;
typedef struct Snapshot Snapshot;
typedef struct SaveSet {
	SaveFile section[CHECKPOINT_SECTIONS]; /* whole tensors, the same list on all ranks; n = 0: there is no such
	                                        * section */
	SaveFile file[CHECKPOINT_SECTIONS];    /* the files that this rank writes for this kind; for kind full, the
	                                        * sections */
	CheckpointKind kind;
	bool own_files;              /* no other rank writes into these files */
	Snapshot *snapshot;          /* NULL: saves do not go on beside steps */
	Rt *rt;
	Arena *arena;
} SaveSet;
/* Called once the memory of rt is mapped; allocates in a.  The kind is that of --save-kind. */
void save_init(SaveSet *c, Rt *rt, Arena *a);

/* ---- save.c ---- */

/* Writes DIR/step-NNNNNNNN and moves DIR/latest.  False on all ranks if any rank fails: then older checkpoints are as
 * they were.  All ranks call it, between steps. */
bool save_run(const SaveSet *c, const Progress *p, Diag *d);

/* ---- places.c ---- */

/* Which ranks see the same folder of --save: lead[r] is the lowest rank that sees the folder of rank r; lead NULL: all
 * see rank 0's.  gathers: some ranks do not see rank 0's folder and the kind is full, so rank 0 writes everything.
 * run: a random number that names this run. */
typedef struct SavePlaces { int *lead; int n; bool gathers; uint64_t run; } SavePlaces;
/* Called once rank 0 has its folder; allocates in a.  All ranks call it; false after a message. */
bool places_find(SavePlaces *p, const Rt *rt, Arena *a, Diag *d);
/* Whether this rank makes and completes the checkpoint's folder that it sees.  p NULL: all see rank 0's. */
bool places_leads(const SavePlaces *p, const World *w);

/* ---- snapshot.c ---- */

/* This rank's part of the save under way beside the steps: there is none; its files are being written; are on the disk;
 * could not be written. */
typedef enum SaveState { SAVE_NONE, SAVE_WRITING, SAVE_WRITTEN, SAVE_FAILED } SaveState;
SaveState save_state(const Snapshot *s); /* NULL: saves do not go on beside steps */
/* Called after save_init: maps memory for the copy, and makes copies of c->file whose elements are found there. */
bool snapshot_open(SaveSet *c, Diag *d);
void snapshot_close(SaveSet *c);
/* Begins a save of what is in memory now: copies it and lets a thread write the copy.  No save may be under way.  All
 * ranks call it, between steps; false after a message: the folder could not be made. */
bool snapshot_begin(SaveSet *c, const Progress *p, Diag *d);
/* Called on all ranks after the same step, when all have written: rank 0 completes the checkpoint beside the steps. */
void snapshot_all_written(SaveSet *c);
/* Waits for the save under way.  False after a message, on all ranks: the save was dropped.  All ranks call it. */
bool snapshot_end(SaveSet *c, Diag *d);

/* ---- folder.c ---- */

/* Called by rank 0 before the first step, and by other ranks that lead: makes the folder of --save and locks it for
 * this process.  parts_are_newer: a later checkpoint of this model that is one host's part does not count as another
 * run's (RtPrivate).  False after a message: it belongs to another run, or cannot be written. */
typedef struct RunFolder { int fd; const char *made; } RunFolder; /* fd -1: not open */
bool folder_open(
	RunFolder *f, const RtOptions *o, const RtModel *m, int64_t first_step, bool parts_are_newer, Diag *d);
void folder_close(RunFolder *f);

/* ---- resume.c ---- */

/* Finds the checkpoint that --resume means, and sets *dir to its folder, *p, and the flags that were not given.  *dir
 * NULL: there is none (auto). False after a message. */
bool resume_begin(const Rt *rt, RtOptions *o, const char **dir, Progress *p, Diag *d);
bool resume_is_strict(const RtOptions *o); /* --strict */
bool resume_load(const SaveSet *c, const char *dir, Arena *a, Diag *d);

#endif
