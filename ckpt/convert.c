/* ckpt/convert.c: plans the files of a checkpoint of any kind, for any number of ranks.
 *
 * Every tensor of the output, whatever its kind, is planned as runs of elements of input tensors; the runs know their
 * files.  Thus any kind can be converted to any other without code for pairs of kinds.
 *
 * Refuses kind local where the layout does not say which rank holds what: without units, and with owned units at
 * another number of ranks. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/convert.h"
#include "ckpt/states.h"

/* ---- tensors and their places ---- */

/* The place of the parameter that the tensor belongs to: for "h.0.weight.exp_avg" that is "h.0.weight", and *suffix is
 * ".exp_avg"; for a parameter itself *suffix is "".  NULL: no unit has it, or it has not its parameter's size. */
static const CutPlace *place_of(const Convert *v, CheckpointSection s, const CheckpointTensor *t, const char **suffix)
{
	const char *dot = strrchr(t->name, '.');
	*suffix = "";
	if (s == CHECKPOINT_MODEL)
		return map_get(v->cut->by_param, t->name);
	if (s != CHECKPOINT_OPTIM || !dot)
		return NULL;
	const char *param = arena_strndup(v->a, t->name, (size_t)(dot - t->name));
	const CheckpointTensor *of = checkpoint_find(v->c, CHECKPOINT_MODEL, param);
	*suffix = dot;
	return of && of->numel == t->numel ? map_get(v->cut->by_param, param) : NULL;
}

/* The rank 3 of "rank3/BUFFER"; -1 for names of another form. */
static int64_t own_rank(const CheckpointTensor *t)
{
	const char *digits = t->name + strlen("rank");
	char *end;
	if (strncmp(t->name, "rank", strlen("rank")) || *digits < '0' || *digits > '9')
		return -1;
	int64_t rank = strtoll(digits, &end, 10);
	return *end == '/' ? rank : -1;
}

static LayoutRank rank_of(const Convert *v, int64_t rank)
{
	return (LayoutRank){rank, v->to.world, v->to.shard_size};
}

/* ---- kind full ---- */

static void plan_full(Convert *v, CheckpointSection s)
{
	for (int i = 0; i < v->c->section[s].n; i++)
		output_copy(v->a, v->file[s][0], v->c->section[s].at[i].name, &v->c->section[s].at[i]);
}

/* ---- kinds sharded and local ---- */

static const char *flat_name(const Convert *v, const CutUnit *u, int flat, const char *suffix)
{
	return arena_printf(v->a, "%s/%d%s", u->name, flat, suffix);
}

/* Plans one tensor: the part of a flat that this rank writes.  It holds parameters, or one state of each parameter, and
 * zeros between them. */
static void plan_flat(Convert *v, CheckpointSection s, const CutUnit *u, int flat, const char *suffix, int64_t rank)
{
	LayoutRank who = rank_of(v, rank);
	LayoutRange held = cut_flat(u, flat, &who);
	OutputFile *f = v->file[s][rank];
	DType dtype = DT_COUNT;
	for (int i = 0; i < u->flat[flat].n && held.n; i++) {
		const char *name = arena_printf(v->a, "%s%s", u->flat[flat].param[i].name, suffix), *same;
		const CheckpointTensor *t = checkpoint_find(v->c, s, name);
		const CutPlace *place = t ? place_of(v, s, t, &same) : NULL;
		if (!place)
			continue;
		if (dtype == DT_COUNT)
			output_tensor(v->a, f, flat_name(v, u, flat, suffix), t->dtype, 1, &held.n);
		else if (dtype != t->dtype)
			diag_error(v->d, v->c->dir, "unit \"%s\" has tensors of %s and of %s in one flat (\"%s\"): kind local "
				"keeps flats as they lie in memory", u->name, dtype_info[dtype].text, dtype_info[t->dtype].text, name);
		dtype = t->dtype;
		LayoutRange part = cut_tensor(v->cut, place, t->numel, &who);
		output_run(v->a, f, (OutputRun){.from = t, .first = part.begin, .at = place->at + part.begin - held.begin,
			.n = part.n});
	}
}

