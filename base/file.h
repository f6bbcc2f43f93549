/* base/file.h: opens, maps, writes and syncs files.  After a failure errno says what failed first, even after a close.
 *
 * Every file that a user names for reading is opened by file_open: opening a pipe, a socket or a device could make the
 * program wait for ever, or read without end. */
#ifndef SHARDC_FILE_H
#define SHARDC_FILE_H

#include <sys/stat.h>

#include "base/base.h"

/* Opens a regular file for reading; *st is set.  -1 if it cannot be opened or is not a regular file; *why says so in
 * words. */
int file_open(const char *path, struct stat *st, const char **why);
/* Maps a regular file for reading; at is NULL for an empty one.  False on failure; *why says so in words. */
typedef struct FileView { const void *at; int64_t bytes; } FileView;
bool file_view(FileView *v, const char *path, const char **why);
void file_view_close(FileView *v);
/* Whether the file that `name` leads to, from `folder` ("": the current one), lies inside that folder: neither a link
 * nor ".." leads out of it.  True of a name that leads nowhere. */
bool file_is_beneath(const char *folder, const char *name);

/* Closes a file (fd < 0: none is open).  ok: whether all went well so far; if it is set, the result is that of the
 * close. */
bool file_close(int fd, bool ok);
/* Flushes and closes a stdio file (NULL: none is open); whether all that was written to it has reached the system. */
bool file_flush_close(FILE *f);
/* Flushes standard output; false after an error to d if something could not be written. */
bool file_flush_stdout(Diag *d);
/* Syncs a file, or the entries of a folder, to the disk. */
bool file_sync(const char *path);
/* Writes all bytes at the offset; false: errno says why. */
bool file_put(int fd, const void *data, int64_t bytes, int64_t offset);
/* Writes path anew and syncs it.  On failure the unfinished file is left. */
bool file_write(const char *path, const void *data, int64_t bytes);

#endif
