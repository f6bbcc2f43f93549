/* tests/unit/test_checkpoint_ranks.c: initial weights, checkpoints, resumes and averages of several ranks.
 *
 * Some cases have units with 16-bit roles and masters, which do not change the contents of files. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cluster.h"
#include "tests/unit/unit.h"

static char folder[] = "/tmp/test_ranks_" "XX" "XX" "XX";
static char old_folder[4096];
static const struct Shape { int world, shard_size; } shapes[] = {{1, 0}, {2, 0}, {3, 0}, {4, 2}, {5, 0}, {6, 3}};

/* Of each tensor and each state every element is written by exactly one rank. */
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
		CU_ASSERT(cluster_wrong(c, false) > 0);
		CU_ASSERT(cluster_all(c, cluster_load, true));
		CU_ASSERT_EQUAL(cluster_wrong(c, false), 0);
		cluster_free(c);
	}
}

/* Ranks above 0 have no file; the frozen table is larger than the window that it passes through. */
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
		CU_ASSERT(cluster_all(c, cluster_load, true));
		CU_ASSERT_EQUAL(cluster_wrong(c, false), 0);
		cluster_free(c);
	}
}

static void test_weights_gone(void)
{
	Cluster *c = cluster_new(3, 0, 0);
	c->rank[1].file.bytes++;
	CU_ASSERT(cluster_all(c, cluster_load, false));
	cluster_said(c, "the file has changed since this program was compiled");
	cluster_free(c);
	c = cluster_new(3, 0, 0);
	for (int r = 0; r < 3; r++) {
		c->rank[r].o.sync_init = true;
		c->rank[r].file.bytes++;
	}
	CU_ASSERT(cluster_all(c, cluster_load, false));
	cluster_said(c, "the file has changed since this program was compiled");
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
	CU_ASSERT(cluster_all(c, cluster_load, true));
	cluster_put_states(c);
	cluster_set_step(c, 7);
	for (int r = 0; r < c->world; r++)
		c->rank[r].o.save = dir;
	CU_ASSERT(cluster_all(c, cluster_save, true));
}

/* The same contents are the same bytes on the disk, and come back, at any number of ranks and strategy. */
static void test_save_resume(void)
{
	for (int i = 0; i < COUNT_OF(shapes); i++) {
		cluster_in_halves = i % 3 == 1;
		Cluster *from = cluster_new(shapes[i].world, shapes[i].shard_size, i);
		const char *dir = i ? "many" : "one";
		save_loaded(from, dir);
		CU_ASSERT(as_one_rank(dir, "model.safetensors"));
		CU_ASSERT(as_one_rank(dir, "optim.safetensors"));
		for (int k = 0; k < COUNT_OF(shapes); k++) {
			cluster_in_halves = k % 2;
			Cluster *to = cluster_new(shapes[k].world, shapes[k].shard_size, k + 3);
			for (int r = 0; r < to->world; r++) {
				to->rank[r].dir = arena_printf(to->a, "%s/latest", dir);
				to->rank[r].from_checkpoint = true;
			}
			CU_ASSERT(cluster_all(to, cluster_load, true));
			CU_ASSERT(cluster_all(to, cluster_resume, true));
			CU_ASSERT_EQUAL(cluster_wrong(to, true), 0);
			cluster_free(to);
		}
		cluster_free(from);
	}
	cluster_in_halves = false;
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
	CU_ASSERT(cluster_all(to, cluster_load, true));
	CU_ASSERT(cluster_all(to, cluster_resume, ok));
	if (ok)
		CU_ASSERT_EQUAL(cluster_wrong(to, true), 0);
	if (!ok)
		cluster_said(to, "a checkpoint of kind local, whose layout is another");
	cluster_free(to);
}

