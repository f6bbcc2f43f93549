/* runtime/checkpoint.c: DIR/step-NNNNNNNN/{model,optim,buffers-rank}.safetensors and state.json; DIR/latest.
 *
 * Refuses nothing and trusts no write: any failure on any rank (a full disk) removes what was begun and
 * leaves the older checkpoints and `latest` as they were.
 *
 * Rank 0 makes the folder and the files with their headers, every rank writes the elements it holds into
 * them, rank 0 finishes.  A tensor lies in a file as if there were one rank: any number of ranks reads it.
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

static const SafeMeta file_meta[] = {{"format", "pt"}};

/* ---- what a checkpoint holds ---- */

static void add(CheckpointFile *f, const RtTensor *t, const char *name, DType dtype, CheckpointPart part)
{
	SafeTensor s = {.name = name, .dtype = dtype, .rank = t->rank};
	memcpy(s.dim, t->dim, sizeof(s.dim));
	f->part[f->n] = part;
	f->at[f->n++] = s;
}

static CheckpointPart part(Slice s, bool writes)
{
	return (CheckpointPart){.slice = s, .source = s, .writes = writes && s.n > 0};
}

/* The dtype in files: the model's. */
static DType dtype_in_files(const RtTensor *t)
{
	return t->narrowed ? t->saved : t->dtype;
}

static void add_states(Checkpoint *c, const RtTensor *t, bool writes)
{
	const Optimizer *opt = &c->rt->p->optim;
	for (int k = 0; k < opt->n_states; k++) {
		const char *name = arena_printf(c->arena, "%s.%s", t->name, optim_state_name(opt, k));
		add(&c->optim, t, name, DT_F32, part(slice_state(c->rt, t, k), writes));
	}
}

/* Where there is a master, that is what is saved, and both it and the working copies come from it. */
static void add_param(Checkpoint *c, const RtTensor *t)
{
	LayoutRank who = device_rank(c->rt);
	bool writes = layout_counts(&c->rt->model->layout.unit[t->unit], &who);
	CheckpointPart p = part(slice_at_rest(c->rt, t), writes);
	p.master = slice_master(c->rt, t);
	if (p.master.n)
		p.source = p.master;
	add(&c->model, t, t->name, t->dtype, p);
	if (t->trainable)
		add_states(c, t, writes);
}

/* Buffers of every rank, in rank order: the ranks' own statistics. */
static void add_own(Checkpoint *c)
{
	const RtModel *m = c->rt->model;
	const World *w = &c->rt->p->world;
	for (int rank = 0; rank < w->size; rank++)
		for (int i = 0; i < m->n_tensors; i++) {
			const RtTensor *t = &m->tensors[i];
			if (t->kind != RT_BUFFER)
				continue;
			CheckpointPart p = {0};
			if (rank == w->rank)
				p = part(slice_at_rest(c->rt, t), true);
			if (p.writes)
				p.source.at = average_own(c->rt, t);
			add(&c->own, t, arena_printf(c->arena, "rank%d/%s", rank, t->name), dtype_in_files(t), p);
		}
}

static CheckpointFile new_file(Arena *a, const char *name, int64_t most)
{
	return (CheckpointFile){name, NEW_N(a, SafeTensor, most + 1), NEW_N(a, CheckpointPart, most + 1), 0};
}

void checkpoint_init(Checkpoint *c, Rt *rt, Arena *a)
{
	const RtModel *m = rt->model;
	bool first = rt->p->world.rank == 0, averages = rt->p->world.size > 1 && m->layout.average_bytes;
	*c = (Checkpoint){.rt = rt, .arena = a, .model = new_file(a, "model.safetensors", m->n_tensors),
		.optim = new_file(a, "optim.safetensors", 2 * (int64_t)m->n_tensors),
		.own = new_file(a, "buffers-rank.safetensors", averages ? (int64_t)m->n_tensors * rt->p->world.size : 0)};
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		if (t->kind == RT_PARAM)
			add_param(c, t);
		if (t->kind == RT_BUFFER)
			add(&c->model, t, t->name, dtype_in_files(t), part(slice_at_rest(rt, t), first));
		if (t->kind == RT_STATE && t->unit < 0)
			add(&c->optim, t, t->name, t->dtype, part(slice_at_rest(rt, t), first));
	}
	if (averages)
		add_own(c);
	CheckpointFile *files[] = {&c->model, &c->optim, &c->own};
	for (int i = 0; i < COUNT_OF(files); i++)
		safetensors_place(files[i]->at, files[i]->n, file_meta, COUNT_OF(file_meta));
}

/* ---- state.json ---- */

/* Paths within one save; a is its scratch. */
typedef struct Paths { Arena *a; const char *dir, *temp, *final, *name; } Paths;

static void put_json(Buf *b, Arena *a, const char *key, const char *value)
{
	buf_printf(b, "  \"%s\": \"%s\",\n", key, str_escape(a, ESCAPE_JSON, value ? value : ""));
}

