/* base/checkpoint.c: opens the folder of a checkpoint and checks it.
 *
 * Nothing in the index is trusted until its pieces were laid end to end: sorted, each begins where the one before ends,
 * the last one ends where the shape says, and each lies inside a tensor of a file that was checked.  Refuses folders
 * without state.json or with an unknown format, files that are missing or not safetensors, and indices that point
 * outside of files, overlap, or leave elements out. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checkpoint.h"
#include "base/crc32.h"

enum { FORMAT = 1, CRC_TEXT = 9 };
const char *const checkpoint_kinds[CHECKPOINT_KINDS] = {"full", "sharded", "local"};
const char *const checkpoint_sections[CHECKPOINT_SECTIONS] = {"model", "optim", "buffers-rank"};

typedef struct Reader {
	Arena *a;
	Checkpoint *c;
	Map *files;
	const char *index;        /* the path of index.json */
	char index_crc[CRC_TEXT]; /* the checksum that state.json has of it; "": none */
	const char *const *dirs;  /* the folders in which files are looked for */
	int n_dirs;
	bool loose;               /* for kind full, files other than the model's may be missing */
	bool here;                /* so may files that belong in other hosts' folders */
	bool joined;              /* dirs are the folders of all hosts */
	Diag *d;
} Reader;

const char *checkpoint_file(Arena *a, CheckpointSection s, CheckpointKind kind, int64_t rank, int64_t world)
{
	if (kind == CHECKPOINT_FULL)
		return arena_printf(a, "%s.safetensors", checkpoint_sections[s]);
	return arena_printf(a, "%s-%05" PRId64 "-of-%05" PRId64 ".safetensors", checkpoint_sections[s], rank + 1, world);
}

bool checkpoint_has_file(CheckpointKind kind, CheckpointSection s, int n)
{
	return n || (kind == CHECKPOINT_FULL && s != CHECKPOINT_OWN);
}

const char *checkpoint_name(Arena *a, int64_t step)
{
	return arena_printf(a, "step-%08" PRId64, step);
}

bool checkpoint_is_name(const char *s, int64_t *step)
{
	size_t digits = !strncmp(s, "step-", 5) ? strspn(s + 5, "0123456789") : 0;
	*step = digits ? strtoll(s + 5, NULL, 10) : 0;
	return digits >= 8 && digits <= 18 && !s[5 + digits];
}

bool checkpoint_is_folder(const char *dir, Arena *a)
{
	struct stat st;
	return !stat(arena_printf(a, "%s/state.json", dir), &st);
}

/* ---- the seal: checksums of state.json and index.json ---- */

static void crc_text(char *out, const char *text)
{
	snprintf(out, CRC_TEXT, "%08" PRIx32, crc32_more(0, text, (int64_t)strlen(text)));
}

/* The checksums stand on a line of their own after the opening brace, so that whoever edits the text by hand can delete
 * that line; the checksum of state.json covers the lines behind it. */
void checkpoint_seal(Buf *out, const char *state, const char *index)
{
	char of_state[CRC_TEXT], of_index[CRC_TEXT];
	const char *rest = state + strlen("{\n");
	crc_text(of_state, rest);
	crc_text(of_index, index);
	buf_printf(out, "{\n  \"crc32\": {\"state.json\": \"%s\"", of_state);
	if (*index)
		buf_printf(out, ", \"index.json\": \"%s\"", of_index);
	buf_printf(out, "},\n%s", rest);
}

/* ---- files ---- */

static json_t *parse_object(const char *text, const char *path, Diag *d)
{
	json_error_t error;
	json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
	if (json_is_object(root))
		return root;
	if (root)
		diag_error(d, path, "a JSON object was expected");
	else
		diag_error(d, path, "%s (line %d)", error.text, error.line);
	json_decref(root);
	return NULL;
}

