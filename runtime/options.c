/* runtime/options.c: flags -> RtOptions, from the table options.def.
 *
 * Accepts --name=value and --name value.  Refuses unknown flags, and suggests the one that was meant; values that do
 * not parse; and flags given twice, except lists and flags without a value.
 *
 * The kind of a row names the type of its field and the function that reads it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "base/optimizer.h"
#include "runtime/options.h"

static const char *const flag_names[OPT_COUNT] = {
#define OPT(field, kind, flag, ...) [OPT_##field] = "--" flag,
#include "runtime/options.def"
};

/* The order of --help: a group's title, or a flag. */
static const struct { const char *title; OptionId id; } help_rows[] = {
#define GROUP(title) {title, OPT_COUNT},
#define OPT(field, ...) {NULL, OPT_##field},
#include "runtime/options.def"
};

const OptionInfo option_info[OPT_COUNT] = {
#define OPT(field, kind, flag, argument, saved, help) [OPT_##field] = {flag, argument, help, saved},
#include "runtime/options.def"
};

/* Readers set the field; false = the text is not of this kind. */
typedef bool ReadFn(void *field, const char *text, Arena *a);
typedef struct Kind {
	ReadFn *read;
	const char *wants;
	int n_values;
	bool repeats;        /* a list, or a flag that means the same when it is given twice */
} Kind;

static bool read_TEXT(void *field, const char *text, Arena *a)
{
	(void)a;
	*(const char **)field = text;
	return *text;
}

static bool read_LIST(void *field, const char *text, Arena *a)
{
	TextList *list = field;
	vec_push(a, list, text);
	return *text;
}

static bool read_COUNT(void *field, const char *text, Arena *a)
{
	(void)a;
	return str_to_size(text, false, field) && *(int64_t *)field <= INT64_C(1) << 40;
}

static bool read_SEED(void *field, const char *text, Arena *a)
{
	(void)a;
	return str_to_size(text, false, field);
}

static bool read_POSITIVE(void *field, const char *text, Arena *a)
{
	(void)a;
	char *end;
	double v = strtod(text, &end);
	*(double *)field = v;
	return *text && !*end && isfinite(v) && v >= 0;
}

static bool read_FRACTION(void *field, const char *text, Arena *a)
{
	return read_POSITIVE(field, text, a) && *(double *)field < 1;
}

static bool read_BETAS(void *field, const char *text, Arena *a)
{
	OptionBETAS *b = field;
	const char *comma = strchr(text, ',');
	return comma && read_FRACTION(&b->beta1, arena_strndup(a, text, (size_t)(comma - text)), a) &&
		read_FRACTION(&b->beta2, comma + 1, a);
}

/* "3:7": from 1, none of them after the other. */
static bool read_RANGE(void *field, const char *text, Arena *a)
{
	OptionRANGE *r = field;
	const char *colon = strchr(text, ':');
	return colon && read_COUNT(&r->first, arena_strndup(a, text, (size_t)(colon - text)), a) &&
		read_COUNT(&r->last, colon + 1, a) && r->first >= 1 && r->first <= r->last;
}

static bool read_word(int *out, const char *text, const char *const *words, int n)
{
	for (*out = 0; *out < n; ++*out)
		if (!strcmp(text, words[*out]))
			return true;
	return false;
}

static bool read_SCHEDULE(void *field, const char *text, Arena *a)
{
	(void)a;
	static const char *const words[] = {"constant", "linear", "cosine"};
	int v;
	bool ok = read_word(&v, text, words, COUNT_OF(words));
	*(Schedule *)field = ok ? (Schedule)v : SCHEDULE_CONSTANT;
	return ok;
}

static bool read_ON_NAN(void *field, const char *text, Arena *a)
{
	(void)a;
	static const char *const words[] = {"stop", "skip"};
	int v;
	bool ok = read_word(&v, text, words, COUNT_OF(words));
	*(OnNan *)field = ok ? (OnNan)v : ON_NAN_STOP;
	return ok;
}

static bool read_SAVE_KIND(void *field, const char *text, Arena *a)
{
	(void)a;
	int v;
	bool ok = read_word(&v, text, checkpoint_kinds, CHECKPOINT_KINDS);
	*(CheckpointKind *)field = ok ? (CheckpointKind)v : CHECKPOINT_FULL;
	return ok;
}