/* Plans the tensors of all units, flats and kinds of state that some parameter has. */
static void plan_flats(Convert *v, CheckpointSection s)
{
	Map *suffixes = map_new(v->a);
	const char *suffix;
	for (int i = 0; i < v->c->section[s].n; i++)
		if (place_of(v, s, &v->c->section[s].at[i], &suffix))
			map_put(suffixes, suffix, NULL);
	for (int u = 0; u < v->cut->n; u++)
		for (int k = 0; k < v->cut->unit[u].layout.n_flats; k++)
			for (int i = 0; i < map_count(suffixes); i++)
				for (int64_t rank = 0; rank < v->to.world; rank++)
					plan_flat(v, s, &v->cut->unit[u], k, map_key(suffixes, i), rank);
}

/* Fills `out` with the part of the tensor that each rank writes; returns how many ranks write some. */
static int plan_slices(Convert *v, CheckpointSection s, const CheckpointTensor *t, CheckpointSlice *out)
{
	const char *suffix, *flat = NULL;
	const CutPlace *place = place_of(v, s, t, &suffix);
	int n = 0;
	if (place && v->to.kind == CHECKPOINT_LOCAL)
		flat = flat_name(v, place->unit, place->flat, suffix);
	for (int64_t rank = 0; rank < v->to.world; rank++) {
		LayoutRank who = rank_of(v, rank);
		LayoutRange part = cut_tensor(v->cut, place, t->numel, &who);
		if (s == CHECKPOINT_OWN)
			part = (LayoutRange){0, rank == own_rank(t) ? t->numel : 0};
		if (!part.n)
			continue;
		OutputFile *f = v->file[s][rank];
		out[n] = (CheckpointSlice){f->name, flat ? flat : t->name, 0, part.begin, part.n};
		if (flat) {
			out[n].at = place->at + part.begin - cut_flat(place->unit, place->flat, &who).begin;
		} else {
			output_tensor(v->a, f, t->name, t->dtype, 1, &part.n);
			output_run(v->a, f, (OutputRun){.from = t, .first = part.begin, .n = part.n});
		}
		n++;
	}
	return n;
}

static void plan_slices_of(Convert *v, CheckpointSection s)
{
	const CheckpointList *list = &v->c->section[s];
	CheckpointSlice *slices = NEW_N(v->a, CheckpointSlice, v->to.world);
	if (list->n)
		checkpoint_index_section(&v->index, s);
	if (v->to.kind == CHECKPOINT_LOCAL)
		plan_flats(v, s);
	for (int i = 0; i < list->n; i++) {
		const CheckpointTensor *t = &list->at[i];
		int n = plan_slices(v, s, t, slices);
		checkpoint_index_tensor(&v->index, t->name, t->dtype, t->rank, t->dim, slices, n);
	}
}

/* ---- checks before planning ---- */

/* Checks that the unit's parameters are tensors of the checkpoint and begin where base/layout.h puts them in their
 * flat. */
static bool check_unit(const Convert *v, const CutUnit *u)
{
	int before = v->d->errors;
	const char *where = arena_printf(v->a, "%s/state.json: $.layout.units", v->c->dir);
	for (int k = 0; k < u->layout.n_flats; k++) {
		int64_t end = 0;
		for (int i = 0; i < u->flat[k].n && v->d->errors == before; i++) {
			const CutParam *p = &u->flat[k].param[i];
			const CheckpointTensor *t = checkpoint_find(v->c, CHECKPOINT_MODEL, p->name);
			if (!t)
				diag_error(v->d, where, "unit \"%s\": \"%s\" is no tensor of the checkpoint", u->name, p->name);
			else if (p->at != layout_next(end))
				diag_error(v->d, where, "unit \"%s\": \"%s\" should begin at element %" PRId64 " of its flat, not "
					"%" PRId64, u->name, p->name, layout_next(end), p->at);
			end = p->at + (t ? t->numel : 0);
		}
		if (v->d->errors == before && end != u->layout.flat[k].numel)
			diag_error(v->d, where, "unit \"%s\": flat %d ends at element %" PRId64 ", not %" PRId64, u->name, k, end,
				u->layout.flat[k].numel);
	}
	return v->d->errors == before;
}