static bool is_undamaged(const char *text, const char *was, const char *path, Diag *d)
{
	char now[CRC_TEXT];
	crc_text(now, text);
	if (!strcmp(now, was))
		return true;
	diag_error(d, path, "is damaged: its checksum is %s, %s was written; take an older checkpoint", now, was);
	return false;
}

/* The path of a file in the first folder that has it, or in the first folder if none has. */
static const char *path_of(const Reader *r, const char *name)
{
	struct stat st;
	for (int i = 0; i < r->n_dirs; i++) {
		const char *path = arena_printf(r->a, "%s/%s", r->dirs[i], name);
		if (!stat(path, &st))
			return path;
	}
	return arena_printf(r->a, "%s/%s", r->dirs[0], name);
}

/* Opens a file of the checkpoint, once; NULL: it was refused, with an error. */
static SafeFile *open_file(Reader *r, const char *name)
{
	Checkpoint *c = r->c;
	if (map_has(r->files, name))
		return map_get(r->files, name);
	SafeFile *f = safetensors_open(r->a, path_of(r, name), r->d);
	map_put(r->files, name, f);
	if (f) {
		int n = c->n_files++;
		if ((n & (n - 1)) == 0) { /* full: double it */
			SafeFile **more = NEW_N(r->a, SafeFile *, 2 * n + 1);
			if (n)
				memcpy(more, c->files, (size_t)n * sizeof(*more));
			c->files = more;
		}
		c->files[n] = f;
	}
	return f;
}

/* ---- kind full ---- */

static CheckpointTensor whole(Reader *r, const SafeFile *f, const SafeTensor *t)
{
	CheckpointTensor out = {.name = t->name, .dtype = t->dtype, .rank = t->rank,
		.numel = t->bytes / dtype_info[t->dtype].bytes, .piece = NEW(r->a, CheckpointPiece), .n_pieces = 1};
	memcpy(out.dim, t->dim, sizeof(out.dim));
	*out.piece = (CheckpointPiece){.file = f, .in = t, .n = out.numel};
	return out;
}

static void list_tensors(Reader *r, CheckpointList *list, const SafeFile *f)
{
	list->n = f->n;
	list->at = NEW_N(r->a, CheckpointTensor, f->n + 1);
	for (int i = 0; i < f->n; i++)
		list->at[f->tensors[i].listed] = whole(r, f, &f->tensors[i]);
}

/* The files that $.layout.files lists.  Checkpoints of older programs lack the list; then all files that every program
 * writes are expected. */
typedef struct Files { bool recorded, has[CHECKPOINT_SECTIONS]; } Files;

static bool read_files(const Reader *r, Files *out)
{
	json_t *list = json_object_get(r->c->layout, "files"), *v;
	size_t i, known = 0;
	*out = (Files){.recorded = list};
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++) {
		const char *name = checkpoint_file(r->a, (CheckpointSection)s, CHECKPOINT_FULL, 0, 1);
		out->has[s] = !list && checkpoint_has_file(CHECKPOINT_FULL, (CheckpointSection)s, 0);
		json_array_foreach(list, i, v)
			out->has[s] = out->has[s] || (json_is_string(v) && !strcmp(json_string_value(v), name));
		known += list && out->has[s];
	}
	if (!list || (json_is_array(list) && known == json_array_size(list) && out->has[CHECKPOINT_MODEL]))
		return true;
	diag_error(r->d, arena_printf(r->a, "%s/state.json", r->c->dir), "$.layout.files: a list of model.safetensors and, "
		"if they are there, optim.safetensors and buffers-rank.safetensors was expected");
	return false;
}

static bool list_file(Reader *r, CheckpointSection s, const Files *files)
{
	struct stat st;
	CheckpointList *list = &r->c->section[s];
	const char *name = checkpoint_file(r->a, s, CHECKPOINT_FULL, 0, 1);
	bool missing = stat(arena_printf(r->a, "%s/%s", r->c->dir, name), &st) && errno == ENOENT;
	if (!files->has[s] && (files->recorded || missing))
		return true;
	if (missing && r->loose && s != CHECKPOINT_MODEL)
		return true;
	if (missing) {
		diag_error(r->d, r->c->dir, "there is no %s: the checkpoint is not whole; take an older one", name);
		return false;
	}
	const SafeFile *f = open_file(r, name);
	if (!f)
		return false;
	list_tensors(r, list, f);
	return true;
}

