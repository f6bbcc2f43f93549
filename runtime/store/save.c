/* runtime/store/save.c: writes DIR/step-NNNNNNNN/ with its files and state.json, and DIR/latest (docs/checkpoints.md).
 *
 * Every write is checked: after any failure on any rank, such as a full disk, what was begun is removed, and older
 * checkpoints and `latest` stay as they were.
 *
 * Rank 0 makes the folder.  For kind full it also makes the files with their headers, every rank writes the elements it
 * holds into them, and the checksums of parts are joined; for the other kinds each rank has files of its own.  Finally
 * rank 0 completes the checkpoint.
 *
 * Files are written and synced in a folder with a temporary name, the folder is renamed, and only then does `latest`
 * move, so whenever the machine stops, `latest` names a complete checkpoint. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/file.h"
#include "runtime/store/private.h"

static const SafeMeta file_meta[] = {{"format", "pt"}};

/* Reports progress, by which the watchdog tells a slow disk from one that hangs. */
bool save_moved(const SavePaths *at, bool ok)
{
	if (at->moved)
		atomic_fetch_add(at->moved, 1);
	else
		agree_alive(at->control);
	return ok;
}

/* ---- files and folders ---- */

bool save_make_dir(Arena *a, const char *path)
{
	char *part = arena_strdup(a, path);
	for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		if (mkdir(part, 0777) && errno != EEXIST)
			return false;
		*slash = '/';
	}
	return !mkdir(part, 0777) || errno == EEXIST;
}

/* Renames the folder; an older checkpoint of the same step is exchanged with it atomically and then removed. */
static bool move_in_place(const SavePaths *at)
{
	if (!rename(at->temp, at->final))
		return true;
	if (errno != EEXIST && errno != ENOTEMPTY)
		return false;
	if (!tidy_may_go(at->final, at->model, true)) {
		errno = EEXIST; /* what is there is no checkpoint of this model */
		return false;
	}
	return !renameat2(AT_FDCWD, at->temp, AT_FDCWD, at->final, RENAME_EXCHANGE) && tidy_begun(at);
}

static bool point_latest(const SavePaths *at)
{
	const char *link = arena_printf(at->a, "%s/latest", at->dir);
	const char *temp = arena_printf(at->a, "%s/.latest", at->dir);
	unlink(temp);
	if (symlink(at->name, temp))
		return false;
	if (!rename(temp, link))
		return save_moved(at, file_sync(at->dir));
	int error = errno;
	unlink(temp);
	errno = error;
	return false;
}

/* ---- one file ---- */

/* Writes elements as they lie in memory of the host, or converted piece by piece.  offset: where the tensor begins in
 * the file; *crc: checksum of what was written of it before, which is updated. */
static bool put_piece(int fd, const Slice *s, DType dtype, int64_t offset, uint32_t *crc)
{
	enum { PIECE = 8192 };
	char out[PIECE * 8];
	int64_t size = dtype_info[dtype].bytes, in_size = dtype_info[s->dtype].bytes, at = offset + s->first * size;
	if (s->dtype == dtype) {
		*crc = crc32_more(*crc, s->at, s->n * size);
		return file_put(fd, s->at, s->n * size, at);
	}
	for (int64_t i = 0; i < s->n; i += PIECE) {
		int64_t n = MIN(PIECE, s->n - i);
		slice_convert(out, dtype, dtype, s->at + i * in_size, s->dtype, n);
		*crc = crc32_more(*crc, out, n * size);
		if (!file_put(fd, out, n * size, at + i * size))
			return false;
	}
	return true;
}

/* This rank's share of a tensor's checksum: shares of all ranks, combined by exclusive or, give the checksum. */
static uint32_t share_of(const SafeTensor *t, const Slice *s, uint32_t crc)
{
	int64_t behind = t->bytes / dtype_info[t->dtype].bytes - s->first - s->n;
	return crc32_join(crc, 0, behind * dtype_info[t->dtype].bytes);
}

