/* tests/ranks/faults.c: what disks and systems do when they are at their worst, for a program that preloads this:
 *
 *   FAULT=hang    fsync and sync_file_range never return
 *   FAULT=slow    fsync takes 0.7 s
 *   FAULT=read    advice about what a thread beside the first will read never returns
 *   FAULT=thread  no thread can be started, but for the first FAULT_AFTER ones
 *   FAULT=told    none: the file FAULT_TO gets a byte whenever the disk is told to begin (sync_file_range)
 *
 * on rank FAULT_RANK (of --ranks; unset: on all), once the file FAULT_ONCE is there (unset: always). */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int is_here; /* this process is the rank; programs forget the variable that says it */

__attribute__((constructor)) static void find_rank(void)
{
	const char *rank = getenv("FAULT_RANK"), *me = getenv("SHARDRT_RANK");
	is_here = !rank || (me && !strcmp(rank, me));
}

static int strikes(const char *what)
{
	const char *fault = getenv("FAULT"), *once = getenv("FAULT_ONCE");
	return is_here && fault && !strcmp(fault, what) && (!once || !access(once, F_OK));
}

static void hang(void)
{
	for (;;)
		usleep(10000);
}

int fsync(int fd)
{
	int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
	if (strikes("hang"))
		hang();
	if (strikes("slow"))
		usleep(700000);
	return next(fd);
}

int sync_file_range(int fd, off64_t offset, off64_t bytes, unsigned flags)
{
	int (*next)(int, off64_t, off64_t, unsigned) =
		(int (*)(int, off64_t, off64_t, unsigned))dlsym(RTLD_NEXT, "sync_file_range");
	int to = strikes("told") ? open(getenv("FAULT_TO"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
	if (to >= 0 && (write(to, ".", 1) != 1 || close(to)))
		abort();
	if (strikes("hang"))
		hang();
	return next(fd, offset, bytes, flags);
}

int madvise(void *at, size_t bytes, int advice)
{
	int (*next)(void *, size_t, int) = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise");
	if (advice == MADV_WILLNEED && gettid() != getpid() && strikes("read"))
		pause();
	return next(at, bytes, advice);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	static _Atomic int n;
	int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
		(int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
	const char *after = getenv("FAULT_AFTER");
	if (strikes("thread") && atomic_fetch_add(&n, 1) >= (after ? atoi(after) : 0))
		return EAGAIN;
	return next(thread, attr, run, arg);
}