static bool list_files(Reader *r)
{
	Files files;
	bool known = read_files(r, &files), ok = known;
	for (int s = 0; s < CHECKPOINT_SECTIONS && known; s++)
		ok = list_file(r, (CheckpointSection)s, &files) && ok;
	return ok;
}

/* ---- index.json ---- */

static bool get_count(json_t *v, int64_t *out)
{
	*out = json_integer_value(v);
	return json_is_integer(v) && *out >= 0;
}

/* Whether the file belongs to a rank that does not save into this folder: "model-00003-of-00004.safetensors" is rank
 * 2's. */
static bool is_elsewhere(const Reader *r, const char *file)
{
	json_t *ranks = r->here ? json_object_get(r->c->part, "ranks") : NULL, *v;
	const char *of = strstr(file, "-of-");
	size_t i;
	if (!ranks || !of || of - file < 5)
		return false;
	json_array_foreach(ranks, i, v)
		if (json_integer_value(v) == strtoll(of - 5, NULL, 10) - 1)
			return false;
	return true;
}

/* Reads a piece [FILE, TENSOR, at, first, n]. */
static bool read_piece(Reader *r, const CheckpointTensor *t, CheckpointPiece *p, json_t *v)
{
	const char *file = json_string_value(json_array_get(v, 0)), *name = json_string_value(json_array_get(v, 1));
	if (!json_is_array(v) || json_array_size(v) != 5 || !file || !name || strchr(file, '/') ||
		!get_count(json_array_get(v, 2), &p->at) || !get_count(json_array_get(v, 3), &p->first) ||
		!get_count(json_array_get(v, 4), &p->n)) {
		diag_error(r->d, r->index, "tensor \"%s\": a piece is [FILE, TENSOR, at, first, n], with a FILE of this folder",
			t->name);
		return false;
	}
	p->name = arena_strdup(r->a, file);
	if (is_elsewhere(r, file))
		return true;
	p->file = open_file(r, file);
	if (!p->file)
		return false;
	p->in = safetensors_find(p->file, name);
	int64_t has = p->in ? p->in->bytes / dtype_info[p->in->dtype].bytes : 0;
	if (!p->in || p->in->dtype != t->dtype || p->n > has || p->at > has - p->n) {
		diag_error(r->d, r->index,
			"tensor \"%s\": %s has no elements [%" PRId64 ",%" PRId64 ") of %s in a tensor \"%s\"", t->name,
			file, p->at, p->at > INT64_MAX - p->n ? INT64_MAX : p->at + p->n, dtype_info[t->dtype].text, name);
		return false;
	}
	return true;
}

static int by_first(const void *pa, const void *pb)
{
	const CheckpointPiece *a = pa, *b = pb;
	return (a->first > b->first) - (a->first < b->first);
}

static bool check_cover(const Reader *r, const CheckpointTensor *t)
{
	int64_t end = 0;
	int i = 0;
	for (; i < t->n_pieces && t->piece[i].first == end; i++)
		end += t->piece[i].n;
	bool exact = i == t->n_pieces && end == t->numel;
	if (!exact)
		diag_error(r->d, r->index, "tensor \"%s\": of %" PRId64 " elements those from %" PRId64
			" on are in no piece, or in two", t->name, t->numel, MIN(end, i < t->n_pieces ? t->piece[i].first : end));
	return exact;
}

