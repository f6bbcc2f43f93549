/* runtime/store/folder.c: the folder that a run saves to: which checkpoints are in it, and whether the folder belongs
 * to this run.
 *
 * Refuses a folder that another run saves to, or that has checkpoints of another model, or of later steps than this run
 * begins at: those belong to another run, and this one would overwrite them.  Also refuses what would otherwise fail
 * only at the first save: a folder in which no file can be made, and files in the place of this run's checkpoints or
 * `latest`.
 *
 * A run owns its folder from its first to its last step, by a lock on the folder that the system releases when the
 * process ends.  So no run overwrites what another wrote, and a killed run leaves no lock behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "runtime/store/private.h"

typedef struct Found { const char *name; int64_t step; bool hidden; } Found; /* hidden: it has a temporary name, as
                                                                              * during a save */
typedef VEC(Found) FoundList;

static int by_falling_step(const void *pa, const void *pb)
{
	const Found *a = pa, *b = pb;
	if (a->step != b->step)
		return a->step < b->step ? 1 : -1;
	return a->hidden - b->hidden;
}

/* All entries that look like checkpoints, the newest first; none if the folder does not exist. */
static FoundList list_folder(const char *dir, Arena *a)
{
	FoundList list = {0};
	DIR *d = opendir(dir);
	for (struct dirent *e; d && (e = readdir(d));) {
		int64_t step;
		bool hidden = e->d_name[0] == '.';
		if (!checkpoint_is_name(e->d_name + hidden, &step))
			continue;
		Found f = {arena_strdup(a, e->d_name), step, hidden};
		vec_push(a, &list, f);
	}
	if (d)
		closedir(d);
	if (list.n)
		qsort(list.at, (size_t)list.n, sizeof(*list.at), by_falling_step);
	return list;
}

/* Whether headers and index show a checkpoint to be complete; else *why, allocated in a, is the reason why not. */
static bool is_complete(const char *path, const char **model, bool *part, const char **why, Arena *a)
{
	char *text = NULL;
	size_t n = 0;
	Diag d = {.out = open_memstream(&text, &n), .max_errors = 1};
	Checkpoint *c = checkpoint_open_here(a, path, false, &d);
	if (c) {
		const char *name = json_string_value(json_object_get(c->state, "model"));
		*model = arena_strdup(a, name ? name : "");
		*part = c->part;
		checkpoint_close(c);
	}
	fclose(d.out);
	*why = arena_strndup(a, text, strcspn(text, "\n"));
	free(text);
	return c;
}

const char *folder_newest(const char *dir, Arena *a, Diag *d)
{
	FoundList list = list_folder(dir, a);
	for (int i = 0; i < list.n; i++) {
		const char *path = arena_printf(a, "%s/%s", dir, list.at[i].name), *model, *why;
		bool part;
		if (list.at[i].hidden)
			diag_note(d, path, "passed over: it was not finished");
		else if (is_complete(path, &model, &part, &why, a))
			return path;
		else
			diag_note(d, path, "passed over: %s", why);
	}
	return NULL;
}

/* Locks the folder itself and returns its descriptor; -1 after a message. */
static int lock(const char *dir, Diag *d)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) {
		diag_error(d, dir, "%s: --save needs a folder", strerror(errno));
		return -1;
	}
	if (!flock(fd, LOCK_EX | LOCK_NB))
		return fd;
	if (errno != EWOULDBLOCK) {
		diag_note(d, dir, "its file system has no locks (%s): that no other run saves there is not checked",
			strerror(errno));
		return fd;
	}
	diag_error(d, dir, "another run saves to this folder: give this one a folder of its own");
	close(fd);
	return -1;
}

