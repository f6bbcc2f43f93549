/* options.c: reads the command line of shardc by the table base/options.def.
 *
 * Each row names the field that it fills and the readers of the option, so that no option is accepted and then
 * forgotten.  An option that is not a list may be given once; the command line replaces what --config files say,
 * with a note.  Refuses options that are unknown (and suggests which was meant), given twice, without a value, or
 * with a value that does not parse. */
#include "options.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/near.h"
#include "base/optimizer.h"
#include "base/pattern.h"

typedef enum OptionKind {
	KIND_FLAG, KIND_TEXT, KIND_NAMES, KIND_COUNT, KIND_SIZE, KIND_CHOICE, KIND_LIST, KIND_PATTERNS, KIND_LATER
} OptionKind;

typedef struct OptionWord { const char *text; int value; } OptionWord;

typedef struct OptionRow {
	const char *name;
	OptionKind kind;
	size_t field, given;       /* in Options */
	const char *values;        /* "a|b" the words of a choice; else the shape; LATER: what to do instead */
	const OptionWord *words;   /* words of a choice, ended by NULL */
	int64_t unsaid;            /* value of a number that is not given */
	const char *group, *reader, *help;
} OptionRow;

#define WORD(id, text) {text, (int)id},
#define WORDS(field, ...) static const OptionWord words_##field[] = {__VA_ARGS__ {NULL, 0}};
#include "base/options.def"

#define WORDS_OF_FLAG(field) NULL
#define WORDS_OF_TEXT(field) NULL
#define WORDS_OF_NAMES(field) NULL
#define WORDS_OF_COUNT(field) NULL
#define WORDS_OF_SIZE(field) NULL
#define WORDS_OF_LIST(field) NULL
#define WORDS_OF_PATTERNS(field) NULL
#define WORDS_OF_CHOICE(field) words_##field

