/* base/json.h: JSON files that a user writes: schedules of numbers, policies, options. */
#ifndef SHARDC_JSON_H
#define SHARDC_JSON_H

#include <jansson.h>

#include "base/base.h"

/* A regular file of JSON in which no key of an object is there twice; NULL after an error, with line and column of text
 * that is no JSON.  The caller's to give back (json_decref); a holds what is read. */
json_t *json_read(const char *path, Arena *a, Diag *d);

#endif
