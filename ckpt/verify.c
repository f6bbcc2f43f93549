/* ckpt/verify.c: shardc ckpt verify: checks all headers, sizes, indices and checksums of checkpoints and files.
 *
 * An error does not end the check, so everything that is damaged is named. */
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/ckpt.h"

typedef struct Found { int checkpoints, damaged; } Found;

static void verify(const char *path, Found *found, Arena *a, Diag *d)
{
	Checkpoint *c = checkpoint_is_folder(path, a) ? checkpoint_open_here(a, path, false, d) : ckpt_open(a, path, d);
	int64_t tensors = 0, bare = 0, bytes = 0;
	bool ok = c && checkpoint_verify(c, 0, 1, true, d);
	for (int f = 0; c && f < c->n_files; f++)
		for (int i = 0; i < c->files[f]->n; i++) {
			const SafeTensor *t = &c->files[f]->tensors[i];
			tensors++;
			bare += !t->has_crc;
			bytes += t->bytes;
		}
	found->checkpoints++;
	found->damaged += !ok;
	if (ok)
		printf("%s: %" PRId64 " tensors, %" PRId64 " bytes in %d file(s), are as they were written\n",
			str_escape(a, ESCAPE_TERMINAL, path), tensors, bytes, c->n_files);
	if (ok && c->part)
		diag_note(d, path, "has the files of %d rank(s): the others are in the folders of other hosts, and were not "
			"looked at", (int)json_array_size(json_object_get(c->part, "ranks")));
	if (ok && bare)
		diag_note(d, path, "%" PRId64 " tensor(s) have no checksum: only their sizes were checked", bare);
	if (c)
		checkpoint_close(c);
}

static int by_name(const void *pa, const void *pb)
{
	const char *const *a = pa, *const *b = pb;
	return strcmp(*a, *b);
}

/* Verifies each checkpoint in a folder of checkpoints, oldest first; false: path is not such a folder. */
static bool verify_all(const char *path, Found *found, Arena *a, Diag *d)
{
	VEC(const char *) names = {0};
	DIR *dir = opendir(path);
	int64_t step;
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (checkpoint_is_name(e->d_name, &step))
			vec_push(a, &names, arena_strdup(a, e->d_name));
	if (dir)
		closedir(dir);
	if (names.n)
		qsort(names.at, (size_t)names.n, sizeof(*names.at), by_name);
	for (int i = 0; i < names.n; i++)
		verify(arena_printf(a, "%s/%s", path, names.at[i]), found, a, d);
	return names.n;
}

int ckpt_verify(const CkptCall *call)
{
	Diag *d = call->d;
	Arena *a = arena_new();
	CkptArgs args;
	Found found = {0};
	if (ckpt_parse(call, NULL, 0, 1, 0, a, &args)) {
		for (int i = 0; i < args.n; i++)
			if (checkpoint_is_folder(args.at[i], a) || !verify_all(args.at[i], &found, a, d))
				verify(args.at[i], &found, a, d);
		if (found.damaged)
			diag_error(d, "shardc ckpt verify", "%d of %d damaged or unreadable", found.damaged, found.checkpoints);
		args.status = found.damaged ? CKPT_INPUT : CKPT_OK;
	}
	arena_free(a);
	return args.status;
}
