/* runtime/store/tidy.c: removes checkpoints beyond --keep from the folder of --save, and what killed runs left
 * unfinished.
 *
 * Never removes what is not a checkpoint of this model: a folder without a state.json that names the model, one with
 * folders in it, one behind a link.  From an unfinished folder without a complete state.json, it removes only files
 * with names that checkpoints use.
 *
 * A folder is opened without following links, inspected, and emptied through the open descriptor, so anything that
 * takes its name meanwhile is not touched.  state.json is removed last, so that a folder which a killed run leaves
 * half-removed can still be recognised. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/store/private.h"

static const char state_name[] = "state.json";

static int open_folder(int dir, const char *name)
{
	return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static int open_save(const SavePaths *at)
{
	return open(at->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* A stream over an open folder; closing the stream leaves the folder open.  NULL: errno is set. */
static DIR *list(int folder)
{
	int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	if (fd >= 0 && !d)
		close(fd);
	return d;
}

static struct dirent *next(DIR *d)
{
	struct dirent *e = readdir(d);
	while (e && (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")))
		e = readdir(d);
	return e;
}

/* Whose checkpoint a folder is, according to its state.json.  NOBODYS: there is no state.json, or it names no model
 * because it was cut. */
typedef enum StateOf { NOBODYS, OWN, ANOTHERS } StateOf;

static StateOf whose_state(int folder, const RtModel *m)
{
	struct stat st;
	int fd = openat(folder, state_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? NOBODYS : ANOTHERS;
	bool regular = !fstat(fd, &st) && S_ISREG(st.st_mode);
	json_t *root = regular ? json_loadfd(fd, 0, NULL) : NULL;
	const char *model = json_string_value(json_object_get(root, "model"));
	bool same = model && !strcmp(model, m->name), whole =
		json_integer_value(json_object_get(root, "format")) == 1 && json_is_object(json_object_get(root, "layout"));
	StateOf of = !regular || (model && !same) ? ANOTHERS : same && whole ? OWN : NOBODYS;
	json_decref(root);
	close(fd);
	return of;
}

/* "model.safetensors", "optim-00001-of-00004.safetensors", .. */
static bool is_checkpoint_file(const char *name)
{
	if (!strcmp(name, state_name) || !strcmp(name, "index.json"))
		return true;
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++) {
		size_t n = strlen(checkpoint_sections[s]);
		const char *rest = name + n;
		if (!strncmp(name, checkpoint_sections[s], n) &&
			(!strcmp(rest, ".safetensors") || !strcmp(rest + strspn(rest, "-of0123456789"), ".safetensors")))
			return true;
	}
	return false;
}

/* begun: a folder with just files of a checkpoint is enough. */
static bool may_go(int folder, const RtModel *m, bool begun)
{
	DIR *d = list(folder);
	bool known = d, flat = d;
	for (struct dirent *e; d && (e = next(d));) {
		struct stat st;
		flat = flat && !fstatat(folder, e->d_name, &st, AT_SYMLINK_NOFOLLOW) && !S_ISDIR(st.st_mode);
		known = known && is_checkpoint_file(e->d_name);
	}
	if (d)
		closedir(d);
	StateOf of = whose_state(folder, m);
	return flat && (of == OWN || (begun && known && of == NOBODYS));
}

static bool empty(int folder)
{
	DIR *d = list(folder);
	for (struct dirent *e; d && (e = next(d));)
		if (strcmp(e->d_name, state_name))
			unlinkat(folder, e->d_name, 0);
	if (d)
		closedir(d);
	return !unlinkat(folder, state_name, 0) || errno == ENOENT;
}

/* False: it is still there, and errno is set. */
static bool remove_hidden(int dir, const char *name, const RtModel *m)
{
	int fd = open_folder(dir, name);
	if (fd < 0)
		return errno == ENOENT;
	bool ok = may_go(fd, m, true);
	errno = EEXIST;
	ok = ok && empty(fd) && !unlinkat(dir, name, AT_REMOVEDIR);
	int error = errno;
	close(fd);
	errno = error;
	return ok;
}

bool tidy_begun(const SavePaths *at)
{
	int dir = open_save(at), error;
	if (dir < 0)
		return errno == ENOENT;
	bool ok = remove_hidden(dir, strrchr(at->temp, '/') + 1, at->model);
	error = errno;
	close(dir);
	errno = error;
	return ok;
}

bool tidy_may_go(const char *path, const RtModel *m, bool begun)
{
	int fd = open_folder(AT_FDCWD, path);
	bool ok = fd >= 0 && may_go(fd, m, begun);
	if (fd >= 0)
		close(fd);
	return ok;
}

static int compare_names(const void *a, const void *b)
{
	const char *const *pa = a, *const *pb = b;
	size_t na = strlen(*pa), nb = strlen(*pb);
	return na != nb ? (na < nb ? -1 : 1) : strcmp(*pa, *pb);
}

/* Removes a checkpoint, which is renamed first, so that a remainder never looks like one. */
static void drop(const SavePaths *at, int dir, const char *name)
{
	const char *hidden = arena_printf(at->a, ".%s", name);
	int fd = open_folder(dir, name);
	if (fd >= 0 && may_go(fd, at->model, false) && !renameat(dir, name, dir, hidden) && empty(fd))
		unlinkat(dir, hidden, AT_REMOVEDIR);
	if (fd >= 0)
		close(fd);
}

void tidy_keep(const SavePaths *at, int64_t keep)
{
	VEC(const char *) names = {0};
	int dir = open_save(at);
	DIR *d = dir < 0 ? NULL : list(dir);
	for (struct dirent *e; d && (e = next(d));) {
		const char *name = arena_strdup(at->a, e->d_name), *self = at->name;
		int64_t step;
		if (name[0] == '.' && checkpoint_is_name(name + 1, &step)) {
			save_moved(at, remove_hidden(dir, name, at->model));
		} else if (places_is_token(name)) {
			unlinkat(dir, name, 0); /* left by a killed run: the ranks of this one have already finished looking for
			                         * theirs */
		} else if (keep && checkpoint_is_name(name, &step) && compare_names(&name, &self) <= 0 &&
			tidy_may_go(arena_printf(at->a, "%s/%s", at->dir, name), at->model, false)) {
			vec_push(at->a, &names, name);
		}
	}
	if (d)
		closedir(d);
	if (names.n)
		qsort(names.at, (size_t)names.n, sizeof(*names.at), compare_names);
	for (int i = 0; i + keep < names.n; i++) {
		drop(at, dir, names.at[i]);
		save_moved(at, true);
	}
	if (dir >= 0)
		close(dir);
}
