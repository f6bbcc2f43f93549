/* runtime/checkpoint.c: DIR/step-NNNNNNNN/{model,optim}.safetensors and state.json; DIR/latest.
 *
 * Refuses nothing and trusts no write: any failure (a full disk) removes what was begun and leaves the
 * older checkpoints and `latest` as they were.
 *
 * The one idea: files are written and synced under a temporary name, the folder is renamed, and only
 * then does `latest` move; whatever instant the machine stops at, `latest` names a whole checkpoint. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/internal.h"

static SafeTensor describe(const RtTensor *t, const char *name, DType dtype, const void *data)
{
	SafeTensor s = {.name = name, .dtype = dtype, .rank = t->rank, .data = data};
	memcpy(s.dim, t->dim, sizeof(s.dim));
	s.bytes = tensor_numel(t) * dtype_info[dtype].bytes;
	return s;
}

static void add_states(Checkpoint *c, const Rt *rt, const RtTensor *t)
{
	const Optimizer *opt = &rt->p->optim;
	for (int k = 0; k < opt->n_states; k++) {
		const char *name = arena_printf(c->arena, "%s.%s", t->name, optim_state_name(opt, k));
		const float *state = opt->state[k][t->unit][t->flat];
		c->optim.at[c->optim.n++] = describe(t, name, DT_F32, state + t->offset);
	}
}

void checkpoint_init(Checkpoint *c, const Rt *rt, Arena *a)
{
	const RtModel *m = rt->model;
	*c = (Checkpoint){.arena = a};
	c->model.at = NEW_N(a, SafeTensor, m->n_tensors + 1);
	c->optim.at = NEW_N(a, SafeTensor, 2 * m->n_tensors + 1);
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		if (t->kind == RT_PARAM || t->kind == RT_BUFFER)
			c->model.at[c->model.n++] = describe(t, t->name, t->dtype, device_tensor(rt, t));
		if (t->kind == RT_PARAM && t->trainable)
			add_states(c, rt, t);
		if (t->kind == RT_STATE && t->unit < 0)
			c->optim.at[c->optim.n++] = describe(t, t->name, t->dtype, device_tensor(rt, t));
	}
}

/* Paths within one save; a is its scratch. */
typedef struct Paths { Arena *a; const char *dir, *temp, *final, *name; } Paths;

static void put_json(Buf *b, Arena *a, const char *key, const char *value)
{
	buf_printf(b, "  \"%s\": \"%s\",\n", key, str_escape(a, ESCAPE_JSON, value ? value : ""));
}

static void format_state(Buf *b, Arena *a, const Rt *rt, const Progress *p)
{
	const RtModel *m = rt->model;
	const RtOptions *o = rt->p->options;
	buf_printf(b, "{\n  \"format\": 1,\n");
	put_json(b, a, "model", m->name);
	put_json(b, a, "options", m->options);
	put_json(b, a, "versions", m->versions);
	put_json(b, a, "optimizer", m->optimizer);
	buf_printf(b, "  \"layout\": {\"kind\": \"full\", \"ranks\": 1, \"accum\": 1, ");
	buf_printf(b, "\"batch\": %" PRId64 ", \"threads\": %d},\n",
		m->batch, device_threads());
	buf_printf(b, "  \"step\": %" PRId64 ",\n  \"updates\": %" PRId64 ",\n  \"samples\": %" PRId64 ",\n",
		p->step, p->updates, p->samples);
	buf_printf(b, "  \"seed\": %" PRId64 ",\n  \"steps\": %" PRId64 ",\n  \"flags\": {", o->seed, o->steps);
	const char *comma = "";
	for (int i = 0; i < OPT_COUNT; i++)
		if (option_info[i].saved && o->text[i]) {
			const char *text = str_escape(a, ESCAPE_JSON, o->text[i]);
			buf_printf(b, "%s\"%s\": \"%s\"", comma, option_info[i].flag, text);
			comma = ", ";
		}
	buf_printf(b, "}\n}\n");
}

static bool sync_path(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	bool ok = !fsync(fd);
	int error = errno;
	close(fd);
	errno = error;
	return ok;
}

static bool write_text(const char *path, const Buf *b)
{
	FILE *f = fopen(path, "wb");
	if (!f)
		return false;
	bool ok = fwrite(b->at, 1, b->n, f) == b->n && !fflush(f) && !fsync(fileno(f));
	int error = errno;
	if (fclose(f) && ok) {
		ok = false;
		error = errno;
	}
	errno = error;
	return ok;
}

/* Removes a checkpoint's folder: the files that a checkpoint has, then the folder. */
static bool remove_folder(Arena *a, const char *path)
{
	DIR *dir = opendir(path);
	if (!dir)
		return errno == ENOENT;
	for (struct dirent *e; (e = readdir(dir));)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlink(arena_printf(a, "%s/%s", path, e->d_name));
	closedir(dir);
	return !rmdir(path);
}

static bool make_folders(Arena *a, const char *path)
{
	char *part = arena_strdup(a, path);
	for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = 0;
		if (mkdir(part, 0777) && errno != EEXIST)
			return false;
		*slash = '/';
	}
	return !mkdir(part, 0777) || errno == EEXIST;
}

