/* base/unfinished.c: removes unfinished files and folders when writing fails or a signal ends the process.
 *
 * A path is listed before it is made.  Both the writer that fails and the handler of a signal walk that list, and
 * removing a path twice does no harm. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/unfinished.h"

static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
/* One list per process, because a signal handler gets no argument.  It is changed only while these signals are
 * blocked. */
static struct {
	VEC(const char *) paths;
	Arena *arena;
	int depth;
	struct sigaction before[COUNT_OF(ending)];
} made;

static sigset_t block(void)
{
	sigset_t set, old;
	sigemptyset(&set);
	for (int i = 0; i < COUNT_OF(ending); i++)
		sigaddset(&set, ending[i]);
	sigprocmask(SIG_BLOCK, &set, &old);
	return old;
}

static void unblock(sigset_t old)
{
	int error = errno;
	sigprocmask(SIG_SETMASK, &old, NULL);
	errno = error;
}

static void remove_from(int mark)
{
	for (int i = made.paths.n - 1; i >= mark; i--)
		if (unlink(made.paths.at[i]))
			rmdir(made.paths.at[i]);
}

static void on_signal(int number)
{
	remove_from(0);
	signal(number, SIG_DFL);
	raise(number);
}

static void catch_signals(void)
{
	struct sigaction now = {.sa_handler = on_signal};
	sigemptyset(&now.sa_mask);
	for (int i = 0; i < COUNT_OF(ending); i++) {
		sigaction(ending[i], NULL, &made.before[i]);
		if (made.before[i].sa_handler == SIG_DFL)
			sigaction(ending[i], &now, NULL);
	}
}

int unfinished_begin(void)
{
	sigset_t old = block();
	if (!made.depth++) {
		made.arena = arena_new();
		catch_signals();
	}
	unblock(old);
	return made.paths.n;
}

/* "a/b/" -> "a/b" */
static const char *strip(const char *path)
{
	size_t n = strlen(path);
	while (n > 1 && path[n - 1] == '/')
		n--;
	return arena_strndup(made.arena, path, n);
}

/* The folder that path lies in; path must not end in a slash. */
static const char *folder_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	return !slash ? "." : slash == path ? "/" : arena_strndup(made.arena, path, (size_t)(slash - path));
}

static const char *temporary(const char *path)
{
	const char *whole = strip(path), *slash = strrchr(whole, '/');
	return arena_printf(made.arena, "%s/.%s.%d", folder_of(whole), slash ? slash + 1 : whole, (int)getpid());
}

void unfinished_add(const char *path)
{
	sigset_t old = block();
	vec_push(made.arena, &made.paths, arena_strdup(made.arena, path));
	unblock(old);
}

const char *unfinished_file(const char *path)
{
	const char *temp = temporary(path);
	unfinished_add(temp);
	return temp;
}

/* A folder of this name that exists already belongs to another process, so it is not listed. */
const char *unfinished_folder(const char *path)
{
	const char *temp = temporary(path);
	sigset_t old = block();
	bool ok = !mkdir(temp, 0777);
	if (ok)
		vec_push(made.arena, &made.paths, temp);
	unblock(old);
	return ok ? temp : NULL;
}

bool unfinished_move(const char *temp, const char *path)
{
	const char *to = strip(path);
	size_t n = strlen(temp);
	sigset_t old = block();
	bool ok = !rename(temp, to);
	for (int i = 0; i < made.paths.n && ok; i++)
		if (!strncmp(made.paths.at[i], temp, n) && (!made.paths.at[i][n] || made.paths.at[i][n] == '/'))
			made.paths.at[i] = arena_printf(made.arena, "%s%s", to, made.paths.at[i] + n);
	unblock(old);
	return ok && file_sync(folder_of(to));
}

void unfinished_end(int mark, bool ok)
{
	int error = errno;
	sigset_t old = block();
	if (!ok) {
		remove_from(mark);
		made.paths.n = mark;
	}
	if (!--made.depth) {
		for (int i = 0; i < COUNT_OF(ending); i++)
			sigaction(ending[i], &made.before[i], NULL);
		arena_free(made.arena);
		made.paths.at = NULL;
		made.paths.n = made.paths.cap = 0;
	}
	unblock(old);
	errno = error;
}

bool unfinished_write(const char *path, UnfinishedPut *put, const void *context, Diag *d)
{
	int mark = unfinished_begin();
	const char *temp = unfinished_file(path);
	FILE *f = fopen(temp, "w");
	if (f)
		put(f, context);
	bool ok = file_flush_close(f) && unfinished_move(temp, path);
	if (!ok)
		diag_unwritten(d, path);
	unfinished_end(mark, ok);
	return ok;
}
