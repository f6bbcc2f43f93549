/* tests/unit/test_checkpoint.c: base/checkpoint.c reads a checkpoint's folder: it finds pieces, and refuses whatever
 * leads outside of files or leaves elements out. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checkpoint.h"
#include "tests/unit/unit.h"

static char folder[] = "/tmp/test_checkpoint_" "XX" "XX" "XX";
static const char *const written[] = {"a.safetensors", "b.safetensors", "index.json", "state.json",
	"model.safetensors", "optim.safetensors", "buffers-rank.safetensors"};

static void put_text(const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	FILE *f = fopen(path, "wb");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	fputs(text, f);
	fclose(f);
}

/* Two files: elements 0 to 3 and 4 to 5 of a tensor of shape (2, 3), behind two others in the second. */
static void put_files(void)
{
	float x[8] = {0, 1, 2, 3, 4, 5, 6, 7}, y[4] = {-1, -1, 4, 5};
	char path[256];
	SafeTensor first = {.name = "w", .dtype = DT_F32, .rank = 1, .dim = {4}, .data = x};
	SafeTensor second = {.name = "h/0", .dtype = DT_F32, .rank = 1, .dim = {4}, .data = y};
	snprintf(path, sizeof(path), "%s/a.safetensors", folder);
	CU_ASSERT_FATAL(safetensors_write(path, &first, 1, NULL, 0));
	snprintf(path, sizeof(path), "%s/b.safetensors", folder);
	CU_ASSERT_FATAL(safetensors_write(path, &second, 1, NULL, 0));
	put_text("state.json", "{\"format\": 1, \"layout\": {\"kind\": \"sharded\"}}");
}

static void put_index(const CheckpointSlice *slices, int n)
{
	CheckpointIndex i;
	checkpoint_index_begin(&i, CHECKPOINT_SHARDED);
	checkpoint_index_section(&i, CHECKPOINT_MODEL);
	checkpoint_index_tensor(&i, "w\"", DT_F32, 2, (const int64_t[]){2, 3}, slices, n);
	checkpoint_index_tensor(&i, "none", DT_BF16, 1, (const int64_t[]){0}, NULL, 0);
	checkpoint_index_section(&i, CHECKPOINT_OPTIM);
	checkpoint_index_end(&i);
	put_text("index.json", i.b.at);
	buf_free(&i.b);
}

static void take(void *context, const char *from, int64_t first, int64_t n)
{
	memcpy((float *)context + first, from, (size_t)n * sizeof(float));
}

static void test_pieces(void)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	put_files();
	put_index((CheckpointSlice[]){{"b.safetensors", "h/0", 2, 4, 2}, {"a.safetensors", "w", 0, 0, 4}}, 2);
	Checkpoint *c = checkpoint_open(a, folder, &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(c);
	const CheckpointTensor *t = checkpoint_find(c, CHECKPOINT_MODEL, "w\"");
	CU_ASSERT_PTR_NOT_NULL_FATAL(t);
	CU_ASSERT(t->numel == 6 && t->rank == 2 && c->section[CHECKPOINT_OPTIM].n == 0);
	for (int first = 0; first < 6; first++) {
		float out[6] = {-1, -1, -1, -1, -1, -1};
		checkpoint_read(t, first, 6 - first, take, out);
		for (int i = 0; i < 6; i++)
			CU_ASSERT_EQUAL(out[i], i < first ? -1 : (float)i);
	}
	CU_ASSERT(checkpoint_verify(c, 0, 1, true, &d));
	checkpoint_close(c);
	arena_free(a);
}

static void refuse(const char *what)
{
	Arena *a = arena_new();
	char *text = NULL;
	size_t n = 0;
	Diag d = {.out = open_memstream(&text, &n)};
	CU_ASSERT_PTR_NULL(checkpoint_open(a, folder, &d));
	fclose(d.out);
	if (!strstr(text, what))
		printf("not \"%s\": %s", what, text);
	CU_ASSERT_PTR_NOT_NULL(strstr(text, what));
	free(text);
	arena_free(a);
}

#define TENSOR(dtype, dim) \
	"{\"format\": 1, \"tensors\": {\"model\": {\"w\": {\"dtype\": " dtype ", \"shape\": [" dim "]}}}}"

