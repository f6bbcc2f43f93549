/* tests/e2e/checkpoint_files.c: model.safetensors, optim.safetensors, buffers-rank.safetensors and state.json, as a
 * program saves them, of any size without as much memory. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checkpoint.h"
#include "base/crc32.h"
#include "base/file.h"
#include "tests/e2e/checkpoint_files.h"

enum { CHUNK = 1 << 20, TABLE = 70, ROWS = 11, COLUMNS = 37, STATS = 19 };
static const SafeMeta file_meta[] = {{"format", "pt"}};

typedef VEC(SafeTensor) Tensors;
typedef struct Files { Arena *a; Tensors section[CHECKPOINT_SECTIONS]; Buf units; const char *comma; } Files;

static void add(Files *f, CheckpointSection s, const char *name, DType dtype, int rank, int64_t rows, int64_t columns)
{
	SafeTensor t = {.name = name, .dtype = dtype, .rank = rank, .dim = {rows, columns}};
	vec_push(f->a, &f->section[s], t);
}

static const char *add_param(Files *f, const char *unit, const char *name, bool trained, int64_t rows, int64_t columns)
{
	const char *full = arena_printf(f->a, "%s.%s", unit, name);
	int rank = columns ? 2 : 1;
	add(f, CHECKPOINT_MODEL, full, DT_F32, rank, rows, columns);
	if (trained) {
		add(f, CHECKPOINT_OPTIM, arena_printf(f->a, "%s.exp_avg", full), DT_F32, rank, rows, columns);
		add(f, CHECKPOINT_OPTIM, arena_printf(f->a, "%s.exp_avg_sq", full), DT_F32, rank, rows, columns);
	}
	return full;
}

static void begin_unit(Files *f, const char *name, const char *strategy, int owner)
{
	bool owned = !strcmp(strategy, "oss") || !strcmp(strategy, "sharded_ddp");
	buf_printf(&f->units, "%s{\"name\": \"%s\", \"strategy\": \"%s\", \"owner\": %d, \"flats\": [", f->comma, name,
		strategy, owned ? owner : -1);
	f->comma = ",\n    ";
}

static void add_unit(Files *f, const char *name, const char *strategy, int owner)
{
	const char *weight = add_param(f, name, "weight", true, ROWS, COLUMNS);
	const char *bias = add_param(f, name, "bias", true, COLUMNS, 0);
	const char *table = add_param(f, name, "table", false, TABLE, 0);
	int64_t at = round_up(ROWS * COLUMNS, 64);
	begin_unit(f, name, strategy, owner);
	buf_printf(&f->units, "{\"dtype\": \"f32\", \"numel\": %" PRId64 ", \"trainable\": true, \"params\": [[\"%s\", 0], "
		"[\"%s\", %" PRId64 "]]}, ", at + COLUMNS, weight, bias, at);
	buf_printf(&f->units, "{\"dtype\": \"f32\", \"numel\": %d, \"trainable\": false, \"params\": [[\"%s\", 0]]}]}",
		(int)TABLE, table);
}

static void add_big(Files *f, int megabytes, const char *strategy)
{
	enum { WIDE = 1024 };
	int64_t rows = ((int64_t)megabytes << 20) / (3 * WIDE * 4) + 1;
	const char *weight = add_param(f, "big", "weight", true, rows, WIDE);
	begin_unit(f, "big", strategy, 0);
	buf_printf(&f->units, "{\"dtype\": \"f32\", \"numel\": %" PRId64 ", \"trainable\": true, \"params\": [[\"%s\", "
		"0]]}]}", rows * WIDE, weight);
}

/* Every element of every tensor is another number. */
static bool put_tensor(int fd, SafeTensor *t, int salt)
{
	static char bytes[CHUNK];
	t->crc = 0;
	for (int64_t at = 0, n; at < t->bytes; at += n) {
		n = MIN(CHUNK, t->bytes - at);
		for (int64_t i = 0; i < n; i += dtype_info[t->dtype].bytes) {
			float x = (float)salt + (float)((at + i) / 4 % 8191) / 8192;
			int64_t count = salt;
			if (t->dtype == DT_I64)
				memcpy(bytes + i, &count, sizeof(count));
			else
				memcpy(bytes + i, &x, sizeof(x));
		}
		if (!file_put(fd, bytes, n, t->offset + at))
			return false;
		t->crc = crc32_more(t->crc, bytes, n);
	}
	return safetensors_put_crc(fd, t);
}

static bool put_file(const char *path, Tensors *t, int salt)
{
	safetensors_place(t->at, t->n, file_meta, COUNT_OF(file_meta));
	if (!safetensors_create(path, t->at, t->n, file_meta, COUNT_OF(file_meta)))
		return false;
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool ok = fd >= 0;
	for (int i = 0; i < t->n && ok; i++)
		ok = put_tensor(fd, &t->at[i], salt + i);
	return !close(fd) && ok;
}

static bool put_state(const char *path, const Files *f, int ranks)
{
	FILE *out = fopen(path, "w");
	if (!out)
		return false;
	fprintf(out, "{\n  \"format\": 1,\n  \"model\": \"nobody\",\n  \"optimizer\": \"adamw\",\n  \"layout\": {\"kind\": "
		"\"full\", \"ranks\": %d, \"shard_size\": 1", ranks);
	if (f->units.n)
		fprintf(out, ", \"units\": [\n    %s]", f->units.at);
	fprintf(out, "},\n  \"step\": 7, \"updates\": 7, \"samples\": 56,\n  \"began\": {\"u0.bias\": 2}\n}\n");
	return !fclose(out);
}

int put_checkpoint(const char *dir, int megabytes, int ranks, char **strategies, int n)
{
	Files f = {.a = arena_new(), .comma = ""};
	for (int i = 0; i < MAX(n, 1); i++)
		add_unit(&f, arena_printf(f.a, "u%d", i), n ? strategies[i] : "full_shard", i % ranks);
	if (megabytes)
		add_big(&f, megabytes, n ? strategies[0] : "full_shard");
	if (!n)
		f.units.n = 0;
	add(&f, CHECKPOINT_MODEL, "bn.running_mean", DT_F32, 1, STATS, 0);
	add(&f, CHECKPOINT_MODEL, "bn.num_batches_tracked", DT_I64, 0, 0, 0);
	for (int r = 0; r < ranks && ranks > 1; r++)
		add(&f, CHECKPOINT_OWN, arena_printf(f.a, "rank%d/bn.running_mean", r), DT_F32, 1, STATS, 0);
	bool ok = !mkdir(dir, 0777);
	for (int s = 0; s < CHECKPOINT_SECTIONS && ok; s++)
		if (f.section[s].n)
			ok = put_file(arena_printf(f.a, "%s/%s.safetensors", dir, checkpoint_sections[s]), &f.section[s], 100 * s);
	ok = ok && put_state(arena_printf(f.a, "%s/state.json", dir), &f, ranks);
	buf_free(&f.units);
	arena_free(f.a);
	return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
