/* tests/cudasim/device.cpp: the emulated machine: its devices, driver, errors and settings.
 *
 * Settings are environment variables:
 *   CUDASIM_DEVICES=N     devices (1)                CUDASIM_MEMORY=BYTES  of each (2^34)
 *   CUDASIM_ARCH=NN       compute capability (90)    CUDASIM_CODE=NN       what kernels were built for (CUDASIM_ARCH)
 *   CUDASIM_DRIVER=none   no driver                  CUDASIM_REPORT=FILE   gets a line of what was allocated
 *   CUDASIM_ORDER=eager|lazy|priority|random (random) CUDASIM_SEED=N        of random orders (1) */
#include "tests/cudasim/sim.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <pthread.h>
#include <unistd.h>

enum { DRIVER = 13000, MULTIPROCESSORS = 132 };

static thread_local cudaError_t last_error;
static thread_local int device;
static int last_device; /* that a thread has chosen: of a rank its own */
static bool began, forked;

void sim_die(const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	fflush(stdout);
	fputs("cudasim: ", stderr);
	vfprintf(stderr, fmt, args);
	fputc('\n', stderr);
	fflush(stderr);
	abort();
}

int sim_device(void)
{
	return last_device;
}

long long sim_setting(const char *name, long long otherwise)
{
	static std::map<std::string, long long> known; /* getenv searches */
	auto it = known.find(name);
	if (it != known.end())
		return it->second;
	const char *text = getenv(name);
	char *end = NULL;
	long long value = text ? strtoll(text, &end, 10) : otherwise;
	if (text && (end == text || *end))
		sim_die("%s=%s is not a number", name, text);
	return known[name] = value;
}

int sim_arch(void) { return (int)sim_setting("CUDASIM_ARCH", 90); }
static int devices(void) { return (int)sim_setting("CUDASIM_DEVICES", 1); }
static bool no_driver(void)
{
	const char *driver = getenv("CUDASIM_DRIVER");
	return driver && !strcmp(driver, "none");
}

static void after_fork(void) { forked = began; }

void sim_enter(const char *call)
{
	if (!began) {
		began = true;
		pthread_atfork(NULL, NULL, after_fork);
	}
	if (forked)
		sim_die("%s in a process that was forked after CUDA had been used", call);
	if (no_driver() || !devices())
		sim_die("%s without a device; cudaGetDeviceCount says so before", call);
}

cudaError_t sim_error(cudaError_t e)
{
	last_error = e;
	return e;
}

const char *cudaGetErrorName(cudaError_t e)
{
	switch (e) {
#define NAME(name, number, text) case name: return #name;
	CUDASIM_ERRORS(NAME)
#undef NAME
	}
	return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t e)
{
	switch (e) {
#define TEXT(name, number, text) case name: return text;
	CUDASIM_ERRORS(TEXT)
#undef TEXT
	}
	return "unrecognized error code";
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t e = last_error;
	last_error = cudaSuccess;
	return e;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

/* ---- devices ---- */

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = no_driver() ? 0 : DRIVER;
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
	*count = 0;
	if (no_driver())
		return sim_error(cudaErrorInsufficientDriver);
	if (!devices())
		return sim_error(cudaErrorNoDevice);
	*count = devices();
	return cudaSuccess;
}