static const OptionRow rows[] = {
#define WORD(id, text) "|" text
#define OPTION(owner, name, kind, type, field, shape, unsaid, reader, help) \
	{name, KIND_##kind, offsetof(Options, owner.field), offsetof(Options, given.field), shape, WORDS_OF_##kind(field), \
		unsaid, #owner, reader, help},
#define SAME(owner, name, field, reader, help) \
	{name, KIND_FLAG, offsetof(Options, owner.field), offsetof(Options, given.field), "", NULL, 0, #owner, reader, \
		help},
#define LATER(owner, name, instead, reader, help) {name, KIND_LATER, 0, 0, instead, NULL, 0, #owner, reader, help},
#include "base/options.def"
};

static const char *const row_names[] = {
#define OPTION(owner, name, ...) name,
#define SAME(owner, name, ...) name,
#define LATER(owner, name, ...) name,
#include "base/options.def"
};

/* Options of the training binary, which users often give to the compiler. */
static const char *const binary_flags[] = {
#define OPT(field, kind, flag, ...) "--" flag,
#include "runtime/options.def"
};

static const char blanks[] = " \t\r\n";

typedef struct Reader {
	Options *o;
	Arena *arena;
	Diag *diag;
	bool usage;
	bool command;                      /* the first word is a command */
	bool recorded;                     /* a recorded text, which was right when it was written */
	const char *file;                  /* the --config file that is being read; NULL: the command line */
	const char *value[COUNT_OF(rows)]; /* by row; those of a list are joined; NULL: not given */
	const char *from[COUNT_OF(rows)];  /* the file that gave it, NULL: the command line */
} Reader;

static void usage_error(Reader *r, const char *where, const char *text)
{
	diag_error(r->diag, where, "%s (see shardc --help)", text);
	r->usage = true;
}

static bool is_list(const OptionRow *row)
{
	return row->kind == KIND_LIST || row->kind == KIND_PATTERNS;
}

static const OptionRow *row_find(const char *name, size_t n)
{
	for (int i = 0; i < COUNT_OF(rows); i++)
		if (strlen(rows[i].name) == n && !strncmp(rows[i].name, name, n))
			return &rows[i];
	return NULL;
}

/* A hint at the option that an unknown one may mean: the end of a message, or "". */
static const char *row_hint(Reader *r, const char *name, size_t n)
{
	const char *word = arena_strndup(r->arena, name, n);
	for (int i = 0; i < COUNT_OF(binary_flags); i++)
		if (!strcmp(binary_flags[i], word))
			return arena_printf(r->arena, "; it is a flag of the training binary: ./train %s", word);
	return near_hint(r->arena, "shardc", word, row_names, COUNT_OF(row_names));
}

static void list_add(Reader *r, const char *where, OptionList *list, const char *value)
{
	if (list->n == OPTION_LIST_MAX)
		diag_error(r->diag, where, "given more than %d times", OPTION_LIST_MAX);
	else
		list->at[list->n++] = value;
}

/* Whether a row that has a value may take another one: one more of a list, or one that replaces a file's. */
static bool row_takes(Reader *r, const OptionRow *row, const char *where, const char *value)
{
	int i = (int)(row - rows);
	if (!r->value[i] || row->kind == KIND_FLAG || (is_list(row) && (r->file || !r->from[i])))
		return true;
	if (!r->file && r->from[i]) {
		diag_note(r->diag, where, "\"%s\" replaces what %s says: \"%s\"", value, r->from[i], r->value[i]);
		r->value[i] = NULL;
		if (is_list(row))
			((OptionList *)((char *)r->o + row->field))->n = 0;
		return true;
	}
	diag_error(r->diag, where, "is given twice, %s\"%s\" and \"%s\": it is no list, give it once",
		r->from[i] ? arena_printf(r->arena, "in %s and here: ", r->from[i]) : "", r->value[i], value);
	r->usage = r->usage || !r->file;
	return false;
}

/* Sets the field of a choice to the word that value is. */
static void set_choice(Reader *r, const OptionRow *row, const char *where, const char *value)
{
	const OptionWord *w = row->words;
	while (w->text && strcmp(w->text, value))
		w++;
	if (w->text)
		*(int *)((char *)r->o + row->field) = w->value;
	else
		diag_error(r->diag, where, "\"%s\" is refused; accepted: %s%s", value, row->values,
			near_choice(r->arena, row->name, value, row->values));
}

/* Sets the field of a number, if the number fits. */
static void set_number(Reader *r, const OptionRow *row, const char *where, const char *value)
{
	bool bytes = row->kind == KIND_SIZE;
	if (!str_to_count(value, bytes, (int64_t *)((char *)r->o + row->field)))
		diag_error(r->diag, where, "\"%s\" is not a positive number%s", value,
			bytes ? " of bytes, such as 4096, 64M, 1.5G or 200MiB" : ", such as 8 or 1K");
}

/* Fills the row's field.  where says where the value comes from: "--wrap" or "train.json: $.wrap". */
static void row_set(Reader *r, const OptionRow *row, const char *where, const char *value)
{
	void *field = (char *)r->o + row->field;
	int i = (int)(row - rows);
	if (row->kind != KIND_FLAG && row->kind != KIND_NAMES && !*value) {
		usage_error(r, where, "wants a value, and got an empty one");
		r->usage = r->usage && !r->file;
		return;
	}
	if (!row_takes(r, row, where, value))
		return;
	r->value[i] = r->value[i] && is_list(row) ? arena_printf(r->arena, "%s;%s", r->value[i], value) : value;
	r->from[i] = r->file;
	if (row->kind != KIND_LATER)
		*(bool *)((char *)r->o + row->given) = true;
	switch (row->kind) {
	case KIND_FLAG:
		*(bool *)field = true;
		break;
	case KIND_COUNT: case KIND_SIZE:
		set_number(r, row, where, value);
		break;
	case KIND_CHOICE:
		set_choice(r, row, where, value);
		break;
	case KIND_TEXT: case KIND_NAMES:
		*(const char **)field = value;
		break;
	case KIND_PATTERNS:
		if (r->recorded || pattern_check(value, where, r->diag))
			list_add(r, where, field, value);
		break;
	case KIND_LIST:
		list_add(r, where, field, value);
		break;
	case KIND_LATER:
		diag_error(r->diag, where, "refused: not available in this version; %s", row->values);
	}
}

/* ---- --config ---- */

static const char *json_text(Reader *r, const json_t *v)
{
	if (json_is_string(v))
		return arena_strdup(r->arena, json_string_value(v));
	if (json_is_integer(v))
		return arena_printf(r->arena, "%lld", (long long)json_integer_value(v));
	return NULL;
}

static void config_member(Reader *r, const char *file, const char *key, const json_t *v)
{
	const char *where = arena_printf(r->arena, "%s: $.%s", file, str_escape(r->arena, ESCAPE_JSON, key));
	const char *name = arena_printf(r->arena, strlen(key) == 1 ? "-%s" : "--%s", key);
	const OptionRow *row = row_find(name, strlen(name));
	if (!row || !strcmp(name, "--config")) {
		diag_error(r->diag, where, "there is no option %s%s", name,
			row ? " in a file" : row_hint(r, name, strlen(name)));
		return;
	}
	if (row->kind == KIND_FLAG) {
		if (json_is_true(v))
			row_set(r, row, where, "");
		else if (!json_is_false(v))
			diag_error(r->diag, where, "expected true or false");
	} else if (json_is_array(v) && is_list(row)) {
		for (size_t i = 0; i < json_array_size(v); i++) {
			const char *text = json_text(r, json_array_get(v, i));
			const char *at = arena_printf(r->arena, "%s[%zu]", where, i);
			if (text)
				row_set(r, row, at, text);
			else
				diag_error(r->diag, at, "expected a string or an integer");
		}
	} else if (json_text(r, v)) {
		row_set(r, row, where, json_text(r, v));
	} else {
		bool list = is_list(row), choice = row->kind == KIND_CHOICE;
		diag_error(r->diag, where, "expected a string or an integer%s%s", list ? ", or an array of them"
			: choice ? ": one of " : "", choice ? row->values : "");
	}
}

static void config_read(Reader *r, const char *file)
{
	r->file = file;
	json_t *root = json_read(file, r->arena, r->diag);
	const char *key;
	json_t *v;
	if (root && !json_is_object(root))
		diag_error(r->diag, file, "expected a JSON object of options");
	else
		json_object_foreach(root, key, v)
			config_member(r, file, key, v);
	json_decref(root);
	r->file = NULL;
}

/* ---- the command line ---- */

typedef struct Arg { const OptionRow *row; const char *value; } Arg;

/* Splits --name=value, --name value or -ovalue; advances *i past a separate value. */
static bool arg_split(Reader *r, int argc, char **argv, int *i, Arg *out)
{
	const char *text = argv[*i];
	bool is_long = !strncmp(text, "--", 2);
	size_t n = is_long ? strcspn(text, "=") : 2;
	out->row = row_find(text, n);
	if (!out->row) {
		usage_error(r, text, arena_printf(r->arena, "unknown option%s", row_hint(r, text, n)));
		return false;
	}
	if (out->row->kind == KIND_FLAG) {
		out->value = "";
		if (text[n])
			usage_error(r, out->row->name, "takes no value");
		return !text[n];
	}
	if (text[n])
		out->value = text + n + (is_long || text[n] == '=');
	else if (*i + 1 < argc)
		out->value = argv[++*i];
	else
		usage_error(r, out->row->name, "wants a value");
	return text[n] || out->value;
}

/* Refuses a second word: a command in the wrong place, an unknown command, or a second model. */
static void refuse_second(Reader *r, const char *text)
{
	const char *first = r->o->input;
	bool misplaced = str_is_choice("ckpt|trace", first);
	if (misplaced || str_is_choice("plan|run|params|init|calibrate|ckpt|trace", text))
		usage_error(r, misplaced ? first : text, "a command is the first word, before all options");
	else if (!r->command && !strpbrk(first, "./"))
		usage_error(r, first, "is no command; there are plan, run, params, init, calibrate, ckpt and trace, and a "
			"program is compiled without one: shardc MODEL.onnx -o train");
	else
		usage_error(r, text, "one model is compiled at a time");
}

static void take_positional(Reader *r, const char *text)
{
	Options *o = r->o;
	if (!o->input && !r->command && str_is_choice("plan|run|params|init|calibrate", text)) {
		r->command = true;
		o->command = !strcmp(text, "plan") ? COMMAND_PLAN : !strcmp(text, "run") ? COMMAND_RUN
			: !strcmp(text, "init") ? COMMAND_INIT : !strcmp(text, "params") ? COMMAND_PARAMS : COMMAND_CALIBRATE;
	} else if (!o->input && !r->command && !strcmp(text, "help"))
		o->inspection.help = true;
	else if (!o->input)
		o->input = text;
	else if (!r->usage) /* else it may be the value of an unknown option */
		refuse_second(r, text);
}

/* --bn=train|frozen|frozen:REGEX; the last form may be repeated. */
static void take_norms(Reader *r, OptionNorms *o)
{
	o->all = NORM_AUTO;
	o->frozen.n = 0;
	for (int i = 0; i < o->given.n; i++) {
		const char *v = o->given.at[i];
		NormMode mode = strcmp(v, "train") ? NORM_FROZEN : NORM_TRAIN;
		if (!strncmp(v, "frozen:", 7)) {
			if (pattern_check(v + 7, "--bn", r->diag))
				o->frozen.at[o->frozen.n++] = v + 7;
		} else if (!str_is_choice("train|frozen", v))
			diag_error(r->diag, "--bn", "\"%s\" is refused; accepted: train|frozen|frozen:REGEX", v);
		else if (o->all != NORM_AUTO && o->all != mode)
			diag_error(r->diag, "--bn", "train and frozen exclude each other: give one of them, or frozen:REGEX beside "
				"it");
		else
			o->all = mode;
	}
}

/* Sets the numbers that have a value other than 0 when they are not given. */
static void set_unsaid(Options *o)
{
	for (int i = 0; i < COUNT_OF(rows); i++)
		if (rows[i].kind == KIND_COUNT || rows[i].kind == KIND_SIZE)
			*(int64_t *)((char *)o + rows[i].field) = rows[i].unsaid;
}

/* Whether the option's value can change the program. */
static bool is_program(const OptionRow *row)
{
	return strcmp(row->group, "what") && strcmp(row->group, "inspection");
}

/* The given options of the group "target", or those of all other groups. */
static char *text_of_group(Reader *r, bool target)
{
	Buf b = {0};
	for (int i = 0; i < COUNT_OF(rows); i++) {
		const OptionRow *row = &rows[i];
		if (r->value[i] && is_program(row) && target == !strcmp(row->group, "target"))
			buf_printf(&b, "%s%s%s%s", b.n ? " " : "", row->name, *r->value[i] ? "=" : "", r->value[i]);
	}
	char *text = arena_strndup(r->arena, b.at ? b.at : "", b.n);
	buf_free(&b);
	return text;
}

/* Makes the canonical text.  Among options that change a program, rows of the group "target" are the last. */
static void canonical_text(Reader *r)
{
	Options *o = r->o;
	o->canonical_program = text_of_group(r, false);
	o->canonical_target = text_of_group(r, true);
	o->canonical = arena_printf(r->arena, "%s%s%s", o->canonical_program,
		*o->canonical_program && *o->canonical_target ? " " : "", o->canonical_target);
}

static void keep_values(Reader *r)
{
	r->o->value = NEW_N(r->arena, const char *, COUNT_OF(rows));
	memcpy(r->o->value, r->value, sizeof(r->value));
}

static const char *typed_text(int argc, char **argv, Arena *a)
{
	Buf b = {0};
	buf_printf(&b, "shardc");
	for (int i = 1; i < argc; i++)
		buf_printf(&b, " %s", str_escape(a, ESCAPE_SHELL, argv[i]));
	const char *text = arena_strndup(a, b.at, b.n);
	buf_free(&b);
	return text;
}

bool options_parse(int argc, char **argv, Options *o, Arena *a, Diag *d, bool *usage)
{
	Reader r = {.o = o, .arena = a, .diag = d};
	VEC(Arg) args = {0};
	set_unsaid(o);
	for (int i = 1; i < argc; i++) {
		Arg arg = {0};
		if (argv[i][0] != '-' || !argv[i][1])
			take_positional(&r, argv[i]);
		else if (arg_split(&r, argc, argv, &i, &arg))
			vec_push(a, &args, arg);
	}
	const OptionRow *config = row_find("--config", strlen("--config"));
	for (int i = 0; i < args.n; i++)
		if (args.at[i].row == config)
			row_set(&r, config, config->name, args.at[i].value);
	for (int i = 0; i < o->what.config.n; i++)
		config_read(&r, o->what.config.at[i]);
	for (int i = 0; i < args.n; i++)
		if (args.at[i].row != config)
			row_set(&r, args.at[i].row, args.at[i].row->name, args.at[i].value);
	keep_values(&r);
	o->typed = typed_text(argc, argv, a);
	if (options_cuda(o) && !o->target.arch)
		row_set(&r, row_find("--arch", strlen("--arch")), "--arch", "sm_90a");
	take_norms(&r, &o->graph.bn);
	canonical_text(&r);
	*usage = r.usage;
	return !d->errors;
}

bool options_list_has(const OptionList *list, const char *name)
{
	size_t n = strlen(name);
	for (int i = 0; i < list->n; i++)
		if (!strncmp(list->at[i], name, n) && list->at[i][n] == '=')
			return true;
	return false;
}

/* ---- options that nobody reads ---- */

/* Whether one of the readers "a|b" runs; if none does, *why is the first one's reason. */
static bool is_read(const char *readers, ReaderRuns *runs, const void *context, const char **why, Arena *a)
{
	const char *first = NULL;
	for (const char *s = readers; *s; s += *s == '|') {
		size_t n = strcspn(s, "|");
		if (runs(context, arena_strndup(a, s, n), why))
			return true;
		first = first ? first : *why;
		s += n;
	}
	*why = first;
	return false;
}

void options_warn_unread(const Options *o, ReaderRuns *runs, const void *context, Arena *a, Diag *d)
{
	for (int i = 0; i < COUNT_OF(rows); i++) {
		const char *why = NULL, *value = o->value[i];
		if (value && !is_read(rows[i].reader, runs, context, &why, a))
			diag_warn(d, rows[i].name, *value ? "is not used %s: \"%s\"" : "is not used %s", why, value);
	}
}

/* ---- a text of options ---- */

/* The number of bytes of an option with its value, which end where a word begins with a dash. */
static size_t option_length(const char *s)
{
	size_t n = strcspn(s, blanks);
	for (size_t gap; (gap = strspn(s + n, blanks)) && s[n + gap] && s[n + gap] != '-';)
		n += gap + strcspn(s + n + gap, blanks);
	return n;
}

/* Reads options such as "--bind=batch=2;seq=8" and "--untie all". */
static void text_option(Reader *r, const char *where, char *text)
{
	size_t n = strncmp(text, "--", 2) ? MIN(strlen(text), 2) : strcspn(text, "= \t\r\n");
	const OptionRow *row = row_find(text, n);
	char *value = text + n + (text[n] == '=' ? 1 : strspn(text + n, blanks));
	if (r->recorded && (!row || strcmp(row->group, "graph")))
		return;
	const char *at = arena_printf(r->arena, "%s: %s", where, row ? row->name : text);
	if (!row)
		diag_error(r->diag, at, "unknown option%s (see shardc --help)", row_hint(r, text, n));
	else if (!is_program(row))
		diag_error(r->diag, at, "changes no program: leave it out");
	else if (row->kind == KIND_FLAG && (*value || text[n]))
		diag_error(r->diag, at, "takes no value");
	else if (row->kind != KIND_FLAG && !*value)
		diag_error(r->diag, at, "wants a value");
	else if (!is_list(row))
		row_set(r, row, at, value);
	else
		for (const char *one; (one = strsep(&value, ";"));)
			row_set(r, row, at, one);
}

bool options_read(const char *text, const char *where, bool recorded, Options *o, Arena *a, Diag *d)
{
	Reader r = {.o = o, .arena = a, .diag = d, .recorded = recorded};
	int before = d->errors;
	size_t n;
	set_unsaid(o);
	for (const char *s = text + strspn(text, blanks); *s; s += n + strspn(s + n, blanks)) {
		n = option_length(s);
		text_option(&r, where, arena_strndup(a, s, n));
	}
	take_norms(&r, &o->graph.bn);
	canonical_text(&r);
	return d->errors == before;
}

bool options_join(Options *o, const char *name, const char *text, const char *at, Arena *a, Diag *d)
{
	const OptionRow *row = row_find(name, strlen(name));
	const char *given = row ? o->value[row - rows] : NULL;
	int before = d->errors;
	if (!row)
		ice("a policy file says option %s, which does not exist", name);
	if (given && (!text || strcmp(given, text))) {
		diag_error(d, name, row->kind == KIND_FLAG ? "%scontradicts %s%s; give one of them"
			: "\"%s\" contradicts \"%s\" in %s; give one of them", given, row->kind == KIND_FLAG ? "" : text, at);
		return false;
	}
	if (!given && text)
		row_set(&(Reader){.o = o, .arena = a, .diag = d, .file = at}, row, at, text);
	return d->errors == before;
}

/* The members of a policy file. */
static void help_policy(FILE *f)
{
	fputs("\nthe JSON object of --wrap=file:POLICY.json, or of its text, --wrap='file:{..}' (docs/sharding.md):\n", f);
#define POLICY_MEMBER(key, kind, option, doc) fprintf(f, "  %-31s %s\n", #key, doc);
#include "passes/shard/policy.def"
	fputs("each of its units:\n", f);
#define UNIT_MEMBER(key, kind, doc) fprintf(f, "  %-31s %s\n", #key, doc);
#include "passes/shard/policy.def"
}

void options_help(FILE *f)
{
	fputs("usage: shardc MODEL.onnx -o train [options]          compile to a training binary\n"
	      "       shardc MODEL.onnx -o DIR --emit=c [options]   stop at DIR/step.c (step.cu) and its Makefile\n"
	      "       shardc MODEL.onnx -o DIR --emit=lib [options] libmodel.so, model.h, model.pc\n"
	      "       shardc MODEL.onnx --emit=ir|dot|json [--stop-after=PASS]\n"
	      "       shardc FILE.ir --passes=A,B,..                run passes on text\n"
	      "       shardc plan MODEL.onnx [--world=N]            units, memory by category, peak\n"
	      "       shardc run MODEL.onnx --inputs DIR --outputs DIR   forward only\n"
	      "       shardc params MODEL.onnx [options]            what each initializer is, and by what evidence\n"
	      "       shardc init MODEL.onnx                        what it is, the loss that fits, data and commands\n"
	      "       shardc calibrate -o FILE.json [MODEL.onnx]    measures this machine, for plan --machine=FILE.json\n"
	      "       shardc ckpt COMMAND ..                        checkpoints: show, convert (shardc ckpt --help)\n"
	      "       shardc trace diff A.json B.json [--top=N]     where two traces of a program differ (docs/trace.md)\n"
	      "       shardc --list-ops | --list-passes | --help | --version\n", f);
	const char *group = "";
	for (int i = 0; i < COUNT_OF(rows); i++) {
		const OptionRow *row = &rows[i];
		if (row->kind == KIND_LATER)
			continue;
		if (strcmp(group, row->group))
			fprintf(f, "\n%s:\n", row->group);
		group = row->group;
		int n = fprintf(f, "  %s%s%s%s", row->name, *row->values ? strlen(row->name) == 2 ? " " : "=" : "",
			row->values, is_list(row) ? " .." : "");
		fprintf(f, "%s%*s%s\n", n < 34 ? "" : "\n", n < 34 ? 34 - n : 34, "", row->help);
	}
	help_policy(f);
	fputs("\nOptions with .. may be repeated, others are given once.  What --config files say is replaced by what\n"
	      "the command line says, a list as a whole.  N and BYTES may be 60K, 1e8, 1.5G: K, M, G, T are powers of\n"
	      "1000, of bytes powers of 1024 (64M, 200MiB; 200MB is 200,000,000).  REGEX is a POSIX extended regular\n"
	      "expression, as egrep's, that matches anywhere in a name: write [0-9] for \\d.\n", f);
	fputs("\nrefused by this version:", f);
	for (int i = 0; i < COUNT_OF(rows); i++)
		if (rows[i].kind == KIND_LATER)
			fprintf(f, " %s", rows[i].name);
	fputs("\n\nExit status: 0 success, 1 the input is wrong (nothing was written), 2 wrong usage, 3 a run failed.\n"
	      "The flags of the training binary: ./train --help\n", f);
}