static bool take_shard_size(Convert *v)
{
	ConvertTo *to = &v->to;
	bool groups = cut_has_groups(v->cut);
	if (!groups && to->shard_size) {
		diag_error(v->d, "--shard-size", "leave it out: no unit of %s is hybrid_shard, and only such units have groups",
			v->c->dir);
		return false;
	}
	if (!groups)
		to->shard_size = to->world;
	if (!to->shard_size)
		to->shard_size = v->cut->shard_size;
	if (to->world % to->shard_size == 0)
		return true;
	diag_error(v->d, "--world", "groups of %" PRId64 " ranks%s do not divide %" PRId64 " rank(s): give --shard-size",
		to->shard_size, groups ? " (hybrid_shard)" : "", to->world);
	return false;
}

/* Checks that the layout says which rank holds what, as far as the wanted kind needs it. */
static bool check_layout(Convert *v)
{
	bool other = v->to.world != v->cut->ranks, ok = true;
	if (other)
		cut_forget_owners(v->cut);
	if (v->to.kind == CHECKPOINT_FULL)
		return true;
	if (v->to.kind == CHECKPOINT_LOCAL && !v->cut->n) {
		diag_error(v->d, v->c->dir, "$.layout.units of state.json is missing, and kind local holds the flats that it "
			"describes; --kind=sharded needs no layout");
		return false;
	}
	if (v->to.kind == CHECKPOINT_LOCAL && cut_has_unknown_owner(v->cut)) {
		diag_error(v->d, v->c->dir, "some units are oss or sharded_ddp, whose owners depend on the number of ranks "
			"that the program was compiled for: kind local at %" PRId64 " rank(s) is refused, --kind=sharded loads",
			v->to.world);
		ok = false;
	}
	for (int i = 0; i < v->cut->n; i++)
		ok = check_unit(v, &v->cut->unit[i]) && ok;
	return take_shard_size(v) && ok;
}

/* ---- state.json ---- */

/* $.layout.files of state.json: the files that a checkpoint of kind full consists of. */
static json_t *files_of(const Convert *v)
{
	json_t *files = json_array();
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		if (checkpoint_has_file(CHECKPOINT_FULL, (CheckpointSection)s, v->file[s][0]->tensor.n))
			json_array_append_new(files, json_string(v->file[s][0]->name));
	return files;
}

static json_t *new_state(const Convert *v)
{
	json_t *state = json_deep_copy(v->c->state), *layout = json_object_get(state, "layout"), *unit;
	size_t i;
	json_object_set_new(layout, "kind", json_string(checkpoint_kinds[v->to.kind]));
	json_object_del(layout, "files");
	if (v->to.kind == CHECKPOINT_FULL) {
		json_object_set_new(layout, "files", files_of(v));
		return state;
	}
	json_object_set_new(layout, "ranks", json_integer(v->to.world));
	json_object_set_new(layout, "shard_size", json_integer(v->to.shard_size));
	json_array_foreach(json_object_get(layout, "units"), i, unit)
		json_object_set_new(unit, "owner", json_integer(v->cut->unit[i].layout.owner));
	return state;
}

/* ---- the whole plan ---- */

