/* tests/unit/cluster.c: several ranks of one small model as threads. */
#include "tests/unit/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "base/filehash.h"
#include "tests/unit/unit.h"

CheckpointKind cluster_save_kind;
bool cluster_narrow_buffers, cluster_in_halves;

enum { FILE_AT = 24 };

/* ---- the model ---- */

typedef struct Spec {
	RtTensorKind kind;
	const char *name;
	DType dtype;
	int rank;
	int64_t dim[3];
	int unit;
	bool trainable;
	DType file;    /* DT_COUNT: filled with 2.5 */
	int perm[3];
} Spec;

static const Spec specs[] = {
	{RT_PARAM, "a.weight", DT_F32, 2, {5, 7}, 0, true, DT_F64, {1, 0}},
	{RT_PARAM, "a.cube", DT_F32, 3, {4, 3, 50}, 0, true, DT_F32, {2, 0, 1}},
	{RT_PARAM, "a.scalar", DT_F32, 0, {0}, 0, true, DT_F32, {0}},
	{RT_PARAM, "b.weight", DT_F32, 1, {300}, 1, true, DT_F32, {0}},
	{RT_PARAM, "b.half", DT_F16, 2, {11, 13}, 1, false, DT_F32, {0, 1}},
	{RT_PARAM, "c.weight", DT_F32, 2, {9, 33}, 2, true, DT_F32, {0, 1}},
	{RT_PARAM, "c.table", DT_F32, 2, {40, 51}, 2, false, DT_F32, {1, 0}},
	{RT_PARAM, "d.weight", DT_F32, 1, {77}, 3, true, DT_F32, {0}},
	{RT_PARAM, "d.filled", DT_F32, 1, {130}, 3, true, DT_COUNT, {0}},
	{RT_PARAM, "e.weight", DT_F32, 1, {129}, 4, true, DT_F16, {0}},
	{RT_PARAM, "f.weight", DT_F32, 1, {1}, 5, true, DT_F32, {0}},
	{RT_PARAM, "f.bias", DT_F32, 1, {64}, 5, true, DT_F32, {0}},
	{RT_BUFFER, "bn.mean", DT_F32, 1, {700}, -1, false, DT_F32, {0}},
	{RT_BUFFER, "bn.wide", DT_F64, 1, {3}, -1, false, DT_F64, {0}},
	{RT_BUFFER, "bn.count", DT_I64, 0, {0}, -1, false, DT_I64, {0}},
	{RT_DATA, "table", DT_U8, 1, {5}, -1, false, DT_U8, {0}},
	{RT_STATE, "seen", DT_F32, 1, {2}, -1, false, DT_F32, {0}},
};
_Static_assert(COUNT_OF(specs) == N_TENSORS, "the tensors of a cluster");

static int64_t file_offset[N_TENSORS], file_bytes;

static const char *const unit_names[N_UNITS] = {"a", "b", "c", "d", "e", "f"};

/* f16 holds them, bf16 does not. */
static double value_of(int tensor, int64_t k) { return (double)((tensor * 37 + k * 11) % 120) + 0.0625; }
static double state_of(int tensor, int state, int64_t k) { return value_of(tensor, k) + 1000.0 * (state + 1); }

double cluster_wanted(int tensor, int64_t k)
{
	return specs[tensor].file == DT_COUNT ? 2.5 : value_of(tensor, k);
}

double cluster_get(const char *at, DType t)
{
	int64_t i;
	switch (t) {
	case DT_U8: return *(const uint8_t *)at;
	case DT_I64:
		memcpy(&i, at, sizeof(i));
		return (double)i;
	default: return number_get(at, t);
	}
}

static int64_t spec_numel(const Spec *s)
{
	int64_t n = 1;
	for (int i = 0; i < s->rank; i++)
		n *= s->dim[i];
	return n;
}

/* The elements as an exporter wrote them: axis i of the tensor is axis perm[i] of the file. */
static void put_file_tensor(const Spec *s, int tensor, char *out)
{
	int64_t file_dim[3] = {1, 1, 1}, at[3];
	for (int i = 0; i < s->rank; i++)
		file_dim[s->perm[i]] = s->dim[i];
	int size = dtype_info[s->file].bytes;
	for (at[0] = 0; at[0] < file_dim[0]; at[0]++)
		for (at[1] = 0; at[1] < file_dim[1]; at[1]++)
			for (at[2] = 0; at[2] < file_dim[2]; at[2]++, out += size) {
				int64_t k = 0;
				for (int i = 0; i < s->rank; i++)
					k = k * s->dim[i] + at[s->perm[i]];
				number_put(out, s->file, value_of(tensor, k));
			}
}