/* Starts writing to the disk what was written since the last call, and waits for what was written before that, so that
 * the disk works beside the writing and the sync at the end is short.  File systems that cannot do this leave it all to
 * that sync. */
static bool pass_on(int fd)
{
	return !sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE) || errno == ENOSYS ||
		errno == ESPIPE || errno == EINVAL;
}

bool save_has_written(SaveWriting *w, int64_t bytes)
{
	enum { PASS_BYTES = 64 << 20 };
	w->unsynced += bytes;
	save_moved(w->at, true);
	if (w->unsynced < PASS_BYTES)
		return true;
	w->unsynced = 0;
	return save_moved(w->at, pass_on(w->fd));
}

static bool put_slice(const Rt *rt, SaveWriting *w, const Slice *s, DType dtype, int64_t offset, uint32_t *crc)
{
	bool ok = true;
	int error = 0;
	for (Slice piece = slice_begin(s); slice_next(rt, s, &piece, DEVICE_READ);) {
		ok = ok && put_piece(w->fd, &piece, dtype, offset, crc) &&
			save_has_written(w, piece.n * dtype_info[dtype].bytes);
		error = ok || error ? error : errno;
	}
	errno = error;
	return ok;
}

/* Writes the elements of a file, and sets the tensors' checksums to this rank's shares. */
static bool write_parts(const Rt *rt, int fd, const SavePaths *at, SaveFile *f)
{
	SaveWriting w = {.fd = fd, .at = at};
	for (int i = 0; i < f->n; i++) {
		const SavePart *p = &f->part[i];
		if (!p->writes)
			continue;
		uint32_t crc = 0;
		if (!put_slice(rt, &w, &p->source, f->at[i].dtype, f->at[i].offset, &crc))
			return false;
		f->at[i].crc = share_of(&f->at[i], &p->source, crc);
	}
	return true;
}

static bool write_crcs(int fd, const SaveFile *f)
{
	for (int i = 0; i < f->n; i++)
		if (!safetensors_put_crc(fd, &f->at[i]))
			return false;
	return true;
}

static bool failed(const SavePaths *at, const char *what, Diag *d)
{
	diag_error(d, at->final,
		"%s could not be written: %s; this checkpoint was dropped, earlier ones are as they were", what,
		strerror(errno));
	return false;
}

/* Opens a file that exists; -1 after a message. */
static int open_file(const SavePaths *at, const SaveFile *f, int rank, Diag *d)
{
	const char *path = arena_printf(at->a, "%s/%s", at->temp, f->name);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT && rank > 0)
		diag_error(d, path, "rank 0 made this file, host %s does not see it: --save needs a folder that all "
			"hosts share; this checkpoint was dropped, earlier ones are as they were", agree_host());
	else if (fd < 0)
		failed(at, f->name, d);
	return fd;
}

static bool create_file(const SavePaths *at, const SaveFile *f, Diag *d)
{
	const char *path = arena_printf(at->a, "%s/%s", at->temp, f->name);
	return save_moved(at, safetensors_create(path, f->at, f->n, file_meta, COUNT_OF(file_meta))) ||
		failed(at, f->name, d);
}

bool save_has_file(const SaveSet *c, int section)
{
	return checkpoint_has_file(c->kind, (CheckpointSection)section, c->file[section].n);
}

bool save_write_file(const SaveSet *c, const SavePaths *at, SaveFile *f, Diag *d)
{
	struct stat st;
	if (c->own_files && c->rt->p->world.rank > 0 && stat(at->temp, &st) && errno == ENOENT) {
		diag_error(d, at->temp, "rank 0 made this folder, host %s does not see it: --save needs a folder that all "
			"hosts share; this checkpoint was dropped, earlier ones are as they were", agree_host());
		return false;
	}
	if (c->own_files && !create_file(at, f, d))
		return false;
	int fd = open_file(at, f, c->rt->p->world.rank, d);
	if (fd < 0)
		return false;
	bool ok = write_parts(c->rt, fd, at, f) && (!c->own_files || write_crcs(fd, f)) && !fsync(fd);
	return save_moved(at, file_close(fd, ok)) || failed(at, f->name, d);
}

