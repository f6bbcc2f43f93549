/* tests/unit/test_safetensors.c: what was written is read back, and no header leads outside the file. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/safetensors.h"
#include "tests/unit/unit.h"

static char folder[] = "/tmp/test_safetensors_" "XX" "XX" "XX";
static char path[256];

static void test_round_trip(void)
{
	float w[6] = {1, 2, 3, 4, 5, 6};
	int64_t count = 7;
	uint16_t empty[1];
	SafeTensor tensors[] = {
		{.name = "count", .dtype = DT_I64, .rank = 0, .data = &count},
		{.name = "h.0.\"odd\"\\\n\xc3\xa9", .dtype = DT_F32, .rank = 2, .dim = {2, 3}, .data = w},
		{.name = "none", .dtype = DT_BF16, .rank = 2, .dim = {0, 5}, .data = empty},
	};
	SafeMeta meta[] = {{"format", "pt"}, {"step", "12"}};
	CU_ASSERT_FATAL(safetensors_write(path, tensors, 3, meta, 2));
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	SafeFile *f = safetensors_open(a, path, &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	CU_ASSERT_EQUAL(f->n, 3);
	CU_ASSERT_STRING_EQUAL((const char *)map_get(f->meta, "step"), "12");
	for (int i = 0; i < 3; i++) {
		const SafeTensor *t = safetensors_find(f, tensors[i].name);
		CU_ASSERT_PTR_NOT_NULL_FATAL(t);
		CU_ASSERT_EQUAL(t->dtype, tensors[i].dtype);
		CU_ASSERT_EQUAL(t->rank, tensors[i].rank);
		CU_ASSERT_EQUAL(memcmp(t->dim, tensors[i].dim, sizeof(t->dim)), 0);
		CU_ASSERT_EQUAL(memcmp(t->data, tensors[i].data, (size_t)t->bytes), 0);
	}
	CU_ASSERT_PTR_NULL(safetensors_find(f, "absent"));
	safetensors_close(f);
	arena_free(a);
}

/* The check value that every list of checksums has for CRC-32; and runs that are joined where they were cut. */
static void test_crc32(void)
{
	static const char text[] = "123456789";
	CU_ASSERT_EQUAL(crc32_more(0, text, 9), 0xcbf43926);
	for (int cut = 0; cut <= 9; cut++) {
		uint32_t first = crc32_more(0, text, cut), second = crc32_more(0, text + cut, 9 - cut);
		CU_ASSERT_EQUAL(crc32_join(first, second, 9 - cut), 0xcbf43926);
		CU_ASSERT_EQUAL(crc32_more(first, text + cut, 9 - cut), 0xcbf43926);
	}
}