static uint64_t write_weights(void)
{
	static char bytes[1 << 16];
	file_bytes = FILE_AT;
	for (int i = 0; i < N_TENSORS; i++) {
		if (specs[i].file == DT_COUNT)
			continue;
		file_offset[i] = file_bytes;
		put_file_tensor(&specs[i], i, bytes + file_bytes);
		file_bytes += spec_numel(&specs[i]) * dtype_info[specs[i].file].bytes + 3; /* aligned to nothing */
	}
	FILE *f = fopen("weights.bin", "wb");
	fwrite(bytes, 1, (size_t)file_bytes, f);
	fclose(f);
	return filehash_sampled(bytes, file_bytes);
}

static void make_tensor(Cluster *c, int i, int64_t *state_bytes)
{
	const Spec *s = &specs[i];
	RtTensor *t = &c->tensor[i];
	*t = (RtTensor){.kind = s->kind, .name = s->name, .dtype = s->dtype, .rank = s->rank, .unit = s->unit,
		.file = s->file == DT_COUNT ? NULL : "weights.bin", .file_offset = file_offset[i], .file_dtype = s->file,
		.file_rank = s->rank, .fill = 2.5, .trainable = s->trainable};
	for (int k = 0; k < s->rank; k++) {
		t->dim[k] = s->dim[k];
		t->perm[k] = s->perm[k];
		t->file_dim[s->perm[k]] = s->dim[k];
	}
	if (cluster_narrow_buffers && i == BN_MEAN) {
		t->dtype = DT_BF16;
		t->narrowed = true;
		t->saved = DT_F32;
	}
	t->file_bytes = s->file == DT_COUNT ? 0 : spec_numel(s) * dtype_info[s->file].bytes;
	if (s->kind != RT_PARAM) {
		t->offset = *state_bytes;
		*state_bytes += round_up(tensor_bytes(t), 64);
		return;
	}
	LayoutUnit *u = &c->unit[s->unit];
	for (t->flat = 0; t->flat < u->n_flats; t->flat++)
		if (u->flat[t->flat].trainable == s->trainable)
			break;
	LayoutFlat *f = &u->flat[t->flat];
	u->n_flats = MAX(u->n_flats, t->flat + 1);
	t->offset = layout_next(f->numel);
	*f = (LayoutFlat)LAYOUT_FLAT(s->dtype, s->trainable, t->offset + spec_numel(s));
}

/* Working copies in bf16, or in f32 as bf16 has them. */
static void halve(LayoutUnit *u, int unit)
{
	bool owned = strategy_info[u->strategy].owned, wide = unit % 2;
	for (int f = 0; f < u->n_flats; f++) {
		LayoutFlat *flat = &u->flat[f];
		if (!flat->trainable || flat->dtype != DT_F32)
			continue;
		flat->grad = flat->reduce = DT_BF16;
		flat->param = owned && wide ? DT_F32 : DT_BF16;
		flat->dtype = owned && !wide ? DT_BF16 : DT_F32;
		flat->bcast = owned ? DT_BF16 : DT_F32;
		flat->master = owned;
	}
}

/* ---- ranks ---- */

static void thread_begin(Comm *c, const Exchange *x)
{
	Rank *r = (Rank *)((char *)c - offsetof(Rank, comm));
	for (int i = 0; i < x->n * x->n; i++) {
		int64_t begin, bytes;
		x->range(x->context, i / x->n, i % x->n, &begin, &bytes);
		if (bytes < 0 || begin % 4 || bytes % 4)
			ice("an exchange of bytes [%lld, +%lld]", (long long)begin, (long long)bytes);
	}
	r->cluster->source[x->me] = x->source;
	pthread_barrier_wait(&r->cluster->barrier);
}

static int64_t thread_take(Comm *c, const Exchange *x, int64_t at, int64_t most, const char **from)
{
	Rank *r = (Rank *)((char *)c - offsetof(Rank, comm));
	int64_t offset[MOST_RANKS], n = comm_piece(x, at, MIN(most, 448), offset); /* as if staging were small */
	for (int i = 0; i < x->n; i++)
		from[i] = n && offset[i] >= 0 ? (const char *)r->cluster->source[x->ranks[i]] + offset[i] : NULL;
	return n;
}

static void thread_end(Comm *c, const Exchange *x)
{
	(void)x;
	pthread_barrier_wait(&((Rank *)((char *)c - offsetof(Rank, comm)))->cluster->barrier);
}

