/* ckpt/states.c: parses the names of optimizer states, and finds the counts of updates that PyTorch keeps beside
 * them. */
#include <stdlib.h>
#include <string.h>

#include "base/optimizer.h"
#include "ckpt/states.h"

StateName state_name(const char *name, Arena *a)
{
	const char *dot = strrchr(name, '.'), *digits = name + strlen("state.");
	if (!dot || dot == name || !dot[1])
		return (StateName){0};
	size_t n = strncmp(name, "state.", strlen("state.")) ? 0 : strspn(digits, "0123456789");
	if (n && n <= 9 && digits + n == dot && (n == 1 || *digits != '0'))
		return (StateName){STATE_NUMBERED, strtoll(digits, NULL, 10), NULL, dot + 1};
	return (StateName){STATE_NAMED, 0, arena_strndup(a, name, (size_t)(dot - name)), dot + 1};
}

bool state_is_counted(const char *state)
{
	bool counted = false;
	for (int i = 0; i < OPTIMIZER_COUNT; i++)
		counted = counted || (optimizer_info[i].counted && !strcmp(optimizer_info[i].counted, state));
	return counted;
}

int64_t state_updates(const json_t *root, const char *param)
{
	const json_t *updates = json_object_get(root, "updates");
	return json_is_integer(updates) ? json_integer_value(updates) -
		json_integer_value(json_object_get(json_object_get(root, "began"), param)) : -1;
}
