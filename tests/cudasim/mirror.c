/* tests/cudasim/mirror.c: see mirror.h.
 *
 * The one idea: who may touch the host's memory is its pages' protection, so that a test which looks too early, and a
 * kernel which got the host's pointer, end here on the emulation; on a GPU the one ends here, the other as a fault. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "tests/cudasim/mirror.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

enum { MOST = 16384, MOST_LISTED = 64, PAGE = 4096 };
#define ARENA ((size_t)1 << 36) /* of addresses */

/* What kernels since the last mirror_sync do with it. */
typedef enum Use { UNUSED, IS_READ, IS_WRITTEN } Use;
typedef struct Twin { char *host, *device; int64_t bytes, whole; Use use; int open; } Twin;

static Twin twin[MOST], *used[MOST];
static int n_twins, n_used;
static char *arena, *end;
static volatile sig_atomic_t hidden;
static struct sigaction before;

static void must(cudaError_t e, const char *what)
{
	if (e == cudaSuccess)
		return;
	fprintf(stderr, "kernels: %s: %s\n", what, cudaGetErrorString(e));
	exit(1);
}

static size_t pages(int64_t bytes)
{
	return ((size_t)bytes + PAGE - 1) / PAGE * PAGE;
}

static void protect(Twin *t, int how)
{
	if (t->open != how && mprotect(t->host, pages(t->whole), how)) {
		perror("kernels: mprotect");
		exit(1);
	}
	t->open = how;
}

/* Says whose fault it is and repeats the access, for whoever handled faults before. */
static void on_fault(int number, siginfo_t *info, void *context)
{
	static const char early[] = "kernels: a test touches what kernels were given: case_sync comes first\n";
	static const char mixed[] = "kernels: a kernel touches memory of the host\n";
	bool ours = (char *)info->si_addr >= arena && (char *)info->si_addr < end;
	if (!ours && before.sa_flags & SA_SIGINFO) {
		before.sa_sigaction(number, info, context);
		return;
	}
	ssize_t unused = !ours ? 0 : hidden ? write(2, mixed, sizeof mixed - 1) : write(2, early, sizeof early - 1);
	(void)unused;
	sigaction(SIGSEGV, &before, NULL);
}

static void begin(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	arena = end = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (arena == MAP_FAILED) {
		perror("kernels: mmap");
		exit(1);
	}
	sigaction(SIGSEGV, &action, &before);
}

void *mirror_take(int64_t bytes, int64_t whole)
{
	Twin t = {.bytes = bytes, .whole = whole};
	must(cudaMalloc((void **)&t.device, bytes ? (size_t)bytes : 1), "cudaMalloc");
	if (!arena)
		begin();
	if (n_twins == MOST || (size_t)(end - arena) + pages(whole) > ARENA) {
		fprintf(stderr, "kernels: a test takes too much memory\n");
		exit(1);
	}
	t.host = end;
	end += pages(whole);
	protect(&t, PROT_READ | PROT_WRITE);
	twin[n_twins++] = t;
	return t.host;
}

void mirror_release(void *p)
{
	if (n_used)
		mirror_sync();
	Twin t = twin[--n_twins];
	if (p != t.host) {
		fprintf(stderr, "kernels: memory is released out of order\n");
		exit(1);
	}
	must(cudaFree(t.device), "cudaFree");
	ASAN_UNPOISON_MEMORY_REGION(t.host, pages(t.whole));
	madvise(t.host, pages(t.whole), MADV_DONTNEED);
	end = t.host;
}

/* ---- calls ---- */

/* The last one that does not begin behind p. */
static Twin *find(const void *p, const char *what)
{
	int low = 0, high = n_twins;
	while (high - low > 1) {
		int middle = (low + high) / 2;
		if (twin[middle].host <= (const char *)p)
			low = middle;
		else
			high = middle;
	}
	if (n_twins && (const char *)p >= twin[low].host && (const char *)p <= twin[low].host + twin[low].bytes)
		return &twin[low];
	fprintf(stderr, "kernels: %s: a test gives other memory than that of case_alloc\n", what);
	exit(1);
}

/* A copy from pageable memory may return before its end; k_stream does not wait for the stream of these. */
static void upload(const Twin *t)
{
	must(cudaMemcpy(t->device, t->host, (size_t)t->bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
	must(cudaStreamSynchronize(NULL), "cudaStreamSynchronize");
}

static void download(const Twin *t)
{
	must(cudaMemcpy(t->host, t->device, (size_t)t->bytes, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
}

static char *use(const void *p, Use how, const char *what)
{
	Twin *t = p ? find(p, what) : NULL;
	if (!t)
		return NULL;
	if (t->use == UNUSED) {
		upload(t);
		used[n_used++] = t;
	}
	t->use = t->use > how ? t->use : how;
	return t->device + ((const char *)p - t->host);
}

const void *mirror_read(const void *p, const char *what) { return use(p, IS_READ, what); }
void *mirror_write(void *p, const char *what) { return use(p, IS_WRITTEN, what); }

void *mirror_list(const void *list, int n, bool written, const char *what)
{
	static void *device[MOST_LISTED];
	if (n > MOST_LISTED) {
		fprintf(stderr, "kernels: %s: a list of %d, of %d at most\n", what, n, MOST_LISTED);
		exit(1);
	}
	for (int i = 0; i < n; i++)
		device[i] = use(((void *const *)list)[i], written ? IS_WRITTEN : IS_READ, what);
	return device;
}

const KUpdate *mirror_update(const KUpdate *u, const char *what)
{
	static KUpdate device;
	device = *u;
	device.p = mirror_write(u->p, what);
	for (int i = 0; i < 2; i++)
		device.state[i] = mirror_write(u->state[i], what);
	device.g = mirror_read(u->g, what);
	device.segment = mirror_read(u->segment, what);
	device.group = mirror_read(u->group, what);
	device.s = mirror_read(u->s, what);
	return &device;
}

void mirror_hide(void)
{
	hidden = true;
	for (int i = 0; i < n_used; i++)
		protect(used[i], PROT_NONE);
}

void mirror_show(void)
{
	for (int i = 0; i < n_used; i++)
		protect(used[i], used[i]->use == IS_READ ? PROT_READ : PROT_NONE);
	hidden = false;
}

void mirror_sync(void)
{
	mirror_hide();
	must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	for (int i = 0; i < n_used; i++) {
		protect(used[i], PROT_READ | PROT_WRITE);
		if (used[i]->use == IS_WRITTEN)
			download(used[i]);
		used[i]->use = UNUSED;
	}
	n_used = 0;
	hidden = false;
}
