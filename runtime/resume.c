/* runtime/resume.c: a checkpoint back into the arenas, the counters and the flags.
 *
 * Refuses a checkpoint whose tensors are not exactly the program's, by name, shape and element type; says
 * what was different (versions, threads, flags) where the run still continues.
 *
 * The one idea: flags that shape the numbers are kept in state.json as the text they were given in; a
 * flag that is given again wins, and the change is said. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/internal.h"

static bool has_state(const char *dir, Arena *a)
{
	struct stat st;
	return !stat(arena_printf(a, "%s/state.json", dir), &st);
}

bool resume_find(const RtOptions *o, Arena *a, const char **dir, Diag *d)
{
	*dir = NULL;
	if (!o->resume)
		return true;
	bool automatic = !strcmp(o->resume, "auto");
	const char *base = automatic ? o->save : o->resume;
	const char *latest = arena_printf(a, "%s/latest", base);
	if (!automatic && has_state(base, a))
		*dir = base;
	else if (has_state(latest, a))
		*dir = latest;
	if (*dir || automatic)
		return true;
	diag_error(d, base,
		"neither state.json nor latest/state.json is there: not a checkpoint, nor a folder of them");
	return false;
}

static void note_change(json_t *root, const char *key, const char *now, const char *dir, Diag *d)
{
	const char *then = json_string_value(json_object_get(root, key));
	if (then && strcmp(then, now ? now : ""))
		diag_note(d, dir,
			"%s were \"%s\" when it was saved and are \"%s\" now: the same bits are not promised", key, then,
			now ? now : "");
}

static bool read_flags(json_t *flags, const char *dir, RtOptions *o, Diag *d)
{
	for (int i = 0; i < OPT_COUNT; i++) {
		const char *then = json_string_value(json_object_get(flags, option_info[i].flag));
		if (!option_info[i].saved || !then)
			continue;
		if (o->text[i] && strcmp(o->text[i], then))
			diag_note(d, dir, "--%s was %s and is %s now", option_info[i].flag, then, o->text[i]);
		if (!o->text[i] && !options_set(o, (OptionId)i, arena_strdup(o->arena, then), dir, d))
			return false;
	}
	return true;
}

static bool read_count(json_t *root, const char *key, int64_t *out)
{
	json_t *v = json_object_get(root, key);
	*out = json_integer_value(v);
	return json_is_integer(v) && *out >= 0 && *out <= INT64_C(1) << 56;
}

static bool read_root(
	json_t *root, const char *path, const RtModel *model, RtOptions *o, Progress *p, Diag *d)
{
	int64_t format = 0;
	if (!read_count(root, "format", &format) || format != 1 || !read_count(root, "step", &p->step) ||
		!read_count(root, "updates", &p->updates) || !read_count(root, "samples", &p->samples)) {
		diag_error(d, path, "format 1 with step, updates and samples was expected");
		return false;
	}
	note_change(root, "versions", model->versions, path, d);
	note_change(root, "options", model->options, path, d);
	int64_t threads = json_integer_value(json_object_get(json_object_get(root, "layout"), "threads"));
	if (threads && threads != device_threads())
		diag_note(d, path, "%" PRId64 " threads then, %d now: the same bits are not promised", threads,
			device_threads());
	if (!read_flags(json_object_get(root, "flags"), path, o, d))
		return false;
	int64_t steps;
	if (!o->text[OPT_steps] && read_count(root, "steps", &steps))
		return options_set(o, OPT_steps, arena_printf(o->arena, "%" PRId64, steps), path, d);
	return true;
}

bool resume_read_state(const char *dir, const RtModel *model, RtOptions *o, Progress *p, Diag *d)
{
	json_error_t error;
	const char *path = arena_printf(o->arena, "%s/state.json", dir);
	json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
	if (!root) {
		diag_error(d, path, "%s (line %d)", error.text, error.line);
		return false;
	}
	bool ok = read_root(root, path, model, o, p, d);
	json_decref(root);
	return ok;
}

static bool copy_tensor(const SafeFile *f, const SafeTensor *want, Diag *d)
{
	char has[160], wants[160];
	const SafeTensor *t = safetensors_find(f, want->name);
	if (!t) {
		diag_error(d, f->path, "tensor \"%s\" is missing: the checkpoint is of another model or optimizer",
			want->name);
		return false;
	}
	bool same = t->dtype == want->dtype && t->rank == want->rank;
	for (int i = 0; same && i < t->rank; i++)
		same = t->dim[i] == want->dim[i];
	if (!same) {
		diag_error(d, f->path, "tensor \"%s\": %s, the program has %s", t->name,
			npy_shape_text(has, sizeof(has), t->dtype, t->rank, t->dim),
			npy_shape_text(wants, sizeof(wants), want->dtype, want->rank, want->dim));
		return false;
	}
	memcpy((void *)(uintptr_t)want->data, t->data, (size_t)t->bytes);
	return true;
}

static bool load_file(const CheckpointList *list, const char *path, Arena *a, Diag *d)
{
	SafeFile *f = safetensors_open(a, path, d);
	bool ok = f;
	for (int i = 0; i < list->n && ok; i++)
		ok = copy_tensor(f, &list->at[i], d);
	if (ok && f->n != list->n) {
		diag_error(d, path, "%d tensors, the program has %d: the checkpoint is of another model or optimizer",
			f->n, list->n);
		ok = false;
	}
	if (f)
		safetensors_close(f);
	return ok;
}

bool resume_load(const Checkpoint *c, const char *dir, Arena *a, Diag *d)
{
	return load_file(&c->model, arena_printf(a, "%s/model.safetensors", dir), a, d) &&
		load_file(&c->optim, arena_printf(a, "%s/optim.safetensors", dir), a, d);
}
