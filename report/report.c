/* report/report.c: reads what a report shows of a run, and writes the page. */
#include "report/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/unfinished.h"
#include "predict/predict.h"
#include "report/page.h"
#include "report/private.h"

/* How a page begins; only a page takes the place of a file. */
static const char start[] = "<!DOCTYPE html>\n<html lang=\"en\" data-by=\"shardc\">\n";

/* ---- options ---- */

static bool is_page(const char *path)
{
	size_t n = strlen(path);
	return n > 5 && !strcmp(path + n - 5, ".html");
}

/* Whether nothing is there, or an older page; false after a message. */
static bool may_replace(const char *path, Diag *d)
{
	struct stat st;
	char found[sizeof(start)] = "";
	if (stat(path, &st))
		return true;
	FILE *f = S_ISREG(st.st_mode) && st.st_size ? fopen(path, "r") : NULL;
	bool page = S_ISREG(st.st_mode) && (!st.st_size
		|| (f && fread(found, 1, sizeof(start) - 1, f) == sizeof(start) - 1 && !strcmp(found, start)));
	if (f)
		fclose(f);
	if (!page)
		diag_error(d, path, "is there and is no page of --report: it is not replaced; give another path, or remove it");
	return page;
}

bool report_begin(Report *r, const Options *o, Arena *a, Diag *d)
{
	const WhatOptions *w = &o->what;
	int before = d->errors;
	*r = (Report){0};
	if (w->report && !is_page(w->report))
		diag_error(d, "--report", "\"%s\" does not end in .html: a report is a page", w->report);
	else if (w->report && w->trace && !strcmp(w->report, w->trace))
		diag_error(d, "--report", "\"%s\" is where --trace writes, too: give another path", w->report);
	else if (w->report)
		may_replace(w->report, d);
	if (!w->report && w->report_log)
		diag_error(d, "--report-log", "is of a report: give --report=FILE.html");
	if (!w->report && w->report_trace)
		diag_error(d, "--report-trace", "is of a report: give --report=FILE.html");
	if (w->report && w->report_log)
		report_read_log(r, w->report_log, a, d);
	if (w->report && w->report_trace)
		r->trace = report_read_trace(w->report_trace, a, d);
	return d->errors == before;
}

void report_end(Report *r)
{
	json_decref(r->log);
	json_decref(r->trace);
}

/* ---- data ---- */

/* [step, loss, ..]; columns: report_columns.  Of a long log each `every`-th line is shown, and all evaluations. */
static void put_log(FILE *f, json_t *log, Arena *a)
{
	enum { SHOWN = 20000 };
	const json_t *row;
	size_t i, n = json_array_size(log), every = n / SHOWN + 1;
	bool any = false;
	fprintf(f, "\"lines\": %zu, \"every\": %zu,\n\"columns\": [", n, every);
	for (int c = 0; c < REPORT_COLUMNS; c++)
		fprintf(f, "%s\"%s\"", c ? ", " : "", str_escape(a, ESCAPE_JSON, report_columns[c]));
	fputs("],\n\"log\": [", f);
	json_array_foreach(log, i, row) {
		if (i % every && i + 1 < n && !json_is_number(json_array_get(row, REPORT_EVAL)))
			continue;
		fputs(any ? ",\n[" : "\n[", f);
		any = true;
		for (size_t c = 0; c < REPORT_COLUMNS; c++) {
			const json_t *v = json_array_get(row, c);
			if (json_is_number(v))
				fprintf(f, "%s%.10g", c ? "," : "", json_number_value(v));
			else
				fprintf(f, "%snull", c ? "," : "");
		}
		fputc(']', f);
	}
	fputs("],\n", f);
}

/* What predict/ writes as a trace, as the page shows traces. */
static void put_prediction(FILE *f, const ReportOf *of, const StepParts *parts, const Options *o, Arena *a)
{
	char *text = NULL;
	size_t n = 0;
	FILE *to = open_memstream(&text, &n);
	if (!to)
		ice("out of memory");
	predict_trace(to, of->program, of->machine, parts->micro_batches, o);
	fclose(to);
	json_t *trace = json_loadb(text, n, 0, NULL);
	if (!trace)
		ice("a predicted trace is no JSON");
	fputs("\"predicted\": ", f);
	report_put_trace(f, trace, of->program, parts, a);
	fputs(",\n", f);
	json_decref(trace);
	free(text);
}

