/* runtime/comm/shared_file.c: memory that several processes map, in large pages where the system offers them.
 *
 * The file has no name, so that a crashed run leaves nothing behind once its last process has ended.  Files of
 * memfd_create get small pages unless the administrator allows large ones for the whole machine, and with small pages
 * updates, copies and sums run at a half to a quarter of the speed.  A private tmpfs may ask for large pages, so a
 * detached one is made for the file; where that is not allowed (it needs CAP_SYS_ADMIN), memfd_create is used. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mount.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/comm/private.h"

enum { LARGE_PAGE = 2 << 20 };

/* A direct system call, because the C library has functions for these only since glibc 2.36. */
static bool configure(int fs, unsigned how, const char *key, const char *value)
{
	return !syscall(SYS_fsconfig, fs, how, key, value, 0);
}

/* An unnamed file in a tmpfs that no other process sees; -1 where it cannot be made. */
static int large_page_file(int64_t bytes)
{
	int file = -1, mount = -1, fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
	char size[32];
	snprintf(size, sizeof(size), "%" PRId64, round_up(bytes, LARGE_PAGE));
	if (fs < 0)
		return -1;
	if (configure(fs, FSCONFIG_SET_STRING, "huge", "advise") && configure(fs, FSCONFIG_SET_STRING, "size", size) &&
		configure(fs, FSCONFIG_CMD_CREATE, NULL, NULL))
		mount = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0);
	if (mount >= 0) {
		file = openat(mount, "shardc", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		unlinkat(mount, "shardc", 0);
		close(mount);
	}
	close(fs);
	return file;
}

int shared_file(int64_t bytes)
{
	int fd = bytes >= LARGE_PAGE ? large_page_file(bytes) : -1;
	if (fd < 0)
		fd = memfd_create("shardc", MFD_CLOEXEC);
	if (fd >= 0 && ftruncate(fd, bytes)) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

int shared_open(int pid, int fd)
{
	char path[64];
	struct stat s;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	int own = pid > 0 && fd >= 0 ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
	if (own < 0 || (!fstat(own, &s) && S_ISREG(s.st_mode)))
		return own;
	close(own);
	errno = ESTALE;
	return -1;
}

/* Finds address space for `bytes` at the boundary of a large page, by mapping more and unmapping the rest. */
static void *free_space(int64_t bytes)
{
	size_t room = (size_t)bytes + LARGE_PAGE;
	char *space = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (space == MAP_FAILED)
		return NULL;
	munmap(space, room);
	return (void *)(((uintptr_t)space + LARGE_PAGE - 1) & ~(uintptr_t)(LARGE_PAGE - 1));
}

/* Makes two mappings side by side, in address space that is reserved until both are there. */
static void *map_both(int fd, int64_t bytes, int file, int64_t file_bytes, int prot)
{
	int64_t behind = round_up(bytes, COMM_FILE_ALIGN), all = behind + file_bytes;
	char *p = mmap(free_space(all), (size_t)all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return MAP_FAILED;
	if (mmap(p, (size_t)bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED &&
		mmap(p + behind, (size_t)file_bytes, prot, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED)
		return p;
	int error = errno;
	munmap(p, (size_t)all);
	errno = error;
	return MAP_FAILED;
}

void *shared_map(int fd, int64_t bytes, int file, int64_t file_bytes, bool writable)
{
	int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
	void *p = file_bytes ? map_both(fd, bytes, file, file_bytes, prot)
		: mmap(bytes < LARGE_PAGE ? NULL : free_space(bytes), (size_t)bytes, prot, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, (size_t)bytes, MADV_HUGEPAGE);
	return p;
}
