/* runtime/resume.c: a checkpoint back into the arenas, the counters and the flags.
 *
 * Refuses a checkpoint whose tensors are not exactly the program's, by name, shape and element type; says
 * what was different (versions, ranks, threads, flags) where the run still continues.  Every rank copies
 * the elements it holds, however many ranks wrote them; the ranks' own buffers come back when there are as
 * many ranks as then, else every rank gets their average.
 *
 * The one idea: flags that shape the numbers are kept in state.json as the text they were given in; a
 * flag that is given again wins, and the change is said. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* Of programs with a dynamic one; from checkpoints of others it begins at this program's own. */
static bool read_loss_scale(json_t *v, LossScale *out)
{
	LossScale then = {.scale = json_number_value(json_object_get(v, "scale"))};
	if (!v)
		return true;
	if (!(then.scale >= 1 && then.scale <= 0x1p126) || !read_count(v, "good", &then.good))
		return false;
	*out = then;
	return true;
}

/* What a full checkpoint does not depend on, but the bits of what follows do. */
static void note_layout(json_t *layout, const Rt *rt, const char *path, Diag *d)
{
	const struct { const char *key, *what; int64_t now; } counts[] = {
		{"threads", "thread(s) a rank", device_threads()}, {"ranks", "rank(s)", MAX(rt->p->world.size, 1)}};
	for (int i = 0; i < COUNT_OF(counts); i++) {
		int64_t then = json_integer_value(json_object_get(layout, counts[i].key));
		if (then && then != counts[i].now)
			diag_note(d, path, "%" PRId64 " %s then, %" PRId64 " now: the same bits are not promised", then,
				counts[i].what, counts[i].now);
	}
}

static bool read_began(json_t *began, const Rt *rt, int64_t updates, const char *path, Diag *d)
{
	const RtModel *m = rt->model;
	for (int i = 0; i < m->n_tensors; i++) {
		json_t *v = json_object_get(began, m->tensors[i].name);
		int64_t n = json_integer_value(v);
		if (!m->tensors[i].trainable)
			continue;
		if (v && (!json_is_integer(v) || n < 0 || n > updates)) {
			diag_error(d, path, "$.began: \"%s\" should be a number of updates, at most %" PRId64,
				m->tensors[i].name, updates);
			return false;
		}
		optim_set_began(&rt->p->optim, m, i, n);
	}
	return true;
}

static bool read_root(json_t *root, const char *path, const Rt *rt, RtOptions *o, Progress *p, Diag *d)
{
	const RtModel *model = rt->model;
	int64_t format = 0;
	if (!read_count(root, "format", &format) || format != 1 || !read_count(root, "step", &p->step) ||
		!read_count(root, "updates", &p->updates) || !read_count(root, "samples", &p->samples)) {
		diag_error(d, path, "format 1 with step, updates and samples was expected");
		return false;
	}
	if (model->loss_scale.dynamic && !read_loss_scale(json_object_get(root, "loss_scale"), &p->loss_scale)) {
		diag_error(d, path, "loss_scale: a scale of at least 1, and a number of good steps, were expected");
		return false;
	}
	note_change(root, "versions", model->versions, path, d);
	note_change(root, "options", model->options, path, d);
	json_t *layout = json_object_get(root, "layout");
	const char *kind = json_string_value(json_object_get(layout, "kind"));
	if (kind && strcmp(kind, "full")) {
		diag_error(d, path, "a checkpoint of kind \"%s\": this program reads kind \"full\"", kind);
		return false;
	}
	note_layout(layout, rt, path, d);
	if (!read_began(json_object_get(root, "began"), rt, p->updates, path, d))
		return false;
	json_t *hyper = o->hyper ? NULL : json_object_get(root, "hyper");
	if (hyper) {
		rt->p->hyper = hyper_from(rt, hyper, arena_printf(o->arena, "%s, hyper", path), d);
		if (!rt->p->hyper)
			return false;
		hyper_drop(rt->p->hyper, o, path, d);
	}
	if (!read_flags(json_object_get(root, "flags"), path, o, d))
		return false;
	int64_t steps;
	if (!o->text[OPT_steps] && read_count(root, "steps", &steps))
		return options_set(o, OPT_steps, arena_printf(o->arena, "%" PRId64, steps), path, d);
	return true;
}

bool resume_read_state(const char *dir, const Rt *rt, RtOptions *o, Progress *p, Diag *d)
{
	json_error_t error;
	const char *path = arena_printf(o->arena, "%s/state.json", dir);
	json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
	if (!root) {
		diag_error(d, path, "%s (line %d)", error.text, error.line);
		return false;
	}
	bool ok = read_root(root, path, rt, o, p, d);
	json_decref(root);
	return ok;
}

static bool copy_tensor(const Rt *rt, const SafeFile *f, const SafeTensor *want, const CheckpointPart *to, Diag *d)
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
	int64_t n = t->bytes / dtype_info[t->dtype].bytes;
	slice_store(rt, &to->slice, 0, n, t->data, t->dtype);
	slice_store(rt, &to->master, 0, n, t->data, t->dtype);
	return true;
}

/* Tensors of the file that the program has no place for. */
static bool refuse_more(const SafeFile *f, int n, Diag *d)
{
	if (f->n != n)
		diag_error(d, f->path, "%d tensors, the program has %d: the checkpoint is of another model or optimizer",
			f->n, n);
	return f->n == n;
}

