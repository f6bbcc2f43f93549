/* frontend/onnx_report.c: reports what each initializer is taken for, in `shardc params` and when compiling. */
#include "frontend/onnx_params.h"

#include <inttypes.h>
#include <string.h>

#include "base/near.h"
#include "base/pattern.h"

typedef enum { TENSOR_TRAINED, TENSOR_FROZEN, TENSOR_BUFFER, TENSOR_CONSTANT, TENSOR_KINDS } TensorKind;

static const struct { const char *text, *one, *many, *guessed; } kinds[TENSOR_KINDS] = {
	{"trained", "parameter is trained", "parameters are trained", "a trained parameter"},
	{"frozen", "parameter is frozen", "parameters are frozen", "a frozen parameter"},
	{"buffer", "tensor is a buffer", "tensors are buffers", "a buffer"},
	{"constant", "tensor is a constant", "tensors are constants", "a constant"},
};

/* One row of the report: an initializer, or one of the tensors that it is untied into. */
typedef struct Row {
	const Weight *w;
	const char *name, *tie;  /* tie: its further names; "" when it has none */
	TensorKind kind;
	Type type;
	Evidence evidence;
	const char *why;
	bool used;
} Row;

typedef VEC(Row) RowVec;

typedef struct Report {
	Import *im;
	RowVec rows;
	regex_t *freeze;
	int n_freeze;
} Report;

/* ---- rows ---- */

static TensorKind kind_of(const Weight *w)
{
	return w->class == WEIGHT_BUFFER ? TENSOR_BUFFER : w->class == WEIGHT_CONST ? TENSOR_CONSTANT
		: w->frozen ? TENSOR_FROZEN : TENSOR_TRAINED;
}

static const char *tie_of(Import *im, const Weight *w)
{
	Buf b = {0};
	buf_printf(&b, "%s", w->tie ? w->tie->as : "");
	for (int i = 0; i < w->alias.n; i++)
		buf_printf(&b, "%s%s", b.n ? ", " : "", w->alias.at[i]);
	const char *text = arena_strndup(im->arena, b.at, b.n);
	buf_free(&b);
	return text;
}

static bool is_frozen_by(const Report *r, int f, const Weight *w, const char *name)
{
	bool any = pattern_matches(&r->freeze[f], name);
	for (int i = 0; i < w->alias.n; i++)
		any = any || pattern_matches(&r->freeze[f], w->alias.at[i]);
	return any;
}

static bool frozen_by_option(const Report *r, const Weight *w, const char *name)
{
	bool any = false;
	for (int f = 0; f < r->n_freeze; f++)
		any = any || is_frozen_by(r, f, w, name);
	return any;
}

/* The tensor's type in the framework, which may have it transposed or without dims of 1. */
static Type type_of(const Weight *w)
{
	Type t = w->type;
	if (w->flat)
		return type_tensor(t.dtype, 1, (int64_t[]){type_numel(&t)});
	for (int i = 0; w->transposed && i < 2; i++)
		t.dim[i] = w->type.dim[1 - i];
	return t;
}

/* Whether the part's own role is certain, but only a guess says that it is a tensor of its own.  That guess is reported
 * once, for the whole tensor. */
static bool is_part_by_guess(const Weight *w)
{
	return w->whole && w->whole->split_why && !evidence_info[w->evidence].guess;
}

/* Adds to the row that the part was untied, and the evidence for that. */
static void add_untied(Report *r, const Weight *part, Row *row)
{
	if (is_part_by_guess(part))
		row->evidence = EVIDENCE_VALUE;
	row->why = arena_printf(r->im->arena, "%s; untied from tensor \"%s\"", row->why,
		str_escape(r->im->arena, ESCAPE_IR, part->t->name));
}

static void add_row(Report *r, const Weight *w)
{
	const Weight *held = weight_held(w);
	Row row = {.w = w, .name = w->as, .tie = tie_of(r->im, w), .kind = kind_of(held), .evidence = held->evidence,
		.why = held->why, .type = type_of(w), .used = w->made.n > 0 || w->uses.n > 0};
	if (w->whole)
		add_untied(r, w, &row);
	if (row.kind == TENSOR_TRAINED && frozen_by_option(r, held, w->as)) {
		row.kind = TENSOR_FROZEN;
		row.evidence = EVIDENCE_OPTION;
		row.why = "--freeze matches it";
	}
	vec_push(r->im->arena, &r->rows, row);
}

static void add_rows(Report *r, const Weight *w)
{
	for (int i = 0; i < w->parts.n; i++)
		add_row(r, w->parts.at[i]);
	if (!w->parts.n)
		add_row(r, w);
}

static void report_free(Report *r)
{
	while (r->n_freeze)
		regfree(&r->freeze[--r->n_freeze]);
}

