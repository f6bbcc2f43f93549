/* runtime/store/holdings.c: what a checkpoint holds, which part of it this rank holds, and which files this rank
 * writes.
 *
 *   section   the model's tensors by name, as one rank would see them: what a resume asks for
 *   file      what this rank writes: of kind full its ranges of the sections' tensors; of kind sharded those ranges,
 *             each a tensor of a file of its own; of kind local its flat shards as they lie in memory
 *
 * Exactly one rank writes each element.  Which one follows from the plan's layout alone, so rank 0 can write an index
 * of what all ranks write without asking them. */
#include <string.h>

#include "runtime/store/store.h"

static const SafeMeta file_meta[] = {{"format", "pt"}};

/* ---- sections ---- */

static void add(SaveFile *f, const SafeTensor *t, SavePart part)
{
	f->part[f->n] = part;
	f->at[f->n++] = *t;
}

static SafeTensor tensor_of(const RtTensor *t, const char *name, DType dtype)
{
	SafeTensor s = {.name = name, .dtype = dtype, .rank = t->rank};
	memcpy(s.dim, t->dim, sizeof(s.dim));
	return s;
}

static void add_tensor(SaveFile *f, const RtTensor *t, const char *name, DType dtype, SavePart part)
{
	SafeTensor s = tensor_of(t, name, dtype);
	add(f, &s, part);
}

static SavePart part(const RtTensor *t, Slice s, bool writes)
{
	return (SavePart){.t = t, .only = -1, .slice = s, .source = s, .writes = writes && s.n > 0};
}

/* The dtype of a tensor in files, which is the model's. */
static DType dtype_in_files(const RtTensor *t)
{
	return t->narrowed ? t->saved : t->dtype;
}

static void add_states(SaveSet *c, const RtTensor *t, bool writes)
{
	const Optimizer *opt = &c->rt->p->optim;
	for (int k = 0; k < opt->n_states; k++) {
		const char *name = arena_printf(c->arena, "%s.%s", t->name, optim_state_name(opt, k));
		SavePart p = part(t, slice_state(c->rt, t, k), writes);
		p.of_state = true;
		add_tensor(&c->section[CHECKPOINT_OPTIM], t, name, DT_F32, p);
	}
}

/* Where there is a master, it is saved, and a resume restores both the master and the working copies from it. */
static void add_param(SaveSet *c, const RtTensor *t)
{
	LayoutRank who = device_rank(c->rt);
	bool writes = layout_counts(&c->rt->model->layout.unit[t->unit], &who);
	SavePart p = part(t, slice_at_rest(c->rt, t), writes);
	p.master = slice_master(c->rt, t);
	if (p.master.n)
		p.source = p.master;
	add_tensor(&c->section[CHECKPOINT_MODEL], t, t->name, t->dtype, p);
	if (t->trainable)
		add_states(c, t, writes);
}

/* The buffers of every rank, in rank order: the ranks' own statistics. */
static void add_own(SaveSet *c)
{
	const RtModel *m = c->rt->model;
	const World *w = &c->rt->p->world;
	for (int rank = 0; rank < w->size; rank++)
		for (int i = 0; i < m->n_tensors; i++) {
			const RtTensor *t = &m->tensors[i];
			if (t->kind != RT_BUFFER)
				continue;
			SavePart p = {.t = t};
			if (rank == w->rank)
				p = part(t, slice_at_rest(c->rt, t), true);
			p.only = rank;
			if (p.writes)
				p.source.at = average_own(c->rt, t);
			add_tensor(&c->section[CHECKPOINT_OWN], t, arena_printf(c->arena, "rank%d/%s", rank, t->name),
				dtype_in_files(t), p);
		}
}

static SaveFile new_file(const SaveSet *c, CheckpointSection s, CheckpointKind kind, int64_t most)
{
	const World *w = &c->rt->p->world;
	return (SaveFile){checkpoint_file(c->arena, s, kind, w->rank, MAX(w->size, 1)),
		NEW_N(c->arena, SafeTensor, most + 1), NEW_N(c->arena, SavePart, most + 1), 0};
}

static void list_sections(SaveSet *c)
{
	const RtModel *m = c->rt->model;
	const World *w = &c->rt->p->world;
	bool first = w->rank == 0, averages = w->size > 1 && m->layout.average_bytes;
	const int64_t most[] = {m->n_tensors, 2 * (int64_t)m->n_tensors, averages ? (int64_t)m->n_tensors * w->size : 0};
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		c->section[s] = new_file(c, (CheckpointSection)s, CHECKPOINT_FULL, most[s]);
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		if (t->kind == RT_PARAM)
			add_param(c, t);
		if (t->kind == RT_BUFFER)
			add_tensor(&c->section[CHECKPOINT_MODEL], t, t->name, dtype_in_files(t),
				part(t, slice_at_rest(c->rt, t), first));
		if (t->kind == RT_STATE && t->unit < 0)
			add_tensor(&c->section[CHECKPOINT_OPTIM], t, t->name, t->dtype, part(t, slice_at_rest(c->rt, t), first));
	}
	if (averages)
		add_own(c);
}