/* Any number of ranks and any strategy reads slices; shards are read where they lie as they did. */
static void test_kinds(void)
{
	for (int i = 0; i < COUNT_OF(shapes); i++)
		for (int kind = CHECKPOINT_SHARDED; kind <= CHECKPOINT_LOCAL; kind++) {
			const char *dir = kind == CHECKPOINT_LOCAL ? "local" : "sharded";
			cluster_in_halves = i % 3 == 1;
			cluster_save_kind = (CheckpointKind)kind;
			Cluster *from = cluster_new(shapes[i].world, shapes[i].shard_size, i);
			save_loaded(from, dir);
			check_snapshot(from);
			cluster_free(from);
			cluster_save_kind = CHECKPOINT_FULL;
			for (int k = 0; k < COUNT_OF(shapes); k++)
				if (kind == CHECKPOINT_SHARDED)
					resume_all(k, k + 3, dir, true);
			if (kind == CHECKPOINT_LOCAL) {
				resume_all(i, i, dir, true);
				resume_all((i + 1) % COUNT_OF(shapes), i, dir, false);
			}
		}
	cluster_in_halves = false;
}

/* The same with masters and 16-bit working copies; files hold what f32 alone would have written. */
static void test_halves(void)
{
	cluster_in_halves = cluster_narrow_buffers = true;
	test_cover();
	test_weights();
	test_sync_init();
	cluster_in_halves = cluster_narrow_buffers = false;
}

/* --buffer-dtype: files hold the model's dtype, of every rank's own buffers too, and memory what it has room for. */
static void test_narrow_buffers(void)
{
	for (int k = 0; k < 2; k++) {
		cluster_narrow_buffers = k == 0;
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
			CU_ASSERT_EQUAL(v, dtype_round(DT_BF16, cluster_wanted(BN_MEAN, e)));
			CU_ASSERT_EQUAL(own_v, v);
		}
		for (int r = 0; r < 3; r++)
			c->rank[r].dir = "narrow/latest";
		CU_ASSERT(cluster_all(c, cluster_resume, true));
		Slice s = slice_at_rest(&c->rank[2].rt, &c->rank[2].tensor[BN_MEAN]);
		for (int64_t e = 0; e < 700; e++)
			CU_ASSERT_EQUAL(cluster_get(s.at + e * dtype_info[s.dtype].bytes, s.dtype),
				dtype_round(DT_BF16, cluster_wanted(BN_MEAN, e)));
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
	CU_ASSERT(cluster_all(c, cluster_resume, ok));
}

static void test_buffers(void)
{
	Cluster *c = cluster_new(3, 0, 0), *to;
	put_buffers(c);
	CU_ASSERT(cluster_all(c, run_average, true));
	cluster_set_step(c, 1);
	CU_ASSERT(cluster_all(c, cluster_save, true));
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
	cluster_said(to, "there is no buffers-rank.safetensors: the checkpoint is not whole");
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
	cluster_set_step(c, 8);
	return c;
}

static void test_failed_write(void)
{
	Cluster *c = cluster_saved("fail");
	SaveFile *f = &c->rank[2].checkpoint.section[CHECKPOINT_OPTIM];
	for (int i = 0; i < f->n; i++)
		f->at[i].offset = INT64_MIN; /* the system refuses to write there */
	CU_ASSERT(cluster_all(c, cluster_save, false));
	cluster_said(c, "optim.safetensors could not be written");
	CU_ASSERT_PTR_NOT_NULL(strstr(c->rank[2].said, "this was rank 2 of 4"));
	check_earlier("fail");
	cluster_free(c);
}

static void test_other_folder(void)
{
	Cluster *c = cluster_saved("fail2");
	c->rank[1].o.save = "elsewhere";
	CU_ASSERT(cluster_all(c, cluster_save, false));
	cluster_said(c, "does not see it: --save needs a folder that all hosts share");
	check_earlier("fail2");
	CU_ASSERT(access("elsewhere", F_OK));
	cluster_free(c);
}

static void test_no_folder(void)
{
	Cluster *c = cluster_new(3, 0, 0);
	for (int r = 0; r < 3; r++)
		c->rank[r].o.save = "weights.bin/save";
	CU_ASSERT(cluster_all(c, cluster_save, false));
	cluster_said(c, "the folder could not be written");
	cluster_free(c);
}

/* The file of one rank's state is cut short: no rank goes on. */
static void test_broken_file(void)
{
	Cluster *c = cluster_saved("broken");
	CU_ASSERT_EQUAL(truncate("broken/latest/optim.safetensors", 1000), 0);
	for (int r = 0; r < c->world; r++)
		c->rank[r].dir = r == 2 ? "broken/latest" : "one/latest";
	CU_ASSERT(cluster_all(c, cluster_resume, false));
	cluster_said(c, "broken/latest/optim.safetensors: ");
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