static bool report_new(Report *r, Import *im)
{
	*r = (Report){.im = im, .freeze = NEW_N(im->arena, regex_t, im->o->graph.freeze.n)};
	for (; r->n_freeze < im->o->graph.freeze.n; r->n_freeze++) {
		if (!pattern_compile(&r->freeze[r->n_freeze], im->o->graph.freeze.at[r->n_freeze], "--freeze", im->d)) {
			report_free(r);
			return false;
		}
	}
	for (int i = 0; i < map_count(im->weights); i++)
		add_rows(r, map_get(im->weights, map_key(im->weights, i)));
	return true;
}

/* ---- when compiling ---- */

/* "12 parameters are trained (10 by name, 2 by guess)" */
static const char *count_text(const Report *r, TensorKind kind)
{
	Arena *a = r->im->arena;
	const char *list = "";
	int all = 0;
	for (int e = 0; e < EVIDENCE_COUNT; e++) {
		int n = 0;
		for (int i = 0; i < r->rows.n; i++)
			n += r->rows.at[i].used && r->rows.at[i].kind == kind && (int)r->rows.at[i].evidence == e;
		all += n;
		if (n)
			list = arena_printf(a, "%s%s%d by %s", list, *list ? ", " : "", n, evidence_info[e].text);
	}
	return all ? arena_printf(a, "%d %s (%s)", all, all == 1 ? kinds[kind].one : kinds[kind].many, list) : NULL;
}

/* What exporters of other frameworks leave out when they are called by themselves. */
static const struct { const char *producer, *leaves_out, *instead; } EXPORTERS[] = {
	{"tf2onnx", "biases that are zero, batch norms that it folds, dropout and stop_gradient", "shardc.keras"},
	{"jax2onnx", "the names of weights, and stop_gradient", "shardc.jax"},
	{"skl2onnx", "the names of weights", "shardc.sklearn"},
};

/* Says what a file cannot show that none of ours exported. */
static void say_exporter(Import *im)
{
	if (im->meta)
		return;
	for (int i = 0; i < COUNT_OF(EXPORTERS); i++)
		if (!strcmp(im->onnx->producer, EXPORTERS[i].producer))
			diag_note(im->d, im->onnx->path, "exported by %s alone, which leaves out %s: export the model with %s "
				"(docs/export.md)", EXPORTERS[i].producer, EXPORTERS[i].leaves_out, EXPORTERS[i].instead);
	if (im->pytorch)
		diag_note(im->d, im->onnx->path, "exported without shardc.export: the file has no trace of no_grad and "
			"requires_grad=False, nor TorchScript's of detach(), an embedding's padding_idx and of what a buffer is: "
			"gradients flow where the model has these%s (docs/export.md)", im->n_dropout_nodes ? ""
			: "; it holds no dropout, as after an export in eval mode");
}

/* The text for a tensor whose role is guessed, such that training would differ if the guess were wrong.  NULL: it is
 * not guessed, is not used, or another message reports it. */
static const char *guess_text(const Report *r, const Row *row)
{
	Arena *a = r->im->arena;
	const char *name = str_escape(a, ESCAPE_IR, row->name);
	if (!evidence_info[row->evidence].guess || is_part_by_guess(row->w) || !row->used || row->w->tie)
		return NULL;
	return arena_printf(a, "\"%s\" %s is guessed to be %s: %s", name, type_str(a, &row->type),
		kinds[row->kind].guessed, row->why);
}

static void say_guess(Import *im, const char *text, int *n)
{
	enum { SHOWN = 40 };
	if (!text)
		return;
	if (im->o->graph.strict_params)
		diag_error(im->d, im->onnx->path, "%s", text);
	else if (*n < SHOWN)
		diag_warn(im->d, im->onnx->path, "%s", text);
	else if (*n == SHOWN)
		diag_warn(im->d, im->onnx->path, "there are more guesses: shardc params lists them all");
	++*n;
}

void report_roles(Import *im)
{
	Report r;
	int guesses = 0;
	if (!report_new(&r, im))
		return;
	for (int k = 0; k < TENSOR_KINDS; k++) {
		const char *text = count_text(&r, (TensorKind)k);
		if (text)
			diag_note(im->d, im->onnx->path, "%s", text);
	}
	for (int i = 0; i < r.rows.n; i++)
		say_guess(im, guess_text(&r, &r.rows.at[i]), &guesses);
	for (int i = 0; i < map_count(im->weights); i++) {
		const Weight *w = map_get(im->weights, map_key(im->weights, i));
		if (w->split_why)
			say_guess(im, arena_printf(im->arena, "tensor \"%s\" %s", str_escape(im->arena, ESCAPE_IR, w->t->name),
				w->split_why), &guesses);
	}
	if (im->pytorch && !im->meta && !im->trainable && im->o->graph.strict_params)
		diag_error(im->d, im->onnx->path, "the file does not say which parameters have requires_grad=False: export it "
			"with shardc.export, or list what is trained in --trainable=FILE (docs/export.md)");
	say_exporter(im);
	if (guesses)
		diag_note(im->d, im->onnx->path, "the model does not say what is trained: export it with shardc.export, or "
			"list what is trained in --trainable=FILE (docs/export.md)");
	report_free(&r);
}

