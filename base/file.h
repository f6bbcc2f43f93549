/* base/file.h: files as they are opened, mapped and synced; errno tells what failed first, through a close.
 *
 * Whatever a user names as a file is opened by file_open: a pipe, a socket or a device would let a program wait for
 * ever, or never end. */
#ifndef SHARDC_FILE_H
#define SHARDC_FILE_H

#include <sys/stat.h>

#include "base/base.h"

/* Opens a regular file to read; st: what it is.  -1, and *why in words, where it cannot be opened or is none. */
int file_open(const char *path, struct stat *st, const char **why);
/* A regular file, mapped to be read; at: NULL of an empty one.  False, and *why says so in words. */
typedef struct FileView { const void *at; int64_t bytes; } FileView;
bool file_view(FileView *v, const char *path, const char **why);
void file_view_close(FileView *v);
/* Whether the file that `name` leads to below `folder` ("": the current one) lies in that folder: neither a link nor
 * ".." leads out of it.  A name that leads nowhere does not leave. */
bool file_is_beneath(const char *folder, const char *name);

/* Closes an open file (fd < 0: there is none).  ok: whether all went well before; then the close counts, too. */
bool file_close(int fd, bool ok);
/* Closes a file of stdio (NULL: it was not opened), and whether all that was written is out. */
bool file_flush_close(FILE *f);
/* Whether all that was printed on standard output is out; else false after an error to d. */
bool file_flush_stdout(Diag *d);
/* What is known of a file, or of the entries of a folder, is on the disk. */
bool file_sync(const char *path);
/* Writes all of it at an offset. */
bool file_put(int fd, const void *data, int64_t bytes, int64_t offset);
/* Writes path anew and syncs it; what was begun stays. */
bool file_write(const char *path, const void *data, int64_t bytes);

#endif
