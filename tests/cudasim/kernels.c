/* tests/cudasim/kernels.c: the kernel tests of tests/unit on CUDA kernels: under emulation, or on a GPU.
 *
 * usage: kernels [--blocking] [TEST ...]
 *   --blocking: each kernel ends before the next one is called, so that a fault is reported at the kernel that made it;
 *   else kernels run while the test goes on, until it waits for results
 *
 * The one idea: the tests do not know whose kernels they run; what they take for memory is the host's, of which kernels
 * get the device's copy (mirror.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <CUnit/Basic.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda.h"
#include "tests/cudasim/kernels_cuda.h"
#include "tests/cudasim/mirror.h"

/* Rows of kernels.def, and tests, that are the CPU's alone. */
static const char *const cpu_only[] = {"pack", "elementwise functions"};

static KBad *bad;

static void must(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return;
	fprintf(stderr, "kernels: %s: %s\n", what, cudaGetErrorString(e));
	exit(1);
}

void *case_memory(int64_t bytes, int64_t whole) { return mirror_take(bytes, whole); }
void case_release(void *p) { mirror_release(p); }
bool case_cuda(void) { return true; }

void case_sync(void)
{
	mirror_sync();
	if (bad)
		k_bad_take(bad);
}

/* Never called: see cpu_only. */
void k_pack_f32(float *dst, const float *src, const char *layout, int64_t o, int64_t i, int64_t k, int64_t group)
{
	(void)dst, (void)src, (void)layout, (void)o, (void)i, (void)k, (void)group;
}

#define CUDA_CASE(name) static void test_cuda_##name(void) { case_cuda_##name(); case_end(); }
KERNEL_CUDA_CASES(CUDA_CASE)
#undef CUDA_CASE

static void add_cuda_cases(void)
{
#define CUDA_CASE(name) CU_add_test(CU_get_suite("kernels"), "CUDA " #name, test_cuda_##name);
	KERNEL_CUDA_CASES(CUDA_CASE)
#undef CUDA_CASE
}

/* All tests, or those named. */
static int choose(int argc, char **argv)
{
	CU_pSuite s = CU_get_suite("kernels");
	for (CU_pTest t = s->pTest; t; t = t->pNext)
		CU_set_test_active(t, argc < 2);
	for (int i = 1; i < argc; i++) {
		CU_pTest t = CU_get_test(s, argv[i]);
		if (!t) {
			fprintf(stderr, "kernels: there is no test \"%s\"\n", argv[i]);
			return 0;
		}
		CU_set_test_active(t, CU_TRUE);
	}
	for (size_t i = 0; argc < 2 && i < sizeof cpu_only / sizeof *cpu_only; i++)
		CU_set_test_active(CU_get_test(s, cpu_only[i]), CU_FALSE);
	CU_set_fail_on_inactive(CU_FALSE);
	return 1;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0); /* a test that never ends is the last one named */
	if (argc > 1 && !strcmp(argv[1], "--blocking")) {
		setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
		setenv("CUDASIM_ORDER", "eager", 1);
		argv++;
		argc--;
	}
	must(cudaSetDevice(0), "cudaSetDevice");
	must(cudaStreamCreateWithFlags(&k_stream, cudaStreamNonBlocking), "cudaStreamCreate");
	must(cudaHostAlloc((void **)&bad, sizeof *bad, cudaHostAllocMapped), "cudaHostAlloc");
	memset(bad, 0, sizeof *bad);
	must(cudaHostGetDevicePointer((void **)&k_bad_report, bad, 0), "cudaHostGetDevicePointer");
	k_cuda_open(false);
	if (CU_initialize_registry() != CUE_SUCCESS)
		return 1;
	suite_kernels();
	add_cuda_cases();
	if (!choose(argc, argv))
		return 2;
	CU_basic_set_mode(CU_BRM_VERBOSE);
	CU_basic_run_tests();
	unsigned failed = CU_get_number_of_failures() + CU_get_number_of_suites_failed();
	unsigned run = CU_get_number_of_tests_run();
	CU_cleanup_registry();
	k_cuda_close();
	return failed || !run;
}
