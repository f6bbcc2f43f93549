/* tests/unit/test_data.c: the order of samples, token streams, and the learning-rate schedule. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/train/train.h"
#include "tests/unit/unit.h"

static char folder[] = "/tmp/test_data_" "XX" "XX" "XX";
static char old_folder[4096];
static char messages[4096];

static void test_permutation(void)
{
	static const int64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 1000, 1797, 65537};
	for (int k = 0; k < COUNT_OF(sizes); k++) {
		int64_t n = sizes[k], moved = 0, differ = 0;
		char *seen = calloc((size_t)n, 1);
		for (int64_t i = 0; i < n; i++) {
			int64_t to = schedule_permute(3, 1, i, n);
			CU_ASSERT_FATAL(to >= 0 && to < n);
			CU_ASSERT_FALSE(seen[to]);
			seen[to] = 1;
			moved += to != i;
			differ += to != schedule_permute(3, 2, i, n) || to != schedule_permute(4, 1, i, n);
		}
		CU_ASSERT(n < 16 || (moved > n / 2 && differ > n / 2));
		free(seen);
	}
	int64_t huge = (INT64_C(1) << 40) - 87;
	CU_ASSERT(schedule_permute(1, 0, huge - 1, huge) < huge);
	/* a fixed point of the format: a resumed run must find the same order in later versions */
	CU_ASSERT_EQUAL(schedule_permute(7, 0, 0, 1797), 401);
	CU_ASSERT_EQUAL(schedule_permute(7, 3, 1796, 1797), 6);
}

/* No position is favoured: over many seeds each of 8 samples comes first about equally often. */
static void test_permutation_is_fair(void)
{
	int first[8] = {0};
	for (uint64_t seed = 0; seed < 8000; seed++)
		first[schedule_permute(seed, 0, 0, 8)]++;
	for (int i = 0; i < 8; i++)
		CU_ASSERT(first[i] > 850 && first[i] < 1150);
}

static void test_learning_rate(void)
{
	LrSchedule s = {.kind = SCHEDULE_COSINE, .lr = 1, .min_lr = 0.1, .warmup = 4, .steps = 14};
	CU_ASSERT_DOUBLE_EQUAL(schedule_lr(&s, 0), 0.25, 1e-12);
	CU_ASSERT_DOUBLE_EQUAL(schedule_lr(&s, 3), 1, 1e-12);
	CU_ASSERT_DOUBLE_EQUAL(schedule_lr(&s, 4), 1, 1e-12);
	CU_ASSERT_DOUBLE_EQUAL(schedule_lr(&s, 9), 0.55, 1e-12);
	CU_ASSERT_DOUBLE_EQUAL(schedule_lr(&s, 14), 0.1, 1e-12);
	CU_ASSERT_DOUBLE_EQUAL(schedule_lr(&s, 99), 0.1, 1e-12);
	s.kind = SCHEDULE_LINEAR;
	CU_ASSERT_DOUBLE_EQUAL(schedule_lr(&s, 6), 0.82, 1e-12);
	s.kind = SCHEDULE_CONSTANT;
	CU_ASSERT_DOUBLE_EQUAL(schedule_lr(&s, 13), 1, 1e-12);
	s.warmup = s.steps = 0;
	CU_ASSERT_DOUBLE_EQUAL(schedule_lr(&s, 0), 1, 1e-12);
}

/* ---- token streams: ids and labels are [2,3] ---- */

enum { B = 2, T = 3 };

static RtTensor token_tensors[] = {
	{.kind = RT_INPUT, .name = "ids", .dtype = DT_I64, .rank = 2, .dim = {B, T}, .unit = -1, .batched = true},
	{.kind = RT_INPUT, .name = "labels", .dtype = DT_I64, .rank = 2, .dim = {B, T}, .unit = -1, .offset = 64,
		.batched = true},
};

static RtModel token_model(void)
{
	return (RtModel){.tensors = token_tensors, .n_tensors = 2, .batch = B, .layout = {.input_bytes = 128}};
}

/* True when the set opens; its message is in messages. */
static bool open_tokens(DataSet *set, const RtModel *m, Arena *a, const char *text)
{
	TextList none = {0};
	memset(messages, 0, sizeof(messages));
	Diag d = {.out = fmemopen(messages, sizeof(messages) - 1, "w")};
	bool ok = data_open(set, m, a, &(DataFiles){.data = &none, .tokens = text, .flag = "data"}, &d);
	fclose(d.out);
	return ok;
}

static void write_stream(const char *path, int bytes, int n)
{
	FILE *f = fopen(path, "wb");
	for (int i = 0; i < n; i++)
		for (int k = 0; k < bytes; k++)
			fputc((bytes == 2 ? 60000 + i : 70000 + i) >> 8 * k & 255, f);
	fclose(f);
}

static void check_stream(const char *text, int64_t first, bool shift)
{
	Arena *a = arena_new();
	RtModel m = token_model();
	DataSet set;
	static char input[128];
	m.loss.shift = shift;
	CU_ASSERT_FATAL(open_tokens(&set, &m, a, text));
	CU_ASSERT_EQUAL(set.n_samples, 3); /* (12 - 1) div 3 */
	CU_ASSERT_EQUAL(set.tokens_per_sample, T);
	data_load(&set, input, 1);         /* samples 1 and 2 */
	const int64_t *ids = (const int64_t *)input, *labels = (const int64_t *)(input + 64);
	for (int i = 0; i < B * T; i++) {
		CU_ASSERT_EQUAL(ids[i], first + 3 + i);
		CU_ASSERT_EQUAL(labels[i], ids[i] + !shift);
	}
	data_close(&set);
	arena_free(a);
}