/* NULL, or the name of the file that could not be written; errno tells why. */
static const char *write_files(const Checkpoint *c, const Rt *rt, const Progress *p, const Paths *at)
{
	static const SafeMeta meta[] = {{"format", "pt"}};
	const char *model = arena_printf(at->a, "%s/model.safetensors", at->temp);
	const char *optim = arena_printf(at->a, "%s/optim.safetensors", at->temp);
	if (!safetensors_write(model, c->model.at, c->model.n, meta, 1))
		return "model.safetensors";
	if (!safetensors_write(optim, c->optim.at, c->optim.n, meta, 1))
		return "optim.safetensors";
	Buf b = {0};
	format_state(&b, at->a, rt, p);
	bool ok = write_text(arena_printf(at->a, "%s/state.json", at->temp), &b);
	int error = errno;
	buf_free(&b);
	errno = error;
	return ok ? NULL : "state.json";
}

/* A checkpoint of the same step is exchanged in one instant, then removed. */
static bool move_in_place(const Paths *at)
{
	if (!rename(at->temp, at->final))
		return true;
	if (errno != EEXIST && errno != ENOTEMPTY)
		return false;
	return !renameat2(AT_FDCWD, at->temp, AT_FDCWD, at->final, RENAME_EXCHANGE) &&
		remove_folder(at->a, at->temp);
}

static bool point_latest(const Paths *at)
{
	const char *link = arena_printf(at->a, "%s/latest", at->dir);
	const char *temp = arena_printf(at->a, "%s/.latest", at->dir);
	unlink(temp);
	return !symlink(at->name, temp) && !rename(temp, link) && sync_path(at->dir);
}

static bool is_checkpoint_name(const char *s)
{
	size_t digits = !strncmp(s, "step-", 5) ? strspn(s + 5, "0123456789") : 0;
	return digits >= 8 && !s[5 + digits];
}

static int compare_names(const void *a, const void *b)
{
	const char *const *pa = a, *const *pb = b;
	size_t na = strlen(*pa), nb = strlen(*pb);
	return na != nb ? (na < nb ? -1 : 1) : strcmp(*pa, *pb);
}

/* A checkpoint that goes is renamed first, so that what is left of it never looks like one. */
static void drop(const Paths *at, const char *name)
{
	const char *hidden = arena_printf(at->a, "%s/.%s", at->dir, name);
	if (!rename(arena_printf(at->a, "%s/%s", at->dir, name), hidden))
		remove_folder(at->a, hidden);
}

/* Removes what killed runs left half-written, and all but the newest `keep` checkpoints up to this step
 * (later ones are of another run); keep 0: all are kept. */
static void tidy(const Paths *at, int64_t keep)
{
	VEC(const char *) names = {0};
	DIR *dir = opendir(at->dir);
	for (struct dirent *e; dir && (e = readdir(dir));) {
		const char *name = arena_strdup(at->a, e->d_name), *self = at->name;
		if (name[0] == '.' && is_checkpoint_name(name + 1))
			remove_folder(at->a, arena_printf(at->a, "%s/%s", at->dir, name));
		else if (is_checkpoint_name(name) && compare_names(&name, &self) <= 0)
			vec_push(at->a, &names, name);
	}
	if (dir)
		closedir(dir);
	if (names.n)
		qsort(names.at, (size_t)names.n, sizeof(*names.at), compare_names);
	for (int i = 0; keep && i + keep < names.n; i++)
		drop(at, names.at[i]);
}

static bool save_failed(const Paths *at, const char *what, Diag *d)
{
	int error = errno;
	remove_folder(at->a, at->temp);
	diag_error(d, at->final,
		"%s could not be written: %s; this checkpoint was dropped, earlier ones are as they were", what,
		strerror(error));
	return false;
}

static bool save_at(const Paths *at, const Checkpoint *c, const Rt *rt, const Progress *p, Diag *d)
{
	if (!make_folders(at->a, at->dir) || !remove_folder(at->a, at->temp) || mkdir(at->temp, 0777))
		return save_failed(at, "the folder", d);
	const char *failed = write_files(c, rt, p, at);
	if (failed)
		return save_failed(at, failed, d);
	if (!sync_path(at->temp) || !move_in_place(at) || !sync_path(at->dir))
		return save_failed(at, "the folder", d);
	if (!point_latest(at)) {
		diag_error(d, at->dir, "`latest` could not be moved to %s: %s", at->name, strerror(errno));
		return false;
	}
	tidy(at, rt->p->options->keep);
	return true;
}

bool checkpoint_save(const Checkpoint *c, const Rt *rt, const Progress *p, Diag *d)
{
	Arena *a = arena_new();
	const char *dir = rt->p->options->save, *name = arena_printf(a, "step-%08" PRId64, p->step);
	Paths at = {.a = a, .dir = dir, .name = name, .temp = arena_printf(a, "%s/.%s", dir, name),
		.final = arena_printf(a, "%s/%s", dir, name)};
	bool ok = save_at(&at, c, rt, p, d);
	arena_free(a);
	return ok;
}
