/* runtime/store/snapshot.c: saves beside the steps: of kinds sharded and local, and of kind full at one rank.
 *
 * At the step of a save each rank copies what it writes into planned memory, in the dtypes and the order of its files,
 * and steps go on while a thread writes and syncs the copy.  At the end of each step ranks report whether their part is
 * on the disk (StepAsked.written); when all parts are, rank 0's thread completes the checkpoint, also beside steps.
 * The end of a run and the next save wait for it.
 *
 * A rank that cannot write reports it at the end of a step; then the run ends, as after the failure of a save that all
 * wait for.
 *
 * The copy is all that a save needs, so the run need not be forked or locked, and its memory is not read later. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/store/private.h"

struct Snapshot {
	SaveSet set;                 /* a copy of the run's, in which the files' elements are found in the copy */
	char *at;
	int64_t bytes;
	pthread_t thread;
	bool under_way, has_thread;
	pthread_mutex_t lock;
	pthread_cond_t told;
	bool all_written, dropped;   /* protected by the lock */
	_Atomic int state;           /* SaveState, of this rank */
	_Atomic bool ended;          /* the thread has finished its work */
	_Atomic int64_t moved;       /* its progress (SavePaths) */
	Arena *a;                    /* of the save under way: its paths and texts */
	SavePaths paths;
	Buf json, index;             /* rank 0's */
	char *said;                  /* messages of the thread */
	size_t n_said;
};

SaveState save_state(const Snapshot *s)
{
	return s ? (SaveState)atomic_load(&s->state) : SAVE_NONE;
}

/* The offset in a file at which the elements of its tensors begin. */
static int64_t origin(const SaveFile *f)
{
	int64_t first = INT64_MAX;
	for (int i = 0; i < f->n; i++)
		first = MIN(first, f->at[i].offset);
	return f->n ? first : 0;
}

/* Makes *out a file like *f whose tensors are found at `at`, in the places that they will have in the file.  Returns
 * their bytes. */
static int64_t copy_of(SaveFile *out, const SaveFile *f, char *at, Arena *a)
{
	int64_t begin = origin(f), bytes = 0;
	*out = (SaveFile){f->name, f->at, NEW_N(a, SavePart, f->n + 1), f->n};
	for (int i = 0; i < f->n; i++) {
		const SafeTensor *t = &f->at[i];
		int64_t n = t->bytes / dtype_info[t->dtype].bytes;
		Slice s = {.n = n, .at = at + (t->offset - begin), .dtype = t->dtype, .rounded = t->dtype};
		if (f->part[i].source.n != n)
			ice("of \"%s\" %lld elements of %lld are here", t->name, (long long)f->part[i].source.n, (long long)n);
		out->part[i] = (SavePart){.source = s, .writes = f->part[i].writes};
		bytes = MAX(bytes, t->offset - begin + t->bytes);
	}
	return bytes;
}

/* Maps the memory of this rank's copy.  Its pages are touched at the start, because faulting them in during the first
 * save is slow.  NULL after a message. */
static char *map_snapshot(int64_t bytes, const char *program, Diag *d)
{
	void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		diag_error(d, program, "%" PRId64 " bytes for a snapshot cannot be mapped: %s (without "
			"--save-every none is wanted)", bytes, strerror(errno));
		return NULL;
	}
	madvise(p, (size_t)bytes, MADV_HUGEPAGE);
	madvise(p, (size_t)bytes, MADV_POPULATE_WRITE);
	return p;
}

/* A rank that writes nothing has a snapshot without memory, so that all ranks save in the same way. */
bool snapshot_open(SaveSet *c, Diag *d)
{
	int64_t planned = c->rt->p->memory.snapshot, at = 0;
	if (!device_has_snapshot(c->rt))
		return true;
	Snapshot *s = NEW(c->arena, Snapshot);
	s->set = *c;
	s->bytes = planned;
	if (planned && !(s->at = map_snapshot(planned, c->rt->p->options->program, d)))
		return false;
	for (int i = 0; i < CHECKPOINT_SECTIONS; i++)
		at += copy_of(&s->set.file[i], &c->file[i], s->at + at, c->arena);
	if (at > planned)
		ice("a snapshot of %lld bytes, %lld were planned", (long long)at, (long long)planned);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->told, NULL);
	c->snapshot = c->rt->p->snapshot = s;
	return true;
}

void snapshot_close(SaveSet *c)
{
	Snapshot *s = c->snapshot;
	if (!s)
		return;
	if (s->under_way)
		ice("a save is under way");
	if (s->at)
		munmap(s->at, (size_t)s->bytes);
	c->snapshot = c->rt->p->snapshot = NULL;
}

/* ---- the copy ---- */

/* Copies a tensor; where no dtype changes, all threads of the rank copy, because one thread does not reach the memory's
 * speed. */
static void copy_tensor(const Rt *rt, const Slice *from, const Slice *to)
{
	int64_t size = dtype_info[to->dtype].bytes;
	for (Slice piece = slice_begin(from); slice_next(rt, from, &piece, DEVICE_READ);) {
		char *out = to->at + (piece.first - from->first) * size;
		if (from->dtype == to->dtype)
			k_copy_wide(out, piece.at, piece.n * size);
		else
			slice_convert(out, to->dtype, to->dtype, piece.at, from->dtype, piece.n);
	}
}

static void copy_all(const SaveSet *c, const Snapshot *s)
{
	for (int i = 0; i < CHECKPOINT_SECTIONS; i++)
		for (int k = 0; k < c->file[i].n; k++)
			copy_tensor(c->rt, &c->file[i].part[k].source, &s->set.file[i].part[k].source);
}

/* ---- the thread ---- */

