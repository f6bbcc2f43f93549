/* runtime/store/save_text.c: the JSON files of a checkpoint: state.json, and index.json for kinds sharded and local.
 *
 * What other ranks write follows from the plan's layout, so rank 0 alone writes the index of all files. */
#include <inttypes.h>
#include <string.h>

#include "runtime/store/private.h"

/* ---- state.json ---- */

static void put_json(Buf *b, Arena *a, const char *key, const char *value)
{
	buf_printf(b, "  \"%s\": \"%s\",\n", key, str_escape(a, ESCAPE_JSON, value ? value : ""));
}

/* The strategies that at least one unit has. */
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

/* "params" of a flat: its parameters' names, and the element at which each begins. */
static void put_params(Buf *b, Arena *a, const RtModel *m, int unit, int flat)
{
	const char *comma = "";
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		if (t->kind != RT_PARAM || t->unit != unit || t->flat != flat)
			continue;
		buf_printf(b, "%s[\"%s\", %" PRId64 "]", comma, str_escape(a, ESCAPE_JSON, t->name), t->offset);
		comma = ", ";
	}
}

static void put_unit(Buf *b, Arena *a, const RtModel *m, int unit)
{
	const LayoutUnit *u = &m->layout.unit[unit];
	buf_printf(b, "    {\"name\": \"%s\", \"strategy\": \"%s\", \"owner\": %d, \"flats\": [",
		str_escape(a, ESCAPE_JSON, m->unit_names[unit]), strategy_info[u->strategy].text, u->owner);
	for (int f = 0; f < u->n_flats; f++) {
		buf_printf(b, "%s\n      {\"dtype\": \"%s\", \"numel\": %" PRId64 ", \"trainable\": %s, \"params\": [",
			f ? "," : "", dtype_info[u->flat[f].dtype].text, u->flat[f].numel, u->flat[f].trainable ? "true" : "false");
		put_params(b, a, m, unit, f);
		buf_printf(b, "]}");
	}
	buf_printf(b, "]}");
}

/* The files of kind full; for the other kinds index.json names them. */
static void put_files(Buf *b, const SaveSet *c)
{
	const char *comma = "";
	buf_printf(b, "\"files\": [");
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		if (save_has_file(c, s)) {
			buf_printf(b, "%s\"%s\"", comma, c->file[s].name);
			comma = ", ";
		}
	buf_printf(b, "], ");
}

static void put_layout(Buf *b, Arena *a, const SaveSet *c)
{
	const Rt *rt = c->rt;
	LayoutRank who = device_rank(rt);
	buf_printf(b, "  \"layout\": {\"kind\": \"%s\", \"ranks\": %" PRId64 ", \"shard_size\": %" PRId64 ", ",
		checkpoint_kinds[c->kind], who.world, who.shard_size);
	if (c->kind == CHECKPOINT_FULL)
		put_files(b, c);
	put_strategies(b, &rt->model->layout);
	buf_printf(b, "\"accum\": %" PRId64 ", \"batch\": %" PRId64 ", \"threads\": %d, \"units\": [", rt->p->accum,
		rt->model->batch, device_threads());
	for (int u = 0; u < rt->model->layout.n_units; u++) {
		buf_printf(b, u ? ",\n" : "\n");
		put_unit(b, a, rt->model, u);
	}
	buf_printf(b, "]},\n");
}

/* The parameters whose states began later than the run. */
static void put_began(Buf *b, Arena *a, const RtModel *m, const Optimizer *opt)
{
	const char *comma = ",\n  \"began\": {";
	for (int i = 0; i < m->n_tensors; i++)
		if (m->tensors[i].trainable && opt->began[i]) {
			buf_printf(b, "%s\"%s\": %" PRId64, comma, str_escape(a, ESCAPE_JSON, m->tensors[i].name),
				opt->began[i]);
			comma = ", ";
		}
	buf_printf(b, *comma == ',' && comma[1] == ' ' ? "}" : "");
}

/* For a checkpoint spread over several folders: which ranks' files are in this one. */
static void put_part(Buf *b, const SavePlaces *p, const World *w)
{
	const char *comma = "";
	if (!places_are_several(p))
		return;
	buf_printf(b, ",\n  \"part\": {\"run\": \"%016" PRIx64 "\", \"folders\": %d, \"ranks\": [", p->run, p->n);
	for (int r = 0; r < w->size; r++)
		if (p->lead[r] == p->lead[w->rank]) {
			buf_printf(b, "%s%d", comma, r);
			comma = ", ";
		}
	buf_printf(b, "]}");
}

