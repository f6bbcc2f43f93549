/* base/checkpoint.h: reads the folder of a checkpoint: named tensors, each stored as pieces of files
 * (docs/checkpoints.md).
 *
 * In kind full a tensor is a single piece: the tensor of that name in model.safetensors or optim.safetensors.  In kinds
 * sharded and local, index.json says where the pieces are.  Code that reads elements need not know the kind. */
#ifndef SHARDC_CHECKPOINT_H
#define SHARDC_CHECKPOINT_H

#include <jansson.h>

#include "base/safetensors.h"

enum { CHECKPOINT_MAX_RANKS = 99999 }; /* names of files have five digits for a rank */
typedef enum CheckpointKind { CHECKPOINT_FULL, CHECKPOINT_SHARDED, CHECKPOINT_LOCAL, CHECKPOINT_KINDS } CheckpointKind;
extern const char *const checkpoint_kinds[CHECKPOINT_KINDS];
/* What a tensor belongs to: parameters and averaged buffers; the optimizer's states ("PARAMETER.exp_avg"); or buffers
 * that each rank has for itself ("rank3/BUFFER"). */
typedef enum CheckpointSection {
	CHECKPOINT_MODEL, CHECKPOINT_OPTIM, CHECKPOINT_OWN, CHECKPOINT_SECTIONS
} CheckpointSection;
/* "model", "optim", "buffers-rank": the keys in index.json and the beginnings of file names.  checkpoint_file gives
 * NAME.safetensors for kind full, NAME-00003-of-00008.safetensors for the others. */
extern const char *const checkpoint_sections[CHECKPOINT_SECTIONS];
const char *checkpoint_file(Arena *a, CheckpointSection s, CheckpointKind kind, int64_t rank, int64_t world);
/* Whether a rank that has n tensors of a section writes a file for them.  In kind full the files of parameters and of
 * the optimizer are written even if they are empty, as for an optimizer without states. */
bool checkpoint_has_file(CheckpointKind kind, CheckpointSection s, int n);
/* checkpoint_name is "step-00000100"; checkpoint_is_name tells whether s has this form, and reads the step. */
const char *checkpoint_name(Arena *a, int64_t step);
bool checkpoint_is_name(const char *s, int64_t *step);

/* Elements [first, first + n) of a tensor of the checkpoint are elements [at, at + n) of a tensor in a file. */
typedef struct CheckpointPiece {
	const char *name;       /* the file's name, without a folder */
	const SafeFile *file;   /* file and `in` are NULL: the piece lies in another host's folder (checkpoint_open_here) */
	const SafeTensor *in;
	int64_t at, first, n;
} CheckpointPiece;
typedef struct CheckpointTensor {
	const char *name;
	DType dtype;
	int rank;
	int64_t dim[SAFETENSORS_MAX_RANK], numel;
	CheckpointPiece *piece; /* in rising order of `first`; the pieces cover the tensor exactly */
	int n_pieces;
} CheckpointTensor;
/* Tensors in the order of index.json or of a file's header. */
typedef struct CheckpointList { CheckpointTensor *at; int n; Map *by_name; } CheckpointList;

typedef struct Checkpoint {
	const char *dir;        /* the folder, or the single file */
	CheckpointKind kind;
	json_t *state;          /* state.json without its checksums; NULL for a single file */
	json_t *layout;         /* its "layout" */
	json_t *part;           /* its "part", if the checkpoint lies in several hosts' folders; NULL: it lies in one, or
	                           was put together */
	CheckpointList section[CHECKPOINT_SECTIONS];
	SafeFile **files;       /* all files that were opened */
	int n_files;
} Checkpoint;

/* Whether the folder has state.json, which is written last. */
bool checkpoint_is_folder(const char *dir, Arena *a);
/* Opens a checkpoint: reads and checks state.json, index.json and the headers of all files.  No file may be missing,
 * and all elements that the result names exist.  NULL after errors; all that are found are reported.  The result lives
 * in a, until checkpoint_close. */
Checkpoint *checkpoint_open(Arena *a, const char *dir, Diag *d);
/* Opens one folder of a checkpoint that may lie in several hosts' folders: only the files that belong in this folder
 * must be there, and pieces in other folders have no file.  loose: in kind full all files except the model's may be
 * missing; their sections are then empty. */
Checkpoint *checkpoint_open_here(Arena *a, const char *dir, bool loose, Diag *d);
/* Opens a checkpoint that lies in several hosts' folders, put together.  The folders must be of one save, and
 * complete. */
Checkpoint *checkpoint_open_parts(Arena *a, const char *const *dirs, int n, Diag *d);
/* Opens a single safetensors file as a checkpoint of kind full without a state; its tensors are section model. */
Checkpoint *checkpoint_open_file(Arena *a, const char *path, Diag *d);
void checkpoint_close(Checkpoint *c);
/* Parses the text of a state.json, checks it against its checksum if it has one, and removes the checksums.  NULL after
 * an error; the caller must json_decref the result. */
json_t *checkpoint_state(const char *text, const char *path, Diag *d);
const CheckpointTensor *checkpoint_find(const Checkpoint *c, CheckpointSection s, const char *name);
/* Reads elements [first, first + n) where they lie in files, piece by piece: calls use(context, from, first, n), where
 * `from` points to n elements of the tensor's dtype and need not be aligned.  Pieces without a file are skipped. */
typedef void CheckpointUse(void *context, const char *from, int64_t first, int64_t n);
void checkpoint_read(const CheckpointTensor *t, int64_t first, int64_t n, CheckpointUse *use, void *context);
/* Verifies checksums of the files' tensors.  A team of `of` members can share the work: each calls it with its own
 * `index`, and the member verifies the tensors whose number modulo `of` is `index`.  release: the pages that were read
 * are released.  False after errors; all that are found are reported. */
bool checkpoint_verify(const Checkpoint *c, int64_t index, int64_t of, bool release, Diag *d);

/* ---- writing state.json and index.json ---- */

/* Appends the text of state.json to out: `state`, an object of several lines, with its own checksum and that of the
 * text `index`; index "" = there is no index.json. */
void checkpoint_seal(Buf *out, const char *state, const char *index);

typedef struct CheckpointSlice { const char *file, *tensor; int64_t at, first, n; } CheckpointSlice;
/* Builds the text of index.json, for kinds sharded and local, in b: begin, each section with its tensors, end.
 *	checkpoint_index_begin(&i, kind);
 *	checkpoint_index_section(&i, CHECKPOINT_MODEL);
 *	checkpoint_index_tensor(&i, name, dtype, rank, dim, slices, n); .. */
typedef struct CheckpointIndex { Buf b; Arena *scratch; const char *section_comma, *tensor_comma; } CheckpointIndex;
void checkpoint_index_begin(CheckpointIndex *i, CheckpointKind kind);
void checkpoint_index_section(CheckpointIndex *i, CheckpointSection s);
void checkpoint_index_tensor(CheckpointIndex *i, const char *name, DType dtype, int rank, const int64_t *dim,
	const CheckpointSlice *slices, int n);
void checkpoint_index_end(CheckpointIndex *i); /* the caller frees i->b */

#endif
