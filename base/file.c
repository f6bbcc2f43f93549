/* base/file.c: files that are synced to the disk.
 *
 * The one idea: the first error is the one that is told, whatever is done to end with it. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"

bool file_close(int fd, bool ok)
{
	int error = errno;
	if (fd >= 0 && close(fd) && ok)
		return false;
	errno = error;
	return ok && fd >= 0;
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
