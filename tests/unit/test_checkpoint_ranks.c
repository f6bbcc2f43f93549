/* tests/unit/test_checkpoint_ranks.c: initial weights, checkpoints, resumes and averages of several ranks.
 *
 * Ranks are threads, and what they read from each other is each other's memory; layout, slices and files
 * are those of a run.  One small model has a unit of every strategy; which unit has which is shifted.  The same again
 * with 16-bit roles and masters: what is in files does not change by them. */
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filehash.h"
#include "runtime/comm/ops.h"
#include "runtime/store/save.h"
#include "tests/unit/unit.h"

enum { MOST_RANKS = 6, N_UNITS = 6, FILE_AT = 24 };

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
enum { N_TENSORS = COUNT_OF(specs), BN_MEAN = 12, BN_WIDE, BN_COUNT };

static char folder[] = "/tmp/test_ranks_" "XX" "XX" "XX";
static char old_folder[4096];
static int64_t file_offset[N_TENSORS], file_bytes;

static const char *const unit_names[N_UNITS] = {"a", "b", "c", "d", "e", "f"};

typedef struct Rank Rank;
typedef struct Cluster {
	LayoutUnit unit[N_UNITS];
	RtTensor tensor[N_TENSORS];
	RtModel model;
	RtFile file;
	Rank *rank;
	int world;
	Arena *a;
	pthread_barrier_t barrier;
	const void *source[MOST_RANKS];
} Cluster;

/* What a rank is told to do, and what came of it. */
struct Rank {
	Cluster *cluster;
	Rt rt;
	struct RtPrivate p;
	RtOptions o;
	Diag d;
	Comm comm;
	RankProgress seen;
	RtModel model;
	RtFile file;
	RtTensor tensor[N_TENSORS];
	SaveSet checkpoint;
	char *said;
	size_t n_said;
	const char *dir; /* of a resume */
	bool from_checkpoint, ok;
	char mailbox[COMM_MAILBOX];
};

static CheckpointKind save_kind; /* of clusters that are made */
static bool narrow_buffers; /* of clusters that are made: bn.mean is stored in bf16 */
static bool in_halves; /* of clusters that are made: units with an owner have masters, others are gathered in bf16 */

/* f16 holds them, bf16 does not. */
static double value_of(int tensor, int64_t k) { return (double)((tensor * 37 + k * 11) % 120) + 0.0625; }
static double state_of(int tensor, int state, int64_t k) { return value_of(tensor, k) + 1000.0 * (state + 1); }

static double wanted(int tensor, int64_t k)
{
	return specs[tensor].file == DT_COUNT ? 2.5 : value_of(tensor, k);
}

static double get(const char *at, DType t)
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
	if (narrow_buffers && i == BN_MEAN) {
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
		.save_kind = save_kind};
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

/* Unit u has strategy u + shift. */
static Cluster *cluster_new(int world, int shard_size, int shift)
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
	for (int u = 0; u < N_UNITS && in_halves; u++)
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

static void cluster_free(Cluster *c)
{
	for (int i = 0; i < c->world; i++) {
		fclose(c->rank[i].d.out);
		free(c->rank[i].said);
	}
	pthread_barrier_destroy(&c->barrier);
	arena_free(c->a);
}

/* Every rank does it; whether all, or none, say that it went well. */
static bool together(Cluster *c, void *(*run)(void *rank), bool ok)
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

static void *run_load(void *rank)
{
	Rank *r = rank;
	r->ok = weights_load(&r->rt, r->from_checkpoint, &r->d);
	return NULL;
}

static void *run_save(void *rank)
{
	Rank *r = rank;
	r->ok = save_run(&r->checkpoint, &r->p.progress, &r->d);
	return NULL;
}

static void *run_resume(void *rank)
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

static void expect_said(const Cluster *c, const char *text)
{
	bool found;
	CU_ASSERT_EQUAL(speakers(c, text, &found), 1);
	CU_ASSERT(found);
	for (int i = 0; !found && i < c->world; i++)
		fprintf(stderr, "rank %d, wanted \"%s\": %s\n", i, text, c->rank[i].said);
}

static void set_step(Cluster *c, int64_t step)
{
	for (int i = 0; i < c->world; i++)
		c->rank[i].p.progress = (Progress){.step = step, .updates = step, .samples = step * 4};
}

