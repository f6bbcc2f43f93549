/* runtime/store/resume.c: restores the arenas, the counters and the flags from a checkpoint.
 *
 * With --sync-init only rank 0 reads, and sends the others the elements that they hold.
 *
 * Refuses a checkpoint whose tensors are not exactly the program's, by name, shape and element type (--strict=0 allows
 * missing and extra ones); reports other differences (versions, ranks, threads, flags), with which the run can
 * continue. Every rank copies the elements it holds, however many ranks wrote them.  The ranks' own buffers are
 * restored if the number of ranks is the same; else every rank gets their average.
 *
 * state.json keeps the flags that affect numbers as the text in which they were given; a flag that is given again wins,
 * and the change is reported. */
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/npy.h"
#include "runtime/store/private.h"

/* Compares with what state.json would hold now: a byte that is not UTF-8, as paths among options may have, is another
 * character there. */
static void note_change(json_t *root, const char *key, const char *now, const char *dir, Diag *d)
{
	const char *then = json_string_value(json_object_get(root, key)), *text = now ? now : "";
	Arena *a = arena_new();
	json_t *v = json_loads(arena_printf(a, "\"%s\"", str_escape(a, ESCAPE_JSON, text)), JSON_DECODE_ANY, NULL);
	if (then && (!v || strcmp(then, json_string_value(v))))
		diag_note(d, dir, "%s were \"%s\" when it was saved and are \"%s\" now: the same bits are not promised", key,
			then, text);
	json_decref(v);
	arena_free(a);
}

/* The value of a flag that state.json always keeps as a number, even if it was not given; NULL for other flags.  now:
 * its value in this run. */
static json_t *number_then(json_t *root, OptionId id, const RtOptions *o, int64_t *now)
{
	*now = id == OPT_seed ? o->seed : id == OPT_steps ? o->steps : o->accum;
	json_t *of = id == OPT_accum ? json_object_get(root, "layout") : root;
	return id == OPT_seed || id == OPT_steps || id == OPT_accum ? json_object_get(of, option_info[id].flag) : NULL;
}

/* Notes a flag that differs.  then: its text in the checkpoint; NULL: it was not given. */
static void note_flag(json_t *root, OptionId id, const char *then, const RtOptions *o, const char *path, Diag *d)
{
	int64_t now;
	const char *flag = option_info[id].flag, *is = o->text[id];
	json_t *number = number_then(root, id, o, &now);
	if (json_is_integer(number) && json_integer_value(number) != now)
		diag_note(d, path, "--%s was %" JSON_INTEGER_FORMAT " and is %s now", flag, json_integer_value(number), is);
	else if (!json_is_integer(number) && !then)
		diag_note(d, path, "--%s was not given then and is %s now", flag, is);
	else if (!json_is_integer(number) && strcmp(then, is))
		diag_note(d, path, "--%s was %s and is %s now", flag, then, is);
}

