/* tests/unit/test_npy.c: .npy files: what was written is read back, and broken files are refused with a message. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/npy.h"
#include "tests/unit/unit.h"

static char folder[] = "/tmp/test_npy_" "XX" "XX" "XX";

static const char *in_folder(const char *name)
{
	static char path[256];
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static void test_round_trip(void)
{
	static const int64_t dims[][3] = {{2, 3, 4}, {1, 1, 1}, {0, 3, 4}};
	float data[24];
	for (int i = 0; i < 24; i++)
		data[i] = (float)i / 7;
	for (int rank = 0; rank <= 3; rank++)
		for (int k = 0; k < COUNT_OF(dims); k++) {
			Diag d = {.out = stderr};
			Npy npy;
			CU_ASSERT(npy_write(in_folder("a.npy"), DT_F32, rank, dims[k], data));
			CU_ASSERT_FATAL(npy_open(&npy, in_folder("a.npy"), &d));
			CU_ASSERT_EQUAL(npy.header.rank, rank);
			CU_ASSERT_EQUAL(npy.header.dtype, DT_F32);
			CU_ASSERT_EQUAL(npy.header.data_offset % 64, 0);
			for (int i = 0; i < rank; i++)
				CU_ASSERT_EQUAL(npy.header.dim[i], dims[k][i]);
			CU_ASSERT_EQUAL(memcmp(npy.data, data, (size_t)npy.header.bytes), 0);
			npy_close(&npy);
		}
}

static void test_every_dtype(void)
{
	static const int64_t dim[] = {3};
	uint64_t zeros[3] = {0};
	for (int t = 0; t < DT_COUNT; t++) {
		Diag d = {.out = stderr};
		Npy npy;
		if (dtype_is_scaled((DType)t))
			continue; /* no file has them */
		CU_ASSERT(npy_write(in_folder("a.npy"), (DType)t, 1, dim, zeros));
		CU_ASSERT_FATAL(npy_open(&npy, in_folder("a.npy"), &d));
		CU_ASSERT_EQUAL((int)npy.header.dtype, t);
		CU_ASSERT_EQUAL(npy.header.bytes, 3 * dtype_info[t].bytes);
		npy_close(&npy);
	}
}

/* A version 1 file with this dictionary and `bytes` bytes of elements, in exactly sized memory, so that a
 * sanitizer sees any read beyond it. */
static bool parse_dict(const char *dict, int64_t bytes, NpyHeader *h, char *why)
{
	size_t n = strlen(dict), total = 10 + n + (size_t)bytes;
	uint8_t *file = calloc(1, total);
	memcpy(file, "\x93NUMPY\x01\x00", 8);
	file[8] = (uint8_t)n;
	file[9] = (uint8_t)(n >> 8);
	memcpy(file + 10, dict, n);
	bool ok = npy_parse(file, (int64_t)total, h, why);
	free(file);
	return ok;
}

static void test_accepted_headers(void)
{
	static const char *const dicts[] = {
		"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n",
		"{'shape':(2,3),'descr':'<f4','fortran_order':False}",
		"{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2L, 3L)}",
		"{'descr': '=f4', 'fortran_order': False, 'shape': (2, 3,)}",
	};
	NpyHeader h;
	char why[NPY_WHY];
	for (int i = 0; i < COUNT_OF(dicts); i++) {
		CU_ASSERT(parse_dict(dicts[i], 24, &h, why));
		CU_ASSERT_EQUAL(h.rank, 2);
		CU_ASSERT_EQUAL(h.bytes, 24);
	}
	CU_ASSERT(parse_dict("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 6)}", 24, &h, why));
	CU_ASSERT(parse_dict("{'descr': '|b1', 'fortran_order': False, 'shape': ()}", 1, &h, why));
	CU_ASSERT_EQUAL(h.numel, 1);
}

