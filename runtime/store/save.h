/* runtime/store/save.h: checkpoints: what this rank holds of one, how it is written, beside steps or between them.
 *
 *   holdings.c    which elements of which tensors this rank holds, and the files that it writes
 *   save_text.c   state.json, index.json
 *   save.c        the folder, and a save that all ranks wait for
 *   places.c      whether all ranks see the folder; gather.c: what to do where they do not
 *   snapshot.c    a save beside the steps: a copy in memory, and a thread that writes it
 *   tidy.c        what goes from the folder of --save
 *   folder.c      what lies in the folder of --save, and whose it is */
#ifndef SHARDC_RUNTIME_SAVE_H
#define SHARDC_RUNTIME_SAVE_H

#include "runtime/internal.h"

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
struct SaveSet {
	SaveFile section[CHECKPOINT_SECTIONS]; /* whole tensors, the same on all ranks; n = 0: there is no such section */
	SaveFile file[CHECKPOINT_SECTIONS];    /* what this rank writes, by kind; of kind full the sections */
	CheckpointKind kind;
	bool own_files;              /* no other rank writes into these files */
	Snapshot *snapshot;          /* NULL: saves are waited for */
	Rt *rt;
	Arena *arena;
};
/* With the memory of rt mapped; lives in a.  kind: --save-kind. */
void save_init(SaveSet *c, Rt *rt, Arena *a);

/* ---- save_text.c ---- */

void save_put_state(Buf *b, const SaveSet *c, const Progress *p);
/* Of kinds sharded and local: what all ranks write. */
void save_put_index(Buf *b, const SaveSet *c);

/* ---- save.c ---- */

/* Writes DIR/step-NNNNNNNN and moves DIR/latest; on failure of any rank the older ones are as they were, and all ranks
 * know.  All ranks call it, between steps. */
bool save_run(const SaveSet *c, const Progress *p, Diag *d);
/* Paths within one save; a is its scratch.  moved: goes up with each piece of bounded size that was written and each
 * sync, for who waits for the thread that saves; NULL: this thread tells the watchdog itself (agree_alive). */
typedef struct SavePaths {
	Arena *a;
	const char *dir, *temp, *final, *name;
	const Rt *rt;
	_Atomic int64_t *moved;
} SavePaths;
SavePaths save_paths(Arena *a, const Rt *rt, int64_t step);
/* A file being written.  unsynced: bytes that the disk was not yet told to begin on. */
typedef struct SaveWriting { int fd; const SavePaths *at; int64_t unsynced; } SaveWriting;
/* So many bytes more: tells the watchdog, and the disk now and then.  False: the disk failed, errno tells. */
bool save_has_written(SaveWriting *w, int64_t bytes);
/* Parts of a save.  False after a message. */
bool save_make_folder(const SavePaths *at, Diag *d);
/* checkpoint_has_file of this rank. */
bool save_has_file(const SaveSet *c, int section);
bool save_write_file(const SaveSet *c, const SavePaths *at, SaveFile *f, Diag *d);
/* Who leads, when all files are there: what makes it a checkpoint.  index: "" where there is none. */
bool save_complete(const SavePaths *at, const char *state, const char *index, int64_t keep, Diag *d);
/* All ranks know that it is complete on all: of several folders older checkpoints go only now. */
void save_ended(const SavePaths *at);
/* A write of bounded size, or a sync, has ended: a disk that is slow is told from one that hangs by it.  Returns ok. */
bool save_moved(const SavePaths *at, bool ok);
void save_drop(const SavePaths *at); /* rank 0: removes what was begun */
bool save_make_dir(Arena *a, const char *path); /* and those above it; errno tells */

/* ---- places.c ---- */

/* When rank 0 has its folder.  All ranks call it; false after a message.  Lives in a. */
bool places_find(SavePlaces *p, const Rt *rt, Arena *a, Diag *d);
/* Makes and removes a file of some bytes in the folder that this rank sees; false: errno tells. */
bool places_try(const Rt *rt, Arena *a);
/* A file by which a folder is tried: a run that was killed may have left it. */
bool places_is_token(const char *name);
/* Whether this rank makes and completes the checkpoint's folder that it sees. */
bool places_leads(const Rt *rt);

/* ---- gather.c ---- */

/* Where not all ranks see rank 0's folder: it gets what they hold, piece by piece, writes it into its files and sets
 * their checksums.  All ranks call it; false after a message. */
bool gather_files(const SaveSet *c, const SavePaths *at, Diag *d);

/* ---- resume_find.c ---- */

/* state.json of the checkpoint that --resume means, and its folder, which all ranks go on from; NULL after a message;
 * *dir NULL: there is none (auto).  All ranks call it. */
char *resume_find(const Rt *rt, RtOptions *o, const char **dir, Diag *d);
/* Whether rank 0 reads for all: --sync-init, or the others do not see what it found. */
bool resume_is_sync(const Rt *rt);

/* ---- snapshot.c ---- */

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

/* ---- tidy.c ---- */

/* Whether a folder, which no link leads to, is a checkpoint of this model; begun: or has files of one alone, and no
 * state.json that names another model. */
bool tidy_may_go(const char *path, const RtModel *m, bool begun);
/* Removes at->temp: what a save began, or what it took the place of.  False: errno tells why it is still there. */
bool tidy_begun(const SavePaths *at);
/* Removes what killed runs left half-written, and all but the newest `keep` checkpoints of this model up to this step
 * (later ones are of another run); keep 0: all are kept. */
void tidy_keep(const SavePaths *at, int64_t keep);

/* ---- folder.c ---- */

/* The newest complete checkpoint of a folder, by its headers and index; NULL: there is none.  Says which newer ones it
 * passes over.  Lives in a. */
const char *folder_newest(const char *dir, Arena *a, Diag *d);
/* Of rank 0, from before the first step on: the folder of --save, made and locked for this process.  False after a
 * message: it is another run's. */
typedef struct RunFolder { int fd; const char *made; } RunFolder; /* fd -1: not open */
bool folder_open(RunFolder *f, const Rt *rt, int64_t first_step, Diag *d);
void folder_close(RunFolder *f);

#endif