static const CommOps thread_ops = {thread_begin, thread_take, thread_end, NULL};

typedef void *Pointers[LAYOUT_MAX_FLATS];

static Pointers *point(Arena *a, char *base, LayoutOffsets *offset)
{
	Pointers *p = arena_alloc(a, sizeof(*p) * N_UNITS);
	for (int u = 0; u < N_UNITS; u++)
		for (int f = 0; f < LAYOUT_MAX_FLATS; f++)
			p[u][f] = offset[u][f] < 0 ? NULL : base + offset[u][f];
	return p;
}

static void map_rank(Rank *r)
{
	Arena *a = r->cluster->a;
	LayoutRank who = device_rank(&r->rt);
	LayoutModel layout = r->model.layout;
	layout.n_states = r->p.optim.n_states;
	LayoutMemory m = layout_memory(&layout, &who);
	LayoutPlaces at = layout_places(&layout, &who, a);
	r->rt.shard = point(a, arena_alloc(a, (size_t)m.params), at.param);
	char *grads = arena_alloc(a, (size_t)m.grads), *states = arena_alloc(a, (size_t)m.states + 1);
	r->rt.grad = point(a, grads, at.grad);
	for (int k = 0; k < r->p.optim.n_states; k++)
		r->p.optim.state[k] = point(a, states, at.state[k]);
	r->p.optim.master = point(a, states, at.master);
	r->rt.state = arena_alloc(a, (size_t)m.buffers);
}

static void make_rank(Cluster *c, int i, int shard_size)
{
	Rank *r = &c->rank[i];
	r->cluster = c;
	r->model = c->model;
	r->file = c->file;
	memcpy(r->tensor, c->tensor, sizeof(r->tensor));
	r->model.files = &r->file;
	r->model.tensors = r->tensor;
	r->d.out = open_memstream(&r->said, &r->n_said);
	r->o = (RtOptions){.arena = c->a, .program = "train", .shard_size = shard_size, .save = "save",
		.save_kind = cluster_save_kind};
	r->rt = (Rt){.model = &r->model, .p = &r->p};
	r->p.diag = &r->d;
	r->p.arena = c->a;
	r->p.options = &r->o;
	r->p.world = (World){.rank = i, .size = c->world, .local_rank = i, .local_size = c->world, .n_hosts = 1};
	r->comm = (Comm){.ops = &thread_ops, .world = &r->p.world, .mailbox = r->mailbox, .progress = &r->seen,
		.all_ranks = NEW_N(c->a, int, c->world)};
	for (int k = 0; k < c->world; k++)
		r->comm.all_ranks[k] = k;
	r->p.comm = c->world > 1 ? &r->comm : NULL;
	LayoutRank who = device_rank(&r->rt);
	CU_ASSERT(optim_init(&r->p.optim, &r->model, &who, c->a, "train", &r->d));
	map_rank(r);
	save_init(&r->checkpoint, &r->rt, c->a);
}

Cluster *cluster_new(int world, int shard_size, int shift)
{
	Arena *a = arena_new();
	Cluster *c = NEW(a, Cluster);
	int64_t state_bytes = 0;
	c->a = a;
	c->world = world;
	c->file = (RtFile){"weights.bin", 0, write_weights()};
	c->file.bytes = file_bytes;
	for (int u = 0; u < N_UNITS; u++) {
		c->unit[u] = (LayoutUnit){.strategy = (Strategy)((u + shift) % STRATEGY_COUNT), .grad_slot = -1};
		c->unit[u].owner = strategy_info[c->unit[u].strategy].owned ? (u + 1) % world : -1;
	}
	for (int i = 0; i < N_TENSORS; i++)
		make_tensor(c, i, &state_bytes);
	for (int u = 0; u < N_UNITS && cluster_in_halves; u++)
		halve(&c->unit[u], u);
	c->model = (RtModel){.name = "ranks", .n_tensors = N_TENSORS, .n_files = 1, .batch = 4, .optimizer = "adamw",
		.unit_names = unit_names,
		.layout = {.unit = c->unit, .n_units = N_UNITS, .state_bytes = state_bytes, .average_bytes = 2816 + 64}};
	c->rank = NEW_N(a, Rank, world);
	pthread_barrier_init(&c->barrier, NULL, (unsigned)world);
	for (int i = 0; i < world; i++)
		make_rank(c, i, shard_size);
	return c;
}

void cluster_free(Cluster *c)
{
	for (int i = 0; i < c->world; i++) {
		fclose(c->rank[i].d.out);
		free(c->rank[i].said);
	}
	pthread_barrier_destroy(&c->barrier);
	arena_free(c->a);
}