/* A byte that changed on the disk is found, and lines are aligned: 64 bytes first, odd sizes last. */
static void test_damage(void)
{
	char bytes[200];
	for (int i = 0; i < COUNT_OF(bytes); i++)
		bytes[i] = (char)(i * 7);
	SafeTensor tensors[] = {
		{.name = "odd", .dtype = DT_U8, .rank = 1, .dim = {13}, .data = bytes},
		{.name = "half", .dtype = DT_BF16, .rank = 1, .dim = {3}, .data = bytes},
		{.name = "line", .dtype = DT_F32, .rank = 2, .dim = {4, 8}, .data = bytes},
		{.name = "double", .dtype = DT_F64, .rank = 1, .dim = {3}, .data = bytes},
	};
	Arena *a = arena_new();
	char *text = NULL;
	size_t n = 0;
	Diag d = {.out = open_memstream(&text, &n)};
	CU_ASSERT_FATAL(safetensors_write(path, tensors, 4, NULL, 0));
	SafeFile *f = safetensors_open(a, path, &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	int64_t at[4];
	for (int i = 0; i < 4; i++) {
		const SafeTensor *t = safetensors_find(f, tensors[i].name);
		CU_ASSERT(t->has_crc && safetensors_verify(f, t, true, &d));
		CU_ASSERT_EQUAL(t->offset % dtype_info[t->dtype].bytes, 0);
		at[i] = t->offset;
	}
	CU_ASSERT(at[2] % 64 == 0 && at[2] < at[3] && at[3] < at[1] && at[1] < at[0]);
	safetensors_close(f);
	FILE *file = fopen(path, "r+b");
	CU_ASSERT_PTR_NOT_NULL_FATAL(file);
	fseek(file, (long)at[1] + 5, SEEK_SET);
	fputc(1, file);
	fclose(file);
	f = safetensors_open(a, path, &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	for (int i = 0; i < 4; i++)
		CU_ASSERT_EQUAL(safetensors_verify(f, safetensors_find(f, tensors[i].name), false, &d), i != 1);
	safetensors_close(f);
	file = fopen(path, "r+b");
	CU_ASSERT_PTR_NOT_NULL_FATAL(file);
	char header[256];
	size_t has = fread(header, 1, sizeof(header) - 1, file);
	header[has] = 0;
	char *key = memmem(header, has, "crc32:line", 10);
	CU_ASSERT_PTR_NOT_NULL_FATAL(key);
	fseek(file, key - header, SEEK_SET);
	fputc('b', file);
	fclose(file);
	CU_ASSERT_PTR_NULL(safetensors_open(a, path, &d));
	fclose(d.out);
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "tensor \"half\" is damaged"));
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "tensor \"line\" has no checksum, and others have"));
	free(text);
	arena_free(a);
}

static void test_no_tensors(void)
{
	Arena *a = arena_new();
	Diag d = {.out = stderr};
	CU_ASSERT_FATAL(safetensors_write(path, NULL, 0, NULL, 0));
	SafeFile *f = safetensors_open(a, path, &d);
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	CU_ASSERT_EQUAL(f->n, 0);
	safetensors_close(f);
	arena_free(a);
}

static void write_file(uint64_t length, const char *header, size_t header_bytes, int64_t bytes)
{
	FILE *f = fopen(path, "wb");
	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	for (int i = 0; i < 8; i++)
		fputc((int)(length >> 8 * i & 255), f);
	fwrite(header, 1, header_bytes, f);
	for (int64_t i = 0; i < bytes; i++)
		fputc(0, f);
	fclose(f);
}

/* True when the file is accepted; its message is left in text. */
static bool open_file(char *text, size_t n)
{
	Arena *a = arena_new();
	memset(text, 0, n);
	Diag d = {.out = fmemopen(text, n - 1, "w")};
	SafeFile *f = safetensors_open(a, path, &d);
	for (int i = 0; f && i < f->n; i++) {
		const SafeTensor *t = &f->tensors[i];
		CU_ASSERT(t->offset >= 0 && t->bytes >= 0 && t->offset + t->bytes <= f->view.bytes);
		const volatile char *p = t->data;
		for (int64_t k = 0; k < t->bytes; k++)
			(void)p[k];
	}
	if (f)
		safetensors_close(f);
	fclose(d.out);
	arena_free(a);
	return f;
}

#define TENSOR(name, begin, end) \
	"\"" name "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" #begin "," #end "]}"