/* The plan as `shardc plan --format=json` prints it, without hints, with the prediction of the step that is shown. */
static void put_plan(FILE *f, const ReportOf *of, const StepParts *parts, const Options *o, Diag *d)
{
	Options json = *o;
	bool many = of->v->of[VARIANT_FIRST];
	json.what.format = FORMAT_JSON;
	json.what.trace = NULL;
	json.graph.accum = many ? ACCUM_MANY : o->graph.accum; /* a text says it itself */
	json.what.global_batch = many ? parts->micro_batches * MAX(of->v->of[VARIANT_ONLY]->batch, 1)
		* MAX(o->sharding.world, 1) : 0;
	fputs("\"plan\": ", f);
	codegen_plan_json(f, of->v->of[VARIANT_ONLY], of->plan);
	if (of->machine)
		predict_show(f, &(PredictOf){of->program, of->machine, of->answers}, &json, d);
	codegen_hints_json(f, NULL, 0);
	fputs(",\n", f);
}

static void put_data(FILE *f, const Report *r, const ReportOf *of, const Options *o, Arena *a, Diag *d)
{
	const Module *m = of->v->of[VARIANT_ONLY];
	fprintf(f, "{\"model\": \"%s\", \"file\": \"%s\", \"command\": \"%s\", \"target\": \"%s\", \"batch\": %lld,\n",
		str_escape(a, ESCAPE_JSON, m->name), str_escape(a, ESCAPE_JSON, o->input),
		str_escape(a, ESCAPE_JSON, o->typed), options_cuda(o) ? "cuda" : "cpu", (long long)m->batch);
	const StepParts parts = report_parts(of->program, o);
	fprintf(f, "\"many\": %s, \"micro_batches\": %lld, \"optimizer\": \"%s\",\n",
		of->v->of[VARIANT_FIRST] ? "true" : "false", (long long)parts.micro_batches,
		str_escape(a, ESCAPE_JSON, ir_train(m)->optimizer ? ir_train(m)->optimizer : ""));
	put_plan(f, of, &parts, o, d);
	report_put_parts(f, &parts);
	report_put_program(f, of, &parts, o, a);
	if (of->machine)
		put_prediction(f, of, &parts, o, a);
	if (r->trace) {
		fputs("\"measured\": ", f);
		report_put_trace(f, r->trace, of->program, &parts, a);
		fputs(",\n", f);
	}
	put_log(f, r->log, a);
	fputs("\"end\": true}\n", f);
}

/* ---- the page ---- */

/* JSON inside of HTML: a "<" could begin a tag, and stands in strings only. */
static void put_island(FILE *f, const char *json, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (json[i] == '<' || json[i] == '>' || json[i] == '&')
			fprintf(f, "\\u%04x", json[i]);
		else
			fputc(json[i], f);
}

/* The policy lets the page load nothing, and run only what stands in it. */
typedef struct Page { const char *title, *json; size_t n; } Page;

static void put_page(FILE *f, const void *context)
{
	const Page *p = context;
	fprintf(f, "%s<head>\n<meta charset=\"utf-8\">\n"
		"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
		"script-src 'unsafe-inline'; img-src data:\">\n"
		"<meta name=\"viewport\" content=\"width=device-width\">\n<link rel=\"icon\" href=\"data:,\">\n"
		"<title>%s</title>\n<style>\n", start, p->title);
	fwrite(page_style, 1, sizeof(page_style), f);
	fputs("</style>\n</head>\n<body>\n<main id=\"page\">"
		"<noscript>This page is drawn by its own script.</noscript></main>\n"
		"<script type=\"application/json\" id=\"data\">\n", f);
	put_island(f, p->json, p->n);
	fputs("</script>\n<script>\n", f);
	fwrite(page_script, 1, sizeof(page_script), f);
	fputs("</script>\n</body>\n</html>\n", f);
}

bool report_write(const Report *r, const ReportOf *of, const Options *o, Diag *d)
{
	Arena *a = arena_new();
	char *json = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&json, &n);
	if (!f)
		ice("out of memory");
	put_data(f, r, of, o, a, d);
	fclose(f);
	const char *title = arena_printf(a, "%s: shardc", of->v->of[VARIANT_ONLY]->name);
	bool written = unfinished_write(o->what.report, put_page, &(Page){str_escape(a, ESCAPE_HTML, title), json, n}, d);
	free(json);
	arena_free(a);
	return written;
}
