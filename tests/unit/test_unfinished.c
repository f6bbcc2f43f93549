/* tests/unit/test_unfinished.c: unfinished files are removed after a failure or a signal, and no others are. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/unfinished.h"
#include "tests/unit/unit.h"

static char folder[] = "/tmp/test_unfinished_" "XX" "XX" "XX", old_folder[4096];

static bool is_there(const char *path)
{
	return !access(path, F_OK);
}

static bool put(const char *path)
{
	return file_write(path, "x", 1);
}

/* How many entries the folder has. */
static int entries(void)
{
	FILE *f = popen("ls -A | wc -l", "r");
	int n = -1;
	if (!f || fscanf(f, "%d", &n) != 1)
		n = -1;
	if (f)
		pclose(f);
	return n;
}

static bool empty(void)
{
	return entries() == 0;
}

/* A folder with a file in it, under the temporary name; a file that is finished meanwhile.  others: entries that are
 * there before. */
static bool make(int others)
{
	Arena *a = arena_new();
	const char *temp = unfinished_folder("made/"), *in = arena_printf(a, "%s/in", temp);
	unfinished_add(in);
	bool ok = put(in);
	int mark = unfinished_begin();
	const char *file = unfinished_file("file");
	ok = put(file) && unfinished_move(file, "file") && ok;
	unfinished_end(mark, ok);
	ok = ok && is_there("file") && is_there(in) && !is_there(file) && entries() == others + 2;
	arena_free(a);
	return ok;
}

static int ended_by(int number, bool ignored)
{
	pid_t child = fork();
	if (!child) {
		signal(number, ignored ? SIG_IGN : SIG_DFL);
		int mark = unfinished_begin();
		bool ok = make(0);
		raise(number);
		unfinished_end(mark, false);
		_exit(ok ? 7 : 8);
	}
	int status = 0;
	CU_ASSERT_EQUAL(waitpid(child, &status, 0), child);
	return status;
}

static void test_signals(void)
{
	static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
	for (int i = 0; i < COUNT_OF(numbers); i++) {
		int status = ended_by(numbers[i], false);
		CU_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == numbers[i] && empty());
		status = ended_by(numbers[i], true);
		CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 7 && empty());
	}
}

/* Signals are what they were. */
static void test_after(void)
{
	struct sigaction now;
	for (int i = 0; i < 2; i++) {
		unfinished_end(unfinished_begin(), !i);
		sigaction(SIGTERM, NULL, &now);
		CU_ASSERT(now.sa_handler == SIG_DFL);
	}
}

static void test_kept(void)
{
	int mark = unfinished_begin();
	CU_ASSERT(make(0));
	const char *temp = unfinished_folder("other");
	CU_ASSERT(unfinished_move(temp, "other"));
	unfinished_end(mark, true);
	CU_ASSERT(is_there("file") && is_there("other") && entries() == 3);
	CU_ASSERT_EQUAL(system("rm -rf .made* file other"), 0);
	CU_ASSERT(empty());
}

/* An inner failure takes its own; an outer one what inner ones finished, under their new names. */
static void test_failures(void)
{
	CU_ASSERT(put("user"));
	int outer = unfinished_begin(), inner = unfinished_begin();
	CU_ASSERT(make(1));
	errno = EXDEV;
	unfinished_end(inner, false);
	CU_ASSERT(errno == EXDEV && entries() == 1);
	inner = unfinished_begin();
	const char *temp = unfinished_folder("user");
	CU_ASSERT_PTR_NOT_NULL_FATAL(temp);
	CU_ASSERT(!unfinished_folder("user") && errno == EEXIST); /* one of this name is being made */
	CU_ASSERT(!unfinished_move(temp, "user") && errno == ENOTDIR);
	CU_ASSERT(make(2));
	CU_ASSERT(unfinished_move(temp, "new"));
	unfinished_end(inner, true);
	unfinished_end(outer, false);
	CU_ASSERT(is_there("user") && entries() == 1 && !unlink("user"));
}

static int enter(void)
{
	return !getcwd(old_folder, sizeof(old_folder)) || !mkdtemp(folder) || chdir(folder);
}

static int leave(void)
{
	return chdir(old_folder) || rmdir(folder);
}

void suite_unfinished(void)
{
	CU_pSuite s = CU_add_suite("unfinished", enter, leave);
	CU_add_test(s, "a signal removes what is being made", test_signals);
	CU_add_test(s, "signals are what they were", test_after);
	CU_add_test(s, "what succeeded is kept", test_kept);
	CU_add_test(s, "failures remove their own", test_failures);
}
