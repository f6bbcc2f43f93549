/* base/groups.h: parameter groups: hyper-parameters for the parameters whose names match a regular expression.  The
 * compiler decides which group a parameter is in (--param-group); the values come from the compiled program or from its
 * file of hyper-parameters. */
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
	const char *regex;          /* as given; also the group's name */
	double value[GROUP_KEYS];   /* NaN: the value of parameters without a group */
} ParamGroup;

typedef struct GroupKeyInfo { const char *name; double below; } GroupKeyInfo;
extern const GroupKeyInfo group_key_info[GROUP_KEYS];

/* Whether the optimizer reads this key.  optimizer: as in --optimizer; NULL = adamw. */
bool group_key_used(GroupKey key, const char *optimizer);
bool group_value_right(GroupKey key, double v);
/* The range of a key in words: "a number from 0 to below 1". */
const char *group_value_wanted(GroupKey key);
/* Finds a key by name; GROUP_KEYS: there is no such key. */
GroupKey group_key_find(const char *name, size_t n);

#ifdef __cplusplus
}
#endif

#endif