/* Strategies that some unit has. */
static void put_strategies(Buf *b, const LayoutModel *l)
{
	const char *comma = "";
	buf_printf(b, "\"strategies\": [");
	for (int s = 0; s < STRATEGY_COUNT; s++) {
		bool used = false;
		for (int u = 0; u < l->n_units; u++)
			used = used || l->unit[u].strategy == (Strategy)s;
		if (used) {
			buf_printf(b, "%s\"%s\"", comma, strategy_info[s].text);
			comma = ", ";
		}
	}
	buf_printf(b, "], ");
}

static void put_layout(Buf *b, const Rt *rt)
{
	LayoutRank who = device_rank(rt);
	buf_printf(b, "  \"layout\": {\"kind\": \"full\", \"ranks\": %" PRId64 ", \"shard_size\": %" PRId64 ", ",
		who.world, who.shard_size);
	put_strategies(b, &rt->model->layout);
	buf_printf(b, "\"accum\": %" PRId64 ", \"batch\": %" PRId64 ", \"threads\": %d},\n", rt->p->accum,
		rt->model->batch, device_threads());
}

/* Parameters whose states are younger than the run. */
static void put_began(Buf *b, Arena *a, const Rt *rt)
{
	const RtModel *m = rt->model;
	const char *comma = ",\n  \"began\": {";
	for (int i = 0; i < m->n_tensors; i++)
		if (m->tensors[i].trainable && rt->p->optim.began[i]) {
			buf_printf(b, "%s\"%s\": %" PRId64, comma, str_escape(a, ESCAPE_JSON, m->tensors[i].name),
				rt->p->optim.began[i]);
			comma = ", ";
		}
	buf_printf(b, *comma == ',' && comma[1] == ' ' ? "}" : "");
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
	put_layout(b, rt);
	buf_printf(b, "  \"step\": %" PRId64 ",\n  \"updates\": %" PRId64 ",\n  \"samples\": %" PRId64 ",\n",
		p->step, p->updates, p->samples);
	if (m->loss_scale.dynamic)
		buf_printf(b, "  \"loss_scale\": {\"scale\": %.17g, \"good\": %" PRId64 "},\n", p->loss_scale.scale,
			p->loss_scale.good);
	buf_printf(b, "  \"seed\": %" PRId64 ",\n  \"steps\": %" PRId64 ",\n  \"flags\": {", o->seed, o->steps);
	const char *comma = "";
	for (int i = 0; i < OPT_COUNT; i++)
		if (option_info[i].saved && o->text[i]) {
			const char *text = str_escape(a, ESCAPE_JSON, o->text[i]);
			buf_printf(b, "%s\"%s\": \"%s\"", comma, option_info[i].flag, text);
			comma = ", ";
		}
	buf_printf(b, "}");
	if (rt->p->hyper) {
		buf_printf(b, ",\n  \"hyper\": ");
		hyper_put(b, a, m, rt->p->hyper);
	}
	put_began(b, a, rt);
	buf_printf(b, "\n}\n");
}

/* ---- files and folders ---- */

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

/* ---- the stages of a save ---- */

typedef struct Save { const Checkpoint *c; const Progress *progress; Paths at; } Save;
typedef bool SaveStage(const Save *s, Diag *d);

static bool failed(const Save *s, const char *what, Diag *d)
{
	diag_error(d, s->at.final,
		"%s could not be written: %s; this checkpoint was dropped, earlier ones are as they were", what,
		strerror(errno));
	return false;
}

static int list_files(const Checkpoint *c, const CheckpointFile *out[3])
{
	out[0] = &c->model;
	out[1] = &c->optim;
	out[2] = &c->own;
	return c->own.n ? 3 : 2;
}

/* Rank 0: the folder, and files of full length without elements. */
static bool create(const Save *s, Diag *d)
{
	const Paths *at = &s->at;
	const CheckpointFile *files[3];
	if (!make_folders(at->a, at->dir) || !remove_folder(at->a, at->temp) || mkdir(at->temp, 0777))
		return failed(s, "the folder", d);
	for (int i = 0, n = list_files(s->c, files); i < n; i++) {
		const char *path = arena_printf(at->a, "%s/%s", at->temp, files[i]->name);
		if (!safetensors_create(path, files[i]->at, files[i]->n, file_meta, COUNT_OF(file_meta)))
			return failed(s, files[i]->name, d);
	}
	return true;
}

/* Rank 0 syncs the header that it wrote. */
static bool takes_part(const Save *s, const CheckpointFile *f)
{
	bool any = s->c->rt->p->world.rank == 0;
	for (int i = 0; i < f->n; i++)
		any = any || f->part[i].writes;
	return any;
}