static void test_refused_headers(void)
{
	static const struct { const char *dict, *why; } cases[] = {
		{"", "not a dictionary"},
		{"{}", "not all there"},
		{"{'descr': '<f4'", "',' or '}'"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)", "',' or '}'"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3", "',' or ')'"},
		{"{'descr': '<f4", "does not end"},
		{"{'descr': '<f4', 'descr': '<f4', 'shape': (2,)}", "repeated"},
		{"{'colour': 'red'}", "unknown"},
		{"{'descr': '>f4', 'fortran_order': False, 'shape': (6,)}", "big-endian"},
		{"{'descr': '|O', 'fortran_order': False, 'shape': (6,)}", "refused"},
		{"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}", "records"},
		{"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}", "Fortran"},
		{"{'descr': '<f4', 'fortran_order': 1, 'shape': (2, 3)}", "neither True nor False"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3)}", "not a number"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': 6}", "tuple"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (7,)}",
			"needs 28 bytes of elements, the file has 24"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}", "overflows"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "overflows"},
		{"{'descr': '<f8', 'fortran_order': False, 'shape': (0, 9223372036854775807, 2)}", "overflows"},
		{"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", "more than 8 axes"},
		{"{'descr': 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}", "too long"},
	};
	for (int i = 0; i < COUNT_OF(cases); i++) {
		NpyHeader h;
		char why[NPY_WHY];
		bool ok = parse_dict(cases[i].dict, 24, &h, why);
		CU_ASSERT_FALSE(ok);
		if (ok || !strstr(why, cases[i].why))
			fprintf(stderr, "case %d: got \"%s\", want \"%s\"\n", i, why, cases[i].why);
		CU_ASSERT_PTR_NOT_NULL(strstr(why, cases[i].why));
	}
}

static void test_prefixes(void)
{
	static const char dict[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
	uint8_t whole[10 + sizeof(dict) - 1 + 24] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, sizeof(dict) - 1};
	memcpy(whole + 10, dict, sizeof(dict) - 1);
	for (size_t n = 0; n <= sizeof(whole); n++) {
		NpyHeader h;
		char why[NPY_WHY];
		uint8_t *copy = malloc(n ? n : 1);
		memcpy(copy, whole, n);
		CU_ASSERT_EQUAL(npy_parse(copy, (int64_t)n, &h, why), n == sizeof(whole));
		free(copy);
	}
	for (int version = 0; version < 256; version++) {
		NpyHeader h;
		char why[NPY_WHY];
		whole[6] = (uint8_t)version;
		CU_ASSERT_EQUAL(npy_parse(whole, sizeof(whole), &h, why), version == 1);
	}
}

/* Any bytes: no crash, and what is accepted lies inside the file. */
static void test_random_edits(void)
{
	static const char dict[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
	static const char letters[] = "{}()',:0123456789<>|fiubFalseTrue\\\"\n -L\xff";
	srand(1);
	for (int trial = 0; trial < 50000; trial++) {
		char text[sizeof(dict)];
		memcpy(text, dict, sizeof(dict));
		for (int edits = 1 + rand() % 6; edits > 0; edits--)
			text[rand() % (int)(sizeof(dict) - 1)] = letters[rand() % (int)(sizeof(letters) - 1)];
		NpyHeader h;
		char why[NPY_WHY];
		if (parse_dict(text, 24, &h, why)) {
			CU_ASSERT(h.rank <= NPY_MAX_RANK && h.bytes >= 0 && h.bytes <= 24);
			CU_ASSERT_EQUAL(h.bytes, h.numel * dtype_info[h.dtype].bytes);
		} else
			CU_ASSERT(why[0] != 0);
	}
}

static void test_open_errors(void)
{
	char text[512] = "";
	Diag d = {.out = fmemopen(text, sizeof(text), "w")};
	Npy npy;
	CU_ASSERT_FALSE(npy_open(&npy, in_folder("absent.npy"), &d));
	CU_ASSERT_FALSE(npy_open(&npy, folder, &d));
	fclose(fopen(in_folder("empty.npy"), "w"));
	CU_ASSERT_FALSE(npy_open(&npy, in_folder("empty.npy"), &d));
	fclose(d.out);
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "absent.npy: error: No such file"));
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "this is a folder, a file was expected"));
	CU_ASSERT_PTR_NOT_NULL(strstr(text, "the file is empty"));
	static const float big[1 << 16];
	CU_ASSERT_FALSE(npy_write("/dev/full", DT_F32, 1, (int64_t[]){1 << 16}, big));
	CU_ASSERT_EQUAL(access("/dev/full", F_OK), 0);
}

static int begin(void)
{
	return mkdtemp(folder) == NULL;
}

static int end(void)
{
	unlink(in_folder("a.npy"));
	unlink(in_folder("empty.npy"));
	return rmdir(folder);
}

void suite_npy(void)
{
	CU_pSuite s = CU_add_suite("npy", begin, end);
	CU_ADD_TEST(s, test_round_trip);
	CU_ADD_TEST(s, test_every_dtype);
	CU_ADD_TEST(s, test_accepted_headers);
	CU_ADD_TEST(s, test_refused_headers);
	CU_ADD_TEST(s, test_prefixes);
	CU_ADD_TEST(s, test_random_edits);
	CU_ADD_TEST(s, test_open_errors);
}
