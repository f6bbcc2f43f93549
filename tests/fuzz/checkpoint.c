/* tests/fuzz/checkpoint.c: any state.json and index.json beside good files: tensors whose elements lie inside of these
 * files, or a message.  An input is the one text, a NUL byte, and the other. */
#include "base/checkpoint.h"
#include "tests/fuzz/fuzz.h"

static char folder[] = "/dev/shm/fuzz-checkpoint-" "XX" "XX" "XX"; /* a disk would wait for each truncated file */
static const char *const files[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
	"model.safetensors", "optim.safetensors", "state.json", "index.json"};
enum { TENSOR_FILES = 4 };

static const char *path_of(const char *name)
{
	static char path[128];
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static void remove_folder(void)
{
	for (int i = 0; i < COUNT_OF(files); i++)
		unlink(path_of(files[i]));
	rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static float numbers[24];
	const SafeTensor tensors[] = {{.name = "a", .dtype = DT_F32, .rank = 2, .dim = {4, 6}, .data = numbers},
		{.name = "b", .dtype = DT_F32, .rank = 1, .dim = {5}, .data = numbers}};
	(void)argc;
	(void)argv;
	if (!mkdtemp(folder) || atexit(remove_folder))
		abort();
	for (int i = 0; i < TENSOR_FILES; i++)
		if (!safetensors_write(path_of(files[i]), tensors, COUNT_OF(tensors), NULL, 0))
			abort();
	return 0;
}

static void put(const char *name, const uint8_t *bytes, size_t n)
{
	FILE *f = fopen(path_of(name), "wb");
	if (!f || fwrite(bytes, 1, n, f) != n || fclose(f))
		abort();
}

typedef struct Read { int64_t next; uint8_t sum; int64_t size; } Read;

static void use(void *context, const char *from, int64_t first, int64_t n)
{
	Read *r = context;
	if (first != r->next || n <= 0)
		abort();
	r->next += n;
	for (int64_t i = 0; i < n * r->size; i++)
		r->sum = (uint8_t)(r->sum + (uint8_t)from[i]);
}

static void check(const Checkpoint *c)
{
	for (int s = 0; s < CHECKPOINT_SECTIONS; s++)
		for (int i = 0; i < c->section[s].n; i++) {
			const CheckpointTensor *t = &c->section[s].at[i];
			Read r = {.size = dtype_info[t->dtype].bytes};
			int64_t n = 1;
			for (int k = 0; k < t->rank; k++)
				n *= t->dim[k];
			checkpoint_read(t, 0, t->numel, use, &r);
			if (n != t->numel || r.next != t->numel || checkpoint_find(c, (CheckpointSection)s, t->name) != t)
				abort();
		}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	const uint8_t *end = n ? memchr(bytes, 0, n) : NULL;
	size_t first = end ? (size_t)(end - bytes) : n;
	FuzzLog *log = fuzz_log();
	put("state.json", bytes, first);
	put("index.json", end ? end + 1 : bytes, end ? n - first - 1 : 0);
	Arena *a = arena_new();
	Checkpoint *c = checkpoint_open(a, folder, &log->d);
	if (!c != (log->d.errors > 0))
		abort();
	if (c) {
		check(c);
		checkpoint_verify(c, 0, 1, false, &log->d);
		if (log->d.errors)
			abort();
		checkpoint_close(c);
	}
	fuzz_log_free(log);
	arena_free(a);
	return 0;
}
