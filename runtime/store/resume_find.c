/* runtime/store/resume_find.c: finds the checkpoint that a run continues from, the same on all ranks.
 *
 * Each rank looks for it by itself, because hosts may have folders of their own.  If only rank 0 sees one, it reads for
 * all, as with --sync-init.  If checkpoints are spread over several folders, all ranks take the newest one of which all
 * have their part.
 *
 * Refuses ranks that find checkpoints of different runs or steps.
 *
 * Ranks compare checkpoints by the step and a number: a hash of state.json, or, for one spread over several folders,
 * the number of the run that saved it. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/store/private.h"

/* The folder of the checkpoint that --resume means; NULL without a message: none (auto). */
static bool find(const RtOptions *o, Arena *a, const char **dir, Diag *d)
{
	if (!strcmp(o->resume, "auto")) {
		*dir = folder_newest(o->save, a, d);
		return true;
	}
	*dir = checkpoint_is_folder(o->resume, a) ? o->resume : folder_newest(o->resume, a, d);
	if (!*dir)
		diag_error(d, o->resume, "no state.json is there, and no complete checkpoint step-NNNNNNNN: not a checkpoint, "
			"nor a folder of them");
	return *dir;
}

/* Rank 0's text on all ranks, allocated in a; NULL: it has none.  It travels in pieces, because a gather takes as many
 * bytes from every rank. */
static char *share_text(const Finding *f, const char *mine, Arena *a)
{
	enum { PIECE = 1 << 16 };
	const World *w = f->world;
	int64_t size = mine ? (int64_t)strlen(mine) : -1, *sizes = NEW_N(a, int64_t, w->size);
	char *piece = NEW_N(a, char, PIECE), *all = NEW_N(a, char, (int64_t)PIECE * w->size);
	if (!control_all_gather(f->control, &size, sizeof(size), sizes) || sizes[0] < 0)
		return NULL;
	char *text = NEW_N(a, char, sizes[0] + 1);
	for (int64_t at = 0; at < sizes[0]; at += PIECE) {
		int64_t n = MIN((int64_t)PIECE, sizes[0] - at);
		if (w->rank == 0)
			memcpy(piece, mine + at, (size_t)n);
		if (!control_all_gather(f->control, piece, n, all))
			return NULL;
		memcpy(text + at, all, (size_t)n);
	}
	return text;
}

bool resume_is_sync(const RtOptions *o, const World *w, const Control *control)
{
	return o->sync_init && w->size > 1 && control;
}

/* What a rank found: -1: it failed; 0: no checkpoint; 1: a checkpoint; 2: its host's part of one. */
enum { FAILED = -1, NONE, WHOLE, PART };
typedef struct Seen { int64_t step; uint64_t number, asked; int64_t found; } Seen; /* asked: a hash of --resume */

static Seen seen_of(const char *text, const char *dir)
{
	Seen s = {.found = !text ? FAILED : dir ? WHOLE : NONE};
	json_t *root = dir && text ? json_loads(text, 0, NULL) : NULL, *part = json_object_get(root, "part");
	const char *run = json_string_value(json_object_get(part, "run"));
	if (root)
		s.step = json_integer_value(json_object_get(root, "step"));
	if (run)
		s = (Seen){.step = s.step, .number = hash_bytes(run, strlen(run), 0), .found = PART};
	else if (root)
		s.number = hash_bytes(text, strlen(text), 0);
	json_decref(root);
	return s;
}

static char *find_text(const RtOptions *o, const char **dir, Diag *d)
{
	*dir = NULL;
	if (!find(o, o->arena, dir, d))
		return NULL;
	const char *path = *dir ? arena_printf(o->arena, "%s/state.json", *dir) : NULL;
	return path ? diag_read_file(d, path, o->arena) : arena_strdup(o->arena, "");
}

/* Finds the checkpoint of this step in the same folder as a newer one that not all ranks have; NULL: there is none. */
static char *find_step(const RtOptions *o, const char **dir, int64_t step, Diag *d)
{
	const char *all = !strcmp(o->resume, "auto") ? o->save : o->resume;
	*dir = arena_printf(o->arena, "%s/%s", all, checkpoint_name(o->arena, step));
	if (!checkpoint_is_folder(*dir, o->arena)) {
		diag_error(d, *dir, "is not there, and rank 0 or another rank has none that is newer: the hosts' folders have "
			"no checkpoint in common");
		return NULL;
	}
	return diag_read_file(d, arena_printf(o->arena, "%s/state.json", *dir), o->arena);
}

