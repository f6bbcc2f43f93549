/* tests/cudasim/memory.cpp: device, managed and pinned memory, and what may be copied between them.
 *
 * The one idea: every allocation is known by its range, so that a copy that leaves it is an error.  Device memory is
 * full of NaN at first and cannot be touched by the host: while nodes run, an allocation opens where it is touched, and
 * closes when they end (under AddressSanitizer it is always open; there a kernel cannot leave it by a byte). */
#include "tests/cudasim/sim.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, ALIGN = 256 };
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { PROTECTS = 0 };
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
enum { PROTECTS = 1 };
#endif

namespace {

struct Range {
	size_t bytes;
	cudaMemoryType type;
	bool registered;  /* the caller's memory */
	char *map;        /* mmap'ed: its pages, with one after the end that nobody may touch */
	size_t map_bytes;
	Range *next_open;
};
std::map<uintptr_t, Range> ranges;
std::recursive_mutex ranges_lock;
size_t device_bytes, device_most, pinned_bytes, pinned_most;
int device_count;
int open_depth;
Range *opened;

Range *find(const void *p, size_t bytes)
{
	std::lock_guard<std::recursive_mutex> hold(ranges_lock);
	uintptr_t at = (uintptr_t)p;
	auto it = ranges.upper_bound(at);
	if (it == ranges.begin())
		return NULL;
	--it;
	uintptr_t end = it->first + it->second.bytes;
	return at + bytes <= end && at < end + !bytes ? &it->second : NULL;
}

void protect(const Range &r, bool open)
{
	if (r.map && mprotect(r.map, r.map_bytes - PAGE, open ? PROT_READ | PROT_WRITE : PROT_NONE))
		sim_die("mprotect of %zu bytes failed", r.map_bytes);
}

/* Nodes touch an allocation for the first time; all else is an error. */
void on_fault(int, siginfo_t *info, void *)
{
	Range *r = find(info->si_addr, 1);
	bool device = r && r->type == cudaMemoryTypeDevice;
	if (device && open_depth && r->map) {
		protect(*r, true);
		r->next_open = opened;
		opened = r;
		return;
	}
	const char *text = device ? "cudasim: the host touches device memory\n" : "cudasim: a segmentation fault\n";
	ssize_t unused = write(2, text, strlen(text));
	(void)unused;
	signal(SIGSEGV, SIG_DFL);
}

void report()
{
	const char *path = getenv("CUDASIM_REPORT");
	FILE *f = path && device_count ? fopen(path, "a") : NULL;
	if (!f)
		return;
	fprintf(f, "device %zu in %d allocations, pinned %zu\n", device_most, device_count, pinned_most);
	fclose(f);
}

void begin_once()
{
	static bool done;
	if (done)
		return;
	done = true;
	atexit(report);
	if (!PROTECTS)
		return;
	struct sigaction action = {};
	action.sa_sigaction = on_fault;
	action.sa_flags = SA_SIGINFO;
	sigaction(SIGSEGV, &action, NULL);
}

void add_counts(cudaMemoryType type, long long bytes)
{
	size_t &now = type == cudaMemoryTypeHost ? pinned_bytes : device_bytes;
	size_t &most = type == cudaMemoryTypeHost ? pinned_most : device_most;
	now += (size_t)bytes;
	most = now > most ? now : most;
	device_count += type != cudaMemoryTypeHost && bytes > 0;
}

cudaError_t allocate(void **p, size_t bytes, cudaMemoryType type, const char *call)
{
	sim_enter(call);
	sim_not_capturing(call);
	std::lock_guard<std::recursive_mutex> hold(ranges_lock);
	begin_once();
	*p = NULL;
	if (!bytes)
		return cudaSuccess;
	if (type != cudaMemoryTypeHost && device_bytes + bytes > (size_t)sim_setting("CUDASIM_MEMORY", 1LL << 34))
		return sim_error(cudaErrorMemoryAllocation);
	Range r = {bytes, type, false, NULL, 0, NULL};
	if (PROTECTS && type == cudaMemoryTypeDevice) {
		r.map_bytes = (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
		r.map = (char *)mmap(NULL, r.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (r.map == MAP_FAILED)
			return sim_error(cudaErrorMemoryAllocation);
		protect(r, true);
		*p = r.map;
	} else {
		/* One page at least, so that no neighbour shares it. */
		size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
		*p = aligned_alloc(type == cudaMemoryTypeHost ? (size_t)PAGE : (size_t)ALIGN, whole);
		if (!*p)
			return sim_error(cudaErrorMemoryAllocation);
		ASAN_POISON_MEMORY_REGION((char *)*p + bytes, whole - bytes);
	}
	if (!sim_setting("CUDASIM_IDLE", 0))
		memset(*p, 0xFF, bytes);
	protect(r, false);
	ranges[(uintptr_t)*p] = r;
	add_counts(type, (long long)bytes);
	return cudaSuccess;
}

cudaError_t release(void *p, bool host, const char *call)
{
	if (!p)
		return cudaSuccess;
	sim_enter(call);
	sim_not_capturing(call);
	sim_finish_all();
	std::lock_guard<std::recursive_mutex> hold(ranges_lock);
	auto it = ranges.find((uintptr_t)p);
	if (it == ranges.end() || it->second.registered || (it->second.type == cudaMemoryTypeHost) != host)
		sim_die("%s of a pointer that the call's counterpart did not give", call);
	Range r = it->second;
	add_counts(r.type, -(long long)r.bytes);
	ranges.erase(it);
	if (r.map)
		munmap(r.map, r.map_bytes);
	else
		free(p);
	return cudaSuccess;
}

/* What the kind of a copy says about one end. */
void check_end(const void *p, size_t bytes, bool device, bool async, const char *call, const char *end)
{
	const Range *r = find(p, bytes);
	if (device && (!r || r->type == cudaMemoryTypeHost))
		sim_die("%s of %zu bytes: its %s is not within device memory", call, bytes, end);
	if (!device && r && r->type == cudaMemoryTypeDevice)
		sim_die("%s of %zu bytes: its %s is device memory, its kind says host", call, bytes, end);
	if (!device && async && !r)
		sim_die("%s of %zu bytes: its %s is not within pinned memory", call, bytes, end);
}

void check_copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, bool async, const char *call)
{
	if (!bytes)
		return;
	bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
	bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
	if (kind == cudaMemcpyDefault) {
		to_device = sim_device_memory(to, bytes);
		from_device = sim_device_memory(from, bytes);
	}
	check_end(to, bytes, to_device, async, call, "destination");
	check_end(from, bytes, from_device, async, call, "source");
	if ((char *)to < (const char *)from + bytes && (const char *)from < (char *)to + bytes)
		sim_die("%s of %zu bytes: source and destination overlap", call, bytes);
}

} // namespace

bool sim_pinned(const void *p, size_t bytes) { return find(p, bytes); }

bool sim_device_memory(const void *p, size_t bytes)
{
	const Range *r = find(p, bytes);
	return r && r->type != cudaMemoryTypeHost;
}

void sim_must_reach(const void *p, size_t bytes, const char *what)
{
	if (bytes && !find(p, bytes))
		sim_die("%s: %zu bytes at %p are not within memory that the device can reach", what, bytes, p);
}

void sim_argument(const char *kernel, const void *p)
{
	if (p && !find(p, 0))
		sim_die("kernel %s is given %p, where no memory is that the device can reach", kernel, p);
}

void sim_memory_begin(void)
{
	std::lock_guard<std::recursive_mutex> hold(ranges_lock);
	open_depth++;
}

void sim_memory_end(void)
{
	std::lock_guard<std::recursive_mutex> hold(ranges_lock);
	if (--open_depth)
		return;
	for (; opened; opened = opened->next_open)
		protect(*opened, false);
}

/* ---- the API ---- */

cudaError_t cudaMalloc(void **p, size_t bytes) { return allocate(p, bytes, cudaMemoryTypeDevice, "cudaMalloc"); }
cudaError_t cudaFree(void *p) { return release(p, false, "cudaFree"); }
cudaError_t cudaMallocHost(void **p, size_t bytes) { return allocate(p, bytes, cudaMemoryTypeHost, "cudaMallocHost"); }
cudaError_t cudaFreeHost(void *p) { return release(p, true, "cudaFreeHost"); }

cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned)
{
	return allocate(p, bytes, cudaMemoryTypeManaged, "cudaMallocManaged");
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
	return allocate(p, bytes, cudaMemoryTypeHost, "cudaHostAlloc");
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
	sim_enter("cudaHostRegister");
	sim_not_capturing("cudaHostRegister");
	std::lock_guard<std::recursive_mutex> hold(ranges_lock);
	begin_once();
	if (!p || !bytes)
		return sim_error(cudaErrorInvalidValue);
	auto after = ranges.lower_bound((uintptr_t)p);
	if (find(p, 1) || (after != ranges.end() && after->first < (uintptr_t)p + bytes))
		return sim_error(cudaErrorHostMemoryAlreadyRegistered);
	ranges[(uintptr_t)p] = {bytes, cudaMemoryTypeHost, true, NULL, 0, NULL};
	add_counts(cudaMemoryTypeHost, (long long)bytes);
	return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
	sim_enter("cudaHostUnregister");
	sim_not_capturing("cudaHostUnregister");
	sim_finish_all();
	std::lock_guard<std::recursive_mutex> hold(ranges_lock);
	auto it = ranges.find((uintptr_t)p);
	if (it == ranges.end() || !it->second.registered)
		return sim_error(cudaErrorHostMemoryNotRegistered);
	add_counts(cudaMemoryTypeHost, -(long long)it->second.bytes);
	ranges.erase(it);
	return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned)
{
	sim_enter("cudaHostGetDevicePointer");
	const Range *r = find(host, 1);
	if (!r || r->type != cudaMemoryTypeHost)
		return sim_error(cudaErrorInvalidValue);
	*device = host;
	return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
	sim_enter("cudaPointerGetAttributes");
	const Range *r = find(p, 1);
	*a = {r ? r->type : cudaMemoryTypeUnregistered, 0, r ? (void *)p : NULL,
		r && r->type == cudaMemoryTypeDevice ? NULL : (void *)p};
	return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
	sim_enter("cudaMemGetInfo");
	*total = (size_t)sim_setting("CUDASIM_MEMORY", 1LL << 34);
	*available = *total - device_bytes;
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	sim_enter("cudaMemcpyAsync");
	check_copy(to, from, bytes, kind, true, "cudaMemcpyAsync");
	sim_issue(stream, "cudaMemcpyAsync", [=] { memcpy(to, from, bytes); return true; });
	return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
	size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	sim_enter("cudaMemcpy2DAsync");
	for (size_t i = 0; i < height; i++)
		check_copy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, kind, true,
			"cudaMemcpy2DAsync");
	sim_issue(stream, "cudaMemcpy2DAsync", [=] {
		for (size_t i = 0; i < height; i++)
			memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
		return true;
	});
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
	sim_enter("cudaMemsetAsync");
	sim_must_reach(p, bytes, "cudaMemsetAsync");
	sim_issue(stream, "cudaMemsetAsync", [=] { memset(p, value, bytes); return true; });
	return cudaSuccess;
}

/* On the legacy stream: after all that blocking streams hold, and the host waits. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
	sim_enter("cudaMemcpy");
	sim_not_capturing("cudaMemcpy");
	check_copy(to, from, bytes, kind, false, "cudaMemcpy");
	sim_issue(NULL, "cudaMemcpy", [=] { memcpy(to, from, bytes); return true; });
	return cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
	cudaError_t e = cudaMemsetAsync(p, value, bytes, NULL);
	return e == cudaSuccess ? cudaStreamSynchronize(NULL) : e;
}
