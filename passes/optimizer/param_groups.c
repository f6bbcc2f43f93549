/* passes/optimizer/param_groups.c: parses --param-group='REGEX:KEY=VALUE,..' and assigns parameters to groups.
 *
 * A parameter that several groups match belongs to the first of them.  Refuses other forms, keys that
 * base/groups.def lacks or that the optimizer does not read, values out of range, and groups that match no
 * parameter; all errors are reported at once. */
#include "base/near.h"
#include "base/pattern.h"
#include "passes/passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char option[] = "--param-group";

static bool parse_value(const char *text, const char *s, size_t n, const char *optimizer, ParamGroup *g, Arena *a,
	Diag *d)
{
	size_t name = MIN(strcspn(s, "="), n);
	GroupKey key = group_key_find(s, name);
	if (key == GROUP_KEYS) {
		diag_error(d, option, "\"%s\": \"%.*s\" is not a key; accepted: lr_scale, weight_decay, beta1, beta2, eps, "
			"momentum", text, (int)name, s);
		return false;
	}
	const char *info = group_key_info[key].name, *value = arena_strndup(a, s + MIN(name + 1, n), n - MIN(name + 1, n));
	char *end;
	double v = strtod(value, &end);
	if (!isnan(g->value[key])) {
		diag_error(d, option, "\"%s\": %s is given twice", text, info);
		return false;
	}
	g->value[key] = v;
	if (!group_key_used(key, optimizer)) {
		diag_error(d, option, "\"%s\": --optimizer=%s does not read %s (%s)", text,
			optimizer ? optimizer : OPTIMIZER_DEFAULT, info, optimizer_readers(a, key, " ", " "));
		return false;
	}
	if (name == n || !*value || *end || !group_value_right(key, v)) {
		diag_error(d, option, "\"%s\": %s takes %s, not \"%s\"", text, info, group_value_wanted(key), value);
		return false;
	}
	return true;
}

/* The regular expression may contain colons: the values follow the last one. */
static bool parse_group(const char *text, const char *optimizer, ParamGroup *g, Arena *a, Diag *d)
{
	const char *colon = strrchr(text, ':');
	bool ok = true;
	for (int k = 0; k < GROUP_KEYS; k++)
		g->value[k] = (double)NAN;
	if (!colon || colon == text || !colon[1]) {
		diag_error(d, option, "\"%s\" is not REGEX:KEY=VALUE,.., such as \"bias$:weight_decay=0\"", text);
		return false;
	}
	g->regex = arena_strndup(a, text, (size_t)(colon - text));
	for (const char *s = colon + 1; *s; s += *s == ',') {
		size_t n = strcspn(s, ",");
		ok = parse_value(text, s, n, optimizer, g, a, d) && ok;
		s += n;
	}
	return ok;
}

ParamGroup *param_groups_parse(const char *const *text, int n, const char *optimizer, Arena *a, Diag *d)
{
	ParamGroup *group = NEW_N(a, ParamGroup, n);
	bool ok = true;
	for (int i = 0; i < n; i++) {
		ok = parse_group(text[i], optimizer, &group[i], a, d) && ok;
		for (int k = 0; k < i && ok; k++)
			if (!strcmp(group[k].regex, group[i].regex)) {
				diag_error(d, option, "\"%s\": there is a group of this expression already", text[i]);
				ok = false;
			}
	}
	return ok ? group : NULL;
}

/* "w, b, ...; did you mean w?" */
static const char *trained_names(Symbol *const *trained, int n, const char *pattern, Arena *a)
{
	enum { SHOWN = 4 };
	const char **names = NEW_N(a, const char *, n), *text = "";
	for (int i = 0; i < n; i++)
		names[i] = trained[i]->name;
	for (int i = 0; i < n && i <= SHOWN; i++)
		text = arena_printf(a, "%s%s%s", text, i ? ", " : "", i < SHOWN ? names[i] : "...");
	return arena_printf(a, "%s%s", text, near_pattern(a, pattern, names, n));
}

static bool take_members(const ParamGroup *g, int number, Symbol *const *trained, int n, Arena *a, Diag *d)
{
	regex_t re;
	int matched = 0, taken = 0;
	if (!pattern_compile(&re, g->regex, option, d))
		return false;
	for (int i = 0; i < n; i++) {
		if (!param_matches(&re, trained[i]))
			continue;
		matched++;
		taken += !trained[i]->group;
		trained[i]->group = trained[i]->group ? trained[i]->group : number;
	}
	regfree(&re);
	if (taken)
		diag_info(d, option, "group %d, \"%s\": %d of %d trained parameters", number, g->regex, taken, n);
	else if (matched)
		diag_error(d, option, "\"%s\": what it matches is in groups before it", g->regex);
	else
		diag_error(d, option, "\"%s\" matches no parameter that is trained; there are: %s", g->regex,
			trained_names(trained, n, g->regex, a));
	return taken;
}

bool param_groups_assign(Symbol *const *trained, int n, const ParamGroup *group, int n_groups, Arena *a, Diag *d)
{
	bool ok = true;
	for (int i = 0; i < n; i++)
		trained[i]->group = 0;
	for (int g = 0; g < n_groups; g++)
		ok = take_members(&group[g], g + 1, trained, n, a, d) && ok;
	return ok;
}