/* ---- shardc params ---- */

static const char *type_text(Arena *a, const Row *row)
{
	return row->w->typed ? type_str(a, &row->type) : onnx_dtype_name(row->w->t->data_type);
}

/* A text as the terminal may get it; names are quoted as in the IR first. */
static const char *visible(Arena *a, const char *s)
{
	return str_escape(a, ESCAPE_TERMINAL, s);
}

static const char *visible_name(Arena *a, const char *name)
{
	return visible(a, str_escape(a, ESCAPE_IR, name));
}

static void print_text(const Report *r, FILE *out)
{
	static const char *const heads[] = {"name", "type", "role", "evidence"};
	Arena *a = r->im->arena;
	int wide[4] = {4, 4, 8, 8};
	for (int i = 0; i < r->rows.n; i++) {
		const Row *row = &r->rows.at[i];
		wide[0] = MAX(wide[0], (int)strlen(visible_name(a, row->name)));
		wide[1] = MAX(wide[1], (int)strlen(type_text(a, row)));
	}
	for (int k = 0; k < COUNT_OF(heads); k++)
		fprintf(out, "%-*s  ", wide[k], heads[k]);
	fputs("why\n", out);
	for (int i = 0; i < r->rows.n; i++) {
		const Row *row = &r->rows.at[i];
		fprintf(out, "%-*s  %-*s  %-*s  %-*s  %s%s", wide[0], visible_name(a, row->name), wide[1],
			type_text(a, row), wide[2], kinds[row->kind].text, wide[3],
			evidence_info[row->evidence].text, visible(a, row->why), row->used ? "" : "; the graph does not use it");
		fprintf(out, *row->tie ? "; tied with %s\n" : "%s\n", visible_name(a, row->tie));
	}
	fputc('\n', out);
	for (int k = 0; k < TENSOR_KINDS; k++) {
		const char *text = count_text(r, (TensorKind)k);
		if (text)
			fprintf(out, "%s\n", text);
	}
}

static void print_json_row(const Report *r, const Row *row, FILE *out)
{
	Arena *a = r->im->arena;
	const Weight *w = row->w;
	fprintf(out, "{\"name\":\"%s\",\"initializer\":\"%s\",\"dtype\":\"%s\",\"shape\":[",
		str_escape(a, ESCAPE_JSON, row->name), str_escape(a, ESCAPE_JSON, w->t->name),
		w->typed ? dtype_info[w->type.dtype].text : onnx_dtype_name(w->t->data_type));
	for (int i = 0; i < row->type.rank; i++)
		fprintf(out, "%s%" PRId64, i ? "," : "", row->type.dim[i]);
	fprintf(out, "],\"role\":\"%s\",\"evidence\":\"%s\",\"guess\":%s,\"why\":\"%s\",\"used\":%s,\"aliases\":[",
		kinds[row->kind].text, evidence_info[row->evidence].text,
		evidence_info[row->evidence].guess ? "true" : "false", str_escape(a, ESCAPE_JSON, row->why),
		row->used ? "true" : "false");
	for (int i = 0; i < w->alias.n; i++)
		fprintf(out, "%s\"%s\"", i ? "," : "", str_escape(a, ESCAPE_JSON, w->alias.at[i]));
	fputs("]", out);
	if (w->tie)
		fprintf(out, ",\"transpose_of\":\"%s\"", str_escape(a, ESCAPE_JSON, w->tie->as));
	fputs("}", out);
}

static void print_json(const Report *r, FILE *out)
{
	fprintf(out, "{\"model\":\"%s\",\"tensors\":[", str_escape(r->im->arena, ESCAPE_JSON, r->im->onnx->path));
	for (int i = 0; i < r->rows.n; i++) {
		fputs(i ? ",\n" : "\n", out);
		print_json_row(r, &r->rows.at[i], out);
	}
	fputs("\n]}\n", out);
}

/* Reports a --freeze option that matches no parameter.  A compilation does the same in pass autodiff, for the
 * parameters that the module then has. */
static void check_freeze(const Report *r, int f)
{
	Arena *a = r->im->arena;
	const char **names = NEW_N(a, const char *, r->rows.n);
	int n = 0, matched = 0;
	for (int i = 0; i < r->rows.n; i++) {
		const Row *row = &r->rows.at[i];
		if (row->kind != TENSOR_TRAINED && row->kind != TENSOR_FROZEN)
			continue;
		names[n++] = row->name;
		matched += is_frozen_by(r, f, weight_held(row->w), row->name);
	}
	if (!matched)
		diag_error(r->im->d, "--freeze", "\"%s\" matches no parameter%s", r->im->o->graph.freeze.at[f],
			near_pattern(a, r->im->o->graph.freeze.at[f], names, n));
}

void report_print(Import *im, const ParamsPrint *to)
{
	Report r;
	if (!report_new(&r, im))
		return;
	for (int f = 0; f < r.n_freeze; f++)
		check_freeze(&r, f);
	(to->json ? print_json : print_text)(&r, to->out);
	report_free(&r);
}