/* Elements as they lie in memory of the host, or converted piece by piece.  offset: of the tensor in the file. */
static bool put_piece(int fd, const Slice *s, DType dtype, int64_t offset)
{
	enum { PIECE = 8192 };
	char out[PIECE * 8];
	int64_t size = dtype_info[dtype].bytes, in_size = dtype_info[s->dtype].bytes, at = offset + s->first * size;
	if (s->dtype == dtype)
		return safetensors_put(fd, s->at, s->n * size, at);
	for (int64_t i = 0; i < s->n; i += PIECE) {
		int64_t n = MIN(PIECE, s->n - i);
		slice_convert(out, dtype, dtype, s->at + i * in_size, s->dtype, n);
		if (!safetensors_put(fd, out, n * size, at + i * size))
			return false;
	}
	return true;
}

static bool put_slice(const Rt *rt, int fd, const Slice *s, DType dtype, int64_t offset)
{
	bool ok = true;
	int error = 0;
	for (Slice piece = slice_begin(s); slice_next(rt, s, &piece, DEVICE_READ);) {
		ok = ok && put_piece(fd, &piece, dtype, offset);
		error = ok || error ? error : errno;
	}
	errno = error;
	return ok;
}

/* Synced now and then, so that no single wait for the disk is a long one. */
static bool write_parts(int fd, const CheckpointFile *f, const Rt *rt)
{
	enum { SYNC_BYTES = 256 << 20 };
	int64_t unsynced = 0;
	for (int i = 0; i < f->n; i++) {
		const CheckpointPart *p = &f->part[i];
		DType dtype = f->at[i].dtype;
		if (!p->writes)
			continue;
		if (!put_slice(rt, fd, &p->source, dtype, f->at[i].offset))
			return false;
		unsynced += p->source.n * dtype_info[dtype].bytes;
		if (unsynced >= SYNC_BYTES && fsync(fd))
			return false;
		unsynced = unsynced >= SYNC_BYTES ? 0 : unsynced;
		agree_alive(rt);
	}
	return !fsync(fd);
}

static bool fill_file(const Save *s, const CheckpointFile *f, Diag *d)
{
	const char *path = arena_printf(s->at.a, "%s/%s", s->at.temp, f->name);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT && s->c->rt->p->world.size > 1) {
		diag_error(d, path, "rank 0 made this file, host %s does not see it: --save needs a folder that all "
			"hosts share; this checkpoint was dropped, earlier ones are as they were", agree_host());
		return false;
	}
	if (fd < 0)
		return failed(s, f->name, d);
	bool ok = write_parts(fd, f, s->c->rt);
	int error = errno;
	if (close(fd) && ok) {
		ok = false;
		error = errno;
	}
	errno = error;
	return ok || failed(s, f->name, d);
}

/* Every rank: the elements it holds. */
static bool fill(const Save *s, Diag *d)
{
	const CheckpointFile *files[3];
	for (int i = 0, n = list_files(s->c, files); i < n; i++)
		if (takes_part(s, files[i]) && !fill_file(s, files[i], d))
			return false;
	return true;
}

static bool write_state(const Save *s)
{
	Buf b = {0};
	format_state(&b, s->at.a, s->c->rt, s->progress);
	bool ok = write_text(arena_printf(s->at.a, "%s/state.json", s->at.temp), &b);
	int error = errno;
	buf_free(&b);
	errno = error;
	return ok;
}

/* Rank 0: what makes it a checkpoint. */
static bool complete(const Save *s, Diag *d)
{
	const Paths *at = &s->at;
	if (!write_state(s))
		return failed(s, "state.json", d);
	if (!sync_path(at->temp) || !move_in_place(at) || !sync_path(at->dir))
		return failed(s, "the folder", d);
	if (!point_latest(at)) {
		diag_error(d, at->dir, "`latest` could not be moved to %s: %s", at->name, strerror(errno));
		return false;
	}
	tidy(at, s->c->rt->p->options->keep);
	return true;
}

/* Whether all ranks came through this stage. */
static bool stage(const Save *s, SaveStage *run, bool all_ranks, Diag *d)
{
	const Rt *rt = s->c->rt;
	Held held;
	Diag *later = agree_begin(&held, d);
	bool ok = (!all_ranks && rt->p->world.rank != 0) || run(s, later);
	return agree_end(rt, &held, ok, d);
}

bool checkpoint_save(const Checkpoint *c, const Rt *rt, const Progress *p, Diag *d)
{
	Arena *a = arena_new();
	const char *dir = rt->p->options->save, *name = arena_printf(a, "step-%08" PRId64, p->step);
	Save s = {c, p, {.a = a, .dir = dir, .name = name, .temp = arena_printf(a, "%s/.%s", dir, name),
		.final = arena_printf(a, "%s/%s", dir, name)}};
	average_begin(c->rt);
	bool ok = stage(&s, create, false, d) && stage(&s, fill, true, d) && stage(&s, complete, false, d);
	average_end(c->rt);
	if (!ok && rt->p->world.rank == 0)
		remove_folder(a, s.at.temp);
	arena_free(a);
	return ok;
}
