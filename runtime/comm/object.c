/* runtime/comm/object.c: finds and opens the shared objects for MPI and NCCL.
 *
 * It searches the folder SHARDRT_LIB, the program's folder, and the program's run path (where the runtime was that it
 * was linked with).  Messages name every folder that was searched. */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/comm/comm.h"

/* The folders of the program's run path, which the loader searches before the system's, if they hold the file or the
 * runtime's library. */
static int run_path(const char *file, Arena *a, const char **out, int most)
{
	Dl_serinfo size, *list;
	void *self = dlopen(NULL, RTLD_NOW);
	int n = 0;
	if (self && !dlinfo(self, RTLD_DI_SERINFOSIZE, &size)) {
		list = arena_alloc(a, size.dls_size);
		memset(list, 0, size.dls_size);
		list->dls_size = size.dls_size;
		list->dls_cnt = size.dls_cnt;
		for (unsigned i = 0; !dlinfo(self, RTLD_DI_SERINFO, list) && i < list->dls_cnt && n < most; i++)
			if (!access(arena_printf(a, "%s/%s", list->dls_serpath[i].dls_name, file), F_OK) ||
				!access(arena_printf(a, "%s/libshardrt.a", list->dls_serpath[i].dls_name), F_OK))
				out[n++] = arena_strdup(a, list->dls_serpath[i].dls_name);
	}
	if (self)
		dlclose(self);
	return n;
}

void *object_open(const ObjectWanted *wanted, const char **path, Arena *a, const char *where, Diag *d)
{
	enum { MOST = 16 };
	const char *dir[MOST + 2], *given = getenv("SHARDRT_LIB"), *searched = "";
	bool named = given && *given;
	int n = 0;
	if (named)
		dir[n++] = given;
	dir[n++] = program_dir(a);
	n += run_path(wanted->file, a, dir + n, MOST);
	for (int i = 0; i < n; i++) {
		*path = arena_printf(a, "%s/%s", dir[i], wanted->file);
		if (access(*path, F_OK)) {
			searched = arena_printf(a, "%s%s%s", searched, *searched ? ", " : "", dir[i]);
			continue;
		}
		void *object = dlopen(*path, RTLD_NOW | RTLD_GLOBAL);
		if (!object)
			diag_error(d, where, "%s cannot be opened: %s", *path, dlerror());
		return object;
	}
	diag_error(d, where, "%s needs %s, which is in none of %s%s; %s, or name its folder in SHARDRT_LIB; %s",
		wanted->needed_by, wanted->file, searched, named ? "" : " (SHARDRT_LIB is not set)", wanted->remedy,
		wanted->instead);
	return NULL;
}

const void *object_symbol(void *object, const char *name)
{
	return dlsym(object, name);
}
