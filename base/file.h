/* base/file.h: files that are synced to the disk; errno tells what failed first, through a close. */
#ifndef SHARDC_FILE_H
#define SHARDC_FILE_H

#include "base/base.h"

/* Closes an open file (fd < 0: there is none).  ok: whether all went well before; then the close counts, too. */
bool file_close(int fd, bool ok);
/* What is known of a file, or of the entries of a folder, is on the disk. */
bool file_sync(const char *path);
/* Writes all of it at an offset. */
bool file_put(int fd, const void *data, int64_t bytes, int64_t offset);
/* Writes path anew and syncs it; what was begun stays. */
bool file_write(const char *path, const void *data, int64_t bytes);

#endif
