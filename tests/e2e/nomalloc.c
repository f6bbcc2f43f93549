/* tests/e2e/nomalloc.c: preloaded into a training binary: who asks for memory in a step, and what the program maps.
 *
 * A line of the JSON log (one write of it) ends a step.  The file NOMALLOC gets a line for each:
 * "step OWN LARGEST": the calls of malloc, calloc, realloc, aligned allocation and mmap made by the program's own
 * code since the line before, and the most bytes that a library asked for at once (oneDNN keeps a list of each
 * call's arguments).  The last line is "mapped BYTES": the program's own mappings without a file, and its part of the
 * memory that ranks share, in whole pages.  Of several ranks the one that logs writes the file; any other one writes
 * that last line to the file NOMALLOC_NOW when it gets the signal SIGRTMIN. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

enum { PAGE = 4096, STEPS_MAX = 1 << 16, MAPS_MAX = 64 };
static atomic_long own_calls, largest;
static long seen_calls[STEPS_MAX], seen_largest[STEPS_MAX], mapped, most;
static int steps, n_maps;
static struct { char *at, *end; } maps[MAPS_MAX];

static void *next(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);
	if (!f)
		abort();
	return f;
}

/* Is this address in the program, rather than in a library?  (dladdr knows the program by argv[0].) */
static int is_own(void *address)
{
	Dl_info at;
	return dladdr(address, &at) && at.dli_fname && !strcmp(at.dli_fname, program_invocation_name);
}

static void count(void *caller, size_t bytes)
{
	if (is_own(caller))
		own_calls++;
	else if ((long)bytes > largest)
		largest = (long)bytes;
}

static long pages(size_t bytes)
{
	return (long)((bytes + PAGE - 1) / PAGE * PAGE);
}

#define CALLER __builtin_return_address(0)
void *malloc(size_t n) { count(CALLER, n); return __libc_malloc(n); }
void *calloc(size_t n, size_t size) { count(CALLER, n * size); return __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { count(CALLER, n); return __libc_realloc(p, n); }
void *memalign(size_t align, size_t n) { count(CALLER, n); return __libc_memalign(align, n); }
void *aligned_alloc(size_t align, size_t n) { count(CALLER, n); return __libc_memalign(align, n); }
int posix_memalign(void **p, size_t align, size_t n)
{
	count(CALLER, n);
	*p = __libc_memalign(align, n);
	return *p ? 0 : ENOMEM;
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
	static void *(*real)(void *, size_t, int, int, int, off_t);
	if (!real)
		*(void **)&real = next("mmap");
	int own = is_own(CALLER);
	char *p = real(at, n, prot, flags, fd, offset);
	own_calls += own;
	/* peers map each other's memory read-only, files are mapped privately */
	if (own && (flags & MAP_ANONYMOUS || (flags & MAP_SHARED && prot & PROT_WRITE)) && (void *)p != MAP_FAILED) {
		if (n_maps == MAPS_MAX)
			abort();
		maps[n_maps].at = p;
		maps[n_maps++].end = p + pages(n);
		mapped += pages(n);
	}
	return p;
}

/* What a step's end finds mapped is what counts: later everything is given back. */
int munmap(void *at, size_t n)
{
	static int (*real)(void *, size_t);
	if (!real)
		*(void **)&real = next("munmap");
	for (int i = 0; i < n_maps; i++) {
		char *begin = at, *end = begin + pages(n);
		if (begin < maps[i].at || end > maps[i].end)
			continue;
		mapped -= pages(n);
		if (begin == maps[i].at)
			maps[i].at = end;
		else
			maps[i].end = begin; /* only ends are given back */
		break;
	}
	return real(at, n);
}

/* The log writes a line at once. */
ssize_t write(int fd, const void *data, size_t n)
{
	static ssize_t (*real)(int, const void *, size_t);
	static const char head[] = "{\"step\": ";
	if (!real)
		*(void **)&real = next("write");
	ssize_t result = real(fd, data, n);
	if (n < sizeof(head) || memcmp(data, head, sizeof(head) - 1))
		return result;
	if (steps < STEPS_MAX) {
		seen_calls[steps] = atomic_load(&own_calls);
		seen_largest[steps++] = atomic_load(&largest);
		most = mapped > most ? mapped : most;
	}
	atomic_store(&own_calls, 0);
	atomic_store(&largest, 0);
	return result;
}

/* Calls only what a handler of signals may. */
static void write_now(int signal)
{
	(void)signal;
	char text[40] = "mapped ", digits[24];
	int n = 0, fd = open(getenv("NOMALLOC_NOW"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	for (long left = mapped; left || !n; left /= 10)
		digits[n++] = (char)('0' + left % 10);
	size_t length = strlen(text);
	while (n)
		text[length++] = digits[--n];
	text[length++] = '\n';
	if (fd < 0 || syscall(SYS_write, fd, text, length) < 0 || close(fd))
		abort();
}

__attribute__((constructor)) static void listen(void)
{
	if (getenv("NOMALLOC_NOW"))
		signal(SIGRTMIN, write_now);
}

__attribute__((destructor)) static void write_counts(void)
{
	const char *path = getenv("NOMALLOC");
	FILE *out = path && steps > 0 ? fopen(path, "w") : NULL;
	for (int i = 0; out && i < steps; i++)
		fprintf(out, "%d %ld %ld\n", i + 1, seen_calls[i], seen_largest[i]);
	if (out)
		fprintf(out, "mapped %ld\n", most);
	if (out && fclose(out))
		abort();
}