/* ---- the stages of a save ---- */

SavePaths save_paths(const SaveSet *c, Arena *a, int64_t step)
{
	const char *name = checkpoint_name(a, step), *dir = c->rt->p->options->save;
	return (SavePaths){.a = a, .dir = dir, .name = name, .temp = arena_printf(a, "%s/.%s", dir, name),
		.final = arena_printf(a, "%s/%s", dir, name), .model = c->rt->model, .control = c->rt->p->control};
}

bool save_make_folder(const SavePaths *at, Diag *d)
{
	if (save_make_dir(at->a, at->dir) && tidy_begun(at) && !mkdir(at->temp, 0777))
		return true;
	return failed(at, "the folder", d);
}

void save_drop(const SavePaths *at)
{
	tidy_begun(at);
}

static bool write_text(const SavePaths *at, const char *name, const char *text, Diag *d)
{
	const char *path = arena_printf(at->a, "%s/%s", at->temp, name);
	return save_moved(at, file_write(path, text, (int64_t)strlen(text))) || failed(at, name, d);
}

bool save_leads(const SaveSet *c)
{
	return places_leads(c->rt->p->places, &c->rt->p->world);
}

bool save_complete(const SaveSet *c, const SavePaths *at, const char *state, const char *index, Diag *d)
{
	if (*index && !write_text(at, "index.json", index, d))
		return false;
	Buf sealed = {0};
	checkpoint_seal(&sealed, state, index);
	bool ok = write_text(at, "state.json", sealed.at, d);
	buf_free(&sealed);
	if (!ok)
		return false;
	if (!save_moved(at, file_sync(at->temp)) || !save_moved(at, move_in_place(at)) ||
		!save_moved(at, file_sync(at->dir)))
		return failed(at, "the folder", d);
	if (!point_latest(at)) {
		diag_error(d, at->dir, "`latest` could not be moved to %s: %s", at->name, strerror(errno));
		return false;
	}
	if (!places_are_several(c->rt->p->places))
		tidy_keep(at, c->rt->p->options->keep);
	return true;
}

typedef struct Save { const SaveSet *c; const Progress *progress; SavePaths at; } Save;
typedef bool SaveStage(Save *s, Diag *d);

/* Rank 0 makes the folder and, where all ranks write into the same files, files of full length without elements. */
static bool create(Save *s, Diag *d)
{
	if (!save_make_folder(&s->at, d))
		return false;
	for (int i = 0; i < CHECKPOINT_SECTIONS && !s->c->own_files; i++)
		if (save_has_file(s->c, i) && !create_file(&s->at, &s->c->file[i], d))
			return false;
	return true;
}

/* Whether this rank writes into a file; rank 0 always does, to sync the header that it wrote. */
static bool takes_part(const SaveSet *c, int section)
{
	const SaveFile *f = &c->file[section];
	bool any = c->rt->p->world.rank == 0;
	for (int i = 0; i < f->n; i++)
		any = any || f->part[i].writes;
	return any && save_has_file(c, section);
}

/* Every rank writes the elements it holds.  Shares of checksums for what it does not write are cleared, because an
 * earlier save may have set them. */
static bool fill(Save *s, Diag *d)
{
	for (int i = 0; i < CHECKPOINT_SECTIONS; i++) {
		SaveFile file = s->c->file[i];
		for (int k = 0; k < file.n; k++)
			file.at[k].crc = 0;
		if (takes_part(s->c, i) && !save_write_file(s->c, &s->at, &file, d))
			return false;
	}
	return true;
}

/* Shares of checksums of all ranks, in the order of a file's tensors; they are combined by exclusive or. */
typedef struct Shares { SafeTensor *at; int64_t first; int ranks; } Shares;