/* ---- contents ---- */

static void put_states(Cluster *c, double plus)
{
	for (int r = 0; r < c->world; r++)
		for (int i = 0; i < N_TENSORS; i++)
			for (int k = 0; specs[i].trainable && k < 2; k++) {
				Slice s = slice_state(&c->rank[r].rt, &c->tensor[i], k);
				for (int64_t e = 0; e < s.n; e++)
					((float *)s.at)[e] = (float)(state_of(i, k, s.first + e) + plus);
			}
}

/* Elements of a slice that are not what they should be, as `rounded` has them. */
static int wrong_in(const Slice *s, int tensor, DType rounded)
{
	int bad = 0, size = dtype_info[s->dtype].bytes;
	for (int64_t e = 0; e < s->n; e++) {
		double want = wanted(tensor, s->first + e);
		want = dtype_is_float(rounded) ? dtype_round(rounded, want) : (double)(int64_t)want;
		bad += get(s->at + e * size, s->dtype) != want;
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

static int all_wrong(const Cluster *c, bool states)
{
	int bad = 0;
	for (int i = 0; i < c->world; i++)
		bad += wrong_elements(&c->rank[i], states);
	return bad;
}

static const struct Shape { int world, shard_size; } shapes[] = {{1, 0}, {2, 0}, {3, 0}, {4, 2}, {5, 0}, {6, 3}};

/* ---- tests ---- */

/* Of each element and each state exactly one rank writes, and what ranks hold is inside their memory. */
static void test_cover(void)
{
	for (int i = 0; i < COUNT_OF(shapes) * STRATEGY_COUNT; i++) {
		Cluster *c = cluster_new(shapes[i / STRATEGY_COUNT].world, shapes[i / STRATEGY_COUNT].shard_size,
			i % STRATEGY_COUNT);
		const SaveFile *f[2] = {&c->rank[0].checkpoint.section[CHECKPOINT_MODEL],
			&c->rank[0].checkpoint.section[CHECKPOINT_OPTIM]};
		for (int k = 0; k < 2; k++)
			for (int t = 0; t < f[k]->n; t++) {
				int64_t numel = f[k]->at[t].bytes / dtype_info[f[k]->at[t].dtype].bytes;
				int64_t writers[2048] = {0}, bad = 0;
				for (int r = 0; r < c->world; r++) {
					const SaveSet *mine = &c->rank[r].checkpoint;
					const SavePart *p = &mine->section[k ? CHECKPOINT_OPTIM : CHECKPOINT_MODEL].part[t];
					for (int64_t e = 0; p->writes && e < p->source.n; e++)
						writers[p->source.first + e]++;
				}
				for (int64_t e = 0; e < numel; e++)
					bad += writers[e] != 1;
				CU_ASSERT_EQUAL(bad, 0);
			}
		cluster_free(c);
	}
}

static void test_weights(void)
{
	for (int i = 0; i < COUNT_OF(shapes) * STRATEGY_COUNT; i++) {
		Cluster *c = cluster_new(shapes[i / STRATEGY_COUNT].world, shapes[i / STRATEGY_COUNT].shard_size,
			i % STRATEGY_COUNT);
		CU_ASSERT(all_wrong(c, false) > 0);
		CU_ASSERT(together(c, run_load, true));
		CU_ASSERT_EQUAL(all_wrong(c, false), 0);
		cluster_free(c);
	}
}

/* The others have no file; the frozen table is larger than the window it passes through. */
static void test_sync_init(void)
{
	for (int i = STRATEGY_COUNT; i < COUNT_OF(shapes) * STRATEGY_COUNT; i++) {
		Cluster *c = cluster_new(shapes[i / STRATEGY_COUNT].world, shapes[i / STRATEGY_COUNT].shard_size,
			i % STRATEGY_COUNT);
		Staging s = staging_find(&c->rank[0].rt, c->a);
		CU_ASSERT(s.bytes < 40 * 51 * 4);
		for (int r = 0; r < c->world; r++) {
			c->rank[r].o.sync_init = true;
			c->rank[r].file.path = r ? "gone.bin" : "weights.bin";
			for (int t = 0; r && t < N_TENSORS; t++)
				c->rank[r].tensor[t].file = c->tensor[t].file ? "gone.bin" : NULL;
		}
		CU_ASSERT(together(c, run_load, true));
		CU_ASSERT_EQUAL(all_wrong(c, false), 0);
		cluster_free(c);
	}
}

static void test_weights_gone(void)
{
	Cluster *c = cluster_new(3, 0, 0);
	c->rank[1].file.bytes++;
	CU_ASSERT(together(c, run_load, false));
	expect_said(c, "the file has changed since this program was compiled");
	cluster_free(c);
	c = cluster_new(3, 0, 0);
	for (int r = 0; r < 3; r++) {
		c->rank[r].o.sync_init = true;
		c->rank[r].file.bytes++;
	}
	CU_ASSERT(together(c, run_load, false));
	expect_said(c, "the file has changed since this program was compiled");
	cluster_free(c);
}

/* A file of the latest checkpoint against the one that a single rank wrote. */
static bool as_one_rank(const char *dir, const char *file)
{
	char command[256];
	snprintf(command, sizeof(command), "cmp -s one/latest/%s %s/latest/%s", file, dir, file);
	return system(command) == 0;
}

static void save_loaded(Cluster *c, const char *dir)
{
	CU_ASSERT(together(c, run_load, true));
	put_states(c, 0);
	set_step(c, 7);
	for (int r = 0; r < c->world; r++)
		c->rank[r].o.save = dir;
	CU_ASSERT(together(c, run_save, true));
}

/* The same contents are the same bytes on the disk, and come back, at any number of ranks and strategy. */
static void test_save_resume(void)
{
	for (int i = 0; i < COUNT_OF(shapes); i++) {
		in_halves = i % 3 == 1;
		Cluster *from = cluster_new(shapes[i].world, shapes[i].shard_size, i);
		const char *dir = i ? "many" : "one";
		save_loaded(from, dir);
		CU_ASSERT(as_one_rank(dir, "model.safetensors"));
		CU_ASSERT(as_one_rank(dir, "optim.safetensors"));
		for (int k = 0; k < COUNT_OF(shapes); k++) {
			in_halves = k % 2;
			Cluster *to = cluster_new(shapes[k].world, shapes[k].shard_size, k + 3);
			for (int r = 0; r < to->world; r++) {
				to->rank[r].dir = arena_printf(to->a, "%s/latest", dir);
				to->rank[r].from_checkpoint = true;
			}
			CU_ASSERT(together(to, run_load, true));
			CU_ASSERT(together(to, run_resume, true));
			CU_ASSERT_EQUAL(all_wrong(to, true), 0);
			cluster_free(to);
		}
		cluster_free(from);
	}
	in_halves = false;
}

/* Bytes of the files that a rank writes are within what the plan has for a copy of them. */
static void check_snapshot(Cluster *c)
{
	for (int r = 0; r < c->world; r++) {
		const SaveSet *mine = &c->rank[r].checkpoint;
		LayoutModel l = c->rank[r].model.layout;
		LayoutRank who = device_rank(&c->rank[r].rt);
		int64_t bytes = 0;
		l.saved_bytes = 2816 + 24 + 8 + 8; /* of the buffers and "seen" */
		l.n_states = c->rank[r].p.optim.n_states;
		for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
			for (int i = 0; i < mine->file[s].n; i++)
				bytes += mine->file[s].at[i].bytes;
		CU_ASSERT(bytes <= layout_snapshot_bytes(&l, &who));
	}
}

static void resume_all(int shape, int shift, const char *dir, bool ok)
{
	Cluster *to = cluster_new(shapes[shape].world, shapes[shape].shard_size, shift);
	for (int r = 0; r < to->world; r++) {
		to->rank[r].dir = arena_printf(to->a, "%s/latest", dir);
		to->rank[r].from_checkpoint = true;
	}
	CU_ASSERT(together(to, run_load, true));
	CU_ASSERT(together(to, run_resume, ok));
	if (ok)
		CU_ASSERT_EQUAL(all_wrong(to, true), 0);
	if (!ok)
		expect_said(to, "a checkpoint of kind local, whose layout is another");
	cluster_free(to);
}

/* Of slices any number of ranks and any strategy reads its own; of shards those that lie as they did. */
static void test_kinds(void)
{
	for (int i = 0; i < COUNT_OF(shapes); i++)
		for (int kind = CHECKPOINT_SHARDED; kind <= CHECKPOINT_LOCAL; kind++) {
			const char *dir = kind == CHECKPOINT_LOCAL ? "local" : "sharded";
			in_halves = i % 3 == 1;
			save_kind = (CheckpointKind)kind;
			Cluster *from = cluster_new(shapes[i].world, shapes[i].shard_size, i);
			save_loaded(from, dir);
			check_snapshot(from);
			cluster_free(from);
			save_kind = CHECKPOINT_FULL;
			for (int k = 0; k < COUNT_OF(shapes); k++)
				if (kind == CHECKPOINT_SHARDED)
					resume_all(k, k + 3, dir, true);
			if (kind == CHECKPOINT_LOCAL) {
				resume_all(i, i, dir, true);
				resume_all((i + 1) % COUNT_OF(shapes), i, dir, false);
			}
		}
	in_halves = false;
}

/* The same with masters and 16-bit working copies; files hold what f32 alone would have written. */
static void test_halves(void)
{
	in_halves = narrow_buffers = true;
	test_cover();
	test_weights();
	test_sync_init();
	in_halves = narrow_buffers = false;
}

/* --buffer-dtype: files hold the model's dtype, of every rank's own buffers too, and memory what it has room for. */
static void test_narrow_buffers(void)
{
	for (int k = 0; k < 2; k++) {
		narrow_buffers = k == 0;
		Cluster *c = cluster_new(3, 0, 0);
		if (k == 0)
			save_loaded(c, "narrow");
		Arena *a = arena_new();
		Diag d = {.out = stderr};
		SafeFile *f = safetensors_open(a, "narrow/latest/model.safetensors", &d);
		SafeFile *own = safetensors_open(a, "narrow/latest/buffers-rank.safetensors", &d);
		CU_ASSERT_FATAL(f && own);
		const SafeTensor *t = safetensors_find(f, "bn.mean"), *mine = safetensors_find(own, "rank2/bn.mean");
		CU_ASSERT_FATAL(t && mine);
		CU_ASSERT(t->dtype == DT_F32 && mine->dtype == DT_F32);
		for (int64_t e = 0; e < 700; e++) {
			float v, own_v; /* a file aligns nothing */
			memcpy(&v, (const char *)t->data + e * 4, sizeof(v));
			memcpy(&own_v, (const char *)mine->data + e * 4, sizeof(own_v));
			CU_ASSERT_EQUAL(v, dtype_round(DT_BF16, wanted(BN_MEAN, e)));
			CU_ASSERT_EQUAL(own_v, v);
		}
		for (int r = 0; r < 3; r++)
			c->rank[r].dir = "narrow/latest";
		CU_ASSERT(together(c, run_resume, true));
		Slice s = slice_at_rest(&c->rank[2].rt, &c->rank[2].tensor[BN_MEAN]);
		for (int64_t e = 0; e < 700; e++)
			CU_ASSERT_EQUAL(get(s.at + e * dtype_info[s.dtype].bytes, s.dtype),
				dtype_round(DT_BF16, wanted(BN_MEAN, e)));
		safetensors_close(f);
		safetensors_close(own);
		arena_free(a);
		cluster_free(c);
	}
}

static void test_state_json(void)
{
	Cluster *c = cluster_new(6, 3, 0);
	save_loaded(c, "many");
	json_error_t error;
	json_t *root = json_load_file("many/latest/state.json", JSON_REJECT_DUPLICATES, &error);
	CU_ASSERT_PTR_NOT_NULL_FATAL(root);
	json_t *layout = json_object_get(root, "layout");
	CU_ASSERT_STRING_EQUAL(json_string_value(json_object_get(layout, "kind")), "full");
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(layout, "ranks")), 6);
	CU_ASSERT_EQUAL(json_integer_value(json_object_get(layout, "shard_size")), 3);
	CU_ASSERT_EQUAL(json_array_size(json_object_get(layout, "strategies")), STRATEGY_COUNT);
	json_decref(root);
	Progress p = {0};
	const char *found;
	Rank *r = &c->rank[2];
	r->o.resume = "many/latest";
	CU_ASSERT(resume_begin(&r->rt, &r->o, &found, &p, &r->d));
	CU_ASSERT(p.step == 7 && p.updates == 7 && p.samples == 28);
	CU_ASSERT_EQUAL(r->n_said, 0);
	cluster_free(c);
	c = cluster_new(2, 0, 0);
	r = &c->rank[0];
	r->o.resume = "many/latest";
	CU_ASSERT(resume_begin(&r->rt, &r->o, &found, &p, &r->d));
	fflush(r->d.out);
	CU_ASSERT_PTR_NOT_NULL(strstr(r->said, "6 rank(s) then, 2 now"));
	cluster_free(c);
}