cudaError_t cudaGetDevice(int *d)
{
	sim_enter("cudaGetDevice");
	*d = device;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int d)
{
	sim_enter("cudaSetDevice");
	if (d < 0 || d >= devices())
		return sim_error(cudaErrorInvalidDevice);
	device = last_device = d;
	return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
	sim_enter("cudaSetDeviceFlags");
	return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d)
{
	sim_enter("cudaGetDeviceProperties");
	if (d < 0 || d >= devices())
		return sim_error(cudaErrorInvalidDevice);
	size_t available;
	memset((void *)p, 0, sizeof *p);
	snprintf(p->name, sizeof p->name, "emulated GPU");
	p->uuid.bytes[15] = (char)(d + 1);
	cudaMemGetInfo(&available, &p->totalGlobalMem);
	p->sharedMemPerBlock = 48 << 10;
	p->sharedMemPerBlockOptin = sim_most_shared();
	p->major = sim_arch() / 10;
	p->minor = sim_arch() % 10;
	p->multiProcessorCount = MULTIPROCESSORS;
	p->warpSize = 32;
	p->maxThreadsPerBlock = 1024;
	p->pciBusID = d + 1;
	p->memoryBusWidth = 5120;
	p->l2CacheSize = 50 << 20;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int d)
{
	sim_enter("cudaDeviceGetAttribute");
	if (d < 0 || d >= devices())
		return sim_error(cudaErrorInvalidDevice);
	switch (attribute) {
	case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
	case cudaDevAttrMultiProcessorCount: *value = MULTIPROCESSORS; break;
	case cudaDevAttrPciBusId: *value = d + 1; break;
	case cudaDevAttrPciDeviceId: case cudaDevAttrPciDomainId: *value = 0; break;
	case cudaDevAttrMemoryClockRate: *value = 2619000; break;
	case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; break;
	case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
	case cudaDevAttrComputeCapabilityMajor: *value = sim_arch() / 10; break;
	case cudaDevAttrComputeCapabilityMinor: *value = sim_arch() % 10; break;
	case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)sim_most_shared(); break;
	case cudaDevAttrCanMapHostMemory: case cudaDevAttrUnifiedAddressing: case cudaDevAttrConcurrentManagedAccess:
	case cudaDevAttrHostRegisterSupported: *value = 1; break;
	}
	return cudaSuccess;
}

/* ---- the driver's own library, which shardc calibrate asks ---- */

extern "C" {
enum { DRIVER_OK = 0, DRIVER_NO_DEVICE = 100, DRIVER_INVALID_DEVICE = 101, DRIVER_PROCESSORS = 16, DRIVER_MAJOR = 75,
	DRIVER_MINOR = 76 }; /* cuda.h */
int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuDeviceGet(int *d, int number);
int cuDeviceGetName(char *name, int bytes, int d);
int cuDeviceTotalMem_v2(size_t *bytes, int d);
int cuDeviceGetAttribute(int *value, int attribute, int d);
}

int cuInit(unsigned) { return no_driver() || !devices() ? DRIVER_NO_DEVICE : DRIVER_OK; }

int cuDeviceGetCount(int *count)
{
	*count = devices();
	return DRIVER_OK;
}

int cuDeviceGet(int *d, int number)
{
	*d = number;
	return number < devices() ? DRIVER_OK : DRIVER_INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int bytes, int)
{
	snprintf(name, (size_t)bytes, "emulated GPU");
	return DRIVER_OK;
}

int cuDeviceTotalMem_v2(size_t *bytes, int)
{
	size_t available;
	return cudaMemGetInfo(&available, bytes) == cudaSuccess ? DRIVER_OK : DRIVER_INVALID_DEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int d)
{
	switch (attribute) {
	case DRIVER_PROCESSORS: /* the others differ from the first */
		*value = MULTIPROCESSORS + (d > 0 && sim_setting("CUDASIM_MIXED", 0));
		return DRIVER_OK;
	case DRIVER_MAJOR: *value = sim_arch() / 10; return DRIVER_OK;
	case DRIVER_MINOR: *value = sim_arch() % 10; return DRIVER_OK;
	default: return DRIVER_INVALID_DEVICE;
	}
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int d)
{
	sim_enter("cudaDeviceGetPCIBusId");
	if (d < 0 || d >= devices())
		return sim_error(cudaErrorInvalidDevice);
	snprintf(id, (size_t)length, "0000:%02x:00.0", d + 1);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	sim_enter("cudaDeviceGetStreamPriorityRange");
	*least = 0;
	*greatest = -5;
	return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
	sim_enter("cudaDeviceReset");
	sim_finish_all();
	return cudaSuccess;
}

cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }
