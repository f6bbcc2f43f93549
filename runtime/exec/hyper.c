/* runtime/exec/hyper.c: --hyper FILE.json: hyper-parameters that override the flags, read at the start and on SIGHUP.
 *
 * Refuses, all at once and each by its JSON path: keys that are neither in hyper.def nor parameter groups of the
 * program, values of another type or out of range, and numbers that the program has no use for.  Rank 0 reads the file;
 * the others get the numbers from it once all have agreed to (StepAsked.reload), so all switch at the same step.
 *
 * The contents of a file are one array of numbers, with NaN for keys that are not set; the hyper-parameters in force
 * are a function of the flags and that array. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "runtime/exec/exec.h"

typedef enum HyperKind { HYPER_NUMBER, HYPER_FRACTION, HYPER_COUNT, HYPER_PAIR, HYPER_SCHEDULE } HyperKind;
static const struct { const char *key; HyperKind kind; OptionId flag; } rows[HYPER_KEYS] = {
#define HYPER(key, kind, flag) {#key, HYPER_##kind, OPT_##flag},
#include "runtime/exec/hyper.def"
};
static const char *const schedules[] = {"constant", "linear", "cosine"};
static const char *const wants[] = {[HYPER_NUMBER] = "a number that is not negative",
	[HYPER_FRACTION] = "a number from 0 to below 1", [HYPER_COUNT] = "a whole number, at most 2^40",
	[HYPER_PAIR] = "two numbers", [HYPER_SCHEDULE] = "\"constant\", \"linear\" or \"cosine\""};

_Atomic int hyper_signal;

bool hyper_take_signal(void)
{
	return atomic_exchange(&hyper_signal, 0);
}

static int count_of(const RtModel *m)
{
	return HYPER_KEYS + m->n_groups * GROUP_KEYS;
}

/* ---- reading ---- */

typedef struct Reader { const Rt *rt; Arena *a; const char *file; double *value; Diag *d; bool ok; } Reader;

PRINTF_LIKE(3, 4) static void wrong(Reader *r, const char *path, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	diag_error(r->d, arena_printf(r->a, "%s: %s", r->file, path), "%s", arena_vprintf(r->a, fmt, ap));
	va_end(ap);
	r->ok = false;
}

static bool read_value(HyperKind kind, const json_t *v, double *out)
{
	double x = json_number_value(v);
	*out = x;
	switch (kind) {
	case HYPER_NUMBER: return json_is_number(v) && isfinite(x) && x >= 0;
	case HYPER_FRACTION: return json_is_number(v) && x >= 0 && x < 1;
	case HYPER_COUNT: return json_is_integer(v) && x >= 0 && x <= 0x1p40;
	case HYPER_SCHEDULE:
		for (int i = 0; i < COUNT_OF(schedules); i++)
			if (json_is_string(v) && !strcmp(json_string_value(v), schedules[i])) {
				*out = i;
				return true;
			}
	case HYPER_PAIR: break;
	}
	return false;
}

static void read_row(Reader *r, int i, const char *path, const json_t *v)
{
	HyperKind kind = rows[i].kind;
	const char *refused = optim_refuses(&r->rt->p->optim, r->rt->model, rows[i].flag, r->a);
	if (refused)
		wrong(r, path, "this program, compiled with --optimizer=%s, has no use for it: %s", r->rt->model->optimizer,
			refused);
	if (kind != HYPER_PAIR) {
		if (!read_value(kind, v, &r->value[i]))
			wrong(r, path, "expected %s", wants[kind]);
		return;
	}
	if (!json_is_array(v) || json_array_size(v) != 2) {
		wrong(r, path, "expected %s, as [0.9, 0.999]", wants[kind]);
		return;
	}
	for (int k = 0; k < 2; k++)
		if (!read_value(HYPER_FRACTION, json_array_get(v, (size_t)k), &r->value[i + k]))
			wrong(r, arena_printf(r->a, "%s[%d]", path, k), "expected %s", wants[HYPER_FRACTION]);
}

static void read_group(Reader *r, int g, const char *path, json_t *group)
{
	const char *key;
	json_t *v;
	if (!json_is_object(group)) {
		wrong(r, path, "expected an object");
		return;
	}
	json_object_foreach(group, key, v) {
		GroupKey k = group_key_find(key, strlen(key));
		const char *at = arena_printf(r->a, "%s.%s", path, key);
		double x = json_number_value(v);
		if (k == GROUP_KEYS)
			wrong(r, at, "not a key of a group: lr_scale, weight_decay, beta1, beta2, eps, momentum");
		else if (!group_key_used(k, r->rt->model->optimizer))
			wrong(r, at, "--optimizer=%s does not read it", r->rt->model->optimizer);
		else if (!json_is_number(v) || !group_value_right(k, x))
			wrong(r, at, "expected %s", group_value_wanted(k));
		else
			r->value[HYPER_KEYS + g * GROUP_KEYS + k] = x;
	}
}

static void read_groups(Reader *r, json_t *groups)
{
	const RtModel *m = r->rt->model;
	const char *key;
	json_t *v;
	if (!json_is_object(groups)) {
		wrong(r, "$.groups", "expected an object of groups by their regular expressions");
		return;
	}
	json_object_foreach(groups, key, v) {
		int g = 0;
		const char *path = arena_printf(r->a, "$.groups[\"%s\"]", key);
		while (g < m->n_groups && strcmp(m->groups[g].regex, key))
			g++;
		if (g < m->n_groups)
			read_group(r, g, path, v);
		else
			wrong(r, path, "the program has no such group%s; they are declared when compiling, by --param-group",
				m->n_groups ? " (--print-plan lists them)" : ", and no other");
	}
}

static const char *keys_text(Arena *a)
{
	const char *text = "";
	for (int i = 0; i < HYPER_KEYS; i++)
		if (i == 0 || rows[i].kind != HYPER_PAIR || rows[i - 1].kind != HYPER_PAIR)
			text = arena_printf(a, "%s%s, ", text, rows[i].key);
	return arena_printf(a, "%sgroups", text);
}

double *hyper_from(const Rt *rt, void *json, const char *file, Diag *d)
{
	Arena *a = rt->p->arena;
	int n = count_of(rt->model);
	Reader r = {rt, a, file, NEW_N(a, double, n), d, true};
	const char *key;
	json_t *v, *root = json;
	for (int i = 0; i < n; i++)
		r.value[i] = (double)NAN;
	if (!json_is_object(root)) {
		wrong(&r, "$", "expected an object of hyper-parameters");
		return NULL;
	}
	json_object_foreach(root, key, v) {
		int i = 0;
		const char *path = arena_printf(a, "$.%s", key);
		while (i < HYPER_KEYS && (strcmp(rows[i].key, key) || i == HYPER_betas_second))
			i++;
		if (!strcmp(key, "groups"))
			read_groups(&r, v);
		else if (i < HYPER_KEYS)
			read_row(&r, i, path, v);
		else
			wrong(&r, path, "not a hyper-parameter; accepted: %s", keys_text(a));
	}
	return r.ok ? r.value : NULL;
}

double *hyper_read(const Rt *rt, const char *path, Diag *d)
{
	json_t *root = json_read(path, rt->p->arena, d);
	double *value = root ? hyper_from(rt, root, path, d) : NULL;
	json_decref(root);
	return value;
}

void hyper_drop(double *value, const RtOptions *o, const char *where, Diag *d)
{
	for (int i = 0; i < HYPER_KEYS; i++) {
		if (isnan(value[i]) || !o->text[rows[i].flag])
			continue;
		if (i != HYPER_betas_second)
			diag_note(d, where, "--%s is given: %s, from the file of --hyper then, counts no more",
				option_info[rows[i].flag].flag, rows[i].key);
		value[i] = (double)NAN;
	}
}

const char *hyper_key(const double *value, OptionId flag)
{
	for (int i = 0; value && i < HYPER_KEYS; i++)
		if (rows[i].flag == flag && !isnan(value[i]))
			return rows[i].key;
	return NULL;
}

void hyper_forget(double *value, OptionId flag)
{
	for (int i = 0; i < HYPER_KEYS; i++)
		if (rows[i].flag == flag)
			value[i] = (double)NAN;
}

/* ---- from rank 0 to all ---- */

bool hyper_share(Rt *rt, double *mine)
{
	struct RtPrivate *p = rt->p;
	int n = count_of(rt->model);
	if (!p->control) {
		p->hyper = mine ? mine : p->hyper;
		return mine;
	}
	ArenaMark mark = arena_mark(p->arena);
	double *sent = NEW_N(p->arena, double, n + 1), *all = NEW_N(p->arena, double, (n + 1) * p->world.size);
	sent[0] = mine != NULL;
	if (mine)
		memcpy(sent + 1, mine, (size_t)n * sizeof(*sent));
	bool ok = control_all_gather(p->control, sent, (int64_t)sizeof(*sent) * (n + 1), all) && all[0] == 1;
	double *got = ok ? memcpy(sent + 1, all + 1, (size_t)n * sizeof(*sent)) : NULL;
	if (ok)
		p->hyper = got;
	else
		arena_rewind(p->arena, mark);
	return ok;
}

/* ---- writing ---- */

/* The number with the fewest digits that read back as the same number. */
static const char *number_text(Arena *a, double v)
{
	const char *text = arena_printf(a, "%.15g", v);
	return strtod(text, NULL) == v ? text : arena_printf(a, "%.17g", v);
}

static void put_number(Buf *b, Arena *a, const char **comma, const char *key, double v)
{
	buf_printf(b, "%s\"%s\": %s", *comma, key, number_text(a, v));
	*comma = ", ";
}

static void put_groups(Buf *b, Arena *a, const RtModel *m, const double *value, const char *comma)
{
	bool open = false;
	for (int g = 0; g < m->n_groups; g++, value += GROUP_KEYS) {
		const char *inside = "";
		for (int k = 0; k < GROUP_KEYS; k++) {
			if (isnan(value[k]))
				continue;
			if (!*inside)
				buf_printf(b, "%s\"%s\": {", open ? ", " : arena_printf(a, "%s\"groups\": {", comma),
					str_escape(a, ESCAPE_JSON, m->groups[g].regex));
			open = true;
			put_number(b, a, &inside, group_key_info[k].name, value[k]);
		}
		if (*inside)
			buf_printf(b, "}");
	}
	buf_printf(b, open ? "}" : "");
}

void hyper_put(Buf *b, Arena *a, const RtModel *m, const double *value)
{
	const char *comma = "";
	buf_printf(b, "{");
	for (int i = 0; i < HYPER_KEYS; i++) {
		if (isnan(value[i]) || i == HYPER_betas_second)
			continue;
		if (i == HYPER_lr_schedule)
			buf_printf(b, "%s\"lr_schedule\": \"%s\"", comma, schedules[(int)value[i]]);
		else if (i == HYPER_betas)
			buf_printf(b, "%s\"betas\": [%s, %s]", comma, number_text(a, value[i]), number_text(a, value[i + 1]));
		else
			put_number(b, a, &comma, rows[i].key, value[i]);
		comma = ", ";
	}
	put_groups(b, a, m, value + HYPER_KEYS, comma);
	buf_printf(b, "}");
}
