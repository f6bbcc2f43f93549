/* base/unfinished.h: files and folders that are being made: what fails, or ends by a signal, leaves none of them.
 *
 *	int mark = unfinished_begin();
 *	const char *temp = unfinished_file(path);
 *	bool ok = file_write(temp, data, n) && unfinished_move(temp, path);
 *	unfinished_end(mark, ok);
 *
 * From the first begin to the last end SIGINT, SIGTERM and SIGHUP, those that are not ignored, remove all that is
 * listed before they end the process.  Of one thread.  errno tells of failures, and outlives unfinished_end. */
#ifndef SHARDC_UNFINISHED_H
#define SHARDC_UNFINISHED_H

#include "base/base.h"

/* They nest: what an inner one made stays listed until the outer one ends. */
int unfinished_begin(void);
/* The name beside path under which it is made, listed: FOLDER/.NAME.PID.  The folder is made: NULL where that fails. */
const char *unfinished_file(const char *path);
const char *unfinished_folder(const char *path);
/* Lists a path that is about to be made, behind the folder that it lies in. */
void unfinished_add(const char *path);
/* Renames and syncs the folder that path lies in; what was listed is listed under the new name. */
bool unfinished_move(const char *temp, const char *path);
/* ok: what was listed since `mark` stays; else it is removed, the last one first. */
void unfinished_end(int mark, bool ok);

#endif
