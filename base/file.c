/* base/file.c: opens, maps, writes and syncs files.
 *
 * A file to be read is opened without waiting, then refused unless it is a regular file.  When several calls fail,
 * errno keeps the first error, whatever cleaning up follows. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"

/* ---- reading ---- */

static const char *kind_of(mode_t mode)
{
	if (S_ISDIR(mode))
		return "this is a folder, a file was expected";
	if (S_ISFIFO(mode))
		return "this is a pipe, a regular file was expected: write what comes out of it to a file";
	return "this is a device, a regular file was expected";
}

int file_open(const char *path, struct stat *st, const char **why)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 && errno == ENXIO) {
		*why = "this is a socket or a device, a regular file was expected";
		return -1;
	}
	if (fd < 0 || fstat(fd, st)) {
		*why = strerror(errno);
		file_close(fd, false);
		return -1;
	}
	if (S_ISREG(st->st_mode))
		return fd;
	*why = kind_of(st->st_mode);
	close(fd);
	errno = EINVAL;
	return -1;
}

bool file_view(FileView *v, const char *path, const char **why)
{
	struct stat st;
	int fd = file_open(path, &st, why);
	*v = (FileView){0};
	if (fd < 0)
		return false;
	void *p = st.st_size > 0 ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0) : NULL;
	bool ok = p != MAP_FAILED;
	if (ok)
		*v = (FileView){p, st.st_size};
	else
		*why = strerror(errno);
	close(fd);
	return ok;
}

void file_view_close(FileView *v)
{
	if (v->at)
		munmap((void *)(uintptr_t)v->at, (size_t)v->bytes);
	*v = (FileView){0};
}

bool file_is_beneath(const char *folder, const char *name)
{
	size_t bytes = strlen(folder) + strlen(name) + 3;
	char *joined = malloc(bytes);
	if (!joined)
		ice("out of memory: a path of %zu bytes", bytes);
	snprintf(joined, bytes, "%s/%s", *folder ? folder : ".", name);
	char *real = realpath(joined, NULL), *top = realpath(*folder ? folder : ".", NULL);
	size_t n = top ? strlen(top) : 0;
	bool ok = !real || (top && !strncmp(real, top, n) && (real[n] == '/' || n == 1));
	free(real);
	free(top);
	free(joined);
	return ok;
}

/* ---- writing ---- */

bool file_close(int fd, bool ok)
{
	int error = errno;
	if (fd >= 0 && close(fd) && ok)
		return false;
	errno = error;
	return ok && fd >= 0;
}

bool file_flush_close(FILE *f)
{
	bool ok = f && !fflush(f) && !ferror(f);
	int error = errno;
	if (f && fclose(f) && ok)
		return false;
	errno = error;
	return ok;
}

bool file_flush_stdout(Diag *d)
{
	errno = 0;
	if (!fflush(stdout) && !ferror(stdout))
		return true;
	errno = errno ? errno : EIO; /* an earlier write failed */
	diag_unwritten(d, "standard output");
	d->full = true;
	return false;
}

bool file_sync(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	return file_close(fd, fd >= 0 && !fsync(fd));
}

bool file_put(int fd, const void *data, int64_t bytes, int64_t offset)
{
	const char *p = data;
	while (bytes > 0) {
		ssize_t n = pwrite(fd, p, (size_t)MIN(bytes, 1 << 30), (off_t)offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		p += n;
		bytes -= n;
		offset += n;
	}
	return true;
}

bool file_write(const char *path, const void *data, int64_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	return file_close(fd, fd >= 0 && file_put(fd, data, bytes, 0) && !fsync(fd));
}
