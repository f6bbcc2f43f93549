/* passes/dumps.c: writes the files of --dump-ir and removes those of earlier runs.
 *
 * Without that, a folder would show one run's passes beside those of a longer run before, which no name tells apart.
 * The folder may hold files of the user, so only what is recognised as a dump is removed or replaced. */
#include "passes/dumps.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "passes/passes.h"

#define MARK "# shardc: " /* begins the first line of a dump; a comment to the parser */

/* Whether the open file is the one that this run reads. */
static bool is_input(const Dumps *w, const struct stat *st)
{
	struct stat input;
	return w->input && !stat(w->input, &input) && st->st_dev == input.st_dev && st->st_ino == input.st_ino;
}

/* Whether the open file is a dump. */
static bool is_dump(int fd, const struct stat *st)
{
	char start[64] = {0};
	if (!S_ISREG(st->st_mode) || read(fd, start, sizeof(start) - 1) < 0)
		return false;
	return !strncmp(start, MARK "after pass ", strlen(MARK "after pass "))
		|| !strncmp(start, MARK "before pass ", strlen(MARK "before pass "));
}

/* Opens a file that may be of any kind, to see what it is.  O_NONBLOCK: a pipe could wait for ever. */
static int open_any(int folder, const char *name)
{
	return openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

bool dumps_open(Dumps *w, const char *dir, const char *input, int passes, Arena *a, Diag *d)
{
	*w = (Dumps){.dir = dir, .input = input, .a = a, .passes = passes, .written = map_new(a)};
	if (!mkdir(dir, 0777) || errno == EEXIST)
		return true;
	w->dir = NULL;
	diag_error(d, dir, "cannot make the folder: %s", strerror(errno));
	return false;
}

/* Why the file at this path must not be replaced by a dump; NULL: it may, or there is none. */
static const char *why_kept(const Dumps *w, const char *path)
{
	struct stat st;
	int fd = open_any(AT_FDCWD, path);
	if (fd < 0)
		return errno == ENOENT ? NULL : errno == ELOOP ? "a link is there" : strerror(errno);
	bool known = !fstat(fd, &st), input = known && is_input(w, &st);
	bool ours = known && ((S_ISREG(st.st_mode) && !st.st_size) || is_dump(fd, &st));
	close(fd);
	return input ? "this is the file that is read" : ours ? NULL : "what is there is no dump";
}

/* Makes the file anew, so that nothing is written to what a link shares with it; NULL after a message. */
static FILE *make_dump(const Dumps *w, const char *path, Diag *d)
{
	const char *why = why_kept(w, path);
	if (why) {
		diag_error(d, path, "a dump of this name cannot be written: %s; name another folder by --dump-ir", why);
		return NULL;
	}
	bool gone = !unlink(path) || errno == ENOENT;
	FILE *f = gone ? fopen(path, "wx") : NULL;
	if (!f)
		diag_unwritten(d, path);
	return f;
}

bool dumps_write(Dumps *w, int number, const char *pass, const char *variant, const char *text, Diag *d)
{
	const char *name = arena_printf(w->a, "%02d-%s%s%s.ir", number, pass, variant ? "." : "", variant ? variant : "");
	const char *path = arena_printf(w->a, "%s/%s", w->dir, name);
	map_put(w->written, name, w);
	FILE *f = make_dump(w, path, d);
	if (!f)
		return false;
	if (number)
		fprintf(f, MARK "after pass %d of %d, %s\n%s", number, w->passes, pass, text);
	else
		fprintf(f, MARK "before pass 1 of %d\n%s", w->passes, text);
	bool ok = file_flush_close(f);
	if (!ok)
		diag_unwritten(d, path);
	return ok;
}

/* ---- files of earlier runs ---- */

/* Whether s is what a dump is named by: "PASS", "PASS.VARIANT" or "input". */
static bool is_stage(Arena *a, const char *s)
{
	const char *dot = strchr(s, '.'), *pass = dot ? arena_strndup(a, s, (size_t)(dot - s)) : s;
	bool variant = !dot;
	for (int k = 0; dot && k < VARIANT_COUNT; k++)
		variant = variant || !strcmp(dot + 1, variant_text[k]);
	return variant && (!strcmp(pass, "input") || pass_index(pass) >= 0);
}

static bool is_name_of_dump(Arena *a, const char *name)
{
	const char *s = name, *end = strrchr(name, '.');
	while (isdigit((unsigned char)*s))
		s++;
	return s - name >= 2 && *s == '-' && end > s && !strcmp(end, ".ir")
		&& is_stage(a, arena_strndup(a, s + 1, (size_t)(end - s - 1)));
}

/* Removes the entry if it is a dump of an earlier run. */
static void remove_dump(const Dumps *w, int folder, const char *name, Diag *d)
{
	struct stat st;
	int fd = open_any(folder, name);
	if (fd < 0)
		return;
	bool ours = !fstat(fd, &st) && !is_input(w, &st) && is_dump(fd, &st);
	close(fd);
	if (ours && unlinkat(folder, name, 0))
		diag_warn(d, arena_printf(w->a, "%s/%s", w->dir, name), "a file of an earlier run cannot be removed: %s",
			strerror(errno));
}

void dumps_tidy(const Dumps *w, Diag *d)
{
	DIR *folder = opendir(w->dir);
	if (!folder)
		return;
	for (const struct dirent *e; (e = readdir(folder));)
		if (is_name_of_dump(w->a, e->d_name) && !map_get(w->written, e->d_name))
			remove_dump(w, dirfd(folder), e->d_name, d);
	closedir(folder);
}
