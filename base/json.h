/* base/json.h: reads JSON files that a user writes: hyper-parameters, policies of units, options. */
#ifndef SHARDC_JSON_H
#define SHARDC_JSON_H

#include <jansson.h>

#include "base/base.h"

/* Reads a regular file of JSON in which no object has a key twice.  NULL after an error, which has line and column if
 * the text is not JSON.  The caller must json_decref the result; a holds the text that was read. */
json_t *json_read(const char *path, Arena *a, Diag *d);
/* The same of what an option was given: a path or, where it begins with a brace, the text itself, of which messages
 * name the option. */
json_t *json_read_given(const char *given, const char *option, Arena *a, Diag *d);

#endif
