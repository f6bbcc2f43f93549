/* ckpt/input.c: opens what a command was given: a checkpoint, a folder of checkpoints, or one safetensors file. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/ckpt.h"

const Map *ckpt_meta(const Checkpoint *c, CheckpointSection s)
{
	const char *name = checkpoint_sections[s];
	size_t n = strlen(name);
	for (int i = 0; i < c->n_files; i++) {
		const char *slash = strrchr(c->files[i]->path, '/'), *file = slash ? slash + 1 : c->files[i]->path;
		if (!c->state || (!strncmp(file, name, n) && (file[n] == '.' || file[n] == '-')))
			return c->files[i]->meta;
	}
	return NULL;
}

const char *ckpt_folder(Arena *a, const char *path, Diag *d)
{
	const char *latest = arena_printf(a, "%s/latest", path);
	if (checkpoint_is_folder(path, a) || checkpoint_is_folder(latest, a))
		return checkpoint_is_folder(path, a) ? path : latest;
	diag_error(d, path, "neither state.json nor latest/state.json is there: not a checkpoint, nor a folder of them");
	return NULL;
}

Checkpoint *ckpt_open(Arena *a, const char *path, Diag *d)
{
	struct stat st;
	if (stat(path, &st)) {
		diag_error(d, path, "%s", strerror(errno));
		return NULL;
	}
	if (!S_ISDIR(st.st_mode))
		return checkpoint_open_file(a, path, d);
	const char *dir = ckpt_folder(a, path, d);
	return dir ? checkpoint_open(a, dir, d) : NULL;
}