static void test_refused(void)
{
	static const struct { const char *header, *why; } cases[] = {
		{"[]", "not a JSON object"},
		{"{", "its header"},
		{"{\"a\":3}", "dtype or data_offsets is missing"},
		{"{" TENSOR("a", 0, 8) "," TENSOR("a", 8, 16) "}", "its header: duplicate"},
		{"{" TENSOR("a", 0, 8) "," TENSOR("b", 4, 12) "}", "starts at byte"},
		{"{" TENSOR("a", 0, 8) "}", "the tensors end at byte"},
		{"{" TENSOR("a", 8, 16) "}", "starts at byte"},
		{"{" TENSOR("a", 0, 8) "," TENSOR("b", 16, 24) "}", "the file holds 16"},
		{"{" TENSOR("a", -8, 0) "}", "data_offsets [-8,0]"},
		{"{" TENSOR("a", 8, 0) "}", "data_offsets [8,0]"},
		{"{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,8]}}", "type F4 is refused"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", "dimension 0"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.5],\"data_offsets\":[0,8]}}", "dimension 0"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,8]}}",
			"dimension 0"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", "at most 8"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", "shape is not a list"},
		{"{\"__metadata__\":{\"k\":1}}", "is not a string"},
	};
	char text[2048];
	for (int i = 0; i < COUNT_OF(cases); i++) {
		write_file(strlen(cases[i].header), cases[i].header, strlen(cases[i].header), 16);
		CU_ASSERT_FALSE(open_file(text, sizeof(text)));
		if (!strstr(text, cases[i].why))
			fprintf(stderr, "case %d: got \"%s\", want \"%s\"\n", i, text, cases[i].why);
		CU_ASSERT_PTR_NOT_NULL(strstr(text, cases[i].why));
		CU_ASSERT_EQUAL(strncmp(text, path, strlen(path)), 0);
	}
}

static void test_header_length(void)
{
	static const uint64_t lengths[] = {3, 1000, UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 32};
	char text[2048];
	for (int i = 0; i < COUNT_OF(lengths); i++) {
		write_file(lengths[i], "{}", 2, 0);
		CU_ASSERT_FALSE(open_file(text, sizeof(text)));
		CU_ASSERT_PTR_NOT_NULL(strstr(text, "not a safetensors file"));
	}
	truncate(path, 5);
	CU_ASSERT_FALSE(open_file(text, sizeof(text)));
	unlink(path);
	CU_ASSERT_FALSE(open_file(text, sizeof(text)));
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "No such file"));
}

static void test_random_edits(void)
{
	static const char header[] =
		"{\"__metadata__\":{\"k\":\"v\"}," TENSOR("a", 0, 8) "," TENSOR("b", 8, 16) "}";
	static const char letters[] = "{}[]\",:0123456789-.eF3264BIab\\u\xc3\x80";
	char text[2048];
	srand(1);
	for (int trial = 0; trial < 3000; trial++) {
		char edited[sizeof(header)];
		memcpy(edited, header, sizeof(header));
		for (int edits = rand() % 5; edits > 0; edits--)
			edited[rand() % (int)(sizeof(header) - 1)] = letters[rand() % (int)(sizeof(letters) - 1)];
		write_file(sizeof(header) - 1, edited, sizeof(header) - 1, 16);
		if (!open_file(text, sizeof(text)))
			CU_ASSERT_PTR_NOT_NULL(strstr(text, "error:"));
	}
}

static void test_full_disk(void)
{
	static const float big[1 << 16];
	SafeTensor t = {.name = "a", .dtype = DT_F32, .rank = 1, .dim = {1 << 16}, .data = big};
	CU_ASSERT_FALSE(safetensors_write("/dev/full", &t, 1, NULL, 0));
	CU_ASSERT_EQUAL(access("/dev/full", F_OK), 0);
}

static int begin(void)
{
	if (!mkdtemp(folder))
		return 1;
	snprintf(path, sizeof(path), "%s/a.safetensors", folder);
	return 0;
}

static int end(void)
{
	unlink(path);
	return rmdir(folder);
}

void suite_safetensors(void)
{
	CU_pSuite s = CU_add_suite("safetensors", begin, end);
	CU_ADD_TEST(s, test_round_trip);
	CU_ADD_TEST(s, test_crc32);
	CU_ADD_TEST(s, test_damage);
	CU_ADD_TEST(s, test_no_tensors);
	CU_ADD_TEST(s, test_refused);
	CU_ADD_TEST(s, test_header_length);
	CU_ADD_TEST(s, test_random_edits);
	CU_ADD_TEST(s, test_full_disk);
}