void save_put_state(Buf *b, const SaveSet *c, const Progress *p)
{
	Arena *a = arena_new();
	const Rt *rt = c->rt;
	const RtModel *m = rt->model;
	const RtOptions *o = rt->p->options;
	buf_printf(b, "{\n  \"format\": 1,\n");
	put_json(b, a, "model", m->name);
	put_json(b, a, "options", m->options);
	put_json(b, a, "versions", m->versions);
	put_json(b, a, "optimizer", m->optimizer);
	put_layout(b, a, c);
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
	put_began(b, a, m, &rt->p->optim);
	put_part(b, rt->p->places, &rt->p->world);
	buf_printf(b, "\n}\n");
	arena_free(a);
}

/* ---- index.json ---- */

typedef VEC(CheckpointSlice) SliceList;
typedef struct IndexWriter { const SaveSet *c; CheckpointIndex out; Arena *a; } IndexWriter;

static const char *file_of(const IndexWriter *w, CheckpointSection s, int64_t rank)
{
	return checkpoint_file(w->a, s, w->c->kind, rank, device_rank(w->c->rt).world);
}

/* The pieces of a parameter or of one of its states: for every rank the elements that it writes. */
static void put_sharded(IndexWriter *w, CheckpointSection s, const SafeTensor *is, const RtTensor *t, const char *state)
{
	const SaveSet *c = w->c;
	const LayoutUnit *u = &c->rt->model->layout.unit[t->unit];
	LayoutRank who = device_rank(c->rt);
	ArenaMark mark = arena_mark(w->a);
	SliceList list = {0};
	const char *unit = c->rt->model->unit_names[t->unit];
	const char *flat = arena_printf(w->a, "%s/%d%s%s", unit, t->flat, *state ? "." : "", state);
	for (who.rank = 0; who.rank < who.world; who.rank++) {
		LayoutRange held = layout_saved(u, t->flat, &who);
		int64_t begin = MAX(held.begin, t->offset), end = MIN(held.begin + held.n, t->offset + tensor_numel(t));
		if (begin >= end)
			continue;
		bool local = c->kind == CHECKPOINT_LOCAL;
		CheckpointSlice slice = {file_of(w, s, who.rank), local ? flat : is->name, local ? begin - held.begin : 0,
			begin - t->offset, end - begin};
		vec_push(w->a, &list, slice);
	}
	checkpoint_index_tensor(&w->out, is->name, is->dtype, is->rank, is->dim, list.at, list.n);
	arena_rewind(w->a, mark);
}

/* A tensor that one rank writes whole. */
static void put_whole(IndexWriter *w, CheckpointSection s, const SafeTensor *is, int64_t rank)
{
	int64_t n = 1;
	for (int i = 0; i < is->rank; i++)
		n *= is->dim[i];
	CheckpointSlice slice = {file_of(w, s, rank), is->name, 0, 0, n};
	checkpoint_index_tensor(&w->out, is->name, is->dtype, is->rank, is->dim, &slice, n > 0);
}

/* Writes the section in the order in which holdings.c lists it. */
static void put_model(IndexWriter *w)
{
	const RtModel *m = w->c->rt->model;
	const SafeTensor *is = w->c->section[CHECKPOINT_MODEL].at;
	checkpoint_index_section(&w->out, CHECKPOINT_MODEL);
	for (int i = 0; i < m->n_tensors; i++) {
		if (m->tensors[i].kind == RT_PARAM)
			put_sharded(w, CHECKPOINT_MODEL, is++, &m->tensors[i], "");
		if (m->tensors[i].kind == RT_BUFFER)
			put_whole(w, CHECKPOINT_MODEL, is++, 0);
	}
}

static void put_optim(IndexWriter *w)
{
	const RtModel *m = w->c->rt->model;
	const Optimizer *opt = &w->c->rt->p->optim;
	const SafeTensor *is = w->c->section[CHECKPOINT_OPTIM].at;
	checkpoint_index_section(&w->out, CHECKPOINT_OPTIM);
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		for (int k = 0; t->kind == RT_PARAM && t->trainable && k < opt->n_states; k++)
			put_sharded(w, CHECKPOINT_OPTIM, is++, t, optim_state_name(opt, k));
		if (t->kind == RT_STATE && t->unit < 0)
			put_whole(w, CHECKPOINT_OPTIM, is++, 0);
	}
}

static void put_own(IndexWriter *w)
{
	const SaveFile *own = &w->c->section[CHECKPOINT_OWN];
	int64_t world = device_rank(w->c->rt).world;
	checkpoint_index_section(&w->out, CHECKPOINT_OWN);
	for (int i = 0; i < own->n; i++)
		put_whole(w, CHECKPOINT_OWN, &own->at[i], i / (own->n / world));
}

void save_put_index(Buf *b, const SaveSet *c)
{
	IndexWriter w = {.c = c, .a = arena_new()};
	checkpoint_index_begin(&w.out, c->kind);
	put_model(&w);
	put_optim(&w);
	if (c->section[CHECKPOINT_OWN].n)
		put_own(&w);
	checkpoint_index_end(&w.out);
	*b = w.out.b;
	arena_free(w.a);
}
