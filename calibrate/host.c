/* calibrate/host.c: what the machine has that is measured: its cores, or its GPUs.
 *
 * GPUs are asked for through the library of their driver, which is on every machine with a GPU, so that shardc links
 * with nothing of NVIDIA's and needs no compiler to say that there is none. */
#include <dlfcn.h>
#include <sched.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "calibrate/private.h"

static const char *node_name(Arena *a)
{
	struct utsname host;
	return uname(&host) ? "this machine" : arena_strdup(a, host.nodename);
}

static void find_cores(Host *out, Arena *a)
{
	cpu_set_t set;
	int cores = sched_getaffinity(0, sizeof(set), &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
	double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
	const char *name = arena_printf(a, "%s, %d cores", node_name(a), cores);
	*out = (Host){.ranks = cores, .memory = memory / cores, .name = name};
}

/* ---- GPUs ---- */

static const char driver_file[] = "libcuda.so.1";
/* As NVIDIA's cuda.h numbers them. */
enum { NAME_BYTES = 256, DRIVER_OK = 0, ATTRIBUTE_PROCESSORS = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76 };

/* The calls of the driver that are needed; a device is the number of a GPU. */
typedef struct Driver {
	int (*init)(unsigned flags);
	int (*count)(int *n);
	int (*device)(int *device, int number);
	int (*name)(char *text, int bytes, int device);
	int (*memory)(size_t *bytes, int device);
	int (*attribute)(int *value, int which, int device);
} Driver;

/* POSIX has functions and objects of one size; ISO C has no conversion between their pointers. */
static bool find_calls(void *library, Driver *out)
{
	static const char *const names[] = {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
		"cuDeviceTotalMem_v2", "cuDeviceGetAttribute"};
	void *at[COUNT_OF(names)];
	_Static_assert(sizeof(at) == sizeof(*out), "a call for each name");
	for (int i = 0; i < COUNT_OF(names); i++)
		if (!(at[i] = dlsym(library, names[i])))
			return false;
	memcpy(out, at, sizeof(at));
	return true;
}

typedef struct Gpu { char name[NAME_BYTES]; size_t memory; int processors, major, minor; } Gpu;

static bool ask(const Driver *driver, int number, Gpu *out)
{
	int device;
	memset(out, 0, sizeof(*out));
	return driver->device(&device, number) == DRIVER_OK && driver->name(out->name, NAME_BYTES - 1, device) == DRIVER_OK
		&& driver->memory(&out->memory, device) == DRIVER_OK
		&& driver->attribute(&out->processors, ATTRIBUTE_PROCESSORS, device) == DRIVER_OK
		&& driver->attribute(&out->major, ATTRIBUTE_MAJOR, device) == DRIVER_OK
		&& driver->attribute(&out->minor, ATTRIBUTE_MINOR, device) == DRIVER_OK;
}

/* NULL, or why the GPUs cannot be measured. */
static const char *ask_all(const Driver *driver, Host *out, Arena *a)
{
	Gpu first, other;
	int n = 0;
	if (driver->init(0) != DRIVER_OK || driver->count(&n) != DRIVER_OK || n < 1)
		return "the driver finds no GPU here";
	if (!ask(driver, 0, &first))
		return "the driver does not say what GPU 0 is";
	for (int i = 1; i < n; i++)
		if (!ask(driver, i, &other) || memcmp(&first, &other, sizeof(first)))
			return arena_printf(a, "GPU %d is not like GPU 0, %s: let CUDA_VISIBLE_DEVICES name GPUs of one kind", i,
				first.name);
	*out = (Host){.cuda = true, .ranks = n, .memory = (double)first.memory, .processors = first.processors,
		.capability = first.major + first.minor / 10.0,
		.name = arena_printf(a, "%s, %d x %s", node_name(a), n, first.name)};
	return NULL;
}

/* Fills *out with the GPUs; NULL, or why that cannot be. */
static const char *find_gpus(Host *out, Arena *a)
{
	Driver driver;
	void *library = dlopen(driver_file, RTLD_NOW | RTLD_LOCAL); /* stays open: the driver has threads */
	if (!library)
		return arena_printf(a, "there is no NVIDIA driver here (%s)", driver_file);
	return find_calls(library, &driver) ? ask_all(&driver, out, a)
		: arena_printf(a, "%s lacks calls of NVIDIA's driver", driver_file);
}

bool host_find(bool cuda, Host *out, Arena *a, Diag *d)
{
	const char *why = NULL;
	if (cuda)
		why = find_gpus(out, a);
	else
		find_cores(out, a);
	if (why)
		diag_error(d, "--target", "cuda: %s, and shardc calibrate measures the GPUs of this machine; machines/ has "
			"files of GPUs from published figures", why);
	return !why;
}
