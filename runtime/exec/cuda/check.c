/* runtime/exec/cuda/check.c: finds out whether this program runs on a GPU of this machine, and on which.
 *
 * Refuses what would fail later with a less clear message: no driver, no GPU, code for another architecture.  The ranks
 * of a host take its GPUs in turn; backend.c decides whether they may share one.
 *
 * All checks are made before anything is allocated. */
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/cuda/cuda.h"

static const World *world; /* of this process, for messages */

void cuda_must(cudaError_t e, const char *what)
{
	int device = 0;
	if (e == cudaSuccess)
		return;
	cudaGetDevice(&device);
	if (world && world->size > 1)
		k_fail("rank %d, GPU %d: %s: %s (%s)", world->rank, device, what, cudaGetErrorString(e), cudaGetErrorName(e));
	k_fail("GPU %d: %s: %s (%s)", device, what, cudaGetErrorString(e), cudaGetErrorName(e));
}

bool cuda_runs_on(const char *arch, int major, int minor)
{
	char *end;
	if (strncmp(arch, "sm_", 3))
		return true;
	int code = (int)strtol(arch + 3, &end, 10), here = 10 * major + minor;
	return *end == 'a' ? code == here : code <= here && (*end != 'f' || code / 10 == major);
}

/* What to do where a program is not for the GPU of that compute capability. */
static const char *remedy(int major, int minor)
{
	static const struct { int capability; const char *text; } own[] = {
		{90, "compile it with --arch=sm_90a"},
		{100, "compile it with --arch=sm_100a"},
		{120, "compile it with --arch=sm_120a"}};
	for (int i = 0; i < COUNT_OF(own); i++)
		if (own[i].capability == 10 * major + minor)
			return own[i].text;
	return major >= 8 ? "compile it with --arch=sm_80" : "sm_80 is the oldest that programs can be compiled for";
}

/* The number of GPUs that this process sees; 0 after a message. */
static int count_devices(const char *program, Diag *d)
{
	int n = 0, driver = 0, runtime = 0;
	cudaError_t e = cudaGetDeviceCount(&n);
	if (e == cudaSuccess && n > 0)
		return n;
	cudaDriverGetVersion(&driver);
	cudaRuntimeGetVersion(&runtime);
	if (driver == 0)
		diag_error(d, program, "this program runs on a GPU, and there is no NVIDIA driver here (%s)",
			cudaGetErrorString(e));
	else if (e == cudaErrorInsufficientDriver)
		diag_error(d, program, "this program was built with CUDA %d.%d, and the driver here goes up to CUDA %d.%d: a "
			"newer driver is wanted", runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
	else
		diag_error(d, program, "this program runs on a GPU, and none can be seen here%s%s: is CUDA_VISIBLE_DEVICES "
			"right?", e == cudaSuccess || e == cudaErrorNoDevice ? "" : ": ",
			e == cudaSuccess || e == cudaErrorNoDevice ? "" : cudaGetErrorString(e));
	return 0;
}

bool device_check(Rt *rt, Diag *d)
{
	const char *program = rt->p->options->program, *arch = rt->model->need_cuda;
	struct cudaDeviceProp p;
	world = &rt->p->world;
	int n = count_devices(program, d);
	if (!n)
		return false;
	int device = world->local_rank % n;
	cudaError_t e = cudaSetDevice(device);
	if (e == cudaSuccess)
		e = cudaGetDeviceProperties(&p, device);
	if (e != cudaSuccess) {
		diag_error(d, program, "GPU %d cannot be used: %s", device, cudaGetErrorString(e));
		return false;
	}
	if (cuda_runs_on(arch, p.major, p.minor))
		return true;
	diag_error(d, program, "this program was compiled for GPUs of %s, and GPU %d (%s) is sm_%d%d: %s", arch, device,
		p.name, p.major, p.minor, remedy(p.major, p.minor));
	return false;
}

void cuda_send(void *to, const void *from, size_t bytes)
{
	cuda_must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
	cuda_must(cudaStreamSynchronize(NULL), "cudaMemcpy");
}
