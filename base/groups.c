/* base/groups.c: the keys of parameter groups (groups.def): names, ranges, and whether an optimizer reads them. */
#include "base/groups.h"

#include <math.h>
#include <string.h>

#include "base/optimizer.h"

const GroupKeyInfo group_key_info[GROUP_KEYS] = {
#define GROUP_KEY(key, below) [GROUP_##key] = {#key, (double)below},
#include "base/groups.def"
};

bool group_key_used(GroupKey key, const char *optimizer)
{
	OptimizerChoice choice;
	return optimizer_read(optimizer, &choice) && optimizer_reads(choice.info, key);
}

bool group_value_right(GroupKey key, double v)
{
	return isfinite(v) && v >= 0 && v < group_key_info[key].below;
}

const char *group_value_wanted(GroupKey key)
{
	return isinf(group_key_info[key].below) ? "a number that is not negative" : "a number from 0 to below 1";
}

GroupKey group_key_find(const char *name, size_t n)
{
	int k = 0;
	while (k < GROUP_KEYS && (strlen(group_key_info[k].name) != n || memcmp(group_key_info[k].name, name, n)))
		k++;
	return (GroupKey)k;
}