static bool read_shape(const Reader *r, CheckpointTensor *t, json_t *entry)
{
	const char *dtype = json_string_value(json_object_get(entry, "dtype"));
	json_t *shape = json_object_get(entry, "shape");
	bool ok = dtype && dtype_from_safetensors(dtype, &t->dtype) && json_is_array(shape) &&
		json_array_size(shape) <= SAFETENSORS_MAX_RANK;
	t->rank = ok ? (int)json_array_size(shape) : 0;
	t->numel = 1;
	for (int i = 0; ok && i < t->rank; i++)
		ok = get_count(json_array_get(shape, (size_t)i), &t->dim[i]) &&
			!__builtin_mul_overflow(t->numel, t->dim[i], &t->numel);
	if (!ok)
		diag_error(r->d, r->index, "tensor \"%s\": dtype and shape, a list of at most %d numbers, were expected",
			t->name, SAFETENSORS_MAX_RANK);
	return ok;
}

static bool read_tensor(Reader *r, CheckpointTensor *t, json_t *entry)
{
	json_t *pieces = json_object_get(entry, "pieces");
	if (!read_shape(r, t, entry))
		return false;
	if (!json_is_array(pieces)) {
		diag_error(r->d, r->index, "tensor \"%s\": a list of pieces was expected", t->name);
		return false;
	}
	t->piece = NEW_N(r->a, CheckpointPiece, json_array_size(pieces) + 1);
	for (size_t i = 0; i < json_array_size(pieces); i++)
		if (!read_piece(r, t, &t->piece[t->n_pieces++], json_array_get(pieces, i)))
			return false;
	if (t->n_pieces)
		qsort(t->piece, (size_t)t->n_pieces, sizeof(*t->piece), by_first);
	return check_cover(r, t);
}

static bool read_section(Reader *r, CheckpointSection s, json_t *entries)
{
	CheckpointList *list = &r->c->section[s];
	const char *name;
	json_t *entry;
	bool ok = true;
	if (!entries)
		return true;
	list->at = NEW_N(r->a, CheckpointTensor, json_object_size(entries) + 1);
	json_object_foreach(entries, name, entry) {
		CheckpointTensor *t = &list->at[list->n++];
		t->name = arena_strdup(r->a, name);
		ok = read_tensor(r, t, entry) && ok;
	}
	return ok;
}

static bool read_index(Reader *r)
{
	r->index = arena_printf(r->a, "%s/index.json", r->c->dir);
	char *text = diag_read_file(r->d, r->index, r->a);
	bool whole = text && (!*r->index_crc || is_undamaged(text, r->index_crc, r->index, r->d));
	json_t *root = whole ? parse_object(text, r->index, r->d) : NULL;
	bool ok = root;
	if (root && json_integer_value(json_object_get(root, "format")) != FORMAT) {
		diag_error(r->d, r->index, "format %d was expected", FORMAT);
		ok = false;
	}
	json_t *tensors = json_object_get(root, "tensors");
	if (ok && !json_is_object(json_object_get(tensors, checkpoint_sections[CHECKPOINT_MODEL]))) {
		diag_error(r->d, r->index, "$.tensors.model is missing: an object of tensors was expected");
		ok = false;
	}
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		ok = read_section(r, (CheckpointSection)s, json_object_get(tensors, checkpoint_sections[s])) && ok;
	json_decref(root);
	return ok;
}

/* ---- the folder ---- */

/* Removes the seal from state.json.  Without a seal any text is accepted; with one, the lines behind it must have its
 * checksum.  of_index: the checksum of index.json that the seal has, or "". */
static bool break_seal(json_t *root, const char *text, char of_index[CRC_TEXT], const char *path, Diag *d)
{
	json_t *seal = json_object_get(root, "crc32");
	const char *was = json_string_value(json_object_get(seal, "state.json"));
	const char *line = strchr(text, '\n'), *rest = line ? strchr(line + 1, '\n') : NULL;
	const char *index = json_string_value(json_object_get(seal, "index.json"));
	bool known = was && json_object_size(seal) == (index ? 2 : 1) && (!index || strlen(index) == CRC_TEXT - 1);
	if (seal && !is_undamaged(rest ? rest + 1 : "", known ? was : "something else", path, d))
		return false;
	snprintf(of_index, CRC_TEXT, "%s", index ? index : "");
	json_object_del(root, "crc32");
	return true;
}