static bool load_file(const CheckpointFile *want, const Rt *rt, const char *dir, Arena *a, Diag *d)
{
	SafeFile *f = safetensors_open(a, arena_printf(a, "%s/%s", dir, want->name), d);
	bool ok = f;
	for (int i = 0; i < want->n && ok; i++) {
		ok = copy_tensor(rt, f, &want->at[i], &want->part[i], d);
		agree_alive(rt);
	}
	ok = ok && refuse_more(f, want->n, d);
	if (f)
		safetensors_close(f);
	return ok;
}

/* ---- states: what is trained now need not be what was trained then ---- */

/* How many states of a parameter the file has. */
static int states_in(const SafeFile *f, const Optimizer *opt, const RtTensor *t, Arena *a)
{
	int n = 0;
	for (int k = 0; k < opt->n_states; k++)
		n += safetensors_find(f, arena_printf(a, "%s.%s", t->name, optim_state_name(opt, k))) != NULL;
	return n;
}

/* The parameter, not trained by this program, whose whole states the file has: they are left out. */
static int count_frozen(const SafeFile *f, const Rt *rt, Arena *a, const char **first)
{
	const RtModel *m = rt->model;
	int n = 0;
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		if (t->kind != RT_PARAM || t->trainable || states_in(f, &rt->p->optim, t, a) != rt->p->optim.n_states)
			continue;
		*first = n++ ? *first : t->name;
	}
	return rt->p->optim.n_states ? n : 0;
}

static void zero_states(const Rt *rt, const RtTensor *t)
{
	for (int k = 0; k < rt->p->optim.n_states; k++) {
		Slice s = slice_state(rt, t, k);
		device_zero(rt, s.at, s.n * (int64_t)sizeof(float));
	}
}

/* Parameters of which the file has no state begin anew: with zeros, also where a model has trained before it loads. */
static int begin_new(const SafeFile *f, const Rt *rt, Arena *a, bool *is_new, const char **first)
{
	const RtModel *m = rt->model;
	int n = 0;
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		is_new[i] = t->kind == RT_PARAM && t->trainable && rt->p->optim.n_states &&
			!states_in(f, &rt->p->optim, t, a);
		if (!is_new[i])
			continue;
		*first = n++ ? *first : t->name;
		zero_states(rt, &m->tensors[i]);
		optim_set_began(&rt->p->optim, m, i, rt->p->progress.updates);
	}
	return n;
}

static bool state_of_new(const SafeTensor *s, const RtModel *m, const bool *is_new)
{
	const char *dot = strrchr(s->name, '.');
	for (int i = 0; dot && i < m->n_tensors; i++)
		if (is_new[i] && strlen(m->tensors[i].name) == (size_t)(dot - s->name) &&
			!strncmp(m->tensors[i].name, s->name, (size_t)(dot - s->name)))
			return true;
	return false;
}

static bool copy_states(const SafeFile *f, const CheckpointFile *want, const Rt *rt, Arena *a, Diag *d)
{
	int n_states = rt->p->optim.n_states, loaded = 0;
	bool *is_new = NEW_N(a, bool, rt->model->n_tensors + 1);
	const char *new_name = "", *old_name = "";
	int n_new = f->n ? begin_new(f, rt, a, is_new, &new_name) : 0, n_old = count_frozen(f, rt, a, &old_name);
	for (int i = 0; i < want->n; i++) {
		if (state_of_new(&want->at[i], rt->model, is_new))
			continue;
		if (!copy_tensor(rt, f, &want->at[i], &want->part[i], d))
			return false;
		loaded++;
		agree_alive(rt);
	}
	if (!refuse_more(f, loaded + n_old * n_states, d))
		return false;
	if (n_new)
		diag_note(d, f->path, "%d parameter(s) that it has no state of begin with zeros and a count of updates of "
			"their own: \"%s\"%s", n_new, new_name, n_new > 1 ? ", .." : "");
	if (n_old)
		diag_note(d, f->path, "states of %d parameter(s) that are frozen now are left out: \"%s\"%s", n_old, old_name,
			n_old > 1 ? ", .." : "");
	return true;
}

static bool load_states(const CheckpointFile *want, const Rt *rt, const char *dir, Arena *a, Diag *d)
{
	SafeFile *f = safetensors_open(a, arena_printf(a, "%s/%s", dir, want->name), d);
	bool ok = f && copy_states(f, want, rt, a, d);
	if (f)
		safetensors_close(f);
	return ok;
}

/* The ranks' own buffers, where as many ranks wrote them; else the averages that model.safetensors had stay. */
static bool load_own(const CheckpointFile *want, const Rt *rt, const char *dir, Arena *a, Diag *d)
{
	const char *path = arena_printf(a, "%s/%s", dir, want->name);
	if (!want->n || access(path, F_OK))
		return true;
	SafeFile *f = safetensors_open(a, path, d);
	if (!f)
		return false;
	bool same_ranks = f->n == want->n && safetensors_find(f, want->at[want->n - 1].name);
	safetensors_close(f);
	return !same_ranks || load_file(want, rt, dir, a, d);
}

bool resume_load(const Checkpoint *c, const char *dir, Arena *a, Diag *d)
{
	Held held;
	Diag *later = agree_begin(&held, d);
	bool ok = load_file(&c->model, c->rt, dir, a, later) && load_states(&c->optim, c->rt, dir, a, later) &&
		load_own(&c->own, c->rt, dir, a, later);
	return agree_end(c->rt, &held, ok, d);
}