bool cluster_all(Cluster *c, void *(*run)(void *rank), bool ok)
{
	pthread_t thread[MOST_RANKS];
	for (int i = 0; i < c->world; i++)
		pthread_create(&thread[i], NULL, run, &c->rank[i]);
	bool agreed = true;
	for (int i = 0; i < c->world; i++) {
		pthread_join(thread[i], NULL);
		fflush(c->rank[i].d.out);
		agreed = agreed && c->rank[i].ok == ok && (ok || c->rank[i].d.errors);
		if (c->rank[i].ok != ok && !ok)
			fprintf(stderr, "rank %d of %d says that it went well\n", i, c->world);
		else if (c->rank[i].ok != ok)
			fprintf(stderr, "rank %d of %d: %s\n", i, c->world, c->rank[i].said);
	}
	return agreed;
}

void *cluster_load(void *rank)
{
	Rank *r = rank;
	r->ok = weights_load(&r->rt, r->from_checkpoint, &r->d);
	return NULL;
}

void *cluster_save(void *rank)
{
	Rank *r = rank;
	r->ok = save_run(&r->checkpoint, &r->p.progress, &r->d);
	return NULL;
}

void *cluster_resume(void *rank)
{
	Rank *r = rank;
	Arena *a = arena_new(); /* the cluster's is no thread's */
	r->ok = resume_load(&r->checkpoint, r->dir, a, &r->d);
	arena_free(a);
	return NULL;
}

/* How many ranks said something, and whether one of them said this. */
static int speakers(const Cluster *c, const char *text, bool *found)
{
	int n = 0;
	*found = false;
	for (int i = 0; i < c->world; i++) {
		n += c->rank[i].n_said > 0;
		*found = *found || strstr(c->rank[i].said, text);
	}
	return n;
}

void cluster_said(const Cluster *c, const char *text)
{
	bool found;
	CU_ASSERT_EQUAL(speakers(c, text, &found), 1);
	CU_ASSERT(found);
	for (int i = 0; !found && i < c->world; i++)
		fprintf(stderr, "rank %d, wanted \"%s\": %s\n", i, text, c->rank[i].said);
}

void cluster_set_step(Cluster *c, int64_t step)
{
	for (int i = 0; i < c->world; i++)
		c->rank[i].p.progress = (Progress){.step = step, .updates = step, .samples = step * 4};
}

/* ---- contents ---- */

void cluster_put_states(Cluster *c)
{
	for (int r = 0; r < c->world; r++)
		for (int i = 0; i < N_TENSORS; i++)
			for (int k = 0; specs[i].trainable && k < 2; k++) {
				Slice s = slice_state(&c->rank[r].rt, &c->tensor[i], k);
				for (int64_t e = 0; e < s.n; e++)
					((float *)s.at)[e] = (float)state_of(i, k, s.first + e);
			}
}

/* Elements of a slice that are not what they should be, as `rounded` has them. */
static int wrong_in(const Slice *s, int tensor, DType rounded)
{
	int bad = 0, size = dtype_info[s->dtype].bytes;
	for (int64_t e = 0; e < s->n; e++) {
		double want = cluster_wanted(tensor, s->first + e);
		want = dtype_is_float(rounded) ? dtype_round(rounded, want) : (double)(int64_t)want;
		bad += cluster_get(s->at + e * size, s->dtype) != want;
	}
	return bad;
}

static int wrong_elements(const Rank *r, bool states)
{
	int bad = 0;
	for (int i = 0; i < N_TENSORS; i++) {
		const RtTensor *t = &r->tensor[i];
		const LayoutFlat *flat = t->kind == RT_PARAM ? &r->model.layout.unit[t->unit].flat[t->flat] : NULL;
		Slice s = slice_at_rest(&r->rt, t), master = slice_master(&r->rt, t);
		bad += wrong_in(&s, i, !flat ? t->dtype : flat->master ? flat->bcast : flat->dtype);
		bad += wrong_in(&master, i, DT_F32);
		for (int k = 0; states && specs[i].trainable && k < 2; k++) {
			s = slice_state(&r->rt, &r->tensor[i], k);
			bad += flat->master && s.n != master.n;
			for (int64_t e = 0; e < s.n; e++)
				bad += ((float *)s.at)[e] != (float)state_of(i, k, s.first + e);
		}
	}
	return bad;
}

int cluster_wrong(const Cluster *c, bool states)
{
	int bad = 0;
	for (int i = 0; i < c->world; i++)
		bad += wrong_elements(&c->rank[i], states);
	return bad;
}