static json_t *parse_state(const char *text, char of_index[CRC_TEXT], const char *path, Diag *d)
{
	json_t *root = parse_object(text, path, d);
	if (!root || break_seal(root, text, of_index, path, d))
		return root;
	json_decref(root);
	return NULL;
}

json_t *checkpoint_state(const char *text, const char *path, Diag *d)
{
	char of_index[CRC_TEXT];
	return parse_state(text, of_index, path, d);
}

static bool read_state(Reader *r)
{
	Checkpoint *c = r->c;
	const char *path = arena_printf(r->a, "%s/state.json", c->dir);
	const char *text = diag_read_file(r->d, path, r->a);
	c->state = text ? parse_state(text, r->index_crc, path, r->d) : NULL;
	if (!c->state)
		return false;
	c->layout = json_object_get(c->state, "layout");
	if (r->joined)
		json_object_del(c->state, "part");
	c->part = json_object_get(c->state, "part");
	const char *kind = json_string_value(json_object_get(c->layout, "kind"));
	for (int k = 0; kind && k < CHECKPOINT_KINDS; k++)
		if (!strcmp(kind, checkpoint_kinds[k])) {
			c->kind = (CheckpointKind)k;
			if (json_integer_value(json_object_get(c->state, "format")) == FORMAT)
				return true;
		}
	diag_error(r->d, path, "format %d, and $.layout.kind full, sharded or local, were expected", FORMAT);
	return false;
}

static bool read_tensors(Reader *r)
{
	return r->c->kind == CHECKPOINT_FULL ? list_files(r) : read_index(r);
}

static void name_tensors(Reader *r)
{
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++) {
		CheckpointList *list = &r->c->section[s];
		list->by_name = map_new(r->a);
		for (int i = 0; i < list->n; i++)
			map_put(list->by_name, list->at[i].name, &list->at[i]);
	}
}

/* Reads $.part: the run's id, the number of its folders, and the ranks that save into this folder. */
static bool read_part(Reader *r)
{
	Checkpoint *c = r->c;
	json_t *ranks = json_object_get(c->part, "ranks");
	json_int_t folders = json_integer_value(json_object_get(c->part, "folders"));
	bool known = json_is_string(json_object_get(c->part, "run")) && json_is_array(ranks) &&
		c->kind != CHECKPOINT_FULL && folders > 1;
	if (c->part && !known)
		diag_error(r->d, c->dir, "$.part of state.json: run, folders and ranks were expected");
	else if (c->part && !r->here)
		diag_error(r->d, c->dir, "has the files of %d of %" JSON_INTEGER_FORMAT " ranks: the others are in the folders "
			"of other hosts; shardc ckpt merge DIR.. -o OUT, with all %" JSON_INTEGER_FORMAT " of them, puts them "
			"together", (int)json_array_size(ranks), json_integer_value(json_object_get(c->layout, "ranks")), folders);
	return !c->part || (known && r->here);
}

static Checkpoint *open_with(Reader *r)
{
	Checkpoint *c = r->c;
	c->dir = arena_strdup(r->a, r->dirs[0]);
	r->files = map_new(r->a);
	if (read_state(r) && read_part(r) && read_tensors(r)) {
		name_tensors(r);
		return c;
	}
	checkpoint_close(c);
	return NULL;
}

Checkpoint *checkpoint_open(Arena *a, const char *dir, Diag *d)
{
	return open_with(&(Reader){.a = a, .c = NEW(a, Checkpoint), .dirs = &dir, .n_dirs = 1, .d = d});
}

Checkpoint *checkpoint_open_here(Arena *a, const char *dir, bool loose, Diag *d)
{
	return open_with(&(Reader){.a = a, .c = NEW(a, Checkpoint), .dirs = &dir, .n_dirs = 1, .here = true, .loose = loose,
		.d = d});
}

