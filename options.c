/* options.c: reads the command line of shardc by the table of options.def.
 *
 * Every row names the field it fills, so that a flag cannot be accepted and forgotten.  Later values
 * replace earlier ones; what stands on the command line comes after every --config file. */
#include "options.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef enum { KIND_FLAG, KIND_STRING, KIND_INT, KIND_BYTES, KIND_CHOICE, KIND_LIST, KIND_LATER } OptionKind;

typedef struct OptionRow {
	const char *name;
	OptionKind kind;
	size_t field;
	const char *values, *group, *help;
} OptionRow;

static const OptionRow rows[] = {
#define OPTION(name, kind, field, values, group, help) \
	{name, KIND_##kind, offsetof(Options, field), values, group, help},
#include "options.def"
};

static const char blanks[] = " \t\r\n";

typedef struct Reader {
	Options *o;
	Arena *arena;
	Diag *diag;
	bool usage;
	const char *value[COUNT_OF(rows)]; /* last value of each row, for the canonical text */
} Reader;

static void usage_error(Reader *r, const char *where, const char *text)
{
	diag_error(r->diag, where, "%s (see shardc --help)", text);
	r->usage = true;
}

static const OptionRow *row_find(const char *name, size_t n)
{
	for (int i = 0; i < COUNT_OF(rows); i++)
		if (strlen(rows[i].name) == n && !strncmp(rows[i].name, name, n))
			return &rows[i];
	return NULL;
}

static void list_add(Reader *r, const char *where, OptionList *list, const char *value)
{
	if (list->n == OPTION_LIST_MAX)
		diag_error(r->diag, where, "given more than %d times", OPTION_LIST_MAX);
	else
		list->at[list->n++] = value;
}

/* Fills the row's field; where says whose value it is: "--wrap" or "train.json: $.wrap". */
static void row_set(Reader *r, const OptionRow *row, const char *where, const char *value)
{
	void *field = (char *)r->o + row->field;
	int index = (int)(row - rows);
	bool replaces = row->kind != KIND_LIST || !r->value[index];
	r->value[index] = replaces ? value : arena_printf(r->arena, "%s;%s", r->value[index], value);
	switch (row->kind) {
	case KIND_FLAG:
		*(bool *)field = true;
		break;
	case KIND_INT: case KIND_BYTES:
		if (!str_to_count(value, row->kind == KIND_BYTES, field))
			diag_error(r->diag, where, "\"%s\" is not a positive number%s", value,
				row->kind == KIND_BYTES ? " of bytes, such as 4096, 64M or 2G" : "");
		break;
	case KIND_CHOICE:
		if (!str_is_choice(row->values, value))
			diag_error(r->diag, where, "\"%s\" is refused; accepted: %s", value, row->values);
		else if (row->field != offsetof(Options, help))
			*(const char **)field = value;
		break;
	case KIND_STRING:
		*(const char **)field = value;
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
	const char *where = arena_printf(r->arena, "%s: $.%s", file, key);
	const char *name = arena_printf(r->arena, strlen(key) == 1 ? "-%s" : "--%s", key);
	const OptionRow *row = row_find(name, strlen(name));
	if (!row || !strcmp(name, "--config")) {
		diag_error(r->diag, where, "there is no option %s", name);
		return;
	}
	if (row->kind == KIND_FLAG) {
		if (json_is_true(v))
			row_set(r, row, where, "");
		else if (!json_is_false(v))
			diag_error(r->diag, where, "expected true or false");
	} else if (json_is_array(v) && row->kind == KIND_LIST) {
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
		diag_error(r->diag, where, "expected a string or an integer");
	}
}

static void config_read(Reader *r, const char *file)
{
	json_error_t e;
	json_t *root = json_load_file(file, JSON_REJECT_DUPLICATES, &e);
	const char *key;
	json_t *v;
	if (!root && e.line < 0)
		diag_error(r->diag, file, "%s", e.text);
	else if (!root)
		diag_error(r->diag, arena_printf(r->arena, "%s:%d:%d", file, e.line, e.column), "%s", e.text);
	else if (!json_is_object(root))
		diag_error(r->diag, file, "expected a JSON object of options");
	else
		json_object_foreach(root, key, v)
			config_member(r, file, key, v);
	json_decref(root);
}

/* ---- the command line ---- */

typedef struct Arg { const OptionRow *row; const char *value; } Arg;

/* --name=value, --name value, -ovalue; advances *i past a value that stands alone. */
static bool arg_split(Reader *r, int argc, char **argv, int *i, Arg *out)
{
	const char *text = argv[*i];
	bool is_long = !strncmp(text, "--", 2);
	size_t n = is_long ? strcspn(text, "=") : 2;
	out->row = row_find(text, n);
	if (!out->row) {
		usage_error(r, text, "unknown option");
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

static void take_positional(Reader *r, const char *text)
{
	Options *o = r->o;
	if (!o->input && !o->command && (!strcmp(text, "plan") || !strcmp(text, "run")))
		o->command = text;
	else if (!o->input)
		o->input = text;
	else
		usage_error(r, text, "one model is compiled at a time");
}

/* Whether an option's value can change the program. */
static bool is_program(const OptionRow *row)
{
	return strcmp(row->group, "what") && strcmp(row->group, "inspection");
}

static void canonical_text(Reader *r)
{
	Buf b = {0};
	for (int i = 0; i < COUNT_OF(rows); i++) {
		const OptionRow *row = &rows[i];
		if (r->value[i] && is_program(row))
			buf_printf(&b, "%s%s%s%s", b.n ? " " : "", row->name, *r->value[i] ? "=" : "", r->value[i]);
	}
	r->o->canonical = arena_strndup(r->arena, b.at ? b.at : "", b.n);
	buf_free(&b);
}

bool options_parse(int argc, char **argv, Options *o, Arena *a, Diag *d, bool *usage)
{
	Reader r = {.o = o, .arena = a, .diag = d};
	VEC(Arg) args = {0};
	for (int i = 1; i < argc; i++) {
		Arg arg = {0};
		if (argv[i][0] != '-' || !argv[i][1])
			take_positional(&r, argv[i]);
		else if (arg_split(&r, argc, argv, &i, &arg))
			vec_push(a, &args, arg);
	}
	for (int i = 0; i < args.n; i++)
		if (!strcmp(args.at[i].row->name, "--config"))
			config_read(&r, args.at[i].value);
	for (int i = 0; i < args.n; i++)
		if (strcmp(args.at[i].row->name, "--config"))
			row_set(&r, args.at[i].row, args.at[i].row->name, args.at[i].value);
	if (!o->command)
		o->command = "compile";
	if (o->target && !strcmp(o->target, "cuda") && !o->arch)
		row_set(&r, row_find("--arch", strlen("--arch")), "--arch", "sm_90a");
	canonical_text(&r);
	*usage = r.usage;
	return !d->errors;
}

/* ---- a text of options ---- */

/* Bytes of an option and its value: they end where a word begins with a dash. */
static size_t option_length(const char *s)
{
	size_t n = strcspn(s, blanks);
	for (size_t gap; (gap = strspn(s + n, blanks)) && s[n + gap] && s[n + gap] != '-';)
		n += gap + strcspn(s + n + gap, blanks);
	return n;
}

/* "--bind=batch=2;seq=8", "--untie all" */
static void text_option(Reader *r, const char *where, bool recorded, char *text)
{
	size_t n = strncmp(text, "--", 2) ? MIN(strlen(text), 2) : strcspn(text, "= \t\r\n");
	const OptionRow *row = row_find(text, n);
	char *value = text + n + (text[n] == '=' ? 1 : strspn(text + n, blanks));
	if (recorded && (!row || strcmp(row->group, "graph")))
		return;
	const char *at = arena_printf(r->arena, "%s: %s", where, row ? row->name : text);
	if (!row)
		diag_error(r->diag, at, "unknown option (see shardc --help)");
	else if (!is_program(row))
		diag_error(r->diag, at, "changes no program: leave it out");
	else if (row->kind == KIND_FLAG && (*value || text[n]))
		diag_error(r->diag, at, "takes no value");
	else if (row->kind != KIND_FLAG && !*value)
		diag_error(r->diag, at, "wants a value");
	else if (row->kind != KIND_LIST)
		row_set(r, row, at, value);
	else
		for (const char *one; (one = strsep(&value, ";"));)
			row_set(r, row, at, one);
}

bool options_read(const char *text, const char *where, bool recorded, Options *o, Arena *a, Diag *d)
{
	Reader r = {.o = o, .arena = a, .diag = d};
	int before = d->errors;
	size_t n;
	for (const char *s = text + strspn(text, blanks); *s; s += n + strspn(s + n, blanks)) {
		n = option_length(s);
		text_option(&r, where, recorded, arena_strndup(a, s, n));
	}
	canonical_text(&r);
	return d->errors == before;
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
	      "       shardc ckpt COMMAND ..                        checkpoints: show, convert (shardc ckpt --help)\n"
	      "       shardc --list-ops | --list-passes | --help | --version\n", f);
	const char *group = "";
	for (int i = 0; i < COUNT_OF(rows); i++) {
		const OptionRow *row = &rows[i];
		if (row->kind == KIND_LATER)
			continue;
		if (strcmp(group, row->group))
			fprintf(f, "\n%s:\n", row->group);
		group = row->group;
		int n = fprintf(f, "  %s%s%s", row->name, *row->values ? strlen(row->name) == 2 ? " " : "=" : "",
			row->values);
		fprintf(f, "%s%*s%s\n", n < 34 ? "" : "\n", n < 34 ? 34 - n : 34, "", row->help);
	}
	fputs("\nrefused by this version:", f);
	for (int i = 0; i < COUNT_OF(rows); i++)
		if (rows[i].kind == KIND_LATER)
			fprintf(f, " %s", rows[i].name);
	fputs("\n\nExit status: 0 success, 1 the input is wrong (nothing was written), 2 wrong usage, 3 a run failed.\n"
	      "The flags of the training binary: ./train --help\n", f);
}