/* Rank 0 waits until all ranks have written; false: the save was dropped. */
static bool wait_for_all(Snapshot *s)
{
	pthread_mutex_lock(&s->lock);
	while (!s->all_written && !s->dropped)
		pthread_cond_wait(&s->told, &s->lock);
	bool ok = s->all_written;
	pthread_mutex_unlock(&s->lock);
	return ok;
}

static bool write_files(Snapshot *s, Diag *d)
{
	for (int i = 0; i < CHECKPOINT_SECTIONS; i++)
		if (save_has_file(&s->set, i) && !save_write_file(&s->set, &s->paths, &s->set.file[i], d))
			return false;
	return true;
}

static void *write_snapshot(void *context)
{
	Snapshot *s = context;
	Diag d = {.out = open_memstream(&s->said, &s->n_said)};
	bool first = save_leads(&s->set), ok = write_files(s, &d);
	atomic_store(&s->state, ok ? SAVE_WRITTEN : SAVE_FAILED);
	if (ok && first && wait_for_all(s) && !save_complete(&s->set, &s->paths, s->json.at,
		s->index.at ? s->index.at : "", &d))
		atomic_store(&s->state, SAVE_FAILED);
	if (d.out)
		fclose(d.out);
	atomic_store(&s->ended, true);
	return NULL;
}

static void tell(Snapshot *s, bool all_written)
{
	pthread_mutex_lock(&s->lock);
	s->all_written |= all_written;
	s->dropped |= !all_written;
	pthread_cond_signal(&s->told);
	pthread_mutex_unlock(&s->lock);
}

void snapshot_all_written(SaveSet *c)
{
	if (c->snapshot && c->snapshot->under_way)
		tell(c->snapshot, true);
}

/* ---- from begin to end ---- */

static bool make_folder(Snapshot *s, Diag *d)
{
	Held held;
	Diag *later = agree_begin(&held, d);
	bool ok = !save_leads(&s->set) || save_make_folder(&s->paths, later);
	return agree_end(s->set.rt, &held, ok, d);
}

static void forget(Snapshot *s)
{
	buf_free(&s->json);
	buf_free(&s->index);
	s->json = s->index = (Buf){0};
	free(s->said);
	s->said = NULL;
	arena_free(s->a);
	s->a = NULL;
	s->under_way = false;
	atomic_store(&s->state, SAVE_NONE);
}

/* If the thread cannot be started, the save has failed on this rank; the others learn it at the end of a step. */
static void begin_thread(Snapshot *s)
{
	atomic_store(&s->state, SAVE_WRITING);
	atomic_store(&s->ended, false);
	s->under_way = true;
	int error = pthread_create(&s->thread, NULL, write_snapshot, s);
	s->has_thread = !error;
	if (!error)
		return;
	Diag d = {.out = open_memstream(&s->said, &s->n_said)};
	diag_error(&d, s->paths.final, "the thread that writes it could not be started: %s; this checkpoint was dropped, "
		"earlier ones are as they were", strerror(error));
	if (d.out)
		fclose(d.out);
	atomic_store(&s->ended, true);
	atomic_store(&s->state, SAVE_FAILED);
}

bool snapshot_begin(SaveSet *c, const Progress *p, Diag *d)
{
	Snapshot *s = c->snapshot;
	bool first = save_leads(c);
	s->a = arena_new();
	s->paths = save_paths(c, s->a, p->step);
	s->all_written = s->dropped = false;
	if (!make_folder(s, d)) {
		forget(s);
		return false;
	}
	average_begin(c->rt);
	copy_all(c, s);
	average_end(c->rt);
	if (first)
		save_put_state(&s->json, c, p);
	if (first && c->kind != CHECKPOINT_FULL)
		save_put_index(&s->index, c);
	s->paths.moved = &s->moved;
	begin_thread(s);
	return true;
}

/* Prints the messages of the thread, which has ended, as messages of this rank. */
static bool say(const Snapshot *s, Diag *d)
{
	if (s->said && d->out)
		fputs(s->said, d->out);
	d->errors++;
	return false;
}

/* Waits until the thread has written its files or failed, or, if `all`, has ended.  While a disk hangs, no progress is
 * reported to the watchdog. */
static void wait_for_thread(Snapshot *s, bool all)
{
	int64_t seen = atomic_load(&s->moved);
	Control *control = s->set.rt->p->control;
	agree_files_begin(control);
	while (all ? !atomic_load(&s->ended) : atomic_load(&s->state) == SAVE_WRITING)
		agree_wait(control, atomic_load(&s->moved), &seen);
	agree_files_end(control);
}

static void join(Snapshot *s)
{
	wait_for_thread(s, true);
	if (s->has_thread)
		pthread_join(s->thread, NULL);
}

/* All ranks call this, so they learn whether all have written without a step. */
bool snapshot_end(SaveSet *c, Diag *d)
{
	Snapshot *s = c->snapshot;
	if (!s || !s->under_way)
		return true;
	wait_for_thread(s, false);
	Held held;
	Diag *later = agree_begin(&held, d);
	bool mine = atomic_load(&s->state) == SAVE_WRITTEN;
	if (!mine) {
		join(s);
		say(s, later);
	}
	bool ok = agree_end(c->rt, &held, mine, d);
	tell(s, ok);
	if (mine)
		join(s);
	if (ok) {
		later = agree_begin(&held, d);
		ok = atomic_load(&s->state) == SAVE_WRITTEN || say(s, later);
		ok = agree_end(c->rt, &held, ok, d);
	}
	if (!ok && save_leads(c))
		save_drop(&s->paths);
	if (ok)
		save_ended(c, &s->paths);
	forget(s);
	return ok;
}