/* ---- the folders of several hosts ---- */

/* Adds the ranks of a folder to those of the folders before; each rank must be in one folder only. */
static bool add_ranks(bool *has, int64_t ranks, const Checkpoint *c, Diag *d)
{
	json_t *v;
	size_t i;
	json_array_foreach(json_object_get(c->part, "ranks"), i, v) {
		int64_t r = json_is_integer(v) ? json_integer_value(v) : -1;
		if (r < 0 || r >= ranks || has[r]) {
			diag_error(d, c->dir, "its rank %" PRId64 " is also in another folder, or is not below %" PRId64, r, ranks);
			return false;
		}
		has[r] = true;
	}
	return true;
}

/* Whether two values are equal; also true if both are absent (NULL). */
static bool same_value(const json_t *x, const json_t *y)
{
	return x == y || json_equal(x, y);
}

static bool same_save(const Checkpoint *first, const Checkpoint *c, Diag *d)
{
	static const char *const keys[] = {"step", "model", "samples", "updates", "options"};
	const char *other = same_value(json_object_get(first->part, "run"), json_object_get(c->part, "run")) ? NULL : "run";
	for (int i = 0; i < COUNT_OF(keys) && !other; i++)
		if (!same_value(json_object_get(first->state, keys[i]), json_object_get(c->state, keys[i])))
			other = keys[i];
	if (!other && !json_equal(first->layout, c->layout))
		other = "layout";
	if (!other)
		return true;
	diag_error(d, c->dir, "is of another save than %s: their %s differs", first->dir, other);
	return false;
}

/* Checks that the folders belong to one save and that none is missing; reports what is wrong. */
static bool check_parts(Arena *a, const char *const *dirs, int n, Diag *d)
{
	Checkpoint **c = NEW_N(a, Checkpoint *, n);
	bool ok = true, *has = NULL;
	int64_t ranks = 0;
	for (int i = 0; i < n; i++) {
		c[i] = checkpoint_open_here(a, dirs[i], false, d);
		if (c[i] && !c[i]->part) {
			diag_error(d, dirs[i], "is a whole checkpoint, none of several hosts' folders: give it alone");
			ok = false;
		}
		ok = ok && c[i];
	}
	if (ok) {
		ranks = json_integer_value(json_object_get(c[0]->layout, "ranks"));
		ok = ranks > 0 && ranks <= CHECKPOINT_MAX_RANKS;
		if (!ok)
			diag_error(d, c[0]->dir, "state.json: layout.ranks is %" PRId64 ", a number of ranks up to %d was expected",
				ranks, CHECKPOINT_MAX_RANKS);
		has = NEW_N(a, bool, ok ? ranks : 1);
	}
	for (int i = 0; i < n && ok; i++)
		ok = (!i || same_save(c[0], c[i], d)) && add_ranks(has, ranks, c[i], d);
	for (int64_t r = 0; r < ranks && ok; r++)
		if (!has[r]) {
			diag_error(d, dirs[0], "the files of rank %" PRId64 " are in none of the %d folder(s): it was saved into %"
				JSON_INTEGER_FORMAT, r, n, json_integer_value(json_object_get(c[0]->part, "folders")));
			ok = false;
		}
	for (int i = 0; i < n; i++)
		if (c[i])
			checkpoint_close(c[i]);
	return ok;
}

Checkpoint *checkpoint_open_parts(Arena *a, const char *const *dirs, int n, Diag *d)
{
	if (!check_parts(a, dirs, n, d))
		return NULL;
	return open_with(&(Reader){.a = a, .c = NEW(a, Checkpoint), .dirs = dirs, .n_dirs = n, .joined = true, .d = d});
}

