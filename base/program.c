/* base/program.c: finds the folder of the running program. */
#include <string.h>
#include <unistd.h>

#include "base/base.h"

const char *program_dir(Arena *a)
{
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	if (n <= 0)
		return ".";
	path[n] = '\0';
	char *slash = strrchr(path, '/');
	if (slash)
		*slash = '\0';
	return arena_strdup(a, path);
}