/* ---- buffers ---- */

static float own_mean(int rank, int64_t k) { return (float)k * 0.1f + (float)rank * 0.7f; }

static float average_mean(int ranks, int64_t k)
{
	float first = own_mean(0, k), sum = 0;
	for (int r = 1; r < ranks; r++)
		sum += own_mean(r, k) - first;
	return (float)((double)first + (double)(sum / (float)ranks));
}

static void put_buffers(Cluster *c)
{
	for (int r = 0; r < c->world; r++) {
		for (int k = 0; k < 700; k++)
			((float *)device_tensor(&c->rank[r].rt, &c->tensor[BN_MEAN]))[k] = own_mean(r, k);
		for (int k = 0; k < 3; k++)
			((double *)device_tensor(&c->rank[r].rt, &c->tensor[BN_WIDE]))[k] = k + r;
		*(int64_t *)device_tensor(&c->rank[r].rt, &c->tensor[BN_COUNT]) = 50 + r;
	}
}

/* Buffers that are neither the rank's own (rank >= 0) nor the average of `ranks`. */
static int wrong_buffers(const Rank *r, int rank, int ranks, int count)
{
	int bad = *(int64_t *)device_tensor(&r->rt, &r->tensor[BN_COUNT]) != count;
	for (int k = 0; k < 700; k++) {
		float want = rank >= 0 ? own_mean(rank, k) : average_mean(ranks, k);
		bad += ((float *)device_tensor(&r->rt, &r->tensor[BN_MEAN]))[k] != want;
	}
	for (int k = 0; k < 3; k++) {
		double want = rank >= 0 ? k + rank : (k + 1);
		bad += ((double *)device_tensor(&r->rt, &r->tensor[BN_WIDE]))[k] != want;
	}
	return bad;
}

