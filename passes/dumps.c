/* passes/dumps.c: writes the files of --dump-ir and removes those of earlier runs.
 *
 * Without that, a folder would show one run's passes beside those of a longer run before, which no name tells apart.
 * The folder may hold files of the user, so only what is recognised as a dump is removed. */
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

bool dumps_open(Dumps *w, const char *dir, int passes, Arena *a, Diag *d)
{
	*w = (Dumps){.dir = dir, .a = a, .passes = passes, .written = map_new(a)};
	if (!mkdir(dir, 0777) || errno == EEXIST)
		return true;
	w->dir = NULL;
	diag_error(d, dir, "cannot make the folder: %s", strerror(errno));
	return false;
}

bool dumps_write(Dumps *w, int number, const char *pass, const char *variant, const char *text, Diag *d)
{
	const char *name = arena_printf(w->a, "%02d-%s%s%s.ir", number, pass, variant ? "." : "", variant ? variant : "");
	const char *path = arena_printf(w->a, "%s/%s", w->dir, name);
	map_put(w->written, name, w);
	FILE *f = fopen(path, "w");
	if (f && number)
		fprintf(f, MARK "after pass %d of %d, %s\n%s", number, w->passes, pass, text);
	else if (f)
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

/* Whether the open file is a dump, and not the file of `input`. */
static bool is_dump(int fd, const struct stat *input)
{
	struct stat st;
	char start[64] = {0};
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || read(fd, start, sizeof(start) - 1) < 0)
		return false;
	if (input && st.st_dev == input->st_dev && st.st_ino == input->st_ino)
		return false;
	return !strncmp(start, MARK "after pass ", strlen(MARK "after pass "))
		|| !strncmp(start, MARK "before pass ", strlen(MARK "before pass "));
}

/* Removes the entry if it is a dump of an earlier run.  O_NONBLOCK: a pipe could wait for ever. */
static void remove_dump(const Dumps *w, int folder, const char *name, const struct stat *input, Diag *d)
{
	int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return;
	bool ours = is_dump(fd, input);
	close(fd);
	if (ours && unlinkat(folder, name, 0))
		diag_warn(d, arena_printf(w->a, "%s/%s", w->dir, name), "a file of an earlier run cannot be removed: %s",
			strerror(errno));
}

void dumps_tidy(const Dumps *w, const char *input, Diag *d)
{
	struct stat st;
	bool read = input && !stat(input, &st);
	DIR *folder = opendir(w->dir);
	if (!folder)
		return;
	for (const struct dirent *e; (e = readdir(folder));)
		if (is_name_of_dump(w->a, e->d_name) && !map_get(w->written, e->d_name))
			remove_dump(w, dirfd(folder), e->d_name, read ? &st : NULL, d);
	closedir(folder);
}