static void test_token_streams(void)
{
	int64_t dim[] = {12};
	int16_t small[12];
	for (int i = 0; i < 12; i++)
		small[i] = (int16_t)(i - 5);
	write_stream("a.u16", 2, 12);
	write_stream("a.bin", 2, 12);
	write_stream("a.u32", 4, 12);
	npy_write("a.npy", DT_I16, 1, dim, small);
	check_stream("a.u16", 60000, false);
	check_stream("ids=a.bin", 60000, true);
	check_stream("a.u32", 70000, false);
	check_stream("a.npy", -5, false);
}

/* Numbers that the input's type does not have never become tokens that there are, as their low bits would. */
static void test_large_tokens(void)
{
	static const uint64_t numbers[] = {UINT64_MAX, UINT64_MAX - 99, 1 + (UINT64_C(1) << 32), 5, 6, 7, 8};
	static const DType types[] = {DT_I64, DT_I32};
	static char input[128];
	npy_write("u64.npy", DT_U64, 1, (int64_t[]){COUNT_OF(numbers)}, numbers);
	npy_write("i64.npy", DT_I64, 1, (int64_t[]){COUNT_OF(numbers)}, (int64_t[]){-1, INT64_MIN, INT64_MAX, 5, 6, 7, 8});
	for (int k = 0; k < 4; k++) {
		Arena *a = arena_new();
		RtModel m = token_model();
		RtTensor tensors[2] = {token_tensors[0], token_tensors[1]};
		bool wide = k < 2, natural = k % 2 == 0;
		tensors[0].dtype = types[!wide];
		m.tensors = tensors;
		DataSet set;
		CU_ASSERT_FATAL(open_tokens(&set, &m, a, natural ? "ids=u64.npy" : "ids=i64.npy"));
		data_load(&set, input, 0);
		const int64_t *w = (const int64_t *)input, *labels = (const int64_t *)(input + 64);
		const int32_t *n = (const int32_t *)input;
		int64_t most = wide ? INT64_MAX : INT32_MAX, least = wide ? INT64_MIN : INT32_MIN;
		CU_ASSERT_EQUAL(wide ? w[0] : n[0], natural ? most : -1);
		CU_ASSERT_EQUAL(wide ? w[1] : n[1], natural ? most : least);
		CU_ASSERT_EQUAL(wide ? w[2] : n[2], natural && wide ? 1 + (INT64_C(1) << 32) : most);
		CU_ASSERT_EQUAL(wide ? w[3] : n[3], 5);
		CU_ASSERT_EQUAL(labels[0], natural ? INT64_MAX : INT64_MIN);
		data_close(&set);
		arena_free(a);
	}
}

/* Each step's samples come to the same place; what a step does to them there is not in the file; rows of a part of a
 * batch are the filler. */
static void inputs_are_copied(void)
{
	Arena *a = arena_new();
	RtModel m = token_model();
	DataSet set;
	static char input[128];
	int64_t *ids = (int64_t *)input;
	write_stream("b.u16", 2, 12);
	CU_ASSERT_FATAL(open_tokens(&set, &m, a, "ids=b.u16"));
	for (int round = 0; round < 2; round++) {
		for (int64_t first = 0; first < 2; first++) {
			data_load(&set, input, first);
			for (int i = 0; i < B * T; i++)
				CU_ASSERT_EQUAL(ids[i], 60000 + first * T + i);
			memset(input, 255, sizeof(input));
		}
	}
	data_load_part(&set, input, 0, 1, 2);
	for (int i = 0; i < T; i++) {
		CU_ASSERT_EQUAL(ids[i], 60000 + i);
		CU_ASSERT_EQUAL(ids[T + i], 60000 + 2 * T + i);
	}
	data_close(&set);
	arena_free(a);
}

static void test_token_errors(void)
{
	static const struct { const char *text, *why; } cases[] = {
		{"a.txt", "a token stream is named"}, {"absent.u16", "absent.u16: error: No such file"},
		{"short.u16", "short.u16: error: 3 tokens, input \"ids\" takes 3"}, {"odd.u32", "odd.u32: error: 7 bytes"},
		{"float.npy", "integer elements"}, {"empty.u16", "empty.u16: error:"}, {".", "a token stream is named"},
	};
	RtModel m = token_model();
	Arena *a = arena_new();
	DataSet set;
	float f[8] = {0};
	write_stream("short.u16", 2, 3);
	npy_write("float.npy", DT_F32, 1, (int64_t[]){8}, f);
	fclose(fopen("empty.u16", "w"));
	FILE *odd = fopen("odd.u32", "w");
	fputs("1234567", odd);
	fclose(odd);
	for (int i = 0; i < COUNT_OF(cases); i++) {
		CU_ASSERT_FALSE(open_tokens(&set, &m, a, cases[i].text));
		if (!strstr(messages, cases[i].why))
			fprintf(stderr, "%s: got \"%s\"\n", cases[i].text, messages);
		CU_ASSERT_PTR_NOT_NULL(strstr(messages, cases[i].why));
	}
	arena_free(a);
}

static int begin(void)
{
	return !getcwd(old_folder, sizeof(old_folder)) || !mkdtemp(folder) || chdir(folder);
}

static int end(void)
{
	char command[64];
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return chdir(old_folder) || system(command);
}

void suite_data(void)
{
	CU_pSuite s = CU_add_suite("data", begin, end);
	CU_ADD_TEST(s, test_permutation);
	CU_ADD_TEST(s, test_permutation_is_fair);
	CU_ADD_TEST(s, test_learning_rate);
	CU_ADD_TEST(s, test_token_streams);
	CU_ADD_TEST(s, test_large_tokens);
	CU_add_test(s, "inputs are copied into fixed buffers", inputs_are_copied);
	CU_ADD_TEST(s, test_token_errors);
}