/* Copies the metadata that name the parameters of numbered states. */
static void keep_params(Convert *v, CheckpointSection s, OutputFile *f)
{
	const Map *meta = ckpt_meta(v->c, s);
	const char *params = meta ? map_get(meta, STATE_PARAMS) : NULL;
	if (!params)
		return;
	SafeMeta *more = NEW_N(v->a, SafeMeta, f->n_meta + 1);
	memcpy(more, f->meta, (size_t)f->n_meta * sizeof(*more));
	more[f->n_meta++] = (SafeMeta){STATE_PARAMS, params};
	f->meta = more;
}

static void make_files(Convert *v)
{
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++) {
		int64_t n = v->to.kind == CHECKPOINT_FULL ? 1 : v->to.world;
		v->file[s] = NEW_N(v->a, OutputFile *, n);
		for (int64_t r = 0; r < n; r++) {
			v->file[s][r] = output_file(v->a, checkpoint_file(v->a, (CheckpointSection)s, v->to.kind, r, v->to.world));
			keep_params(v, (CheckpointSection)s, v->file[s][r]);
		}
	}
}

/* Decides whether buffers that each rank has for itself are kept: only the same number of ranks could load them. */
static bool take_own(Convert *v)
{
	const CheckpointList *own = &v->c->section[CHECKPOINT_OWN];
	v->drops_own = own->n && v->to.world != v->cut->ranks;
	for (int i = 0; i < own->n && !v->drops_own; i++)
		if (own_rank(&own->at[i]) < 0 || own_rank(&own->at[i]) >= v->to.world) {
			diag_error(v->d, v->c->dir, "\"%s\" is no buffer of a rank below %" PRId64, own->at[i].name, v->to.world);
			return false;
		}
	if (v->drops_own)
		diag_note(v->d, v->c->dir, "buffers that were each rank's own (%d tensors) are left out: they were of %" PRId64
			" rank(s); their averages are kept", own->n, v->cut->ranks);
	return true;
}

bool convert_plan(Convert *v, const Checkpoint *c, ConvertTo to, Arena *a, Diag *d)
{
	*v = (Convert){.a = a, .c = c, .to = to, .d = d};
	v->cut = cut_read(c->layout, a, arena_printf(a, "%s/state.json", c->dir), d);
	if (!v->cut)
		return false;
	if (!to.world)
		v->to.world = v->cut->ranks;
	if (!check_layout(v) || !take_own(v))
		return false;
	make_files(v);
	checkpoint_index_begin(&v->index, to.kind);
	int before = d->errors;
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++) {
		if (s == CHECKPOINT_OWN && v->drops_own)
			continue;
		if (v->to.kind == CHECKPOINT_FULL)
			plan_full(v, (CheckpointSection)s);
		else
			plan_slices_of(v, (CheckpointSection)s);
	}
	checkpoint_index_end(&v->index);
	v->state = new_state(v);
	return d->errors == before;
}

bool convert_write(Convert *v, const char *path)
{
	int64_t ranks = v->to.kind == CHECKPOINT_FULL ? 1 : v->to.world;
	OutputFile **files = NEW_N(v->a, OutputFile *, CHECKPOINT_SECTIONS * ranks);
	Buf plain = {0}, state = {0};
	char *text = json_dumps(v->state, JSON_INDENT(2));
	OutputText texts[] = {{"index.json", &v->index.b}, {"state.json", &state}};
	bool indexed = v->to.kind != CHECKPOINT_FULL;
	int n = 0;
	for (int64_t r = 0; r < ranks; r++)
		for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
			if (checkpoint_has_file(v->to.kind, (CheckpointSection)s, v->file[s][r]->tensor.n))
				files[n++] = v->file[s][r];
	buf_printf(&plain, "%s\n", text);
	checkpoint_seal(&state, plain.at, indexed ? v->index.b.at : "");
	buf_free(&plain);
	free(text);
	bool ok = output_write_folder(files, n, texts + !indexed, indexed ? 2 : 1, path, v->d);
	buf_free(&state);
	return ok;
}

void convert_free(Convert *v)
{
	buf_free(&v->index.b);
	json_decref(v->state);
}
