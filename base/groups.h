/* base/groups.h: parameter groups: hyper-parameters of the parameters that a regular expression names.  The
 * compiler decides who is in which (--param-group); its program, and its files of hyper-parameters, have values. */
#ifndef SHARDC_GROUPS_H
#define SHARDC_GROUPS_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum GroupKey {
#define GROUP_KEY(key, ...) GROUP_##key,
#include "base/groups.def"
	GROUP_KEYS
} GroupKey;

typedef struct ParamGroup {
	const char *regex;          /* as given: the group's name */
	double value[GROUP_KEYS];   /* NaN: as in all groups */
} ParamGroup;

typedef struct GroupKeyInfo { const char *name; double below; const char *optimizers; } GroupKeyInfo;
extern const GroupKeyInfo group_key_info[GROUP_KEYS];

/* optimizer: as in --optimizer; NULL = adamw. */
bool group_key_used(GroupKey key, const char *optimizer);
bool group_value_right(GroupKey key, double v);
/* "a number from 0 to below 1" */
const char *group_value_wanted(GroupKey key);
/* The key of this name; GROUP_KEYS: there is none. */
GroupKey group_key_find(const char *name, size_t n);

#ifdef __cplusplus
}
#endif

#endif
