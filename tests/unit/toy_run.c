/* tests/unit/toy_run.c: the program of toy.h run as one process. */
#include "tests/unit/toy_run.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

char toy_said[1 << 16];
ToyData toy_data;
static char folder[32], old_folder[4096];

int toy_enter(void)
{
	snprintf(folder, sizeof(folder), "/tmp/test_toy_" "XX" "XX" "XX");
	if (!getcwd(old_folder, sizeof(old_folder)) || !mkdtemp(folder) || chdir(folder))
		return 1;
	toy_draw(&toy_data, 10);
	toy_write_data(&toy_data);
	toy_write_weights();
	return 0;
}

int toy_leave(void)
{
	char command[64];
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return chdir(old_folder) || system(command);
}

void toy_read_text(const char *path)
{
	FILE *f = fopen(path, "r");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	toy_said[fread(toy_said, 1, sizeof(toy_said) - 1, f)] = 0;
	fclose(f);
}

pid_t toy_start(const RtModel *m, const char *flags, rlim_t file_limit)
{
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		char copy[2048];
		struct rlimit limit = {file_limit, file_limit};
		if (file_limit)
			setrlimit(RLIMIT_FSIZE, &limit);
		snprintf(copy, sizeof(copy), "%s", flags);
		toy_main(m, copy, "output");
	}
	return pid;
}

int toy_finish(pid_t pid)
{
	int status;
	waitpid(pid, &status, 0);
	toy_read_text("output");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int toy_run(const RtModel *m, const char *flags)
{
	return toy_finish(toy_start(m, flags, 0));
}

void toy_remove(const char *what)
{
	char command[256];
	snprintf(command, sizeof(command), "rm -rf %s", what);
	CU_ASSERT_EQUAL(system(command), 0);
}

bool toy_same_files(const char *a, const char *b)
{
	char command[512];
	snprintf(command, sizeof(command), "cmp -s %s %s", a, b);
	return system(command) == 0;
}
