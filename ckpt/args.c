/* ckpt/args.c: parses the options of a command of shardc ckpt.
 *
 * Each row of the command's table names an option and the variable that it sets.  --help prints the same rows, so an
 * option cannot be accepted and then ignored. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/near.h"
#include "ckpt/ckpt.h"

typedef struct Reader { const char *command; const CkptOption *option; int n; Arena *a; Diag *d; } Reader;

static void help(const Reader *r)
{
	const CkptCommand *c = ckpt_command(r->command);
	printf("usage: shardc ckpt %s %s%s\n%s\n%s", c->name, c->arguments, r->n ? " [options]" : "", c->help,
		r->n ? "\n" : "");
	for (int i = 0; i < r->n; i++) {
		const CkptOption *o = &r->option[i];
		bool is_long = o->name[1] == '-';
		int n = printf("  %s%s%s", o->name, o->kind == CKPT_FLAG ? "" : is_long ? "=" : " ",
			o->kind == CKPT_FLAG ? "" : o->values);
		printf("%s%*s%s\n", n < 34 ? "" : "\n", n < 34 ? 34 - n : 34, "", o->help);
	}
}

static bool set(const Reader *r, const CkptOption *o, const char *value)
{
	const char *where = arena_printf(r->a, "shardc ckpt %s: %s", r->command, o->name);
	char *end;
	double number;
	switch (o->kind) {
	case CKPT_FLAG:
		*(bool *)o->to = true;
		return true;
	case CKPT_CHOICE:
		if (!str_is_choice(o->values, value)) {
			diag_error(r->d, where, "\"%s\" is refused; accepted: %s%s", value, o->values,
				near_choice(r->a, o->name, value, o->values));
			return false;
		}
		*(const char **)o->to = value;
		return true;
	case CKPT_TEXT:
		*(const char **)o->to = value;
		if (!*value)
			diag_error(r->d, where, "wants a value");
		return *value;
	case CKPT_COUNT:
		if (str_to_count(value, false, o->to))
			return true;
		diag_error(r->d, where, "\"%s\" is not a positive number", value);
		return false;
	case CKPT_NUMBER:
		number = strtod(value, &end);
		if (end == value || *end || !isfinite(number) || number < 0)
			diag_error(r->d, where, "\"%s\" is not a number that is at least 0", value);
		else
			*(double *)o->to = number;
		return end != value && !*end && isfinite(number) && number >= 0;
	}
	return false;
}

static const CkptOption *find(const Reader *r, const char *text, size_t n)
{
	for (int i = 0; i < r->n; i++)
		if (strlen(r->option[i].name) == n && !strncmp(r->option[i].name, text, n))
			return &r->option[i];
	return NULL;
}

static const char *hint(const Reader *r, const char *text)
{
	const char **known = NEW_N(r->a, const char *, r->n);
	for (int i = 0; i < r->n; i++)
		known[i] = r->option[i].name;
	return near_hint(r->a, "ckpt", text, known, r->n);
}

/* Stores the option at *i and advances *i past a value in an argument of its own; *given has a bit for each option
 * seen. */
static bool take(const Reader *r, const CkptCall *call, int *i, uint64_t *given)
{
	int argc = call->argc;
	char **argv = call->argv;
	const char *text = argv[*i], *value = "";
	size_t n = strcspn(text, "=");
	const CkptOption *o = find(r, text, n);
	const char *where = arena_printf(r->a, "shardc ckpt %s: %s", r->command, text);
	if (!o)
		diag_error(r->d, where, "unknown option%s (see shardc ckpt %s --help)", hint(r, arena_strndup(r->a, text, n)),
			r->command);
	else if (o->kind == CKPT_FLAG && text[n])
		diag_error(r->d, where, "takes no value");
	else if (o->kind != CKPT_FLAG && !text[n] && *i + 1 == argc)
		diag_error(r->d, where, "wants a value");
	if (!o || (o->kind == CKPT_FLAG ? text[n] : !text[n] && *i + 1 == argc))
		return false;
	if (o->kind != CKPT_FLAG)
		value = text[n] ? text + n + 1 : argv[++*i];
	uint64_t bit = UINT64_C(1) << (o - r->option);
	if (*given & bit && o->kind != CKPT_FLAG) {
		diag_error(r->d, arena_printf(r->a, "shardc ckpt %s: %s", r->command, o->name), "is given twice, the second "
			"time as \"%s\"", value);
		return false;
	}
	*given |= bit;
	return set(r, o, value);
}

static bool check_given(const Reader *r, const CkptArgs *args, int least, int most, uint64_t given)
{
	bool ok = args->n >= least && (!most || args->n <= most);
	const char *where = arena_printf(r->a, "shardc ckpt %s", r->command);
	if (!ok && least == most)
		diag_error(r->d, where, "%d argument(s) were expected, not %d (see shardc ckpt %s --help)", least, args->n,
			r->command);
	else if (!ok)
		diag_error(r->d, where, "at least %d argument(s) were expected (see shardc ckpt %s --help)", least, r->command);
	for (int i = 0; i < r->n; i++)
		if (r->option[i].wanted && !(given >> i & 1)) {
			diag_error(r->d, where, "wants %s %s: %s", r->option[i].name, r->option[i].values, r->option[i].help);
			ok = false;
		}
	return ok;
}

bool ckpt_parse(const CkptCall *call, const CkptOption *options, int n, int least, int most, Arena *a, CkptArgs *args)
{
	int argc = call->argc;
	char **argv = call->argv;
	Reader r = {argv[0], options, n, a, call->d};
	uint64_t given = 0;
	bool ok = true;
	*args = (CkptArgs){.at = NEW_N(a, const char *, argc)};
	for (int i = 1; i < argc; i++) {
		if (str_is_choice("--help|-h", argv[i])) {
			help(&r);
			return false;
		}
		if (argv[i][0] != '-' || !argv[i][1])
			args->at[args->n++] = argv[i];
		else
			ok = take(&r, call, &i, &given) && ok;
	}
	ok = check_given(&r, args, least, most, given) && ok;
	args->status = ok ? CKPT_OK : CKPT_USAGE;
	return ok;
}