static void add_shares(void *context, const char *const *from, int64_t at, int64_t n)
{
	const Shares *s = context;
	for (int64_t i = 0; i < n / 4; i++) {
		uint32_t sum = 0, share;
		for (int r = 0; r < s->ranks; r++) {
			memcpy(&share, from[r] + i * 4, sizeof(share));
			sum ^= share;
		}
		s->at[s->first + at / 4 + i].crc = sum;
	}
}

static void join_crcs(const SaveSet *c, SaveFile *f)
{
	Arena *a = arena_new();
	Staging window = staging_find(c->rt, a);
	Shares s = {f->at, 0, c->rt->p->world.size};
	int64_t most = window.bytes / LAYOUT_ALIGN * LAYOUT_ALIGN / (int64_t)sizeof(uint32_t);
	for (int64_t n; s.first < f->n; s.first += n) {
		n = MIN(most, f->n - s.first);
		for (int64_t i = 0; i < n; i++)
			memcpy(window.at + i * (int64_t)sizeof(uint32_t), &f->at[s.first + i].crc, sizeof(uint32_t));
		staging_collect(c->rt, &window, n * (int64_t)sizeof(uint32_t), add_shares, &s);
	}
	arena_free(a);
}

/* Rank 0 finishes a file that all ranks wrote into. */
static bool finish_file(const SavePaths *at, const SaveFile *f, int rank, Diag *d)
{
	int fd = open_file(at, f, rank, d);
	if (fd < 0)
		return false;
	return save_moved(at, file_close(fd, write_crcs(fd, f) && !fsync(fd))) || failed(at, f->name, d);
}

/* Rank 0 writes what makes the folder a checkpoint. */
static bool complete(Save *s, Diag *d)
{
	const SaveSet *c = s->c;
	Buf state = {0}, index = {0};
	for (int i = 0; i < CHECKPOINT_SECTIONS && !c->own_files; i++)
		if (save_has_file(c, i) && !finish_file(&s->at, &c->file[i], c->rt->p->world.rank, d))
			return false;
	save_put_state(&state, c, s->progress);
	if (c->kind != CHECKPOINT_FULL)
		save_put_index(&index, c);
	bool ok = save_complete(c, &s->at, state.at, index.at ? index.at : "", d);
	buf_free(&state);
	buf_free(&index);
	return ok;
}

/* Runs a stage; true if it succeeded on all ranks. */
static bool stage(Save *s, SaveStage *run, bool all_ranks, Diag *d)
{
	const Rt *rt = s->c->rt;
	Held held;
	Diag *later = agree_begin(&held, d);
	agree_files_begin(rt->p->control);
	bool ok = (!all_ranks && !save_leads(s->c)) || run(s, later);
	agree_files_end(rt->p->control);
	return agree_end(rt, &held, ok, d);
}

void save_ended(const SaveSet *c, const SavePaths *at)
{
	if (places_are_several(c->rt->p->places) && save_leads(c))
		tidy_keep(at, c->rt->p->options->keep);
}

bool save_run(const SaveSet *c, const Progress *p, Diag *d)
{
	Arena *a = arena_new();
	Save s = {c, p, save_paths(c, a, p->step)};
	average_begin(c->rt);
	bool gathers = places_gather(c->rt->p->places);
	bool ok = stage(&s, create, false, d) && (gathers ? gather_files(c, &s.at, d) : stage(&s, fill, true, d));
	for (int i = 0; i < CHECKPOINT_SECTIONS && ok && !c->own_files && !gathers; i++)
		if (c->file[i].n)
			join_crcs(c, &(SaveFile){.at = c->file[i].at, .n = c->file[i].n});
	ok = ok && stage(&s, complete, false, d);
	average_end(c->rt);
	if (!ok && save_leads(c))
		save_drop(&s.at);
	if (ok)
		save_ended(c, &s.at);
	arena_free(a);
	return ok;
}
