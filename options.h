/* options.h: reads the command line of shardc by the table base/options.def.  --config FILE.json holds the same names;
 * an option on the command line replaces that of a file, a list as a whole. */
#ifndef SHARDC_OPTIONS_H
#define SHARDC_OPTIONS_H

#include "base/options.h"

/* Reads argv (and the files named by --config).  Reports every problem to d: errors in *usage are wrong
 * use of the command line (exit 2), others are bad values (exit 1).  Strings live in the arena. */
bool options_parse(int argc, char **argv, Options *o, Arena *a, Diag *d, bool *usage);
/* Options in one text, as `canonical` is, or with blanks for "=": `where` begins messages.  Refused are options that do
 * not change a program; of a recorded text, which another version may have written, only those of the group "graph" are
 * read.  False after messages. */
bool options_read(const char *text, const char *where, bool recorded, Options *o, Arena *a, Diag *d);
void options_help(FILE *f);

/* Whether what reads an option ("frontend", the name of a pass, ..) runs; where not, *why: "by shardc plan". */
typedef bool ReaderRuns(const void *context, const char *reader, const char **why);
/* Warns of each given option none of whose readers runs. */
void options_warn_unread(const Options *o, ReaderRuns *runs, const void *context, Arena *a, Diag *d);

#endif
