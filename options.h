/* options.h: reads the command line of shardc by the table base/options.def.  --config FILE.json uses the same
 * names; an option on the command line replaces that of a file, and a list is replaced as a whole. */
#ifndef SHARDC_OPTIONS_H
#define SHARDC_OPTIONS_H

#include "base/options.h"

/* Reads argv and the files named by --config.  Reports every problem to d.  *usage: the errors are wrong use of the
 * command line (exit 2); otherwise they are bad values (exit 1).  Strings live in the arena. */
bool options_parse(int argc, char **argv, Options *o, Arena *a, Diag *d, bool *usage);
/* Reads options from one text, either `canonical` or with blanks instead of "="; messages begin with `where`.
 * Refuses options that do not change a program.  recorded: the text may have been written by another version, so
 * only options of the group "graph" are read.  False after messages. */
bool options_read(const char *text, const char *where, bool recorded, Options *o, Arena *a, Diag *d);
/* Sets the option `name` to what a policy file says at `at` ("policy.json: $.strategy"); text NULL: a flag that is not
 * given.  Refuses another value than a user has given.  False after a message. */
bool options_join(Options *o, const char *name, const char *text, const char *at, Arena *a, Diag *d);
void options_help(FILE *f);

/* Whether a list of NAME=VALUE has this name. */
bool options_list_has(const OptionList *list, const char *name);

/* Whether a reader of options ("frontend", the name of a pass, ..) runs; if not, *why says so: "by shardc plan". */
typedef bool ReaderRuns(const void *context, const char *reader, const char **why);
/* Warns of each given option that has no reader which runs. */
void options_warn_unread(const Options *o, ReaderRuns *runs, const void *context, Arena *a, Diag *d);

#endif