/* All ranks use what rank 0 found. */
static char *find_for_all(const Finding *f, char *text, const char **dir, Diag *d)
{
	Arena *a = f->o->arena;
	bool reads = f->world->rank == 0;
	if (text && reads)
		text = arena_printf(a, "%s\n%s", *dir ? *dir : "", text);
	text = share_text(f, reads ? text : NULL, a);
	if (!text) {
		d->errors += !reads; /* rank 0 prints the message */
		return NULL;
	}
	size_t n = strcspn(text, "\n");
	*dir = n ? arena_strndup(a, text, n) : NULL;
	return text + n + 1;
}

static bool is_same(const Seen *a, const Seen *b)
{
	return a->found == b->found && a->step == b->step && a->number == b->number;
}

/* The joint result of all ranks. */
typedef struct Joint { Seen *all; bool failed, same, parts, rank0_alone; int other; int64_t step; } Joint;

static bool look_around(const Finding *f, const char *text, const char *dir, Joint *j)
{
	const World *w = f->world;
	const char *asked = f->o->resume;
	Seen mine = seen_of(text, dir);
	mine.asked = hash_bytes(asked, strlen(asked), 0);
	*j = (Joint){.all = NEW_N(f->o->arena, Seen, w->size), .same = true, .parts = true, .rank0_alone = true,
		.step = INT64_MAX};
	if (!control_all_gather(f->control, &mine, sizeof(mine), j->all))
		return false;
	for (int r = 0; r < w->size; r++) {
		const Seen *s = &j->all[r];
		bool equal = is_same(s, &j->all[0]);
		j->other = j->same && !equal ? r : j->other;
		j->failed |= r ? false : s->found == FAILED;
		j->same &= equal;
		j->parts &= s->found == PART;
		j->rank0_alone &= s->asked == j->all[0].asked && (equal || s->found <= NONE);
		j->step = MIN(j->step, s->step);
	}
	return true;
}

/* where: its folder, or --resume. */
static void say_other(const Joint *j, const char *where, Diag *d)
{
	const Seen *a = &j->all[0], *b = &j->all[j->other];
	int without = b->found <= NONE ? j->other : 0, with = b->found <= NONE ? 0 : j->other;
	if (b->found <= NONE || a->found <= NONE)
		diag_error(d, where, "rank %d has no checkpoint there, rank %d has: all ranks go on from one checkpoint",
			without, with);
	else
		diag_error(d, where, "rank 0 has a checkpoint of step %" PRId64 " there, rank %d one of %s, of step %" PRId64
			": all ranks go on from one checkpoint", a->step, j->other,
			a->number != b->number ? "another run" : "the same run", b->step);
}

static char *agree_on(Finding *f, char *text, const char **dir, Diag *d)
{
	Joint j;
	if (!look_around(f, text, *dir, &j))
		return text;
	if (j.parts && !j.same) {
		f->parts_are_newer = true;
		if (j.all[f->world->rank].step > j.step)
			text = find_step(f->o, dir, j.step, d);
		if (!look_around(f, text, text ? *dir : NULL, &j))
			return NULL;
	}
	if (j.failed || j.same)
		return text;
	if (j.rank0_alone && j.all[0].found == WHOLE) {
		if (f->world->rank == 0)
			diag_note(d, *dir, "rank %d does not see it: rank 0 reads it for all", j.other);
		f->o->sync_init = true;
		return find_for_all(f, text, dir, d);
	}
	say_other(&j, *dir ? *dir : f->o->resume, d);
	return NULL;
}

char *resume_find(Finding *f, const char **dir, Diag *d)
{
	bool several = f->world->size > 1 && f->control, first = f->world->rank == 0;
	char *said = NULL, *text = NULL;
	size_t n = 0;
	/* Messages are held back, because a rank that finds nothing is an error only in the light of what the others
	 * find. */
	Diag quiet = {.out = several && !first ? open_memstream(&said, &n) : NULL};
	*dir = NULL;
	if (!resume_is_sync(f->o, f->world, f->control) || first)
		text = find_text(f->o, dir, quiet.out ? &quiet : d);
	if (quiet.out)
		fclose(quiet.out);
	free(said);
	if (resume_is_sync(f->o, f->world, f->control))
		return find_for_all(f, text, dir, d);
	return several ? agree_on(f, text, dir, d) : text;
}