static bool read_FLAG(void *field, const char *text, Arena *a)
{
	(void)a;
	*(bool *)field = true;
	return !*text;
}

/* It is called twice, once for each of the two values. */
static bool read_PAIR(void *field, const char *text, Arena *a)
{
	(void)a;
	OptionPAIR *p = field;
	*(p->in ? &p->out : &p->in) = text;
	return *text;
}

static const Kind kind_TEXT = {read_TEXT, "a value", 1, false};
static const Kind kind_LIST = {read_LIST, "a value", 1, true};
static const Kind kind_COUNT = {read_COUNT, "a whole number, at most 2^40, such as 1000, 10K or 1e6", 1, false};
static const Kind kind_SEED = {read_SEED, "a whole number below 2^63", 1, false};
static const Kind kind_POSITIVE = {read_POSITIVE, "a number that is not negative", 1, false};
static const Kind kind_FRACTION = {read_FRACTION, "a number from 0 to below 1", 1, false};
static const Kind kind_BETAS = {read_BETAS, "two numbers from 0 to below 1, as 0.9,0.999", 1, false};
static const Kind kind_RANGE = {read_RANGE, "two numbers from 1, the first not above the second, as 3:7", 1, false};
static const Kind kind_SCHEDULE = {read_SCHEDULE, "constant, linear or cosine", 1, false};
static const Kind kind_ON_NAN = {read_ON_NAN, "stop or skip", 1, false};
static const Kind kind_SAVE_KIND = {read_SAVE_KIND, "full, sharded or local", 1, false};
static const Kind kind_FLAG = {read_FLAG, "no value", 0, true};
static const Kind kind_PAIR = {read_PAIR, "two folders", 2, false};

static const struct { const Kind *kind; size_t field; } readers[OPT_COUNT] = {
#define OPT(field, kind, ...) [OPT_##field] = {&kind_##kind, offsetof(RtOptions, field)},
#include "runtime/options.def"
};

/* The choices of a count that takes only some numbers, "0|1"; NULL: it takes any number. */
static const char *counts_of(OptionId id)
{
	const char *argument = option_info[id].argument;
	return readers[id].kind->read == read_COUNT && strchr(argument, '|') ? argument : NULL;
}