/* ---- files ---- */

/* Adds the elements of a slice to a file, as a tensor of their own. */
static void add_piece(SaveFile *f, const char *name, DType dtype, Slice s)
{
	SafeTensor t = {.name = name, .dtype = dtype, .rank = 1, .dim = {s.n}};
	s.first = 0;
	if (s.n)
		add(f, &t, part(NULL, s, true));
}

static void list_slices(SaveSet *c, CheckpointSection s)
{
	const SaveFile *all = &c->section[s];
	for (int i = 0; i < all->n; i++)
		if (all->part[i].writes)
			add_piece(&c->file[s], all->at[i].name, all->at[i].dtype, all->part[i].source);
}

/* The part of a flat that this rank writes, up to the flat's last element. */
static Slice flat_slice(const LayoutUnit *u, int flat, const LayoutRank *who, void *at, DType dtype)
{
	return (Slice){.n = layout_saved(u, flat, who).n, .at = at, .dtype = dtype, .rounded = dtype};
}

/* The dtype in the model of a flat's parameters, which is the same for all of them. */
static DType dtype_of_flat(const RtModel *m, int unit, int flat)
{
	for (int i = 0; i < m->n_tensors; i++)
		if (m->tensors[i].kind == RT_PARAM && m->tensors[i].unit == unit && m->tensors[i].flat == flat)
			return m->tensors[i].dtype;
	ice("flat %d of unit %d holds nothing", flat, unit);
}

static void list_flat(SaveSet *c, int unit, int flat)
{
	const Rt *rt = c->rt;
	LayoutRank who = device_rank(rt);
	const LayoutUnit *u = &rt->model->layout.unit[unit];
	const LayoutFlat *f = &u->flat[flat];
	const Optimizer *opt = &rt->p->optim;
	const char *name = arena_printf(c->arena, "%s/%d", rt->model->unit_names[unit], flat);
	bool master = f->trainable && f->master;
	void *at = master ? opt->master[unit][flat] : rt->shard[unit][flat];
	add_piece(&c->file[CHECKPOINT_MODEL], name, dtype_of_flat(rt->model, unit, flat),
		flat_slice(u, flat, &who, at, master ? DT_F32 : f->dtype));
	for (int k = 0; f->trainable && k < opt->n_states; k++)
		add_piece(&c->file[CHECKPOINT_OPTIM], arena_printf(c->arena, "%s.%s", name, optim_state_name(opt, k)), DT_F32,
			flat_slice(u, flat, &who, opt->state[k][unit][flat], DT_F32));
}

/* Lists the shards of kind local.  Rank 0 writes what lies in no flat, under its own name. */
static void list_shards(SaveSet *c)
{
	const LayoutModel *l = &c->rt->model->layout;
	for (int u = 0; u < l->n_units; u++)
		for (int f = 0; f < l->unit[u].n_flats; f++)
			list_flat(c, u, f);
	for (int i = 0; i < c->rt->model->n_tensors; i++) {
		const RtTensor *t = &c->rt->model->tensors[i];
		CheckpointSection s = t->kind == RT_BUFFER ? CHECKPOINT_MODEL : CHECKPOINT_OPTIM;
		if ((t->kind == RT_BUFFER || (t->kind == RT_STATE && t->unit < 0)) && c->rt->p->world.rank == 0)
			add_piece(&c->file[s], t->name, dtype_in_files(t), slice_at_rest(c->rt, t));
	}
}

static void list_files(SaveSet *c)
{
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++) {
		c->file[s] = c->section[s];
		if (c->kind == CHECKPOINT_FULL || !c->section[s].n)
			continue;
		/* There are no more flats than tensors in them. */
		c->file[s] = new_file(c, (CheckpointSection)s, c->kind, c->section[s].n);
		if (c->kind == CHECKPOINT_SHARDED || s == CHECKPOINT_OWN)
			list_slices(c, (CheckpointSection)s);
	}
	if (c->kind == CHECKPOINT_LOCAL)
		list_shards(c);
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		safetensors_place(c->file[s].at, c->file[s].n, file_meta, COUNT_OF(file_meta));
}

void save_init(SaveSet *c, Rt *rt, Arena *a)
{
	*c = (SaveSet){.rt = rt, .arena = a, .kind = rt->p->options->save_kind};
	c->own_files = c->kind != CHECKPOINT_FULL || rt->p->world.size < 2;
	list_sections(c);
	list_files(c);
}