Checkpoint *checkpoint_open_file(Arena *a, const char *path, Diag *d)
{
	const char *slash = strrchr(path, '/');
	Checkpoint *c = NEW(a, Checkpoint);
	c->dir = slash ? arena_strndup(a, path, (size_t)(slash - path)) : ".";
	const char *dir = c->dir;
	Reader r = {.a = a, .c = c, .files = map_new(a), .dirs = &dir, .n_dirs = 1, .d = d};
	const SafeFile *f = open_file(&r, slash ? slash + 1 : path);
	if (!f)
		return NULL;
	c->dir = f->path;
	list_tensors(&r, &c->section[CHECKPOINT_MODEL], f);
	name_tensors(&r);
	return c;
}

void checkpoint_close(Checkpoint *c)
{
	for (int i = 0; i < c->n_files; i++)
		safetensors_close(c->files[i]);
	c->n_files = 0;
	json_decref(c->state);
	c->state = c->layout = c->part = NULL;
}

const CheckpointTensor *checkpoint_find(const Checkpoint *c, CheckpointSection s, const char *name)
{
	return map_get(c->section[s].by_name, name);
}

void checkpoint_read(const CheckpointTensor *t, int64_t first, int64_t n, CheckpointUse *use, void *context)
{
	int64_t size = dtype_info[t->dtype].bytes;
	for (int i = 0; i < t->n_pieces; i++) {
		const CheckpointPiece *p = &t->piece[i];
		int64_t begin = MAX(first, p->first), end = MIN(first + n, p->first + p->n);
		if (begin < end && p->in)
			use(context, (const char *)p->in->data + (p->at + begin - p->first) * size, begin, end - begin);
	}
}

bool checkpoint_verify(const Checkpoint *c, int64_t index, int64_t of, bool release, Diag *d)
{
	bool ok = true;
	int64_t k = 0;
	for (int f = 0; f < c->n_files; f++)
		for (int i = 0; i < c->files[f]->n; i++, k++)
			if (k % of == index)
				ok = safetensors_verify(c->files[f], &c->files[f]->tensors[i], release, d) && ok;
	return ok;
}

/* ---- writing index.json ---- */

void checkpoint_index_begin(CheckpointIndex *i, CheckpointKind kind)
{
	*i = (CheckpointIndex){.scratch = arena_new(), .section_comma = ""};
	buf_printf(&i->b, "{\n  \"format\": %d,\n  \"kind\": \"%s\",\n  \"tensors\": {", FORMAT, checkpoint_kinds[kind]);
}

void checkpoint_index_section(CheckpointIndex *i, CheckpointSection s)
{
	buf_printf(&i->b, "%s\n    \"%s\": {", i->section_comma, checkpoint_sections[s]);
	i->section_comma = "},";
	i->tensor_comma = "";
}

void checkpoint_index_tensor(CheckpointIndex *i, const char *name, DType dtype, int rank, const int64_t *dim,
	const CheckpointSlice *slices, int n)
{
	ArenaMark mark = arena_mark(i->scratch);
	buf_printf(&i->b, "%s\n      \"%s\": {\"dtype\": \"%s\", \"shape\": [", i->tensor_comma,
		str_escape(i->scratch, ESCAPE_JSON, name), dtype_info[dtype].safetensors);
	for (int k = 0; k < rank; k++)
		buf_printf(&i->b, "%s%" PRId64, k ? ", " : "", dim[k]);
	buf_printf(&i->b, "], \"pieces\": [");
	for (int k = 0; k < n; k++)
		buf_printf(&i->b, "%s[\"%s\", \"%s\", %" PRId64 ", %" PRId64 ", %" PRId64 "]", k ? ", " : "",
			str_escape(i->scratch, ESCAPE_JSON, slices[k].file), str_escape(i->scratch, ESCAPE_JSON, slices[k].tensor),
			slices[k].at, slices[k].first, slices[k].n);
	buf_printf(&i->b, "]}");
	i->tensor_comma = ",";
	arena_rewind(i->scratch, mark);
}

void checkpoint_index_end(CheckpointIndex *i)
{
	buf_printf(&i->b, "%s\n  }\n}\n", *i->section_comma ? "}" : "");
	arena_free(i->scratch);
}
