/* base/unfinished.h: files and folders that are being made: none is left if writing fails or a signal ends the process.
 *
 *	int mark = unfinished_begin();
 *	const char *temp = unfinished_file(path);
 *	bool ok = file_write(temp, data, n) && unfinished_move(temp, path);
 *	unfinished_end(mark, ok);
 *
 * From the first begin to the last end, the handlers of SIGINT, SIGTERM and SIGHUP (of those that are not ignored)
 * remove everything that is listed before the process ends.  To be used by one thread.  After failures errno says why;
 * unfinished_end keeps it. */
#ifndef SHARDC_UNFINISHED_H
#define SHARDC_UNFINISHED_H

#include "base/base.h"

/* Calls may nest: what an inner pair listed stays listed until the outermost end. */
int unfinished_begin(void);
/* unfinished_file returns and lists the name beside path under which the file is to be made: FOLDER/.NAME.PID.
 * unfinished_folder also makes a folder of that name; NULL if that fails. */
const char *unfinished_file(const char *path);
const char *unfinished_folder(const char *path);
/* Makes the file `path` of what `put` writes of `context`; false after a message, and what was there stays. */
typedef void UnfinishedPut(FILE *f, const void *context);
bool unfinished_write(const char *path, UnfinishedPut *put, const void *context, Diag *d);
/* Lists a path that is about to be made; a folder must be listed before paths in it. */
void unfinished_add(const char *path);
/* Renames temp to path and syncs the folder of path; what was listed is listed under the new name. */
bool unfinished_move(const char *temp, const char *path);
/* ok: keeps what was listed since `mark`; else removes it, the last first. */
void unfinished_end(int mark, bool ok);

#endif