static bool is_one_of(const char *text, const char *choices)
{
	size_t n = strlen(text);
	for (const char *at = choices; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
		if (strcspn(at, "|") == n && !strncmp(at, text, n))
			return true;
	return false;
}

static const char *wants_of(OptionId id)
{
	const char *counts = counts_of(id);
	return counts ? counts : readers[id].kind->wants;
}

bool options_set(RtOptions *o, OptionId id, const char *text, const char *where, Diag *d)
{
	const Kind *kind = readers[id].kind;
	const char *counts = counts_of(id);
	o->text[id] = text;
	if (kind->read((char *)o + readers[id].field, text, o->arena) && (!counts || is_one_of(text, counts)))
		return true;
	const char *choices = strchr(option_info[id].argument, '|') ? option_info[id].argument : NULL;
	diag_error(d, where, "--%s takes %s, not \"%s\"%s", option_info[id].flag, wants_of(id), text,
		choices ? near_choice(o->arena, option_info[id].flag, text, choices) : "");
	return false;
}

/* OPT_COUNT after a message. */
static int find_flag(const RtOptions *o, const char *name, Diag *d)
{
	int id = 0;
	while (id < OPT_COUNT && strcmp(option_info[id].flag, name))
		id++;
	if (id == OPT_COUNT)
		diag_error(d, o->program, "unknown flag --%s%s (see --help)", name,
			near_hint(o->arena, "train", arena_printf(o->arena, "--%s", name), flag_names, OPT_COUNT));
	return id;
}

static bool check_once(RtOptions *o, OptionId id, const char *value, Diag *d)
{
	bool again = o->given[id] && !readers[id].kind->repeats;
	if (again)
		diag_error(d, o->program, "--%s is given twice, \"%s\" and \"%s\": it is no list, give it once",
			option_info[id].flag, o->text[id], value);
	o->given[id] = true;
	return !again;
}

/* One argument at argv[*i] and the values it takes; *i ends at the last one read. */
static bool parse_one(RtOptions *o, int argc, char **argv, int *i, Diag *d)
{
	const char *arg = strcmp(argv[*i], "-h") ? argv[*i] : "--help";
	if (strncmp(arg, "--", 2) || !arg[2]) {
		diag_error(d, o->program, "\"%s\" is not a flag%s (see --help)", arg,
			near_hint(o->arena, "train", arg, flag_names, OPT_COUNT));
		return false;
	}
	const char *equals = strchr(arg, '=');
	const char *name =
		arena_strndup(o->arena, arg + 2, (size_t)(equals ? equals - arg - 2 : (long)strlen(arg) - 2));
	const char *value = equals ? equals + 1 : NULL;
	int id = find_flag(o, name, d);
	const char *next = value ? value : *i + 1 < argc ? argv[*i + 1] : "";
	if (id == OPT_COUNT) {
		*i += !value && *next && strncmp(next, "--", 2); /* skips the text that seems to be its value */
		return false;
	}
	int n = readers[id].kind->n_values;
	bool once = (n > 0 && !value && *i + 1 == argc) || check_once(o, (OptionId)id, next, d);
	if (n == 0)
		return options_set(o, (OptionId)id, value ? value : "", o->program, d) && once;
	for (int k = 0; k < n; k++, value = NULL) {
		if (!value && ++*i == argc) {
			diag_error(d, o->program, "--%s takes %s", name, wants_of((OptionId)id));
			return false;
		}
		if (once && !options_set(o, (OptionId)id, value ? value : argv[*i], o->program, d))
			return false;
	}
	return once;
}

bool options_parse(RtOptions *o, Arena *a, int argc, char **argv, Diag *d)
{
	memset(o, 0, sizeof(*o));
	o->arena = a;
	const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
	o->program = argc < 1 ? "train" : slash ? slash + 1 : argv[0];
	bool ok = true;
	for (int i = 1; i < argc; i++)
		ok &= parse_one(o, argc, argv, &i, d);
	return ok;
}

/* The row's text, followed by the defaults of base/optimizers.def for flags that have them. */
static const char *help_of(OptionId id, Arena *a)
{
	const char *text = option_info[id].help;
	switch (id) {
	case OPT_betas: return arena_printf(a, "%s %s", text, optimizer_defaults(a, GROUP_beta1, GROUP_beta2));
	case OPT_eps: return arena_printf(a, "%s %s", text, optimizer_defaults(a, GROUP_eps, GROUP_eps));
	case OPT_weight_decay: return arena_printf(a, "%s %s, else 0", text, optimizer_decays(a));
	default: return text;
	}
}

void options_print_help(const RtOptions *o, const char *const *note, FILE *out)
{
	fprintf(out, "usage: %s --data NAME=FILE.npy ... | --tokens FILE  [flags]\n",
		str_escape(o->arena, ESCAPE_TERMINAL, o->program));
	for (int i = 0; i < COUNT_OF(help_rows); i++) {
		if (help_rows[i].title) {
			fprintf(out, "\n%s:\n", help_rows[i].title);
			continue;
		}
		OptionId id = help_rows[i].id;
		const OptionInfo *info = &option_info[id];
		const char *list = readers[id].kind->read == read_LIST ? " .." : "";
		char left[64];
		snprintf(left, sizeof(left), "--%s%s%s%s", info->flag, *info->argument ? " " : "", info->argument, list);
		fprintf(out, "  %-28s  %s%s", left, strlen(left) > 28 ? "\n                                " : "",
			help_of(id, o->arena));
		fprintf(out, note[id] ? " [%s]\n" : "\n", note[id]);
	}
	fprintf(out, "\nFlags with .. may be repeated, others are given once.  [..]: the default, or the reason why it is "
		"refused, of this\nprogram.  N may be 10K, 1e6, 1.5M: K, M, G, T are powers of 1000.\n"
		"exit: 0 done, 1 wrong input, 2 wrong usage, 3 the run failed\n");
}