static void *run_average(void *rank)
{
	Rank *r = rank;
	average_begin(&r->rt);
	r->ok = !wrong_buffers(r, -1, 3, 50 + r->p.world.rank);
	average_end(&r->rt);
	r->ok = r->ok && !wrong_buffers(r, r->p.world.rank, 3, 50 + r->p.world.rank);
	return NULL;
}

static void resume_buffers(int world, const char *dir, bool ok, Cluster **out)
{
	Cluster *c = *out = cluster_new(world, 0, 2);
	for (int r = 0; r < world; r++)
		c->rank[r].dir = dir;
	CU_ASSERT(together(c, run_resume, ok));
}

static void test_buffers(void)
{
	Cluster *c = cluster_new(3, 0, 0), *to;
	put_buffers(c);
	CU_ASSERT(together(c, run_average, true));
	set_step(c, 1);
	CU_ASSERT(together(c, run_save, true));
	for (int r = 0; r < 3; r++)
		CU_ASSERT_EQUAL(wrong_buffers(&c->rank[r], r, 3, 50 + r), 0);
	cluster_free(c);
	resume_buffers(3, "save/latest", true, &to);
	for (int r = 0; r < 3; r++)
		CU_ASSERT_EQUAL(wrong_buffers(&to->rank[r], r, 3, 50 + r), 0);
	cluster_free(to);
	for (int world = 1; world < 5; world += world == 2 ? 2 : 1) {
		resume_buffers(world, "save/latest", true, &to);
		for (int r = 0; r < world; r++)
			CU_ASSERT_EQUAL(wrong_buffers(&to->rank[r], -1, 3, 50), 0);
		cluster_free(to);
	}
	CU_ASSERT_EQUAL(unlink("save/latest/buffers-rank.safetensors"), 0);
	resume_buffers(3, "save/latest", false, &to);
	expect_said(to, "there is no buffers-rank.safetensors: the checkpoint is not whole");
	cluster_free(to);
	CU_ASSERT_EQUAL(system("sed -i '/\"crc32\"/d; s/\"files\": [^]]*], //' save/latest/state.json"), 0);
	resume_buffers(3, "save/latest", true, &to);
	CU_ASSERT_EQUAL(wrong_buffers(&to->rank[1], -1, 3, 50), 0);
	CU_ASSERT_PTR_NOT_NULL(strstr(to->rank[0].said, "the ranks' own buffers (buffers-rank) are missing"));
	cluster_free(to);
}

