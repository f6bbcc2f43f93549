/* runtime/comm/object.h: shared objects that a training program opens when it needs them. */
#ifndef SHARDC_RUNTIME_OBJECT_H
#define SHARDC_RUNTIME_OBJECT_H

#include "base/base.h"

/* What the message says where it is missing: "NEEDED_BY needs FILE, which is in none of ...; REMEDY, or name its
 * folder in SHARDRT_LIB; INSTEAD". */
typedef struct ObjectWanted { const char *file, *needed_by, *remedy, *instead; } ObjectWanted;
/* NULL after a message; *path: where it is. */
void *object_open(const ObjectWanted *wanted, const char **path, Arena *a, const char *where, Diag *d);
const void *object_symbol(void *object, const char *name); /* NULL: there is none */

#endif
