/* base/checkpoint.h: a checkpoint's folder, read: named tensors, each in pieces of files (docs/checkpoints.md).
 *
 * Of kind full a tensor is one piece, the tensor of its name in model.safetensors or optim.safetensors.  Of kinds
 * sharded and local index.json says where its pieces are.  Whoever reads elements need not know which it is. */
#ifndef SHARDC_CHECKPOINT_H
#define SHARDC_CHECKPOINT_H

#include <jansson.h>

#include "base/safetensors.h"

enum { CHECKPOINT_MAX_RANKS = 99999 }; /* names of files have five digits for a rank */
typedef enum CheckpointKind { CHECKPOINT_FULL, CHECKPOINT_SHARDED, CHECKPOINT_LOCAL, CHECKPOINT_KINDS } CheckpointKind;
extern const char *const checkpoint_kinds[CHECKPOINT_KINDS];
/* What a tensor belongs to: parameters and averaged buffers; the optimizer's states, "PARAMETER.exp_avg"; every rank's
 * own buffers, "rank3/BUFFER". */
typedef enum CheckpointSection {
	CHECKPOINT_MODEL, CHECKPOINT_OPTIM, CHECKPOINT_OWN, CHECKPOINT_SECTIONS
} CheckpointSection;
/* "model", "optim", "buffers-rank": keys of index.json, and names of files: of kind full NAME.safetensors, of the
 * others NAME-00003-of-00008.safetensors (checkpoint_file). */
extern const char *const checkpoint_sections[CHECKPOINT_SECTIONS];
const char *checkpoint_file(Arena *a, CheckpointSection s, CheckpointKind kind, int64_t rank, int64_t world);
/* Whether a rank that writes n tensors of a section makes a file of them: of kind full also of none, as an optimizer
 * without states has. */
bool checkpoint_has_file(CheckpointKind kind, CheckpointSection s, int n);
/* "step-00000100", and whether a name is one. */
const char *checkpoint_name(Arena *a, int64_t step);
bool checkpoint_is_name(const char *s, int64_t *step);

/* Elements [first, first + n) of a tensor are elements [at, at + n) of a tensor of a file. */
typedef struct CheckpointPiece {
	const char *name;       /* of the file, without a folder */
	const SafeFile *file;   /* NULL, and `in` too: it lies in another host's folder (checkpoint_open_here) */
	const SafeTensor *in;
	int64_t at, first, n;
} CheckpointPiece;
typedef struct CheckpointTensor {
	const char *name;
	DType dtype;
	int rank;
	int64_t dim[SAFETENSORS_MAX_RANK], numel;
	CheckpointPiece *piece; /* by rising `first`; they cover the tensor exactly */
	int n_pieces;
} CheckpointTensor;
/* As index.json or a file's header lists them. */
typedef struct CheckpointList { CheckpointTensor *at; int n; Map *by_name; } CheckpointList;

typedef struct Checkpoint {
	const char *dir;        /* or the one file */
	CheckpointKind kind;
	json_t *state;          /* state.json, without its checksums; NULL of one file */
	json_t *layout;         /* its "layout" */
	json_t *part;           /* its "part": it lies in several hosts' folders; NULL: in one, or put together */
	CheckpointList section[CHECKPOINT_SECTIONS];
	SafeFile **files;       /* all that were opened */
	int n_files;
} Checkpoint;

/* Whether a folder has state.json: what is written last. */
bool checkpoint_is_folder(const char *dir, Arena *a);
/* Reads and checks state.json, index.json and every file's header: what it gives names bytes that are there, and no
 * file is missing.  NULL after messages to d, all that were found.  Lives in a until checkpoint_close. */
Checkpoint *checkpoint_open(Arena *a, const char *dir, Diag *d);
/* The same, or of one that lies in several hosts' folders the files that this folder has to have: other pieces have no
 * file.  loose: of kind full all files but the model's may be missing: such a section is empty. */
Checkpoint *checkpoint_open_here(Arena *a, const char *dir, bool loose, Diag *d);
/* One that lies in several hosts' folders, put together: they are of one save, and no file is missing. */
Checkpoint *checkpoint_open_parts(Arena *a, const char *const *dirs, int n, Diag *d);
/* One safetensors file: its tensors are section model of a folder of kind full that has no state. */
Checkpoint *checkpoint_open_file(Arena *a, const char *path, Diag *d);
void checkpoint_close(Checkpoint *c);
/* The text of a state.json, compared with its checksum, where it has one, and without that.  NULL after a message; else
 * the caller's to give back. */
json_t *checkpoint_state(const char *text, const char *path, Diag *d);
const CheckpointTensor *checkpoint_find(const Checkpoint *c, CheckpointSection s, const char *name);
/* Elements [first, first + n), as they lie in files, piece by piece: use(context, from, first, n), from: n elements
 * of the tensor's dtype, aligned to nothing.  Pieces without a file are passed over. */
typedef void CheckpointUse(void *context, const char *from, int64_t first, int64_t n);
void checkpoint_read(const CheckpointTensor *t, int64_t first, int64_t n, CheckpointUse *use, void *context);
/* Checksums of the files' tensors of which `index` modulo `of` is this one's: of a team that shares the work each
 * member has its own index.  False after messages, all that were found. */
bool checkpoint_verify(const Checkpoint *c, int64_t index, int64_t of, bool release, Diag *d);

/* ---- state.json and index.json, written ---- */

/* Appends to out what state.json is written as: `state`, an object of several lines, with its checksum and that of
 * `index`, "" where there is none. */
void checkpoint_seal(Buf *out, const char *state, const char *index);

typedef struct CheckpointSlice { const char *file, *tensor; int64_t at, first, n; } CheckpointSlice;
/* begin, then each section with its tensors, then end; the text is in b, of kinds sharded and local.
 *	checkpoint_index_begin(&i, kind);
 *	checkpoint_index_section(&i, CHECKPOINT_MODEL);
 *	checkpoint_index_tensor(&i, name, dtype, rank, dim, slices, n); ... */
typedef struct CheckpointIndex { Buf b; Arena *scratch; const char *section_comma, *tensor_comma; } CheckpointIndex;
void checkpoint_index_begin(CheckpointIndex *i, CheckpointKind kind);
void checkpoint_index_section(CheckpointIndex *i, CheckpointSection s);
void checkpoint_index_tensor(CheckpointIndex *i, const char *name, DType dtype, int rank, const int64_t *dim,
	const CheckpointSlice *slices, int n);
void checkpoint_index_end(CheckpointIndex *i); /* i->b is the caller's to free */

#endif
