/* tests/unit/test_cuda_work.c: into how many parts CUDA kernels divide sums: enough to fill a GPU, each worth its
 * start. */
#include "kernels/cuda/work.h"
#include "tests/unit/unit.h"

/* What the sums of a bias of GPT-2 124M read, 65,536 rows of 768 numbers of 16 bits: a block makes up to 256 of the
 * sums, so there are 384 of them, each thread with four loads of 16 bytes: 6.3 MB in flight. */
static void few_results_have_many_parts(void)
{
	CU_ASSERT_EQUAL(kwork_cuda_chunks(768, 65536), 128);
	CU_ASSERT_EQUAL(kwork_cuda_chunks(768, 65536) * (768 / 256), 384);
	CU_ASSERT_EQUAL(kwork_cuda_chunks(3072, 65536), 42);
	CU_ASSERT_EQUAL(kwork_cuda_chunks(1, 1 << 30), 256); /* the most */
	CU_ASSERT_EQUAL(kwork_cuda_column_sums(65536, 768), 128 * 768 * 8);
}

/* A part has 512 elements at least, and many results have one part each. */
static void small_sums_are_not_divided(void)
{
	CU_ASSERT_EQUAL(kwork_cuda_chunks(64, 1023), 1);
	CU_ASSERT_EQUAL(kwork_cuda_chunks(64, 1024), 2);
	CU_ASSERT_EQUAL(kwork_cuda_chunks(16, 1024), 2); /* "rows" of tests/cudasim/train.py */
	CU_ASSERT_EQUAL(kwork_cuda_chunks(65536, 65536), 2);
	CU_ASSERT_EQUAL(kwork_cuda_chunks(65537, 65536), 1);
	CU_ASSERT_EQUAL(kwork_cuda_chunks(0, 65536), 1);
	CU_ASSERT_EQUAL(kwork_cuda_chunks(768, 0), 1);
	CU_ASSERT_EQUAL(kwork_cuda_column_sums(512, 768), 0); /* one part needs no scratch */
}

/* Warps of all blocks of a norm's gradient: 32 for each of 128 processors, for any width of many rows. */
static void norm_gradients_have_many_warps(void)
{
	static const struct { int64_t cols, team; } width[] = {{1, 1}, {64, 1}, {512, 1}, {513, 2}, {768, 2}, {1600, 4},
		{4096, 8}, {8192, 16}, {65536, 16}};
	for (int i = 0; i < (int)(sizeof width / sizeof *width); i++) {
		int64_t team = kwork_norm_warps(width[i].cols), teams = team < 8 ? 8 / team : 1;
		CU_ASSERT_EQUAL(team, width[i].team);
		CU_ASSERT_EQUAL(kwork_norm_blocks(65536, width[i].cols) * teams * team, 4096);
	}
	CU_ASSERT_EQUAL(kwork_norm_blocks(65536, 768), 512);
}

/* A team has eight rows at least, so few rows have few blocks, whose sums are fewer to be joined. */
static void few_rows_have_few_blocks(void)
{
	CU_ASSERT_EQUAL(kwork_norm_blocks(0, 768), 1);
	CU_ASSERT_EQUAL(kwork_norm_blocks(31, 768), 1);
	CU_ASSERT_EQUAL(kwork_norm_blocks(64, 768), 2);
	CU_ASSERT_EQUAL(kwork_norm_blocks(1024, 768), 32);
	CU_ASSERT_EQUAL(kwork_norm_blocks(1024, 64), 16);
	CU_ASSERT_EQUAL(kwork_norm_blocks(1024, 8192), 128);
}

/* What docs/cuda.md says of the library's gradient with one order of sums: 64 x 12 heads, 1024 x 1024. */
static void gradients_of_the_library_keep_those_of_all_scores(void)
{
	const int64_t dim[] = {64, 1024, 12, 64}, each = (int64_t)64 * 12 * 1024;
	const KShape x = {4, dim, 2};
	KWorkArgs a = {.in = {x, x, x, x}, .layout = 1, .library = true};
	const int64_t rows = each * 4, pairs = each * 1024 * 2;
	CU_ASSERT_EQUAL(kwork_cuda_attention_grad(&a), rows + pairs + K_DNN_WORK);
	CU_ASSERT_EQUAL(pairs, (int64_t)3 << 29); /* 1.5 GiB */
	a.library = false;
	CU_ASSERT_EQUAL(kwork_cuda_attention_grad(&a), each * 12);
}

void suite_cuda_work(void)
{
	CU_pSuite s = CU_add_suite("cuda_work", NULL, NULL);
	CU_add_test(s, "few results have many parts", few_results_have_many_parts);
	CU_add_test(s, "small sums are not divided", small_sums_are_not_divided);
	CU_add_test(s, "norm gradients have many warps", norm_gradients_have_many_warps);
	CU_add_test(s, "few rows have few blocks", few_rows_have_few_blocks);
	CU_add_test(s, "gradients of the library keep those of all scores",
		gradients_of_the_library_keep_those_of_all_scores);
}