/* A checkpoint that no run wrote (shardc ckpt import) has no flags, so no differences are noted. */
static bool read_flags(json_t *root, const char *path, RtOptions *o, Diag *d)
{
	json_t *flags = json_object_get(root, "flags");
	bool of_run = json_object_get(root, "seed");
	for (int i = 0; i < OPT_COUNT; i++) {
		const char *then = json_string_value(json_object_get(flags, option_info[i].flag));
		if (!option_info[i].saved)
			continue;
		if (o->text[i] && (of_run || then))
			note_flag(root, (OptionId)i, then, o, path, d);
		if (!o->text[i] && then && !options_set(o, (OptionId)i, arena_strdup(o->arena, then), path, d))
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

/* The loss scale, of programs with a dynamic one; if the checkpoint has none, it begins with this program's initial
 * one. */
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

/* Notes differences that do not affect the checkpoint but the bits of the following steps. */
static void note_layout(json_t *layout, int64_t ranks, const char *path, Diag *d)
{
	const struct { const char *key, *what; int64_t now; } counts[] = {
		{"threads", "thread(s) a rank", device_threads()}, {"ranks", "rank(s)", ranks}};
	for (int i = 0; i < COUNT_OF(counts); i++) {
		int64_t then = json_integer_value(json_object_get(layout, counts[i].key));
		if (then && then != counts[i].now)
			diag_note(d, path, "%" PRId64 " %s then, %" PRId64 " now: the same bits are not promised", then,
				counts[i].what, counts[i].now);
	}
}

static bool read_began(
	json_t *began, Optimizer *opt, const RtModel *m, int64_t updates, const char *path, Diag *d)
{
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
		optim_set_began(opt, m, i, n);
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
	note_layout(layout, MAX(rt->p->world.size, 1), path, d);
	if (!read_began(json_object_get(root, "began"), &rt->p->optim, model, p->updates, path, d))
		return false;
	json_t *hyper = o->hyper ? NULL : json_object_get(root, "hyper");
	if (hyper) {
		rt->p->hyper = hyper_from(rt, hyper, arena_printf(o->arena, "%s, hyper", path), d);
		if (!rt->p->hyper)
			return false;
		hyper_drop(rt->p->hyper, o, path, d);
	}
	if (!read_flags(root, path, o, d))
		return false;
	int64_t steps;
	if (read_count(root, "steps", &steps))
		p->steps_then = steps;
	if (!o->text[OPT_steps] && p->steps_then)
		return options_set(o, OPT_steps, arena_printf(o->arena, "%" PRId64, p->steps_then), path, d);
	return true;
}

bool resume_begin(const Rt *rt, RtOptions *o, const char **dir, Progress *p, Diag *d)
{
	*dir = NULL;
	if (!o->resume)
		return true;
	Finding f = {.o = o, .world = &rt->p->world, .control = rt->p->control};
	char *text = resume_find(&f, dir, d);
	rt->p->parts_are_newer |= f.parts_are_newer;
	if (!text || !*dir)
		return text;
	const char *path = arena_printf(o->arena, "%s/state.json", *dir);
	json_t *root = checkpoint_state(text, path, d);
	if (!root)
		return false;
	bool ok = read_root(root, path, rt, o, p, d);
	json_decref(root);
	return ok;
}

/* ---- which of the program's tensors a checkpoint has ---- */

bool resume_is_strict(const RtOptions *o)
{
	return !o->text[OPT_strict] || o->strict;
}

typedef struct Loading {
	const SaveSet *set;
	const Checkpoint *from;     /* NULL: rank 0 alone reads it (--sync-init) */
	Map *giver;                 /* with several folders: file -> 1 + the rank that reads it; NULL with one folder */
	const char *dir;
	Arena *a;
	Diag *d;
	bool *has[CHECKPOINT_SECTIONS]; /* [tensor of a section]: the checkpoint has it */
	bool strict;                /* else missing tensors keep their initial contents, and extra ones are left out */
	int missing, more;
	const char *first_missing, *first_more;
} Loading;

static bool same_shape(const Loading *l, const CheckpointTensor *t, const SafeTensor *want)
{
	char has[160], wants[160];
	bool same = t->dtype == want->dtype && t->rank == want->rank;
	for (int i = 0; same && i < t->rank; i++)
		same = t->dim[i] == want->dim[i];
	if (!same)
		diag_error(l->d, l->dir, "tensor \"%s\": %s, the program has %s", t->name,
			npy_shape_text(has, sizeof(has), t->dtype, t->rank, t->dim),
			npy_shape_text(wants, sizeof(wants), want->dtype, want->rank, want->dim));
	return same;
}

/* Sets has[s]; `optional` says which tensors may be missing. */
static bool find_tensors(Loading *l, CheckpointSection s, bool (*optional)(const Loading *l, const SavePart *p))
{
	const SaveFile *want = &l->set->section[s];
	bool ok = true;
	for (int i = 0; i < want->n; i++) {
		const CheckpointTensor *t = checkpoint_find(l->from, s, want->at[i].name);
		l->has[s][i] = t;
		if (t) {
			ok = same_shape(l, t, &want->at[i]) && ok;
		} else if (optional && optional(l, &want->part[i])) {
			continue;
		} else if (!l->strict) {
			l->first_missing = l->missing++ ? l->first_missing : want->at[i].name;
		} else {
			diag_error(l->d, l->dir, "tensor \"%s\" is missing: the checkpoint is of another model or optimizer "
				"(--strict=0 leaves its first contents)", want->at[i].name);
			ok = false;
		}
	}
	return ok;
}

/* Finds tensors of the checkpoint that the program does not have, except those in `allowed`. */
static bool check_more(Loading *l, CheckpointSection s, const Map *allowed)
{
	const CheckpointList *list = &l->from->section[s];
	Map *known = map_new(l->a);
	int more = 0;
	for (int i = 0; i < l->set->section[s].n; i++)
		map_put(known, l->set->section[s].at[i].name, l);
	for (int i = 0; i < list->n; i++) {
		if (map_has(known, list->at[i].name) || (allowed && map_has(allowed, list->at[i].name)))
			continue;
		l->first_more = l->more++ ? l->first_more : list->at[i].name;
		more++;
	}
	if (!more || !l->strict)
		return true;
	diag_error(l->d, l->dir, "%d tensor(s) that the program does not have: \"%s\"%s: the checkpoint is of another "
		"model or optimizer (--strict=0 leaves them out)", more, l->first_more, more > 1 ? ", .." : "");
	return false;
}

/* ---- states: the trained parameters may differ from those of the checkpoint ---- */

/* The number of states that the checkpoint has of a parameter. */
static int states_in(const Loading *l, const RtTensor *t)
{
	const Optimizer *opt = &l->set->rt->p->optim;
	int n = 0;
	for (int k = 0; k < opt->n_states; k++)
		n += checkpoint_find(l->from, CHECKPOINT_OPTIM,
			arena_printf(l->a, "%s.%s", t->name, optim_state_name(opt, k))) != NULL;
	return n;
}

/* A parameter of which the checkpoint has no state starts with new states. */
static bool state_of_new(const Loading *l, const SavePart *p)
{
	return p->of_state && !states_in(l, p->t);
}

/* Complete sets of states of parameters that this program does not train; they are left out. */
static Map *find_frozen(const Loading *l, int *n, const char **first)
{
	const RtModel *m = l->set->rt->model;
	const Optimizer *opt = &l->set->rt->p->optim;
	Map *names = map_new(l->a);
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		if (t->kind != RT_PARAM || t->trainable || !opt->n_states || states_in(l, t) != opt->n_states)
			continue;
		*first = (*n)++ ? *first : t->name;
		for (int k = 0; k < opt->n_states; k++)
			map_put(names, arena_printf(l->a, "%s.%s", t->name, optim_state_name(opt, k)), names);
	}
	return names;
}

static bool find_states(Loading *l)
{
	const SaveFile *want = &l->set->section[CHECKPOINT_OPTIM];
	const char *name = "";
	int n_old = 0;
	if (want->n && !l->from->section[CHECKPOINT_OPTIM].n && l->strict) {
		diag_error(l->d, l->dir, "the optimizer's states are missing (--strict=0 begins with zeros)");
		return false;
	}
	Map *frozen = find_frozen(l, &n_old, &name);
	if (!find_tensors(l, CHECKPOINT_OPTIM, state_of_new) || !check_more(l, CHECKPOINT_OPTIM, frozen))
		return false;
	if (n_old)
		diag_note(l->d, l->dir, "states of %d parameter(s) that are frozen now are left out: \"%s\"%s", n_old, name,
			n_old > 1 ? ", .." : "");
	return true;
}

/* Finds the ranks' own buffers if the same number of ranks wrote them; else ranks keep the averages from the model's
 * section. */
static bool find_own(Loading *l)
{
	const SaveFile *want = &l->set->section[CHECKPOINT_OWN];
	const CheckpointList *has = &l->from->section[CHECKPOINT_OWN];
	bool same_ranks = want->n && has->n == want->n &&
		checkpoint_find(l->from, CHECKPOINT_OWN, want->at[want->n - 1].name);
	int64_t ranks = json_integer_value(json_object_get(l->from->layout, "ranks"));
	if (want->n && !has->n && ranks == l->set->rt->p->world.size)
		diag_note(l->d, l->dir, "the ranks' own buffers (buffers-rank) are missing: every rank begins with "
			"their average");
	return !same_ranks || find_tensors(l, CHECKPOINT_OWN, NULL);
}

/* Whether shards of kind local lie in the same places in this program; only then can it use them. */
static bool same_layout(const Loading *l)
{
	Buf now = {0};
	json_error_t error;
	save_put_state(&now, l->set, &l->set->rt->p->progress);
	json_t *mine = json_loads(now.at, 0, &error), *layout = json_object_get(mine, "layout");
	static const char *const keys[] = {"ranks", "shard_size", "units"};
	const char *other = NULL;
	for (int i = 0; i < COUNT_OF(keys) && !other; i++)
		if (!json_equal(json_object_get(layout, keys[i]), json_object_get(l->from->layout, keys[i])))
			other = keys[i];
	if (other)
		diag_error(l->d, l->dir, "a checkpoint of kind local, whose layout is another (%s): make one that any "
			"program reads: shardc ckpt convert --kind=sharded %s -o OUT", other, l->dir);
	json_decref(mine);
	buf_free(&now);
	return !other;
}

static void note_loose(const Loading *l)
{
	if (l->missing)
		diag_note(l->d, l->dir, "%d tensor(s) are missing and keep their first contents: \"%s\"%s", l->missing,
			l->first_missing, l->missing > 1 ? ", .." : "");
	if (l->more)
		diag_note(l->d, l->dir, "%d tensor(s) that the program does not have are left out: \"%s\"%s", l->more,
			l->first_more, l->more > 1 ? ", .." : "");
}

/* Finds everything that is wrong with a checkpoint, except damaged elements, before any of it is loaded. */
static bool check(Loading *l)
{
	if (l->from->part && l->set->rt->p->world.size < 2)
		return checkpoint_open(l->a, l->dir, l->d); /* without it: the message says where the rest is */
	bool ok = l->from->kind != CHECKPOINT_LOCAL || same_layout(l);
	ok = ok && find_tensors(l, CHECKPOINT_MODEL, NULL) && check_more(l, CHECKPOINT_MODEL, NULL);
	ok = ok && find_states(l) && find_own(l);
	if (ok)
		note_loose(l);
	return ok;
}

/* ---- checksums ---- */

/* A thread computes checksums while elements are copied, which mostly waits for the disk and for memory.  Each rank
 * that reads verifies its share of the tensors; together they verify all. */
typedef struct Verifying {
	const Checkpoint *from;     /* NULL: this rank reads nothing */
	int64_t index, of;
	pthread_t thread;
	bool has_thread;
	char *said;
	size_t n_said;
	bool ok;
	_Atomic bool ended;
} Verifying;

static void *verify(void *context)
{
	Verifying *v = context;
	Diag d = {.out = open_memstream(&v->said, &v->n_said)};
	v->ok = checkpoint_verify(v->from, v->index, v->of, false, &d);
	if (d.out)
		fclose(d.out);
	atomic_store(&v->ended, true);
	return NULL;
}

/* False after a message: the thread could not be started. */
static bool verify_begin(Verifying *v, const char *dir, Diag *d)
{
	int error = v->from ? pthread_create(&v->thread, NULL, verify, v) : 0;
	v->has_thread = v->from && !error;
	if (error)
		diag_error(d, dir, "the thread that verifies its checksums could not be started: %s", strerror(error));
	return !error;
}

/* The progress of the thread, measured as its processor time: it grows as bytes arrive, and not while a disk hangs. */
static int64_t verified(const Verifying *v)
{
	clockid_t clock;
	struct timespec t = {0};
	if (!pthread_getcpuclockid(v->thread, &clock))
		clock_gettime(clock, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static bool verify_end(Verifying *v, Control *control, Diag *d)
{
	if (!v->has_thread)
		return true;
	int64_t seen = 0;
	agree_files_begin(control);
	while (!atomic_load(&v->ended))
		agree_wait(control, verified(v), &seen);
	agree_files_end(control);
	pthread_join(v->thread, NULL);
	if (!v->ok && v->said && d->out)
		fputs(v->said, d->out);
	d->errors += !v->ok;
	free(v->said);
	return v->ok;
}

/* ---- elements ---- */

typedef struct Store { const Rt *rt; const SavePart *to; DType dtype; } Store;

static void store(void *context, const char *from, int64_t first, int64_t n)
{
	const Store *s = context;
	slice_store(s->rt, &s->to->slice, first, n, from, s->dtype);
	slice_store(s->rt, &s->to->master, first, n, from, s->dtype);
}

/* Reads the elements that this rank holds; slice and master may hold different ranges. */
static void read_part(const Loading *l, const CheckpointTensor *t, const SavePart *to)
{
	Store s = {l->set->rt, to, t->dtype};
	int64_t begin = to->slice.n ? to->slice.first : to->master.first;
	int64_t end = to->slice.n ? to->slice.first + to->slice.n : begin;
	if (to->master.n) {
		begin = MIN(begin, to->master.first);
		end = MAX(end, to->master.first + to->master.n);
	}
	checkpoint_read(t, begin, end - begin, store, &s);
}

typedef struct Gathered { char *at; int64_t first; int size; } Gathered;

static void gather(void *context, const char *from, int64_t first, int64_t n)
{
	const Gathered *g = context;
	memcpy(g->at + (first - g->first) * g->size, from, (size_t)(n * g->size));
}

/* Loads elements [begin, end): one rank reads them, and every rank gets those that it holds. */
static void spread_range(const Loading *l, const Staging *s, const CheckpointTensor *t, const SavePart *to,
	const Spreading *of, int64_t begin, int64_t end)
{
	const Rt *rt = l->set->rt;
	Spreading what = *of;
	int64_t most = staging_elements(s, what.dtype);
	for (int64_t first = begin, n; first < end; first += n) {
		Gathered g = {s->at, first, dtype_info[what.dtype].bytes};
		n = MIN(most, end - first);
		if (rt->p->world.rank == what.giver) {
			checkpoint_read(t, first, n, gather, &g);
			checkpoint_read(t, first, n, store, &(Store){rt, to, t->dtype});
		}
		staging_spread(rt, s, &what, first, n);
	}
}

/* From one folder rank 0 reads; from several folders each piece is read by a rank that sees its file. */
static void spread_part(const Loading *l, const Staging *s, const SafeTensor *want, const CheckpointTensor *t,
	const SavePart *to)
{
	Spreading what = {to->t, to->of_state, to->only, 0, want->dtype, to->slice, to->master};
	if (!l->giver)
		spread_range(l, s, t, to, &what, 0, tensor_numel(to->t));
	for (int i = 0; l->giver && i < t->n_pieces; i++) {
		const CheckpointPiece *p = &t->piece[i];
		what.giver = (int)(intptr_t)map_get(l->giver, p->name) - 1;
		spread_range(l, s, t, to, &what, p->first, p->first + p->n);
	}
}

static void zero_states(const Rt *rt, const RtTensor *t)
{
	for (int k = 0; k < rt->p->optim.n_states; k++) {
		Slice s = slice_state(rt, t, k);
		device_zero(rt, s.at, s.n * (int64_t)sizeof(float));
	}
}

/* Sets the states of parameters of which the checkpoint has none to zeros, because the model may have trained before it
 * loads. */
static void begin_new(const Loading *l)
{
	const Rt *rt = l->set->rt;
	const SaveFile *states = &l->set->section[CHECKPOINT_OPTIM];
	const RtTensor *last = NULL;
	const char *first = "";
	int n = 0;
	for (int i = 0; i < states->n; i++) {
		const RtTensor *t = states->part[i].t;
		if (!states->part[i].of_state || l->has[CHECKPOINT_OPTIM][i] || t == last)
			continue;
		last = t;
		first = n++ ? first : t->name;
		zero_states(rt, t);
		optim_set_began(&rt->p->optim, rt->model, (int)(t - rt->model->tensors), rt->p->progress.updates);
	}
	if (n)
		diag_note(l->d, l->dir, "%d parameter(s) that it has no state of begin with zeros and a count of updates of "
			"their own: \"%s\"%s", n, first, n > 1 ? ", .." : "");
}

static void take(const Loading *l, const Staging *staging)
{
	begin_new(l);
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		for (int i = 0; i < l->set->section[s].n; i++) {
			const SafeTensor *want = &l->set->section[s].at[i];
			const SavePart *to = &l->set->section[s].part[i];
			const CheckpointTensor *t = l->from ? checkpoint_find(l->from, (CheckpointSection)s, want->name) : NULL;
			if (!l->has[s][i])
				continue;
			if (staging)
				spread_part(l, staging, want, t, to);
			else
				read_part(l, t, to);
			agree_alive(l->set->rt->p->control);
		}
}

/* Sends what rank 0 found to all ranks. */
static void share_found(const Loading *l)
{
	const World *w = &l->set->rt->p->world;
	char mine[COMM_MAILBOX] = {0}, *all = NEW_N(l->a, char, (int64_t)COMM_MAILBOX * w->size);
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		for (int first = 0, n; first < l->set->section[s].n; first += n) {
			n = MIN(COMM_MAILBOX, l->set->section[s].n - first);
			memcpy(mine, l->has[s] + first, (size_t)n);
			comm_all(l->set->rt->p->comm, mine, COMM_MAILBOX, all);
			memcpy(l->has[s] + first, all, (size_t)n);
		}
}

/* The names of the files with pieces, each once, in the order of the index, which is the same on all ranks. */
static Map *piece_files(const Checkpoint *c, Map **here, Arena *a)
{
	Map *all = map_new(a);
	*here = map_new(a);
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		for (int i = 0; i < c->section[s].n; i++)
			for (int k = 0; k < c->section[s].at[i].n_pieces; k++) {
				const CheckpointPiece *p = &c->section[s].at[i].piece[k];
				if (!map_has(all, p->name))
					map_put(all, p->name, NULL);
				if (p->file)
					map_put(*here, p->name, NULL);
			}
	return all;
}

/* Chooses the rank that reads each file: the one that wrote it if it sees the file, else the lowest rank that does. */
static bool find_givers(Loading *l, Diag *d)
{
	Map *here, *files = piece_files(l->from, &here, l->a);
	const World *w = &l->set->rt->p->world;
	char mine[COMM_MAILBOX], *all = NEW_N(l->a, char, (int64_t)COMM_MAILBOX * w->size);
	l->giver = map_new(l->a);
	for (int first = 0, n; first < map_count(files); first += n) {
		n = MIN(COMM_MAILBOX, map_count(files) - first);
		for (int i = 0; i < COMM_MAILBOX; i++)
			mine[i] = i < n && map_has(here, map_key(files, first + i));
		comm_all(l->set->rt->p->comm, mine, COMM_MAILBOX, all);
		for (int i = 0; i < n; i++) {
			const char *name = map_key(files, first + i), *of = strstr(name, "-of-");
			long writer = of && of - name >= 5 ? strtol(of - 5, NULL, 10) - 1 : 0;
			int rank = writer >= 0 && writer < w->size && all[writer * COMM_MAILBOX + i] ? (int)writer : 0;
			while (rank < w->size && !all[(int64_t)rank * COMM_MAILBOX + i])
				rank++;
			map_put(l->giver, name, (void *)(intptr_t)(rank + 1));
			if (rank < w->size)
				continue;
			diag_error(d, l->dir, "no rank sees its file %s: run on the hosts that saved it, or put their folders "
				"together with shardc ckpt merge", name);
			return false;
		}
	}
	return true;
}

bool resume_load(const SaveSet *c, const char *dir, Arena *a, Diag *d)
{
	Held held;
	const struct RtPrivate *run = c->rt->p;
	const World *w = &run->world;
	bool sync = resume_is_sync(run->options, w, run->control), reads = !sync || w->rank == 0;
	Diag *later = agree_begin(&held, d);
	Loading l = {.set = c, .dir = dir, .a = a, .d = later, .strict = resume_is_strict(run->options)};
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		l.has[s] = NEW_N(a, bool, c->section[s].n + 1);
	Checkpoint *from = reads ? checkpoint_open_here(a, dir, !l.strict, later) : NULL;
	l.from = from;
	bool ok = agree_end(c->rt, &held, !reads || (from && check(&l)), d), parts = ok && from && from->part;
	if (parts) {
		l.d = agree_begin(&held, d);
		ok = find_givers(&l, l.d);
		ok = agree_end(c->rt, &held, ok, d);
	}
	if (ok) {
		Staging s = {0};
		Verifying v = {.from = from, .index = sync || parts ? 0 : w->rank,
			.of = sync || parts ? 1 : MAX(w->size, 1)};
		if (sync || parts)
			s = staging_find(c->rt, a);
		if (sync)
			share_found(&l);
		l.d = agree_begin(&held, d);
		ok = verify_begin(&v, dir, l.d);
		take(&l, sync || parts ? &s : NULL);
		ok = verify_end(&v, run->control, l.d) && ok;
		ok = agree_end(c->rt, &held, ok, d);
	}
	if (from)
		checkpoint_close(from);
	return ok;
}