/* ---- failures ---- */

/* The earlier checkpoint is what it was, and nothing is left of the one that failed. */
static void check_earlier(const char *dir)
{
	char command[256];
	snprintf(command, sizeof(command), "test \"$(readlink %s/latest)\" = step-00000007 && "
		"cmp -s one/latest/model.safetensors %s/latest/model.safetensors && test $(ls -A %s | wc -l) = 2", dir, dir,
		dir);
	CU_ASSERT_EQUAL(system(command), 0);
}

static Cluster *cluster_saved(const char *dir)
{
	Cluster *c = cluster_new(4, 2, 1);
	save_loaded(c, dir);
	set_step(c, 8);
	return c;
}

static void test_failed_write(void)
{
	Cluster *c = cluster_saved("fail");
	SaveFile *f = &c->rank[2].checkpoint.section[CHECKPOINT_OPTIM];
	for (int i = 0; i < f->n; i++)
		f->at[i].offset = INT64_MIN; /* the system refuses to write there */
	CU_ASSERT(together(c, run_save, false));
	expect_said(c, "optim.safetensors could not be written");
	CU_ASSERT_PTR_NOT_NULL(strstr(c->rank[2].said, "this was rank 2 of 4"));
	check_earlier("fail");
	cluster_free(c);
}

static void test_other_folder(void)
{
	Cluster *c = cluster_saved("fail2");
	c->rank[1].o.save = "elsewhere";
	CU_ASSERT(together(c, run_save, false));
	expect_said(c, "does not see it: --save needs a folder that all hosts share");
	check_earlier("fail2");
	CU_ASSERT(access("elsewhere", F_OK));
	cluster_free(c);
}

