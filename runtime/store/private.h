/* runtime/store/private.h: what the files of store share. */
#ifndef SHARDC_RUNTIME_STORE_PRIVATE_H
#define SHARDC_RUNTIME_STORE_PRIVATE_H

#include "runtime/store/store.h"

/* ---- init.c ---- */

/* Makes the random elements of a slice of a tensor that has RtTensor.init. */
void init_random(const RtTensor *t, const Slice *s);

/* ---- save_text.c ---- */

void save_put_state(Buf *b, const SaveSet *c, const Progress *p);
/* index.json of kinds sharded and local: what all ranks write. */
void save_put_index(Buf *b, const SaveSet *c);

/* ---- save.c ---- */

/* Paths of one save; a is its scratch memory.  model: whose checkpoints a save may replace and remove.  moved:
 * increases with each piece of bounded size that was written and with each sync, for the thread that waits for the
 * saving thread; NULL: the saving thread tells the watchdog itself (agree_alive, through `control`). */
typedef struct SavePaths {
	Arena *a;
	const char *dir, *temp, *final, *name;
	const RtModel *model;
	Control *control;
	_Atomic int64_t *moved;
} SavePaths;
SavePaths save_paths(const SaveSet *c, Arena *a, int64_t step);
/* A file that is being written.  unsynced: bytes whose writing to the disk has not been started. */
typedef struct SaveWriting { int fd; const SavePaths *at; int64_t unsynced; } SaveWriting;
/* Called after `bytes` more were written: tells the watchdog, and from time to time starts writing to the disk.  False:
 * the disk failed; errno is set. */
bool save_has_written(SaveWriting *w, int64_t bytes);
bool save_leads(const SaveSet *c); /* places_leads */
/* These are parts of a save.  False after a message. */
bool save_make_folder(const SavePaths *at, Diag *d);
/* checkpoint_has_file for this rank. */
bool save_has_file(const SaveSet *c, int section);
bool save_write_file(const SaveSet *c, const SavePaths *at, SaveFile *f, Diag *d);
/* Called by the rank that leads, when all files are there: writes what makes the folder a checkpoint.  index: "" where
 * there is none. */
bool save_complete(const SaveSet *c, const SavePaths *at, const char *state, const char *index, Diag *d);
/* Called when all ranks know that the checkpoint is complete on all: if hosts have folders of their own, older
 * checkpoints are removed only now. */
void save_ended(const SaveSet *c, const SavePaths *at);
/* Called after a write of bounded size or a sync, so that the watchdog can tell a slow disk from one that hangs.
 * Returns ok. */
bool save_moved(const SavePaths *at, bool ok);
void save_drop(const SavePaths *at); /* called by rank 0: removes what was begun */
bool save_make_dir(Arena *a, const char *path); /* also makes the folders above it; false: errno is set */

/* ---- places.c ---- */

/* p NULL: all ranks see rank 0's folder. */
bool places_are_several(const SavePlaces *p); /* whether ranks save into several folders */
bool places_gather(const SavePlaces *p);      /* SavePlaces.gathers */
/* Makes and removes a file of some bytes in the folder; false: errno is set. */
bool places_try(const char *dir, Arena *a);
/* Whether a file has the name of those by which folders are tried; a killed run may have left one. */
bool places_is_token(const char *name);
/* ---- gather.c ---- */

/* Called where not all ranks see rank 0's folder: rank 0 gets what they hold, piece by piece, writes it into its files
 * and sets their checksums.  All ranks call it; false after a message. */
bool gather_files(const SaveSet *c, const SavePaths *at, Diag *d);

/* ---- resume_find.c ---- */

/* A search for a checkpoint.  The options are the run's, where what is found sets --sync-init; control: NULL at one
 * rank; parts_are_newer becomes true as RtPrivate's does. */
typedef struct Finding { RtOptions *o; const World *world; Control *control; bool parts_are_newer; } Finding;
/* Returns state.json of the checkpoint that --resume means, and sets *dir to its folder; all ranks continue from the
 * same one.  NULL after a message, or without one and *dir NULL: there is none (auto).  All ranks call it. */
char *resume_find(Finding *f, const char **dir, Diag *d);
/* Whether rank 0 reads for all: because of --sync-init, or because the others do not see what it found.  control: as in
 * Finding. */
bool resume_is_sync(const RtOptions *o, const World *w, const Control *control);

/* ---- tidy.c ---- */

/* Whether a folder, not reached through a link, is a checkpoint of this model.  begun: it may also have just files of a
 * checkpoint and no state.json that names another model. */
bool tidy_may_go(const char *path, const RtModel *m, bool begun);
/* Removes at->temp, which holds what a save began or what it replaced.  False: it is still there, and errno is set. */
bool tidy_begun(const SavePaths *at);
/* Removes what killed runs left half-written, and all but the newest `keep` checkpoints of this model up to this step
 * (later ones belong to another run); keep 0: keeps all. */
void tidy_keep(const SavePaths *at, int64_t keep);

/* ---- folder.c ---- */

/* The newest checkpoint of a folder that its headers and index show to be complete, allocated in a; NULL: there is
 * none. Notes which newer ones it passes over. */
const char *folder_newest(const char *dir, Arena *a, Diag *d);

#endif
