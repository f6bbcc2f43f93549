/* passes/dumps.h: the files of --dump-ir=DIR: DIR/NN-PASS.ir, and DIR/NN-PASS.VARIANT.ir of other micro-batches. */
#ifndef SHARDC_DUMPS_H
#define SHARDC_DUMPS_H

#include "base/base.h"

typedef struct Dumps {
	const char *dir;
	const char *input; /* the file that this run reads, which stays as it is; NULL: none that a dump could replace */
	Arena *a;
	int passes;   /* of the list that is run */
	Map *written; /* names of files that this run wrote */
} Dumps;

/* Makes the folder if there is none.  False after a message. */
bool dumps_open(Dumps *w, const char *dir, const char *input, int passes, Arena *a, Diag *d);
/* Writes the text of the module after pass `number` (from 1; 0: before the first).  variant: NULL = its name is not in
 * the file's.  It replaces a dump of an earlier run.  False after a message, also where the name is taken by the input
 * or by what is no dump. */
bool dumps_write(Dumps *w, int number, const char *pass, const char *variant, const char *text, Diag *d);
/* Removes dumps of earlier runs that this one did not write, except its input: regular files, not links, whose name is
 * a dump's and whose first line is one that dumps_write wrote. */
void dumps_tidy(const Dumps *w, Diag *d);

#endif