static void test_no_folder(void)
{
	Cluster *c = cluster_new(3, 0, 0);
	for (int r = 0; r < 3; r++)
		c->rank[r].o.save = "weights.bin/save";
	CU_ASSERT(together(c, run_save, false));
	expect_said(c, "the folder could not be written");
	cluster_free(c);
}

/* The file of one rank's state is cut short: no rank goes on. */
static void test_broken_file(void)
{
	Cluster *c = cluster_saved("broken");
	CU_ASSERT_EQUAL(truncate("broken/latest/optim.safetensors", 1000), 0);
	for (int r = 0; r < c->world; r++)
		c->rank[r].dir = r == 2 ? "broken/latest" : "one/latest";
	CU_ASSERT(together(c, run_resume, false));
	expect_said(c, "broken/latest/optim.safetensors: ");
	CU_ASSERT_PTR_NOT_NULL(strstr(c->rank[2].said, "this was rank 2 of 4"));
	cluster_free(c);
}

static int enter(void)
{
	return !getcwd(old_folder, sizeof(old_folder)) || !mkdtemp(folder) || chdir(folder);
}

static int leave(void)
{
	char command[64];
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return chdir(old_folder) || system(command);
}

void suite_checkpoint_ranks(void)
{
	CU_pSuite s = CU_add_suite("checkpoint_ranks", enter, leave);
	CU_add_test(s, "every element is written once", test_cover);
	CU_add_test(s, "initial weights", test_weights);
	CU_add_test(s, "--sync-init", test_sync_init);
	CU_add_test(s, "initial weights that changed", test_weights_gone);
	CU_add_test(s, "save and resume, any ranks and strategies", test_save_resume);
	CU_add_test(s, "save and resume, slices and shards", test_kinds);
	CU_add_test(s, "16-bit copies and masters", test_halves);
	CU_add_test(s, "narrow buffers", test_narrow_buffers);
	CU_add_test(s, "state.json", test_state_json);
	CU_add_test(s, "buffers are averaged", test_buffers);
	CU_add_test(s, "a write of one rank fails", test_failed_write);
	CU_add_test(s, "a host without the folder", test_other_folder);
	CU_add_test(s, "no folder", test_no_folder);
	CU_add_test(s, "a rank finds a broken checkpoint", test_broken_file);
}