static void test_refused(void)
{
	static const struct { CheckpointSlice slice[3]; const char *says; } cases[] = {
		{{{"a.safetensors", "w", 0, 0, 4}, {"b.safetensors", "h/0", 2, 3, 2}},
			"those from 3 on are in no piece, or in two"},
		{{{"a.safetensors", "w", 0, 0, 4}, {"b.safetensors", "h/0", 2, 4, 2}, {"b.safetensors", "h/0", 2, 5, 1}},
			"those from 5 on are in no piece, or in two"},
		{{{"a.safetensors", "w", 0, 0, 4}, {"b.safetensors", "h/0", 3, 4, 1}}, "those from 5 on are in no piece"},
		{{{"a.safetensors", "w", 0, 0, 4}, {"b.safetensors", "h/0", 3, 4, 2}}, "has no elements [3,5)"},
		{{{"a.safetensors", "w", 0, 0, 4}, {"b.safetensors", "h", 2, 4, 2}}, "in a tensor \"h\""},
		{{{"a.safetensors", "w", 0, 0, 4}, {"c.safetensors", "h/0", 2, 4, 2}}, "c.safetensors: "},
		{{{"a.safetensors", "w", 0, 0, 4}, {"../b.safetensors", "h/0", 2, 4, 2}}, "with a FILE of this folder"},
		{{{"a.safetensors", "w", 0, 0, 4}, {"b.safetensors", "h/0", INT64_MAX, 4, 2}}, "has no elements"},
	};
	put_files();
	for (int i = 0; i < COUNT_OF(cases); i++) {
		put_index(cases[i].slice, cases[i].slice[2].file ? 3 : 2);
		refuse(cases[i].says);
	}
	static const struct { const char *index, *says; } texts[] = {
		{"[]", "a JSON object was expected"}, {"{\"format\": 2}", "format 1 was expected"}, {"{", "(line 1)"},
		{"{\"format\": 1}", "$.tensors.model is missing"},
		{"{\"format\": 1, \"tensors\": {\"optim\": {}}}", "$.tensors.model is missing"},
		{"{\"format\": 1, \"tensors\": {\"model\": []}}", "$.tensors.model is missing"},
		{TENSOR("\"F33\"", "2"), "dtype and shape"},
		{TENSOR("\"F32\"", "-2"), "dtype and shape"},
		{TENSOR("\"F32\"", "2"), "a list of pieces"},
	};
	for (int i = 0; i < COUNT_OF(texts); i++) {
		put_text("index.json", texts[i].index);
		refuse(texts[i].says);
	}
	put_text("state.json", "{\"format\": 1, \"layout\": {\"kind\": \"whole\"}}");
	refuse("full, sharded or local");
	put_text("state.json", "{\"format\": 1, \"layout\": {\"kind\": \"full\"}}");
	refuse("there is no model.safetensors");
}

#define FULL(files) "{\"format\": 1, \"layout\": {\"kind\": \"full\"" files "}}"
#define FILES(list) FULL(", \"files\": " list)
#define MODEL "\"model.safetensors\""
#define OPTIM "\"optim.safetensors\""
#define OWN "\"buffers-rank.safetensors\""

/* Which sections have tensors, a bit each; -1: refused. */
static int sections(bool part)
{
	Arena *a = arena_new();
	Diag d = {.out = fopen("/dev/null", "w")};
	Checkpoint *c = part ? checkpoint_open_here(a, folder, true, &d) : checkpoint_open(a, folder, &d);
	int found = c ? 0 : -1;
	for (int s = 0; c && s < CHECKPOINT_SECTIONS; s++)
		found |= (c->section[s].n > 0) << s;
	CU_ASSERT_EQUAL(!c, d.errors > 0);
	if (c)
		checkpoint_close(c);
	fclose(d.out);
	arena_free(a);
	return found;
}

/* What is recorded must be there; without a record, what every program writes. */
static void test_files(void)
{
	enum { NONE, WITH_MODEL, WITH_OPTIM, WITH_OWN };
	static const struct { int there; const char *state; int whole, part; } cases[] = {
		{WITH_MODEL, FULL(""), -1, 1}, {WITH_OPTIM, FULL(""), 3, 3}, {WITH_OWN, FULL(""), 7, 7},
		{WITH_MODEL, FILES("[" MODEL "," OPTIM "]"), -1, 1}, {WITH_OPTIM, FILES("[" OPTIM "," MODEL "]"), 3, 3},
		{WITH_OPTIM, FILES("[" MODEL "," OPTIM "," OWN "]"), -1, 3},
		{WITH_OWN, FILES("[" MODEL "," OPTIM "," OWN "]"), 7, 7},
		{WITH_MODEL, FILES("[" MODEL "]"), 1, 1}, {WITH_OPTIM, FILES("[" MODEL "]"), 1, 1},
		{NONE, FILES("[" MODEL "]"), -1, -1}, {WITH_OWN, FILES("[" OPTIM "]"), -1, -1}, {WITH_OWN, FILES("[]"), -1, -1},
		{WITH_OWN, FILES(MODEL), -1, -1}, {WITH_OWN, FILES("[" MODEL "," MODEL "]"), -1, -1},
		{WITH_OWN, FILES("[" MODEL ", 7]"), -1, -1}, {WITH_OWN, FILES("[" MODEL ", \"more.safetensors\"]"), -1, -1},
	};
	float x[4] = {0};
	SafeTensor t = {.name = "w", .dtype = DT_F32, .rank = 1, .dim = {4}, .data = x};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		for (int s = 0; s < CHECKPOINT_SECTIONS; s++) {
			char path[256];
			snprintf(path, sizeof(path), "%s/%s.safetensors", folder, checkpoint_sections[s]);
			unlink(path);
			CU_ASSERT(s >= cases[i].there || safetensors_write(path, &t, 1, NULL, 0));
		}
		put_text("state.json", cases[i].state);
		UNIT_CHECK(sections(false) == cases[i].whole && sections(true) == cases[i].part, cases[i].state);
	}
	put_text("state.json", FILES("[" MODEL "," MODEL "]"));
	refuse("$.layout.files: a list of model.safetensors and");
}

static int begin(void)
{
	return !mkdtemp(folder);
}

static int end(void)
{
	char path[256];
	for (int i = 0; i < COUNT_OF(written); i++) {
		snprintf(path, sizeof(path), "%s/%s", folder, written[i]);
		unlink(path);
	}
	return rmdir(folder);
}

void suite_checkpoint(void)
{
	CU_pSuite s = CU_add_suite("checkpoint", begin, end);
	CU_ADD_TEST(s, test_pieces);
	CU_ADD_TEST(s, test_refused);
	CU_ADD_TEST(s, test_files);
}
