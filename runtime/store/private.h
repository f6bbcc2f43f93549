/* runtime/store/private.h: what files of store know of each other. */
#ifndef SHARDC_RUNTIME_STORE_PRIVATE_H
#define SHARDC_RUNTIME_STORE_PRIVATE_H

#include "runtime/store/store.h"

/* ---- init.c ---- */

/* Random elements of a tensor that has RtTensor.init (init.c). */
void init_random(const RtTensor *t, const Slice *s);

/* ---- save_text.c ---- */

void save_put_state(Buf *b, const SaveSet *c, const Progress *p);
/* Of kinds sharded and local: what all ranks write. */
void save_put_index(Buf *b, const SaveSet *c);

/* ---- save.c ---- */

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

const SavePlaces *places_of(const Rt *rt); /* never NULL */
/* Makes and removes a file of some bytes in the folder that this rank sees; false: errno tells. */
bool places_try(const Rt *rt, Arena *a);
/* A file by which a folder is tried: a run that was killed may have left it. */
bool places_is_token(const char *name);
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

#endif