/* parts_are_newer: as for folder_open. */
static bool check_contents(
	const char *dir, const RtModel *m, int64_t first_step, bool parts_are_newer, Arena *a, Diag *d)
{
	FoundList list = list_folder(dir, a);
	for (int i = 0; i < list.n; i++) {
		const char *path = arena_printf(a, "%s/%s", dir, list.at[i].name), *model, *why;
		bool part;
		if (list.at[i].hidden || !is_complete(path, &model, &part, &why, a))
			continue;
		if (strcmp(model, m->name)) {
			diag_error(d, path, "is a checkpoint of model \"%s\", this program trains \"%s\": save to another folder",
				model, m->name);
			return false;
		}
		if (list.at[i].step > first_step && part && parts_are_newer)
			continue;
		if (list.at[i].step > first_step) {
			diag_error(d, path, "is a checkpoint of another run: this one begins behind step %" PRId64 "; go on from "
				"it with --resume auto, or save to another folder", first_step);
			return false;
		}
		return true;
	}
	return true;
}

/* Whether the run is certain to save this step; a signal can make it save any other. */
static bool is_saved(const RtOptions *o, int64_t step, int64_t first_step)
{
	return step > first_step && (step == o->steps || (step < o->steps && o->save_every && step % o->save_every == 0));
}

/* Whether saves of this run can make their folders and the link `latest`. */
static bool check_way(const RtOptions *o, const RtModel *m, int64_t first_step, Arena *a, Diag *d)
{
	const char *dir = o->save;
	struct stat st;
	FoundList list = list_folder(dir, a);
	const char *latest = arena_printf(a, "%s/latest", dir), *temp = arena_printf(a, "%s/.latest", dir);
	const char *in_way = !lstat(latest, &st) && !S_ISLNK(st.st_mode) ? latest : !lstat(temp, &st) &&
		S_ISDIR(st.st_mode) ? temp : NULL;
	if (in_way)
		diag_error(d, in_way, "is no link: a run keeps a link of this name to its newest checkpoint; move it away, or "
			"save to another folder");
	for (int i = 0; i < list.n && !in_way; i++) {
		const char *path = arena_printf(a, "%s/%s", dir, list.at[i].name);
		if (!is_saved(o, list.at[i].step, first_step) || tidy_may_go(path, m, true))
			continue;
		diag_error(d, path, "stands where this run would save step %" PRId64 ", and is no checkpoint of model \"%s\" "
			"whose place a save may take: move it away, or save to another folder", list.at[i].step, m->name);
		in_way = path;
	}
	return !in_way;
}

/* Notes, once, which checkpoints --keep will neither count nor remove. */
static void note_foreign(const char *dir, const RtModel *m, Arena *a, Diag *d)
{
	FoundList list = list_folder(dir, a);
	for (int i = 0; i < list.n; i++) {
		const char *path = arena_printf(a, "%s/%s", dir, list.at[i].name);
		if (!list.at[i].hidden && !tidy_may_go(path, m, false))
			diag_note(d, path, "--keep lets it be: it is a link, has folders in it, or no state.json of this model");
	}
}

bool folder_open(
	RunFolder *f, const RtOptions *o, const RtModel *m, int64_t first_step, bool parts_are_newer, Diag *d)
{
	const char *dir = o->save;
	Arena *a = arena_new();
	bool there = !access(dir, F_OK);
	*f = (RunFolder){.fd = -1};
	if (!save_make_dir(a, dir)) {
		diag_error(d, dir, "cannot be made: %s: --save needs a folder that can be written to", strerror(errno));
	} else {
		f->made = !there ? dir : NULL;
		f->fd = lock(dir, d);
	}
	bool ok = f->fd >= 0 && check_contents(dir, m, first_step, parts_are_newer, a, d) &&
		check_way(o, m, first_step, a, d);
	if (ok && !places_try(dir, a)) {
		diag_error(d, dir, "a file cannot be made in this folder: %s: --save needs one that can be written to, with "
			"room", strerror(errno));
		ok = false;
	}
	if (ok && o->keep)
		note_foreign(dir, m, a, d);
	if (!ok)
		folder_close(f);
	arena_free(a);
	return ok;
}

/* Also removes a folder that this run made if nothing was saved: rmdir only removes empty ones. */
void folder_close(RunFolder *f)
{
	if (f->fd < 0)
		return;
	if (f->made)
		rmdir(f->made);
	close(f->fd);
	f->fd = -1;
}
