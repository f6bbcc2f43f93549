/* runtime/store/tidy.c: what goes from the folder of --save: checkpoints beyond --keep, and what killed runs began and
 * left.
 *
 * Refuses to remove what is not a checkpoint of this model: a folder without a state.json that says so, one with
 * folders in it, one that a link leads to.  Of what was begun and has no state.json yet, or one that was cut, only
 * files go that a checkpoint has.
 *
 * The one idea: a folder is opened without following a link, looked at, and emptied through what was opened: whatever
 * takes its name meanwhile is not touched.  state.json goes last, so that what a killed run left is still known. */
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

/* A stream over an open folder that leaves it open; NULL: errno tells. */
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

/* Whose checkpoint a folder's state.json says that it is.  NOBODYS: there is none, or it says of no model, as one that
 * was cut. */
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

/* begun: files of a checkpoint alone will do, too. */
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

/* False: errno tells why it is still there. */
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
	bool ok = remove_hidden(dir, strrchr(at->temp, '/') + 1, at->rt->model);
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

/* A checkpoint that goes is renamed first, so that what is left of it never looks like one. */
static void drop(const SavePaths *at, int dir, const char *name)
{
	const char *hidden = arena_printf(at->a, ".%s", name);
	int fd = open_folder(dir, name);
	if (fd >= 0 && may_go(fd, at->rt->model, false) && !renameat(dir, name, dir, hidden) && empty(fd))
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
			save_moved(at, remove_hidden(dir, name, at->rt->model));
		} else if (places_is_token(name)) {
			unlinkat(dir, name, 0); /* of a run that was killed: the ranks of this one have looked for theirs */
		} else if (keep && checkpoint_is_name(name, &step) && compare_names(&name, &self) <= 0 &&
			tidy_may_go(arena_printf(at->a, "%s/%s", at->dir, name), at->rt->model, false)) {
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
